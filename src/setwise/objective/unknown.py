"""Numbers of aggregates that a fit learns, as shared parameters behind those of the family.

Aggregates that are written alike are one kind and share their numbers, in all objectives of a fit.
The shared parameters are first those of the family, then a raw number for each unknown of each
kind, the centre, and at last one for each unknown and each labeller (`Observations(by=…)`). The raw
number of labeller j is

    centre + ε_j,   ε_j ~ N(0, 1),

so that labellers with few sets are drawn towards the others. The prior of ε_j is part of the loss,
in equal shares by the weight of the labeller's sets. One who is not known has ε = 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.distributions import Family
from setwise.likelihood import Aggregate, Unknown
from setwise.observations import Observations

__all__ = ["Kind", "Slot", "Unknowns"]


class Told(NamedTuple):
    """A learned parameter, and its raw number as a sum of shared parameters."""

    name: str
    unknown: Unknown
    raw: float
    along: Tensor

    def value(self, away: float = 0.0) -> float:
        """The value at this distance of the raw number."""
        return float(self.unknown.value(torch.tensor(self.raw + away, dtype=torch.float64)))

    @property
    def slope(self) -> float:
        """The derivative of the number in the raw one."""
        raw = torch.tensor(self.raw, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            return float(torch.autograd.grad(self.unknown.value(raw), raw)[0])


class Kind(NamedTuple):
    """An aggregate with something to learn, and who has labelled how many sets (by weight)."""

    aggregate: Aggregate
    unknown: tuple[Unknown, ...]
    labellers: dict[Any, float]

    @property
    def size(self) -> int:
        """The raw numbers of the labellers."""
        return len(self.labellers) * len(self.unknown)


@dataclass(frozen=True)
class Slot:
    """Where the numbers of some observations are among the shared parameters."""

    kind: Kind
    centre: slice
    each: slice  # line by line, of the labellers
    who: NDArray[np.int64] | None  # labelled each set; −1 for one who is not known

    def take(self, which: Any) -> Slot:
        """The slot of these sets only."""
        return self if self.who is None else replace(self, who=self.who[which])

    def _deviations(self, shared: Tensor) -> Tensor:
        """ε of each set, (sets, unknowns)."""
        table = shared[self.each].reshape(-1, len(self.kind.unknown))
        who = torch.as_tensor(self.who, device=shared.device)
        return torch.cat([table, torch.zeros_like(table[:1])])[who]

    def values(self, shared: Tensor) -> list[Tensor]:
        """What the shared parameters stand for: a number, or one for each set, of each unknown."""
        raw = shared[self.centre]
        numbers = raw.unbind() if self.who is None else (raw + self._deviations(shared)).unbind(1)
        return [u.value(number) for u, number in zip(self.kind.unknown, numbers, strict=True)]

    def bound(self, o: Observations, shared: Tensor) -> Observations:
        """The observations with what is unknown filled in, differentiable."""
        return o._of(o.aggregate.with_values(self.values(shared)))

    def log_prior(self, shared: Tensor) -> Tensor | float:
        """The share of each set in the logarithm of the labellers' prior, up to a constant."""
        if self.who is None:
            return 0.0
        weights = [1 / weight if weight > 0 else 0.0 for weight in self.kind.labellers.values()]
        share = shared.new_tensor([*weights, 0.0])[torch.as_tensor(self.who, device=shared.device)]
        return -0.5 * share * self._deviations(shared).square().sum(1)


class Unknowns:
    """All numbers of aggregates that a fit learns."""

    def __init__(self, n_own: int, kinds: Sequence[Kind]) -> None:
        self.n_own, self.kinds = n_own, {repr(kind.aggregate): kind for kind in kinds}
        self.n_centres = sum(len(kind.unknown) for kind in kinds)
        self.centres: dict[str, slice] = {}
        self.each: dict[str, slice] = {}
        at, end = n_own, n_own + self.n_centres
        for name, kind in self.kinds.items():
            self.centres[name] = slice(at, at := at + len(kind.unknown))
            self.each[name] = slice(end, end := end + kind.size)
        self.size = end - n_own

    @classmethod
    def of(cls, family: Family, observations: Sequence[Observations]) -> Unknowns:
        """The unknowns of these observations of targets of this family."""
        kinds: dict[str, Kind] = {}
        for o in observations:
            if not o.aggregate.learned:
                continue
            unknown = o.aggregate.unknown(family, o.y)
            kind = kinds.setdefault(repr(o.aggregate), Kind(o.aggregate, unknown, {}))
            if o.by is not None:
                names, number = np.unique(o.by, return_inverse=True)
                for name, w in zip(names.tolist(), np.bincount(number, o.weight), strict=True):
                    kind.labellers[name] = kind.labellers.get(name, 0.0) + float(w)
        return cls(len(family.shared), list(kinds.values()))

    @property
    def start(self) -> Tensor:
        """The raw numbers that a fit begins with."""
        centres = [one.start for kind in self.kinds.values() for one in kind.unknown]
        return torch.tensor(centres + [0.0] * (self.size - self.n_centres), dtype=torch.float64)

    def slot(self, o: Observations) -> Slot | None:
        """The slot of some observations; None where there is nothing to learn."""
        if not o.aggregate.learned:
            return None
        name, kind, who = repr(o.aggregate), self._kind(o.aggregate), None
        if o.by is not None:
            place = {labeller: i for i, labeller in enumerate(kind.labellers)}
            names, number = np.unique(o.by, return_inverse=True)
            who = np.array([place.get(name, -1) for name in names.tolist()], np.int64)[number]
        return Slot(kind, self.centres[name], self.each[name], who)

    def _kind(self, aggregate: Aggregate) -> Kind:
        name = repr(aggregate)
        if name not in self.kinds:
            known = ", ".join(self.kinds) or "nothing"
            raise ValueError(
                f"what is to be learned of {name} was no part of the fit, which has learned of "
                f"{known}: give its numbers, as in Noisy(Similarity(), flip=0.1)"
            )
        return self.kinds[name]

    def settled(self, o: Observations, shared: Tensor) -> Observations:
        """The observations with what was learned filled in."""
        slot = self.slot(o)
        if slot is None:
            return o
        return (
            o._of(self.filled(o.aggregate, shared)) if slot.who is None else slot.bound(o, shared)
        )

    def filled(self, aggregate: Aggregate, shared: Tensor) -> Aggregate:
        """The aggregate with what was learned filled in, for a labeller who is not known."""
        if not aggregate.learned:
            return aggregate
        kind = self._kind(aggregate)
        raw = shared[self.centres[repr(aggregate)]]
        values = [float(u.value(number)) for u, number in zip(kind.unknown, raw, strict=True)]
        return aggregate.with_values(values)

    def told(self, shared: Tensor) -> Iterator[Told]:
        """Each learned parameter, as a line of a summary."""
        several = len(self.kinds) > 1
        for name, kind in self.kinds.items():
            about = f" of {type(kind.aggregate.bare).__name__}" if several else ""
            raw = shared[self.centres[name]]
            lines: list[tuple[str, Tensor, list[int]]] = [("", raw, [])]
            if kind.labellers:
                first, n = self.each[name].start, len(kind.unknown)
                table = shared[self.each[name]].reshape(-1, n)
                lines = [
                    (f" by {who}", raw + more, [first + j * n])
                    for j, (who, more) in enumerate(zip(kind.labellers, table, strict=True))
                ]
            for who, numbers, more in lines:
                for i, (one, number) in enumerate(zip(kind.unknown, numbers, strict=True)):
                    along = torch.zeros_like(shared)
                    along[[self.centres[name].start + i, *(at + i for at in more)]] = 1.0
                    yield Told(one.name + about + who, one, float(number), along)

    def each_value(self, shared: Tensor) -> Iterator[tuple[Kind, Any, list[Tensor]]]:
        """For each kind, and each labeller of it (else None), the values of what was learned."""
        for name, kind in self.kinds.items():
            raw = shared[self.centres[name]]
            lines = [(None, raw)]
            if kind.labellers:
                table = shared[self.each[name]].reshape(-1, len(kind.unknown))
                lines = list(zip(kind.labellers, raw + table, strict=True))
            for labeller, numbers in lines:
                values = zip(kind.unknown, numbers, strict=True)
                yield kind, labeller, [one.value(number) for one, number in values]

    def aggregates(self, shared: Tensor) -> list[Aggregate | dict[Any, Aggregate]]:
        """Each kind with what was learned filled in: where there are labellers, one for each."""
        out: list[Aggregate | dict[Any, Aggregate]] = []
        last = None
        for kind, labeller, values in self.each_value(shared):
            made = kind.aggregate.with_values([float(value) for value in values])
            if labeller is None:
                out.append(made)
            elif kind is last:
                out[-1][labeller] = made  # type: ignore[index]
            else:
                out.append({labeller: made})
            last = kind
        return out
