"""Densities of sums of heavy-tailed members, which have no moment generating function.

The transform M(s) of a sum of centred Student's t (or Cauchy) members, plus noise where given, is
cut along the real axis: M(u + i0) = |M|·exp(iΘ), Θ small near 0. The density is an integral along
that cut to a point s₀ and on from there through the upper half plane,

    f(y) = 1/π ∫₀^s₀ |M(u)| sin Θ(u) exp(−u·y) du + 1/π Im ∫ M(s) exp(−s·y) ds,

y > 0: the power law of the tail, and the core. Both are free of cancellation when s₀ is where the
core has its saddle point, or where it has become negligible; that keeps *relative* accuracy however
far out y is. Near the centre s₀ = 0 is used: the ordinary Fourier integral, in real arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Cauchy, Distribution, StudentT

from setwise._math.contour_integrals import ANGLES, Path, Plan, Sums, cot, trapezoid_sums
from setwise._math.cumulant_inversion import Noise, rescaled
from setwise._math.groups import piecewise
from setwise._math.quadrature import clenshaw_curtis
from setwise._math.student_transform import end_of_cut, log_transform, log_transform_on_cut
from setwise.distributions import family_of, log_density
from setwise.numerics import gather, logaddexp, logsumexp
from setwise.sets import Sets


@dataclass(frozen=True)
class _Heavy:
    """Transforms of the sum, from `scale` (n_sets, K) and half the degrees of freedom `mu`.

    `mu` is 0 for Cauchy members. Each member comes `times`, (n_sets, K): for several individuals,
    or as the one number that serves all. Where there is `noise`, its scale (n_sets, 1) comes last.
    """

    cauchy: bool
    noise: Noise | None

    def log_density(self, x: Tensor, scale: Tensor, mu: Tensor) -> Tensor:
        """The members' own log densities at x of shape (n_sets, K)."""
        zero = torch.zeros_like(scale)
        return log_density(Cauchy(zero, scale) if self.cauchy else StudentT(2 * mu, zero, scale), x)

    def law(self, scale: Tensor) -> Any:
        """The noise at this scale."""
        assert self.noise is not None
        return rescaled(self.noise, scale)

    def seen(self, out: Tensor, s: Tensor, noise: Sequence[Tensor]) -> Tensor:
        """log M(s) of the sum, from that of the members alone."""
        if not noise:
            return out
        law = self.law(noise[0])
        return out + family_of(law).cgf(law, s)

    def on_axis(
        self, t: Tensor, scale: Tensor, mu: Tensor, times: Tensor, *noise: Tensor
    ) -> Tensor:
        """log M(it), real, for real t of shape (n_sets, nodes)."""
        x = scale.unsqueeze(-1) * t.unsqueeze(1)
        each = -x if self.cauchy else log_transform(mu.unsqueeze(-1), x)
        out = (each * times.unsqueeze(-1)).sum(1)
        return self.seen(out, 1j * t, noise).real if noise else out

    def above(self, s: Tensor, scale: Tensor, mu: Tensor, times: Tensor, *noise: Tensor) -> Tensor:
        """log M(s) for s in the upper right quarter."""
        x = scale.unsqueeze(-1) * s.unsqueeze(1)
        out = 1j * x if self.cauchy else log_transform(mu.unsqueeze(-1), x)
        return self.seen((out * times.unsqueeze(-1)).sum(1), s, noise)

    def on_cut(
        self, u: Tensor, scale: Tensor, mu: Tensor, times: Tensor, *noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """log |M| and log Θ at real u."""
        x = scale.unsqueeze(-1) * u.unsqueeze(1)
        if self.cauchy:
            size, angle = torch.zeros_like(x), x.log()
        else:
            size, angle = log_transform_on_cut(mu.unsqueeze(-1), x)
        times = times.unsqueeze(-1)
        return self.seen((size * times).sum(1), u, noise), logsumexp(angle + times.log(), 1)


def log_density_of_heavy_sum(
    d: Distribution, weights: Tensor | None, sets: Sets, y: Tensor, noise: Noise | None = None
) -> Tensor:
    """log density of Σ wₖZₖ, plus noise where given, at y, for StudentT or Cauchy members.

    `sets` have one size; `weights` is (n_sets, K) of any sign or None for ones; `noise` has
    location 0 and one scale. Result in float64. The relative error is about 1e-10 for up to 100
    degrees of freedom, however far out y is, and 1e-7 up to 150. Beyond 150 it is as small near the
    centre and in the far tail, but in between, where neither a normal sum nor a single large member
    explains y (log densities below −80), the logarithm is only right to about 1 %.
    """
    parts: Any = d
    loc, scale = sets.dense(parts.loc).double(), sets.dense(parts.scale)
    cauchy = isinstance(d, Cauchy)
    df = scale.new_zeros(()).expand_as(scale) if cauchy else sets.dense(parts.df)
    times = sets.dense(sets.by_count(torch.ones_like(parts.loc.detach(), dtype=torch.float64)))
    if weights is not None:
        loc, scale = loc * weights, scale * weights.abs()
    away = y.double() - (loc * times).sum(1)
    if weights is None and scale.stride(1) == 0 and df.stride(1) == 0:
        times, scale, df = times.sum(1, keepdim=True), scale[:, :1], df[:, :1]
    y = torch.where(away.detach() < 0, -away, away)
    heavy = _Heavy(cauchy, noise)
    scale, mu = scale.double(), 0.5 * df.double()
    nodes = 1 if cauchy else 64
    given = () if noise is None else (noise.scale.to(y).expand(len(y)).unsqueeze(1),)
    plan = Plan(y, scale, mu, times, *given, cost=2 * nodes * scale.shape[1])
    with torch.no_grad():
        _plan_centre(plan, heavy)

    def near(n: int, *given: Tensor) -> Tensor:
        return _fourier(heavy, n, *given).sum(1).log()

    def far(at: Tensor) -> Tensor:
        outside = Plan(*(gather(t, at) for t in plan.tensors), cost=4 * plan.cost)
        with torch.no_grad():
            _plan_outside(outside, heavy)

        def unsettled(at: Tensor) -> Tensor:
            return _shared_or_single(heavy, *(gather(t, at) for t in outside.tensors))

        return piecewise(*outside.cases(integral), (outside.nodes < 0, unsettled))

    def integral(n: int, *given: Tensor) -> Tensor:
        terms, top = _tail_and_core(heavy, n, *given)
        return top + (terms @ _unit_rule(n, terms)[1]).log()

    return piecewise(*plan.cases(near), (plan.nodes < 0, far))


def _unit_rule(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Clenshaw–Curtis rule on [0, 1]; every other node is one of n/2."""
    nodes, weights = clenshaw_curtis(n)
    return like.new_tensor(0.5 + 0.5 * nodes), like.new_tensor(0.5 * weights)


# ---- the centre


def _plan_centre(plan: Plan, heavy: _Heavy) -> None:
    """Plans the sets for which the Fourier integral keeps its digits."""
    y, *members = plan.tensors
    scale, mu, times, *noise = members
    number = times.sum(1)
    # The transform falls to 1/e near `unit`, and to nothing at unit · exp(reach).
    order = torch.ones_like(y) if heavy.cauchy else (2 * mu.amin(1)).clamp(max=1)
    high = (6 / (scale * order.sqrt().unsqueeze(1))).amin(1).log()
    low = high - (2 * number.log() + 8) / order
    if noise:
        low = torch.minimum(low, -noise[0].squeeze(1).log() - 2)
    for _ in range(12):
        middle = 0.5 * (low + high)
        above = heavy.on_axis(middle.exp().unsqueeze(1), *members).squeeze(1) > -1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    unit = low.exp()
    reach = torch.full_like(y, 1.2)
    for _ in range(30):
        alive = heavy.on_axis((unit * reach.exp()).unsqueeze(1), *members).squeeze(1) > -38
        if not alive.any():
            break
        reach = torch.where(alive, reach * 1.2, reach)

    def sums(n: int, *given: Tensor) -> Sums:
        return trapezoid_sums(_fourier(heavy, n, *given))

    plan.refine(y * unit < 8, [(unit, reach)], sums, steady=1e-8, floor=1e-4)


def _fourier(
    heavy: _Heavy, n: int, unit: Tensor, reach: Tensor, y: Tensor, *members: Tensor
) -> Tensor:
    """Terms of 1/π ∫ M(it) cos(ty) dt at t = unit · exp(v − e⁻ᵛ), which crowds towards 0."""
    unit, reach = unit.unsqueeze(1), reach.unsqueeze(1)
    step = (reach + 3.5) / n
    v = -3.5 + step * torch.arange(n + 1, device=y.device)
    t = unit * (v - (-v).exp()).exp()
    dt = t * (1 + (-v).exp()) * (step / math.pi)
    return heavy.on_axis(t, *members).exp() * (t * y.unsqueeze(1)).cos() * dt


# ---- outside


def _plan_outside(plan: Plan, heavy: _Heavy) -> None:
    y, *members = plan.tensors
    scale, mu, _, *noise = members
    if heavy.cauchy:
        most, least = scale.amax(1).reciprocal(), torch.ones_like(y)
    else:
        most, least = (end_of_cut(mu) / scale).amin(1), 2 * mu.amin(1)
    alone = heavy.log_density(y.unsqueeze(1), scale, mu).amax(1)
    if noise:
        law = heavy.law(noise[0].squeeze(1))
        most = torch.minimum(most, 0.999 * family_of(law).cgf_domain(law)[1])
    # s₀: as far out as the core still falls (K' < y), still matters, and the angle is below 1
    high = most.log()
    low = torch.minimum(high, -y.log()) - 12
    near = torch.tensor([1 - 1e-3, 1.0, 1 + 1e-3], dtype=y.dtype, device=y.device)
    for _ in range(14):
        middle = 0.5 * (low + high)
        u = middle.exp()
        size, angle = heavy.on_cut(u.unsqueeze(1) * near[1:], *members)
        slope = (size[:, 1] - size[:, 0]) / (1e-3 * u)
        more = (slope < y) & (angle[:, 0] < 0) & (size[:, 0] - u * y > alone - 50)
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    s0 = low.exp()
    size = heavy.on_cut(s0.unsqueeze(1) * near, *members)[0]
    gap = y - (size[:, 2] - size[:, 0]) / (2e-3 * s0)
    bend = ((size[:, 2] - 2 * size[:, 1] + size[:, 0]) / (1e-3 * s0) ** 2).clamp(min=0)
    width = (bend + gap * gap + 1e-6 / s0**2).rsqrt()

    def own(s: Tensor) -> Tensor:
        return heavy.above(s, *members)

    top = size[:, 1] - s0 * y
    # The tail's integrand is about u^ν exp(−u·y): how far left of s₀, in log u, it still matters.
    order = least + 1
    left = torch.log1p(s0 * y / order) + 38 / order + (76 / order).sqrt()
    # Straight up from a saddle point, bent where the integrand falls already.
    first = torch.where(gap * gap > 0.3 * bend, cot(ANGLES[1]), cot(ANGLES[0]))
    slack = 8e-15 * (size[:, 1].abs() + s0 * y)

    def sums(n: int, *given: Tensor) -> Sums:
        terms = _tail_and_core(heavy, n, *given)[0]
        fine, coarse, rough = (_unit_rule(n // k, y)[1] for k in (1, 2, 4))
        return terms @ fine, terms[:, ::2] @ coarse, terms[:, ::4] @ rough, terms.abs() @ fine

    for ahead in (first, cot(ANGLES[0]), cot(ANGLES[1])):
        path = Path(s0, width * ahead, width, 0 * y).long_enough(own, y, top)
        candidates = [(*path, left)]
        plan.refine(plan.nodes < 0, candidates, sums, first=64, steady=3e-6, slack=slack)


def _tail_and_core(heavy: _Heavy, n: int, *given: Tensor) -> tuple[Tensor, Tensor]:
    """Both integrands at Clenshaw-Curtis nodes, scaled by exp(−top), and top."""
    path = Path(*given[:4])
    left, y = given[4].unsqueeze(1), given[5].unsqueeze(1)
    centre, length = path.centre.unsqueeze(1), path.length.unsqueeze(1)
    share = _unit_rule(n, y)[0]
    u = centre * (-left * share).exp()
    size, angle = heavy.on_cut(u, *given[6:])
    tail = size + angle + torch.sinc(angle.exp() / math.pi).log() - u * y + (u * left).log()
    s, ds = path.at(length * share)
    core = heavy.above(s, *given[6:]) - s * y
    ds = ds * length
    top = torch.maximum(tail.amax(1), (core.real + ds.abs().log()).amax(1)).detach()
    down = top.unsqueeze(1)
    return ((tail - down).exp() + ((core - down).exp() * ds).imag) / math.pi, top


def _shared_or_single(
    heavy: _Heavy, y: Tensor, scale: Tensor, mu: Tensor, times: Tensor, *noise: Tensor
) -> Tensor:
    """An approximation for where no number of nodes is enough: many degrees of freedom, y far out.

    Either all members contribute to y, as normal ones would, or one member makes up all of it.
    """
    spread, extra = scale.square(), torch.zeros_like(y)
    law = heavy.law(noise[0].squeeze(1)) if noise else None
    if law is not None:
        extra = extra + law.variance
    total = (spread * times).sum(1) + extra
    way = y.unsqueeze(1) * (spread / total.unsqueeze(1)).detach()
    shared = heavy.log_density(way, scale, mu) + 0.5 * (2 * math.pi * spread).log()
    core = (shared * times).sum(1) - 0.5 * (2 * math.pi * total).log()
    if law is not None:
        away = y * (extra / total).detach()
        core = core + log_density(law, away) + 0.5 * (2 * math.pi * extra).log()
    single = logsumexp(heavy.log_density(y.unsqueeze(1), scale, mu) + times.log(), 1)
    return logaddexp(core, single)
