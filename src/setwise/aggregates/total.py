"""Sums and means of a set's targets, weighted or not, and how likely they are."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
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
from setwise._math.integer_sums import log_probability_of_class_sum
from setwise.distributions import Continuous, double, family_of, log_density
from setwise.errors import SetError
from setwise.likelihood import Aggregate, Number, Targets, by_size, likelihood
from setwise.sets import Sets

__all__ = ["Mean", "Sum", "WeightedTotal", "as_count", "member_weights"]


@dataclass(frozen=True)
class WeightedTotal(Aggregate):
    """Σ wₖZₖ over some divisor; the weights are those of the sets, by default 1."""

    identity_at_one = True

    @abstractmethod
    def divisor(self, sets: Sets) -> NDArray[np.float64] | None:
        """What the weighted sum of each set is divided by; None for 1."""

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        """The weighted sum of each set over its divisor."""
        total = sets.sum(z if sets.weights is None else z * torch.from_numpy(sets.weights))
        divisor = self.divisor(sets)
        return total.double().numpy() / (1.0 if divisor is None else divisor)

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float]:
        """The weights over the divisor."""
        weights = np.ones(len(sets.indices)) if sets.weights is None else sets.weights
        divisor = self.divisor(sets)
        return weights if divisor is None else weights / np.repeat(divisor, sets.sizes), 0.0

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """One finite number per set; weights that leave nothing to observe are an error."""
        self.divisor(sets)
        _weight_sums(sets, np.abs, self)
        return super().check_y(sets, y)


@dataclass(frozen=True)
class Sum(WeightedTotal):
    """The sum of the targets, y = Σ wₖZₖ.

    In closed form for normal, Cauchy and Poisson targets (and gamma, exponential or negative
    binomial ones that share their rate), by inversion of the characteristic function along a
    saddle-point contour otherwise, which keeps its relative accuracy in the tails. Counts and
    classes need weights of 1; a y that is not a whole number is then impossible (−inf).

    >>> from setwise import Sets
    >>> Sum().observe([1.0, 2.0, 4.0], Sets([[0, 1], [1, 2]], weights=[1, 1, 1, -1])).y.tolist()
    [3.0, -2.0]

    Zhang et al., "Learning from aggregate observations", NeurIPS 2020.
    """

    def divisor(self, sets: Sets) -> None:
        """No division."""

    def outcome(self, targets: Targets, size: int | None) -> Number:
        """A number; 0, …, size · (n_classes − 1) for classes."""
        if targets.n_classes is None or size is None:
            return Number()
        return Number(range(size * (targets.n_classes - 1) + 1))


@dataclass(frozen=True)
class Mean(WeightedTotal):
    """The mean of the targets, y = Σ wₖZₖ / Σ wₖ.

    Its density is that of the sum at y·Σw, times |Σw|; see `Sum`. Counts and classes need equal
    weights within a set, and a y that is not a multiple of 1/K is then impossible (−inf).

    >>> Mean().observe([1.0, 2.0, 4.0], [[0, 1], [1, 2]]).y.tolist()
    [1.5, 3.0]

    Zhang et al., "Learning from aggregate observations", NeurIPS 2020.
    """

    def divisor(self, sets: Sets) -> NDArray[np.float64]:
        """The sum of the weights."""
        if sets.weights is None:
            return sets.sizes.astype(np.float64)
        return _weight_sums(sets, lambda w: w, self)

    def outcome(self, targets: Targets, size: int | None) -> Number:
        """A number; 0, 1/size, …, n_classes − 1 for classes."""
        if targets.n_classes is None or size is None:
            return Number()
        return Number([v / size for v in range(size * (targets.n_classes - 1) + 1)])


def _weight_sums(sets: Sets, of: Any, aggregate: Aggregate) -> NDArray[np.float64]:
    if sets.weights is None or not len(sets):
        return sets.sizes.astype(np.float64)
    sums: NDArray[np.float64] = np.add.reduceat(of(sets.weights), sets.offsets[:-1])
    if (sums == 0).any():
        at = int((sums == 0).argmax())
        raise SetError(
            at,
            f"has weights that add up to 0, so {aggregate!r} of it is not defined: change the "
            f"weights or drop the set",
        )
    return sums


# ---- what the rules share


def member_weights(sets: Sets, like: Tensor) -> Tensor | None:
    """The weights of the members in the dtype of `like`; None where the sets have none."""
    return None if sets.weights is None else sets.tensor("weights", like)


def _as_sum(aggregate: WeightedTotal, sets: Sets, y: Tensor) -> tuple[Tensor, Tensor | float]:
    """The weighted sum that was observed, and the log of the density's change of scale."""
    divisor = aggregate.divisor(sets)
    if divisor is None:
        return y, 0.0
    by = torch.from_numpy(divisor).to(y)
    return y * by, by.abs().log()


def as_count(aggregate: WeightedTotal, sets: Sets, y: Tensor) -> tuple[Tensor, Tensor]:
    """The observed sum of whole numbers (0 where impossible), and whether it is possible."""
    weights = sets.weights
    if weights is not None:
        first = np.repeat(weights[sets.offsets[:-1]], sets.sizes)
        equal = weights == (1 if isinstance(aggregate, Sum) else first)
        if not equal.all():
            at = int((~equal).argmax())
            needed = "weights of 1" if isinstance(aggregate, Sum) else "equal weights within a set"
            raise SetError(
                sets.set_ids[at],
                f"has a member with weight {weights[at]:g}: {aggregate!r} of counts or classes "
                f"needs {needed}; drop the weights, or use a continuous family",
            )
    v = y.double() if isinstance(aggregate, Sum) else y.double() * sets.tensor("sizes", y)
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


def _shared_weight(sets: Sets, like: Tensor) -> Tensor | float | None:
    """The one positive weight that all members of a set have, by set; None where there is none."""
    weights = member_weights(sets, like)
    if weights is None:
        return 1.0
    one = _shared(weights, sets)
    return one if one is not None and bool((one > 0).all()) else None


# ---- closed forms


@likelihood(WeightedTotal, Normal)
def _normal(aggregate: WeightedTotal, distribution: Normal, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: normal again."""
    total, scale = _as_sum(aggregate, sets, y)
    loc, variance = _normal_sum(distribution, sets)
    z = (total - loc) * variance.rsqrt()
    return scale - 0.5 * (z * z + variance.log() + math.log(2 * math.pi))


def _normal_sum(d: Normal, sets: Sets) -> tuple[Tensor, Tensor]:
    """Mean and variance of the weighted sum."""
    weights = member_weights(sets, d.loc)
    if weights is not None:
        return sets.sum(d.loc * weights), sets.sum((d.scale * weights).square())
    if d.scale.stride(0) == 0:
        return sets.sum(d.loc), d.scale[0].square() * sets.tensor("sizes", d.loc)
    return sets.sum(d.loc), sets.sum(d.scale.square())


@likelihood(WeightedTotal, Cauchy)
def _cauchy(aggregate: WeightedTotal, distribution: Cauchy, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: Cauchy again, the scales added."""
    total, scale = _as_sum(aggregate, sets, y)
    return log_density(_cauchy_sum(distribution, sets), total) + scale


def _cauchy_sum(d: Cauchy, sets: Sets) -> Cauchy:
    weights = member_weights(sets, d.loc)
    loc = d.loc if weights is None else d.loc * weights
    width = d.scale if weights is None else d.scale * weights.abs()
    return Cauchy(sets.sum(loc), sets.sum(width), validate_args=False)


@likelihood(WeightedTotal, Poisson)
def _poisson(aggregate: WeightedTotal, distribution: Poisson, sets: Sets, y: Tensor) -> Tensor:
    """Closed form: Poisson again, the rates added."""
    count, possible = as_count(aggregate, sets, y)
    d = Poisson(sets.sum(distribution.rate), validate_args=False)
    return torch.where(possible, log_density(d, count.to(y.dtype)), -math.inf)


# ---- closed forms where members share a parameter, inversion elsewhere


@likelihood(WeightedTotal, Exponential)
def _exponential(
    aggregate: WeightedTotal, distribution: Exponential, sets: Sets, y: Tensor
) -> Tensor:
    """Closed form (Erlang) for one rate, else inversion along a saddle-point contour."""
    shape = torch.ones_like(distribution.rate[:1]).expand_as(distribution.rate)
    return _gamma_sum(aggregate, distribution, shape, sets, y)


@likelihood(WeightedTotal, Gamma)
def _gamma(aggregate: WeightedTotal, distribution: Gamma, sets: Sets, y: Tensor) -> Tensor:
    """Closed form (gamma) for one rate, else inversion along a saddle-point contour."""
    return _gamma_sum(aggregate, distribution, distribution.concentration, sets, y)


def _gamma_sum(
    aggregate: WeightedTotal, d: Exponential | Gamma, shape: Tensor, sets: Sets, y: Tensor
) -> Tensor:
    total, scale = _as_sum(aggregate, sets, y)
    rate, weight = _shared(d.rate, sets), _shared_weight(sets, d.rate)
    if rate is None or weight is None:
        return _inverted(aggregate, d, sets, total).to(y.dtype) + scale
    one = Gamma(sets.sum(shape), rate / weight, validate_args=False)
    # A single exponential is possible at 0, where the gamma density is only a limit.
    single = sets.tensor("sizes", y) == 1
    at_zero = torch.where(
        single & (total == 0) & (one.concentration == 1), one.rate.log(), -math.inf
    )
    inside = total > 0
    return torch.where(inside, log_density(one, torch.where(inside, total, 1.0)), at_zero) + scale


@likelihood(WeightedTotal, Continuous)
def _continuous(
    aggregate: WeightedTotal, distribution: Distribution, sets: Sets, y: Tensor
) -> Tensor:
    """Inversion of the characteristic function along a saddle-point contour."""
    total, scale = _as_sum(aggregate, sets, y)
    return _inverted(aggregate, distribution, sets, total).to(y.dtype) + scale


@likelihood(WeightedTotal, StudentT, exact=False)
def _student(aggregate: WeightedTotal, distribution: StudentT, sets: Sets, y: Tensor) -> Tensor:
    """Integral around the cut of the transform; relative error 1e-9 for df up to 100."""
    return _continuous(aggregate, distribution, sets, y)


@by_size
def _inverted(aggregate: WeightedTotal, d: Distribution, sets: Sets, total: Tensor) -> Tensor:
    """log density of Σ wₖZₖ at `total`."""
    weights = member_weights(sets, total)
    if sets.size == 1:
        if weights is None:
            return log_density(d, total).double()
        return (log_density(d, total / weights) - weights.abs().log()).double()
    total = total.double()
    if weights is not None:
        weights = sets.dense(sets.tensor("weights", total))
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


@likelihood(WeightedTotal, NegativeBinomial)
def _negative_binomial(
    aggregate: WeightedTotal, distribution: NegativeBinomial, sets: Sets, y: Tensor
) -> Tensor:
    """Closed form for one success probability, else a saddle-point contour."""
    count, possible = as_count(aggregate, sets, y)
    logits = _shared(distribution.logits, sets)
    if logits is not None:
        d = NegativeBinomial(sets.sum(distribution.total_count), logits=logits, validate_args=False)
        out = log_density(d, count.to(y.dtype))
    else:
        out = _counted(aggregate, distribution, sets, count).to(y.dtype)
    return torch.where(possible, out, -math.inf)


@by_size
def _counted(aggregate: WeightedTotal, d: NegativeBinomial, sets: Sets, count: Tensor) -> Tensor:
    if sets.size == 1:
        return log_density(double(d), count)
    none = sets.sum(log_density(double(d), torch.zeros_like(d.logits)))
    positive = count > 0
    some = log_density_of_sum(d, None, sets, torch.where(positive, count, 1.0))
    return torch.where(positive, some, none)


@likelihood(WeightedTotal, Categorical)
def _categorical(
    aggregate: WeightedTotal, distribution: Categorical, sets: Sets, y: Tensor
) -> Tensor:
    """Coefficient of the product of the members' polynomials, by a tilted Fourier sum."""
    count, possible = as_count(aggregate, sets, y)
    out = _classes(aggregate, distribution, sets, count).to(y.dtype)
    return torch.where(possible, out, -math.inf)


@by_size
def _classes(aggregate: WeightedTotal, d: Categorical, sets: Sets, count: Tensor) -> Tensor:
    logits = sets.dense(d.logits)
    _, size, n_classes = logits.shape
    inside = count <= size * (n_classes - 1)
    count = torch.where(inside, count, 0.0)
    if size == 1:
        out = log_density(d, count)
    else:
        out = log_probability_of_class_sum(logits.double(), count)
    return torch.where(inside, out, -math.inf)
