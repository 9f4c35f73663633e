"""What labels tell about numbers: would a shift, a stretch or a change of sign be noticed?

A map g of the targets goes unnoticed if T(g z₁, …, g z_K) = T(z₁, …, z_K) for all targets, and if
the family contains the distribution of g Z whenever it contains that of Z. T is evaluated on random
targets of many magnitudes. The rank of the information matrix confirms, for every pair of aggregate
and family (tests/test_identifiability.py), that nothing else is lost, with one exception: a single
threshold, see `_only_threshold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from setwise.distributions import Discrete, Family
from setwise.identifiability.facts import EXACTLY, NOTHING_TOLD, PARTLY, Identifiability
from setwise.likelihood import Aggregate, Bounds, Targets
from setwise.observations import Observations

__all__ = ["identify_numbers"]

TRIED = 128  # sets on which T is tried
SIZES = 10.0 ** np.arange(-15, 16)  # of the targets: T may have a margin in the same unit
BESIDE = 10.0 ** np.arange(-3, 4)  # times a number that T has


class _Evidence:
    """What one kind of observations depends on; `blank` if it does not depend on the targets."""

    def __init__(self, family: Family, o: Observations) -> None:
        self.family = family
        self.aggregate: Aggregate = o.aggregate.bare
        targets = Targets.of(family)
        sizes = np.unique(o.sets.individuals).tolist()
        self.blank = not any(o.aggregate.informative(targets, k) for k in sizes)
        ends = [o.sets.individuals.argmin(), o.sets.individuals.argmax()]
        some = np.linspace(0, len(o) - 1, min(TRIED, len(o))).astype(int)
        number = max(4, min(TRIED, 200_000 // int(o.sets.individuals.max())))
        self.sets = o.sets.take(np.resize([*ends, *some], number)).expand().flat
        self.thresholds: NDArray[np.float64] | None = None
        self.total: NDArray[np.float64] | None = None
        linear = self.aggregate.linear(o.sets)
        if isinstance(self.aggregate.outcome(targets, None), Bounds):
            self.thresholds = _thresholds(family, o)
            self.blank = not len(self.thresholds)
        elif linear is not None:
            starts = o.sets.offsets[:-1]
            a = linear[0] if o.sets.counts is None else linear[0] * o.sets.counts
            total, size = (np.add.reduceat(part, starts) for part in (a, np.abs(a)))
            self.total = np.where(np.abs(total) <= 1e-12 * size, 0.0, total)
        elif not self.blank:
            self.blank = all(
                self._same(self._targets(size, 0), self._targets(size, 1), 1e-9 * size)
                for size in self.sizes
            )

    def ignores(self, a: float, b: float) -> bool:
        """Whether the observations stay the same if every target z becomes a·z + b."""
        if self.thresholds is not None:
            at = self.thresholds
            return a > 0 and bool(np.allclose(a * at + b, at, rtol=1e-9, atol=0))
        if self.total is not None:
            return a == 1 and not self.total.any()
        sizes = self.sizes if a == 1 else self.sizes[self.sizes > 1e-4 * abs(b)]  # no rounding
        tried = ((size, self._targets(size, 0)) for size in sizes)
        return all(
            self._same(z, a * z + b * (size if a == 1 else 1), 1e-9 * size) for size, z in tried
        )

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """Of the targets to try: of every order, and about as large as each number that T has."""
        own = [abs(v) for v in vars(self.aggregate).values() if isinstance(v, float | int) and v]
        beside = np.outer([v for v in own if np.isfinite(v)], BESIDE).ravel()
        found = np.unique(np.concatenate([SIZES, beside]))
        most = 1e15 if issubclass(self.family.kind, Discrete) else 1e200
        return found[(found > 1e-200) & (found < most)]

    def _targets(self, size: float, seed: int) -> torch.Tensor:
        z = np.random.default_rng(seed).normal(size=len(self.sets.indices)) * size
        if issubclass(self.family.kind, Discrete):
            return torch.from_numpy(np.abs(z).round().astype(np.int64))
        return torch.from_numpy(np.abs(z) if self.family.positive else z)

    def _same(self, z: torch.Tensor, other: torch.Tensor, error: float) -> bool:
        one, two = (self.aggregate.observe(t, self.sets, seed=0) for t in (z, other))
        if not (one.sets.indices == two.sets.indices).all():
            return False
        if one.y is None or two.y is None:
            return True
        seen = np.concatenate([np.ravel(one.y), np.ravel(two.y)])
        if (np.abs(seen) <= 1000).all() and (2 * seen % 1 == 0).all():  # labels: no rounding
            error = 0.0
        return bool(np.allclose(one.y, two.y, rtol=1e-9, atol=error, equal_nan=True))


def _thresholds(family: Family, o: Observations) -> NDArray[np.float64]:
    """The distinct thresholds that intervals compare targets with (for counts: k + ½)."""
    assert o.y is not None
    low, high = o.y[:, 0], o.y[:, 1]
    if issubclass(family.kind, Discrete):
        low, high = np.ceil(low) - 0.5, np.floor(high) + 0.5
    found: NDArray[np.float64] = np.unique(np.concatenate([low, high]))
    least = 0.0 if family.positive or issubclass(family.kind, Discrete) else -np.inf
    return found[np.isfinite(found) & (found > least)]


def _only_threshold(family: Family, evidence: Sequence[_Evidence]) -> float | None:
    """The threshold t, if labels only tell P(Z > t) of each row and this leaves its family open."""
    found = {float(t) for e in evidence if e.thresholds is not None for t in e.thresholds}
    if any(e.thresholds is None for e in evidence) or len(found) != 1:
        return None
    free = len(family.outputs) > 1 or (family.shared and not family.located)
    return found.pop() if free else None


def identify_numbers(family: Family, observations: Sequence[Observations]) -> Identifiability:
    """How far these observations determine the distributions of targets that are numbers."""
    evidence = [e for o in observations if not (e := _Evidence(family, o)).blank]
    if not evidence:
        return NOTHING_TOLD
    threshold = _only_threshold(family, evidence)
    if threshold is not None:
        return Identifiability(
            PARTLY,
            f"These labels tell how likely each target is to exceed {threshold:g}, and no more: "
            f"the other parameters of the family remain unknown. Add observations that tell more "
            f"about the targets, such as `Direct` ones, or intervals with other ends.",
            scale=False,
        )

    def ignored(a: float, b: float) -> bool:
        return all(e.ignores(a, b) for e in evidence)

    shift = family.located and ignored(1.0, 0.6)
    centres = {0.0, *(float(t) for e in evidence if e.thresholds is not None for t in e.thresholds)}
    fixed = [c for c in sorted(centres) if family.located or c == 0]
    fixed = [c for c in fixed if ignored(1.7, c - 1.7 * c)]
    scale = family.unit not in (*family.outputs, *family.shared) or not fixed
    centre = None if scale or shift else fixed[0]
    sign = family.symmetric and ignored(-1.0, 0.0)
    level, words = _in_words(family, shift, scale, centre, sign)
    if any(e.aggregate.user_defined for e in evidence):
        words.append("(For a custom function this was found by trying it on random targets.)")
    if family.shape_varies and ignored(1.7, 0.0):
        words.append("The order of targets tells little about the shape of their distributions.")
    if shift or sign or not scale:
        words.append("`align` with a few labelled rows, or add a few `Direct` observations.")
    return Identifiability(
        level, " ".join(words), shift=shift, scale=scale, centre=centre, sign=sign
    )


def _in_words(
    family: Family, shift: bool, scale: bool, centre: float | None, sign: bool
) -> tuple[str, list[str]]:
    held = f" The shared {family.shared[0]} is therefore fixed at 0." if family.shared else ""
    if shift and scale:
        level = "up to a shift"
        words = (
            "These labels only compare targets: a number added to all of them would not be "
            "noticed. Differences between rows are known, their common level is not."
        )
    elif shift:
        level = "up to an affine map"
        words = (
            "These labels only tell the order of targets: neither a number added to all of them "
            "nor another unit would be noticed. Predictions are right up to a shift and a positive "
            "factor." + held
        )
    elif not scale and family.positive:
        level = "up to a common factor"
        words = (
            "These labels only tell the order of targets: a common factor would not be noticed. "
            "Ratios between rows are known, the unit is not." + held
        )
    elif not scale:
        level = f"up to a stretch about {centre:g}"
        words = (
            f"These labels only compare targets with {centre:g}: their distance from it is known "
            f"only relative to the noise.{held}"
        )
    else:
        level = EXACTLY
        words = "In principle, given enough sets, these labels determine every row's distribution."
    if sign:
        level = "up to a sign" if level == EXACTLY else f"{level} and a sign"
        return level, [words, "A change of sign of all targets would not be noticed either."]
    return level, [words, "Nothing needs to be aligned."] if level == EXACTLY else [words]
