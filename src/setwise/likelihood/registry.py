"""The registry of likelihood rules, and `log_likelihood`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions import kinds_of, map_parameters, parameters
from setwise.likelihood.aggregate import Aggregate
from setwise.sets import Sets

__all__ = ["Rule", "by_size", "evaluate", "find_rule", "likelihood", "log_likelihood", "rules"]

RuleFunction = Callable[[Any, Any, Sets, Any], Tensor]


@dataclasses.dataclass(frozen=True)
class Rule:
    """log p(y | θ) for one aggregate and one distribution (or kind of distributions)."""

    aggregate: type[Aggregate]
    distribution: type
    function: RuleFunction
    how: str
    exact: bool


_RULES: dict[tuple[type, type], Rule] = {}


def likelihood(
    aggregate: type[Any], distribution: type, *, exact: bool = True
) -> Callable[[RuleFunction], RuleFunction]:
    """Registers `rule(aggregate, distribution, sets, y) -> (n_sets,)` for a pair of classes.

    The rule gets `distribution` batched over the *members* (so `sets.flat is sets`), parameters
    unchecked, and `y` as a tensor beside them. The first line of its docstring says how it
    computes; `exact=False` marks rules with a stated numerical error. `distribution` may also be
    `Continuous`, `Discrete` or `Count`, for every family of that kind.
    """

    def register(function: RuleFunction) -> RuleFunction:
        how = (function.__doc__ or "").strip().split("\n")[0].rstrip(".")
        _RULES[aggregate, distribution] = Rule(aggregate, distribution, function, how, exact)
        return function

    return register


def rules() -> list[Rule]:
    """Every registered rule."""
    return list(_RULES.values())


def find_rule(aggregate: type[Aggregate], distribution: type[Distribution]) -> Rule:
    """The most specific rule for a pair: the aggregate's MRO first, then the distribution's."""
    for a in aggregate.__mro__:
        for d in kinds_of(distribution):
            if (a, d) in _RULES:
                return _RULES[a, d]
    for_aggregate = sorted({d.__name__ for a, d in _RULES if issubclass(aggregate, a)})
    kinds = kinds_of(distribution)
    for_distribution = sorted({a.__name__ for a, d in _RULES if d in kinds})
    raise TypeError(
        f"no likelihood rule is known for {aggregate.__name__} of {distribution.__name__}. "
        f"{aggregate.__name__} is known for: {', '.join(for_aggregate) or 'nothing'}. "
        f"{distribution.__name__} is known with: {', '.join(for_distribution) or 'nothing'}. "
        f"Add one with @setwise.likelihood({aggregate.__name__}, {distribution.__name__})"
    )


def evaluate(aggregate: Aggregate, members: Distribution, sets: Sets, y: Any) -> Tensor:
    """log p(y) with the *members'* distribution and a checked y: what learners call."""
    rule = find_rule(type(aggregate), type(members))
    reference = next(iter(parameters(members).values()))
    if y is not None:
        y = torch.as_tensor(y, device=reference.device)
        y = y.to(reference.dtype) if y.is_floating_point() else y
    if not len(sets):
        return reference.sum() * 0 + reference.new_zeros(0)
    return rule.function(aggregate, members, sets.flat, y)


def by_size(rule: RuleFunction) -> RuleFunction:
    """Lets a rule that needs sets of one size serve ragged sets, size by size."""

    def ragged(aggregate: Any, distribution: Any, sets: Sets, y: Any) -> Tensor:
        if sets.size is not None:
            return rule(aggregate, distribution, sets, y)
        pieces = []
        for which, part in sets.by_size():
            members = map_parameters(distribution, part.members)
            pieces.append(rule(aggregate, members, part.flat, None if y is None else y[which]))
        order = np.argsort(np.concatenate([which for which, _ in sets.by_size()]))
        return torch.cat(pieces)[torch.as_tensor(order, device=pieces[0].device)]

    ragged.__doc__ = rule.__doc__
    return ragged


def log_likelihood(aggregate: Aggregate, distribution: Distribution, sets: Any, y: Any) -> Tensor:
    """log p(y | θ) of each set: the probability (density) of the observation, targets unseen.

    `distribution` is a `torch.distributions` object with one entry per row of the instance table.

    >>> import setwise as sw
    >>> rows = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    >>> sw.log_likelihood(sw.Mean(), rows, sw.Sets([[0, 1], [2, 3]]), [0.0, 1.0])
    tensor([-0.5724, -1.5724])
    """
    if not isinstance(aggregate, Aggregate):
        raise TypeError(
            f"aggregate must be an Aggregate such as setwise.Mean(), got {aggregate!r}"
            + (" (a class: call it)" if isinstance(aggregate, type) else "")
        )
    if not isinstance(distribution, Distribution):
        raise TypeError(f"distribution must be a torch.distributions object, got {distribution!r}")
    if len(distribution.batch_shape) != 1 or distribution.event_shape:
        raise ValueError(
            f"distribution must have one entry per row, batch_shape (n_rows,) and event_shape (); "
            f"got {tuple(distribution.batch_shape)} and {tuple(distribution.event_shape)}"
        )
    find_rule(type(aggregate), type(distribution))
    sets = sets if isinstance(sets, Sets) else Sets(sets)
    y = aggregate.check(sets, y)
    return evaluate(aggregate, map_parameters(distribution, sets.members), sets, y)
