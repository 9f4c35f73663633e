"""Sets: which rows of the instance table each observation is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._distinct import draw_distinct
from setwise._html import SetsHtml
from setwise.errors import SetError, check_each
from setwise.numerics import gather, logsumexp, scatter_sum, segment_logsumexp

__all__ = ["Sets"]

Ints = NDArray[np.int64]


class Sets(SetsHtml):
    """Ordered lists of row numbers, stored flat (CSR): `indices` and `offsets`, without padding.

    `index` is an integer array of shape (n_sets, K), a list of integer lists of any lengths, or a
    scipy sparse matrix with one line per set, whose stored values become the members' `weights`.
    A row may be in many sets, and several times in one: each listing is an individual of its own
    with those features.

    >>> sets = Sets([[0, 2], [1, 2, 2]])
    >>> len(sets), sets.sizes.tolist(), sets[1].tolist()
    (2, [2, 3], [1, 2, 2])
    >>> sets.sum(torch.tensor([1.0, 10.0, 100.0]))
    tensor([101., 210.])
    """

    indices: Ints
    offsets: Ints
    weights: NDArray[np.float64] | None
    names: NDArray[Any] | None

    def __init__(self, index: Any, *, weights: Any = None, names: Any = None) -> None:
        if isinstance(index, Sets):
            self.indices, self.offsets = index.indices, index.offsets
            weights = index.weights if weights is None else weights
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
            lists = [np.asarray(members).reshape(-1) for members in index]
            flat = np.concatenate([m for m in lists if len(m)] or [np.zeros(0, np.int64)])
            self.indices = _integers(flat)
            self.offsets = _offsets([len(members) for members in lists])
        self.weights = None if weights is None else np.asarray(weights, np.float64).reshape(-1)
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
        weights = self.weights
        if weights is None:
            return
        if len(weights) != len(self.indices):
            raise ValueError(f"{len(weights)} weights given for {len(self.indices)} members")
        check_each(
            np.isfinite(weights),
            lambda at: f"has a member weight of {weights[at]}: weights must be finite",
            self.set_ids,
        )

    # ---- other ways to make them

    @classmethod
    def from_groups(cls, labels: Any) -> Sets:
        """One set per distinct label, in first-seen order; `.names` holds the labels.

        >>> sets = Sets.from_groups(["b", "a", "b"])
        >>> sets.names.tolist(), sets[0].tolist()
        (['b', 'a'], [0, 2])
        """
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
        return cls._trusted(order, _offsets(sizes), names=names)

    @classmethod
    def from_frame(
        cls, frame: Any, set: str = "bag", row: str = "row", weight: str | None = None
    ) -> Sets:
        """Sets from a long membership table (pandas, polars, pyarrow): one line per member.

        Sets come in first-seen order, members in the order of the lines; `weight` may name a column
        of member weights.
        """
        import narwhals as nw

        table = nw.from_native(frame, eager_only=True)

        def column(name: str) -> NDArray[Any]:
            if name not in table.columns:
                raise ValueError(
                    f"the membership table has no column {name!r}; it has {table.columns}"
                )
            return np.asarray(table.get_column(name).to_numpy())

        groups = cls.from_groups(column(set))
        out = groups.over(_integers(column(row))[groups.indices])
        if weight is not None:
            out = cls(out, weights=column(weight)[groups.indices])
        return out

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
        return cls._trusted(indices, _offsets(sizes))

    @classmethod
    def _trusted(
        cls, indices: Ints, offsets: Ints, weights: Any = None, names: Any = None, size: Any = None
    ) -> Sets:
        """Sets from valid parts, unchecked; `size` is the common size, where known."""
        out = cls.__new__(cls)
        out.indices, out.offsets, out.weights, out.names = indices, offsets, weights, names
        if size is not None and len(offsets) > 1:
            out.__dict__["size"] = size
        return out

    # ---- looking at them

    def __len__(self) -> int:
        return len(self.offsets) - 1

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
        return f"Sets({len(self)} sets of {sizes} members{weighted})"

    @cached_property
    def sizes(self) -> Ints:
        """Number of members of each set."""
        return np.diff(self.offsets)

    @cached_property
    def set_ids(self) -> Ints:
        """For each member, the number of its set."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def size(self) -> int | None:
        """The common size of all sets, or None where sizes differ or there are no sets."""
        same = len(self) > 0 and bool((self.sizes == self.sizes[0]).all())
        return int(self.sizes[0]) if same else None

    @cached_property
    def n_rows(self) -> int:
        """The least number of rows that an instance table must have."""
        return int(self.indices.max()) + 1 if len(self.indices) else 0

    def take(self, set_numbers: Any) -> Sets:
        """The sets of these numbers (or of a boolean mask), in that order.

        A slice `begin:end` copies nothing.
        """
        which: Any = chosen(set_numbers, len(self))
        if isinstance(which, slice):
            begin, end, _ = which.indices(len(self))
            offsets = self.offsets[begin : max(begin, end) + 1]
            members: Any = slice(int(offsets[0]), int(offsets[-1]))
            offsets = offsets - offsets[0]
        else:
            sizes = self.sizes[which]
            offsets = _offsets(sizes)
            members = np.repeat(self.offsets[which] - offsets[:-1], sizes) + np.arange(sizes.sum())
        weights = None if self.weights is None else self.weights[members]
        names = None if self.names is None else self.names[which]
        return Sets._trusted(self.indices[members], offsets, weights, names, self.size)

    def reorder(self, order: Any) -> Sets:
        """The same sets with member `order[i]`, counted over all sets, in place i.

        >>> Sets([[5, 6], [7, 8]]).reorder([1, 0, 2, 3])[0].tolist()
        [6, 5]
        """
        order = np.asarray(order)
        weights = None if self.weights is None else self.weights[order]
        return Sets._trusted(self.indices[order], self.offsets, weights, self.names)

    def over(self, indices: Ints) -> Sets:
        """The same sets with other row numbers for the members, for another table."""
        out = Sets._trusted(np.asarray(indices, np.int64), self.offsets, self.weights, self.names)
        out._check()
        return out

    # ---- computing with them

    @cached_property
    def flat(self) -> Sets:
        """The same sets over a table that lists the members one after another."""
        if self._is_flat:
            return self
        members = np.arange(len(self.indices))
        flat = Sets._trusted(members, self.offsets, self.weights, self.names, self.size)
        flat.__dict__["_is_flat"] = True
        return flat

    @cached_property
    def _is_flat(self) -> bool:
        n = len(self.indices)  # most tables that are not flat show it at the end
        return not n or bool(self.indices[-1] == n - 1 and (self.indices == np.arange(n)).all())

    @cached_property
    def _tensors(self) -> dict[tuple[str, torch.device], Tensor]:
        return {}

    def tensor(self, name: str, like: Tensor) -> Tensor:
        """`indices`, `offsets`, `sizes`, `set_ids` or `weights` as a tensor beside `like`."""
        key = (name, like.device)
        if key not in self._tensors:
            self._tensors[key] = torch.from_numpy(getattr(self, name)).to(like.device)
        out = self._tensors[key]
        return out.to(like.dtype) if name == "weights" else out

    def members(self, values: Tensor) -> Tensor:
        """The members' values, flat in member order; `values` has one entry per row."""
        if values.shape[0] < self.n_rows:
            where = int((self.indices >= values.shape[0]).argmax())
            raise SetError(
                self.set_ids[where],
                f"names row {self.indices[where]}, but the table has only {values.shape[0]} rows",
            )
        if self._is_flat and values.shape[0] == len(self.indices):
            return values
        if values.shape[0] > 0 and values.stride(0) == 0:  # one number for all rows stays one
            return values[:1].expand(len(self.indices), *values.shape[1:])
        return gather(values, self.tensor("indices", values))

    def dense(self, values: Tensor) -> Tensor:
        """The members' values as (n_sets, K, …); needs sets of one size."""
        if not len(self):
            return values.new_zeros((0, 0, *values.shape[1:]))
        if self.size is None:
            raise ValueError(f"sets of one size are needed, got {self!r}")
        return self.members(values).reshape(len(self), self.size, *values.shape[1:])

    def columns(self, values: Tensor) -> tuple[Tensor, ...]:
        """The first members' values, the second members', …; needs sets of one size.

        >>> first, second = Sets([[0, 1], [2, 0]]).columns(torch.tensor([1.0, 2.0, 3.0]))
        >>> first
        tensor([1., 3.])
        """
        return self.dense(values).unbind(1)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the members of each set (weights are not applied)."""
        if self.size is not None:
            return self.dense(values).sum(1)
        return scatter_sum(self.members(values), self.tensor("set_ids", values), len(self))

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the members of each set (weights are not applied)."""
        sizes = self.tensor("sizes", values).to(values.dtype)
        return self.sum(values) / sizes.reshape(-1, *[1] * (values.ndim - 1))

    def max(self, values: Tensor) -> Tensor:
        """Largest member value of each set."""
        if self.size is not None:
            return self.dense(values).amax(1)
        members = self.members(values)
        ids = self.tensor("set_ids", values).reshape(-1, *[1] * (values.ndim - 1))
        out = members.new_zeros((len(self), *members.shape[1:]))
        return out.scatter_reduce(0, ids.expand_as(members), members, "amax", include_self=False)

    def min(self, values: Tensor) -> Tensor:
        """Smallest member value of each set."""
        return -self.max(-values)

    def logsumexp(self, values: Tensor) -> Tensor:
        """log Σ exp over the members; −inf with gradient zero where all members are −inf."""
        if self.size is not None:
            return logsumexp(self.dense(values), 1)
        return segment_logsumexp(self.members(values), self.tensor("set_ids", values), len(self))

    def repeat(self, values: Tensor) -> Tensor:
        """One entry per set, repeated for each of its members."""
        if self.size is not None:
            expanded = values.unsqueeze(1).expand(-1, self.size, *values.shape[1:])
            return expanded.reshape(-1, *values.shape[1:])
        return gather(values, self.tensor("set_ids", values))

    @cached_property
    def _by_size(self) -> list[tuple[Ints, Sets]]:
        sizes = np.unique(self.sizes)
        groups = [np.flatnonzero(self.sizes == size) for size in sizes]
        return [(which, self.take(which)) for which in groups]

    def by_size(self) -> Sequence[tuple[Ints, Sets]]:
        """(set numbers, those sets) for each distinct size: a dense problem each."""
        return [(np.arange(len(self)), self)] if self.size is not None else self._by_size


def chosen(which: Any, n: int) -> Any:
    """Numbers below n from a list of them or a boolean mask; a slice is left as it is."""
    if isinstance(which, slice):
        return which
    array = np.asarray(which)
    return np.arange(n)[array if array.size else array.astype(np.int64)]


def _offsets(sizes: Any) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _column(values: Any) -> NDArray[Any]:
    """A one-dimensional array from a list, an array, a tensor or a data frame's column."""
    if hasattr(values, "to_pylist"):  # pyarrow
        values = values.to_pylist()
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if array.ndim != 1:
        raise ValueError(f"one label per row is expected, got an array of shape {array.shape}")
    return array


def _integers(values: NDArray[Any]) -> Ints:
    if len(values) and values.dtype.kind not in "iu":
        raise TypeError(
            f"row numbers must be integers, got {values.dtype} values such as {values[0]!r}"
        )
    return values.astype(np.int64)
