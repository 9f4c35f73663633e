"""Products of polynomials with positive coefficients: sums of independent whole numbers.

Nothing is subtracted, so a coefficient has all its digits unless it is below the smallest numbers.
Polynomials are multiplied by pairs of neighbours, pairs of pairs, and so on; of the last product
only what is asked for is computed. A polynomial is (coefficients, …): sets come last, so that each
operation runs along many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class _Convolve(torch.autograd.Function):
    """out_m = Σ_{i+j=m} a_i b_j."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        if len(a) < len(b):
            a, b = b, a
        out = a.new_zeros(len(a) + len(b) - 1, *a.shape[1:])
        for j, factor in enumerate(b):
            out[j : j + len(a)].addcmul_(a, factor)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        need_a, need_b = ctx.needs_input_grad
        return correlate(grad, b) if need_a else None, correlate(grad, a) if need_b else None


class _Correlate(torch.autograd.Function):
    """out_i = Σ_j c_{i+j} b_j."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(c, b)
        n = len(c) - len(b) + 1
        out = c.new_zeros(n, *c.shape[1:])
        if n <= len(b) // 2:
            for i in range(n):
                torch.sum(c[i : i + len(b)] * b, 0, out=out[i])
        else:
            for j, factor in enumerate(b):
                out.addcmul_(c[j : j + n], factor)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        c, b = ctx.saved_tensors
        need_c, need_b = ctx.needs_input_grad
        return convolve(grad, b) if need_c else None, correlate(c, grad) if need_b else None


def convolve(a: Tensor, b: Tensor) -> Tensor:
    """The coefficients of the product, along dimension 0.

    >>> convolve(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor([1., 2., 1.])
    """
    out: Tensor = _Convolve.apply(a, b)  # type: ignore[no-untyped-call]
    return out


def correlate(c: Tensor, b: Tensor) -> Tensor:
    """Σ_j c_{i+j} b_j for each i: what `convolve` is transposed.

    >>> correlate(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 1.0]))
    tensor([3., 6.])
    """
    out: Tensor = _Correlate.apply(c, b)  # type: ignore[no-untyped-call]
    return out


def halves(p: Tensor) -> tuple[Tensor, Tensor]:
    """Two polynomials, the longer one first, whose product is that of p (coefficients, K, sets)."""
    rest: list[Tensor] = []
    while p.shape[1] > 2 or (rest and p.shape[1] == 2):
        if p.shape[1] % 2:
            rest.append(p[:, -1])
        p = convolve(p[:, : p.shape[1] // 2 * 2 : 2], p[:, 1::2])
    if p.shape[1] == 2:
        return p[:, 0], p[:, 1]
    other = rest[0] if rest else torch.ones_like(p[:1, 0])
    for factor in rest[1:]:
        other = convolve(other, factor)
    return (p[:, 0], other) if len(p) >= len(other) else (other, p[:, 0])


def coefficient_of_product(p: Tensor, power: Tensor) -> Tensor:
    """The coefficient of x^power in the product of polynomials (coefficients, K, sets).

    >>> coefficient_of_product(torch.ones(2, 3, 1), torch.tensor([2]))
    tensor([3.])
    """
    long, short = halves(p)
    at = power - torch.arange(len(short), device=p.device).unsqueeze(1)
    inside = (at >= 0) & (at < len(long))
    return (long.gather(0, at.clamp(0, len(long) - 1)) * short * inside).sum(0)


def mixture_of_product(p: Tensor, weight: Tensor) -> Tensor:
    """Σ_v weight_v [x^v] of the product of polynomials (coefficients, K, sets)."""
    long, short = halves(p)
    return (correlate(weight, short) * long).sum(0)


def tree_product(
    parts: Sequence[Tensor], multiply: Callable[..., Sequence[Tensor]] = lambda x, y: [x[0] * y[0]]
) -> list[Tensor]:
    """The product over dimension 1, in order, of things of several parts, by pairs of neighbours.

    >>> tree_product([torch.tensor([[2.0, 3.0, 4.0]])])
    [tensor([24.])]
    """
    while (size := parts[0].shape[1]) > 1:
        paired = multiply([t[:, 0 : size - 1 : 2] for t in parts], [t[:, 1::2] for t in parts])
        if size % 2:
            paired = [torch.cat([t, u[:, -1:]], 1) for t, u in zip(paired, parts, strict=True)]
        parts = paired
    return [t[:, 0] for t in parts]
