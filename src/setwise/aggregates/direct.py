"""Observations of single targets: the target itself, one of several, a range or subset with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution

from setwise._math.intervals import log_between
from setwise.distributions import (
    Continuous,
    Discrete,
    double,
    family_of,
    has_mean,
    log_cdf,
    log_density,
    log_survival,
    point_estimate,
)
from setwise.errors import check_each
from setwise.likelihood import Aggregate, Bounds, ClassLabel, Label, Number, Targets, likelihood
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["Coarse", "Direct", "Interval", "PrimaryInstance"]


def _check_classes(distribution: Distribution, y: Tensor) -> None:
    """Raises where y names a class that the distribution does not have."""
    if not isinstance(distribution, Categorical):
        return
    n = distribution.logits.shape[-1]
    check_each(
        ((y >= 0) & (y < n) & (y == y.floor())).cpu().numpy(),
        lambda at: f"has y = {y[at].item():g}, but the classes are 0 to {n - 1}",
    )


@dataclass(frozen=True)
class Direct(Aggregate):
    """The target itself: ordinary supervision, y = z of a set of one.

    log p(y) is the distribution's own. A few of these beside other observations determine what
    those leave open.

    >>> Direct().observe([3.0, 5.0], [[1]]).y.tolist()
    [5.0]
    """

    size = 1
    identity_at_one = True

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        return z

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float]:
        return np.ones(len(sets)), 0.0

    def outcome(self, targets: Targets, size: int | None) -> Number | ClassLabel:
        return Number() if targets.n_classes is None else ClassLabel(targets.n_classes)


@likelihood(Direct, Distribution)
def _direct(aggregate: Direct, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """The log density or log probability itself."""
    _check_classes(distribution, y)
    return log_density(distribution, y)


@dataclass(frozen=True)
class PrimaryInstance(Aggregate):
    """The target of one unknown member, all members equally likely (multiple-instance regression).

    p(y) = 1/K Σ_k p(y | θ_k).

    >>> PrimaryInstance().observe([3.0, 3.0], [[0, 1]]).y.tolist()
    [3.0]

    Ray and Page, "Multiple instance regression", ICML 2001.
    """

    identity_at_one = True

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        return z[sets.offsets[:-1] + rng.integers(0, sets.sizes)]

    def outcome(self, targets: Targets, size: int | None) -> Number | ClassLabel:
        return Number() if targets.n_classes is None else ClassLabel(targets.n_classes)

    def expected(self, members: Distribution, sets: Sets) -> Tensor | None:
        return sets.mean(point_estimate(members)) if has_mean(members) else None


@likelihood(PrimaryInstance, Distribution, counts=True)
def _primary(
    aggregate: PrimaryInstance, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Mean of the members' densities at y."""
    _check_classes(distribution, y)
    densities = log_density(distribution, sets.repeat(y))
    return sets.logsumexp(densities) - sets.tensor("individuals", y).to(y.dtype).log()


@dataclass(frozen=True)
class Interval(Aggregate):
    """The target lies between two numbers: y = (low, high), ±inf allowed (censoring).

    p(y) = P(low ≤ Z ≤ high). `edges` are the cell borders that `observe` uses, by default the
    deciles of the targets.

    >>> Interval(edges=(0.0, 10.0)).observe([3.0, 12.0], [[0], [1]]).y.tolist()
    [[0.0, 10.0], [10.0, inf]]
    """

    edges: tuple[float, ...] | None = None

    size = 1

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        values = z.double().numpy()
        edges = self.edges
        inner = np.quantile(values, np.linspace(0.1, 0.9, 9)) if edges is None else edges
        borders = np.concatenate([[-np.inf], np.unique(np.asarray(inner, float)), [np.inf]])
        cell = np.searchsorted(borders, values, side="left")
        low, high = borders[cell - 1], borders[cell]
        if not z.is_floating_point():  # whole numbers: both ends belong to the interval
            low, high = np.floor(low) + 1, np.floor(high)
        return np.stack([low, high], axis=1)

    def outcome(self, targets: Targets, size: int | None) -> Bounds:
        return Bounds()

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(edges=(-1.0, 0.5, 1.0, 2.5))]


@likelihood(Interval, Continuous)
def _interval(aggregate: Interval, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Difference of distribution functions, taken in the nearer tail."""
    d = double(distribution)
    low, high = y.double().unbind(1)
    # A very narrow interval is a difference of nearly equal numbers: density × width instead.
    finite = low.isfinite() & high.isfinite() & (high > low)
    safe_low, safe_high = torch.where(finite, low, 0.0), torch.where(finite, high, 1.0)
    density = log_density(d, _middle(d, safe_low, safe_high)) + (safe_high - safe_low).log()
    tails = torch.minimum(log_cdf(d, safe_high), log_survival(d, safe_low))
    narrow = finite & (density - tails < math.log(1e-6)).detach() & density.isfinite()
    inner = log_between(d, low, high)
    return torch.where(narrow, torch.where(narrow, density, 0.0), inner).to(y.dtype)


def _middle(d: Any, low: Tensor, high: Tensor) -> Tensor:
    """Where a density is about its mean over a narrow interval.

    Around a kink that is not the middle, but as far from it as points are on average.
    """
    middle = 0.5 * (low + high)
    if not family_of(d).kinked:
        return middle
    left, right = d.loc - low, high - d.loc
    around = (left > 0) & (right > 0)
    left, right = torch.where(around, left, 1.0), torch.where(around, right, 1.0)
    return torch.where(around, d.loc + (left**2 + right**2) / (2 * (left + right)), middle)


@likelihood(Interval, Discrete)
def _interval_counts(
    aggregate: Interval, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Difference of distribution functions, both ends included."""
    d = double(distribution)
    low, high = y.double()[:, 0].ceil(), y.double()[:, 1].floor()
    one = low == high
    at = log_density(d, torch.where(one, low, 0.0))
    out = torch.where(one, at, log_between(d, low - 1, high))
    return torch.where(low > high, -math.inf, out).to(y.dtype)


@likelihood(Interval, Categorical)
def _interval_classes(
    aggregate: Interval, distribution: Categorical, sets: Sets, y: Tensor
) -> Tensor:
    """Sum of the class probabilities within the interval, both ends included."""
    classes = torch.arange(distribution.logits.shape[-1], device=y.device)
    inside = (classes >= y[:, :1]) & (classes <= y[:, 1:])
    return logsumexp(distribution.logits.masked_fill(~inside, -math.inf), -1)


@dataclass(frozen=True)
class Coarse(Aggregate):
    """The index of a label subset that holds the class: partial, complementary, superclass labels.

    `cells` lists the subsets, e.g. `[(0, 1), (2,)]`. A class that is in m cells is reported as each
    of them with probability 1/m, so P(y) = Σ_{c ∈ cells[y]} p(c) / m(c) adds up to one also for
    overlapping cells (complementary labels: m = C − 1).

    >>> Coarse([(0, 1), (2,)]).observe([0, 1, 2], [[0], [1], [2]]).y.tolist()
    [0.0, 0.0, 1.0]
    """

    cells: Sequence[Sequence[int]]

    size = 1

    def __post_init__(self) -> None:
        for i, cell in enumerate(self.cells):
            if (
                not len(cell)
                or any(c != int(c) or c < 0 for c in cell)
                or len(set(cell)) < len(cell)
            ):
                raise ValueError(
                    f"cell {i} is {cell!r}: a cell is a non-empty list of distinct class numbers"
                )

    def weights(self, n_classes: int) -> NDArray[np.float64]:
        """P(y = cell | z = class), as a matrix (cells, classes)."""
        top = max(max(cell) for cell in self.cells)
        if top >= n_classes:
            raise ValueError(
                f"{self!r} names class {top}, but the classes are 0 to {n_classes - 1}"
            )
        holds = np.zeros((len(self.cells), n_classes))
        for i, cell in enumerate(self.cells):
            holds[i, list(cell)] = 1
        total = holds.sum(0)
        if (total == 0).any():
            raise ValueError(
                f"class {int((total == 0).argmax())} is in no cell of {self!r}: each needs one"
            )
        out: NDArray[np.float64] = holds / total
        return out

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        labels = z.long().numpy()
        n_classes = max(int(labels.max()), *(max(cell) for cell in self.cells)) + 1
        chance = self.weights(n_classes)[:, labels].cumsum(0)
        return (rng.random(len(labels)) > chance).sum(0).clip(max=len(self.cells) - 1)

    def outcome(self, targets: Targets, size: int | None) -> Label:
        said = {float(i): f"one of {list(cell)}" for i, cell in enumerate(self.cells)}
        return Label(said, named=True)

    def told_classes(self, y: Any) -> int:
        return int(max(max(cell) for cell in self.cells)) + 1

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        complementary = [tuple(k for k in range(n_classes) if k != i) for i in range(n_classes)]
        return [cls([(0,), tuple(range(1, n_classes))]), cls(complementary)]


@likelihood(Coarse, Categorical)
def _coarse(aggregate: Coarse, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum of the class probabilities within the cell."""
    logits = distribution.logits
    weights = torch.as_tensor(aggregate.weights(logits.shape[-1])).to(logits)
    return logsumexp(logits + weights.log()[y.long()], -1)
