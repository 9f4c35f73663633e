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

from setwise._facts import checked
from setwise.learners.base import shares
from setwise.learners.boosting.base import Boosting, Chosen, Forest
from setwise.learners.boosting.catboost_trees import (
    catboost_library,
    check_width,
    models_of,
    trees_of,
    write_model,
)
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.boosting.trees import Trees, starting
from setwise.learners.inputs import n_rows, native

__all__ = ["CatBoost"]


class CatBoost(Boosting):
    """Gradient boosting with CatBoost; any of its parameters can be given.

    `coupled`, early stopping and missing values are as in `LightGBM`. The columns named by
    `cat_features` are categorical; if none are named, those columns of a data frame that hold
    categories or strings.

    CatBoost shows an objective only parts of the rows at a time, never whole sets. So each tree is
    a CatBoost model of its own, fitted by weighted least squares to the rows' Newton steps.

    >>> CatBoost(depth=4, learning_rate=0.05)
    CatBoost(depth=4, learning_rate=0.05)
    """

    names_rounds = ("iterations", "n_estimators", "num_boost_round", "num_trees")
    names_rate = ("learning_rate", "eta")
    names_patience = ("early_stopping_rounds", "od_wait")
    names_penalty = ("l2_leaf_reg", "reg_lambda")
    names_seed = ("random_seed", "random_state")
    names_threads = ("thread_count",)
    default_penalty = 3.0
    refused: ClassVar[dict[str, str]] = {
        "eval_metric custom_metric custom_loss od_type od_pval use_best_model": (
            "early stopping goes by the likelihood of the `eval` observations of `fit`"
        ),
        "text_features embedding_features": (
            "only numbers and categories are known: turn texts and embeddings into numbers"
        ),
        "boost_from_average": "boosting begins at the constant of largest likelihood",
    }

    def _plant(self, X: Any, start: NDArray[np.float64], chosen: Chosen, params: Any) -> Forest:
        columns = params.pop("cat_features", None)
        params = {"allow_writing_files": False, **params}
        if not {"verbose", "verbose_eval", "silent", "logging_level"} & set(params):
            params["logging_level"] = "Silent"
        params |= {"loss_function": "RMSE", "boost_from_average": False, "iterations": 1}
        params |= {"learning_rate": chosen.rate, "l2_leaf_reg": chosen.penalty}
        params["random_seed"], params["thread_count"] = chosen.seed, chosen.threads
        return CatBoostForest([], start, _categorical(X, columns), X, params)


class CatBoostForest(Forest):
    """Sums of CatBoost trees, one for each output; `X` holds the rows that they grow on."""

    reads_float32: ClassVar[bool] = True

    def __init__(
        self,
        models: list[Any],
        start: NDArray[np.float64],
        categorical: list[int],
        X: Any = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(start)
        self.models, self.categorical = models, categorical
        self.X, self.params = X, params or {}
        self.pool: Any = None  # the rows that trees grow on
        self.seen: Any = None  # the same, to be sent down the trees
        self.label: NDArray[np.float64] = np.zeros(0)
        self.baseline: list[list[float]] = []
        self.trees: list[list[Any]] = []  # of each round, one for each output
        self.other: tuple[Any, Any] = (None, None)  # the last rows asked for, and their pool

    def grow(self, gradient: Tensor, curvature: Tensor) -> Leaves | None:
        steps: NDArray[np.float64] = (-gradient / curvature).numpy()
        weight = (curvature / curvature.mean(0)).numpy()
        sizes = np.sqrt((weight * steps**2).mean(0))
        if not sizes.any():
            return None
        if self.pool is None and not self._prepare(steps / np.where(sizes, sizes, 1.0)):
            return None
        trees, values = [], []
        for output, size in enumerate(sizes):
            # Where all steps are 0, grow on the label instead; the leaf values are 0.
            target = steps[:, output] / size if size else self.label
            tree = self._fit(target, weight[:, output], len(self.trees) * len(sizes) + output)
            trees.append(tree)
            values.append(np.array(tree.get_leaf_values()) * size)
        if all(len(v) == 1 for v in values):
            return None
        self.trees.append(trees)
        self.values.append(values)
        return self._leaves(self.seen)

    def _prepare(self, steps: NDArray[np.float64]) -> bool:
        """Quantises X once for all trees; False where all features are constant.

        The labels are the first round's steps (their main direction, where there are several
        outputs) in all rounds, because trees of one model must have the same statistics of
        categories. The baseline makes up for it: least squares only depends on label − baseline.
        """
        self.label = steps @ np.linalg.eigh(steps.T @ steps)[1][:, -1]
        # CatBoost refuses labels that are all the same.
        if np.ptp(self.label) <= 1e-6 * np.abs(self.label).max():
            self.label = np.arange(len(steps), dtype=np.float64) % 2
        self.baseline = [[0.0] for _ in self.label]
        pool = self._pool(self.X, label=self.label)
        known = inspect.signature(pool.quantize).parameters
        try:
            pool.quantize(**{k: v for k, v in self.params.items() if k in known})
        except catboost_library().CatBoostError as error:
            if "constant or ignored" in str(error):
                return False
            raise
        # A quantised table does not tell which of two values a category has.
        self.pool, self.seen = pool, self._pool(self.X) if self.categorical else pool
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
        return catboost_library().CatBoost(params).fit(self.pool)

    def _pool(self, X: Any, like: Any = None, label: Any = None) -> Any:
        """X for CatBoost; its features go by the names that the model `like` knows."""
        return catboost_library().Pool(
            _table(X, self.categorical),
            label=label,
            cat_features=self.categorical or None,
            feature_names=None if like is None else like.feature_names_,
            thread_count=self.params.get("thread_count", -1),
        )

    def _leaves(self, pool: Any) -> Leaves:
        threads = self.params.get("thread_count", -1)
        found = [tree.calc_leaf_indexes(pool, thread_count=threads) for tree in self.trees[-1]]
        leaf = torch.from_numpy(np.concatenate(found, 1).astype(np.int64))
        return Leaves(leaf, [len(v) for v in self.values[-1]])

    def leaves(self, X: Any) -> Leaves:
        if X is not self.other[0]:
            self.other = X, self._pool(X, self.trees[-1][0])
        return self._leaves(self.other[1])

    def finish(self, rounds: int) -> Forest:
        models = []
        for output in range(len(self.start) if rounds else 0):
            model = catboost_library().sum_models([trees[output] for trees in self.trees[:rounds]])
            model.set_leaf_values(np.concatenate([v[output] for v in self.values[:rounds]]))
            models.append(model)
        return CatBoostForest(models, self.start, self.categorical, params=self.params)

    def raw(self, X: Any) -> NDArray[np.float64]:
        out = np.tile(self.start, (n_rows(X), 1))
        pool = self._pool(X, self.models[0]) if self.models else None
        for output, model in enumerate(self.models):
            out[:, output] += model.predict(pool)
        return out

    def importance(self) -> NDArray[np.float64] | None:
        if not self.models:
            return None
        return shares(sum(model.get_feature_importance() for model in self.models))

    def save(self, folder: Path) -> dict[str, Any]:
        facts = {"start": self.start.tolist(), "categorical": self.categorical}
        if self.categorical:  # statistics of categories have no form of ours
            for output, model in enumerate(self.models):
                write_model(model, folder / f"model{output}.cbm", "cbm")
        else:
            trees = self.arrays()
            check_width(trees, len(self.start))
            trees.save(folder)
        return facts

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any], trusted: bool = False) -> CatBoostForest:
        start, categorical = starting(facts["start"]), facts["categorical"]
        if not checked(categorical, list[int], "categorical"):
            return cls(models_of(Trees.load(folder, len(start)), len(start)), start, [])
        if not trusted:
            raise ValueError(
                "CatBoost keeps what it knows of categories in files of its own, which it reads "
                "without checking them: if you trust whoever made this folder, give trusted=True"
            )
        paths = [folder / f"model{output}.cbm" for output in range(len(start))]
        models = [
            catboost_library().CatBoost().load_model(str(path)) for path in paths if path.exists()
        ]
        return cls(models, start, categorical)

    def arrays(self) -> Trees:
        """The trees as arrays; those with categories have no such form."""
        if self.categorical:
            raise NotImplementedError("splits on categories")
        return trees_of(self.models)


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
