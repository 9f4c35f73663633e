"""A term for classes: gradient and curvature follow from the members' posteriors.

∂ log p(y)/∂ logit = P(class | y) − P(class), and the diagonal of the Hessian is a difference of
variances. Only products with the Hessian need a graph; where there are many sets, a random part of
them stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions import Categorical, Family, map_parameters
from setwise.likelihood import evaluate, find_rule
from setwise.objective.autodiff import AutodiffPoint, AutodiffTerm
from setwise.objective.terms import FirstOrder, Point, added
from setwise.observations import Observations

__all__ = ["ClassTerm", "class_posterior"]

_Chunk = tuple[Tensor, Tensor, Tensor, Tensor, Any]
CELLS = 1 << 17  # members times classes that are computed at a time
PART = 1 << 12, 1 << 16  # sets that products with the Hessian are computed from: a sixteenth


def class_posterior(o: Observations, members: Any) -> tuple[Tensor, Tensor]:
    """log p(y) of each set, and P(class | y) of each member: zeros where y is impossible.

    `members` is the distribution of the members. Without a closed form that is registered with the
    likelihood rule, it is the derivative of log p(y) in the normalised logits.
    """
    closed = find_rule(type(o.aggregate), type(members)).class_posterior
    if closed is not None:
        y = torch.as_tensor(o.y, device=members.logits.device)
        found = closed(o.aggregate, members, o.sets.flat, y)
        if found is not None:
            return found
    leaf = members.logits.detach().requires_grad_()
    with torch.enable_grad():
        each = evaluate(o.aggregate, map_parameters(members, lambda _: leaf), o.sets, o.y)
    (after,) = torch.autograd.grad(each.sum(), leaf)
    return each.detach(), after


class ClassTerm(AutodiffTerm):
    """−Σ weight · log p(y) over sets of rows that have classes."""

    of_classes: ClassVar[bool] = True

    @classmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        return isinstance(family, Categorical)

    @cached_property
    def chunks(self) -> list[Observations]:
        """The observations in parts that stay in a processor's cache while they are computed."""
        cells = len(self.sets.indices) * len(self.family.outputs)
        if cells <= CELLS:
            return [self.observations]
        ends = np.linspace(0, len(self.sets), cells // CELLS + 2).astype(np.int64)
        return [self.observations.take(slice(a, b)) for a, b in pairwise(ends) if a < b]

    @cached_property
    def some(self) -> Self | None:
        """A random part of the sets that stands for all; None where they are few."""
        n = len(self.sets)
        enough = int(np.clip(n // 16, *PART))
        if n < 2 * enough:  # the part would cost about as much
            return None
        chosen = np.sort(np.random.default_rng(0).choice(n, enough, replace=False))
        part = self.observations.take(chosen)
        part.weight = self.weight[chosen] * (n / enough)
        return type(self)(self.family, part, self.n_rows)

    def in_chunks(self, rows: Distribution, like: Tensor) -> Iterator[tuple[Observations, Any]]:
        """The chunks, and the distributions of their members."""
        for o in self.chunks:
            index = o.sets.tensor("indices", like)
            yield o, map_parameters(rows, partial(torch.index_select, dim=0, index=index))

    def posteriors(self, rows: Distribution, like: Tensor) -> Iterator[_Chunk]:
        """For each chunk: the members' rows, log p(y), log P(class), P(class | y), weights."""
        for o, members in self.in_chunks(rows, like):
            each, after = class_posterior(o, members)
            weight: Any = 1.0
            if o.weight is not None:
                given = torch.from_numpy(o.weight).to(like)
                each, weight = each * given, o.sets.repeat(given).unsqueeze(1)
            yield o.sets.tensor("indices", like), each.sum(), members.logits, after, weight

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set; in chunks where it is not to be differentiated."""
        if not len(self.sets) or (torch.is_grad_enabled() and raw.requires_grad):
            return super().log_likelihood(raw, shared)
        chunks = self.in_chunks(self.family(raw), raw)
        return torch.cat([evaluate(o.aggregate, d, o.sets, o.y) for o, d in chunks])

    def gradient(self, raw: Tensor, shared: Tensor) -> FirstOrder:
        """Value and gradient, from the posteriors of the members' classes.

        Logits are normalised once per row; the derivative of that, a projection, is done by hand.
        """
        raw = raw.detach()
        rows: Any = self.family(raw)
        values, total = [], torch.zeros_like(raw)
        for index, value, _, after, weight in self.posteriors(rows, raw):
            values.append(value)
            total.index_add_(0, index, after * weight)
        gradient = rows.logits.exp() * total.sum(1, keepdim=True) - total
        return FirstOrder(-added(values), gradient, torch.zeros_like(shared))

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return _ClassPoint(self, raw.detach(), shared)


class _ClassPoint(Point):
    """The change of the members' probabilities by y, and of their variances."""

    def __init__(self, term: ClassTerm, raw: Tensor, shared: Tensor) -> None:
        self.term, self.place = term, (raw, shared)
        self.shared_gradient = torch.zeros_like(shared)
        self.value, self.gradient = 0.0, torch.zeros_like(raw)
        self.variances = torch.zeros_like(raw)
        for index, value, logits, after, weight in term.posteriors(term.family(raw), raw):
            before = logits.exp()
            change = after - before * after.sum(1, keepdim=True)
            # p(1 − p) − r(1 − r): the variance before y is known, less that after
            variance = change * (change + 2 * before - 1)
            self.value -= float(value)
            self.gradient.index_add_(0, index, change * weight)
            self.variances.index_add_(0, index, variance * weight)
        self.gradient.neg_()

    @cached_property
    def graph(self) -> AutodiffPoint:
        return AutodiffPoint(self.term, *self.place)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        return self.graph.product(raw, shared)

    def shared_curvature(self) -> Tensor:
        return torch.zeros_like(self.shared_gradient)

    def curvature(self) -> Tensor:
        return self.variances

    def part(self) -> Point:
        return self if self.term.some is None else self.term.some.at(*self.place)
