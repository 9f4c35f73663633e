"""Which y to expect of new sets."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution

from setwise.aggregates import (
    Choice,
    Coarse,
    Counts,
    Custom,
    Direct,
    Fold,
    Interval,
    Median,
    Noisy,
    Presence,
    PrimaryInstance,
    Proportions,
    Ranking,
    Sum,
    Uncoupled,
)
from setwise.distributions import Discrete, double, map_parameters
from setwise.likelihood import Aggregate, evaluate, find_rule
from setwise.sets import Sets

__all__ = ["expected_aggregate"]

Floats = NDArray[np.float64]
DRAWS = 1000
MEMBERS = 1 << 19  # that are drawn at once


def expected_aggregate(aggregate: Aggregate, members: Distribution, sets: Sets) -> Floats:
    """The y to expect of each set, where `members` has one entry per *member*.

    An amount is given as its mean (its median where targets have no mean: Cauchy), a 0/1 label as
    the probability of 1, and a name as the most probable one: the position of a `Choice`, the cell
    of a `Coarse`, a class seen by `Direct` or `PrimaryInstance`, and the output of a `Fold` that
    has others than 0 and 1. All are exact, except what has neither a closed form nor a list of
    outcomes (order statistics and `Custom` of numbers): the mean of 1000 draws. Added noise has
    mean zero and changes nothing; flips are taken into account.

    >>> import setwise as sw
    >>> pair = td.Normal(torch.tensor([1.0, 2.0]), torch.ones(2))
    >>> expected_aggregate(sw.Rank(), pair, sw.Sets([[0, 1]])).round(3).tolist()
    [0.24]
    """
    wrong = sets.sizes != (sets.sizes if aggregate.size is None else aggregate.size)
    if wrong.any():
        raise ValueError(
            f"{aggregate!r} is about sets of {aggregate.size} member(s), but set {wrong.argmax()} "
            f"has {sets.sizes[wrong.argmax()]}"
        )
    if isinstance(aggregate, Noisy) and aggregate.flip is None:  # a class with noise is a number
        aggregate = Sum() if isinstance(aggregate.aggregate, Direct) else aggregate.aggregate
    bare = aggregate.aggregate if isinstance(aggregate, Noisy) else aggregate
    for kind, instead in _REFUSED.items():
        if isinstance(bare, kind):
            raise TypeError(f"{bare!r} has no single y to expect: {instead}")
    find_rule(type(aggregate), type(members))
    d = map_parameters(double(members), Tensor.detach)
    with torch.no_grad():
        return _expected(aggregate, bare, d, sets.flat) if len(sets) else np.zeros(0)


_REFUSED: dict[type[Aggregate], str] = {
    Ranking: "ask for pairs with Rank(), or for the best member with Choice()",
    Uncoupled: "ask for Min(), Median() and Max(), or for the members themselves with predict",
    Interval: "ask for Direct(), or take the quantiles of predict_dist",
}


def _expected(aggregate: Aggregate, bare: Aggregate, d: Any, sets: Sets) -> Floats:
    classes = isinstance(d, td.Categorical)
    if classes and isinstance(aggregate, Counts | Proportions):
        tally = sets.sum if isinstance(aggregate, Counts) else sets.mean
        return np.asarray(tally(d.probs))
    if classes and isinstance(aggregate, Presence):
        return np.asarray(-torch.expm1(sets.sum(torch.log1p(-d.probs.clamp(max=1 - 1e-16)))))
    if classes and isinstance(aggregate, PrimaryInstance):
        return np.asarray(sets.mean(d.probs).argmax(1).double())
    named = isinstance(bare, Choice | Coarse) or (classes and isinstance(bare, Direct))
    if isinstance(bare, Fold):
        named = not set(bare.outcomes(0, None, True)) <= {0.0, 1.0}
    linear = None if named else aggregate.linear(sets)
    if linear is not None:
        return np.asarray(sets.sum(torch.from_numpy(linear[0]) * _centre(d)))
    if isinstance(aggregate, PrimaryInstance) and not isinstance(d, td.Cauchy):
        return np.asarray(sets.mean(_centre(d)))
    n_classes, discrete = d.logits.shape[-1] if classes else None, isinstance(d, Discrete)
    halves = discrete and isinstance(bare, Median) and bool((sets.sizes % 2 == 0).any())
    try:
        listed = len(aggregate.outcomes(int(sets.sizes[0]), n_classes, discrete)) > 0
    except TypeError:
        listed = False
    if halves or not listed:  # of halves there is a list, but no rule
        return _simulated(aggregate, d, sets)
    return _over_outcomes(aggregate, d, sets, n_classes, named)


def _centre(d: Any) -> Tensor:
    """The mean of each member; the median where there is none; the mean number of a class."""
    if isinstance(d, td.Categorical):
        out: Tensor = d.probs @ torch.arange(d.probs.shape[-1], dtype=d.probs.dtype)
        return out
    mean: Tensor = d.loc if isinstance(d, td.Cauchy | td.StudentT) else d.mean
    return mean


def _over_outcomes(
    aggregate: Aggregate, d: Any, sets: Sets, n_classes: int | None, named: bool
) -> Floats:
    """The mean of all possible y, or the most probable of them, from their exact likelihoods."""
    out = np.empty(len(sets))
    for which, part in sets.by_size():
        values = list(aggregate.outcomes(int(part.sizes[0]), n_classes, isinstance(d, Discrete)))
        members = map_parameters(d, part.members)
        each = [
            evaluate(aggregate, members, part, aggregate.check(part, np.full(len(part), v)))
            for v in values
        ]
        table, choice = torch.stack(each), np.array(values, dtype=np.float64)
        out[which] = choice[table.argmax(0)] if named else choice @ table.exp().numpy()
    return out


def _simulated(aggregate: Aggregate, d: Any, sets: Sets) -> Floats:
    """The mean (median for Cauchy targets) of y over draws of the members, with a fixed seed."""
    rng = np.random.default_rng(0)
    step, pieces = max(1, min(DRAWS, MEMBERS // len(sets.indices))), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for begin in range(0, DRAWS, step):
            n = min(step, DRAWS - begin)
            z = d.sample((n,)).reshape(-1)
            z = z.long() if isinstance(d, Discrete) else z
            many = sets.take(np.tile(np.arange(len(sets)), n))
            y = np.asarray(_apply(aggregate, z, many.flat, rng), dtype=np.float64)
            pieces.append(y.reshape(n, len(sets), *y.shape[1:]))
    drawn = np.concatenate(pieces)
    out: Floats = np.median(drawn, 0) if isinstance(d, td.Cauchy) else drawn.mean(0)
    return out


def _apply(aggregate: Aggregate, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
    if isinstance(aggregate, Custom) and sets.size is not None:
        with contextlib.suppress(Exception):  # fn is the user's: what vmap cannot trace, calls can
            return torch.vmap(aggregate.fn)(sets.dense(z))
    return aggregate.apply(z, sets, rng)
