"""Trees as plain arrays: the one form in which they are saved, checked and given to others.

The libraries trust their own model files: a wrong number in one aborts the process, hangs it or
reads beyond its memory. So files hold arrays, `Trees.load` checks every number of them, and the
library's model is built again from what was checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise._arrays import read_arrays, write_arrays
from setwise._facts import checked

__all__ = ["AS_ZERO", "NAN", "ZERO", "Tree", "Trees", "grown", "starting"]

FILE = "trees.safetensors"
AS_ZERO, ZERO, NAN = 0, 1, 2  # what counts as missing: nothing (NaN is 0), 0 and NaN, NaN
DEEPEST = 1000  # levels of a tree: some libraries walk them by recursion
WIDEST = 2**22  # features
CODES = 2**22  # codes of categories that the bit sets of all nodes may span, in words of 32

DTYPES = {
    "sizes": np.int32, "features": np.uint8, "feature": np.int32, "threshold": np.float64,
    "missing": np.uint8, "default_left": np.uint8, "value": np.float64, "gain": np.float64,
    "cover": np.float64, "category_node": np.int64, "category": np.int32,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Trees:
    """All trees of a forest, node by node; tree t adds to output t modulo their number.

    The nodes of a tree are listed level by level from the root, so that children need not be
    named: those of its i-th inner node are the nodes 2i + 1 (left) and 2i + 2 (right). A row goes
    left where `x[feature] <= threshold`; XGBoost and CatBoost read x as float32. A split on a
    category has entries in `category_node` and `category`, the codes that LightGBM sends to the
    left and XGBoost to the right.
    """

    sizes: NDArray[np.int32]  # nodes of each tree
    features: NDArray[np.uint8]  # a fact of the library's about each feature
    feature: NDArray[np.int32]  # of each node; −1 at leaves
    threshold: NDArray[np.float64]
    missing: NDArray[np.uint8]  # what counts as missing, and where it then goes
    default_left: NDArray[np.uint8]
    value: NDArray[np.float64]  # of leaves
    gain: NDArray[np.float64]  # of splits
    cover: NDArray[np.float64]  # weight of the rows in a node
    category_node: NDArray[np.int64]  # ascending
    category: NDArray[np.int32]

    def __iter__(self) -> Iterator[Tree]:
        """The trees one by one."""
        ends = np.cumsum(self.sizes, dtype=np.int64)
        cuts = np.searchsorted(self.category_node, [0, *ends])
        for i, end in enumerate(ends.tolist()):
            begin, part = end - int(self.sizes[i]), slice(cuts[i], cuts[i + 1])
            nodes = {name: getattr(self, name)[begin:end] for name in NODES}
            yield Tree(**nodes, category_node=self.category_node[part] - begin,
                       category=self.category[part])  # fmt: skip

    def save(self, folder: Path) -> None:
        """Writes the arrays; trees that could not be read back are an error."""
        self.check()
        write_arrays(folder / FILE, vars(self))

    @classmethod
    def load(cls, folder: Path, outputs: int) -> Trees:
        """The arrays that `save` wrote, once every number in them is known to be sound."""
        arrays = read_arrays(folder / FILE, {name: (kind, 1) for name, kind in DTYPES.items()})
        trees = cls(**arrays)
        trees.check()
        trees._need(len(trees.sizes) % outputs == 0, "some outputs have more trees than others")
        return trees

    def check(self) -> None:
        """Raises unless every tree leads from its root to leaves, by features that exist."""
        nodes, inner = len(self.feature), self.feature >= 0
        sizes = self.sizes.astype(np.int64)
        splits = np.concatenate([[0], np.cumsum(inner)])
        ends = np.cumsum(sizes)
        self._need(
            all(len(getattr(self, name)) == nodes for name in NODES)
            and len(self.category) == len(self.category_node)
            and 0 < len(self.features) <= WIDEST
            and bool((sizes > 0).all())
            and int(sizes.sum()) == nodes,
            "its arrays are of different lengths",
        )
        own = splits[ends] - splits[ends - sizes]  # inner nodes of each tree
        rank = splits[:-1] - np.repeat(splits[ends - sizes], sizes)
        place = np.arange(nodes) - np.repeat(ends - sizes, sizes)
        ahead = 2 * rank + 1 > place
        self._need(
            bool((sizes == 2 * own + 1).all() and ahead[inner].all()), "its nodes form no tree"
        )
        self._need(
            bool((self.feature >= -1).all() and (self.feature < len(self.features)).all()),
            "a feature is out of range",
        )
        self._need(
            all(np.isfinite(getattr(self, name)).all() for name in FLOATS),
            "a number is not finite",
        )
        self._need(
            bool((self.missing <= NAN).all() and (self.default_left <= 1).all()),
            "a rule for missing values is unknown",
        )
        level, depth, first = ends - sizes, 0, np.repeat(ends - sizes, sizes)
        while len(level):
            depth += 1
            self._need(depth <= DEEPEST, f"a tree has more than {DEEPEST} levels")
            level = level[inner[level]]
            left = first[level] + 2 * rank[level] + 1
            level = np.concatenate([left, left + 1])
        at, codes = self.category_node, self.category
        self._need(
            bool((np.diff(at) >= 0).all() and (codes >= 0).all())
            and (not len(at) or (at[0] >= 0 and at[-1] < nodes and bool(inner[at].all()))),
            "a category is out of range",
        )
        begins = np.flatnonzero(np.diff(at, prepend=-1))
        spans = np.maximum.reduceat(codes, begins) // 32 + 1 if len(at) else np.zeros(0)
        self._need(float(spans.sum()) <= CODES, "it has too many categories")

    @staticmethod
    def _need(sound: bool, said: str) -> None:
        if not sound:
            raise ValueError(f"the trees cannot be used: {said}")


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """One tree of `Trees`, with its children written out."""

    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]
    missing: NDArray[np.uint8]
    default_left: NDArray[np.uint8]
    value: NDArray[np.float64]
    gain: NDArray[np.float64]
    cover: NDArray[np.float64]
    category_node: NDArray[np.int64]
    category: NDArray[np.int32]

    @property
    def inner(self) -> NDArray[np.bool_]:
        """Which nodes split."""
        return np.asarray(self.feature >= 0)

    @property
    def left(self) -> NDArray[np.int64]:
        """The left child of each node, −1 at leaves; the right child is the next node."""
        inner = self.inner
        return np.where(inner, 2 * np.cumsum(inner) - 1, -1)


NODES = tuple(f.name for f in dataclasses.fields(Tree) if not f.name.startswith("category"))
FLOATS = tuple(name for name in NODES if DTYPES[name] is np.float64)


def starting(values: Any) -> NDArray[np.float64]:
    """The saved numbers that are added to the trees' sums, one per output."""
    start = np.array(checked(values, list[float], "start"), np.float64)
    if not len(start):
        raise ValueError("the trees cannot be used: there is no start")
    return start


def grown(trees: list[dict[str, Any]], features: Any) -> Trees:
    """`Trees` from a library's node arrays of each tree, root first, otherwise in any order.

    `left` and `right` name the children, −1 at leaves; `categories` holds the codes of a node.
    What is left out is 0.
    """
    parts: dict[str, list[Any]] = {name: [] for name in DTYPES}
    begin = 0
    for tree in trees:
        left, right = np.asarray(tree["left"]), np.asarray(tree["right"])
        level, levels = np.zeros(1, np.int64), []
        while len(level):
            levels.append(level)
            split = level[left[level] >= 0]
            level = np.stack([left[split], right[split]], 1).reshape(-1)
        order = np.concatenate(levels)
        inner = left[order] >= 0
        for name in NODES:
            column = np.asarray(tree.get(name, np.zeros(len(left))))[order]
            if name in ("value", "cover"):
                parts[name].append(np.where(inner, 0.0, column) if name == "value" else column)
            else:
                parts[name].append(np.where(inner, column, -1 if name == "feature" else 0))
        codes = tree.get("categories") or {}
        for place in range(len(order)) if codes else ():
            own = codes.get(int(order[place]), ())
            parts["category"].append(np.asarray(own, np.int32))
            parts["category_node"].append(np.full(len(own), begin + place))
        parts["sizes"].append([len(order)])
        begin += len(order)
    parts["features"].append(features)
    return Trees(**{
        name: np.ascontiguousarray(np.concatenate([*found, []]).astype(DTYPES[name]))
        for name, found in parts.items()
    })  # fmt: skip
