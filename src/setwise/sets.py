"""Sets: which rows of the instance table each observation is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from setwise._distinct import draw_distinct
from setwise._html import SetsHtml
from setwise._ids import ByIds, listed_rows
from setwise._reductions import Reductions, chosen, offsets_of
from setwise.errors import check_each
from setwise.frames import is_frame

__all__ = ["Sets", "chosen"]

Ints = NDArray[np.int64]


class Sets(Reductions, ByIds, SetsHtml):
    """Ordered lists of row numbers, stored flat (CSR): `indices` and `offsets`, without padding.

    `index` is an integer array of shape (n_sets, K), a list of integer lists of any lengths, or a
    scipy sparse matrix with one line per set, whose stored values become the members' `weights`.
    A row may be in many sets, and several times in one: each listing is an individual of its own
    with those features. `counts` say it in numbers: a member with a count of n stands for n
    individuals, each with its own target. Counts and weights are arranged as `index` is, or flat.

    >>> import torch
    >>> sets = Sets([[0, 2], [1, 2, 2]])
    >>> len(sets), sets.sizes.tolist(), sets[1].tolist()
    (2, [2, 3], [1, 2, 2])
    >>> sets.sum(torch.tensor([1.0, 10.0, 100.0]))
    tensor([101., 210.])
    >>> Sets([[0, 2], [1, 2]], counts=[[1, 1], [1, 2]]).sum(torch.tensor([1.0, 10.0, 100.0]))
    tensor([101., 210.])
    """

    def __init__(
        self, index: Any, *, weights: Any = None, counts: Any = None, names: Any = None
    ) -> None:
        if isinstance(index, Sets):
            self.indices, self.offsets = index.indices, index.offsets
            weights = index.weights if weights is None else weights
            counts = index.counts if counts is None else counts
            names = index.names if names is None else names
        elif hasattr(index, "tocsr"):
            csr = index.tocsr()
            self.indices = csr.indices.astype(np.int64)
            self.offsets = csr.indptr.astype(np.int64)
            weights = csr.data if weights is None else weights
        elif isinstance(index, np.ndarray | Tensor):
            if index.ndim != 2:
                raise ValueError(
                    f"Sets expects an array of shape (n_sets, K) or a list of lists, got an array "
                    f"with {index.ndim} dimension(s); for sets of one row use index[:, None], for "
                    f"group labels use Sets.from_groups(labels)"
                )
            array = np.asarray(index)
            self.indices = _integers(array.reshape(-1))
            self.offsets = np.arange(array.shape[0] + 1, dtype=np.int64) * array.shape[1]
        else:
            index = listed_rows(index) if is_frame(index) else index
            self.indices = _integers(_flat(index))
            self.offsets = offsets_of([np.size(members) for members in index])
        self.weights = None if weights is None else _flat(weights).astype(np.float64)
        self.counts = None if counts is None else _whole(_flat(counts))
        self.names = None if names is None else np.asarray(names)
        self._check()

    def _check(self) -> None:
        check_each(self.sizes > 0, lambda at: "is empty: every set needs at least one row")
        check_each(
            self.indices >= 0,
            lambda at: f"names row {self.indices[at]}: row numbers start at 0",
            self.set_ids,
        )
        if self.names is not None and len(self.names) != len(self):
            raise ValueError(f"{len(self.names)} names given for {len(self)} sets")
        for what, given in (("weights", self.weights), ("counts", self.counts)):
            if given is not None and len(given) != len(self.indices):
                raise ValueError(f"{len(given)} {what} given for {len(self.indices)} members")
        if (weights := self.weights) is not None:
            check_each(
                np.isfinite(weights),
                lambda at: f"has a member weight of {weights[at]}: weights must be finite",
                self.set_ids,
            )
        if (counts := self.counts) is not None:
            check_each(
                counts >= 1,
                lambda at: (
                    f"has a member that counts {counts[at]} times: a count is the number of "
                    f"individuals that a row stands for, 1 or more; leave rows without any out"
                ),
                self.set_ids,
            )

    # ---- other ways to make them

    @classmethod
    def from_groups(cls, labels: Any, counts: Any = None) -> Sets:
        """One set per distinct label, in first-seen order; `.names` holds the labels.

        `counts`, where given, say how many individuals each row stands for.

        >>> sets = Sets.from_groups(["b", "a", "b"])
        >>> sets.names.tolist(), sets[0].tolist()
        (['b', 'a'], [0, 2])
        """
        if hasattr(labels, "sets"):  # a column of files
            out = labels.sets(missing="error")
            return out if counts is None else cls(out, counts=_column(counts)[out.indices])
        values = _column(labels)
        missing = np.array([v is None or v != v for v in values.tolist()], dtype=bool)
        if missing.any():
            raise ValueError(
                f"row {missing.argmax()} has no group label (missing value): drop the row or give "
                f"it a label"
            )
        codes: dict[Any, int] = {}
        ids = np.array([codes.setdefault(v, len(codes)) for v in values.tolist()], dtype=np.int64)
        order = np.argsort(ids, kind="stable")
        sizes = np.bincount(ids, minlength=len(codes))
        names = values[order[np.cumsum(sizes) - sizes]] if len(values) else values
        out = cls._trusted(order, offsets_of(sizes), names=names)
        return out if counts is None else cls(out, counts=_column(counts)[order])

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        set: str = "bag",
        row: str = "row",
        weight: str | None = None,
        count: str | None = None,
    ) -> Sets:
        """Sets from a long membership table (pandas, polars, pyarrow): one line per member.

        Sets come in first-seen order, members in the order of the lines; `weight` may name a column
        of member weights, `count` one that says how many individuals a member stands for.
        """
        import narwhals as nw

        if hasattr(frame, "read"):  # files
            frame = frame[[name for name in (set, row, weight, count) if name is not None]].read()
        table = nw.from_native(frame, eager_only=True)

        def column(name: str) -> NDArray[Any]:
            if name not in table.columns:
                raise ValueError(
                    f"the membership table has no column {name!r}; it has {table.columns}"
                )
            return np.asarray(table.get_column(name).to_numpy())

        groups = cls.from_groups(column(set))
        out = groups.over(_integers(column(row))[groups.indices])
        given = [None if name is None else column(name)[groups.indices] for name in (weight, count)]
        return cls(out, weights=given[0], counts=given[1])

    @classmethod
    def random(
        cls,
        n_rows: int,
        n_sets: int,
        size: int | tuple[int, int],
        replace: bool = False,
        seed: int | np.random.Generator | None = None,
    ) -> Sets:
        """`n_sets` random sets of rows 0..n_rows−1; `size` is a number or (low, high), inclusive.

        The members of one set are distinct rows (different sets may share some); with
        `replace=True` a row may come several times, each time as an individual of its own.

        >>> Sets.random(10, n_sets=3, size=(2, 4), seed=0).sizes.tolist()
        [4, 3, 3]
        """
        low, high = (size, size) if isinstance(size, int | np.integer) else size
        if not 1 <= low <= high:
            raise ValueError(f"size must be at least 1 and low ≤ high, got {size}")
        if n_rows < 1:
            raise ValueError(f"n_rows must be at least 1, got {n_rows}")
        if not replace and high > n_rows:
            raise ValueError(
                f"sets of {high} distinct rows cannot be drawn from {n_rows} rows; "
                f"use replace=True or smaller sets"
            )
        rng = np.random.default_rng(seed)
        sizes = rng.integers(low, high + 1, n_sets)
        again = rng.integers(0, n_rows, sizes.sum()) if replace else None
        indices = draw_distinct(n_rows, sizes, rng) if again is None else again
        return cls._trusted(indices, offsets_of(sizes))

    # ---- looking at them

    def __getitem__(self, i: int) -> Ints:
        if not -len(self) <= i < len(self):
            raise IndexError(f"set {i} of {len(self)}")
        i %= len(self)
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        if not len(self):
            return "Sets(0 sets)"
        low, high = self.sizes.min(), self.sizes.max()
        sizes = f"{low}" if low == high else f"{low} to {high}"
        weighted = "" if self.weights is None else ", weighted"
        if self.counts is not None:
            weighted += f", {self.individuals.min()} to {self.individuals.max()} individuals"
        return f"Sets({len(self)} sets of {sizes} members{weighted})"

    def reorder(self, order: Any) -> Sets:
        """The same sets with member `order[i]`, counted over all sets, in place i.

        >>> Sets([[5, 6], [7, 8]]).reorder([1, 0, 2, 3])[0].tolist()
        [6, 5]
        """
        order = np.asarray(order)
        out = self.moved(self.indices[order])
        out.weights = None if self.weights is None else self.weights[order]
        out.counts = None if self.counts is None else self.counts[order]
        out.names = self.names
        return out

    def over(self, indices: Ints) -> Sets:
        """The same sets with other row numbers for the members, for another table."""
        out = self.moved(np.asarray(indices, np.int64))
        out.names = self.names
        out._check()
        return out


def _column(values: Any) -> NDArray[Any]:
    """A one-dimensional array from a list, an array, a tensor or a data frame's column."""
    if hasattr(values, "to_pylist"):  # pyarrow
        values = values.to_pylist()
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if array.ndim != 1:
        raise ValueError(f"one label per row is expected, got an array of shape {array.shape}")
    return array


def _flat(values: Any) -> NDArray[Any]:
    """Numbers listed one after another, from an array or from lists of any lengths."""
    if hasattr(values, "__array__") or all(np.ndim(some) == 0 for some in values):
        return np.asarray(values).reshape(-1)
    lists = [np.asarray(some).reshape(-1) for some in values]
    return np.concatenate([some for some in lists if len(some)] or [np.zeros(0, np.int64)])


def _whole(counts: NDArray[Any]) -> Ints:
    wrong = counts[~np.isfinite(counts) | (counts != np.floor(counts))]
    if len(wrong):
        raise ValueError(f"counts are whole numbers of individuals, got {wrong[0]}")
    return counts.astype(np.int64)


def _integers(values: NDArray[Any]) -> Ints:
    if len(values) and values.dtype.kind not in "iu":
        raise TypeError(
            f"row numbers must be integers, got {values.dtype} values such as {values[0]!r}"
        )
    return values.astype(np.int64)
