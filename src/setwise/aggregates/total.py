"""Sums and means of a set's targets, weighted or not, and how likely they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import (
    Categorical,
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
)

from setwise._math.cumulant_inversion import log_density_of_sum
from setwise._math.heavy_tailed_sums import log_density_of_heavy_sum
from setwise._math.integer_sums import (
    certain,
    log_probability_of_class_sum,
    log_probability_of_counted_sum,
)
from setwise._math.padding import INVERSION, Padded, batches
from setwise.distributions import Continuous, double, family_of, log_density, map_parameters
from setwise.errors import check_each
from setwise.likelihood import Aggregate, Number, Targets, likelihood
from setwise.likelihood.registry import in_parts
from setwise.sets import Sets

__all__ = ["Mean", "Sum"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of the targets, y = Σ wₖZₖ; the weights are those of the sets, by default 1.

    In closed form for normal, Cauchy and Poisson targets (and gamma, exponential or negative
    binomial ones that share their rate), by inversion of the characteristic function along a
    saddle-point contour otherwise, which keeps its relative accuracy in the tails. Counts and
    classes need weights of 1; a y that is not a whole number is then impossible (−inf).

    >>> from setwise import Sets
    >>> Sum().observe([1.0, 2.0, 4.0], Sets([[0, 1], [1, 2]], weights=[1, 1, 1, -1])).y.tolist()
    [3.0, -2.0]

    Zhang et al., "Learning from aggregate observations", NeurIPS 2020.
    """

    averaged: ClassVar[bool] = False  # divided by the sum of the weights
    identity_at_one = True

    def divisor(self, sets: Sets) -> NDArray[np.float64] | None:
        """The number that the weighted sum of each set is divided by; None for 1."""
        return self._weight_sums(sets, sets.weights) if self.averaged else None

    def _weight_sums(self, sets: Sets, weights: Any) -> NDArray[np.float64]:
        if weights is None or not len(sets):
            return sets.individuals.astype(np.float64)
        each = weights if sets.counts is None else weights * sets.counts
        sums: NDArray[np.float64] = np.add.reduceat(each, sets.offsets[:-1])
        check_each(
            sums != 0,
            lambda at: (
                f"has weights that add up to 0, so {self!r} of it is not defined: change the "
                f"weights or drop the set"
            ),
        )
        return sums

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        total = sets.sum(z if sets.weights is None else z * torch.from_numpy(sets.weights))
        divisor = self.divisor(sets)
        return total.double().numpy() / (1.0 if divisor is None else divisor)

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float]:
        equal = sets.size is not None and sets.counts is None
        if sets.weights is None and (equal or not self.averaged):  # one number for all members
            one = np.full(1, 1 / sets.size if self.averaged and sets.size else 1.0)
            return as_strided(one, (len(sets.indices),), (0,)), 0.0
        weights = np.ones(len(sets.indices)) if sets.weights is None else sets.weights
        divisor = self.divisor(sets)
        return weights if divisor is None else weights / np.repeat(divisor, sets.sizes), 0.0

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """One finite number per set; weights that add up to 0 are an error."""
        self.divisor(sets)
        self._weight_sums(sets, None if sets.weights is None else np.abs(sets.weights))
        return super().check_y(sets, y)

    def outcome(self, targets: Targets, size: int | None) -> Number:
        if targets.n_classes is None or size is None:
            return Number()
        divisor = size if self.averaged else 1
        return Number([v / divisor for v in range(size * (targets.n_classes - 1) + 1)])


@dataclass(frozen=True)
class Mean(Sum):
    """The mean of the targets, y = Σ wₖZₖ / Σ wₖ.

    Its density is that of the sum at y·Σw, times |Σw|; see `Sum`. Counts and classes need equal
    weights within a set, and a y that is not a multiple of 1/K is then impossible (−inf).

    >>> Mean().observe([1.0, 2.0, 4.0], [[0, 1], [1, 2]]).y.tolist()
    [1.5, 3.0]

    Zhang et al., "Learning from aggregate observations", NeurIPS 2020.
    """

    averaged = True


# ---- what the rules share


def _member_weights(sets: Sets, like: Tensor) -> Tensor | None:
    """The weights of the members in the dtype of `like`; None where the sets have none."""
    return None if sets.weights is None else sets.tensor("weights", like)


def _as_sum(aggregate: Sum, sets: Sets, y: Tensor) -> tuple[Tensor, Tensor | float]:
    """The weighted sum that was observed, and the log of the density's change of scale."""
    if not aggregate.averaged:
        return y, 0.0
    by = (
        sets.n_individuals(y)
        if sets.weights is None
        else torch.from_numpy(aggregate.divisor(sets)).to(y)
    )
    return y * by, by.abs().log() if isinstance(by, Tensor) else math.log(by)


def _as_count(aggregate: Sum, sets: Sets, y: Tensor) -> tuple[Tensor, Tensor]:
    """The observed sum of whole numbers (0 where impossible), and whether it is possible."""
    weights = sets.weights
    if weights is not None:
        first = np.repeat(weights[sets.offsets[:-1]], sets.sizes)
        needed = "equal weights within a set" if aggregate.averaged else "weights of 1"
        check_each(
            weights == (first if aggregate.averaged else 1),
            lambda at: (
                f"has a member with weight {weights[at]:g}: {aggregate!r} of counts or classes "
                f"needs {needed}; drop the weights, or use a continuous family"
            ),
            sets.set_ids,
        )
    v = y.double() * sets.tensor("individuals", y) if aggregate.averaged else y.double()
    whole = v.round()
    possible = ((v - whole).abs() <= 1e-6 * v.abs().clamp(min=1)) & (whole >= 0)
    return torch.where(possible, whole, 0.0), possible


def _shared(value: Tensor, sets: Sets) -> Tensor | None:
    """The one value that all members of a set have, by set; None where members have their own."""
    if value.stride(0) == 0:
        return value[:1].expand(len(sets))
    if value.requires_grad:
        return None
    first = value[sets.tensor("offsets", value)[:-1]]
    return first if bool((value == sets.repeat(first)).all()) else None


# ---- closed forms


@likelihood(Sum, Normal, counts=True)
def _normal(aggregate: Sum, distribution: Normal, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: normal again."""
    total, scale = _as_sum(aggregate, sets, y)
    loc, spread, weights = distribution.loc, distribution.scale, _member_weights(sets, y)
    if weights is not None:
        loc, spread = loc * weights, spread * weights
    if spread.stride(0) == 0:  # one number for all rows
        variance = spread[0].square() * sets.n_individuals(y)
    else:
        variance = sets.sum(spread.square())
    z = (total - sets.sum(loc)) * variance.rsqrt()
    return scale - 0.5 * (z * z + variance.log() + math.log(2 * math.pi))


@likelihood(Sum, Cauchy, counts=True)
def _cauchy(aggregate: Sum, distribution: Cauchy, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: Cauchy again, the scales added."""
    total, scale = _as_sum(aggregate, sets, y)
    weights = _member_weights(sets, y)
    loc, width = distribution.loc, distribution.scale
    if weights is not None:
        loc, width = loc * weights, width * weights.abs()
    return log_density(Cauchy(sets.sum(loc), sets.sum(width), validate_args=False), total) + scale


@likelihood(Sum, Poisson, counts=True)
def _poisson(aggregate: Sum, distribution: Poisson, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: Poisson again, the rates added."""
    count, possible = _as_count(aggregate, sets, y)
    d = Poisson(sets.sum(distribution.rate), validate_args=False)
    return torch.where(possible, log_density(d, count.to(y.dtype)), -math.inf)


# ---- closed forms where members share a parameter, inversion elsewhere


@likelihood(Sum, Exponential, counts=True)
@likelihood(Sum, Gamma, counts=True)
def _gamma(aggregate: Sum, distribution: Any, sets: Sets, y: Tensor) -> Tensor:
    """Closed form (gamma) for one rate, else inversion along a saddle-point contour."""
    rate, weights = _shared(distribution.rate, sets), _member_weights(sets, y)
    if rate is not None and weights is not None:
        weight = _shared(weights, sets)
        rate = None if weight is None or not (weight > 0).all() else rate / weight
    if rate is None:
        return _continuous(aggregate, distribution, sets, y)
    total, scale = _as_sum(aggregate, sets, y)
    if isinstance(distribution, Gamma):
        shape = sets.sum(distribution.concentration)
    else:
        shape = sets.tensor("individuals", y).to(rate.dtype)
    one = Gamma(shape, rate, validate_args=False)
    # A single exponential is possible at 0, where the gamma density is only a limit.
    single = sets.tensor("individuals", y) == 1
    at_zero = torch.where(
        single & (total == 0) & (one.concentration == 1), one.rate.log(), -math.inf
    )
    inside = total > 0
    return torch.where(inside, log_density(one, torch.where(inside, total, 1.0)), at_zero) + scale


@likelihood(Sum, Continuous, counts=True)
def _continuous(aggregate: Sum, distribution: Any, sets: Sets, y: Tensor) -> Tensor:
    """Inversion of the characteristic function along a saddle-point contour."""
    total, scale = _as_sum(aggregate, sets, y)

    def rule(which: Ints, part: Sets) -> Tensor:
        members = map_parameters(distribution, part.members)
        return _inverted(members, part.flat, total[torch.from_numpy(which).to(y.device)])

    if isinstance(distribution, StudentT):
        parts = sets.apart(np.where(sets.individuals == 1, 0, sets.sizes))
    else:
        parts = batches(sets, unit=INVERSION, apart=1)
    return in_parts(parts, rule).to(y.dtype) + scale


@likelihood(Sum, StudentT, exact=False, counts=True)
def _student(aggregate: Sum, distribution: StudentT, sets: Sets, y: Tensor) -> Tensor:
    """Integral around the cut of the transform; relative error 1e-9 for df up to 100."""
    return _continuous(aggregate, distribution, sets, y)


def _inverted(d: Distribution, sets: Sets, total: Tensor) -> Tensor:
    """log density of Σ wₖZₖ at `total`."""
    weights = _member_weights(sets, total)
    if sets.individuals[0] == 1:
        if weights is None:
            return log_density(d, total).double()
        return (log_density(d, total / weights) - weights.abs().log()).double()
    total = total.double()
    if weights is not None:
        weights = Padded.of(sets).fill(sets.tensor("weights", total), 0.0)
    if isinstance(d, StudentT):
        return log_density_of_heavy_sum(d, weights, sets, total)
    if not family_of(d).positive:
        return log_density_of_sum(d, weights, sets, total)
    if weights is None:
        inside = total > 0
    else:  # a set with negative weights only is the mirror image of one with positive ones
        mirror = torch.where((weights <= 0).all(1), -1.0, 1.0).to(total)
        weights, total = weights * mirror.unsqueeze(1), total * mirror
        inside = (total > 0) | (weights < 0).any(1)
    out = log_density_of_sum(d, weights, sets, torch.where(inside, total, 1.0))
    return torch.where(inside, out, -math.inf)


@likelihood(Sum, NegativeBinomial, counts=True)
def _negative_binomial(
    aggregate: Sum, distribution: NegativeBinomial, sets: Sets, y: Tensor
) -> Tensor:
    """Closed form for one success probability, else a saddle-point contour."""
    count, possible = _as_count(aggregate, sets, y)
    logits = _shared(distribution.logits, sets)
    if logits is not None:
        d = NegativeBinomial(sets.sum(distribution.total_count), logits=logits, validate_args=False)
        out = log_density(d, count.to(y.dtype))
    else:
        out = _counted(distribution, sets, count).to(y.dtype)
    return torch.where(possible, out, -math.inf)


def _counted(distribution: NegativeBinomial, sets: Sets, count: Tensor) -> Tensor:
    def rule(which: Ints, part: Sets) -> Tensor:
        at = torch.from_numpy(which).to(count.device)
        d: Any = double(map_parameters(distribution, part.members))
        if part.individuals[0] == 1:
            return log_density(d, count[at])
        none = part.flat.sum(log_density(d, torch.zeros_like(d.logits)))
        positive = count[at] > 0
        some = log_density_of_sum(d, None, part.flat, torch.where(positive, count[at], 1.0))
        return torch.where(positive, some, none)

    return in_parts(batches(sets, unit=INVERSION, apart=1), rule)


@likelihood(Sum, Categorical, counts=True)
def _categorical(aggregate: Sum, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Coefficient of the product of the members' polynomials, or of a tilted Fourier sum."""
    count, possible = _as_count(aggregate, sets, y)
    logits = distribution.logits.double()
    n_classes = logits.shape[1]
    possible = possible & (count <= sets.tensor("individuals", count) * (n_classes - 1))
    count = torch.where(possible, count, 0.0)

    def rule(which: Ints, part: Sets) -> Tensor:
        at, one = torch.from_numpy(which).to(count.device), Padded.of(part.flat)
        dense = one.fill(part.members(logits), certain(logits))
        if part.counts is not None:
            times = one.fill(part.flat.tensor("counts", count), 0.0)
            return log_probability_of_counted_sum(dense, times, count[at])
        sizes = None if part.size is not None else part.tensor("sizes", count)
        return log_probability_of_class_sum(dense, count[at], sizes)

    out = in_parts(batches(sets, unit=0.03 * n_classes**2, power=2), rule)
    return torch.where(possible, out.to(y.dtype), -math.inf)
