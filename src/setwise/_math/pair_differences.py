"""The difference of two independent variables: its density and its tails.

In closed form where there is one; otherwise one member's density is integrated (or its
probabilities are summed) against the other's density or tail. Whichever of two complementary
probabilities is smaller is computed, so that both keep their digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Laplace

from setwise._math.groups import piecewise
from setwise._math.integration_axis import Line, recentred
from setwise._math.order_probability import log_ordered
from setwise._math.quadrature import rebuild
from setwise._math.summation import log_sum
from setwise.distributions import (
    Continuous,
    Count,
    double,
    family_of,
    log_cdf,
    log_density,
    log_survival,
    map_parameters,
    parameters,
)
from setwise.distributions.location import LocationScale
from setwise.numerics import gather, log1mexp, logaddexp, logsubexp, logsumexp
from setwise.sets import Sets


class Tails(NamedTuple):
    """The logarithms of a variable's distribution function, of its complement and its density."""

    cdf: Callable[[Tensor], Tensor]
    survival: Callable[[Tensor], Tensor]
    density: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, d: Distribution) -> Tails:
        """The tails of a distribution."""
        return cls(*(partial(f, d) for f in (log_cdf, log_survival, log_density)))


def pair(distribution: Distribution, sets: Sets) -> tuple[Any, Any]:
    """The distributions of the first and of the second members, in float64."""
    d = map_parameters(double(distribution), sets.dense)
    return map_parameters(d, lambda p: p[:, 0]), map_parameters(d, lambda p: p[:, 1])


def equal_within(parameter: Tensor, sets: Sets) -> bool:
    """Whether a parameter is one number for all members of a set, for its gradient too.

    It is where one number was expanded to all rows, and where the numbers are constants that agree.
    """
    if len(parameter) > 1 and parameter.stride(0) == 0:
        return True
    return not parameter.requires_grad and bool((sets.max(parameter) == sets.min(parameter)).all())


def difference_of(distribution: Distribution, sets: Sets) -> Distribution | None:
    """The distribution of Z₁ − Z₂, where it is of a known family."""
    family = family_of(distribution)
    # the two members' own distributions are not built: to build a Gumbel takes long
    d: Any = distribution
    if not issubclass(family, LocationScale):
        return None
    if family.one_scale and not equal_within(d.scale, sets):
        return None
    first, second = sets.dense(d.loc).double().unbind(1)
    scale, other = sets.dense(d.scale).double().unbind(1)
    return family.difference(first - second, scale, other)


# ---- Laplace: three pieces, each an exponential


def laplace_log_density(a: Laplace, b: Laplace, y: Tensor) -> Tensor:
    """log density of A − B at y."""
    large, small, gap, decay = _laplace_pieces(a, b, y)
    total = (1 + (-decay).exp()) / (1 + small / large) + gap / small * _mean_exp(decay)
    return total.log() - gap / large - (4 * large).log()


def laplace_log_tail(a: Laplace, b: Laplace, y: Tensor, *, upper: bool) -> Tensor:
    """log P(A − B > y) or log P(A − B ≤ y)."""
    large, small, gap, decay = _laplace_pieces(a, b, y)
    ends = (1 + small / large * (-decay).exp()) / (1 + small / large)
    tail = (1 + ends + gap / large * _mean_exp(decay)).log() - gap / large - math.log(4)
    other = (y < a.loc - b.loc) == upper
    return torch.where(other, log1mexp(torch.where(other, tail, -1.0)), tail)


def _laplace_pieces(a: Laplace, b: Laplace, y: Tensor) -> tuple[Tensor, ...]:
    """Larger and smaller scale, distance |y − (loc₁ − loc₂)|, and by how much its decays differ."""
    gap = y - (a.loc - b.loc)
    gap = torch.where(gap < 0, -gap, gap)  # unlike abs, this has a slope at 0
    swap = a.scale < b.scale
    large, small = torch.where(swap, b.scale, a.scale), torch.where(swap, a.scale, b.scale)
    return large, small, gap, gap / small * ((large - small) / large)


def _mean_exp(x: Tensor) -> Tensor:
    """∫₀¹ exp(−x s) ds = (1 − e⁻ˣ)/x for x ≥ 0, with every derivative at 0."""
    small = x < 1
    near, far = torch.where(small, x, 0.0), torch.where(small, 1.0, x)
    series = torch.ones_like(x)
    for n in range(20, 1, -1):
        series = 1 - near / n * series
    return torch.where(small, series, -torch.expm1(-far) / far)


# ---- probabilities of intervals


def between(tails: Tails, low: Tensor, high: Tensor) -> Tensor:
    """log P(low < Z ≤ high), never as a difference of nearly equal numbers.

    A wide interval is what its complement leaves; a narrow one is integrated over the density; any
    other is the difference of two tails on the nearer side.
    """
    below, above = tails.cdf(low), tails.survival(high)
    outside = logaddexp(below, above)
    upper = (below > above).detach()
    whole = torch.where(upper, tails.survival(low), tails.cdf(high))
    rest = torch.where(upper, above, below)
    wide = (outside < -math.log(2)).detach()
    empty = whole == -math.inf
    narrow = ~wide & ~empty & (whole - rest < 0.01).detach()
    half, middle = 0.5 * (high - low), 0.5 * (high + low)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    inner = [tails.density(middle + half * v) for v in nodes]
    log_weights = half.new_tensor(weights).log().reshape(-1, *[1] * half.ndim)
    fine = logsumexp(torch.stack(inner) + log_weights, 0) + half.log()
    use = ~narrow & ~wide & ~empty
    plain = logsubexp(torch.where(use, whole, 0.0), torch.where(use, rest, -1.0))
    out = torch.where(wide, log1mexp(torch.where(wide, outside, -1.0)), plain)
    return torch.where(empty, -math.inf, torch.where(narrow, fine, out))


# ---- integrals and sums; d is batched as (sets, 2)


def most(d: Distribution) -> Tensor:
    """A count far above the bulk of both members' distributions, for each set."""
    mean, width = family_of(d).centre_width(d)
    decay = (width / mean.clamp_min(1e-300)).clamp_max(1e12) * width  # far out, log p falls by 1
    return (mean + 12 * width + 50 * decay.clamp_min(1)).amax(1)


def log_convolution(d: Distribution, y: Tensor) -> Tensor:
    """log density (or probability) of Z₁ − Z₂ at y."""
    d = recentred(d)
    # p₁(x + max(y, 0)) p₂(x + max(−y, 0)): x starts at the end of the support that is reached first
    shift = torch.stack([y.clamp_min(0), (-y).clamp_min(0)], 1)

    def product(x: Tensor, *tensors: Tensor) -> Tensor:
        *values, shift = (t.unsqueeze(1) for t in tensors)
        return log_density(rebuild(d, values), x.unsqueeze(2) + shift).sum(2)

    return _over_support(d, product, Line.of(d).shifted(shift), shift)


def log_exceeds(d: Distribution, margin: float) -> Tensor:
    """log P(Z₁ > Z₂ + margin), for a margin of at least 0."""
    values = parameters(d)
    shift = next(iter(values.values())).detach().new_tensor([margin, 0.0])
    likely = _gap(d)[0] > margin

    def tail(at: Tensor, function: Any) -> Tensor:
        def integrand(x: Tensor, *tensors: Tensor) -> Tensor:
            first, second = _members(d, tensors)
            other: Tensor = function(first, x + margin)
            return log_density(second, x) + other

        part = recentred(_take(d, at), 1)
        return _over_support(part, integrand, Line.of(part).shifted(shift))

    def ordered(at: Tensor, function: Any) -> Tensor:
        part = _take(rebuild(d, (values | {"loc": values["loc"] + shift.flip(0)}).values()), at)
        flipped = map_parameters(part, lambda p: p.flip(1))
        return log_ordered(recentred(part if function is log_survival else flipped))

    log_probability = ordered if family_of(d).slow_tails else tail
    return piecewise(
        (~likely, lambda at: log_probability(at, log_survival)),
        (likely, lambda at: log1mexp(log_probability(at, log_cdf))),
    )


def log_within(d: Distribution, margin: float) -> Tensor:
    """log P(|Z₁ − Z₂| ≤ margin)."""
    gap, width = _gap(d)
    if margin == 0 and isinstance(d, Continuous):
        return torch.full_like(gap, -math.inf)
    d = recentred(d)
    likely = gap.abs() + width < margin

    def outside(at: Tensor) -> Tensor:
        part = _take(d, at)
        turned = map_parameters(part, lambda p: p.flip(1))
        return log1mexp(logaddexp(log_exceeds(part, margin), log_exceeds(turned, margin)))

    def inside(at: Tensor) -> Tensor:
        def integrand(x: Tensor, *tensors: Tensor) -> Tensor:
            first, second = _members(d, tensors)
            return log_density(second, x) + _near(first, x, margin)

        part = _take(d, at)
        line = Line.of(part)
        return _over_support(part, integrand, line.cut(margin) if line.positive else line)

    return piecewise((likely, outside), (~likely, inside))


def _near(d: Distribution, x: Tensor, margin: float) -> Tensor:
    """log P(|Z − x| ≤ margin); the margin of counts is a whole number."""
    if isinstance(d, Count) and margin <= 8:
        steps = range(-int(margin), int(margin) + 1)
        return logsumexp(torch.stack([log_density(d, x + k) for k in steps]), 0)
    low = x - margin - 1 if isinstance(d, Count) else x - margin
    return between(Tails.of(d), low, x + margin)


def _over_support(d: Distribution, integrand: Any, line: Line, *tensors: Tensor) -> Tensor:
    """log of the integral, or for counts of the sum, over the support."""
    tensors = (*parameters(d).values(), *tensors)
    if isinstance(d, Count):
        return log_sum(integrand, tensors, most(d), cost=8)
    return line.integral(integrand, tensors, cost=8)


def _gap(d: Distribution) -> tuple[Tensor, Tensor]:
    """By how much the first member's centre is above the second's, and the larger width."""
    line = Line.of(d)
    centres = line.centres.exp() if line.positive else line.centres
    widths = centres * line.widths if line.positive else line.widths
    return centres[:, 0] - centres[:, 1], widths.amax(1)


def _take(d: Distribution, at: Tensor) -> Distribution:
    return map_parameters(d, lambda p: gather(p, at))


def _members(d: Distribution, tensors: tuple[Tensor, ...]) -> tuple[Any, Any]:
    return rebuild(d, (t[:, :1] for t in tensors)), rebuild(d, (t[:, 1:] for t in tensors))
