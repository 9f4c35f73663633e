"""AdamW with clipped gradients, on all parameters of a network at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from setwise._peers import Peers

__all__ = ["Weights"]

BETAS = (0.9, 0.999)
LEAST = 1e-8
PIECES = 36  # that torch's step works on in parallel, and as many as it takes at once

Number = float | Tensor


class Weights:
    """AdamW with clipped gradients, on parameters that are views of one vector.

    The time of a step of a small network is mostly overhead of calls: on one vector the norm, the
    clipping, the decay and the step of all parameters are a call each. Only matrices decay.
    On CUDA the step is torch's own, which is one kernel; on a CPU that costs more than it saves.

    Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], decay: float, clip: float | None
    ) -> None:
        self.parameters, self.decay, self.clip = list(parameters), decay, clip
        kinds = dict.fromkeys(p.dtype for p in self.parameters)
        self.vectors = [_Vector([p for p in self.parameters if p.dtype == k]) for k in kinds]

    def zero(self) -> None:
        """Forgets the gradients, which stay where they are."""
        for v in self.vectors:
            v.grad.zero_()

    def add(self, peers: Peers) -> None:
        """Makes the gradients the sums of those of all processes."""
        for v in self.vectors if peers.size > 1 else ():
            v.grad.copy_(peers.sum(v.grad))

    @torch.no_grad()
    def step(self, rate: Number, number: Number) -> None:
        """Step `number`, counted from 1, with this learning rate: numbers, or tensors there."""
        scale = None  # what gradients are divided by
        if self.clip is not None:
            norms = [torch.linalg.vector_norm(v.grad) for v in self.vectors]
            norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
            scale = ((norm + 1e-6) / self.clip).clamp_(min=1.0)
        for v in self.vectors:
            if v.values.is_cuda:
                self._fused(v, rate, number, scale)
            else:
                self._called(v, rate, number, scale)

    def _called(self, v: _Vector, rate: Number, number: Number, scale: Tensor | None) -> None:
        first, root = 1 - BETAS[0] ** number, (1 - BETAS[1] ** number) ** 0.5
        if scale is not None:
            v.grad.div_(scale)
        v.mean.lerp_(v.grad, 1 - BETAS[0])
        v.square.mul_(BETAS[1]).addcmul_(v.grad, v.grad, value=1 - BETAS[1])
        v.values[: v.n_decay].mul_(1 - rate * self.decay)
        v.values.sub_(v.mean / v.square.sqrt().add_(LEAST * root) * (rate * root / first))

    def _fused(self, v: _Vector, rate: Number, number: Number, scale: Tensor | None) -> None:
        like = v.values.new_zeros((), dtype=torch.float32)
        steps = number.to(like) if isinstance(number, Tensor) else like + number
        rate = rate.to(like) if isinstance(rate, Tensor) else rate
        scale = scale if scale is None else scale.to(like)
        fused: Any = torch._fused_adamw_
        for decays, pieces in v.pieces.items():
            fused(
                *pieces, [], [steps] * len(pieces[0]), lr=rate, beta1=BETAS[0], beta2=BETAS[1],
                weight_decay=self.decay if decays else 0.0, eps=LEAST, amsgrad=False,
                maximize=False, grad_scale=scale,
            )  # fmt: skip

    def release(self) -> None:
        """Gives every parameter a memory of its own again."""
        for p in self.parameters:
            p.data, p.grad = p.data.clone(), None

    def state(self) -> dict[str, Tensor]:
        """The moments that are kept from step to step, uncopied."""
        moments = {f"mean.{i}": v.mean for i, v in enumerate(self.vectors)}
        return moments | {f"square.{i}": v.square for i, v in enumerate(self.vectors)}


class _Vector:
    """Parameters of one kind one after another, with their gradients and moments."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        parameters = sorted(parameters, key=lambda p: p.ndim <= 1)  # first those that decay
        self.values = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.n_decay = sum(p.numel() for p in parameters if p.ndim > 1)
        self.grad, self.mean, self.square = (torch.zeros_like(self.values) for _ in range(3))
        whole = self.values, self.grad, self.mean, self.square
        parts = {True: slice(self.n_decay), False: slice(self.n_decay, None)}
        self.pieces = {  # by whether they decay
            decays: [list(t[part].chunk(PIECES)) for t in whole]
            for decays, part in parts.items()
            if len(self.values[part])
        }
        begin = 0
        for p in parameters:
            end = begin + p.numel()
            p.data, p.grad = self.values[begin:end].view_as(p), self.grad[begin:end].view_as(p)
            begin = end
