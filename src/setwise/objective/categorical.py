"""A term for classes: gradient and curvature are what y changes in the members' probabilities.

∂ log p(y)/∂ logit = P(class | y) − P(class), and the diagonal of the Hessian is a difference of
variances, so that first and second order come from one posterior, without a graph. Only products
with the Hessian need one; where there are many sets, a part of them stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setwise.distributions import map_parameters
from setwise.likelihood import evaluate
from setwise.objective.terms import General, GeneralPoint, Point
from setwise.observations import Observations

__all__ = ["Classes", "class_posterior"]

CELLS = 1 << 17  # members times classes that are computed at a time
PART = 1 << 16  # sets that tell well enough what ties rows to one another


def class_posterior(o: Observations, members: Any) -> tuple[Tensor, Tensor]:
    """log p(y) of each set, and P(class | y) of each member: nothing where y is impossible.

    `members` is the distribution of the members. The aggregate is asked where it knows the answer;
    elsewhere it is the derivative of log p(y) in the normalised logits.
    """
    logits = members.logits
    known = getattr(o.aggregate, "class_posterior", None)
    found: tuple[Tensor, Tensor] | None = None
    if known is not None:
        found = known(logits, o.sets, torch.as_tensor(o.y, device=logits.device))
    if found is not None:
        return found
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        each = evaluate(o.aggregate, map_parameters(members, lambda _: leaf), o.sets, o.y)
    (after,) = torch.autograd.grad(each.sum(), leaf)
    return each.detach(), after


class Classes(General):
    """−Σ weight · log p(y) over sets of rows that have classes."""

    @cached_property
    def chunks(self) -> list[Observations]:
        """The observations in parts that stay in a processor's cache while they are computed."""
        cells = len(self.sets.indices) * len(self.family.outputs)
        ends = np.linspace(0, len(self.sets), cells // CELLS + 2).astype(np.int64)
        return [self.observations.take(np.arange(a, b)) for a, b in pairwise(ends) if a < b]

    @cached_property
    def some(self) -> Classes | None:
        """A random part of the sets that stands for all; None where they are few."""
        n = len(self.sets)
        if n <= PART:
            return None
        chosen = np.sort(np.random.default_rng(0).choice(n, PART, replace=False))
        o = self.observations.take(chosen)
        o.weight = self.weight[chosen] * (n / PART)
        return Classes(self.family, o, self.n_rows)

    def in_chunks(self, raw: Tensor) -> Iterator[tuple[Observations, Any]]:
        """The chunks, and the distributions of their members."""
        rows = self.family(raw)
        for o in self.chunks:
            index = o.sets.tensor("indices", raw)
            yield o, map_parameters(rows, partial(torch.index_select, dim=0, index=index))

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set; in chunks where it is not to be differentiated."""
        if not len(self.sets) or (torch.is_grad_enabled() and raw.requires_grad):
            return super().log_likelihood(raw, shared)
        found = [evaluate(o.aggregate, d, o.sets, o.y) for o, d in self.in_chunks(raw)]
        return torch.cat(found)

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        """Everything of first and second order at these parameters."""
        return _ClassesPoint(self, raw.detach(), shared)


class _ClassesPoint(Point):
    """What y changes in the probabilities of the members, and in their variances."""

    def __init__(self, term: Classes, raw: Tensor, shared: Tensor) -> None:
        self.term, self.place, self.shared = term, (raw, shared), torch.zeros_like(shared)
        self.value, self.raw, self.variances = 0.0, torch.zeros_like(raw), torch.zeros_like(raw)
        for o, members in term.in_chunks(raw):
            each, after = class_posterior(o, members)
            before = members.logits.exp()
            change = after - before * after.sum(1, keepdim=True)
            # p(1 − p) − r(1 − r): the variance before y is known, less that after
            variance = change * (change + 2 * before - 1)
            if o.weight is not None:
                weight = torch.from_numpy(o.weight).to(raw)
                each, weight = each * weight, o.sets.repeat(weight).unsqueeze(1)
                change, variance = change * weight, variance * weight
            self.value -= float(each.sum())
            index = o.sets.tensor("indices", raw)
            self.raw.index_add_(0, index, change)
            self.variances.index_add_(0, index, variance)
        self.raw.neg_()

    @cached_property
    def graph(self) -> GeneralPoint:
        return GeneralPoint(self.term, *self.place)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        return self.graph.product(raw, shared)

    def shared_curvature(self) -> Tensor:
        return torch.zeros_like(self.shared)

    def curvature(self) -> Tensor:
        return self.variances

    def part(self) -> Point:
        return self if self.term.some is None else self.term.some.at(*self.place)
