"""An objective of rows that are not in memory: its sets are read in parts.

It is a function of raw parameters like any objective, but these are never in memory for all rows.
Code that needs the rows of a set gets an objective over a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._peers import ALONE, Peers
from setwise.distributions import Family
from setwise.objective.objective import Batch, Objective, Parameters
from setwise.objective.parts import Parts
from setwise.objective.terms import added, derivatives
from setwise.objective.unknown import Unknowns
from setwise.observations import Observations
from setwise.stored import Stored, Table, joined

__all__ = ["Stream"]

Mask = NDArray[np.bool_]
EXAMPLES = 5_000  # sets of each kind that show what they are like
SHUFFLED = 8  # parts that are in memory at a time, to draw sets from
PIECE = 1 << 18  # members whose likelihood is computed at a time


class Stream(Objective):
    """−Σ weight · log p(y) over sets of stored rows.

    `kept` says for each kind which of its sets count; the others are held out.
    """

    def __init__(
        self,
        family: Family,
        observations: Sequence[Observations],
        X: Stored,
        overlap: str,
        parts: Sequence[Parts] | None = None,
        kept: Sequence[Mask | None] | None = None,
        unknowns: Unknowns | None = None,
    ) -> None:
        if overlap == "joint":
            raise ValueError(
                "overlap='joint' needs rows in memory: read them first, or use overlap='auto'"
            )
        self.family, self.X, self.kinds = family, X, list(observations)
        self.unknowns = Unknowns.of(family, observations) if unknowns is None else unknowns
        self.overlap = "independent: rows are read in parts"
        self.n_rows = len(X)
        self.parts_of = [Parts(X, o.sets) for o in observations] if parts is None else list(parts)
        self.kept = [None] * len(self.kinds) if kept is None else list(kept)
        few = [o.take(_spread(o)) for o in self.kinds]
        self._examples = Objective(family, few, self.n_rows, "independent", self.unknowns)
        self.terms = []

    # ---- facts

    @property
    def examples(self) -> Objective:
        return self._examples

    @property
    def observations(self) -> list[Observations]:
        return [o if k is None else o.take(k) for o, k in zip(self.kinds, self.kept, strict=True)]

    @property
    def n_sets(self) -> int:
        pairs = zip(self.kinds, self.kept, strict=True)
        return sum(len(o) if k is None else int(k.sum()) for o, k in pairs)

    @cached_property
    def total_weight(self) -> float:
        total = 0.0
        for o, k in zip(self.kinds, self.kept, strict=True):
            weight = np.ones(len(o)) if o.weight is None else o.weight
            total += float((weight if k is None else weight[k]).sum())
        return total

    @property
    def quadratic(self) -> bool:
        return self._examples.quadratic

    @property
    def separable(self) -> bool:
        return self.examples.separable

    @property
    def of_classes(self) -> bool:
        return self.examples.of_classes

    # ---- computed without rows

    def loss(self, raw: Tensor, shared: Tensor | None = None) -> Tensor:
        """Of raw parameters that are the same `everywhere`."""
        shared = self.no_shared(raw) if shared is None else shared
        at = raw[0].detach().requires_grad_(), shared.detach().requires_grad_()
        value, slopes = 0.0, [torch.zeros_like(leaf) for leaf in at]
        for pieces in self._pieces():
            for piece in pieces:
                with torch.enable_grad():
                    loss = piece.loss(piece.everywhere(at[0]), at[1])
                value += float(loss.detach())
                slopes = list(map(torch.add, slopes, derivatives(loss, at)))
        along = zip((raw[0], shared), at, slopes, strict=True)
        return value + added([((x - here.detach()) * slope).sum() for x, here, slope in along])

    def everywhere(self, raw: Tensor) -> Tensor:
        return raw.expand(1, -1)

    def weighted(self, raw: Tensor, shared: Tensor) -> list[Tensor]:
        return [
            torch.cat([p.weighted(p.everywhere(raw[0]), shared)[0] for p in pieces])
            for pieces in self._pieces()
        ]

    def per_set(self, raw: Tensor, shared: Tensor | None = None) -> list[Tensor]:
        return [
            torch.cat([p.per_set(p.everywhere(raw[0]), shared)[0] for p in pieces])
            for pieces in self._pieces()
        ]

    def _pieces(self) -> Iterator[Iterator[Objective]]:
        """For each kind of observations, objectives of some of the sets at a time."""
        for o, kept in zip(self.kinds, self.kept, strict=True):
            ends = np.arange(PIECE, o.sets.offsets[-1], PIECE)
            cuts = np.unique([0, *np.searchsorted(o.sets.offsets, ends), len(o)])
            yield self._pieces_of(o, kept, cuts.tolist())

    def _pieces_of(
        self, o: Observations, kept: Mask | None, cuts: list[int]
    ) -> Iterator[Objective]:
        for a, b in pairwise(cuts):
            part = o.take(slice(a, b))
            part = part if kept is None else part.take(kept[a:b])
            if len(part):
                yield self._flat(part)

    def _flat(self, o: Observations) -> Objective:
        """The loss of these sets over a table that lists their members."""
        sets = o.sets.flat
        return self._of([o._with(sets=sets)], len(sets.indices))

    def _of(self, observations: Sequence[Observations], n_rows: int) -> Objective:
        return Objective(self.family, observations, n_rows, "independent", self.unknowns)

    # ---- computed from rows

    def precision(self, shared: Tensor) -> float:
        found = [piece.terms[0].least_squares(shared).weight for p in self._pieces() for piece in p]
        return float(np.concatenate(found).mean())

    def of(self, observations: Sequence[Observations], overlap: str) -> Objective:
        return Stream(self.family, observations, self.X, "auto", unknowns=self.unknowns)

    def whole(self) -> Objective:
        return self._of(self.observations, self.n_rows)

    def parts(self, X: Any) -> Iterator[tuple[Table, Objective]]:
        for kind, parts in enumerate(self.parts_of):
            for j in range(len(parts)):
                table, part = self._read(kind, [j])
                if part.terms:
                    yield table, part

    def _read(self, kind: int, which: Sequence[int]) -> tuple[Table, Objective]:
        table, numbers, members = self.parts_of[kind].read(which)
        some, kept = self.kinds[kind].take(numbers), self.kept[kind]
        o = some._with(sets=some.sets.moved(members))
        o = o if kept is None else o.take(kept[numbers])
        return table, self._of([o] if len(o) else [], len(table))

    def _block(self, which: Sequence[NDArray[np.int64]]) -> tuple[Table, Objective]:
        """Some parts of each kind, as one table."""
        found = [self._read(kind, some.tolist()) for kind, some in enumerate(which) if len(some)]
        if not found:
            return np.empty((0, self.X.width)), self.examples.only([], 0)
        tables = [table for table, _ in found]
        begins = np.cumsum([0, *map(len, tables)])
        total = int(begins[-1])
        terms = [
            term.over(begin + np.arange(len(table)), total)
            for begin, (table, part) in zip(begins, found, strict=False)
            for term in part.terms
        ]
        return joined(tables), self.examples.only(terms, total)

    def some(self, rng: np.random.Generator) -> tuple[Table, Objective]:
        """Sets drawn at random, as many as are in memory at a time."""
        return self._block([rng.permutation(len(p))[:SHUFFLED] for p in self.parts_of])

    def minibatches(
        self,
        size: int,
        rng: np.random.Generator,
        here: Callable[[], Parameters] | None = None,
        peers: Peers = ALONE,
    ) -> Iterator[Batch]:
        """The sets, in random order as far as memory goes; `rows` are the rows themselves.

        Of several processes each reads parts of its own, always the same ones.
        """
        rng = np.random.default_rng([int(rng.integers(2**31)), peers.rank])
        total = max(1, -(-self.n_sets // size))
        parts = sum(-(-len(p) // peers.size) for p in self.parts_of)
        n_blocks = min(-(-parts // SHUFFLED), total)
        steps = np.diff(np.arange(n_blocks + 1) * total // n_blocks)
        own = [np.arange(peers.rank, len(p), peers.size) for p in self.parts_of]
        drawn = [np.array_split(rng.permutation(some), n_blocks) for some in own]
        with ThreadPoolExecutor(1) as other:
            coming = other.submit(self._block, [some[0] for some in drawn])
            for i, n_batches in enumerate(steps.tolist()):
                table, block = coming.result()
                if i + 1 < n_blocks:
                    coming = other.submit(self._block, [some[i + 1] for some in drawn])
                for batch in block.cut(n_batches, rng):
                    yield Batch(table[batch.rows], batch.objective)

    # ---- other sets

    def batch(self, place: NDArray[np.int64] | None = None) -> Batch:
        return self.whole().batch(place)

    def resampled(self, rng: np.random.Generator) -> Stream:
        kinds, kept = [], []
        for o, k in zip(self.kinds, self.kept, strict=True):
            own = np.arange(len(o)) if k is None else np.flatnonzero(k)
            times = np.bincount(own[rng.integers(0, len(own), len(own))], minlength=len(o))
            kinds.append(o._with(weight=times if o.weight is None else times * o.weight))
            kept.append(times > 0)
        return Stream(self.family, kinds, self.X, "auto", self.parts_of, kept, self.unknowns)

    def without(self, held: Sequence[Mask]) -> Stream:
        """The same but for the sets that are held out."""
        kept = [~h if k is None else k & ~h for k, h in zip(self.kept, held, strict=True)]
        return Stream(self.family, self.kinds, self.X, "auto", self.parts_of, kept, self.unknowns)


def _spread(o: Observations) -> NDArray[np.int64]:
    """The numbers of some sets, the smallest and the largest among them."""
    sizes = o.sets.sizes
    n = int(np.clip(PIECE / max(float(sizes.mean()), 1.0), 8, EXAMPLES))
    even = np.linspace(0, len(o) - 1, min(n, len(o))).astype(np.int64)
    return np.unique([*even, sizes.argmin(), sizes.argmax()])
