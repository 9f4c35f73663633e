"""The y to expect of new sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions import Discrete, double, has_mean, map_parameters
from setwise.likelihood import Aggregate, Targets, evaluate, find_rule
from setwise.sets import Sets

__all__ = ["expected_aggregate"]

Floats = NDArray[np.float64]
DRAWS = 1000
MEMBERS = 1 << 19  # drawn at once


def expected_aggregate(aggregate: Aggregate, members: Distribution, sets: Sets) -> Floats:
    """The y to expect of each set, where `members` has one entry per *member*.

    For an amount this is the mean (the median where targets have no mean), for a 0/1 label the
    probability of 1, and for a name the most probable one: the position of a `Choice`, the cell
    of a `Coarse`, a class seen by `Direct` or `PrimaryInstance`, the output of a `Fold` with
    outputs other than 0 and 1. It is exact where there is a closed form or a list of outcomes;
    otherwise (order statistics and `Custom` of numbers) it is the mean of 1000 draws. Added noise
    has mean zero and changes nothing; flips are taken into account.

    >>> import setwise as sw
    >>> pair = torch.distributions.Normal(torch.tensor([1.0, 2.0]), torch.ones(2))
    >>> expected_aggregate(sw.Rank(), pair, sw.Sets([[0, 1]])).round(3).tolist()
    [0.24]
    """
    targets = Targets.of(members)
    aggregate.set_sizes(Targets()).check(aggregate, sets)
    outcome = aggregate.outcome(targets, None)
    if outcome.instead:
        raise TypeError(f"{aggregate.bare!r} has no single y to expect: {outcome.instead}")
    find_rule(type(aggregate), type(members))
    if not len(sets):
        return np.zeros(0)
    d, sets = map_parameters(double(members), Tensor.detach), sets.flat
    with torch.no_grad():
        closed = None if outcome.named else aggregate.expected(d, sets)
        if closed is not None:
            return np.asarray(closed)
        # the median of an even set has a list of outcomes, but no rule
        known = aggregate.set_sizes(targets).takes(sets.individuals).all()
        if known and aggregate.outcome(targets, int(sets.individuals[0])).values is not None:
            return _over_outcomes(aggregate, d, sets, targets)
        return _simulated(aggregate, d, sets)


def _over_outcomes(aggregate: Aggregate, d: Any, sets: Sets, targets: Targets) -> Floats:
    """The mean of all possible y, or the most probable of them, from their exact likelihoods."""
    out = np.empty(len(sets))
    for which, part in sets.apart(sets.individuals):
        outcome = aggregate.outcome(targets, int(part.individuals[0]))
        choice = np.array(outcome.values, dtype=np.float64)
        members, own = map_parameters(d, part.members), aggregate.take(which)
        each = [
            evaluate(own, members, part, aggregate.check(part, np.full(len(part), v)))
            for v in choice
        ]
        table = torch.stack(each)
        out[which] = choice[table.argmax(0)] if outcome.named else choice @ table.exp().numpy()
    return out


def simulated(
    aggregate: Aggregate, d: Distribution, sets: Sets, n: int, rng: np.random.Generator
) -> Floats:
    """n draws of y of each set, (n, sets, …), by torch's generator and `rng`.

    `d` has one entry per member, each of which is one individual.
    """
    every = np.tile(np.arange(len(sets)), n)
    made, many = aggregate.take(every), sets.take(every).flat
    if aggregate.shares:
        members = map_parameters(d, lambda p: p.repeat(n, *[1] * (p.ndim - 1)))
        z = made.drawn(members, many, rng).sample()
    else:
        z = d.sample((n,)).reshape(-1)
    z = z.long() if isinstance(d, Discrete) else z
    y = np.asarray(made.apply(z, many, rng), dtype=np.float64)
    return y.reshape(n, len(sets), *y.shape[1:])


def _simulated(aggregate: Aggregate, d: Any, sets: Sets) -> Floats:
    """The mean of y over draws of the members (the median where they have no mean)."""
    every = sets.expand()
    d, sets = map_parameters(d, every.members), every.flat
    rng = np.random.default_rng(0)
    step, pieces = max(1, min(DRAWS, MEMBERS // len(sets.indices))), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for begin in range(0, DRAWS, step):
            y = simulated(aggregate, d, sets, min(step, DRAWS - begin), rng)
            pieces.append(y)
    drawn = np.concatenate(pieces)
    out: Floats = np.median(drawn, 0) if not has_mean(d) else drawn.mean(0)
    return out
