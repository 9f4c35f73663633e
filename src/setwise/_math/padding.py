"""Sets of many sizes as few dense problems.

Two layouts. `Padded` is a rectangle (sets, members) in which short sets end with members that
change nothing: a factor 1, a letter that is not read. `Packed` lists the first members of all sets,
longest set first, then the second members of those that have one, and so on: an engine that walks
along members works on a prefix of the sets in each step and touches no member twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.sets import Sets

Ints = NDArray[np.int64]

OVERHEAD = 2e5  # numbers that a batch could have worked through while it was set up, about
WAITING = 1e9  # the same on a device, which waits meanwhile
INVERSION = 300.0  # a member's cost for `batches` along a contour, whose overhead is large
_MANY = 48  # distinct sizes that are told apart

_known: WeakKeyDictionary[Sets, dict[Any, Any]] = WeakKeyDictionary()


def _once(sets: Sets, key: Any, make: Callable[[], Any]) -> Any:
    """A value derived from these sets, cached as long as they live."""
    kept = _known.setdefault(sets, {})
    if key not in kept:
        kept[key] = make()
    return kept[key]


def partition(
    numbers: Any, work: Callable[[Any], Any], weight: Any = None, overhead: float = OVERHEAD
) -> list[Ints]:
    """Which items to compute together, where each costs what the largest of its batch costs.

    `work` is the cost of items with these numbers, increasing; a batch costs `overhead` besides.
    The batches are those of the least cost in all, by dynamic programming.

    >>> [part.tolist() for part in partition([1, 2, 100, 1], lambda n: 1.0 * n, overhead=5.0)]
    [[0, 1, 3], [2]]
    """
    numbers = np.asarray(numbers)
    if not len(numbers):
        return []
    weights = len(numbers) if weight is None else np.sum(weight)
    if weights * work(float(numbers.max())) <= overhead:  # a second batch would cost more
        return [np.arange(len(numbers))]
    distinct, code = np.unique(numbers, return_inverse=True)
    code = code.reshape(-1)
    if len(distinct) > _MANY:  # the lower end of each of so many classes of numbers that are alike
        coarse = np.floor(
            np.log(distinct / distinct[0]) / np.log(distinct[-1] / distinct[0]) * _MANY
        )
        _, group = np.unique(coarse, return_inverse=True)
        code = group.reshape(-1)[code]
        distinct = np.array([distinct[group == g].max() for g in range(group.max() + 1)])
    share = np.bincount(code, weight, minlength=len(distinct))
    total = np.concatenate([[0.0], np.cumsum(share)])
    each = np.asarray(work(distinct.astype(float)))
    best, cut = np.zeros(len(distinct) + 1), np.zeros(len(distinct) + 1, int)
    for j in range(1, len(distinct) + 1):
        cost = best[:j] + overhead + each[j - 1] * (total[j] - total[:j])
        cut[j] = cost.argmin()
        best[j] = cost[cut[j]]
    parts, end = [], len(distinct)
    while end:
        parts.append(np.flatnonzero((code >= cut[end]) & (code < end)))
        end = int(cut[end])
    return parts[::-1]


def overhead(like: Tensor) -> float:
    """What a batch costs besides its work, where `like` is."""
    return OVERHEAD if like.device.type == "cpu" else WAITING


def batches(sets: Sets, unit: float, power: float = 1.0, apart: int = 0) -> list[tuple[Ints, Sets]]:
    """(set numbers, those sets) in batches of similar size, for `in_parts`.

    A set padded to K members costs unit · K^power. Sets of up to `apart` individuals, to which
    another formula applies, are batches of their own, number by number.
    """

    def make() -> list[tuple[Ints, Sets]]:
        alone = [np.flatnonzero(sets.individuals == k) for k in range(1, apart + 1)]
        rest = np.flatnonzero(sets.individuals > apart)
        parts = [rest[at] for at in partition(sets.sizes[rest], lambda k: unit * k**power)]
        return [(which, sets.take(which)) for which in (*alone, *parts) if len(which)]

    if sets.size is not None and sets.counts is None:
        return [(np.arange(len(sets)), sets)]
    found: list[tuple[Ints, Sets]] = _once(sets, ("batches", unit, power, apart), make)
    return found


def pieces(sets: Sets, most: int) -> list[tuple[int, int, Sets]]:
    """(begin, end, those sets) in turn, of at most so many members together, or of one set."""

    def make() -> list[tuple[int, int, Sets]]:
        borders = [0]
        while (at := borders[-1]) < len(sets):
            end = int(np.searchsorted(sets.offsets, sets.offsets[at] + max(most, 1), "right")) - 1
            borders.append(min(max(end, at + 1), len(sets)))
        return [(a, b, sets.take(slice(a, b)).flat) for a, b in itertools.pairwise(borders)]

    if len(sets.indices) <= most:
        return [(0, len(sets), sets.flat)]
    found: list[tuple[int, int, Sets]] = _once(sets, ("pieces", most), make)
    return found


class Padded:
    """The members of flat `sets` as a rectangle (sets, members) of the largest set's width."""

    def __init__(self, sets: Sets) -> None:
        self.sets = sets
        self.size = sets.size or int(sets.sizes.max())

    @classmethod
    def of(cls, sets: Sets) -> Padded:
        """The rectangle of these sets, made once."""
        out: Padded = _once(sets, "padded", lambda: cls(sets))
        return out

    def place(self, like: Tensor) -> Tensor:
        """Where in the rectangle, counted line by line, each member stands."""

        def make() -> Tensor:
            sets = self.sets
            shift = np.arange(len(sets)) * self.size - sets.offsets[:-1]
            return torch.from_numpy(np.arange(len(sets.indices)) + shift[sets.set_ids])

        host: Tensor = _once(self.sets, "place", make)
        on: Tensor = _once(self.sets, ("place", like.device), lambda: host.to(like.device))
        return on

    def inside(self, like: Tensor) -> Tensor:
        """Which places hold a member: (sets, members)."""
        sizes = self.sets.tensor("sizes", like)
        return torch.arange(self.size, device=like.device) < sizes.unsqueeze(1)

    def fill(self, values: Tensor, nothing: float | Tensor) -> Tensor:
        """The members' values, (sets, members, …), with `nothing` where there is no member."""
        if self.sets.size is not None:
            return self.sets.dense(values)
        if values.stride(0) == 0 and len(values) > 1:
            values = values.contiguous()
        shape = (len(self.sets) * self.size, *values.shape[1:])
        empty = torch.as_tensor(nothing, dtype=values.dtype, device=values.device).expand(shape)
        out = empty.clone().index_copy_(0, self.place(values), values)
        return out.reshape(len(self.sets), self.size, *values.shape[1:])

    def repeat_last(self, values: Tensor) -> Tensor:
        """The members' values, (sets, members, …), with the last member's where there is none."""
        if self.sets.size is not None:
            return self.sets.dense(values)
        if values.stride(0) == 0 and len(values) > 1:  # one number for all rows stays one
            return values[:1].expand(len(self.sets), self.size, *values.shape[1:])

        def make() -> Tensor:
            first, sizes = self.sets.offsets[:-1, None], self.sets.sizes[:, None]
            return torch.from_numpy((first + np.minimum(np.arange(self.size), sizes - 1)).ravel())

        host: Tensor = _once(self.sets, "last", make)
        at: Tensor = _once(self.sets, ("last", values.device), lambda: host.to(values.device))
        out = values.index_select(0, at)
        return out.reshape(len(self.sets), self.size, *values.shape[1:])


class Packed:
    """The members of flat `sets` step by step: `runs` are (begin, end) of the packed members."""

    def __init__(self, sets: Sets) -> None:
        order = np.argsort(-sets.sizes, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        position = np.arange(len(sets.indices)) - sets.offsets[:-1][sets.set_ids]
        active = np.bincount(position)
        begin = np.cumsum(active) - active
        packed = begin[position] + rank[sets.set_ids]
        member = np.empty_like(packed)
        member[packed] = np.arange(len(packed))
        self.runs: list[list[int]] = np.stack([begin, begin + active], 1).tolist()
        self.order, self.rank = torch.from_numpy(order), torch.from_numpy(rank)
        self.member, self.packed = torch.from_numpy(member), torch.from_numpy(packed)

    @classmethod
    def of(cls, sets: Sets, like: Tensor) -> Packed:
        """The packing of these sets on the device of `like`, made once."""

        def make() -> Packed:
            out = cls(sets)
            for name in ("order", "rank", "member", "packed"):
                setattr(out, name, getattr(out, name).to(like.device))
            return out

        found: Packed = _once(sets, ("packed", like.device), make)
        return found
