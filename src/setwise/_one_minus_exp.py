"""The logarithm of what is left of one: log(1 − exp x), with all digits and derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from setwise._autograd import call

__all__ = ["log1mexp"]


def log1mexp(x: Tensor) -> Tensor:
    """log(1 − exp x) for x ≤ 0, accurate at both ends; −inf with gradient zero at x = 0.

    >>> log1mexp(torch.tensor([-1e-30, -40.0, 0.0], dtype=torch.float64))
    tensor([-6.9078e+01, -4.2484e-18,        -inf], dtype=torch.float64)
    """
    return call(_Log1mExp, x)


class _Log1mExp(torch.autograd.Function):
    """log(1 − exp x), whose derivative is s = −1/(exp(−x) − 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        x = x.clamp(max=0)
        return torch.where(x > -math.log(2), (-torch.expm1(x)).log(), torch.log1p(-x.exp()))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * call(_Slope, x)

    jvp = backward  # entry by entry, either way


class _Slope(torch.autograd.Function):
    """s = −1/(exp(−x) − 1), or 0 at x = 0; its derivative is s (1 − s). Never infinite."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        least = -torch.finfo(x.dtype).max / 4
        return torch.where(x >= 0, 0.0, -torch.expm1(-x).reciprocal()).clamp(min=least)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (s,) = ctx.saved_tensors
        out: Tensor = grad * s * (1 - s)
        return out

    jvp = backward
