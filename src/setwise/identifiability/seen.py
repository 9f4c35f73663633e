"""What the observed y leave open, although other y of their kind would not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from setwise.distributions import Categorical
from setwise.identifiability.facts import Identifiability, listed
from setwise.likelihood import Targets, evaluate
from setwise.objective import Objective
from setwise.observations import Observations

__all__ = ["left_open_by_y"]

ALL = 4  # classes: with more, not every rearrangement but every swap of two is tried
MOST = 12  # classes: with more, none is
FIRST = 200  # sets on which a change is tried before it is tried on all
SURE = 40.0  # a logit


def left_open_by_y(objective: Objective, whole: Identifiability) -> list[str]:
    """Sentences about changes of all targets that none of these sets would notice.

    `whole` is what labels of their kind leave open whatever y is: that is not repeated.
    """
    if isinstance(objective.family, Categorical):
        return [
            *_rearranged(objective, whole),
            *(_one_class(objective) or _all_the_same(objective)),
        ]
    return _turned(objective, whole)


def _start(objective: Objective) -> Objective:
    return objective.only([term.take(slice(0, FIRST)) for term in objective.terms])


def _same(objective: Objective, raw: Tensor, other: Tensor, shared: Tensor) -> bool:
    """Whether the sets are as likely with these as with other raw parameters."""
    for part in (_start(objective), objective):
        one, two = part.value(raw, shared), part.value(other, shared)
        size = sum(float(each.abs().nan_to_num().sum()) for each in part.per_set(raw, shared))
        if not abs(one - two) <= 1e-10 * size:  # not a number, too
            return False
    return True


def _orders(n: int) -> Iterator[list[int]]:
    if n <= ALL:
        yield from (list(o) for o in itertools.permutations(range(n)) if list(o) != [*range(n)])
        return
    for a, b in itertools.combinations(range(n), 2):
        yield [{a: b, b: a}.get(c, c) for c in range(n)]


def _rearranged(objective: Objective, whole: Identifiability) -> list[str]:
    """Classes that may change places without changing the likelihood of these y."""
    n = objective.n_outputs
    if whole.permutation or whole != "exactly" or n > MOST:
        return []
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.normal(size=(objective.n_rows, n)))
    shared = raw.new_zeros(objective.n_shared)
    moved = {
        c
        for order in _orders(n)
        if _same(objective, raw, raw[:, order], shared)
        for c in range(n)
        if order[c] != c
    }
    if not moved:
        return []
    return [
        f"With the y that these sets have, the classes {listed(sorted(moved))} can change places "
        f"unnoticed: the fit may have them in another order. Add sets with other y, or a few "
        f"`Direct` observations."
    ]


def _one_class(objective: Objective) -> list[str]:
    """Whether all sets are as they would be if every row were of one and the same class."""
    n = objective.n_outputs
    for c in range(n):
        sure = torch.full((1, n), -SURE, dtype=torch.float64)
        sure[0, c] = SURE
        if all(_certain(o, Categorical(n), sure) for o in objective.observations):
            return [
                f"Every one of these sets has the y that it would have if all rows were of class "
                f"{c}: they cannot tell one row from another. Add sets with other y."
            ]
    return []


def _all_the_same(objective: Objective) -> list[str]:
    """Whether all sets have the same y, and a class is more common for no row than for others."""
    seen = [o if o.weight is None else o.take(o.weight > 0) for o in objective.observations]
    kinds = [np.unique(np.asarray(o.y), axis=0) for o in seen if len(o) and o.y is not None]
    if len(kinds) < len(seen) or any(len(y) != 1 for y in kinds):
        return []
    if any(len(o) < 2 or o.sets.size in (None, 1) for o in seen):
        return []
    start, shared = objective.start()
    slope = objective.gradient(start.expand(objective.n_rows, -1).contiguous(), shared).gradient
    most = max(float(term.weight.max()) for term in objective.terms)
    if not float(slope.abs().max()) < 1e-4 * most:
        return []
    y = listed(np.ravel(kinds[0][0]).tolist())
    return [
        f"All these sets have the same y ({y}): they only tell how members of one set differ from "
        f"each other, and a model without features has no direction to learn in. Several models "
        f"may explain them equally well. Add sets with other y, or a few `Direct` observations."
    ]


def _certain(o: Observations, family: Categorical, sure: Tensor) -> bool:
    bare, targets = o.aggregate.bare, Targets.of(family)
    if bare.outcome(targets, None) != o.aggregate.outcome(targets, None):
        return False  # noise was added to y: no y is certain
    for part in (o.take(slice(0, FIRST)), o):
        if o.weight is not None:
            part = part.take(np.flatnonzero(np.asarray(part.weight) > 0))
        members = family(sure.expand(len(part.sets.indices), -1), sure.new_zeros(0))
        with torch.no_grad():
            if not bool((evaluate(bare, members, part.sets, part.y) > -1e-6).all()):
                return False
    return True


def _turned(objective: Objective, whole: Identifiability) -> list[str]:
    """Whether a change of sign of all locations goes unnoticed with these y."""
    family = objective.family
    if whole.sign or not family.symmetric or "loc" not in family.outputs:
        return []
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.normal(size=(objective.n_rows, len(family.outputs))))
    turned = raw.clone()
    turned[:, family.outputs.index("loc")] *= -1
    if not _same(objective, raw, turned, raw.new_zeros(objective.n_shared)):
        return []
    return [
        "With the y that these sets have, a change of sign of all targets would not be noticed. "
        "Add sets with other y, or a few `Direct` observations."
    ]
