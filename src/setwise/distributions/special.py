"""Special functions with derivatives of every order, among them a complex log-gamma."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from setwise.numerics import log1mexp

# Bernoulli numbers B₂, B₄, … and the series made of them.
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510),
    *(43867 / 798, -174611 / 330),
)
_STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1))
_LOG1MEXP = tuple(b / (2 * k * math.factorial(2 * k)) for k, b in enumerate(_BERNOULLI, 1))
_W_OVER_SIN = tuple(4**k * abs(c) for k, c in enumerate(_LOG1MEXP, 1))


def with_ends(inside: Tensor, out: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """`out` where x is inside the support; left of it (and at 0) `low`, right of it `high`."""
    return torch.where(inside, out, torch.where(x > 0, high, low).to(out.dtype))


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c₀ + c₁x + c₂x² + …, by Horner's scheme."""
    out = torch.zeros_like(x)
    for c in reversed(coefficients):
        out = c + x * out
    return out


def saturating_exp(x: Tensor) -> Tensor:
    """exp(x), held at a huge finite number where it would overflow; the gradient stays huge too.

    >>> saturating_exp(torch.tensor([0.0, 1e6])).isfinite()
    tensor([True, True])
    """
    fixed = x.detach()
    limit = 0.5 * math.log(torch.finfo(x.dtype).max)
    return (fixed.clamp_max(limit) + (x - fixed)).exp()


def log_sigmoid(x: Tensor) -> Tensor:
    """−log(1 + e⁻ˣ); torch's own has a second derivative without digits for large x.

    >>> log_sigmoid(torch.tensor([-80.0, 0.0]))
    tensor([-80.0000,  -0.6931])
    """
    return log_sigmoids(x)[1]


def log_sigmoids(x: Tensor) -> tuple[Tensor, Tensor]:
    """log(1 / (1 + eˣ)) and log(1 / (1 + e⁻ˣ)), which add up to one as probabilities."""
    left = x < 0
    rest = torch.where(left, x, -x).exp().log1p()
    return torch.where(left, 0.0, -x) - rest, torch.where(left, x, 0.0) - rest


def log1p_square(z: Tensor) -> Tensor:
    """log(1 + z²) without forming z², which would overflow for large z."""
    return 2 * torch.hypot(torch.ones_like(z), z).log()


def log1mexpexp(u: Tensor) -> Tensor:
    """log(1 − exp(−eᵘ)): the log probability of an event with log hazard u.

    For small t = eᵘ it is u + log((1 − e⁻ᵗ)/t) = u − t/2 + t²/24 − t⁴/2880 + …

    >>> log1mexpexp(torch.tensor([-80.0, 0.0]))
    tensor([-80.0000,  -0.4587])
    """
    small = u < -1
    t = torch.where(small, u, -2.0).exp()
    q = t * t
    near = torch.where(small, u, -2.0) - t / 2 + q * polynomial(q, _LOG1MEXP)
    return torch.where(small, near, log1mexp(-saturating_exp(torch.where(small, 0.0, u))))


def log_w_over_sin(w: Tensor) -> Tensor:
    """log(w / sin w) for |Re w| < π: analytic, even, without overflow for large Im w."""
    if not w.is_complex():
        return log_w_over_sin(torch.complex(w, torch.zeros_like(w))).real
    small = w.abs() < 0.5
    near = torch.where(small, w, 0.0)
    q = near * near
    far = torch.where(small, 1j, torch.where(w.imag < 0, -w, w))  # even: take Im w ≥ 0
    iw = 1j * far
    out = (-2 * iw).log() + iw - torch.log(1 - (2 * iw).exp())
    return torch.where(small, q * polynomial(q, _W_OVER_SIN), out)


def lgamma(z: Tensor) -> Tensor:
    """log Γ(z) for Re z > 0, real or complex, analytic (no jumps of 2π), by Stirling's series.

    >>> lgamma(torch.tensor(5.0, dtype=torch.float64)).exp()
    tensor(24.0000, dtype=torch.float64)
    """
    below = torch.zeros_like(z)
    for k in range(0, 10, 2):  # two factors at a time keep the argument inside (−π, π)
        below = below + ((z + k) * (z + (k + 1))).log()
    z = z + 10
    w = z.reciprocal()
    series = w * polynomial(w * w, _STIRLING)
    return (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + series - below


def stirling_error(a: Tensor) -> Tensor:
    """log Γ(a) − ((a − ½) log a − a + log √2π) for a > 0, without cancellation for large a."""
    large = a > 10
    w = torch.where(large, a, 10.0).reciprocal()
    small = torch.where(large, 1.0, a)
    near = lgamma(small) - (small - 0.5) * small.log() + small - 0.5 * math.log(2 * math.pi)
    return torch.where(large, w * polynomial(w * w, _STIRLING), near)
