"""A term for classes: gradient and curvature follow from the members' posteriors.

∂ log p(y)/∂ logit = P(class | y) − P(class), and the diagonal of the Hessian is a difference of
variances. Only products with the Hessian need a graph; where there are many sets, a random part of
them stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions import Categorical, Family, map_parameters
from setwise.distributions.base import normalised
from setwise.likelihood import evaluate, find_rule
from setwise.objective.autodiff import AutodiffPoint, AutodiffTerm
from setwise.objective.terms import FirstOrder, Point, added, derivatives
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["ClassTerm", "class_posterior"]

_Chunk = tuple[Sets, Tensor, Tensor, Tensor, Any]
CELLS = 1 << 17  # members times classes that are computed at a time
LEAST = -600.0  # of log p(y) where posteriors are products of probabilities, not of logarithms
PART = 1 << 12, 1 << 16  # sets that products with the Hessian are computed from: a sixteenth


def class_posterior(o: Observations, members: Any) -> tuple[Tensor, Tensor]:
    """log p(y) of each set, and P(class | y) of each individual: zeros where y is impossible.

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
    if o.sets.counts is not None:
        after = after / o.sets.tensor("counts", after).unsqueeze(1)
    return each.detach(), after


class ClassTerm(AutodiffTerm):
    """−Σ weight · log p(y) over sets of rows that have classes."""

    of_classes: ClassVar[bool] = True
    fixed_steps: ClassVar[bool] = False  # posteriors are found in one of two ways, if checked

    @classmethod
    def suits(cls, family: Family, observations: Observations) -> bool:
        return isinstance(family, Categorical)

    @cached_property
    def chunks(self) -> list[Observations]:
        """The observations in parts that stay in a processor's cache while they are computed."""
        o = self.observations
        cells = len(o.sets.indices) * len(self.family.outputs)
        if cells <= CELLS:
            return [o]
        ends = np.linspace(0, len(o), cells // CELLS + 2).astype(np.int64)
        return [o.take(slice(a, b)) for a, b in pairwise(ends) if a < b]

    @cached_property
    def some(self) -> Self | None:
        """A random part of the sets that stands for all; None where they are few."""
        n = self.lot.n
        enough = int(np.clip(n // 16, *PART))
        if n < 2 * enough:  # the part would cost about as much
            return None
        chosen = np.flatnonzero(self.lot.among_first(enough))
        part = self.observations.take(chosen)
        part.weight = self.weight[chosen] * (n / enough)
        out = type(self)(self.family, part, self.n_rows)
        out.slot = None if self.slot is None else self.slot.take(chosen)
        return out

    def in_chunks(self, rows: Distribution) -> Iterator[tuple[Observations, Any]]:
        """The chunks, and the distributions of their members."""
        for o in self.chunks:
            yield o, map_parameters(rows, o.sets.members)

    def posteriors(self, rows: Distribution, like: Tensor) -> Iterator[_Chunk]:
        """For each chunk: its sets, log p(y), log P(class), P(class | y), weights of members."""
        for o, members in self.in_chunks(rows):
            each, after = class_posterior(o, members)
            weight: Any = 1.0
            if o.weight is not None:
                given = torch.as_tensor(o.weight).to(like)
                each, weight = each * given, o.sets.repeat(given).unsqueeze(1)
            if o.sets.counts is not None:
                weight = weight * o.sets.tensor("counts", like).unsqueeze(1)
            yield o.sets, each.sum(), members.logits, after, weight

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set; in chunks where it is not to be differentiated."""
        learns = torch.is_grad_enabled() and (raw.requires_grad or shared.requires_grad)
        if not len(self.sets) or learns or self.slot is not None:
            return super().log_likelihood(raw, shared)
        chunks = self.in_chunks(self.family(raw))
        return torch.cat([evaluate(o.aggregate, d, o.sets, o.y) for o, d in chunks])

    def gradient(self, raw: Tensor, shared: Tensor) -> FirstOrder:
        """Value and gradient, from the posteriors of the members' classes.

        Logits are normalised once per row; the derivative of that, a projection, is done by hand.
        """
        if self.slot is not None:
            return super().gradient(raw, shared)
        raw = raw.detach()
        rows: Any = self.family(raw)
        values: list[Tensor] = []
        total: Any = None
        for sets, value, _, after, weight in self.posteriors(rows, raw):
            values.append(value)
            total = sets.to_rows(after * weight, len(raw), total)
        gradient = rows.logits.exp() * total.sum(1, keepdim=True) - total
        return FirstOrder(-added(values), gradient, torch.zeros_like(shared))

    def learned(self, raw: Tensor, shared: Tensor) -> tuple[list[_Chunk], Tensor]:
        """`posteriors` where there is something to learn, all at once, with the gradient in it."""
        weight = torch.from_numpy(self.member_weight)
        with torch.enable_grad():
            leaf = self.sets.members(raw.detach()).requires_grad_()
            own = shared.detach().clone().requires_grad_()
            value = self.weighted(self.at_members(leaf, own)).sum()
        slopes, at_shared = derivatives(value, [leaf, own])
        weight = weight.to(raw).unsqueeze(1)
        logits = leaf.detach().log_softmax(1)
        after = logits.exp() + torch.where(weight > 0, slopes / weight, 0.0)
        return [(self.sets, value.detach(), logits, after, weight)], -at_shared

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return _ClassPoint(self, raw.detach(), shared)


class _PosteriorPoint(AutodiffPoint):
    """A graph from the members to the gradient at them by posteriors in closed form.

    It has fewer nodes than that of the rule, which is differentiated once more. It is not `good`
    where a closed form is not made of torch's operations, or where a probability nearly underflows.
    """

    def _graph(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        o = self.term.observations
        members: Any = normalised(self.leaf.log_softmax(1))
        each, after = class_posterior(o, members)
        self.good = after.requires_grad and bool(each.min() > LEAST)
        slopes = members.logits.exp() * after.sum(1, keepdim=True) - after
        if o.weight is not None:
            given = torch.as_tensor(o.weight).to(self.leaf)
            each, slopes = each * given, slopes * o.sets.repeat(given).unsqueeze(1)
        return -each.sum(), (slopes, torch.zeros_like(self.leaf_shared))


class _ClassPoint(Point):
    """How y changes the members' probabilities, and their variances."""

    def __init__(self, term: ClassTerm, raw: Tensor, shared: Tensor) -> None:
        self.term, self.place = term, (raw, shared)
        self.shared_gradient = torch.zeros_like(shared)
        self.value, self.gradient = 0.0, torch.zeros_like(raw)
        self.variances = torch.zeros_like(raw)
        if term.slot is None:
            parts: Any = term.posteriors(term.family(raw), raw)
        else:
            parts, self.shared_gradient = term.learned(raw, shared)
        for sets, value, logits, after, weight in parts:
            before = logits.exp()
            change = after - before * after.sum(1, keepdim=True)
            # p(1 − p) − r(1 − r): the variance before y is known, less that after
            variance = change * (change + 2 * before - 1)
            self.value -= float(value)
            sets.to_rows(change * weight, len(raw), self.gradient)
            sets.to_rows(variance * weight, len(raw), self.variances)
        self.gradient.neg_()

    @cached_property
    def graph(self) -> AutodiffPoint:
        term = self.term
        rule = find_rule(type(term.observations.aggregate), term.family.distribution)
        if term.slot is None and term.sets.counts is None and rule.class_posterior is not None:
            point = _PosteriorPoint(term, *self.place)
            if point.good:
                return point
        return AutodiffPoint(term, *self.place)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        return self.graph.product(raw, shared)

    def shared_curvature(self) -> Tensor:
        if self.term.slot is None:
            return torch.zeros_like(self.shared_gradient)
        return self.graph.shared_curvature()

    def curvature(self) -> Tensor:
        return self.variances

    def part(self) -> Point:
        return self if self.term.some is None else self.term.some.at(*self.place)
