"""Numerical primitives whose values *and* derivatives of every order stay finite.

Two conventions: a branch of `torch.where` that is not taken gets a harmless argument (otherwise
autograd multiplies 0 by inf), and an empty sum in log space is −inf with gradient zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from setwise._autograd import call
from setwise._one_minus_exp import log1mexp

__all__ = [
    "at_once",
    "chunked",
    "gather",
    "log1mexp",
    "log_ndtr",
    "log_others",
    "logaddexp",
    "logcumsumexp",
    "logsubexp",
    "logsumexp",
    "others",
    "planned",
    "recomputed",
    "scatter_sum",
    "segment_logsumexp",
]

_DEVICE_ELEMENTS = 1 << 26  # enough to fill a device
_BYTES = 128  # of a device's memory for one element of what is computed together


def at_once(like: Tensor, elements: int = 1 << 20) -> int:
    """How many elements to compute together: `elements`, about what the caches of a CPU hold.

    On a device more of them, where every call costs as much as a million.
    """
    if like.device.type == "cpu":
        return elements
    total = torch.cuda.get_device_properties(like.device).total_memory if like.is_cuda else 0
    return max(elements, _DEVICE_ELEMENTS, total // _BYTES)


def gather(values: Tensor, index: Tensor) -> Tensor:
    """Rows of `values` by number: five times cheaper to differentiate than `values[index]`.

    >>> gather(torch.tensor([10.0, 20.0, 30.0]), torch.tensor([2, 0, 2]))
    tensor([30., 10., 30.])
    """
    return values.index_select(0, index)


def scatter_sum(values: Tensor, index: Tensor, n: int) -> Tensor:
    """Sum of the rows of `values` that share an index, as a tensor of `n` rows.

    >>> scatter_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 0, 1]), 2)
    tensor([2., 5.])
    """
    return values.new_zeros((n, *values.shape[1:])).index_add_(0, index, values)


def _finite(top: Tensor) -> Tensor:
    """The largest exponent, or 0 where there is none."""
    return torch.where(top.isfinite(), top, 0.0)


def _log(total: Tensor) -> Tensor:
    """log; −inf with gradient zero at 0."""
    empty = total == 0
    return torch.where(empty, -math.inf, torch.where(empty, 1.0, total).log())


def logsumexp(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """log Σ exp(x); −inf with gradient zero where every term is −inf (torch gives NaN there).

    >>> logsumexp(torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]), 1)
    tensor([0.6931,   -inf])
    """
    top = _finite(x.detach().amax(dim, keepdim=True))
    out = _log((x - top).exp().sum(dim, keepdim=True)) + top
    return out if keepdim else out.squeeze(dim)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b); −inf with gradient zero where both are −inf.

    >>> logaddexp(torch.tensor([0.0, -torch.inf]), torch.tensor([0.0, -torch.inf]))
    tensor([0.6931,   -inf])
    """
    top = _finite(torch.maximum(a.detach(), b.detach()))
    return _log((a - top).exp() + (b - top).exp()) + top


def logsubexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a − exp b) for a ≥ b; −inf with gradient zero where they are equal.

    >>> logsubexp(torch.tensor([0.0, -torch.inf]), torch.tensor([-torch.inf, -torch.inf]))
    tensor([0., -inf])
    """
    gone = a == -math.inf
    a = torch.where(gone, 0.0, a)
    b = torch.where(gone, 0.0, b)
    return a + log1mexp(torch.minimum(b - a, torch.zeros_like(a)))


class _LogNdtr(torch.autograd.Function):
    """log Φ; one evaluation of erfcx gives the value and the derivative φ/Φ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        left = x < 0
        scaled = torch.special.erfcx(x.abs() * math.sqrt(0.5)).mul_(0.5)  # Φ(−|x|) exp(x²/2)
        square = x * x * -0.5
        bell = square.exp()
        upper = scaled * bell
        out = torch.where(left, scaled.log() + square, torch.log1p(-upper))
        if ctx.needs_input_grad[0]:
            mills = torch.where(left, scaled.reciprocal(), bell / (1 - upper))
            ctx.save_for_backward(x, mills.mul_(1 / math.sqrt(2 * math.pi)))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, mills = ctx.saved_tensors
        if torch.is_grad_enabled():
            mills = call(_Mills, x, mills.detach())
        out: Tensor = grad * mills
        return out


class _Mills(torch.autograd.Function):
    """m = φ/Φ, already computed, with its derivative −m (x + m).

    Far left x + m = −x u (1 − 3u + 15u² − …)/(1 − u + 3u² − …), u = 1/x², does not cancel.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mills: Tensor) -> Tensor:
        ctx.save_for_backward(x, mills)
        return mills.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, mills = ctx.saved_tensors
        far = x < -14
        x_far = torch.where(far, x, -20.0)
        series = mills_series(x_far)
        excess = torch.where(far, x_far * series / (1 + series), x + mills)
        return -grad * mills * excess, None


def mills_series(x: Tensor) -> Tensor:
    """|x| Φ(−|x|)/φ(x) − 1 = Σ (−1)ⁿ (2n−1)!! x⁻²ⁿ for |x| > 14, by Horner's rule."""
    u = (x * x).reciprocal()
    series = torch.zeros_like(u)
    for n in range(12, 0, -1):
        series = -(2 * n - 1) * u * (1 + series)
    return series


def log_ndtr(x: Tensor) -> Tensor:
    """log Φ(x), the standard normal log-cdf; value and two derivatives exact however far out.

    Left of 0 it is log erfcx(−x/√2) − x²/2 − log 2, which keeps its digits; torch's own has a
    derivative that overflows there.

    >>> log_ndtr(torch.tensor([0.0, -1e6], dtype=torch.float64))
    tensor([-6.9315e-01, -5.0000e+11], dtype=torch.float64)
    """
    return call(_LogNdtr, x)


class _Recompute(torch.autograd.Function):
    """fn(*tensors) that keeps only its inputs and runs again when a derivative is wanted."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(*tensors)
        return fn(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        twice = torch.is_grad_enabled()
        needed = ctx.needs_input_grad[1:]
        inputs = [
            t if twice else t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            out = ctx.fn(*inputs)
            wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
            grads = iter(
                torch.autograd.grad(out, wanted, grad, create_graph=twice, allow_unused=True)
            )
        return (None, *(next(grads) if need else None for need in needed))


def recomputed(fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """fn(*tensors); what it computes on the way is computed again for the derivative, not kept.

    >>> recomputed(torch.exp, torch.zeros(2))
    tensor([1., 1.])
    """
    return call(_Recompute, fn, *tensors)


def planned(
    plan: Callable[..., Callable[..., Tensor]],
    *tensors: Tensor,
    cost: int,
    budget: int = 1 << 20,
) -> Tensor:
    """plan(*tensors)(*tensors) on pieces of the tensors along dimension 0; see `chunked`.

    `plan` runs once for each piece and without derivatives, such as to choose nodes; the function
    that it returns is differentiated and, if there are several pieces, computed again for it.
    """
    step = max(1, at_once(tensors[0], budget) // max(cost, 1))
    if len(tensors[0]) <= step:  # one piece: keeping it is cheaper than computing it again
        return torch.no_grad()(plan)(*tensors)(*tensors)
    # split, not slices: the derivative of a slice is as large as the whole tensor
    parts = zip(*(t.split(step) for t in tensors), strict=True)
    return torch.cat([recomputed(torch.no_grad()(plan)(*part), *part) for part in parts])


def chunked(
    fn: Callable[..., Tensor], *tensors: Tensor, cost: int, budget: int = 1 << 20
) -> Tensor:
    """fn applied to pieces of the tensors along dimension 0, in memory that does not grow.

    `cost` is the number of elements fn needs per entry of dimension 0. What fn computes on the way
    is not kept but computed again in the backward pass, so memory is that of one piece. Derivatives
    of every order work. Every tensor that fn differentiates must be passed as an argument.
    `budget` is the number of elements a piece may need on a CPU, by default about what the caches
    hold.

    >>> chunked(lambda x: (x[:, None] * torch.arange(3)).sum(1), torch.ones(4), cost=3)
    tensor([3., 3., 3., 3.])
    """
    return planned(lambda *_: fn, *tensors, cost=cost, budget=budget)


def segment_logsumexp(x: Tensor, ids: Tensor, n: int) -> Tensor:
    """log Σ exp over the entries of dimension 0 that share an id, as a tensor of `n` rows.

    >>> segment_logsumexp(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    tensor([0.6931,   -inf, 5.0000])
    """
    index = ids.reshape(-1, *[1] * (x.ndim - 1)).expand_as(x)
    top = x.new_full((n, *x.shape[1:]), -math.inf)
    top = _finite(top.scatter_reduce(0, index, x.detach(), "amax"))
    return _log(scatter_sum((x - top[ids]).exp(), ids, n)) + top


class _LogCumSum(torch.autograd.Function):
    """Running log Σ exp along the last dimension; its derivative is `_Running`, to any order.

    torch's own second derivative takes the logarithm of the gradient and is NaN where that is 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.logcumsumexp(x, -1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return call(_Running, *ctx.saved_tensors, grad, True)


class _Running(torch.autograd.Function):
    """Jv, or Jᵀv if `transposed`, where J_ij = exp(x_j − out_i) for j ≤ i and 0 otherwise.

    The derivative of v·Jᵀg = g·Jv with respect to x is v·Jᵀg − Jᵀ(g·Jv), elementwise.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor, v: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(x, out, v)
        ctx.transposed = transposed
        out = torch.where(out == -math.inf, math.inf, out)

        def apply(log_v: Tensor) -> Tensor:
            if transposed:
                return (torch.logcumsumexp((log_v - out).flip(-1), -1).flip(-1) + x).exp()
            return (torch.logcumsumexp(log_v + x, -1) - out).exp()

        return apply(v.clamp_min(0).log()) - apply((-v).clamp_min(0).log())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, None]:
        x, out, given = ctx.saved_tensors
        g, v = (given, grad) if ctx.transposed else (grad, given)
        forward, back = call(_Running, x, out, v, False), call(_Running, x, out, g, True)
        inner = v * back - call(_Running, x, out, g * forward, True)
        return inner, None, forward if ctx.transposed else back, None


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Running log Σ exp along a dimension; leading −inf entries keep gradient zero.

    >>> logcumsumexp(torch.tensor([-torch.inf, 0.0, 0.0]), 0)
    tensor([  -inf, 0.0000, 0.6931])
    """
    return call(_LogCumSum, x.movedim(dim, -1)).movedim(-1, dim)


def others(p: Tensor) -> Tensor:
    """Σ of all other entries along the last dimension: 1 − p of probabilities, not by subtraction.

    One matrix product: for few entries much quicker than logarithms.

    >>> others(torch.tensor([1.0, 1e-20, 0.0]))
    tensor([1.0000e-20, 1.0000e+00, 1.0000e+00])
    """
    return p @ _all_but_one(p.shape[-1], p.dtype, p.device)


@lru_cache(maxsize=64)
def _all_but_one(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Ones, but 0 on the diagonal."""
    with torch.inference_mode(False):  # wherever it is first asked for, others differentiate it
        diagonal = torch.eye(n, dtype=dtype, device=device)
        return torch.ones_like(diagonal) - diagonal


def log_others(logp: Tensor) -> Tensor:
    """log(1 − p) of normalised log-probabilities along the last dimension, without cancellation.

    For the most probable class the others are added up; every other class has p ≤ 1/2.

    >>> log_others(torch.tensor([0.0, -50.0, -60.0], dtype=torch.float64))
    tensor([-5.0000e+01, -1.9287e-22, -8.7565e-27], dtype=torch.float64)
    """
    if logp.shape[-1] == 2:
        return logp.flip(-1)
    top = logp.argmax(-1, keepdim=True)
    rest = logsumexp(logp.scatter(-1, top, -math.inf), -1, keepdim=True)
    others = torch.log1p(-logp.scatter(-1, top, -1.0).exp())
    return others.scatter(-1, top, rest)
