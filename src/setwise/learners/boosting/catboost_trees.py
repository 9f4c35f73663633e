"""Trees as CatBoost has them in JSON, and as arrays."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from setwise.learners.boosting.base import library
from setwise.learners.boosting.trees import NAN, Tree, Trees, grown

__all__ = ["catboost_library", "check_width", "models_of", "trees_of", "write_model"]

RULES = ("AsIs", "AsFalse", "AsTrue")  # what a missing value counts as, beside a border
WIDEST = 2**17  # features of all outputs; JSON describes each in about a kilobyte of memory
DEEPEST = 64  # levels of a tree in JSON; CatBoost grows at most 16

catboost_library = partial(library, "catboost", "CatBoost")


def trees_of(models: Sequence[Any]) -> Trees:
    """The trees of models of CatBoost, one for each output, as arrays."""
    found = [_described(model) for model in models]
    columns = found[0]["features_info"]["float_features"] if found else [{}]
    rules = [RULES.index(column.get("nan_value_treatment", "AsIs")) for column in columns]
    each = [[_nodes(tree, rules) for tree in _listed(model)] for model in found]
    return grown([tree for round_ in zip(*each, strict=True) for tree in round_], rules)


def _described(model: Any) -> dict[str, Any]:
    """A model as CatBoost writes it in JSON, which it writes to files only."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        write_model(model, path, "json")
        text = path.read_text(encoding="utf-8")
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:  # CatBoost does not look whether the disk is full
        raise OSError(f"{path} was cut short: the disk of temporary files may be full") from None
    return found


def write_model(model: Any, path: Path, kind: str) -> None:
    """Writes a model; an error says why the disk could not take it."""
    try:
        model.save_model(str(path), format=kind)
        if kind != "json":  # of which CatBoost would not say that the disk was full
            catboost_library().CatBoost().load_model(str(path), format=kind)
    except catboost_library().CatBoostError as error:
        raise OSError(f"{path} could not be written: {str(error).splitlines()[0]}") from None


def _listed(model: dict[str, Any]) -> list[Any]:
    """Its trees as nested nodes. CatBoost's own are symmetric: a level has one split."""
    if "trees" in model:
        return list(model["trees"])
    out = []
    for tree in model["oblivious_trees"]:
        level: list[Any] = [
            {"value": value, "weight": weight}
            for value, weight in zip(tree["leaf_values"], tree["leaf_weights"], strict=True)
        ]
        for split in tree["splits"]:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [{"left": left, "right": right, "split": split} for left, right in pairs]
        out += level
    return out


def _nodes(root: dict[str, Any], rules: list[int]) -> dict[str, Any]:
    nodes = [root]
    columns: dict[str, Any] = {"left": [], "right": []}
    for node in nodes:  # which grows on the way
        for side, children in columns.items():
            children.append(len(nodes) if "split" in node else -1)
            nodes += [node[side]] if "split" in node else []
    splits = [node.get("split", {"float_feature_index": 0, "border": 0.0}) for node in nodes]
    feature = np.array([split["float_feature_index"] for split in splits])
    return columns | {
        "feature": feature,
        "threshold": [split["border"] for split in splits],
        "missing": np.full(len(nodes), NAN),
        "default_left": np.array(rules)[feature] != RULES.index("AsTrue"),
        "value": [node.get("value", 0.0) for node in nodes],
        "cover": [node.get("weight", 0.0) for node in nodes],
    }


def models_of(trees: Trees, outputs: int) -> list[Any]:
    """Models of CatBoost, one for each output, that read these trees from JSON."""
    check_width(trees, outputs)
    with np.errstate(over="ignore"):
        single = trees.threshold.astype(np.float32).astype(np.float64)
    if len(trees.category) or (single != trees.threshold).any() or trees.features.max() > 2:
        raise ValueError("the trees cannot be used: CatBoost has no such splits")
    models = []
    for output in range(outputs if len(trees.sizes) else 0):
        own = [tree for number, tree in enumerate(trees) if number % outputs == output]
        levels = [_levels(tree) for tree in own]
        feature = np.concatenate([tree.feature for tree in own])
        threshold = np.concatenate([tree.threshold for tree in own])
        borders = {int(f): np.unique(threshold[feature == f]) for f in np.unique(feature)}
        columns = [
            {
                "borders": borders.get(number, np.zeros(0)).tolist(), "feature_id": "",
                "feature_index": number, "flat_feature_index": number,
                "has_nans": rule > 0, "nan_value_treatment": RULES[rule],
            }
            for number, rule in enumerate(trees.features.tolist())
        ]  # fmt: skip
        pairs = [(number, b) for number, column in enumerate(columns) for b in column["borders"]]
        index = {pair: place for place, pair in enumerate(pairs)}
        leaves = itertools.count()  # in place of values, which CatBoost rounds as it reads them
        text: dict[str, Any] = {
            "features_info": {"float_features": columns}, "scale_and_bias": [1, [0]]
        }  # fmt: skip
        if all(found is not None for found in levels):
            text["oblivious_trees"] = [
                {
                    "splits": [_split(tree, node, index) for node in found or ()],
                    "leaf_values": [next(leaves) for _ in tree.value[~tree.inner]],
                    "leaf_weights": tree.cover[~tree.inner].tolist(),
                }
                for tree, found in zip(own, levels, strict=True)
            ]
        else:
            text["trees"] = [_nested(tree, leaves, index) for tree in own]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.json"
            path.write_text(json.dumps(text), encoding="utf-8")
            model = catboost_library().CatBoost().load_model(str(path), format="json")
        values = np.concatenate([tree.value[~tree.inner] for tree in own])
        model.set_leaf_values(values[np.array(model.get_leaf_values()).astype(np.int64)])
        models.append(model)
    return models


def check_width(trees: Trees, outputs: int) -> None:
    """Raises where JSON, which describes every feature for every output, would be too large."""
    if len(trees.features) * outputs > WIDEST:
        raise ValueError(
            f"the trees cannot be used: CatBoost reads at most {WIDEST} features, of all outputs"
        )


def _levels(tree: Tree) -> list[int] | None:
    """A node of each level from the lowest up, where all nodes of a level split alike."""
    depth = len(tree.feature).bit_length() - 1
    nodes = [2**level - 1 for level in range(depth)]
    for node in nodes:
        level = slice(node, 2 * node + 1)
        alike = (tree.feature[level], tree.threshold[level])
        if not tree.inner[level].all() or any((a != a[0]).any() for a in alike):
            return None
    return nodes[::-1] if len(tree.feature) == 2 ** (depth + 1) - 1 else None


def _split(tree: Tree, node: int, index: dict[tuple[int, float], int]) -> dict[str, Any]:
    feature, border = int(tree.feature[node]), float(tree.threshold[node])
    return {
        "border": border, "float_feature_index": feature,
        "split_index": index[feature, border], "split_type": "FloatFeature",
    }  # fmt: skip


def _nested(
    tree: Tree, leaves: Iterator[int], index: dict[tuple[int, float], int]
) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [
        {"split": _split(tree, node, index)} if inner else {"value": next(leaves), "weight": weight}
        for node, (inner, weight) in enumerate(
            zip(tree.inner.tolist(), tree.cover.tolist(), strict=True)
        )
    ]
    levels = [0] * len(nodes)
    for node, left in enumerate(tree.left.tolist()):
        if left >= 0:
            nodes[node] |= {"left": nodes[left], "right": nodes[left + 1]}
            levels[left] = levels[left + 1] = levels[node] + 1
    if max(levels) > DEEPEST:
        raise ValueError(f"the trees cannot be used: CatBoost grows at most {DEEPEST} levels")
    return nodes[0]
