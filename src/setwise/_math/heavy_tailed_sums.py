"""Densities of sums of heavy-tailed members, which have no moment generating function.

The transform M(s) of a sum of centred Student's t (or Cauchy) members, plus noise where given, is
cut along the real axis: M(u + i0) = |M|·exp(iΘ), Θ small near 0. The density is an integral along
that cut to a point s₀ and on from there through the upper half plane,

    f(y) = 1/π ∫₀^s₀ |M(u)| sin Θ(u) exp(−u·y) du + 1/π Im ∫ M(s) exp(−s·y) ds,

y > 0: the power law of the tail, and the core. Both are free of cancellation when s₀ is where the
core has its saddle point, or where it has become negligible; that keeps *relative* accuracy however
far out y is. Near the centre s₀ = 0 will do: the ordinary Fourier integral, all in real numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Cauchy, Distribution, Laplace, StudentT

from setwise._math.contour_integrals import (
    ANGLES,
    Constants,
    Path,
    Plan,
    Sums,
    assemble,
    clenshaw_curtis,
    cot,
    trapezoid_sums,
)
from setwise._math.cumulant_inversion import Noise, noise_cgf
from setwise._math.student_transform import end_of_cut, log_transform, log_transform_on_cut
from setwise.distributions import log_density
from setwise.numerics import logaddexp, logsumexp
from setwise.sets import Sets

__all__ = ["log_density_of_heavy_sum"]


@dataclass(frozen=True)
class _Heavy:
    """Transforms of the sum, from `scale` (n_sets, K) and half the degrees of freedom `mu`.

    `mu` is 0 for Cauchy members; `copies` is K where one number serves all members.
    """

    cauchy: bool
    copies: int
    noise: Noise | None

    def log_density(self, x: Tensor, scale: Tensor, mu: Tensor) -> Tensor:
        """The members' own log densities at x of shape (n_sets, K)."""
        zero = torch.zeros_like(scale)
        return log_density(Cauchy(zero, scale) if self.cauchy else StudentT(2 * mu, zero, scale), x)

    def on_axis(self, t: Tensor, scale: Tensor, mu: Tensor) -> Tensor:
        """log M(it), real, for real t of shape (n_sets, nodes)."""
        x = scale.unsqueeze(-1) * t.unsqueeze(1)
        out = (-x if self.cauchy else log_transform(mu.unsqueeze(-1), x)).sum(1) * self.copies
        if self.noise is None:
            return out
        return out + noise_cgf(self.noise, torch.complex(torch.zeros_like(t), t)).real

    def above(self, s: Tensor, scale: Tensor, mu: Tensor) -> Tensor:
        """log M(s) for s in the upper right quarter."""
        x = scale.unsqueeze(-1) * s.unsqueeze(1)
        out = (1j * x if self.cauchy else log_transform(mu.unsqueeze(-1), x)).sum(1) * self.copies
        return out if self.noise is None else out + noise_cgf(self.noise, s)

    def on_cut(self, u: Tensor, scale: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """log |M| and log Θ at real u."""
        x = scale.unsqueeze(-1) * u.unsqueeze(1)
        if self.cauchy:
            size, angle = torch.zeros_like(x), x.log()
        else:
            size, angle = log_transform_on_cut(mu.unsqueeze(-1), x)
        out = size.sum(1) * self.copies
        out = out if self.noise is None else out + noise_cgf(self.noise, u)
        return out, logsumexp(angle, 1) + math.log(self.copies)


def log_density_of_heavy_sum(
    d: Distribution, weights: Tensor | None, sets: Sets, y: Tensor, noise: Noise | None = None
) -> Tensor:
    """log density of Σ wₖZₖ, plus noise where given, at y, for StudentT or Cauchy members.

    `sets` have one size; `weights` is (n_sets, K) of any sign or None for ones; `noise` has
    location 0 and one scale. Result in float64. The relative error is about 1e-10 for up to 100
    degrees of freedom, however far out y is, and 1e-7 up to 150. Beyond that it is as good near and
    far, but where a sum has left the reach of a normal one and not yet that of one large member
    (log densities below −80), only a rough value of the logarithm is given, to about 1 %.
    """
    parts: Any = d
    loc, scale = sets.dense(parts.loc).double(), sets.dense(parts.scale)
    cauchy = isinstance(d, Cauchy)
    df = scale.new_zeros(()).expand_as(scale) if cauchy else sets.dense(parts.df)
    copies = 1
    if weights is not None:
        loc, scale = loc * weights, scale * weights.abs()
    elif scale.stride(1) == 0 and df.stride(1) == 0:
        copies, scale, df = scale.shape[1], scale[:, :1], df[:, :1]
    away = y.double() - loc.sum(1)
    y = torch.where(away.detach() < 0, -away, away)
    return _invert(_Heavy(cauchy, copies, noise), y, scale.double(), 0.5 * df.double())


def _invert(heavy: _Heavy, y: Tensor, *tensors: Tensor) -> Tensor:
    nodes = 1 if heavy.cauchy else 64
    centre, outside = Plan(nodes * tensors[0].shape[1] * 2), Plan(nodes * tensors[0].shape[1] * 8)
    with torch.no_grad():
        held = [t.detach() for t in tensors]
        left = _plan_centre(centre, heavy, y.detach(), held)
        _plan_outside(outside, heavy, left, y.detach(), held)

    def near(n: int, constants: Constants, y: Tensor, *tensors: Tensor) -> Tensor:
        return _fourier(heavy, n, constants, y, tensors).sum(1).log()

    def far(n: int, constants: Constants, y: Tensor, *tensors: Tensor) -> Tensor:
        if n == 0:
            return _shared_or_single(heavy, y, *tensors)
        terms, top = _tail_and_core(heavy, n, constants, y, tensors)
        return top + (terms @ clenshaw_curtis(n)[1].to(y)).log()

    return assemble([*centre.evaluate(near, y, *tensors), *outside.evaluate(far, y, *tensors)])


# ---- the centre


def _plan_centre(plan: Plan, heavy: _Heavy, y: Tensor, tensors: list[Tensor]) -> Tensor:
    """Plans the sets for which the Fourier integral keeps its digits; returns the others."""
    # The transform falls to 1/e near `unit`, and to nothing at unit · exp(reach).
    scale, mu = tensors
    order = torch.ones_like(y) if heavy.cauchy else (2 * mu.amin(1)).clamp(max=1)
    high = (6 / (scale * order.sqrt().unsqueeze(1))).amin(1).log()
    low = high - (2 * math.log(scale.shape[1] * heavy.copies) + 8) / order
    if heavy.noise is not None:
        low = torch.minimum(low, -heavy.noise.scale.to(y).log() - 2)
    for _ in range(12):
        middle = 0.5 * (low + high)
        above = heavy.on_axis(middle.exp().unsqueeze(1), *tensors).squeeze(1) > -1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    unit = low.exp()
    reach = torch.full_like(y, 1.2)
    for _ in range(30):
        alive = heavy.on_axis((unit * reach.exp()).unsqueeze(1), *tensors).squeeze(1) > -38
        if not alive.any():
            break
        reach = torch.where(alive, reach * 1.2, reach)

    def sums(n: int, which: Tensor, constants: Constants) -> Sums:
        return trapezoid_sums(_fourier(heavy, n, constants, y[which], [t[which] for t in tensors]))

    sets = torch.arange(len(y), device=y.device)
    slow = y * unit < 8
    rest = plan.refine(sets[slow], [(unit, reach)], sums, steady=1e-8, floor=1e-4)
    return torch.cat([sets[~slow], rest])


def _fourier(
    heavy: _Heavy,
    n: int,
    constants: Constants,
    y: Tensor,
    tensors: list[Tensor] | tuple[Tensor, ...],
) -> Tensor:
    """Terms of 1/π ∫ M(it) cos(ty) dt at t = unit · exp(v − e⁻ᵛ), which crowds towards 0."""
    unit, reach = (t.unsqueeze(1) for t in constants)
    step = (reach + 3.5) / n
    v = -3.5 + step * torch.arange(n + 1, device=y.device)
    t = unit * (v - (-v).exp()).exp()
    dt = t * (1 + (-v).exp()) * (step / math.pi)
    return heavy.on_axis(t, *tensors).exp() * (t * y.unsqueeze(1)).cos() * dt


# ---- outside


def _plan_outside(
    plan: Plan, heavy: _Heavy, which: Tensor, y: Tensor, tensors: list[Tensor]
) -> None:
    if not len(which):
        return
    y_all, y, (scale, mu) = y, y[which], [t[which] for t in tensors]
    if heavy.cauchy:
        most, least = scale.amax(1).reciprocal(), torch.ones_like(y)
    else:
        most, least = (end_of_cut(mu) / scale).amin(1), 2 * mu.amin(1)
    alone = heavy.log_density(y.unsqueeze(1), scale, mu).amax(1)
    if isinstance(heavy.noise, Laplace):
        most = torch.minimum(most, 0.999 / heavy.noise.scale.to(y))
    # s₀: as far out as the core still falls (K' < y), still matters, and the angle is below 1
    high = most.log()
    low = torch.minimum(high, -y.log()) - 12
    near = torch.tensor([1 - 1e-3, 1.0, 1 + 1e-3], dtype=y.dtype, device=y.device)
    for _ in range(14):
        middle = 0.5 * (low + high)
        u = middle.exp()
        size, angle = heavy.on_cut(u.unsqueeze(1) * near[1:], scale, mu)
        slope = (size[:, 1] - size[:, 0]) / (1e-3 * u)
        more = (slope < y) & (angle[:, 0] < 0) & (size[:, 0] - u * y > alone - 50)
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    s0 = low.exp()
    size = heavy.on_cut(s0.unsqueeze(1) * near, scale, mu)[0]
    gap = y - (size[:, 2] - size[:, 0]) / (2e-3 * s0)
    bend = ((size[:, 2] - 2 * size[:, 1] + size[:, 0]) / (1e-3 * s0) ** 2).clamp(min=0)
    width = (bend + gap * gap + 1e-6 / s0**2).rsqrt()

    def own(s: Tensor) -> Tensor:
        return heavy.above(s, scale, mu)

    top = size[:, 1] - s0 * y
    # The tail's integrand is about u^ν exp(−u·y): how far left of s₀, in log u, it still matters.
    order = least + 1
    left = torch.log1p(s0 * y / order) + 38 / order + (76 / order).sqrt()
    # Straight up from a saddle point, bent where the integrand falls already.
    first = torch.where(gap * gap > 0.3 * bend, cot(ANGLES[1]), cot(ANGLES[0]))
    candidates = []
    for ahead in (first, cot(ANGLES[0]) + 0 * y, cot(ANGLES[1]) + 0 * y):
        path = Path(s0, width * ahead, width, width).long_enough(own, y, top)
        whole = torch.ones_like(y_all)  # the plan counts all sets
        candidates.append([whole.index_copy(0, which, t) for t in (*path.constants, left)])

    def sums(n: int, part: Tensor, constants: Constants) -> Sums:
        some = [t[part] for t in tensors]
        terms = _tail_and_core(heavy, n, constants, y_all[part], some)[0]
        fine, coarse, rough = (clenshaw_curtis(n // k)[1].to(y) for k in (1, 2, 4))
        return terms @ fine, terms[:, ::2] @ coarse, terms[:, ::4] @ rough, terms.abs() @ fine

    slack = torch.zeros_like(y_all).index_copy(0, which, 8e-15 * (size[:, 1].abs() + s0 * y))
    for candidate in candidates:
        which = plan.refine(which, [candidate], sums, first=64, steady=3e-6, slack=slack)
    plan.take(0, which, candidates[0])


def _tail_and_core(
    heavy: _Heavy,
    n: int,
    constants: Constants,
    y: Tensor,
    tensors: list[Tensor] | tuple[Tensor, ...],
) -> tuple[Tensor, Tensor]:
    """Both integrands at Clenshaw-Curtis nodes, scaled by exp(−top), and top."""
    path, left = Path(*constants[:4]), constants[4].unsqueeze(1)
    share = clenshaw_curtis(n)[0].to(y)
    centre, length, y = path.centre.unsqueeze(1), path.length.unsqueeze(1), y.unsqueeze(1)
    u = centre * (-left * share).exp()
    size, angle = heavy.on_cut(u, *tensors)
    tail = size + angle + torch.sinc(angle.exp() / math.pi).log() - u * y + (u * left).log()
    s, ds = path.at(length * share)
    core = heavy.above(s, *tensors) - s * y
    ds = ds * length
    top = torch.maximum(tail.amax(1), (core.real + ds.abs().log()).amax(1)).detach()
    down = top.unsqueeze(1)
    return ((tail - down).exp() + ((core - down).exp() * ds).imag) / math.pi, top


def _shared_or_single(heavy: _Heavy, y: Tensor, scale: Tensor, mu: Tensor) -> Tensor:
    """A rough value for where no sum settles: many degrees of freedom, and y too far for a normal.

    Either all members share the way to y, as normal ones would, or one goes all of it.
    """
    spread, extra = scale.square(), torch.zeros_like(y)
    if heavy.noise is not None:
        extra = extra + heavy.noise.variance.to(y)
    total = spread.sum(1) * heavy.copies + extra
    way = y.unsqueeze(1) * (spread / total.unsqueeze(1)).detach()
    shared = heavy.log_density(way, scale, mu) + 0.5 * (2 * math.pi * spread).log()
    core = shared.sum(1) * heavy.copies - 0.5 * (2 * math.pi * total).log()
    if heavy.noise is not None:
        away = y * (extra / total).detach()
        core = core + log_density(heavy.noise, away) + 0.5 * (2 * math.pi * extra).log()
    single = logsumexp(heavy.log_density(y.unsqueeze(1), scale, mu), 1) + math.log(heavy.copies)
    return logaddexp(core, single)
