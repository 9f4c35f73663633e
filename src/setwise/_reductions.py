"""What is computed of the members of sets: sums, extremes, members' values by set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.errors import SetError
from setwise.numerics import gather, logsumexp, scatter_sum, segment_logsumexp

__all__ = ["Reductions", "chosen", "offsets_of"]

Ints = NDArray[np.int64]


class Reductions:
    """Members listed flat, set by set, and what rules compute of their values."""

    indices: Ints
    offsets: Ints
    weights: NDArray[np.float64] | None
    counts: Ints | None
    names: NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def _trusted(
        cls,
        indices: Ints,
        offsets: Ints,
        weights: Any = None,
        names: Any = None,
        size: Any = None,
        counts: Any = None,
    ) -> Self:
        """Sets from valid parts, unchecked; `size` is the common size, where known."""
        out = cls.__new__(cls)
        out.indices, out.offsets, out.weights, out.names = indices, offsets, weights, names
        out.counts = counts
        if size is not None and len(offsets) > 1:
            out.__dict__["size"] = size
        return out

    def moved(self, indices: Ints) -> Self:
        """The same sets with other row numbers, unchecked and without names."""
        return self._trusted(indices, self.offsets, self.weights, None, self.size, self.counts)

    # ---- sizes

    @cached_property
    def sizes(self) -> Ints:
        """Number of members of each set."""
        return np.diff(self.offsets)

    @cached_property
    def individuals(self) -> Ints:
        """Number of individuals of each set: of its members, each as often as it counts."""
        if self.counts is None or not len(self):
            return self.sizes
        return np.add.reduceat(self.counts, self.offsets[:-1])

    def n_individuals(self, like: Tensor) -> Tensor | float:
        """How many individuals a set has: one number where all sets have as many, else a tensor."""
        if self.size is not None and self.counts is None:
            return float(self.size)
        return self.tensor("individuals", like).to(like.dtype)

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

    # ---- the members one after another

    @cached_property
    def flat(self) -> Self:
        """The same sets over a table that lists the members one after another."""
        if self._is_flat:
            return self
        flat = self.moved(np.arange(len(self.indices)))
        flat.names = self.names
        flat.__dict__["_is_flat"] = True
        return flat

    @cached_property
    def _is_flat(self) -> bool:
        n = len(self.indices)  # most tables that are not flat show it at the end
        return not n or bool(self.indices[-1] == n - 1 and (self.indices == np.arange(n)).all())

    def tiled(self, times: int) -> Self:
        """These sets so many times over, for a table that lists the members as often.

        >>> from setwise import Sets
        >>> Sets([[0, 1], [2]]).tiled(2).offsets.tolist()
        [0, 2, 3, 5, 6]
        """
        if times == 1:
            return self.flat
        if times not in self._tiles:
            sizes, number = np.tile(self.sizes, times), len(self.indices) * times
            weights, counts = (
                None if part is None else np.tile(part, times)
                for part in (self.weights, self.counts)
            )
            made = self._trusted(
                np.arange(number), offsets_of(sizes), weights, None, self.size, counts
            )
            made.__dict__["_is_flat"] = True
            self._tiles[times] = made
        return self._tiles[times]

    @cached_property
    def _tiles(self) -> dict[int, Self]:
        return {}

    def expand(self) -> Self:
        """The same sets with each individual listed: a row that counts n times comes n times."""
        if self.counts is None:
            return self
        return self._repeated(self.counts)

    def singled(self) -> tuple[Self, NDArray[np.bool_]]:
        """The same sets with one individual of each member apart, and which members these are.

        >>> from setwise import Sets
        >>> sets, single = Sets([[4, 7]], counts=[[3, 1]]).singled()
        >>> sets[0].tolist(), sets.counts.tolist(), single.tolist()
        ([4, 4, 7], [1, 2, 1], [True, False, True])
        """
        if self.counts is None:
            return self, np.ones(len(self.indices), bool)
        times = np.minimum(self.counts, 2)
        out = self._repeated(times)
        single = np.zeros(len(out.indices), bool)
        single[np.cumsum(times) - times] = True
        out.counts = np.where(single, 1, np.repeat(self.counts - 1, times))
        return out, single

    def _repeated(self, times: Ints) -> Self:
        """The same sets with each member listed so often, and without counts."""
        weights = None if self.weights is None else np.repeat(self.weights, times)
        sizes = np.add.reduceat(times, self.offsets[:-1]) if len(self) else self.sizes
        indices = np.repeat(self.indices, times)
        return self._trusted(indices, offsets_of(sizes), weights, self.names)

    @cached_property
    def _tensors(self) -> dict[tuple[str, torch.device], Tensor]:
        return {}

    def tensor(self, name: str, like: Tensor) -> Tensor:
        """`indices`, `offsets`, `sizes`, `individuals`, `set_ids`, `weights` or `counts` beside it.

        As a tensor on the device of `like`; weights and counts also in its dtype.
        """
        key = (name, like.device)
        if key not in self._tensors:
            self._tensors[key] = torch.from_numpy(getattr(self, name)).to(like.device)
        out = self._tensors[key]
        return out.to(like.dtype) if name in ("weights", "counts") else out

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

    def to_rows(self, values: Tensor, n: int, total: Tensor | None = None) -> Tensor:
        """The members' values added up by row, for `n` rows; added to `total` where it is given.

        Where each row is a member once, in that order, they are these values themselves.

        >>> from setwise import Sets
        >>> Sets([[0, 2], [2, 1]]).to_rows(torch.ones(4), 3)
        tensor([1., 1., 2.])
        """
        if self._is_flat and n == len(self.indices):
            return values if total is None else total.add_(values)
        total = values.new_zeros((n, *values.shape[1:])) if total is None else total
        return total.index_add_(0, self.tensor("indices", values), values)

    def dense(self, values: Tensor) -> Tensor:
        """The members' values as (n_sets, K, …); needs sets of one size."""
        if not len(self):
            return values.new_zeros((0, 0, *values.shape[1:]))
        if self.size is None:
            raise ValueError(f"sets of one size are needed, got {self!r}")
        return self.members(values).reshape(len(self), self.size, *values.shape[1:])

    def columns(self, values: Tensor) -> tuple[Tensor, ...]:
        """The first members' values, the second members', …; needs sets of one size.

        >>> from setwise import Sets
        >>> first, second = Sets([[0, 1], [2, 0]]).columns(torch.tensor([1.0, 2.0, 3.0]))
        >>> first
        tensor([1., 3.])
        """
        return self.dense(values).unbind(1)

    def repeat(self, values: Tensor) -> Tensor:
        """One entry per set, repeated for each of its members."""
        if self.size is not None:
            expanded = values.unsqueeze(1).expand(-1, self.size, *values.shape[1:])
            return expanded.reshape(-1, *values.shape[1:])
        return gather(values, self.tensor("set_ids", values))

    # ---- reductions over individuals

    def by_count(self, values: Tensor) -> Tensor:
        """Values of the members, listed flat, each times the number of individuals it stands for.

        >>> from setwise import Sets
        >>> Sets([[0, 1]], counts=[[1, 3]]).by_count(torch.tensor([5.0, 7.0]))
        tensor([ 5., 21.])
        """
        if self.counts is None:
            return values
        return values * self.tensor("counts", values).reshape(-1, *[1] * (values.ndim - 1))

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the individuals of each set (weights are not applied)."""
        members = self.by_count(self.members(values))
        if self.size is not None:
            return members.reshape(len(self), self.size, *values.shape[1:]).sum(1)
        return scatter_sum(members, self.tensor("set_ids", values), len(self))

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the individuals of each set (weights are not applied)."""
        number = self.n_individuals(values)
        if isinstance(number, Tensor):
            number = number.reshape(-1, *[1] * (values.ndim - 1))
        return self.sum(values) / number

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
        """log Σ exp over the individuals; −inf with gradient zero where all members are −inf."""
        members = self.members(values)
        if self.counts is not None:
            times = self.tensor("counts", values).log()
            members = members + times.reshape(-1, *[1] * (values.ndim - 1))
        if self.size is not None:
            return logsumexp(members.reshape(len(self), self.size, *values.shape[1:]), 1)
        return segment_logsumexp(members, self.tensor("set_ids", values), len(self))

    # ---- parts

    def take(self, set_numbers: Any) -> Self:
        """The sets of these numbers (or of a boolean mask), in that order.

        A slice `begin:end` copies nothing.
        """
        which: Any = chosen(set_numbers, len(self))
        if isinstance(which, slice):
            begin, end, _ = which.indices(len(self))
            offsets = self.offsets[begin : max(begin, end) + 1]
            members: Any = slice(int(offsets[0]), int(offsets[-1]))
            offsets = offsets - offsets[0]
        elif self.size is not None:
            places = np.arange(len(self.indices)).reshape(-1, self.size)[which]
            members, offsets = places.reshape(-1), np.arange(len(places) + 1) * self.size
        else:
            sizes = self.sizes[which]
            offsets = offsets_of(sizes)
            members = np.repeat(self.offsets[which] - offsets[:-1], sizes) + np.arange(sizes.sum())
        weights = None if self.weights is None else self.weights[members]
        counts = None if self.counts is None else self.counts[members]
        names = None if self.names is None else self.names[which]
        return self._trusted(self.indices[members], offsets, weights, names, self.size, counts)

    def apart(self, key: NDArray[Any]) -> list[tuple[Ints, Self]]:
        """(set numbers, those sets) for each distinct value of `key`, one per set."""
        groups = [np.flatnonzero(key == value) for value in np.unique(key)]
        return [(which, self.take(which)) for which in groups]

    @cached_property
    def _by_size(self) -> list[tuple[Ints, Self]]:
        return self.apart(self.sizes)

    def by_size(self) -> Sequence[tuple[Ints, Self]]:
        """(set numbers, those sets) for each distinct size: a dense problem each."""
        return [(np.arange(len(self)), self)] if self.size is not None else self._by_size


def chosen(which: Any, n: int) -> Any:
    """Numbers below n from a list of them or a boolean mask; a slice is left as it is."""
    if isinstance(which, slice):
        return which
    array = np.asarray(which)
    return np.arange(n)[array if array.size else array.astype(np.int64)]


def offsets_of(sizes: Any) -> Ints:
    """Where each set begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
