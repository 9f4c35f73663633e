"""Sums with noise added: what `Noisy(…, normal=…)` and `Noisy(…, laplace=…)` compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Cauchy, Distribution, Laplace, Normal, StudentT

from setwise._math.cumulant_inversion import log_density_of_sum, rescaled
from setwise._math.heavy_tailed_sums import log_density_of_heavy_sum
from setwise._math.integer_sums import (
    certain,
    few_products,
    log_noisy_class_sum,
    log_noisy_lattice,
)
from setwise._math.normal_laplace import log_normal_laplace
from setwise._math.padding import INVERSION, Padded, batches
from setwise.distributions import Discrete, double, log_density, map_parameters
from setwise.errors import SetError
from setwise.likelihood import Aggregate
from setwise.likelihood.registry import in_parts
from setwise.sets import Sets

__all__ = ["noisy_total"]

Ints = NDArray[np.int64]


def noisy_total(
    aggregate: Aggregate, distribution: Distribution, sets: Sets, y: Tensor, noise: Normal | Laplace
) -> Tensor:
    """log density of y = Σ aₖZₖ + noise, for an aggregate that is linear, in the dtype of y.

    `distribution`, of any family, is batched over the members of the flat `sets` (ragged or not),
    y is a real number per set, and `noise` has location 0 and one scale, for all sets or for each.
    """
    d: Any = double(distribution)
    linear = aggregate.linear(sets)
    assert linear is not None
    factors, seen = torch.from_numpy(linear[0]).to(y.device), y.double()
    scale = noise.scale.to(seen).expand(len(sets))

    def padded(which: Ints, part: Sets) -> Tensor:
        members, at = map_parameters(d, part.members), torch.from_numpy(which).to(y.device)
        weights = Padded.of(part.flat).fill(part.members(factors), 0.0)
        law = rescaled(noise, scale[at])
        return log_density_of_sum(members, weights, part.flat, seen[at], law)

    def of_one_size(which: Ints, part: Sets) -> Tensor:
        members, at = map_parameters(d, part.members), torch.from_numpy(which).to(y.device)
        law = rescaled(noise, scale[at])
        return _of_one_size(aggregate, members, part.flat, seen[at], law)

    if isinstance(d, Normal):
        out = _noisy_normal(d, factors, sets, seen, rescaled(noise, scale))
    elif isinstance(d, Categorical) and sets.counts is None and _alike_within(linear[0], sets):
        out = _noisy_classes(aggregate, d, factors, sets, seen, rescaled(noise, scale))
    elif sets.size is None and not isinstance(d, Discrete | StudentT | Cauchy):
        out = in_parts(batches(sets, unit=INVERSION), padded)
    else:  # discrete targets have one unit in all sets
        key = sets.sizes if sets.counts is None else sets.sizes + 1j * sets.individuals
        out = in_parts(sets.apart(key), of_one_size)
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
        own = rescaled(law, law.scale[at].unsqueeze(1))
        log_weight = log_density(own, y[at].unsqueeze(1) - unit[at].unsqueeze(1) * v)
        dense = one.fill(part.members(d.logits), certain(d.logits))
        return log_noisy_class_sum(dense, log_weight)

    out = in_parts(batches(sets, unit=0.03 * n_classes**2, power=2), rule)
    lost = out.detach() == math.inf
    if not lost.any():
        return out
    which = lost.nonzero()[:, 0]
    some = sets.take(which.cpu().numpy())

    def again_of(at: Ints, part: Sets) -> Tensor:
        own, members = which[torch.from_numpy(at).to(y.device)], map_parameters(d, part.members)
        return _of_one_size(aggregate, members, part.flat, y[own], rescaled(law, law.scale[own]))

    again = in_parts(some.by_size(), again_of)
    return torch.where(lost, 0.0, out).index_copy(0, which, again)


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
    law = rescaled(noise, noise.scale / unit)
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
