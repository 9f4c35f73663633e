"""Noisy: an observation seen through noise, such as that of differential privacy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Cauchy, Distribution, Laplace, Normal, StudentT

from setwise._math.cumulant_inversion import log_density_of_sum
from setwise._math.heavy_tailed_sums import log_density_of_heavy_sum
from setwise._math.integer_sums import log_noisy_lattice
from setwise._math.normal_laplace import log_normal_laplace
from setwise.aggregates.counts import Counts, Proportions, noisy_counts
from setwise.aggregates.direct import Direct
from setwise.aggregates.total import Mean, Sum, WeightedTotal, as_count, member_weights
from setwise.distributions import Discrete, double, log_density
from setwise.likelihood import (
    Aggregate,
    Number,
    Outcome,
    PerClass,
    SetSizes,
    Targets,
    by_size,
    evaluate,
    likelihood,
)
from setwise.sets import Sets

__all__ = ["Noisy", "noisy_total"]


@dataclass(frozen=True)
class Noisy(Aggregate):
    """The observation of another aggregate, seen through noise.

    `flip=p`: a discrete y is replaced, with probability p, by one of its other values, each equally
    likely. `normal=s` or `laplace=b`: Gaussian or Laplace noise of that scale is added to `Sum`,
    `Mean`, `Counts`, `Proportions` or `Direct` (on every entry of y, independently). Exactly one of
    them is given.

    >>> from setwise.aggregates.similarity import Similarity
    >>> Noisy(Similarity(), flip=0.0).observe([0, 1, 1], [[0, 1], [1, 2]]).y.tolist()
    [0.0, 1.0]
    """

    aggregate: Aggregate
    flip: float | None = None
    normal: float | None = None
    laplace: float | None = None

    def __post_init__(self) -> None:
        given = {
            name: value
            for name in ("flip", "normal", "laplace")
            if (value := getattr(self, name)) is not None
        }
        if len(given) != 1:
            raise ValueError(f"give exactly one of flip, normal, laplace; got {given or 'none'}")
        ((name, value),) = given.items()
        if name == "flip" and not 0 <= value < 1:
            raise ValueError(f"flip is a probability in [0, 1), got {value}")
        if name != "flip":
            if not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"{name} is the scale of the noise, a positive number; got {value}"
                )
            if not isinstance(self.aggregate, Sum | Mean | Counts | Proportions | Direct):
                raise TypeError(
                    f"{name} noise is known for Sum, Mean, Counts, Proportions and Direct, not for "
                    f"{type(self.aggregate).__name__}; use flip=p for discrete observations"
                )

    not_in_words = "give what was observed as --observe, and its noise as --noise laplace=0.5"

    @property
    def bare(self) -> Aggregate:
        return self.aggregate.bare

    @property
    def size(self) -> int | None:  # type: ignore[override]
        return self.aggregate.size

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self.aggregate.symmetric

    @property
    def of_differences(self) -> bool:  # type: ignore[override]
        return self.aggregate.of_differences

    @property
    def noise(self) -> Normal | Laplace:
        """The distribution of the added noise."""
        zero = torch.zeros((), dtype=torch.float64)
        if self.normal is not None:
            return Normal(zero, zero + self.normal)
        return Laplace(zero, zero + float(self.laplace or 0.0))

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        y = np.asarray(self.aggregate.apply(z, sets, rng), float)
        if self.normal is not None:
            return y + rng.normal(0.0, self.normal, y.shape)
        if self.laplace is not None:
            return y + rng.laplace(0.0, self.laplace, y.shape)
        assert self.flip is not None
        discrete = not z.is_floating_point()
        targets = Targets(int(z.max()) + 1 if discrete else None, discrete)
        out = y.copy()
        for i in np.flatnonzero(rng.random(len(y)) < self.flip):
            others = [v for v in self.values(targets, int(sets.sizes[i])) if v != y[i]]
            out[i] = rng.choice(others) if others else y[i]
        return out

    def outcome(self, targets: Targets, size: int | None) -> Outcome:
        """As without noise; a class to which noise was added is a number."""
        inner = self.aggregate.outcome(targets, size)
        return inner if self.flip is not None or isinstance(inner, PerClass) else Number()

    def values(self, targets: Targets, size: int) -> Sequence[float]:
        """Every y there is without noise: what a flip chooses from."""
        found = self.aggregate.outcome(targets, size).values
        if found is None:
            raise TypeError(
                f"{self.aggregate!r} has no fixed list of outcomes, so its y cannot be flipped; "
                f"use Noisy(…, normal=s) or Noisy(…, laplace=b)"
            )
        return found

    def set_sizes(self, targets: Targets) -> SetSizes:
        return self.aggregate.set_sizes(targets)

    def expected(self, members: Distribution, sets: Sets) -> Tensor | None:
        """As without noise that is added: its mean is zero."""
        return None if self.flip is not None else self.aggregate.expected(members, sets)

    def tells(self, targets: Targets, size: int) -> bool:
        """Not where y is drawn evenly from all its values."""
        if self.flip is not None:
            m = len(self.values(targets, size))
            if abs(m - 1 - self.flip * m) <= 1e-9:
                return False
        return self.aggregate.tells(targets, size)

    def with_classes(self, n_classes: int) -> Self:
        return dataclasses.replace(self, aggregate=self.aggregate.with_classes(n_classes))

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        """None: see `noisy_examples`."""
        return []

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        if self.flip is not None:
            return self.aggregate.check_y(sets, y)
        return super().check_y(sets, y)

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float] | None:
        inner = self.aggregate.linear(sets)
        return None if inner is None or self.normal is None else (inner[0], self.normal**2)

    def alike(
        self, sets: Sets, y: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        """As without noise, as long as most of y is true."""
        mostly = self.flip is not None and self.flip < 0.5
        return self.aggregate.alike(sets, y) if mostly else None


@likelihood(Noisy, Distribution)
def _noisy(aggregate: Noisy, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Mixture with the flipped values, or convolution with the noise."""
    inner: Any = aggregate.aggregate
    if aggregate.flip is None:
        if isinstance(inner, Counts | Proportions):
            return noisy_counts(inner, distribution, sets, y, aggregate.noise)
        total = Sum() if isinstance(inner, Direct) else inner
        return noisy_total(total, distribution, sets, y, aggregate.noise)
    targets = Targets.of(distribution)
    sizes, which = np.unique(sets.sizes, return_inverse=True)
    numbers = [len(aggregate.values(targets, int(size))) for size in sizes]
    clean = evaluate(inner, distribution, sets, y)
    others = torch.as_tensor(np.array(numbers)[which] - 1).to(clean)
    # P(y) = (1−p) L + p (1−L)/(m−1) = a + b·L, without subtracting where p < 1/2
    a = torch.where(others > 0, aggregate.flip / others.clamp(min=1), 0.0)
    keep = 1 - a * others
    mixed = a + (keep - a) * clean.exp()
    pure = a == 0
    return torch.where(pure, clean + keep.log(), torch.where(pure, 1.0, mixed).log())


def noisy_total(
    aggregate: WeightedTotal,
    distribution: Distribution,
    sets: Sets,
    y: Tensor,
    noise: Normal | Laplace,
) -> Tensor:
    """log density of y = aggregate + noise, for every family, in the dtype of y.

    `aggregate` is a `Sum` or a `Mean`, `distribution` is batched over the members of the flat
    `sets` (ragged or not), y is a real number per set, and `noise` has location 0 and one positive
    scale: that of the noise added to the sum or to the mean.
    """
    if isinstance(distribution, Discrete):
        as_count(aggregate, sets, torch.zeros_like(y))  # refuses unequal weights

    def rule(aggregate: WeightedTotal, d: Any, sets: Sets, y: Tensor) -> Tensor:
        law = type(noise)(noise.loc.to(y.device).double(), noise.scale.to(y.device).double())
        return _noisy_sum(aggregate, d, sets, y.double(), law).to(y.dtype)

    return by_size(rule)(aggregate, distribution, sets, y)


def _noisy_sum(
    aggregate: WeightedTotal, d: Any, sets: Sets, y: Tensor, noise: Normal | Laplace
) -> Tensor:
    d = double(d)
    raw = None if isinstance(d, Discrete) else member_weights(sets, y)
    jacobian, weights = 0.0, None
    if raw is not None:
        weights = sets.dense(raw)
        weights = weights if isinstance(aggregate, Sum) else weights / weights.sum(1, keepdim=True)
    elif isinstance(aggregate, Mean):  # a mean with noise is a sum with K times the noise
        assert sets.size is not None
        y, jacobian = y * sets.size, math.log(sets.size)
        noise = type(noise)(noise.loc, noise.scale * sets.size)
    if isinstance(d, Discrete):
        lattice: Any = d
        return log_noisy_lattice(lattice, sets, y, noise) + jacobian
    if isinstance(d, Normal):
        w = 1.0 if weights is None else weights
        loc, variance = (sets.dense(d.loc) * w).sum(1), (sets.dense(d.scale) * w).square().sum(1)
        if isinstance(noise, Laplace):
            return log_normal_laplace(y - loc, variance.sqrt(), noise.scale.to(y)) + jacobian
        deviation = (variance + noise.scale.to(y).square()).sqrt()
        return log_density(Normal(loc, deviation, validate_args=False), y) + jacobian
    heavy = isinstance(d, StudentT | Cauchy)
    engine = log_density_of_heavy_sum if heavy else log_density_of_sum
    return engine(d, weights, sets, y, noise) + jacobian
