"""The sum of a normal and a Laplace variable, in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from setwise.numerics import log_ndtr, logaddexp, mills_series


def log_normal_laplace(x: Tensor, deviation: Tensor, scale: Tensor) -> Tensor:
    """log density at x of a centred normal plus a centred Laplace variable.

    f(x) = exp(τ²/2b²)/2b · [exp(−x/b) Φ(x/τ − τ/b) + exp(x/b) Φ(−x/τ − τ/b)]

    with τ the normal's deviation and b the Laplace's scale; where Φ is small, its exponent and the
    others cancel analytically.
    """
    ratio = deviation / scale
    side = torch.where(x.detach() < 0, -x, x)  # the density is even
    z = side / deviation

    def part(u: Tensor, lift: Tensor) -> Tensor:
        """log of exp(lift) Φ(−u), where lift − u²/2 = −z²/2."""
        inside = u > 0
        above = torch.where(inside, u, 1.0)
        below = torch.where(inside, -1.0, u)
        return torch.where(inside, -0.5 * z * z + _log_mills(above), lift + log_ndtr(-below))

    half = 0.5 * ratio * ratio
    both = logaddexp(part(ratio - z, half - side / scale), part(ratio + z, half + side / scale))
    return both - scale.log() - math.log(2)


def _log_mills(u: Tensor) -> Tensor:
    """log(Φ(−u) exp(u²/2)) for u > 0, with derivatives that do not cancel."""
    far = u > 14
    near = torch.where(far, 1.0, u)
    v = torch.where(far, u, 20.0)
    out = -v.log() - 0.5 * math.log(2 * math.pi) + torch.log1p(mills_series(v))
    return torch.where(far, out, (0.5 * torch.special.erfcx(near * math.sqrt(0.5))).log())
