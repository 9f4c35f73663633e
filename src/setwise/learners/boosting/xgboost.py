"""XGBoost as a learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.learners.base import Task
from setwise.learners.boosting.base import Boosting, Forest
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.inputs import n_rows, native

__all__ = ["XGBoost"]

TABLE = ("missing", "feature_types", "enable_categorical")  # parameters about X, not about trees


class XGBoost(Boosting):
    """Gradient boosting with XGBoost; any of its parameters can be given.

    `coupled` solves the leaf values of each tree jointly, which is what makes large sets work;
    without it each leaf takes its own Newton step. Categorical columns of pandas frames and missing
    values are used as XGBoost does. With `eval` in `fit`, boosting stops when the likelihood of
    held-out sets has not improved for `early_stopping_rounds` (50). `gamma`, `alpha` and
    `max_delta_step` count in units in which the first round's Newton steps are of size 1.

    >>> XGBoost(max_depth=4, eta=0.05)
    XGBoost(max_depth=4, eta=0.05)
    """

    names_rounds = ("n_estimators", "num_boost_round", "num_round")
    names_rate = ("learning_rate", "eta")
    names_patience = ("early_stopping_rounds",)
    names_penalty = ("reg_lambda", "lambda")
    default_penalty = 1.0
    refused: ClassVar[dict[str, str]] = {
        "objective": "the objective is the likelihood of the observations",
        "eval_metric": "early stopping goes by the likelihood of the `eval` observations of `fit`",
        "base_score": "boosting begins at the constant of largest likelihood",
        "booster": "only trees (gbtree) are known",
        "num_class": "the number of outputs follows from the family",
        "num_target": "the number of outputs follows from the family",
        "num_parallel_tree": "each round grows one tree per output",
        "multi_strategy": "each round grows one tree per output",
        "monotone_constraints": "leaf values are solved jointly and would not respect them",
    }

    def _plant(self, X: Any, task: Task, rate: float, penalty: float, params: Any) -> Forest:
        table = {name: params.pop(name) for name in TABLE if name in params}
        if not {"seed", "random_state"} & set(params):
            params["seed"] = task.seed % (2**31 - 1)
        params |= {"learning_rate": rate, "reg_lambda": penalty, "base_score": 0.0}
        params["num_target"] = task.objective.n_outputs
        return XGBoostForest.plant(X, task.raw.numpy(), params, table)


class XGBoostForest(Forest):
    """An XGBoost booster whose leaves become ours in the end."""

    def __init__(
        self, booster: Any, start: NDArray[np.float64], table: dict[str, Any], data: Any = None
    ) -> None:
        self.booster, self.start, self.table, self.data = booster, start, table, data
        self.scale: NDArray[np.float64] | None = None  # of the gradient, for each output
        # Leaf values of each output, by the booster's own number of the round.
        self.values: dict[int, list[NDArray[np.float64]]] = {}
        self.newest_trees: Any = None
        self.place: list[NDArray[np.int64]] = []  # the number of the leaf at each of their nodes
        self.other: tuple[Any, Any] = (None, None)  # the last rows asked for, and their matrix

    @classmethod
    def plant(
        cls, X: Any, start: NDArray[np.float64], params: dict[str, Any], table: dict[str, Any]
    ) -> XGBoostForest:
        """An empty booster over these rows."""
        weights = params.pop("feature_weights", None)
        threads = params.get("nthread", params.get("n_jobs"))
        data = _matrix(X, table, nthread=threads, feature_weights=weights)
        return cls(_library().Booster(params, [data]), start, table, data)

    def grow(self, gradient: Tensor, curvature: Tensor) -> bool:
        unit = curvature.mean(0)
        g, h = (gradient / unit).numpy(), (curvature / unit).numpy()
        if self.scale is None:  # XGBoost makes no split that gains less than a fixed 1e-6
            self.scale = np.sqrt(np.square(g).mean(0))
            self.scale[self.scale == 0] = 1.0
        number = self.booster.num_boosted_rounds()
        self.booster.boost(self.data, number, grad=g / self.scale, hess=h)
        self.newest_trees = self.booster[number : number + 1]
        self.place, values = [], []
        model = json.loads(bytes(self.newest_trees.save_raw("json")))
        trees = model["learner"]["gradient_booster"]["model"]["trees"]
        for tree, scale in zip(trees, self.scale, strict=True):
            leaf = _is_leaf(tree)
            self.place.append(np.cumsum(leaf) - 1)
            values.append(np.array(tree["split_conditions"])[leaf] * scale)
        if all(len(v) == 1 for v in values):
            return False
        self.values[number] = values
        return True

    def scores(self) -> Tensor:
        found = self.booster.predict(self.data, output_margin=True).reshape(-1, len(self.start))
        return torch.from_numpy(found.astype(np.float64) * self.scale)

    def leaves(self, X: Any = None) -> Leaves:
        if X is not None and X is not self.other[0]:
            names = self.booster.get_categories()  # a part of the booster does not know them
            table = self.table if names.empty() else {**self.table, "feature_types": names}
            self.other = X, _matrix(X, table)
        data = self.data if X is None else self.other[1]
        nodes = self.newest_trees.predict(data, pred_leaf=True, validate_features=False)
        nodes = nodes.reshape(data.num_row(), -1).astype(np.int64)
        leaf = np.stack([p[node] for p, node in zip(self.place, nodes.T, strict=True)], 1)
        return Leaves(torch.from_numpy(leaf), [int(p[-1]) + 1 for p in self.place])

    def newest(self, X: Any) -> NDArray[np.float64]:
        values = np.concatenate(self.values[max(self.values)])
        return self.leaves(X).expand(torch.from_numpy(values)).numpy()

    def write(self, values: list[NDArray[np.float64]]) -> None:
        self.values[max(self.values)] = values

    def finish(self, rounds: int) -> None:
        model = json.loads(bytes(self.booster.save_raw("json")))
        forest = model["learner"]["gradient_booster"]["model"]
        kept: list[Any] = []
        for number in list(self.values)[:rounds]:
            for output, values in enumerate(self.values[number]):
                tree = forest["trees"][number * len(self.start) + output]
                leaf = _is_leaf(tree)
                for name in ("split_conditions", "base_weights"):
                    changed = np.array(tree[name])
                    changed[leaf] = values
                    tree[name] = changed.tolist()
                kept.append({**tree, "id": len(kept)})
        # A slice of the booster would do, but forgets the names of categories (XGBoost 3.2).
        forest["trees"], forest["tree_info"] = kept, forest["tree_info"][: len(kept)]
        forest["iteration_indptr"] = forest["iteration_indptr"][: min(rounds, len(self.values)) + 1]
        forest["gbtree_model_param"]["num_trees"] = str(len(kept))
        self.booster = _library().Booster(model_file=bytearray(json.dumps(model).encode()))
        self.data, self.newest_trees, self.other = None, None, (None, None)
        self.values, self.place = {}, []

    def raw(self, X: Any) -> NDArray[np.float64]:
        data = _matrix(X, self.table)
        found = self.booster.predict(data, output_margin=True, validate_features=False)
        return self.start + np.asarray(found, dtype=np.float64).reshape(n_rows(X), -1)

    def importance(self) -> NDArray[np.float64]:
        names = self.booster.feature_names or [f"f{i}" for i in range(self.booster.num_features())]
        found = self.booster.get_score(importance_type="total_gain")
        gain = np.array([found.get(name, 0.0) for name in names])
        return np.asarray(gain / max(gain.sum(), 1e-300))

    def save(self, folder: Path) -> dict[str, Any]:
        self.booster.save_model(folder / "model.ubj")
        return {"start": self.start.tolist(), "table": self.table}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> XGBoostForest:
        booster = _library().Booster(model_file=folder / "model.ubj")
        return cls(booster, np.array(facts["start"], dtype=np.float64), facts["table"])


def _library() -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise ImportError(
            "the learner XGBoost needs the package xgboost: pip install setwise[xgboost]"
        ) from error
    return xgboost


def _matrix(X: Any, table: dict[str, Any], **options: Any) -> Any:
    return _library().DMatrix(native(X), **{"enable_categorical": True, **table, **options})


def _is_leaf(tree: Any) -> NDArray[np.bool_]:
    return np.asarray(np.array(tree["left_children"]) == -1)
