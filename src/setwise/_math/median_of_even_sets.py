"""The mean of the middle two of an even number of members: a one-dimensional integral.

With u and w the middle two in order and g their joint density,

    p(y) = 2 ∫₀^∞ g(y − t, y + t) dt,

where g(u, w) sums over the pairs of members at u and w, with as many of the others below u as above
w (`log_two_marks`). The integral runs over log t; for targets on (0, ∞) over logit(t/y), so that
y − t keeps its digits down to 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid, pad

from setwise._math.order_statistic_density import Sides, log_two_marks
from setwise._math.quadrature import log_integral, rebuild
from setwise.distributions import family_of, parameters
from setwise.numerics import chunked

_PLACES = 8  # members per set at which cells are cut beforehand
_AT_ONCE = 1 << 23  # elements; more are computed in pieces


def log_mean_of_middle(members: Distribution, y: Tensor, times: Tensor | None = None) -> Tensor:
    """log p(y) of the mean of the middle two; `members` is batched (n, K), float64.

    Their number is even: K, or Σ `times` where members stand for several individuals each.

    >>> two = torch.distributions.Normal(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    >>> log_mean_of_middle(two, torch.zeros(1).double()).exp() * math.sqrt(math.pi)
    tensor([1.0000], dtype=torch.float64)
    """
    family = family_of(members)
    size = members.batch_shape[1]
    kinks = list(parameters(members)).index("loc") if family.kinked else -1

    def piece(x: Tensor, y: Tensor, *values: Tensor) -> Tensor:
        number = None
        if times is not None:
            number, values = values[-1], values[:-1]
            number = number[:, None].expand(-1, x.shape[1], -1).flatten(0, 1)
        inside = x.abs() < (700 if family.positive else 230)  # e²³⁰ is as good as infinity
        x, y = torch.where(inside, x, 0.0), y[:, None]
        if family.positive:
            low, high = y * (-x).sigmoid(), y * (1 + x.sigmoid())
            log_dt = logsigmoid(x) + logsigmoid(-x) + y.log()
        else:
            x, log_dx = _along(x, (y - values[kinks]).abs()) if kinks >= 0 else (x, 0.0)
            low, high, log_dt = y - x.exp(), y + x.exp(), x + log_dx
        d = rebuild(members, (value.unsqueeze(1) for value in values))
        low, high = low.unsqueeze(2), high.unsqueeze(2)
        at = family.log_density(d, low), family.log_density(d, high)
        sides = family.log_cdf(d, low), family.log_survival(d, high)
        at_low, at_high, below, above = (t.flatten(0, 1) for t in (*at, *sides))
        rank = size // 2 - 1 if number is None else number.sum(1) / 2 - 1
        joint = log_two_marks(at_low, at_high, Sides(below, above), rank, number)
        return torch.where(inside, joint.reshape(x.shape) + log_dt, -math.inf)

    def integrand(x: Tensor, *tensors: Tensor) -> Tensor:
        return chunked(piece, x, *tensors, cost=16 * x.shape[1] * size, budget=_AT_ONCE)

    possible = y > 0 if family.positive else torch.ones_like(y, dtype=torch.bool)
    y = torch.where(possible, y, 1.0)
    with torch.no_grad():
        density = family.log_density(members, y[:, None])
        density = density if times is None else density + times.log()
        places = _places(y[:, None], *family.centre_width(members), density, family.positive)
    tensors = [y, *parameters(members).values(), *(() if times is None else (times,))]
    out = log_integral(integrand, tensors, *places, cost=16 * size) + math.log(2)
    return torch.where(possible, out, -math.inf)


def _along(x: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """x itself, but differentiated as if it moved along with the kinks at log distance.

    With fixed nodes only the first derivative would be right: kinks that move past them contribute
    to the second. So x is shifted with the kinks, linearly in between; the second result is the
    logarithm of the stretch, which is zero but has derivatives.
    """
    near = distance.detach() > 1e-200
    place = torch.where(near, distance, 1e-200).log()
    place = place.sort(1).values
    at = place.detach()
    shift = place - at
    # kinks at the same place move together, by their mean
    group = pad((at.diff(dim=1) > 0).long().cumsum(1), (1, 0))
    total = torch.zeros_like(shift).scatter_add(1, group, shift)
    number = torch.zeros_like(shift).scatter_add(1, group, torch.ones_like(shift))
    shift = (total / number.clamp_min(1)).gather(1, group)
    right = torch.searchsorted(at, x)
    left, right = (right - 1).clamp_min(0), right.clamp_max(at.shape[1] - 1)
    gap = at.gather(1, right) - at.gather(1, left)
    slope = (shift.gather(1, right) - shift.gather(1, left)) / torch.where(gap > 0, gap, 1.0)
    return x + shift.gather(1, left) + slope * (x - at.gather(1, left)), torch.log1p(slope)


def _places(
    y: Tensor, centre: Tensor, width: Tensor, density: Tensor, positive: bool
) -> tuple[Tensor, Tensor]:
    """Centres and widths on the line of integration, for a few members and the typical gap.

    The integrand may change where y − t or y + t passes a member, and around t = 1 / Σ f_i(y).
    """
    if positive:
        log_ratio = (centre - y.log()).clamp(-600, 600)
        ratio = log_ratio.exp()
        distance = torch.where(ratio < 2, (ratio - 1).abs(), 0.5).clamp_min(1e-9)
        rest = torch.where(ratio < 1, ratio, (2 - ratio).clamp_min(0.5))  # 1 − t/y
        x = distance.log() - rest.log()
        spread = (width / distance).clamp_max(1.0)
    else:
        distance = (y - centre).abs()
        x = distance.clamp_min(1e-9 * width).log()
        spread = width / (width + distance)
    x, order = x.sort(1)
    spread = spread.gather(1, order)
    if x.shape[1] > _PLACES:
        some = torch.linspace(0, x.shape[1] - 1, _PLACES, device=x.device).round().long()
        x, spread = x[:, some], spread[:, some]
    gap = -density.logsumexp(1, keepdim=True) - (y.log() if positive else 0.0)
    low = x[:, :1] - 2 if positive else width.amin(1, keepdim=True).log() - 10
    high = (
        torch.zeros_like(gap) if positive else x[:, -1:].maximum(width.amax(1, keepdim=True).log())
    )
    gap = torch.clamp(gap, torch.minimum(low, high), high)
    return torch.cat([x, gap], 1), torch.cat([spread, torch.ones_like(gap)], 1)
