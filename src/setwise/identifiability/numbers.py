"""What labels tell of numbers: whether a shift, a stretch or a change of sign goes unnoticed.

A map g of the targets goes unnoticed if T(g z₁, …, g z_K) = T(z₁, …, z_K) whatever the targets, and
if the family holds the distribution of g Z with that of Z. T itself is asked, on random targets of
many sizes. That nothing else is lost was checked for every pair of aggregate and family from the
rank of the information matrix (tests/test_identifiability.py); the one exception is a single
threshold, see `_one_mark`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from setwise.distributions import Discrete, Family, Gamma, NegativeBinomial
from setwise.distributions.location import LocationScale
from setwise.identifiability.facts import EXACTLY, NOTHING, PARTLY, Identifiability
from setwise.likelihood import Aggregate, Bounds, Targets
from setwise.observations import Observations

__all__ = ["identify_numbers", "marks"]

ASKED = 128  # sets on which T is tried
SIZES = 10.0 ** np.arange(-3, 7)  # of the targets: T may hold a margin in their unit


class _Question:
    """What one kind of observations asks of the targets."""

    def __init__(self, family: Family, o: Observations) -> None:
        self.family = family
        self.aggregate: Aggregate = o.aggregate.bare
        targets = Targets.of(family)
        sizes = np.unique(o.sets.sizes).tolist()
        self.blank = not any(o.aggregate.tells(targets, k) for k in sizes)
        ends = [o.sets.sizes.argmin(), o.sets.sizes.argmax()]
        some = np.linspace(0, len(o) - 1, min(ASKED, len(o))).astype(int)
        number = max(4, min(ASKED, 200_000 // int(o.sets.sizes.max())))
        self.sets = o.sets.take(np.resize([*ends, *some], number)).flat
        self.marks: NDArray[np.float64] | None = None
        self.total: NDArray[np.float64] | None = None
        linear = self.aggregate.linear(o.sets)
        if isinstance(self.aggregate.outcome(targets, None), Bounds):
            self.marks = marks(family, o)
            self.blank = not len(self.marks)
        elif linear is not None:
            starts = o.sets.offsets[:-1]
            total, size = (np.add.reduceat(a, starts) for a in (linear[0], np.abs(linear[0])))
            self.total = np.where(np.abs(total) <= 1e-12 * size, 0.0, total)
        elif not self.blank:
            draws = [self._targets(size, seed) for size in SIZES for seed in (0, 1)]
            self.blank = all(
                self._same(a, b, 1e-9) for a, b in zip(draws[::2], draws[1::2], strict=True)
            )

    def ignores(self, a: float, b: float) -> bool:
        """Whether nothing looks different if every target z becomes a·z + b."""
        if self.blank:
            return True
        if self.marks is not None:
            return a > 0 and bool(np.allclose(a * self.marks + b, self.marks, rtol=1e-9, atol=0))
        if self.total is not None:
            return a == 1 and not self.total.any()
        for size in SIZES:
            z = self._targets(size, 0)
            if not self._same(z, a * z + b * (size if a == 1 else 1), 1e-9 * size):
                return False
        return True

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
        return bool(np.allclose(one.y, two.y, rtol=1e-9, atol=error, equal_nan=True))


def marks(family: Family, o: Observations) -> NDArray[np.float64]:
    """The distinct thresholds that intervals compare targets with (between whole numbers)."""
    assert o.y is not None
    low, high = o.y[:, 0], o.y[:, 1]
    if issubclass(family.kind, Discrete):
        low, high = np.ceil(low) - 0.5, np.floor(high) + 0.5
    found: NDArray[np.float64] = np.unique(np.concatenate([low, high]))
    least = 0.0 if family.positive or issubclass(family.kind, Discrete) else -np.inf
    return found[np.isfinite(found) & (found > least)]


def _symmetric(family: Family) -> bool:
    """Whether the family holds −Z with Z."""
    if not isinstance(family, LocationScale):
        return False
    d = family.build(torch.zeros(1), torch.ones(1))
    x = torch.tensor([0.7])
    return bool(torch.allclose(family.log_cdf(d, -x), family.log_survival(d, x)))


def _one_mark(family: Family, questions: Sequence[_Question]) -> float | None:
    """The threshold, if all that is told of a row is P(Z > t) and that leaves its family open."""
    found = {float(m) for q in questions if q.marks is not None for m in q.marks}
    if any(q.marks is None for q in questions) or len(found) != 1:
        return None
    several = len(family.outputs) > 1
    shared = bool(family.shared) and not isinstance(family, LocationScale)
    return found.pop() if several or shared else None


def identify_numbers(family: Family, observations: Sequence[Observations]) -> Identifiability:
    """How far these observations tell the distributions of targets that are numbers."""
    questions = [q for o in observations if not (q := _Question(family, o)).blank]
    if not questions:
        return Identifiability(
            NOTHING,
            "These labels say the same whatever the targets are, so nothing can be learned from "
            "them. Add observations of another kind.",
            scale=False,
        )
    mark = _one_mark(family, questions)
    if mark is not None:
        return Identifiability(
            PARTLY,
            f"These labels tell how likely each target is to exceed {mark:g}, and no more: the "
            f"family has other parameters that they do not touch. Add observations that tell the "
            f"targets in another way, such as `Direct` ones, or intervals with other ends.",
            scale=False,
        )

    def ignored(a: float, b: float) -> bool:
        return all(q.ignores(a, b) for q in questions)

    located = isinstance(family, LocationScale)
    free = {"log_scale", "log_rate", "log_mean"} & {*family.outputs, *family.shared}
    stretches = bool(free) and (located or family.positive)
    shift = located and ignored(1.0, 0.6)
    centres = {0.0, *(float(m) for q in questions if q.marks is not None for m in q.marks)}
    found = [c for c in sorted(centres) if (located or c == 0) and ignored(1.7, c - 1.7 * c)]
    sign = _symmetric(family) and ignored(-1.0, 0.0)
    scale = not (stretches and found)
    centre = None if scale or shift else found[0]
    facts: dict[str, Any] = {"shift": shift, "scale": scale, "centre": centre, "sign": sign}
    return Identifiability(_level(family, **facts), _words(family, questions, **facts), **facts)


def _level(family: Family, shift: bool, scale: bool, centre: float | None, sign: bool) -> str:
    level = EXACTLY
    if shift:
        level = "up to a shift" if scale else "up to an affine map"
    elif not scale:
        level = "up to a common factor" if family.positive else f"up to a stretch about {centre:g}"
    if sign:
        level = "up to a sign" if level == EXACTLY else f"{level} and a sign"
    return level


def _words(
    family: Family,
    questions: Sequence[_Question],
    shift: bool,
    scale: bool,
    centre: float | None,
    sign: bool,
) -> str:
    words = []
    held = ""
    if family.shared:
        held = f" The shared {family.shared[0]} is therefore held at 0 in learning."
    if shift and scale:
        words.append(
            "These labels only compare targets: a number added to all of them would not be "
            "noticed. Differences between rows are told, their common level is not."
        )
    elif shift:
        words.append(
            "These labels only tell the order of targets: neither a number added to all of them "
            "nor another unit would be noticed. Predictions are right up to a shift and a positive "
            "factor." + held
        )
    elif not scale and family.positive:
        words.append(
            "These labels only tell the order of targets: a common factor would not be noticed. "
            "Ratios between rows are told, the unit is not." + held
        )
    elif not scale:
        words.append(
            f"These labels only compare targets with {centre:g}: how far they are from it is told "
            f"only in comparison with the noise.{held}"
        )
    else:
        words.append("Given enough sets, these labels tell the distribution of every row.")
    if sign:
        words.append("A change of sign of all targets would not be noticed either.")
    elif scale and not shift:
        words.append("Nothing needs to be aligned.")
    if any(q.aggregate.of_a_function for q in questions):
        words.append("(For a custom function this was found by trying it on random targets.)")
    if isinstance(family, Gamma | NegativeBinomial) and all(q.ignores(1.7, 0.0) for q in questions):
        words.append("The shape of the distributions is told by their order only weakly.")
    if shift or sign or not scale:
        words.append(
            "`align` with a few labelled rows, or a few `Direct` observations in the fit, settle "
            "it."
        )
    return " ".join(words)
