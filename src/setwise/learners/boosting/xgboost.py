"""XGBoost as a learner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._peers import Peers
from setwise.learners.base import shares
from setwise.learners.boosting.base import Boosting, Chosen, Forest, library
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.boosting.trees import NAN, Trees, grown, starting
from setwise.learners.boosting.xgboost_batches import from_batches
from setwise.learners.inputs import n_rows, native
from setwise.stored import Stored

__all__ = ["XGBoost"]

INTEGERS: dict[int, Any] = {
    9: np.int8,
    10: np.int8,
    11: np.int16,
    13: np.int32,
    15: np.int64,
}  # by its number
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
    stored: ClassVar[bool] = True
    distributes: ClassVar[bool] = True
    refused: ClassVar[dict[str, str]] = {
        "eval_metric": "early stopping goes by the likelihood of the `eval` observations of `fit`",
        "base_score": "boosting begins at the constant of largest likelihood",
        "booster": "only trees (gbtree) are known",
        "num_class num_target": "the number of outputs follows from the family",
        "num_parallel_tree multi_strategy": "each round grows one tree per output",
    }

    @contextmanager
    def together(self, peers: Peers) -> Iterator[None]:
        """While trees grow on the rows of several processes, joined by XGBoost's own collective."""
        from xgboost.collective import CommunicatorContext
        from xgboost.tracker import RabitTracker

        tracker = None
        if peers.rank == 0:
            tracker = RabitTracker(peers.size, peers.host, sortby="task", timeout=60)
            tracker.start()
        told = peers.tell("xgboost", tracker and tracker.worker_args())[0]
        with CommunicatorContext(**told, dmlc_task_id=f"{peers.rank:06d}", dmlc_retry=2):
            yield
        if tracker is not None:
            tracker.wait_for(60)  # for the others to leave

    def _plant(self, X: Any, start: NDArray[np.float64], chosen: Chosen, params: Any) -> Forest:
        table = {name: params.pop(name) for name in TABLE if name in params}
        params |= {"learning_rate": chosen.rate, "reg_lambda": chosen.penalty, "seed": chosen.seed}
        params |= {"base_score": 0.0, "num_target": len(start)}
        weights = params.pop("feature_weights", None)
        params["nthread"] = chosen.threads
        if isinstance(X, Stored):
            width = {"max_bin": params["max_bin"]} if "max_bin" in params else {}
            data = from_batches(X, nthread=chosen.threads, **width, **table)
        else:
            data = _matrix(X, table, nthread=chosen.threads, feature_weights=weights)
        return XGBoostForest(_library().Booster(params, [data]), start, table, data)


class XGBoostForest(Forest):
    """An XGBoost booster; `data` are the rows that it grows on."""

    reads_float32: ClassVar[bool] = True

    def __init__(
        self, booster: Any, start: NDArray[np.float64], table: dict[str, Any], data: Any = None
    ) -> None:
        super().__init__(start)
        self.booster, self.table, self.data = booster, table, data
        self.placeholder = float(table.get("missing", np.nan))
        self.scale: NDArray[np.float64] | None = None  # of the gradient, for each output
        self.numbers: list[int] = []  # the booster's own number of each round
        self.newest_trees: Any = None
        self.place: list[NDArray[np.int64]] = []  # the number of the leaf at each of their nodes
        self.other: tuple[Any, Any] = (None, None)  # the last rows asked for, and their matrix

    def grow(self, gradient: Tensor, curvature: Tensor) -> Leaves | None:
        unit = self.mean(curvature)
        g, h = (gradient / unit).numpy(), (curvature / unit).numpy()
        if self.scale is None:  # XGBoost makes no split that gains less than a fixed 1e-6
            self.scale = self.mean((gradient / unit).square()).sqrt().numpy()
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
        self.arrays().save(folder)
        model = json.loads(bytes(self.booster.save_raw("json")))
        coded = model["learner"]["gradient_booster"]["model"]["cats"]["enc"]
        facts = {"start": self.start.tolist(), "table": self.table}
        return {**facts, "categories": [_names(one) for one in coded]}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> XGBoostForest:
        start, table = starting(facts["start"]), facts["table"]
        trees = Trees.load(folder, len(start))
        _check_table(table, len(trees.features))
        model = _model(trees, len(start), _encoder(facts["categories"], len(trees.features)))
        booster = _library().Booster(model_file=bytearray(json.dumps(model).encode()))
        return cls(booster, start, table)

    def arrays(self) -> Trees:
        """The trees as arrays."""
        model = json.loads(bytes(self.booster.save_raw("json")))
        found = model["learner"]["gradient_booster"]["model"]["trees"]
        return grown([_nodes(tree) for tree in found], np.zeros(self.booster.num_features()))


def _matrix(X: Any, table: dict[str, Any], **options: Any) -> Any:
    return _library().DMatrix(native(X), **{"enable_categorical": True, **table, **options})


def _nodes(tree: Any) -> dict[str, Any]:
    numbers = np.array(tree["split_conditions"], np.float32)
    leaf = _is_leaf(tree)
    listed = zip(
        tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
    )
    categories = {node: tree["categories"][at : at + size] for node, at, size in listed}
    below = np.nextafter(numbers, np.float32(-np.inf))  # XGBoost asks for x < threshold
    below[[*categories]] = 0
    return {
        "left": tree["left_children"],
        "right": tree["right_children"],
        "feature": tree["split_indices"],
        "threshold": np.where(leaf, 0.0, below),
        "missing": np.full(len(leaf), NAN),
        "default_left": tree["default_left"],
        "value": numbers,
        "gain": np.nan_to_num(tree["loss_changes"]),
        "cover": tree["sum_hessian"],
        "categories": categories,
    }


def _model(trees: Trees, outputs: int, encoder: dict[str, Any]) -> dict[str, Any]:
    """A model file of XGBoost, as JSON values."""
    width, made = str(len(trees.features)), []
    with np.errstate(over="ignore"):
        numbers = np.where(trees.feature < 0, trees.value, trees.threshold).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("the trees cannot be used: XGBoost reads numbers up to 3.4e38")
    if (trees.missing[trees.feature >= 0] != NAN).any():
        raise ValueError("the trees cannot be used: XGBoost knows one rule for missing values")
    for number, tree in enumerate(trees):
        inner, n = tree.inner, len(tree.feature)
        left = tree.left
        above = np.nextafter(tree.threshold.astype(np.float32), np.float32(np.inf))
        parents = np.full(n, 2**31 - 1)
        parents[left[inner]] = parents[left[inner] + 1] = np.flatnonzero(inner)
        nodes, begins, sizes = np.unique(tree.category_node, return_index=True, return_counts=True)
        kind = np.zeros(n, int)
        kind[nodes] = 1
        columns: dict[str, NDArray[Any]] = {
            "base_weights": tree.value,
            "categories": tree.category,
            "categories_nodes": nodes,
            "categories_segments": begins,
            "categories_sizes": sizes,
            "default_left": tree.default_left,
            "left_children": left,
            "right_children": np.where(inner, left + 1, -1),
            "loss_changes": tree.gain,
            "parents": parents,
            "split_conditions": np.where(inner, above, tree.value),
            "split_indices": np.where(inner, tree.feature, 0),
            "split_type": kind,
            "sum_hessian": tree.cover,
        }
        made.append({name: column.tolist() for name, column in columns.items()} | {
            "id": number,
            "tree_param": {"num_deleted": "0", "num_feature": width, "num_nodes": str(n),
                           "size_leaf_vector": "1"},
        })  # fmt: skip
    forest = {
        "cats": encoder,
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(made))},
        "iteration_indptr": list(range(0, len(made) + 1, outputs)),
        "tree_info": [number % outputs for number in range(len(made))],
        "trees": made,
    }
    return {
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {"model": forest, "name": "gbtree"},
            "learner_model_param": {
                "base_score": json.dumps([0.0] * outputs), "boost_from_average": "0",
                "num_class": "0", "num_feature": width, "num_target": str(outputs),
            },
            "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
        },
        "version": [3, 1, 0],
    }  # fmt: skip


def _names(coded: dict[str, Any]) -> list[Any]:
    """The type and the categories of a feature, from XGBoost's own encoding."""
    if "type" in coded:
        return [coded["type"], coded["values"]]
    text, cuts = bytes(v % 256 for v in coded["values"]).decode("latin-1"), coded["offsets"]
    return ["text", [text[a:b] for a, b in pairwise(cuts)]]


def _encoder(categories: Any, width: int) -> dict[str, Any]:
    """XGBoost's own encoding of the categories of all features; raises if they are invalid."""
    sound = isinstance(categories, list) and len(categories) in (0, width)
    coded: list[Any] = []
    order: list[int] = []
    for kind, values in categories if sound else ():
        integer = INTEGERS.get(kind)
        if integer is None:
            sound &= kind == "text" and all(type(v) is str for v in values)
            parts = [v.encode("latin-1") for v in values] if sound else []
            offsets = np.cumsum([0, *map(len, parts)]).tolist() if parts else []
            signed = np.frombuffer(b"".join(parts), np.int8).tolist()
            coded.append({"offsets": offsets, "values": signed})
            order += sorted(range(len(parts)), key=lambda i: [*np.frombuffer(parts[i], np.int8)])
        else:
            sound &= all(type(v) is int and abs(v) <= np.iinfo(integer).max for v in values)
            coded.append({"type": kind, "values": values})
            order += sorted(range(len(values)), key=lambda i: values[i])
    if not sound:
        raise ValueError("the trees cannot be used: their categories are damaged")
    ends = np.cumsum([0, *(len(values) for _, values in categories)]).tolist()
    return {"enc": coded, "feature_segments": ends if coded else [], "sorted_idx": order}


def _check_table(table: Any, width: int) -> None:
    """Raises unless these are arguments of a `DMatrix` of so many features."""
    kinds = {"missing": int | float, "enable_categorical": bool, "feature_types": list | None}
    sound = isinstance(table, dict) and all(
        name in kinds and isinstance(value, kinds[name]) for name, value in table.items()
    )
    types = table.get("feature_types") if sound else None
    sound &= types is None or (len(types) == width and {*types} <= {"int", "float", "i", "q", "c"})
    if not sound:
        raise ValueError("the trees cannot be used: 'table' is damaged")


def _is_leaf(tree: Any) -> NDArray[np.bool_]:
    return np.asarray(np.array(tree["left_children"]) == -1)
