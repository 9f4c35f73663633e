"""The distribution of each member's target given its set's y.

Gradients are posteriors: for a family with natural parameter η and sufficient statistic z,
∂ log p(y)/∂η_k = E[Z_k | y] − E[Z_k], and the second derivative is the change of the variance. So
every likelihood rule also gives posteriors, as exact as the rule itself. What depends on the family
(`natural`, `tilted`) is in the family's own file.
"""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution

from setwise.distributions import double, family_of, has_mean, map_parameters, parameters
from setwise.errors import SetError
from setwise.likelihood import evaluate
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Posterior", "expectation", "posterior"]

Floats = NDArray[np.float64]
MOST = 64  # members of the largest set for which a second derivative is taken at each of them
CHUNK = 1 << 16  # members, in all copies of the sets, that are evaluated at once


@dataclasses.dataclass(frozen=True, repr=False)
class Posterior:
    """The posterior of each member, in member order: entry i is about row `sets.indices[i]`.

    Of a member that stands for several individuals it is that of any one of them. Numbers have a
    `mean` and a `std` (None where it is not available), both (members,); classes have `probs`,
    (members, C). Where members of a set share a `RandomEffect`, `effect` and `effect_std` are the
    mean and standard deviation of each set's own shift: (sets,), of the location, the log mean or
    the log odds of class 1 against 0; of three classes (sets, 3), of the logits.
    """

    sets: Sets
    mean: Floats | None = None
    std: Floats | None = None
    probs: Floats | None = None
    effect: Floats | None = None
    effect_std: Floats | None = None

    def __repr__(self) -> str:
        if self.probs is not None:
            return f"Posterior({self.sets!r}, probabilities of {self.probs.shape[1]} classes)"
        return f"Posterior({self.sets!r}, mean{'' if self.std is None else ' and std'})"


def posterior(
    observations: Observations, distribution: Distribution, alignment: Any = None
) -> Posterior:
    """The distribution of each member's target given its set's y.

    `distribution` has one entry per row, as in `log_likelihood`. The standard deviation is computed
    for normal targets, and in sets of up to 64 members for other exponential families. The mean
    of Laplace, logistic, Gumbel and Student targets is an integral over likelihoods at other
    locations, to about three digits. `alignment`, where given, is applied to the result.

    >>> import setwise as sw
    >>> rows = td.Normal(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3))
    >>> after = posterior(sw.Observations(sw.Mean(), [[0, 1]], [3.5]), rows)
    >>> after.mean.round(3).tolist(), after.std.round(3).tolist()
    ([3.0, 4.0], [0.707, 0.707])
    """
    sets = observations.sets
    d = map_parameters(double(distribution), lambda p: sets.members(p.detach()))
    values, std, each, shift = _mixture(observations, d)
    bad = ~each.isfinite()
    if bad.any():
        at = int(bad.nonzero()[0, 0])
        y = None if observations.y is None else np.asarray(observations.y[at]).tolist()
        raise SetError(
            at,
            f"has y = {y}, which is impossible for its members (log-likelihood "
            f"{float(each[at]):g}): check y, or leave this set out",
        )
    found, wide = values.numpy(), None if std is None else std.numpy()
    effect = (None, None) if shift is None else tuple(part.numpy() for part in shift)
    if isinstance(d, td.Categorical):
        found = found if alignment is None else alignment.probs(found)
        return Posterior(sets, None, None, found, *effect)
    if alignment is not None:
        found, wide = alignment.values(found), None if wide is None else alignment.spread(wide)
    return Posterior(sets, found, wide, None, *effect)


def _mixture(
    o: Observations, d: Distribution
) -> tuple[Tensor, Tensor | None, Tensor, tuple[Tensor, Tensor] | None]:
    """`_moments`, over what the members of a set may share; mean and deviation of that as well."""
    with torch.no_grad():
        parts = o.aggregate.conditioned(d, o.sets.flat, _tensor(o.y))
    if not parts:
        return *_moments(o, d, spread=True), None
    with torch.no_grad():
        each = evaluate(o.aggregate, d, o.sets, o.y)
    firsts, seconds = [], []
    for part in parts:
        one = Observations._trusted(part.aggregate, o.sets, o.y, o.weight, o.by)
        values, std, _ = _moments(one, part.members, spread=True)
        weight = o.sets.repeat(part.weight)
        firsts.append(values * weight.reshape(-1, *[1] * (values.ndim - 1)))
        if std is not None:
            seconds.append((std.square() + values.square()) * weight)
    mean = torch.stack(firsts).sum(0)
    square = torch.stack(seconds).sum(0) - mean.square() if seconds else None
    weights = torch.stack([part.weight for part in parts])[..., None]
    shifts = torch.stack([family_of(d).effect(d, part.shift) for part in parts])
    middle = (weights * shifts).sum(0)
    width = (weights * (shifts - middle).square()).sum(0).sqrt()
    deviation = None if square is None else square.clamp(min=0).sqrt()
    return mean, deviation, each, (middle.squeeze(1), width.squeeze(1))


def _tensor(y: Any) -> Tensor | None:
    return None if y is None else torch.as_tensor(y).double()


def expectation(observations: Observations, members: Distribution) -> tuple[Tensor, Tensor]:
    """E[Z_k | y] (probabilities for classes) of each *member*, and log p(y) of each set.

    `members` is in float64, without gradients, one entry per member. An impossible y is not an
    error: its log-likelihood is −inf or NaN.
    """
    values, _, each = _moments(observations, members, spread=False)
    return values, each


def _moments(
    o: Observations, d: Distribution, spread: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Means (or probabilities), standard deviations if `spread` and computable, and log p(y)."""
    sets, single = o.sets.flat.singled()
    if not single.all():  # those of one individual of each member
        alone = Observations._trusted(o.aggregate, sets, o.y, o.weight, o.by)
        values, std, each = _moments_of(alone, map_parameters(d, sets.members), spread)
        at = torch.from_numpy(single)
        return values[at], None if std is None else std[at], each
    return _moments_of(o, d, spread)


def _moments_of(
    o: Observations, d: Distribution, spread: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    family = family_of(d)
    if not has_mean(d):
        raise TypeError(
            f"{family.__name__} targets have no mean, and so their posterior has none: choose a "
            f"family with lighter tails, such as Normal() or StudentT()"
        )
    natural = family.natural(d)
    if natural is None:
        values, each = _from_tilted(o, d)
        return values, None, each
    eta, member = natural
    classes = isinstance(d, td.Categorical)
    squares = spread and not classes and eta.shape[1] == 2
    small = int(o.sets.sizes.max(initial=0)) <= MOST
    hessian = spread and small and not classes and not squares
    with torch.enable_grad():
        leaf = eta.detach().clone().requires_grad_()
        each = evaluate(o.aggregate, member(leaf), o.sets, o.y)
        slope = _grad(each.sum(), leaf, create_graph=hessian)
        change = slope.detach()
        if classes:
            probs = (d.probs + change).clamp(min=0.0)  # type: ignore[attr-defined]
            return probs / probs.sum(-1, keepdim=True), None, each.detach()
        variance = None
        if squares:
            variance = d.variance + change[:, 1] - change[:, 0] ** 2
        elif hessian:
            variance = d.variance + _diagonal(slope, leaf, o.sets).squeeze(1)
    std = None if variance is None else variance.clamp(min=0).sqrt()
    return d.mean + change[:, 0], std, each.detach()


def _grad(value: Tensor, leaf: Tensor, create_graph: bool = False) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    return torch.autograd.grad(
        value, leaf, create_graph=create_graph, retain_graph=True, materialize_grads=True
    )[0]


def _diagonal(slope: Tensor, leaf: Tensor, sets: Sets) -> Tensor:
    """The second derivative at each member: one product for all members at the same position."""
    position = _positions(sets)
    out = torch.zeros_like(leaf)
    for k in range(int(sets.sizes.max(initial=0))):
        here = torch.from_numpy(position == k)
        out[here] = _grad(slope[here].sum(), leaf)[here]
    return out


def _from_tilted(o: Observations, d: Distribution) -> tuple[Tensor, Tensor]:
    """E[Z_k | y] from the likelihoods L_j with p_j in place of the density of member k; log p(y).

    Where z p(z) = E[Z] p(z) + Σ c_j (p_j(z) − p(z)), multiplying by p(y | Z_k = z) and integrating
    gives E[Z_k | y] = E[Z_k] + Σ c_j (L_j/L − 1).
    """
    family, own = family_of(d), parameters(d)
    others = family.tilted(d)
    if others is None:
        raise TypeError(
            f"the posterior of {family.__name__} targets cannot be computed: give the family a "
            f"method `natural` or `tilted`"
        )
    sets, position = o.sets, torch.from_numpy(_positions(o.sets))
    n_sets, n_members = len(sets), len(sets.indices)
    step = max(1, CHUNK // max(n_members, 1))
    make: Any = type(d)
    with torch.no_grad():
        base = evaluate(o.aggregate, d, sets, o.y)
        change = torch.zeros_like(d.mean)
        while some := list(islice(others, step)):
            many = o.take(np.tile(np.arange(n_sets), len(some)))
            weights = torch.stack([weight.expand(n_members) for _, weight in some])
            for k in range(int(sets.sizes.max(initial=0))):
                here = position == k
                moved = {
                    name: torch.cat([torch.where(here, other[name], p) for other, _ in some])
                    for name, p in own.items()
                }
                made = make(**moved, validate_args=False)
                each = evaluate(many.aggregate, made, many.sets, many.y)
                ratio = (each.reshape(len(some), n_sets) - base).exp() - 1
                found = (ratio[:, sets.tensor("set_ids", ratio)] * weights).sum(0)
                change += torch.where(here, found, 0.0)
    return d.mean + change, base


def _positions(sets: Sets) -> NDArray[np.int64]:
    """The place of each member in its set, from 0."""
    return np.arange(len(sets.indices)) - np.repeat(sets.offsets[:-1], sets.sizes)
