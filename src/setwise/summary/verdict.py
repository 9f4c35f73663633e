"""Is the model any good? What held-out sets say, in words that need no statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.distributions import Distribution

from setwise.distributions import map_parameters
from setwise.inference.expected import expected_aggregate
from setwise.likelihood import ClassLabel, Label, Outcome, PerClass, Position, Targets
from setwise.objective import judge
from setwise.observations import Observations

__all__ = ["Guess", "guesses", "judged", "times", "verdict"]

Floats = NDArray[np.float64]
MANY = 1000.0  # times as probable: larger factors are not distinguished


def verdict(gain: float, error: float, n: int | None = None) -> str:
    """What a mean gain in log-likelihood over a constant means, ± error, of n held-out sets.

    >>> verdict(2.0, 0.2, 20)
    'surely better than a constant, by 20 held-out sets'
    >>> verdict(0.1, 0.2, 20)
    'no better than a constant, as far as 20 held-out sets tell'
    """
    sets = "" if n is None else f"{n:,} held-out sets"
    sigmas = gain / error if error > 0 else math.copysign(math.inf, gain) if gain else 0.0
    if sigmas < -2:
        return f"worse than a constant{sets and f', by {sets}'}: do not use it"
    if sigmas < 1:
        return f"no better than a constant, as far as {sets or 'they'} tell"
    if sigmas < 2:
        return f"probably better than a constant, but {sets or 'they'} are too few to be sure"
    sure = "surely" if sigmas > 3 else "very likely"
    return f"{sure} better than a constant{sets and f', by {sets}'}"


def times(gain: float) -> str:
    """A gain in log-likelihood as a factor of probability.

    >>> times(2.0), times(-0.001), times(20.0)
    ('7.4', '0.999', 'more than 1,000')
    """
    factor = math.exp(min(gain, 50.0))
    if factor > MANY:
        return f"more than {MANY:,.0f}"
    return f"{factor:.3f}" if 0.9 < factor < 1.1 else f"{factor:.2g}"


def judged(est: Any, X: Any, observations: Sequence[Observations]) -> tuple[float, float, int]:
    """The mean gain per set over a constant, its standard error, and of how many sets."""
    objective, (raw, shared) = est._seen(X, observations), est._rows(X)
    alone, own = est.constant_
    model = judge(objective, raw, shared, est.constant_).sets
    constant = judge(objective, alone.expand(objective.n_rows, -1), own, est.constant_).sets
    gain = model - constant
    n = len(gain)
    error = float((gain.var() * n).sqrt()) if n > 1 else math.nan
    return float(gain.sum()), error, n


class Guess(NamedTuple):
    """How well y of new sets is guessed by the model, and by a constant."""

    kind: str  # the aggregate
    what: str  # "right": a share; "off": in the unit of y
    model: float
    constant: float
    n: int

    def __str__(self) -> str:
        if self.what == "right":
            return (
                f"{self.kind}: {self.model:.0%} of {self.n:,} new labels are guessed right; a "
                f"constant guesses {self.constant:.0%}"
            )
        less = f" ({1 - self.model / self.constant:.0%} less)" if self.gains else ""
        return (
            f"{self.kind}: y of new sets is guessed to within {self.model:.3g}; by a constant to "
            f"within {self.constant:.3g}{less}"
        )

    @property
    def gains(self) -> bool:
        """Whether the model guesses better."""
        better = self.model - self.constant if self.what == "right" else self.constant - self.model
        return better > 0


def guesses(est: Any, X: Any, observations: Sequence[Observations]) -> list[Guess]:
    """How well y of these sets is guessed, for each kind where y can be guessed."""
    rows, (raw, shared) = est._distribution(X), est.constant_
    alone = est.family_(raw.expand(1, -1), shared[: len(est.family_.shared)])
    return [
        Guess(_short(repr(o.aggregate)), *_guess(o, rows, alone), len(o))
        for o in est._told(observations)
        if len(o) and o.y is not None
        if not o.aggregate.outcome(Targets.of(est.family_), None).instead
    ]


def _guess(o: Observations, rows: Distribution, alone: Distribution) -> tuple[str, float, float]:
    """Whether the model is right or how far it is off, and the same for a constant."""
    outcome, n = o.aggregate.outcome(Targets.of(rows), None), len(o.sets.indices)
    members = (
        map_parameters(rows, o.sets.members),
        map_parameters(alone, lambda p: p.expand(n, *p.shape[1:])),
    )
    model, constant = (
        _distance(outcome, o, np.asarray(expected_aggregate(o.aggregate, d, o.sets), np.float64))
        for d in members
    )
    right = isinstance(outcome, Label | ClassLabel | Position)
    return "right" if right else "off", model, constant


def _distance(outcome: Outcome, o: Observations, expected: Floats) -> float:
    y = np.asarray(o.y, np.float64)
    if isinstance(outcome, PerClass):
        unit = o.sets.individuals if outcome.what == "count" else 1
        gap = np.abs(y - expected).reshape(len(y), -1).mean(1)
        return float((gap / unit).mean())
    if not isinstance(outcome, Label | ClassLabel | Position):
        return float(np.sqrt(np.mean((y - expected) ** 2)))
    if outcome.named:
        return float((y == expected).mean())
    low, high = min(outcome.values or (0, 1)), max(outcome.values or (0, 1))
    middle, decided = (low + high) / 2, np.isin(y, (low, high))
    right = np.where(expected > middle, y == high, y == low) * 1.0
    right = np.where(np.abs(expected - middle) < 1e-9, 0.5, right)
    return float(right[decided].mean()) if decided.any() else math.nan


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
