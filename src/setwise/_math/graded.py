"""Values with their derivatives beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from setwise.numerics import at_once, recomputed


class _Graded(torch.autograd.Function):
    """fn of pieces of the tensors, one number per entry, with its derivative beside it."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], step: int, *tensors: Tensor) -> Tensor:
        needed = ctx.needs_input_grad[2:]
        values, grads = [], []
        for part in zip(*(t.split(step) for t in tensors), strict=True):
            if not any(needed):
                values.append(fn(*part))
                continue
            leaves = [t.detach().requires_grad_(n) for t, n in zip(part, needed, strict=True)]
            with torch.enable_grad():
                value = fn(*leaves)
            wanted = [t for t in leaves if t.requires_grad]
            values.append(value.detach())
            grads.append(torch.autograd.grad(value, wanted, torch.ones_like(value)))
        if grads:
            ctx.fn, ctx.step = fn, step
            ctx.save_for_backward(*tensors, *(torch.cat(g) for g in zip(*grads, strict=True)))
        return torch.cat(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        tensors, slopes = ctx.saved_tensors[: len(needed)], ctx.saved_tensors[len(needed) :]
        if torch.is_grad_enabled():
            parts = zip(*(t.split(ctx.step) for t in tensors), strict=True)
            value = torch.cat([recomputed(ctx.fn, *part) for part in parts])
            wanted = [t for t, need in zip(tensors, needed, strict=True) if need]
            out = iter(torch.autograd.grad(value, wanted, grad, create_graph=True))
        else:
            out = iter([grad.reshape(-1, *[1] * (s.ndim - 1)) * s for s in slopes])
        return (None, None, *(next(out) if need else None for need in needed))


def graded(fn: Callable[..., Tensor], *tensors: Tensor, cost: int, budget: int = 1 << 20) -> Tensor:
    """fn of pieces of the tensors along dimension 0, where fn gives one number per entry.

    Like `numerics.chunked`, but the derivative is computed along with the value, piece by piece:
    what it needs is neither kept nor computed again. `cost` is the number of elements that fn needs
    per entry, `budget` what a piece may need on a CPU.

    >>> graded(lambda x: x.square().sum(1), torch.ones(2, 3), cost=3)
    tensor([3., 3.])
    """
    step = max(1, at_once(tensors[0], budget) // max(cost, 1))
    out: Tensor = _Graded.apply(fn, step, *tensors)  # type: ignore[no-untyped-call]
    return out
