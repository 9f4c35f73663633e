"""CatBoost as a learner."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from setwise.learners.base import Task
from setwise.learners.boosting.base import Boosting, Forest
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.inputs import n_rows, native

__all__ = ["CatBoost"]


class CatBoost(Boosting):
    """Gradient boosting with CatBoost; any of its parameters can be given.

    `coupled` solves the leaf values of each tree jointly, which is what makes large sets work;
    without it each leaf takes its own Newton step. The columns named by `cat_features` are
    categorical; if none are named, those columns of a data frame that hold categories or strings.
    Missing values are used as CatBoost does. With `eval` in `fit`, boosting stops when the
    likelihood of held-out sets has not improved for `early_stopping_rounds` (50).

    CatBoost shows an objective only parts of the rows at a time, never whole sets. So each tree is
    a CatBoost model of its own, fitted by weighted least squares to the rows' Newton steps.

    >>> CatBoost(depth=4, learning_rate=0.05)
    CatBoost(depth=4, learning_rate=0.05)
    """

    names_rounds = ("iterations", "n_estimators", "num_boost_round", "num_trees")
    names_rate = ("learning_rate", "eta")
    names_patience = ("early_stopping_rounds", "od_wait")
    names_penalty = ("l2_leaf_reg", "reg_lambda")
    default_penalty = 3.0
    refused: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            ("loss_function", "objective"), "the objective is the likelihood of the observations"
        ),
        **dict.fromkeys(
            ("eval_metric", "custom_metric", "custom_loss", "od_type", "od_pval", "use_best_model"),
            "early stopping goes by the likelihood of the `eval` observations of `fit`",
        ),
        **dict.fromkeys(
            ("text_features", "embedding_features"),
            "only numbers and categories are known: turn texts and embeddings into numbers",
        ),
        "boost_from_average": "boosting begins at the constant of largest likelihood",
        "monotone_constraints": "leaf values are solved jointly and would not respect them",
    }

    def _plant(self, X: Any, task: Task, rate: float, penalty: float, params: Any) -> Forest:
        columns = params.pop("cat_features", None)
        seed = self._take(params, ("random_seed", "random_state"), task.seed % (2**31 - 1))
        params = {"allow_writing_files": False, **params}
        if not {"verbose", "verbose_eval", "silent", "logging_level"} & set(params):
            params["logging_level"] = "Silent"
        params |= {"loss_function": "RMSE", "boost_from_average": False, "iterations": 1}
        params |= {"learning_rate": rate, "l2_leaf_reg": penalty, "random_seed": int(seed)}
        return CatBoostForest([], task.raw.numpy(), _categorical(X, columns), X, params)


class CatBoostForest(Forest):
    """Sums of CatBoost trees, one for each output, whose leaves are ours."""

    def __init__(
        self,
        models: list[Any],
        start: NDArray[np.float64],
        categorical: list[int],
        X: Any = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        self.models, self.start, self.categorical = models, start, categorical
        self.X, self.params = X, params or {}
        self.pool: Any = None
        self.label: NDArray[np.float64] = np.zeros(0)
        self.baseline: list[list[float]] = []
        self.trees: list[list[Any]] = []  # of each round, one for each output
        self.values: list[list[NDArray[np.float64]]] = []  # of their leaves
        self.newest_leaves: Leaves | None = None
        self.own: Any = 0.0  # what the trees add up to as CatBoost values them
        self.other: tuple[Any, Any] = (None, None)  # the last rows asked for, and their pool

    def grow(self, gradient: Tensor, curvature: Tensor) -> bool:
        steps: NDArray[np.float64] = (-gradient / curvature).numpy()
        weight = (curvature / curvature.mean(0)).numpy()
        sizes = np.sqrt((weight * steps**2).mean(0))
        if not sizes.any():
            return False
        if self.pool is None and not self._prepare(steps / np.where(sizes, sizes, 1.0)):
            return False
        trees, values = [], []
        for output, size in enumerate(sizes):
            # Without a step there is nothing to grow on: any tree will do, its leaves add nothing.
            target = steps[:, output] / size if size else self.label
            tree = self._fit(target, weight[:, output], len(self.trees) * len(sizes) + output)
            trees.append(tree)
            values.append(np.array(tree.get_leaf_values()) * size)
        if all(len(v) == 1 for v in values):
            return False
        self.trees.append(trees)
        self.values.append(values)
        self.newest_leaves = self._leaves(self.pool)
        self.own = self.own + self._expand(self.newest_leaves)
        return True

    def _prepare(self, steps: NDArray[np.float64]) -> bool:
        """Quantises X once for all trees; False where no feature tells rows apart.

        The labels are the first round's steps (their main direction, where there are several
        outputs) and stay so: statistics of categories are made of them, which must be the same in
        all trees to go into one model. Trees are grown on other steps by way of the baseline:
        least squares only knows label − baseline.
        """
        catboost = _library()
        self.label = steps @ np.linalg.eigh(steps.T @ steps)[1][:, -1]
        if not np.ptp(self.label):  # CatBoost refuses labels that are all the same
            self.label = np.arange(len(steps), dtype=np.float64) % 2
        self.baseline = [[0.0] for _ in self.label]
        pool = self._pool(self.X, label=self.label)
        known = inspect.signature(pool.quantize).parameters
        try:
            pool.quantize(**{k: v for k, v in self.params.items() if k in known})
        except catboost.CatBoostError as error:
            if "constant or ignored" in str(error):
                return False
            raise
        self.pool = pool
        return True

    def _fit(self, target: NDArray[np.float64], weight: NDArray[np.float64], number: int) -> Any:
        for cell, value in zip(self.baseline, (self.label - target).tolist(), strict=True):
            cell[0] = value
        # The public way turns this into an array, which takes longer than to grow the tree.
        getattr(self.pool, "_set_baseline", self.pool.set_baseline)(self.baseline)
        self.pool.set_weight(weight.tolist())
        params = dict(self.params)
        params["random_seed"] = (params["random_seed"] + number) % (2**31 - 1)
        # As within CatBoost, the randomness of splits fades as the model grows.
        length = params["learning_rate"] * len(self.trees)
        params["random_strength"] = params.get("random_strength", 1.0) * expit(
            np.log(len(weight)) - length
        )
        return _library().CatBoost(params).fit(self.pool)

    def _pool(self, X: Any, like: Any = None, label: Any = None) -> Any:
        """X for CatBoost; its features go by the names that the model `like` knows."""
        return _library().Pool(
            _table(X, self.categorical),
            label=label,
            cat_features=self.categorical or None,
            feature_names=None if like is None else like.feature_names_,
            thread_count=self.params.get("thread_count", -1),
        )

    def scores(self) -> Tensor:
        return torch.from_numpy(self.own)

    def leaves(self, X: Any = None) -> Leaves:
        if X is None and self.newest_leaves is not None:
            return self.newest_leaves
        if X is not self.other[0]:
            self.other = X, self._pool(X, self.trees[-1][0])
        return self._leaves(self.other[1])

    def _leaves(self, pool: Any) -> Leaves:
        threads = self.params.get("thread_count", -1)
        found = [tree.calc_leaf_indexes(pool, thread_count=threads) for tree in self.trees[-1]]
        leaf = torch.from_numpy(np.concatenate(found, 1).astype(np.int64))
        return Leaves(leaf, [len(v) for v in self.values[-1]])

    def _expand(self, leaves: Leaves) -> NDArray[np.float64]:
        return leaves.expand(torch.from_numpy(np.concatenate(self.values[-1]))).numpy()

    def newest(self, X: Any) -> NDArray[np.float64]:
        return self._expand(self.leaves(X))

    def write(self, values: list[NDArray[np.float64]]) -> None:
        # No row is in some leaves of a symmetric tree: there a mean of rows is not a number.
        self.values[-1] = [np.nan_to_num(v) for v in values]

    def finish(self, rounds: int) -> None:
        for output in range(len(self.start) if rounds else 0):
            model = _library().sum_models([trees[output] for trees in self.trees[:rounds]])
            model.set_leaf_values(np.concatenate([v[output] for v in self.values[:rounds]]))
            self.models.append(model)
        self.X, self.pool, self.newest_leaves, self.other = None, None, None, (None, None)
        self.trees, self.values, self.own, self.label, self.baseline = (
            [],
            [],
            0.0,
            self.label[:0],
            [],
        )

    def raw(self, X: Any) -> NDArray[np.float64]:
        out = np.tile(self.start, (n_rows(X), 1))
        pool = self._pool(X, self.models[0]) if self.models else None
        for output, model in enumerate(self.models):
            out[:, output] += model.predict(pool)
        return out

    def importance(self) -> NDArray[np.float64] | None:
        if not self.models:
            return None
        found = sum(model.get_feature_importance() for model in self.models)
        return np.asarray(found / max(found.sum(), 1e-300))

    def save(self, folder: Path) -> dict[str, Any]:
        for output, model in enumerate(self.models):
            model.save_model(str(folder / f"model{output}.cbm"))
        return {
            "start": self.start.tolist(),
            "categorical": self.categorical,
            "models": len(self.models),
        }

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> CatBoostForest:
        catboost = _library()
        paths = [folder / f"model{output}.cbm" for output in range(facts["models"])]
        models = [catboost.CatBoost().load_model(str(path)) for path in paths]
        return cls(models, np.array(facts["start"], dtype=np.float64), facts["categorical"])


def _library() -> Any:
    try:
        import catboost
    except ImportError as error:
        raise ImportError(
            "the learner CatBoost needs the package catboost: pip install setwise[catboost]"
        ) from error
    return catboost


def _categorical(X: Any, columns: Any) -> list[int]:
    """Places of the categorical columns: those given (places or names), or those that look so."""
    frame = native(X)
    if not hasattr(frame, "columns"):
        return [int(column) for column in columns or []]
    names = list(frame.columns)
    if columns is None:
        columns = frame.select_dtypes(include=["category", "object", "string"]).columns
    return [names.index(column) if column in names else int(column) for column in columns]


def _table(X: Any, categorical: list[int]) -> Any:
    """X as CatBoost takes it: categories are strings, and a missing one is a category."""
    X = native(X)
    if not categorical:
        return X
    import pandas

    frame = X.copy(deep=False) if hasattr(X, "columns") else pandas.DataFrame(X)
    for place in categorical:
        codes, found = pandas.factorize(frame.iloc[:, place])
        words = [str(float(v) if isinstance(v, int | float | np.number) else v) for v in found]
        frame.isetitem(place, np.array([*words, "missing"], dtype=object)[codes])
    return frame
