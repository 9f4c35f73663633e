"""How many members are of class 1: coefficients of Π (b_i + a_i x), exact and linear in members.

The coefficient of x^k is the probability of the count k where a_i = P(Z_i = 1), b_i = P(Z_i = 0).
Three steps keep all digits, however improbable the count:

1. Tilt. With a_i replaced by a_i e^s the coefficient only changes by the factor e^{sk}; s is chosen
   so that k is the mean of the tilted count. A Poisson-binomial count whose mean is a whole number
   has its mode there (Darroch 1964), so what remains to compute is of order 1/√V, never small.
2. Transform. The tilted probability is a mean of characteristic functions over the M-th roots of
   unity. Tails beyond M = 9.5√V + 12 hold less than 1e-16, and |Π φ_i(ω)| ≤ exp(−V (1 − cos ω))
   leaves about 15 angles to visit, whatever the number of members.
3. Differentiate in closed form: ∂/∂ log a_i is the posterior P(Z_i = 1 | count).

J. N. Darroch (1964), On the distribution of the number of successes in independent trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from setwise._math.polynomials import tree_product
from setwise.numerics import at_once, chunked

_CHUNK = 1 << 20  # members × angles at a time, about
TILT_ERROR = 0.2  # in counts and in deviations


def log_count(log_a: Tensor, log_b: Tensor, k: Tensor, times: Tensor | None = None) -> Tensor:
    """log of the coefficient of x^k in Π (b_i + a_i x)^times_i, for each line of (n, K) logarithms.

    −inf with gradient zero where the coefficient is zero. Lines of fewer factors end with 1 + 0x,
    or with factors that come 0 `times`; without `times`, each comes once.

    >>> half = torch.full((1, 4), 0.5).log()
    >>> log_count(half, half, torch.tensor([1])).exp()
    tensor([0.2500])
    >>> log_count(half[:, :1], half[:, :1], torch.tensor([1]), torch.tensor([[4.0]])).exp()
    tensor([0.2500])
    """
    given = (k,) if times is None else (k, times)
    pieces = [_count(*piece) for piece in _pieces(log_a, log_b, *given)]
    return torch.cat(pieces).to(log_a.dtype)


def log_count_mixture(
    log_a: Tensor, log_b: Tensor, log_weight: Tensor, times: Tensor | None = None
) -> Tensor:
    """log Σ_v exp(log_weight_v) [x^v] Π (b_i + a_i x)^times_i, with (n, degree + 1) log-weights.

    The weights are constant and must be log-concave in v, as those of Gaussian and Laplace noise
    are, also if they end with −inf. Lines of fewer factors end with 1 + 0x, or with factors that
    come 0 `times`; without `times`, each comes once.

    >>> half = torch.full((1, 4), 0.5).log()
    >>> log_count_mixture(half, half, torch.zeros(1, 5)).exp()  # all counts together
    tensor([1.])
    """
    given = (log_weight,) if times is None else (log_weight, times)
    pieces = [_mixture(*piece) for piece in _pieces(log_a, log_b, *given)]
    return torch.cat(pieces).to(log_a.dtype)


def _pieces(log_a: Tensor, log_b: Tensor, *rest: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The arguments in float64, in pieces of sets that fit into cache."""
    step = max(1, at_once(log_a, _CHUNK) // (log_a.shape[1] * 16))
    arguments = (log_a.double(), log_b.double(), *(t.detach().double() for t in rest))
    return zip(*(t.split(step) for t in arguments), strict=True)


# ---- where to compute: the tilt and the roots of unity, none of which changes the value


def solve_tilt(
    excess: Callable[[Tensor, Any], tuple[Tensor, Tensor]], eta: Tensor, start: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The tilt s at which a mean meets its target: Newton's method inside a shrinking bracket.

    `excess(s, rows)` is (mean − target, slope) of these rows, increasing in s, with its steps near
    the points −eta. Where the target is an end of the range of the mean, s stops 60 beyond the
    outermost of them: all but e⁻⁶⁰ of the mass is there. The value does not depend on s, so a mean
    that is a fifth of a deviation off is near enough. Returns s with its excess and slope.
    """
    eta = torch.where(eta.isfinite(), eta, 0.0)
    low, high = -eta.amax(1) - 60, -eta.amin(1) + 60
    s = torch.clamp(start - eta.clamp(-30, 30).mean(1), low, high)
    rows: Any = slice(None)  # those still to be solved: a few hard ones can take many rounds
    found = torch.empty((3, len(s)), dtype=s.dtype, device=s.device)
    last: Tensor | float = math.inf
    for round_ in range(100):
        gap, slope = excess(s, rows)
        size = gap.abs()
        wrong = ~(size <= TILT_ERROR * (1 + slope.sqrt()))
        if not wrong.any():
            break
        low, high = torch.where(gap < 0, s, low), torch.where(gap > 0, s, high)
        step = s - gap / slope.clamp_min(1e-300)
        good = (step > low) & (step < high) & (size < 0.7 * last)
        if (wrong & ~good).any():
            step = torch.where(good, step, _halfway(low, high, eta, round_ % 3))
            wrong &= (step > low) & (step < high)  # else no number is left in the bracket
            if not wrong.any():
                break
        if 4 * int(wrong.sum()) < len(s):
            found[:, rows] = torch.stack([s, gap, slope])
            rows = wrong.nonzero()[:, 0] if isinstance(rows, slice) else rows[wrong]
            s, size, low, high, eta = (t[wrong] for t in (step, size, low, high, eta))
        else:
            s = torch.where(wrong, step, s)
        last = size
    found[:, rows] = torch.stack([s, gap, slope])
    return found[0], found[1], found[2]


def _halfway(low: Tensor, high: Tensor, eta: Tensor, turn: int) -> Tensor:
    """The median of the points −eta in the bracket; without any, the middle or close to an end.

    Brackets of 1e12 with steps of width 1 in them are not rare: halving alone would take too long.
    """
    inside = (-eta > low[:, None]) & (-eta < high[:, None])
    median = torch.where(inside, -eta, math.nan).nanmedian(1).values
    half = (high - low) / 2
    room = half.clamp_max(math.log(eta.shape[1]) + 5)
    other = (low + half, low + room, high - room)[turn]
    return torch.where(median.isnan(), other, median)


def reach_of(variance: Tensor) -> Tensor:
    """How far from its mean a count of this variance can be: all but 1e-16 of it is nearer."""
    return 9.5 * variance.sqrt() + 12


class Roots(NamedTuple):
    """Powers 1, 2, …, J of the first M-th root of unity, for each set or one M for all."""

    j: Tensor  # (J,)
    period: Tensor  # M, odd: (n, 1) or (1, 1)

    @classmethod
    def of(cls, reach: Tensor, decay: Tensor, degree: int) -> Roots:
        """Roots that distinguish counts in 0..degree which differ by less than `reach`.

        Angles where exp(−decay (1 − cos ω)) is below 1e-16 are left out.
        """
        period = torch.clamp_max(reach, degree + 1)
        period = 2 * (period / 2).floor() + 1
        if degree <= 64:  # one table of angles for all sets
            period = period.amax(0, keepdim=True)
        widest = torch.acos((1 - 38 / decay.clamp_min(1e-9)).clamp_min(-1))
        count = torch.minimum((widest * period / (2 * math.pi)).floor(), (period - 1) / 2)
        j = torch.arange(1, int(count.max()) + 1, device=reach.device, dtype=reach.dtype)
        return cls(j, period[:, None])

    def turn(self, power: Tensor | int = 1) -> Tensor:
        """e^{iω_j · power}, exact for any whole power."""
        angle = torch.remainder(self.j * power, self.period) * (2 * math.pi / self.period)
        return torch.complex(angle.cos(), angle.sin())

    @property
    def weight(self) -> Tensor:
        """2/M, as ω and −ω count alike; 0 for angles beyond half a turn."""
        return torch.where(2 * self.j < self.period, 2 / self.period, 0.0)


def _count(log_a: Tensor, log_b: Tensor, k: Tensor, times: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        eta = _log_odds(log_a, log_b)
        size = log_a.shape[1] if times is None else int(times.sum(1).max())

        def excess(s: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
            mean, variance = _moments(eta[rows], s, None if times is None else times[rows])
            return mean - k[rows], variance

        able = (eta > -math.inf) * (1 if times is None else times)
        odds = (k + 0.5) / (able.sum(1) - k + 0.5).clamp_min(0.5)
        s, gap, variance = solve_tilt(excess, eta, start=odds.log())
        possible = gap.abs() < 0.5 + TILT_ERROR * variance.sqrt()
        roots = Roots.of(reach_of(variance), variance, size)
        weight = roots.weight * roots.turn(-k[:, None])
        first = (1 / roots.period[:, 0]).expand_as(k)
        plan = _safe(possible, s, weight, first)
        top = torch.where(possible, s * gap, 0.0)
    return torch.where(possible, _tilted(log_a, log_b, times, roots.turn(), *plan) + top, -math.inf)


def _mixture(
    log_a: Tensor, log_b: Tensor, log_weight: Tensor, times: Tensor | None = None
) -> Tensor:
    size = log_weight.shape[1] - 1
    with torch.no_grad():
        eta = _log_odds(log_a, log_b)
        v = torch.arange(size + 1, dtype=eta.dtype, device=eta.device)

        def excess(s: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
            mean, variance = _moments(eta[rows], s, None if times is None else times[rows])
            share = (log_weight[rows] - s[:, None] * v).softmax(1)
            middle = share @ v
            return mean - middle, variance + (share @ v.square() - middle.square()).clamp_min(0)

        s, _, _ = solve_tilt(excess, eta, start=torch.zeros_like(eta[:, 0]))
        mean, variance = _moments(eta, s, times)
        roots = Roots.of(2 * reach_of(variance), variance, size)
        # the counts that matter: one period, around the tilted mean
        start = mean.round()[:, None] - (roots.period - 1) / 2
        start = start.clamp_min(0).minimum((size + 1 - roots.period).clamp_min(0))
        offset = torch.arange(int(roots.period.max()), dtype=eta.dtype, device=eta.device)
        near = start + offset
        inside = (near <= size) & (offset < roots.period)
        height = log_weight.gather(1, near.clamp_max(size).long())
        height = height - s[:, None] * (near - mean[:, None])
        height = torch.where(inside, height, -math.inf)
        top = height.amax(1)
        possible = top > -math.inf
        top = torch.where(possible, top, 0.0)
        height = (height - top[:, None]).exp()
        table = roots.turn(-offset[:, None, None]).transpose(0, 1)  # (sets, counts, angles)
        weight = (height.to(table.dtype)[:, None, :] @ table)[:, 0]
        weight = weight * roots.weight * roots.turn(-start)
        plan = _safe(possible, s, weight, height.sum(1) / roots.period[:, 0])
    return torch.where(possible, _tilted(log_a, log_b, times, roots.turn(), *plan) + top, -math.inf)


def _log_odds(log_a: Tensor, log_b: Tensor) -> Tensor:
    """log a − log b, which may be ±inf; 0 where neither class is possible."""
    return (log_a - log_b).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)


def _moments(eta: Tensor, s: Tensor, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
    p = (eta + s[:, None]).sigmoid_()
    if times is not None:
        return (times * p).sum(1), (times * p * (1 - p)).sum(1)
    mean = p.sum(1)
    return mean, (mean - torch.linalg.vecdot(p, p)).clamp_min(0)


def _safe(possible: Tensor, s: Tensor, weight: Tensor, first: Tensor) -> tuple[Tensor, ...]:
    """Tilt and weights, replaced where the outcome is impossible by some that add up to 1."""
    return (
        torch.where(possible, s, 0.0),
        torch.where(possible[:, None], weight, 0.0),
        torch.where(possible, first, 1.0),
    )


# ---- the computation


class _Tilted(torch.autograd.Function):
    """log (first + Σ_j Re[weight_j Π_i φ_i(z_j)]) + Σ_i (log(b_i + a_i e^s) − s p_i).

    With `times`, each factor and each summand i comes so often.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_a: Tensor,
        log_b: Tensor,
        times: Tensor | None,
        z: Tensor,
        s: Tensor,
        weight: Tensor,
        first: Tensor,
    ) -> Tensor:
        tilt = s[:, None]
        p = (_log_odds(log_a, log_b) + tilt).sigmoid_()
        node = weight * (_product(p, z) if times is None else _powers(p, z, times))
        ctx.times = times
        ctx.save_for_backward(log_a, log_b, z, s, weight, first, node)
        total = first + node.real.sum(1)
        each = torch.logaddexp(log_b, log_a + tilt).sub_(tilt * p)
        return (each if times is None else each * times).sum(1) + total.log()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        log_a, log_b, z, s, weight, first, node = ctx.saved_tensors
        eta, times = _log_odds(log_a, log_b), ctx.times
        if torch.is_grad_enabled():  # a second derivative may follow
            one = s.new_ones(len(s), 1)
            cost = log_a.shape[1] * (z.shape[1] + 1)
            given = () if times is None else (times,)
            r = chunked(_posterior_of, eta, z * one, s, weight, first, *given, cost=cost)
        else:
            r = _posterior(eta, z, s, first, node)
        grad = grad[:, None] if times is None else grad[:, None] * times
        return grad * r, grad * (1 - r), None, None, None, None, None


def _tilted(*tensors: Tensor | None) -> Tensor:
    out: Tensor = _Tilted.apply(*tensors)  # type: ignore[no-untyped-call]
    return out


def _posterior_of(
    eta: Tensor, z: Tensor, s: Tensor, weight: Tensor, first: Tensor, times: Tensor | None = None
) -> Tensor:
    p = (eta + s[:, None]).sigmoid()
    node = weight * (_product(p, z) if times is None else _powers(p, z, times))
    return _posterior(eta, z, s, first, node)


def _posterior(eta: Tensor, z: Tensor, s: Tensor, first: Tensor, node: Tensor) -> Tensor:
    """P(Z_i = 1 | observed) = p_i Σ_j Re[node_j z_j / φ_i(z_j)] / Σ_j Re[node_j].

    With 1/φ = φ* / |φ|² and |φ_i(z)|² = 1 − p_i q_i |z − 1|², all of it is real.
    """
    p = (eta + s[:, None]).sigmoid()
    q = 1 - p
    turned = node * z
    sums = _over_norm(p * q, z, torch.stack([turned.real, node.real], 2))
    total = first + node.real.sum(1)
    return p * (first[:, None] + q * sums[..., 0] + p * sums[..., 1]) / total[:, None]


def _over_norm(v: Tensor, z: Tensor, columns: Tensor) -> Tensor:
    """Σ_j columns_j / (1 − v_i |z_j − 1|²)."""
    minus = (2 * z.real - 2)[:, None, :]
    return (v[:, :, None] * minus).add_(1).reciprocal_() @ columns


def _powers(p: Tensor, z: Tensor, times: Tensor) -> Tensor:
    """Π_i φ_i(z_j)^times_i by modulus and angle, for p and times (n, K) and z (n or 1, J).

    No φ is 0: that takes p = ½ and z = −1, which is no root of odd order.
    """
    x, y = z.real[:, None, :], z.imag[:, None, :]
    p, times = p[:, :, None], times[:, :, None]
    modulus = torch.log1p(p * (1 - p) * (2 * x - 2)).mul(0.5 * times).sum(1)
    angle = torch.atan2(p * y, 1 + p * (x - 1)).mul(times).sum(1)
    return torch.polar(modulus.exp(), angle)


def _product(p: Tensor, z: Tensor) -> Tensor:
    """Π_i φ_i(z_j), φ_i(z) = 1 − p_i + p_i z, for p (n, K) and z (n or 1, J) on the unit circle.

    Members are first multiplied out in blocks of eight, as polynomials in z (no cancellation: all
    coefficients are positive); a matrix product evaluates the blocks; then they are multiplied.
    """
    block = min(8, 1 << (p.shape[1] - 1).bit_length())
    p = pad(p, (0, -p.shape[1] % block))
    poly = torch.stack([1 - p, p])  # (coefficients, sets, blocks)
    while len(poly) <= block:
        left, right = poly.chunk(2, 2)
        poly = torch.zeros((2 * len(left) - 1, *left.shape[1:]), dtype=p.dtype, device=p.device)
        for i, factor in enumerate(left):
            poly[i : i + len(right)].addcmul_(factor, right)
    powers = [torch.ones_like(z)]
    for _ in range(block):
        powers.append(powers[-1] * z)
    table = torch.view_as_real(torch.stack(powers, 1)).flatten(2)
    x = poly.permute(1, 2, 0) @ (table[0] if len(table) == 1 else table)
    x = torch.view_as_complex(x.unflatten(2, (-1, 2)))
    return tree_product([x])[0]
