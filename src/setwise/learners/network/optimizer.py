"""AdamW with clipped gradients, on all parameters of a network at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from setwise._peers import Peers

__all__ = ["Weights"]

BETAS = (0.9, 0.999)

Number = float | Tensor


class Weights:
    """AdamW with clipped gradients, on parameters that are views of one vector.

    The time of a step of a small network is mostly overhead of calls: on one vector the norm, the
    clipping, the decay and the step of all parameters are a call each. Only matrices decay.

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

    def numbers(self, step: int, rate: float) -> tuple[float, float, float]:
        """What step number `step`, counted from 0, with this learning rate needs to know."""
        first, second = (1 - b ** (step + 1) for b in BETAS)
        return rate * self.decay, rate * math.sqrt(second) / first, 1e-8 * math.sqrt(second)

    @torch.no_grad()
    def step(self, decay: Number, rate: Number, least: Number) -> None:
        """One step, by its `numbers`: floats, or tensors on the device."""
        if self.clip is not None:
            norms = [torch.linalg.vector_norm(v.grad) for v in self.vectors]
            norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
            factor = (self.clip / (norm + 1e-6)).clamp_(max=1.0)
            for v in self.vectors:
                v.grad.mul_(factor)
        for v in self.vectors:
            v.mean.lerp_(v.grad, 1 - BETAS[0])
            v.square.mul_(BETAS[1]).addcmul_(v.grad, v.grad, value=1 - BETAS[1])
            v.values.mul_(1 - v.decays * decay)
            v.values.sub_(v.mean / v.square.sqrt().add_(least) * rate)

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
        flat = [p.detach().reshape(-1) for p in parameters]
        self.values = torch.cat(flat)
        self.decays = torch.cat(
            [torch.full_like(f, p.ndim > 1) for f, p in zip(flat, parameters, strict=True)]
        )
        self.grad, self.mean, self.square = (torch.zeros_like(self.values) for _ in range(3))
        begin = 0
        for p in parameters:
            end = begin + p.numel()
            p.data, p.grad = self.values[begin:end].view_as(p), self.grad[begin:end].view_as(p)
            begin = end
