"""What is known of each member once its set's y is known, and which y to expect of new sets.

Gradients are posteriors: for a family with natural parameter η and sufficient statistic z,
∂ log p(y)/∂η_k = E[Z_k | y] − E[Z_k], and the second derivative is the change of the variance. So
every likelihood rule gives posteriors for free, exactly as far as the rule itself is exact.
"""

from __future__ import annotations

import contextlib
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

from setwise.aggregates import (
    Choice,
    Coarse,
    Counts,
    Custom,
    Direct,
    Fold,
    Interval,
    Median,
    Noisy,
    Presence,
    PrimaryInstance,
    Proportions,
    Ranking,
    Sum,
    Uncoupled,
)
from setwise.distributions import (
    Discrete,
    LogisticDistribution,
    double,
    family_of,
    map_parameters,
    parameters,
)
from setwise.likelihood import Aggregate, evaluate, find_rule
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Posterior", "expectation", "expected_aggregate", "posterior"]

Floats = NDArray[np.float64]
MOST = 64  # members of the largest set for which a second derivative is taken at each of them
DRAWS = 1000
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


# ---- the observation to expect


def expected_aggregate(aggregate: Aggregate, members: Distribution, sets: Sets) -> Floats:
    """The y to expect of each set, where `members` has one entry per *member*.

    An amount is given as its mean (its median where targets have no mean: Cauchy), a 0/1 label as
    the probability of 1, and a name as the most probable one: the position of a `Choice`, the cell
    of a `Coarse`, a class seen by `Direct` or `PrimaryInstance`, and the output of a `Fold` that
    has others than 0 and 1. All are exact, except what has neither a closed form nor a list of
    outcomes (order statistics and `Custom` of numbers): the mean of 1000 draws. Added noise has
    mean zero and changes nothing; flips are taken into account.

    >>> import setwise as sw
    >>> pair = td.Normal(torch.tensor([1.0, 2.0]), torch.ones(2))
    >>> expected_aggregate(sw.Rank(), pair, sw.Sets([[0, 1]])).round(3).tolist()
    [0.24]
    """
    wrong = sets.sizes != (sets.sizes if aggregate.size is None else aggregate.size)
    if wrong.any():
        raise ValueError(
            f"{aggregate!r} is about sets of {aggregate.size} member(s), but set {wrong.argmax()} "
            f"has {sets.sizes[wrong.argmax()]}"
        )
    if isinstance(aggregate, Noisy) and aggregate.flip is None:  # a class with noise is a number
        aggregate = Sum() if isinstance(aggregate.aggregate, Direct) else aggregate.aggregate
    bare = aggregate.aggregate if isinstance(aggregate, Noisy) else aggregate
    for kind, instead in _REFUSED.items():
        if isinstance(bare, kind):
            raise TypeError(f"{bare!r} has no single y to expect: {instead}")
    find_rule(type(aggregate), type(members))
    d = map_parameters(double(members), Tensor.detach)
    with torch.no_grad():
        return _expected(aggregate, bare, d, sets.flat) if len(sets) else np.zeros(0)


_REFUSED: dict[type[Aggregate], str] = {
    Ranking: "ask for pairs with Rank(), or for the best member with Choice()",
    Uncoupled: "ask for Min(), Median() and Max(), or for the members themselves with predict",
    Interval: "ask for Direct(), or take the quantiles of predict_dist",
}


def _expected(aggregate: Aggregate, bare: Aggregate, d: Any, sets: Sets) -> Floats:
    classes = isinstance(d, td.Categorical)
    if classes and isinstance(aggregate, Counts | Proportions):
        tally = sets.sum if isinstance(aggregate, Counts) else sets.mean
        return np.asarray(tally(d.probs))
    if classes and isinstance(aggregate, Presence):
        return np.asarray(-torch.expm1(sets.sum(torch.log1p(-d.probs.clamp(max=1 - 1e-16)))))
    if classes and isinstance(aggregate, PrimaryInstance):
        return np.asarray(sets.mean(d.probs).argmax(1).double())
    named = isinstance(bare, Choice | Coarse) or (classes and isinstance(bare, Direct))
    if isinstance(bare, Fold):
        named = not set(bare.outcomes(0, None, True)) <= {0.0, 1.0}
    linear = None if named else aggregate.linear(sets)
    if linear is not None:
        return np.asarray(sets.sum(torch.from_numpy(linear[0]) * _centre(d)))
    if isinstance(aggregate, PrimaryInstance) and not isinstance(d, td.Cauchy):
        return np.asarray(sets.mean(_centre(d)))
    n_classes, discrete = d.logits.shape[-1] if classes else None, isinstance(d, Discrete)
    halves = discrete and isinstance(bare, Median) and bool((sets.sizes % 2 == 0).any())
    try:
        listed = len(aggregate.outcomes(int(sets.sizes[0]), n_classes, discrete)) > 0
    except TypeError:
        listed = False
    if halves or not listed:  # of halves there is a list, but no rule
        return _simulated(aggregate, d, sets)
    return _over_outcomes(aggregate, d, sets, n_classes, named)


def _centre(d: Any) -> Tensor:
    """The mean of each member; the median where there is none; the mean number of a class."""
    if isinstance(d, td.Categorical):
        out: Tensor = d.probs @ torch.arange(d.probs.shape[-1], dtype=d.probs.dtype)
        return out
    mean: Tensor = d.loc if isinstance(d, td.Cauchy | td.StudentT) else d.mean
    return mean


def _over_outcomes(
    aggregate: Aggregate, d: Any, sets: Sets, n_classes: int | None, named: bool
) -> Floats:
    """The mean of all possible y, or the most probable of them, from their exact likelihoods."""
    out = np.empty(len(sets))
    for which, part in sets.by_size():
        values = list(aggregate.outcomes(int(part.sizes[0]), n_classes, isinstance(d, Discrete)))
        members = map_parameters(d, part.members)
        each = [
            evaluate(aggregate, members, part, aggregate.check(part, np.full(len(part), v)))
            for v in values
        ]
        table, choice = torch.stack(each), np.array(values, dtype=np.float64)
        out[which] = choice[table.argmax(0)] if named else choice @ table.exp().numpy()
    return out


def _simulated(aggregate: Aggregate, d: Any, sets: Sets) -> Floats:
    """The mean (median for Cauchy targets) of y over draws of the members, with a fixed seed."""
    rng = np.random.default_rng(0)
    step, pieces = max(1, min(DRAWS, 8 * CHUNK // len(sets.indices))), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for begin in range(0, DRAWS, step):
            n = min(step, DRAWS - begin)
            z = d.sample((n,)).reshape(-1)
            z = z.long() if isinstance(d, Discrete) else z
            many = sets.take(np.tile(np.arange(len(sets)), n))
            y = np.asarray(_apply(aggregate, z, many.flat, rng), dtype=np.float64)
            pieces.append(y.reshape(n, len(sets), *y.shape[1:]))
    drawn = np.concatenate(pieces)
    out: Floats = np.median(drawn, 0) if isinstance(d, td.Cauchy) else drawn.mean(0)
    return out


def _apply(aggregate: Aggregate, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
    if isinstance(aggregate, Custom) and sets.size is not None:
        with contextlib.suppress(Exception):  # fn is the user's: what vmap cannot trace, calls can
            return torch.vmap(aggregate.fn)(sets.dense(z))
    return aggregate.apply(z, sets, rng)
