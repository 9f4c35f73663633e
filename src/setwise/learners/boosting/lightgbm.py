"""LightGBM as a learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._peers import Peers, free_port
from setwise.frames import Encoded
from setwise.learners.base import shares
from setwise.learners.boosting.base import Boosting, Chosen, Forest
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.boosting.lightgbm_batches import categories_of, in_sequence
from setwise.learners.boosting.trees import Tree, Trees, grown, starting
from setwise.learners.inputs import n_rows, native
from setwise.stored import Stored

__all__ = ["LightGBM"]

CELLS = 1 << 18
SAMPLED = ("bin_construct_sample_cnt", "subsample_for_bin")
MINUTES = 30  # that a process waits for another one


class LightGBM(Boosting):
    """Gradient boosting with LightGBM; any of its parameters can be given.

    `coupled` solves the leaf values of each tree jointly, which is what makes large sets work;
    without it each leaf takes its own Newton step. Categorical columns of pandas frames and missing
    values are used as LightGBM does. With `eval` in `fit`, boosting stops when the likelihood of
    held-out sets has not improved for `early_stopping_rounds` (50).

    >>> LightGBM(num_leaves=15, learning_rate=0.05)
    LightGBM(num_leaves=15, learning_rate=0.05)
    """

    stored: ClassVar[bool] = True
    distributes: ClassVar[bool] = True
    names_rounds = ("n_estimators", "num_iterations", "num_boost_round", "num_rounds", "n_iter")
    names_rate = ("learning_rate", "shrinkage_rate", "eta")
    names_patience = ("early_stopping_rounds", "early_stopping_round", "n_iter_no_change")
    names_penalty = ("lambda_l2", "reg_lambda", "lambda")
    names_seed = ("seed", "random_seed", "random_state")
    names_threads = ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs")
    refused: ClassVar[dict[str, str]] = {
        "boosting": "only plain boosting (gbdt) and sampling by `data_sample_strategy` are known",
        "linear_tree": "leaves must be constant",
    }

    def _plant(self, X: Any, start: NDArray[np.float64], chosen: Chosen, params: Any) -> Forest:
        defaults = {
            "verbosity": -1,
            "deterministic": True,
            "force_row_wise": not params.get("force_col_wise", False),
        }
        params = {**defaults, **params, "objective": "none", "metric": "none"}
        params |= {"learning_rate": chosen.rate, "lambda_l2": chosen.penalty, "seed": chosen.seed}
        params["num_threads"] = chosen.threads
        params["num_class"] = len(start)
        like = _sample(X, params, chosen)
        told: dict[str, Any] = {"params": params, "reference": like}
        if isinstance(X, Stored):
            table, told["categorical_feature"] = in_sequence(X)
        else:
            table = native(X)
        data = lightgbm.Dataset(table, np.zeros(n_rows(X)), **told)
        if like is not None:
            data.construct()
        params |= _network(chosen.peers)
        booster = lightgbm.Booster(params, data)  # joins the network before it looks at the data
        if isinstance(X, Stored) and X.encoder is not None:
            booster.pandas_categorical = categories_of(X.encoder)
        if not any(data.feature_num_bin(i) for i in range(data.num_feature())):
            raise ValueError(
                f"LightGBM can split none of the {data.num_feature()} features of {n_rows(X)} rows:"
                f" they are constant, or there are fewer rows than two leaves need. Lower "
                f"min_child_samples (20), or use setwise.Linear()"
            )
        return LightGBMForest(booster, start, n_rows(X))


def _sample(X: Any, params: dict[str, Any], chosen: Chosen) -> lightgbm.Dataset | None:
    """Rows of all processes, for their bins; LightGBM would look at those of one process only."""
    values = X.values if isinstance(X, Encoded) else X
    if chosen.peers.size == 1 or not isinstance(values, np.ndarray):
        return None
    n = int(chosen.peers.sum(torch.tensor([len(values)])))
    most = int(next((params[name] for name in SAMPLED if name in params), 200_000))
    if n > most:
        rng = np.random.default_rng([chosen.seed, chosen.peers.rank])
        some = rng.choice(len(values), most * len(values) // n, replace=False)
        values = values[np.sort(some)]
    pooled = chosen.peers.pooled(torch.from_numpy(np.ascontiguousarray(values))).numpy()
    table = native(Encoded(pooled, X.encoder) if isinstance(X, Encoded) else pooled)
    return lightgbm.Dataset(table, np.zeros(len(pooled)), params=params).construct()


def _network(peers: Peers) -> dict[str, Any]:
    """What LightGBM needs to know to grow trees on the rows of several processes."""
    if peers.size == 1:
        return {}
    port = free_port(peers.host)
    machines = [f"{host}:{at}" for host, at in peers.tell("lightgbm", (peers.host, port))]
    return {
        "machines": ",".join(machines),
        "num_machines": peers.size,
        "local_listen_port": port,
        "time_out": MINUTES,
        "tree_learner": "data",
        "pre_partition": True,
    }


class LightGBMForest(Forest):
    """A LightGBM booster that grows on so many rows."""

    def __init__(
        self, booster: lightgbm.Booster, start: NDArray[np.float64], rows: int = 0
    ) -> None:
        super().__init__(start)
        self.booster = booster
        self.scores = np.zeros((len(start), rows))  # LightGBM's own sums
        self.before = np.zeros_like(self.scores)
        self.curvature: tuple[Tensor, Tensor] | None = None

    def grow(self, gradient: Tensor, curvature: Tensor) -> Leaves | None:
        if self.curvature is None or self.curvature[0] is not curvature:
            self.curvature = curvature, curvature.float()  # which LightGBM takes as it is
        both = gradient.float(), self.curvature[1]
        g, h = (np.asarray(t.squeeze(1) if t.shape[1] == 1 else t) for t in both)
        if self.booster.update(fobj=lambda scores, data: (g, h)):
            return None
        self.scores, self.before = self.before, self.scores
        self.booster.eval_train(feval=self._keep)
        last = self.booster.current_iteration() - 1
        text = self.booster.model_to_string(start_iteration=last, num_iteration=1)
        lines = [part[: part.index("\n")] for part in text.split("\nleaf_value=")[1:]]
        values = [np.array(line.split(), dtype=np.float64) for line in lines]
        self.values.append(values)
        found = self._leaves_by_value(values)
        if found is None:
            return self.leaves(self.grown_on())
        return Leaves(found, [len(v) for v in values])

    def _keep(self, scores: Any, data: Any) -> tuple[str, float, bool]:
        self.scores[:] = scores.T
        return "", 0.0, True

    def _leaves_by_value(self, values: list[NDArray[np.float64]]) -> Tensor | None:
        """Which leaf each row is in, from what LightGBM's own leaf values have added to the row.

        Several times faster than asking for leaves; None where two leaves have the same value.
        """
        columns = []
        for output, own in enumerate(values):
            after, change = self.scores[output], self.before[output]
            np.subtract(after, change, out=change)  # the sums before are not needed again
            leaf = _nearest(change, own, 1e-12 * max(after.max(), -after.min()))
            if leaf is None:
                return None
            columns.append(torch.from_numpy(leaf))
        return columns[0].unsqueeze(1) if len(columns) == 1 else torch.stack(columns, 1)

    def leaves(self, X: Any) -> Leaves:
        last = self.booster.current_iteration() - 1
        options: dict[str, Any] = {"pred_leaf": True, "start_iteration": last, "num_iteration": 1}
        parts = X.batches() if isinstance(X, Stored) else [X]
        found = np.concatenate([self.booster.predict(native(part), **options) for part in parts])
        leaf = torch.from_numpy(found.reshape(n_rows(X), -1).astype(np.int64))
        return Leaves(leaf, [len(v) for v in self.values[-1]])

    def close(self) -> None:
        self.booster.free_network()

    def finish(self, rounds: int) -> Forest:
        trees = [tree for values in self.values for tree in values]
        for number, values in enumerate(trees):
            for leaf, value in enumerate(values):
                self.booster.set_leaf_output(number, leaf, float(value))
        text = self.booster.model_to_string(num_iteration=rounds)
        return LightGBMForest(lightgbm.Booster(model_str=text), self.start)

    def raw(self, X: Any) -> NDArray[np.float64]:
        scores = np.asarray(self.booster.predict(native(X), raw_score=True), dtype=np.float64)
        raw: NDArray[np.float64] = self.start + scores.reshape(n_rows(X), -1)
        return raw

    def importance(self) -> NDArray[np.float64]:
        return shares(self.booster.feature_importance("gain"))

    def save(self, folder: Path) -> dict[str, Any]:
        self.arrays().save(folder)
        return {"start": self.start.tolist(), "categories": self.booster.pandas_categorical}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> LightGBMForest:
        start = starting(facts["start"])
        text = _text(Trees.load(folder, len(start)), len(start), _checked(facts["categories"]))
        return cls(lightgbm.Booster(model_str=text), start)

    def arrays(self) -> Trees:
        """The trees as arrays."""
        text = self.booster.model_to_string().partition("\nend of trees")[0]
        trees = [_nodes(block) for block in text.split("\nTree=")[1:]]
        return grown(trees, np.zeros(self.booster.num_feature()))


def _nodes(block: str) -> dict[str, Any]:
    """The nodes of a tree in LightGBM's own words: first those that split, then the leaves."""
    told = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)

    def read(name: str) -> NDArray[np.float64]:
        return np.array(told.get(name, "").split(), np.float64)

    leaves, kind = read("leaf_value"), read("decision_type").astype(np.int64)
    n, none = len(kind), np.zeros(len(leaves))
    out: dict[str, Any] = {}
    for side in ("left", "right"):
        child = read(f"{side}_child").astype(np.int64)
        out[side] = np.concatenate([np.where(child < 0, n + ~child, child), none - 1]).astype(int)
    of_categories, threshold = (kind & 1) == 1, read("threshold")
    bounds, words = read("cat_boundaries").astype(int), read("cat_threshold").astype(np.uint32)
    out["categories"] = {
        int(node): _codes(words[bounds[cut] : bounds[cut + 1]])
        for node in np.flatnonzero(of_categories)
        for cut in [int(threshold[node])]
    }
    numbers = {
        "feature": read("split_feature"),
        "threshold": np.where(of_categories, 0.0, np.nan_to_num(threshold)),  # inf: all but NaN
        "missing": kind >> 2,
        "default_left": (kind >> 1) & 1,
        "gain": np.nan_to_num(read("split_gain")),
    }
    out |= {name: np.concatenate([column, none]) for name, column in numbers.items()}
    out["value"] = np.concatenate([np.zeros(n), leaves])
    counts = read("internal_count")[:n], read("leaf_count") if n else none
    return {**out, "cover": np.concatenate(counts)}


def _codes(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little"))


def _checked(categories: Any) -> Any:
    """The categories of the columns that have some, as pandas knows them."""
    columns = categories if isinstance(categories, list) else []
    plain = all(isinstance(c, list) and {*map(type, c)} <= {str, int, float, bool} for c in columns)
    if not plain or not (categories is None or isinstance(categories, list)):
        raise ValueError("the trees cannot be used: their categories are damaged")
    return categories


def _text(trees: Trees, outputs: int, categories: Any) -> str:
    """A model file of LightGBM."""
    width = len(trees.features)
    head = {
        "version": "v4", "num_class": outputs, "num_tree_per_iteration": outputs, "label_index": 0,
        "max_feature_idx": width - 1,
        "feature_names": " ".join(f"Column_{i}" for i in range(width)),
        "feature_infos": " ".join(["[-1:1]"] * width),
    }  # fmt: skip
    parts = ["tree", *(f"{name}={value}" for name, value in head.items()), ""]
    for number, tree in enumerate(trees):
        parts += [f"Tree={number}", *_block(tree), ""]
    return "\n".join([*parts, "end of trees", "", f"pandas_categorical:{json.dumps(categories)}\n"])


def _block(tree: Tree) -> list[str]:
    inner = tree.inner
    rank = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    left = tree.left[inner]
    words: list[NDArray[np.uint32]] = []
    threshold, kind = tree.threshold.copy(), 2 * tree.default_left + 4 * tree.missing
    for node in np.unique(tree.category_node):
        codes = tree.category[tree.category_node == node]
        bits = np.zeros(32 * (int(codes.max()) // 32 + 1), np.uint8)
        bits[codes] = 1
        threshold[node], kind[node] = len(words), kind[node] | 1
        words.append(np.packbits(bits, bitorder="little").view("<u4"))
    columns: dict[str, Any] = {
        "num_leaves": [int((~inner).sum())],
        "num_cat": [len(words)],
        "split_feature": tree.feature[inner],
        "split_gain": tree.gain[inner],
        "threshold": threshold[inner],
        "decision_type": kind[inner],
        "left_child": rank[left],
        "right_child": rank[left + 1],
        "leaf_value": tree.value[~inner],
        "leaf_count": _whole(tree.cover[~inner]),
        "internal_count": _whole(tree.cover[inner]),
    }
    if words:
        columns["cat_boundaries"] = np.cumsum([0, *map(len, words)])
        columns["cat_threshold"] = np.concatenate(words)
    columns |= {"is_linear": [0], "shrinkage": [1]}
    lists = {name: np.asarray(column).tolist() for name, column in columns.items()}
    return [f"{name}={' '.join(map(repr, column))}" for name, column in lists.items()]


def _whole(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(numbers, 0, 2**31 - 1).astype(np.int64)


def _nearest(
    x: NDArray[np.float64], values: NDArray[np.float64], rounding: float
) -> NDArray[np.int32] | None:
    """For each x, which of a few values it is, rounding aside; None where two are too close.

    By a table over cells so small that four lie between any two values: much faster than a search.
    """
    if len(values) == 1:
        return np.zeros(len(x), dtype=np.int32)
    ascending = np.sort(values)
    low, span = ascending[0], ascending[-1] - ascending[0]
    gap = float(np.diff(ascending).min())
    if gap * CELLS < 4 * span or gap <= 100 * rounding:
        return None
    scale = 4 / gap
    table = np.zeros(int(span * scale) + 5, dtype=np.int32)
    place = ((values - low) * scale + 1.5).astype(np.int64)
    for shift in (-1, 0, 1):  # rounding may lead to the next cell
        table[place + shift] = np.arange(len(values))
    at = x * scale
    at += 1.5 - low * scale
    found: NDArray[np.int32] = table[at.astype(np.int32)]
    return found
