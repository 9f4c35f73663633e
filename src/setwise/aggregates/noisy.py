"""Noisy: an observation seen through noise, such as that of differential privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Cauchy, Distribution, Laplace, Normal, StudentT

from setwise._math.cumulant_inversion import log_density_of_sum
from setwise._math.heavy_tailed_sums import log_density_of_heavy_sum
from setwise._math.integer_sums import (
    certain,
    few_products,
    log_noisy_class_sum,
    log_noisy_lattice,
)
from setwise._math.normal_laplace import log_normal_laplace
from setwise._math.padding import INVERSION, Padded, batches
from setwise.aggregates.counts import Counts, noisy_counts
from setwise.distributions import Discrete, double, log_density, map_parameters
from setwise.errors import SetError
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
from setwise.likelihood.aggregate import Pairs
from setwise.likelihood.registry import in_parts
from setwise.sets import Sets

__all__ = ["Noisy"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Noisy(Aggregate):
    """The observation of another aggregate, seen through noise.

    `flip=p`: a discrete y is replaced, with probability p, by one of its other values, each equally
    likely. `normal=s` or `laplace=b`: Gaussian or Laplace noise of that scale is added to every
    entry of y, independently; y must be linear in the targets (`Sum`, `Mean`, `Difference`,
    `Direct`), or `Counts` or `Proportions`. Exactly one of the three is given.

    >>> from setwise import Similarity
    >>> Noisy(Similarity(), flip=0.0).observe([0, 1, 1], [[0, 1], [1, 2]]).y.tolist()
    [0.0, 1.0]
    """

    aggregate: Aggregate
    flip: float | None = None
    normal: float | None = None
    laplace: float | None = None

    not_on_command_line = "give the aggregate as --observe, its noise as --noise laplace=0.5"

    def __post_init__(self) -> None:
        # facts that noise does not change
        for name in ("size", "symmetric", "of_differences", "distinct"):
            object.__setattr__(self, name, getattr(self.aggregate, name))
        kinds = {"flip": self.flip, "normal": self.normal, "laplace": self.laplace}
        given = {name: value for name, value in kinds.items() if value is not None}
        if len(given) != 1:
            raise ValueError(f"give exactly one of flip, normal, laplace; got {given or 'none'}")
        ((name, value),) = given.items()
        if name == "flip":
            if not 0 <= value < 1:
                raise ValueError(f"flip is a probability in [0, 1), got {value}")
            return
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is the scale of the noise, a positive number; got {value}")
        linear = self.aggregate.linear(Sets(np.zeros((0, self.size or 1), np.int64)))
        if not isinstance(self.aggregate, Counts) and (linear is None or linear[1] > 0):
            raise TypeError(
                f"{name} noise can be added to what is linear in the targets (Sum, Mean, "
                f"Difference, Direct) and to Counts and Proportions, but not to "
                f"{type(self.aggregate).__name__}; if its y has a fixed list of values, use flip=p"
            )

    @property
    def bare(self) -> Aggregate:
        return self.aggregate.bare

    @property
    def noise(self) -> Normal | Laplace:
        """The distribution of the added noise."""
        zero = torch.zeros((), dtype=torch.float64)
        if self.normal is not None:
            return Normal(zero, zero + self.normal)
        return Laplace(zero, zero + float(self.laplace or 0.0))

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        y = np.asarray(self.aggregate.apply(z, sets, rng), float).copy()
        if self.flip is None:
            draw = rng.laplace if self.normal is None else rng.normal
            return y + draw(0.0, float(self.noise.scale), y.shape)
        discrete = not z.is_floating_point()
        targets = Targets(int(z.max()) + 1 if discrete else None, discrete)
        for i in np.flatnonzero(rng.random(len(y)) < self.flip):
            others = [v for v in self.values(targets, int(sets.sizes[i])) if v != y[i]]
            y[i] = rng.choice(others) if others else y[i]
        return y

    def outcome(self, targets: Targets, size: int | None) -> Outcome:
        """The same kind for flips; with added noise, numbers."""
        inner = self.aggregate.outcome(targets, size)
        if self.flip is not None:
            return inner
        return replace(inner, noisy=True) if isinstance(inner, PerClass) else Number()

    def values(self, targets: Targets, size: int) -> Sequence[float]:
        """The possible y without noise, which a flip chooses from."""
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
        """As without noise, where it is added: its mean is zero."""
        return None if self.flip is not None else self.aggregate.expected(members, sets)

    def informative(self, targets: Targets, size: int) -> bool:
        """False where every value of y is equally likely whatever the targets are."""
        if self.flip is not None:
            m = len(self.values(targets, size))
            if abs(m - 1 - self.flip * m) <= 1e-9:
                return False
        return self.aggregate.informative(targets, size)

    def with_classes(self, n_classes: int) -> Self:
        return replace(self, aggregate=self.aggregate.with_classes(n_classes))

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return []  # see `checks.noisy_examples`

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        return super().check_y(sets, y) if self.flip is None else self.aggregate.check_y(sets, y)

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float] | None:
        inner = self.aggregate.linear(sets)
        return None if inner is None or self.normal is None else (inner[0], self.normal**2)

    def alike(self, sets: Sets, y: NDArray[Any]) -> Pairs | None:
        """As without noise, as long as most of y is not flipped."""
        mostly = self.flip is not None and self.flip < 0.5
        return self.aggregate.alike(sets, y) if mostly else None


@likelihood(Noisy, Distribution, counts=True)
def _noisy(aggregate: Noisy, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Mixture with the flipped values, or convolution with the noise."""
    inner: Any = aggregate.aggregate
    if aggregate.flip is None:
        add = noisy_counts if isinstance(inner, Counts) else noisy_total
        return add(inner, distribution, sets, y, aggregate.noise)
    targets = Targets.of(distribution)
    sizes, which = np.unique(sets.individuals, return_inverse=True)
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
    aggregate: Aggregate, distribution: Distribution, sets: Sets, y: Tensor, noise: Normal | Laplace
) -> Tensor:
    """log density of y = Σ aₖZₖ + noise, for an aggregate that is linear, in the dtype of y.

    `distribution`, of any family, is batched over the members of the flat `sets` (ragged or not),
    y is a real number per set, and `noise` has location 0 and one positive scale.
    """
    d: Any = double(distribution)
    linear = aggregate.linear(sets)
    assert linear is not None
    factors, seen = torch.from_numpy(linear[0]).to(y.device), y.double()
    law = type(noise)(noise.loc.to(seen), noise.scale.to(seen))

    def padded(which: Ints, part: Sets) -> Tensor:
        members, at = map_parameters(d, part.members), torch.from_numpy(which).to(y.device)
        weights = Padded.of(part.flat).fill(part.members(factors), 0.0)
        return log_density_of_sum(members, weights, part.flat, seen[at], law)

    def alike(which: Ints, part: Sets) -> Tensor:
        members, at = map_parameters(d, part.members), torch.from_numpy(which).to(y.device)
        return _of_one_size(aggregate, members, part.flat, seen[at], law)

    if isinstance(d, Normal):
        out = _noisy_normal(d, factors, sets, seen, law)
    elif isinstance(d, Categorical) and sets.counts is None and _alike_within(linear[0], sets):
        out = _noisy_classes(aggregate, d, factors, sets, seen, law)
    elif sets.size is None and not isinstance(d, Discrete | StudentT | Cauchy):
        out = in_parts(batches(sets, unit=INVERSION), padded)
    elif sets.counts is not None and isinstance(d, Discrete):  # which have one unit for all sets
        out = in_parts(sets.apart(sets.individuals), alike)
    else:
        out = _of_one_size(aggregate, d, sets, seen, law)
    return out.to(y.dtype)


def _alike_within(factors: NDArray[np.float64], sets: Sets) -> bool:
    """Whether all members of a set have one positive weight."""
    first = np.repeat(factors[sets.offsets[:-1]], sets.sizes)
    return bool((np.abs(factors - first) < 1e-12 * first).all())


def _noisy_normal(d: Normal, factors: Tensor, sets: Sets, y: Tensor, law: Any) -> Tensor:
    loc, variance = sets.sum(d.loc * factors), sets.sum((d.scale * factors).square())
    if isinstance(law, Laplace):
        return log_normal_laplace(y - loc, variance.sqrt(), law.scale)
    deviation = (variance + law.scale.square()).sqrt()
    return log_density(Normal(loc, deviation, validate_args=False), y)


def _noisy_classes(
    aggregate: Aggregate, d: Categorical, factors: Tensor, sets: Sets, y: Tensor, law: Any
) -> Tensor:
    """Products of the members' polynomials; a transform where these are long or lose digits."""
    n_classes = d.logits.shape[1]
    unit = factors[sets.tensor("offsets", factors)[:-1]]

    def rule(which: Ints, part: Sets) -> Tensor:
        at, one = torch.from_numpy(which).to(y.device), Padded.of(part.flat)
        if not few_products(one.size, n_classes):
            return y.new_full((len(part),), math.inf)
        v = torch.arange(one.size * (n_classes - 1) + 1, device=y.device)
        log_weight = log_density(law, y[at].unsqueeze(1) - unit[at].unsqueeze(1) * v)
        dense = one.fill(part.members(d.logits), certain(d.logits))
        return log_noisy_class_sum(dense, log_weight)

    out = in_parts(batches(sets, unit=0.03 * n_classes**2, power=2), rule)
    lost = out.detach() == math.inf
    if not lost.any():
        return out
    which = lost.nonzero()[:, 0]
    some = sets.take(which.cpu().numpy())
    again = _of_one_size(aggregate, map_parameters(d, some.members), some.flat, y[which], law)
    return torch.where(lost, 0.0, out).index_copy(0, which, again)


@by_size
def _of_one_size(aggregate: Aggregate, d: Any, sets: Sets, y: Tensor, noise: Any) -> Tensor:
    """By inversion."""
    linear = aggregate.linear(sets)
    assert linear is not None
    factors = sets.dense(torch.from_numpy(linear[0]).to(y.device))
    unit, weights = factors[0, 0], None
    equal = ((factors - unit).abs() < 1e-12 * unit).all(1)  # y is the plain sum in another unit
    if not equal.all():
        if isinstance(d, Discrete):
            at = int((~equal).nonzero()[0])
            raise SetError(
                at,
                f"has members with weights {factors[at].tolist()}: {aggregate!r} of counts or "
                f"classes can have noise only where all members of all sets have one weight; use a "
                f"continuous family",
            )
        unit, weights = torch.ones_like(unit), factors
    law = type(noise)(noise.loc.to(unit) / unit, noise.scale.to(unit) / unit)
    return _noisy_sum(d, weights, sets, y.double() / unit, law) - unit.log()


def _noisy_sum(
    d: Any, weights: Tensor | None, sets: Sets, y: Tensor, noise: Normal | Laplace
) -> Tensor:
    if isinstance(d, Discrete):
        lattice: Any = d
        return log_noisy_lattice(lattice, sets, y, noise)
    heavy = isinstance(d, StudentT | Cauchy)
    engine = log_density_of_heavy_sum if heavy else log_density_of_sum
    return engine(d, weights, sets, y, noise)
