"""RandomEffect: members of a set that are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Normal, Poisson

from setwise._math.adaptive_nodes import NUMBER, Nodes, adapted, prior
from setwise.distributions import (
    Family,
    double,
    family_of,
    map_parameters,
    parameters,
    shifted,
)
from setwise.likelihood import (
    LEARNED,
    Aggregate,
    Conditioned,
    Outcome,
    SetSizes,
    Targets,
    Unknown,
    evaluate,
    likelihood,
)
from setwise.likelihood.aggregate import Pairs
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["RandomEffect"]

AT_ONCE = 1 << 14  # members, counted at each place, of which the rule is asked at once
FIRST = 0.5  # the scale with which a fit begins, of log odds and of logarithms of means


@dataclass(frozen=True)
class RandomEffect(Aggregate):
    """The observation of another aggregate, of sets whose members are alike.

    All members of a set share a shift u ~ N(0, scale²), which no feature explains: of the location,
    of the logarithm of the mean (families on z ≥ 0), or of the log odds of any two classes. Then
    log p(y) = log ∫ N(u; 0, scale²) p(y | members shifted by u) du. A scale that is "learned" is a
    parameter of the fit, with `Observations(…, by=…)` one for each group of sets.

    Closed form for sums and means of normal targets. Elsewhere adaptive Gauss–Hermite integration,
    7 nodes for one shift and 5 × 5 for the two of three classes; more classes are refused. The
    error of log p is below 1e-3 where scale is at most 1, for most sets below 1e-5, and below 0.01
    where it is 1.5; more where p(y | u) has kinks or heavy tails (0.04 for single Laplace targets).
    What is predicted of a row is that of a set with u = 0.

    >>> import setwise as sw
    >>> rows = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    >>> sw.log_likelihood(RandomEffect(sw.Mean(), scale=1.0), rows, sw.Sets([[0, 1, 2, 3]]), [1.0])
    tensor([-1.4305])

    Liu and Pierce, "A note on Gauss–Hermite quadrature", Biometrika 1994.
    """

    aggregate: Aggregate
    scale: float | str = LEARNED

    learnable: ClassVar[tuple[str, ...]] = ("scale",)
    shares: ClassVar[bool] = True
    not_on_command_line = "give the aggregate as --observe, what members share as --effect learned"

    def __post_init__(self) -> None:
        if self.aggregate.shares:
            raise TypeError(f"members of sets have one effect: {self.aggregate!r} has one already")
        for name in ("size", "symmetric", "of_differences", "distinct"):
            object.__setattr__(self, name, getattr(self.aggregate, name))
        value = self.scale
        if isinstance(value, str):
            if value != LEARNED:
                raise ValueError(f'scale is a positive number or "learned", got {value!r}')
        elif not (math.isfinite(value) and value > 0):
            raise ValueError(
                f"scale is a positive number, got {value}; without an effect leave RandomEffect out"
            )

    # ---- what does not depend on the effect

    @property
    def bare(self) -> Aggregate:
        return self.aggregate.bare

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        """T of the targets, which hold what members share already."""
        return self.aggregate.apply(z, sets, rng)

    def arrange(self, z: Tensor, sets: Sets) -> Sets:
        return self.aggregate.arrange(z, sets)

    def outcome(self, targets: Targets, size: int | None) -> Outcome:
        return self.aggregate.outcome(targets, size)

    def set_sizes(self, targets: Targets) -> SetSizes:
        return self.aggregate.set_sizes(targets)

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        return self.aggregate.check_y(sets, y)

    def informative(self, targets: Targets, size: int) -> bool:
        return self.aggregate.informative(targets, size)

    def alike(self, sets: Sets, y: NDArray[Any]) -> Pairs | None:
        return self.aggregate.alike(sets, y)

    def with_classes(self, n_classes: int) -> Self:
        return replace(self, aggregate=self.aggregate.with_classes(n_classes))

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return []  # which there are depends on the family: give one to `check_aggregate`

    # ---- the effect

    def unknown(self, family: Family, y: Any = None) -> tuple[Unknown, ...]:
        inner = self.aggregate.unknown(family, y)
        if self.scale != LEARNED:
            return inner
        spread = 2 * FIRST
        if family.located and y is not None:
            seen = np.asarray(y, float)
            spread = float(seen[np.isfinite(seen)].std())
        return (Unknown("scale of effect", math.log(spread / 2) if spread > 0 else 0.0), *inner)

    def scales(self, sets: Sets, like: Tensor) -> Tensor:
        """The scale of each set."""
        if isinstance(self.scale, str):
            raise ValueError(f"{self!r} has something to learn: give a number for its scale")
        return torch.as_tensor(self.scale).to(like).expand(len(sets))

    def drawn(self, members: Distribution, sets: Sets, rng: np.random.Generator) -> Distribution:
        """The members of sets whose shifts are drawn."""
        k, like = _shifts(members), next(iter(_tensors(members)))
        u = rng.normal(size=(len(sets), k))
        return shifted(members, self.scales(sets, like)[:, None] * torch.from_numpy(u), sets.repeat)

    def expected(self, members: Distribution, sets: Sets) -> Tensor | None:
        """The mean over the shift."""
        like = next(iter(_tensors(members)))
        total: Any = 0.0
        nodes = prior(self.scales(sets, like), _shifts(members))
        for u, log_weight in zip(*nodes, strict=True):
            one = self.aggregate.expected(shifted(members, u, sets.repeat), sets)
            if one is None:
                return None
            total = total + one * log_weight.exp().reshape(-1, *[1] * (one.ndim - 1))
        out: Tensor = total
        return out

    def conditioned(self, members: Distribution, sets: Sets, y: Any) -> list[Conditioned]:
        """Shifts that y makes likely."""
        d = double(members)
        nodes = _nodes(self, d, sets, y)
        each = _logs(self, d, sets, y, nodes)
        total = logsumexp(each, 1)
        return [
            Conditioned(self.aggregate, shifted(d, u, sets.repeat), (log - total).exp(), u)
            for u, log in zip(nodes.places, each.unbind(1), strict=True)
        ]


def _shifts(d: Distribution) -> int:
    """The number of shifts of a set."""
    k = family_of(d).n_shifts(d)
    if k not in NUMBER:
        raise TypeError(
            f"members in {k + 1} classes would share {k} shifts, and an integral over so many is "
            f"out of reach: RandomEffect is for numbers and for up to {max(NUMBER) + 1} classes; "
            f"join classes, or ask for one of them against the others"
        )
    return k


def _tensors(d: Distribution) -> Any:
    return parameters(d).values()


@likelihood(RandomEffect, Distribution, exact=False, counts=True)
def _effect(
    aggregate: RandomEffect, distribution: Distribution, sets: Sets, y: Tensor | None
) -> Tensor:
    """Adaptive Gauss–Hermite integral over what members share."""
    d = double(distribution)
    like = next(iter(_tensors(distribution)))
    y = None if y is None else y.double()
    each = _logs(aggregate, d, sets, y, _nodes(aggregate, d, sets, y))
    return logsumexp(each, 1).to(like.dtype)


@likelihood(RandomEffect, Normal, exact=False, counts=True)
def _normal(aggregate: RandomEffect, distribution: Normal, sets: Sets, y: Tensor) -> Tensor:
    """Closed form for sums and means, else an adaptive Gauss–Hermite integral."""
    linear = aggregate.aggregate.linear(sets)
    if linear is None:
        return _effect(aggregate, distribution, sets, y)
    d: Any = double(distribution)
    a, seen = torch.from_numpy(linear[0]).to(y.device), y.double()
    own, level = sets.sum((d.scale * a).square()), sets.sum(a.expand(len(d.loc)))
    variance = own + linear[1] + (level * aggregate.scales(sets, seen)).square()
    rest = seen - sets.sum(d.loc * a)
    out = -0.5 * (rest * rest / variance + (2 * math.pi * variance).log())
    return out.to(y.dtype)


@likelihood(RandomEffect, Poisson, exact=False, counts=True)
def _poisson(
    aggregate: RandomEffect, distribution: Poisson, sets: Sets, y: Tensor | None
) -> Tensor:
    """Of plain sums only the sets' total rates matter, which the shift multiplies."""
    linear = aggregate.aggregate.linear(sets)
    if linear is None or (linear[0] != 1).any() or linear[1]:
        return _effect(aggregate, distribution, sets, y)
    rates = distribution.rate
    if sets.counts is not None:
        rates = rates * sets.tensor("counts", rates)
    totals = Poisson(sets.sum(rates), validate_args=False)
    return _effect(aggregate, totals, Sets(np.arange(len(sets))[:, None]), y)


def _nodes(aggregate: RandomEffect, d: Distribution, sets: Sets, y: Any) -> Nodes:
    """Nodes for the integral over the shifts of each set."""
    like = next(iter(_tensors(d)))
    fixed = map_parameters(d, Tensor.detach)

    def log_p(which: Tensor, u: Tensor) -> Tensor:
        if len(which) == len(sets):
            return _shifted(aggregate.aggregate, fixed, sets, y, u)
        at = which.cpu().numpy()
        part = sets.take(at)
        members = map_parameters(fixed, part.members)
        seen = None if y is None else y[which]
        return _shifted(aggregate.aggregate.take(at), members, part.flat, seen, u)

    return adapted(log_p, aggregate.scales(sets, like), _shifts(d))


def _logs(aggregate: RandomEffect, d: Distribution, sets: Sets, y: Any, nodes: Nodes) -> Tensor:
    """log of weight · p(y | u) at each node, (sets, nodes)."""
    return (nodes.log_weights + _shifted(aggregate.aggregate, d, sets, y, nodes.places)).mT


def _shifted(aggregate: Aggregate, d: Distribution, sets: Sets, y: Any, u: Tensor) -> Tensor:
    """log p(y | u), (places, sets), for u of (places, sets, shifts): of several places at once."""
    found = []
    for places in u.split(max(1, AT_ONCE // max(1, len(sets.indices)))):
        times = len(places)
        again, each, members, seen = sets.tiled(times), aggregate, d, y
        if times > 1:
            each = aggregate.take(np.tile(np.arange(len(sets)), times))
            members = map_parameters(d, partial(_tiled, times=times))
            seen = None if y is None else _tiled(y, times)
        one = shifted(members, places.flatten(0, 1), again.repeat)
        found.append(evaluate(each, one, again, seen).view(times, len(sets)))
    return torch.cat(found)


def _tiled(values: Tensor, times: int) -> Tensor:
    return values.repeat(times, *[1] * (values.ndim - 1))
