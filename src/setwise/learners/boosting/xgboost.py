"""XGBoost as a learner."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.learners.base import shares
from setwise.learners.boosting.base import Boosting, Chosen, Forest, library
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.inputs import n_rows, native

__all__ = ["XGBoost"]

TABLE = ("missing", "feature_types", "enable_categorical")  # parameters about X, not about trees

_library = partial(library, "xgboost", "XGBoost")


class XGBoost(Boosting):
    """Gradient boosting with XGBoost; any of its parameters can be given.

    `coupled`, early stopping, categorical columns and missing values are as in `LightGBM`.
    `gamma`, `alpha` and `max_delta_step` count in units in which the first round's Newton steps are
    of size 1.

    >>> XGBoost(max_depth=4, eta=0.05)
    XGBoost(max_depth=4, eta=0.05)
    """

    names_rounds = ("n_estimators", "num_boost_round", "num_round")
    names_rate = ("learning_rate", "eta")
    names_patience = ("early_stopping_rounds",)
    names_penalty = ("reg_lambda", "lambda")
    names_seed = ("seed", "random_state")
    names_threads = ("nthread", "n_jobs")
    default_penalty = 1.0
    refused: ClassVar[dict[str, str]] = {
        "eval_metric": "early stopping goes by the likelihood of the `eval` observations of `fit`",
        "base_score": "boosting begins at the constant of largest likelihood",
        "booster": "only trees (gbtree) are known",
        "num_class num_target": "the number of outputs follows from the family",
        "num_parallel_tree multi_strategy": "each round grows one tree per output",
    }

    def _plant(self, X: Any, start: NDArray[np.float64], chosen: Chosen, params: Any) -> Forest:
        table = {name: params.pop(name) for name in TABLE if name in params}
        params |= {"learning_rate": chosen.rate, "reg_lambda": chosen.penalty, "seed": chosen.seed}
        params |= {"base_score": 0.0, "num_target": len(start)}
        weights = params.pop("feature_weights", None)
        params["nthread"] = chosen.threads
        data = _matrix(X, table, nthread=chosen.threads, feature_weights=weights)
        return XGBoostForest(_library().Booster(params, [data]), start, table, data)


class XGBoostForest(Forest):
    """An XGBoost booster; `data` are the rows that it grows on."""

    def __init__(
        self, booster: Any, start: NDArray[np.float64], table: dict[str, Any], data: Any = None
    ) -> None:
        super().__init__(start)
        self.booster, self.table, self.data = booster, table, data
        self.scale: NDArray[np.float64] | None = None  # of the gradient, for each output
        self.numbers: list[int] = []  # the booster's own number of each round
        self.newest_trees: Any = None
        self.place: list[NDArray[np.int64]] = []  # the number of the leaf at each of their nodes
        self.other: tuple[Any, Any] = (None, None)  # the last rows asked for, and their matrix

    def grow(self, gradient: Tensor, curvature: Tensor) -> Leaves | None:
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
            return None
        self.numbers.append(number)
        self.values.append(values)
        return self._leaves(self.data)

    def _leaves(self, data: Any) -> Leaves:
        nodes = self.newest_trees.predict(data, pred_leaf=True, validate_features=False)
        nodes = nodes.reshape(data.num_row(), -1).astype(np.int64)
        leaf = np.stack([p[node] for p, node in zip(self.place, nodes.T, strict=True)], 1)
        return Leaves(torch.from_numpy(leaf), [int(p[-1]) + 1 for p in self.place])

    def leaves(self, X: Any) -> Leaves:
        if X is not self.other[0]:
            names = self.booster.get_categories()  # a part of the booster does not know them
            table = self.table if names.empty() else {**self.table, "feature_types": names}
            self.other = X, _matrix(X, table)
        return self._leaves(self.other[1])

    def finish(self, rounds: int) -> Forest:
        model = json.loads(bytes(self.booster.save_raw("json")))
        forest = model["learner"]["gradient_booster"]["model"]
        kept: list[Any] = []
        for number, round_values in list(zip(self.numbers, self.values, strict=True))[:rounds]:
            for output, values in enumerate(round_values):
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
        booster = _library().Booster(model_file=bytearray(json.dumps(model).encode()))
        return XGBoostForest(booster, self.start, self.table)

    def raw(self, X: Any) -> NDArray[np.float64]:
        data = _matrix(X, self.table)
        found = self.booster.predict(data, output_margin=True, validate_features=False)
        return self.start + np.asarray(found, dtype=np.float64).reshape(n_rows(X), -1)

    def importance(self) -> NDArray[np.float64]:
        names = self.booster.feature_names or [f"f{i}" for i in range(self.booster.num_features())]
        found = self.booster.get_score(importance_type="total_gain")
        return shares([found.get(name, 0.0) for name in names])

    def save(self, folder: Path) -> dict[str, Any]:
        self.booster.save_model(folder / "model.ubj")
        return {"start": self.start.tolist(), "table": self.table}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> XGBoostForest:
        booster = _library().Booster(model_file=folder / "model.ubj")
        return cls(booster, np.array(facts["start"], dtype=np.float64), facts["table"])


def _matrix(X: Any, table: dict[str, Any], **options: Any) -> Any:
    return _library().DMatrix(native(X), **{"enable_categorical": True, **table, **options})


def _is_leaf(tree: Any) -> NDArray[np.bool_]:
    return np.asarray(np.array(tree["left_children"]) == -1)
