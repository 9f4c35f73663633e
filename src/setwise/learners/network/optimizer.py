"""One step of a network: derivatives of the likelihood at the rows, and AdamW on one vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution

from setwise.distributions import Categorical, Family, Normal, map_parameters
from setwise.likelihood import evaluate
from setwise.objective import Objective
from setwise.objective.categorical import class_posterior
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Weights", "gradient"]

BETAS = (0.9, 0.999)

Floats = NDArray[np.float64]


def gradient(objective: Objective, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of these observations, and its derivatives in `raw` and in `shared`.

    Taken at the members and added up per row, or in closed form where there is one: beside a small
    network, a graph from the rows through the members would cost as much as another layer.
    """
    raw, shared = raw.detach(), shared.detach()
    family = objective.family
    total = raw.new_zeros((), dtype=torch.float64), torch.zeros_like(raw), torch.zeros_like(shared)
    found: Sequence[Tensor | float]
    for o in objective.observations:
        linear = None
        if isinstance(family, Normal) and family.scale != "predicted" and raw.device.type == "cpu":
            linear = o.aggregate.linear(o.sets)
        if linear is not None and isinstance(family, Normal):
            found = _gaussian(family, o, raw, shared, *linear)
        elif isinstance(family, Categorical):
            found = _classes(family, o, raw)
        else:
            found = _general(family, o, raw, shared)
        for i in range(3):
            total[i].add_(found[i])
    return total


def _loss(o: Observations, members: Distribution, like: Tensor) -> Tensor:
    each = evaluate(o.aggregate, members, o.sets, o.y)
    return -(each if o.weight is None else each * torch.from_numpy(o.weight).to(like)).sum()


def _general(
    family: Family, o: Observations, raw: Tensor, shared: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    index = o.sets.tensor("indices", raw)
    with torch.enable_grad():
        leaf, own = raw.index_select(0, index).requires_grad_(), shared.clone().requires_grad_()
        loss = _loss(o, family(leaf, own), raw)
    at_leaf, at_shared = torch.autograd.grad(
        loss, (leaf, own), allow_unused=True, materialize_grads=True
    )
    return loss.detach(), torch.zeros_like(raw).index_add_(0, index, at_leaf), at_shared


def _classes(family: Categorical, o: Observations, raw: Tensor) -> tuple[Tensor, Tensor, float]:
    """∂ log p(y)/∂ logit = P(class | y) − P(class).

    Logits are normalised once per row, and the derivative of that, a projection, is done by hand.
    """
    index = o.sets.tensor("indices", raw)
    rows: Any = family(raw)
    each, after = class_posterior(o, map_parameters(rows, lambda x: x.index_select(0, index)))
    if o.weight is not None:
        weight = torch.from_numpy(o.weight).to(raw)
        each, after = each * weight, after * o.sets.repeat(weight).unsqueeze(1)
    slope = torch.zeros_like(raw).index_add_(0, index, -after)  # `alpha` would be slower
    return -each.sum(), slope - rows.logits.exp() * slope.sum(1, keepdim=True), 0.0


def _gaussian(
    family: Normal, o: Observations, raw: Tensor, shared: Tensor, a: Floats, noise: float
) -> tuple[float, Tensor, Tensor]:
    """y ~ N(Σ a·loc, scale²·Σ a² + noise): a few lines of numpy, which is quicker to call."""
    sets, y = o.sets, o.y
    assert y is not None
    scale = math.exp(float(shared[0])) if len(shared) else float(family.scale)
    variance = _sums(sets, a * a) * scale**2 + noise
    rest = y - _sums(sets, a * raw.numpy()[sets.indices, 0])
    weight = np.ones(len(y)) if o.weight is None else o.weight
    pull = weight * rest / variance
    loss = 0.5 * float(rest @ pull + weight @ np.log(2 * math.pi * variance))
    size = sets.sizes if sets.size is None else sets.size
    at_rows = np.bincount(sets.indices, -a * np.repeat(pull, size), len(raw))
    share = 1 - noise / variance
    at_shared = shared.new_full(shared.shape, float(share @ (weight - rest * pull)))
    return loss, torch.from_numpy(at_rows).unsqueeze(1), at_shared


def _sums(sets: Sets, members: Floats) -> Floats:
    if sets.size is not None:
        return np.asarray(members.reshape(-1, sets.size).sum(1))
    return np.add.reduceat(members, sets.offsets[:-1])


class Weights:
    """AdamW with clipped gradients, on parameters that are views of one vector.

    A step of a small network is mostly the calls that it takes: on one vector the norm, the
    clipping, the decay and the step of all parameters are a call each. Only matrices decay.

    Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], decay: float, clip: float | None
    ) -> None:
        self.parameters, self.decay, self.clip = list(parameters), decay, clip
        kinds = dict.fromkeys(p.dtype for p in self.parameters)
        self.vectors = [_Vector([p for p in self.parameters if p.dtype == k]) for k in kinds]
        self.steps = 0

    def zero(self) -> None:
        """Forgets the gradients, which stay where they are."""
        for v in self.vectors:
            v.grad.zero_()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step with this learning rate."""
        if self.clip is not None:
            norms = [torch.linalg.vector_norm(v.grad) for v in self.vectors]
            norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
            factor = (self.clip / (norm + 1e-6)).clamp_(max=1.0)
            for v in self.vectors:
                v.grad.mul_(factor)
        self.steps += 1
        first, second = (1 - b**self.steps for b in BETAS)
        for v in self.vectors:
            v.values.addcmul_(v.values, v.decays, value=-rate * self.decay)
            v.mean.lerp_(v.grad, 1 - BETAS[0])
            v.square.mul_(BETAS[1]).addcmul_(v.grad, v.grad, value=1 - BETAS[1])
            size = v.square.sqrt().add_(1e-8 * math.sqrt(second))
            v.values.addcdiv_(v.mean, size, value=-rate * math.sqrt(second) / first)

    def release(self) -> None:
        """Gives every parameter a memory of its own again."""
        for p in self.parameters:
            p.data, p.grad = p.data.clone(), None

    def state(self) -> dict[str, Tensor]:
        """What is remembered from step to step, as it is."""
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
