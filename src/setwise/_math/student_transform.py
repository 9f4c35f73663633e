"""The transform of Student's t distribution in the complex plane, where it has no moments.

E exp(s·T) exists only for imaginary s, but continues to the upper half plane: T is normal with
variance 1/W, W ~ Gamma(μ, μ), μ = ν/2, so that with D = s²/2 and W = e^q

    M(s) = μ^μ/Γ(μ) ∫ exp(μq − μe^q + D·e^−q) dq

along a path at whose ends the integrand decays. On the real axis, approached from above, it is
M = A + iB: A is what a moment generating function would be, and B > 0 holds the power law of the
tail. M is a Bessel function, ∝ z^μ K_μ(z) with z = −i√ν·s; the integral also has derivatives in μ.

Abramowitz and Stegun, "Handbook of Mathematical Functions", chapter 9 (9.1.10, 9.3.7, 9.7.8).
"""

from __future__ import annotations

import math

import torch
from numpy.polynomial import Polynomial
from torch import Tensor

_LARGE = 75.0  # μ beyond which Debye's expansion in 1/μ is used
_STEP = 0.18  # of the trapezoidal rule in q, where the integrand is wide
_BLOCK = 1000  # integrals at a time: their terms stay in the cache
_DEEP = 36.0  # the rule ends where the integrand has fallen by exp(−36)


def _debye_polynomials(order: int) -> list[list[float]]:
    """u₁, u₂, …, each as the coefficients of p^k, p^(k+2), …, p^(3k), by their recurrence."""
    p, u, out = Polynomial([0, 1]), Polynomial([1]), []
    for k in range(1, order + 1):
        u = p**2 * (1 - p**2) * u.deriv() / 2 + ((1 - 5 * p**2) * u).integ() / 8
        out.append(u.coef[k::2].tolist())
    return out


_DEBYE = _debye_polynomials(8)


def log_transform(mu: Tensor, x: Tensor) -> Tensor:
    """log M(x) for complex x with arg x in (0, π/2); for real x, log M(ix), which is real.

    `mu` is broadcast against x. The imaginary part is defined up to multiples of 2π.
    """
    d = 0.5 * x * x if x.is_complex() else -0.5 * x * x
    turn = math.pi / 2 - x.detach().angle() if x.is_complex() else None
    return _choose(mu, d, turn)


def log_transform_on_cut(mu: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """log |M(u)| and log arg M(u) for real u > 0 from above, even where arg M is tiny.

    u must not exceed `end_of_cut(mu)`, near which M begins to oscillate.
    """
    d = 0.5 * u * u
    log_a = _choose(mu, d, torch.full_like(d.detach(), math.pi / 2))
    large = (mu.detach() > _LARGE).expand(d.shape)
    # B by the power series of the Bessel function J, alternating but short before its turn.
    m = torch.where(large, 1.0, mu)
    e = m * torch.where(large, 0.01, d)
    series = torch.ones_like(e)
    for j in range(48, 0, -1):
        series = 1 - e / (j * (m + j)) * series
    log_b = m * (e.log()) - torch.lgamma(m) - torch.lgamma(m + 1) + math.log(math.pi) + series.log()
    ratio = log_b - log_a
    if large.any():  # for large μ the ratio B/A = J/−Y has an expansion of its own
        m, e = torch.where(large, mu, 100.0), torch.where(large, d, 1.0)
        r = _root(m, e)
        lift = torch.log1p(r) + 0.5 * (m / (4 * e)).log()  # artanh r
        far = _debye(m, r, 1).log() - _debye(m, r, -1).log() - 2 * m * (lift - r) - math.log(2)
        ratio = torch.where(large, far, ratio)
    b = ratio.exp()
    tiny = b.detach() < 1e-9
    b = torch.where(tiny, 0.5, b)
    return (
        log_a + torch.where(tiny, 0.0, 0.5 * torch.log1p(b * b)),
        ratio + torch.where(tiny, 0.0, (torch.atan(b) / b).log()),
    )


def end_of_cut(mu: Tensor) -> Tensor:
    """How far out on the real axis the transform is evaluated: short of its turning point √ν/2."""
    room = torch.where(mu > _LARGE, (40 / mu.clamp(min=_LARGE)) ** (1 / 3), math.acosh(1.2))
    return (0.5 * mu).sqrt() / room.cosh()


def _choose(mu: Tensor, d: Tensor, turn: Tensor | None) -> Tensor:
    large = (mu.detach() > _LARGE).expand(d.shape)
    if not large.any():
        return _by_quadrature(mu, d, turn)
    far = _by_expansion(torch.where(large, mu, 100.0), torch.where(large, d, -0.5))
    if large.all():
        return far
    near = _by_quadrature(torch.where(large, 1.0, mu), torch.where(large, -0.5, d), turn)
    return torch.where(large, far, near)


def _by_quadrature(mu: Tensor, d: Tensor, turn: Tensor | None) -> Tensor:
    """log M, or log A on the cut (d > 0 real), by the trapezoidal rule in small blocks."""
    given = [t.expand(d.shape) for t in (mu, d, turn) if t is not None]
    # Nodes vary slowest, so that the integrals of a block are alike and need as many terms.
    size = _BLOCK if d.device.type == "cpu" else 64 * _BLOCK
    flat = [t.movedim(-1, 0).reshape(-1).split(size) for t in given]
    out = torch.cat([_trapezoid(*block) for block in zip(*flat, strict=True)])
    out = out.reshape(d.movedim(-1, 0).shape).movedim(0, -1)
    return out + (mu * mu.log() - torch.lgamma(mu))


def _trapezoid(mu: Tensor, d: Tensor, turn: Tensor | None = None) -> Tensor:
    """log ∫ exp(μq − μe^q + d·e^−q) dq along a path over the real axis.

    The path has Im q = 0 on the right and −2·turn on the left, turn = π/2 − arg s, and passes the
    saddle point W₊ = (1 + √(1 − 4d/μ))/2.
    """
    with torch.no_grad():
        m, dd = mu.detach(), d.detach()
        saddle = 0.5 * (1 + _root(m, dd))
        top, other = saddle.log(), dd / saddle
        ref = m * (top - saddle) + other
        centre, left = top.real, _DEEP + other.abs()
        high = centre + 1 + torch.log1p(_DEEP / (m * saddle.abs()))
        low = torch.maximum(centre - left / m - 1, (dd.abs() / left).log() - 0.5)
        narrow = (m * saddle - other).abs() + m ** (2 / 3)
        step = (1.8 * narrow.rsqrt()).clamp(max=1) * (_STEP if turn is not None else 1.5 * _STEP)
        n = int(((high - low) / step).max().clamp(8, 600)) + 1
        step = ((high - low) / n).unsqueeze(-1)
        q = low.unsqueeze(-1) + step * torch.arange(n + 1, device=d.device)
        dq = step
        if turn is not None:
            middle = 0.5 * (dd.abs() / m).log()  # half way between the two saddle points
            steep = (2 / (centre - middle).clamp(min=1e-9)).clamp(0.2, 0.85)
            share = 1 + (top.imag if top.is_complex() else 0.0) / turn
            bend = centre - torch.atanh(share.clamp(-0.9993, 0.9993)) / steep
            bend = torch.maximum(bend, 2 * middle - centre)  # not left of the other saddle point
            t = torch.tanh(steep.unsqueeze(-1) * (q - bend.unsqueeze(-1)))
            wide = turn.unsqueeze(-1)
            dq = step * torch.complex(torch.ones_like(q), wide * steep.unsqueeze(-1) * (1 - t * t))
            q = torch.complex(q, wide * (t - 1))
        fall = (-q).exp()
        grow = q - fall.reciprocal()
    exponent = mu.unsqueeze(-1) * grow + d.unsqueeze(-1) * fall - ref.unsqueeze(-1)
    total = (exponent.exp() * dq).sum(-1)
    if turn is not None and not d.is_complex():
        total = total.real  # on the cut: A
    return total.log() + ref


def _by_expansion(mu: Tensor, d: Tensor) -> Tensor:
    """log M (log A on the cut) by Debye's uniform expansion for large μ."""
    r = _root(mu, d)
    rest = -1 / (12 * mu) + 1 / (360 * mu**3) - 1 / (1260 * mu**5)
    return (
        mu * (1 - r + torch.log1p(0.5 * (r - 1))) - 0.5 * r.log() + _debye(mu, r, -1).log() + rest
    )


def _root(mu: Tensor, d: Tensor) -> Tensor:
    return (1 - 4 * d / mu).sqrt()


def _debye(mu: Tensor, r: Tensor, sign: int) -> Tensor:
    """1 ± u₁(p)/μ + u₂(p)/μ² ± …, p = 1/r."""
    p = r.reciprocal()
    out = torch.ones_like(r)
    for k, coefficients in enumerate(_DEBYE, 1):
        polynomial = torch.zeros_like(p)
        for c in coefficients[::-1]:
            polynomial = polynomial * p * p + c
        out = out + polynomial * (sign * p / mu) ** k
    return out
