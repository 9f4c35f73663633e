"""What is known of each member once its set's y is known.

Gradients are posteriors: for a family with natural parameter η and sufficient statistic z,
∂ log p(y)/∂η_k = E[Z_k | y] − E[Z_k], and the second derivative is the change of the variance. So
every likelihood rule gives posteriors for free, exactly as far as the rule itself is exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution

from setwise.distributions import (
    LogisticDistribution,
    double,
    family_of,
    map_parameters,
    parameters,
)
from setwise.likelihood import evaluate
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Posterior", "expectation", "posterior"]

Floats = NDArray[np.float64]
MOST = 64  # members of the largest set for which a second derivative is taken at each of them
CHUNK = 1 << 16  # members that are evaluated at once where many copies of the sets are made


@dataclasses.dataclass(frozen=True, repr=False)
class Posterior:
    """What is known of each member, flat in member order: entry i is about row `sets.indices[i]`.

    Numbers have a `mean` and a `std` (None where it is not available), both (members,); classes
    have `probs`, (members, C).
    """

    sets: Sets
    mean: Floats | None = None
    std: Floats | None = None
    probs: Floats | None = None

    def __repr__(self) -> str:
        if self.probs is not None:
            return f"Posterior({self.sets!r}, probabilities of {self.probs.shape[1]} classes)"
        return f"Posterior({self.sets!r}, mean{'' if self.std is None else ' and std'})"


def posterior(
    observations: Observations, distribution: Distribution, alignment: Any = None
) -> Posterior:
    """What is known of each member once its set's y is known.

    `distribution` has one entry per row, as in `log_likelihood`. The standard deviation is known
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
    values, std, each = _moments(observations, d, spread=True)
    bad = ~each.isfinite()
    if bad.any():
        at = int(bad.nonzero()[0, 0])
        y = None if observations.y is None else np.asarray(observations.y[at]).tolist()
        raise ValueError(
            f"set {at} has y = {y}, which is impossible for its members (log-likelihood "
            f"{float(each[at]):g}): check y, or leave this set out"
        )
    found, wide = values.numpy(), None if std is None else std.numpy()
    if isinstance(d, td.Categorical):
        return Posterior(sets, probs=found if alignment is None else alignment.probs(found))
    if alignment is not None:
        found, wide = alignment.values(found), None if wide is None else alignment.spread(wide)
    return Posterior(sets, mean=found, std=wide)


def expectation(observations: Observations, members: Distribution) -> tuple[Tensor, Tensor]:
    """E[Z_k | y] (probabilities for classes) of each *member*, and log p(y) of each set.

    `members` is in float64, one entry per member, and free of gradients. What is impossible is
    not looked for: such a set has a log-likelihood of −inf or NaN.
    """
    values, _, each = _moments(observations, members, spread=False)
    return values, each


def _moments(
    o: Observations, d: Distribution, spread: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Means (or probabilities), standard deviations where wanted and known, and log p(y)."""
    endless = isinstance(d, td.Cauchy) or (isinstance(d, td.StudentT) and bool((d.df <= 1).any()))
    if type(d) in _LEVY and not endless:
        values, each = _shifted(o, d)
        return values, None, each
    if type(d) not in _NATURAL:
        known = ", ".join(sorted(family_of(t).__name__ for t in (*_NATURAL, *_LEVY)))
        raise TypeError(
            f"the posterior of {family_of(d).__name__} targets is not known"
            + (" (they have no mean)" if endless else "")
            + f"; known are: {known}"
        )
    eta, rebuild = _NATURAL[type(d)](d)
    second = spread and not isinstance(d, td.Categorical)
    with torch.enable_grad():
        leaf = eta.detach().clone().requires_grad_()
        each = evaluate(o.aggregate, rebuild(leaf), o.sets, o.y)
        small = int(o.sets.sizes.max(initial=0)) <= MOST
        hessian = second and small and not isinstance(d, td.Normal)
        slope = _grad(each.sum(), leaf, create_graph=hessian)
        change = slope.detach()
        if isinstance(d, td.Categorical):
            probs = (d.probs + change).clamp(min=0.0)
            return probs / probs.sum(-1, keepdim=True), None, each.detach()
        variance = None
        if hessian:
            variance = d.variance + _diagonal(slope, leaf, o.sets)
        elif second and isinstance(d, td.Normal):
            # ∂ log p(y)/∂ log scale_k = E[(Z_k − loc_k)² | y]/scale_k² − 1: one gradient for all
            log_scale = d.scale.log().requires_grad_()
            wide = td.Normal(d.loc, log_scale.exp(), validate_args=False)
            total = evaluate(o.aggregate, wide, o.sets, o.y).sum()
            variance = d.variance * (1 + _grad(total, log_scale)) - change**2
    std = None if variance is None else variance.clamp(min=0).sqrt()
    return d.mean + change, std, each.detach()


def _grad(value: Tensor, leaf: Tensor, create_graph: bool = False) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    found = torch.autograd.grad(
        value, leaf, create_graph=create_graph, retain_graph=True, allow_unused=True
    )[0]
    return torch.zeros_like(leaf) if found is None else found


def _diagonal(slope: Tensor, leaf: Tensor, sets: Sets) -> Tensor:
    """The second derivative at each member: one product for all members at the same position."""
    position = _positions(sets)
    out = torch.zeros_like(leaf)
    for k in range(int(sets.sizes.max(initial=0))):
        here = torch.from_numpy(position == k)
        out[here] = _grad(slope[here].sum(), leaf)[here]
    return out


# ---- the natural parameter that belongs to z, and the distribution as a function of it


def _of(cls: Any, **parameters: Tensor) -> Distribution:
    made: Distribution = cls(**parameters, validate_args=False)
    return made


def _logits(log_p: Tensor) -> Tensor:
    return log_p - torch.log(-torch.expm1(log_p))


Natural = tuple[Tensor, Callable[[Tensor], Distribution]]
_NATURAL: dict[type, Callable[[Any], Natural]] = {
    td.Normal: lambda d: (
        d.loc / d.scale**2,
        lambda eta: _of(td.Normal, loc=eta * d.scale**2, scale=d.scale),
    ),
    td.Poisson: lambda d: (d.rate.log(), lambda eta: _of(td.Poisson, rate=eta.exp())),
    td.Exponential: lambda d: (-d.rate, lambda eta: _of(td.Exponential, rate=-eta)),
    td.Gamma: lambda d: (
        -d.rate,
        lambda eta: _of(td.Gamma, concentration=d.concentration, rate=-eta),
    ),
    td.NegativeBinomial: lambda d: (
        torch.nn.functional.logsigmoid(d.logits),
        lambda eta: _of(td.NegativeBinomial, total_count=d.total_count, logits=_logits(eta)),
    ),
    td.Categorical: lambda d: (d.logits, lambda eta: _of(td.Categorical, logits=eta)),
}

# ---- families that are exponential in nothing, but infinitely divisible


def _bose(d: Any, x: Tensor) -> Tensor:
    return 1 / torch.expm1(x)


def _student(d: td.StudentT, x: Tensor) -> Tensor:
    """(2/π²) ∫ exp(−x t/√df) / (t (J² + Y²)(t)) dt, Bessel functions of order df/2 (Grosswald)."""
    df, which = np.unique(d.df.numpy(), return_inverse=True)
    u = np.linspace(-30, 14, 700)
    t = np.exp(u)
    tables = []
    for nu in df:
        with np.errstate(all="ignore"):
            modulus = special.jv(nu / 2, t) ** 2 + special.yv(nu / 2, t) ** 2
        decay = np.exp(-x.numpy() * t / math.sqrt(nu))
        tables.append(2 / math.pi**2 * (decay / modulus).sum(1) * (u[1] - u[0]))
    return torch.from_numpy(np.stack(tables, 1)[:, which])


# x · (density of jumps of size x) in units of the scale, for jumps up and down, and the e for which
# jumps beyond 2^e do not matter
_LEVY: dict[type, tuple[list[Callable[[Any, Tensor], Tensor]], int]] = {
    td.Laplace: ([lambda d, x: (-x).exp()] * 2, 6),
    LogisticDistribution: ([_bose, _bose], 6),
    td.Gumbel: ([_bose], 6),
    td.StudentT: ([_student, _student], 12),
}


def _shifted(o: Observations, d: Any) -> tuple[Tensor, Tensor]:
    """E[Z_k | y] from the likelihood L at shifted locations of member k, and log p(y).

    An infinitely divisible Z obeys E[Z f(Z)] = E[Z] E[f(Z)] + ∫ x ν(dx) E[f(Z + x) − f(Z)], with
    ν the measure of its jumps; f(z) = p(y | Z_k = z) turns the right side into likelihoods. So
    E[Z_k | y] = E[Z_k] + ∫ x ν(dx) (L(loc_k + x)/L(loc_k) − 1).
    """
    densities, end = _LEVY[type(d)]
    points, weights = np.polynomial.legendre.leggauss(16)
    edges = np.concatenate([[0.0], 2.0 ** np.arange(-1, end + 1)])
    half = np.diff(edges)[:, None] / 2
    x = torch.from_numpy((edges[:-1, None] + half * (1 + points)).ravel())
    w = torch.from_numpy((half * weights).ravel())
    sets, position = o.sets, torch.from_numpy(_positions(o.sets))
    n_sets, n_members = len(sets), len(sets.indices)
    step = max(1, CHUNK // max(n_members, 1))
    with torch.no_grad():
        base = evaluate(o.aggregate, d, sets, o.y)
        change = torch.zeros_like(d.loc)
        for sign, density in zip((1.0, -1.0), densities, strict=False):
            jumps = (density(d, x.unsqueeze(1)) * w.unsqueeze(1)).expand(-1, n_members)
            for begin in range(0, len(x), step):
                nodes = x[begin : begin + step]
                many = o.take(np.tile(np.arange(n_sets), len(nodes)))
                others = {name: p.repeat(len(nodes)) for name, p in parameters(d).items()}
                for k in range(int(sets.sizes.max(initial=0))):
                    here = (position == k).to(d.loc)
                    loc = d.loc + sign * torch.outer(nodes, d.scale * here)
                    made = _of(type(d), **{**others, "loc": loc.reshape(-1)})
                    each = evaluate(many.aggregate, made, many.sets, many.y)
                    ratio = (each.reshape(len(nodes), n_sets) - base).exp() - 1
                    spread = ratio[:, sets.tensor("set_ids", ratio)] * jumps[begin : begin + step]
                    change += sign * here * spread.sum(0)
    mean = d.loc if isinstance(d, td.StudentT) else d.mean
    return mean + d.scale * change, base


def _positions(sets: Sets) -> NDArray[np.int64]:
    """The place of each member in its set, from 0."""
    return np.arange(len(sets.indices)) - np.repeat(sets.offsets[:-1], sets.sizes)
