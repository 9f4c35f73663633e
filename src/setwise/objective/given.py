"""The objective of observations as users give them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setwise.distributions import Categorical, Discrete, Family, Normal
from setwise.errors import SetError, check_each
from setwise.likelihood import Aggregate, ClassLabel, Label, Targets, find_rule
from setwise.objective.objective import Objective
from setwise.objective.stream import Stream
from setwise.objective.unknown import Unknowns
from setwise.observations import Observations
from setwise.stored import Stored

__all__ = ["check_informative", "listed", "objective_of"]

LARGEST, SMALLEST = 1e30, 1e-30
CERTAIN = -0.05  # log-likelihood of a label that could hardly be another one
EXACT = 1e-13  # spread of targets, as a share of the largest y, that is but rounding
UNIT = f"numbers between {SMALLEST:g} and {LARGEST:g} can be learned from; change their unit"


def listed(observations: Any, what: str = "observations") -> list[Observations]:
    """One `Observations` or several, called `what` in errors, as a list."""
    out = observations if isinstance(observations, list | tuple) else [observations]
    wrong = [o for o in out if not isinstance(o, Observations)]
    if wrong and isinstance(wrong[0], Aggregate):
        raise TypeError(
            f"{what}: {wrong[0]!r} says what was observed, but not of which sets, and what was "
            f"seen: sw.Observations({wrong[0]!r}, sets, y)"
        )
    if wrong:
        whole = out is not observations or hasattr(observations, "__len__")
        got = type(observations if whole else wrong[0]).__name__
        raise TypeError(
            f"{what}: setwise.Observations, or a list of them, are expected, got a {got}. They "
            f"say what y is about. One y for each row: sw.Observations(sw.Direct(), "
            f"np.arange(len(y))[:, None], y); one for each group of rows, say its mean: "
            f"sw.Observations.from_groups(sw.Mean(), groups, y); one for each pair of rows, who is "
            f"larger: sw.Observations(sw.Rank(), pairs, y)"
        )
    return list(out)


def objective_of(
    family: Family,
    n_rows: int,
    observations: Any,
    what: str,
    overlap: str,
    unknowns: Unknowns | None = None,
    stored: Stored | None = None,
) -> Objective:
    """The loss of one `Observations` or a list of them, called `what` in errors.

    Where the table of the rows is `stored`, its sets are read in parts.
    """
    given = listed(observations, what)
    if not sum(len(o) for o in given):
        raise ValueError(f"{what}: there are no sets to learn from; give at least one")
    for o in given:
        try:
            find_rule(type(o.aggregate), family.distribution).check_counts(o.sets)
        except (TypeError, ValueError) as error:
            said = f"{what}: {o!r} does not fit this task{_other_task(o, family)}"
            raise type(error)(f"{said}: {error}") from None
        _check_labels(o, family)
        _check_size(o)
    if not sum(len(o) if o.weight is None else float(o.weight.sum()) for o in given):
        raise ValueError(f"{what}: all sets have weight 0: there is nothing to learn from")
    given = [o for o in given if len(o)]
    if stored is not None:
        return Stream(family, given, stored, overlap, unknowns=unknowns)
    return Objective(family, given, n_rows, overlap, unknowns)


def check_informative(objective: Objective, raw: Tensor, shared: Tensor) -> None:
    """Raises where nothing distinguishes rows: one set, or labels that a single class explains.

    There the likelihood grows without bound as the model becomes more certain.
    """
    kinds = objective.observations
    seen = [None if o.weight is None else o.weight > 0 for o in kinds]
    n = sum(len(o) if s is None else int(s.sum()) for o, s in zip(kinds, seen, strict=True))
    one_number = [o.y is not None and o.y.ndim == 1 and o.y.dtype != object for o in kinds]
    if n < 2 and all(one_number):
        raise ValueError(
            "observations: there is one set, which tells nothing of what makes rows differ; give "
            "at least two"
        )
    discrete = issubclass(objective.family.kind, Discrete)
    certain = CERTAIN
    if not discrete:
        size = (
            [float(np.abs(o.y).max()) for o in kinds if o.y is not None] if all(one_number) else []
        )
        certain = -math.log(EXACT * max(*size, SMALLEST)) if size else math.inf
        if float(torch.cat([raw.ravel(), shared]).min()) > 5 - certain:  # no spread is so small
            return
    found = objective.per_set(raw.expand(objective.n_rows, -1), shared)
    each = [v if s is None else v[s] for v, s in zip(found, seen, strict=True)]
    if min(float(v.min()) for v in each if len(v)) > certain:
        what = "label" if discrete else "number"
        raise ValueError(
            f"observations: the same prediction for all rows explains every {what}, so nothing "
            f"tells the rows apart; give sets with other {what}s too"
        )


def _check_labels(o: Observations, family: Family) -> None:
    """Raises where y is no label that targets of this family can have."""
    outcome = o.aggregate.outcome(Targets.of(family), None)
    if o.y is not None and isinstance(outcome, Label | ClassLabel):
        try:
            outcome.check(o.aggregate, o.sets, o.y)
        except SetError as error:
            raise SetError(error.set, error.said, error.of or repr(o)) from None


def _check_size(o: Observations) -> None:
    """Raises where numbers are so large or small that their squares are out of range."""
    numbers = np.asarray(0.0 if o.y is None else o.y)
    if numbers.dtype.kind != "f":
        return
    size = np.where(np.isfinite(numbers), np.abs(numbers), 0.0)
    ids = None if len(np.atleast_1d(numbers)) == len(o) else o.sets.set_ids
    check_each(size <= LARGEST, lambda at: f"has y = {numbers[at]:g}: {UNIT}", ids)
    if 0 < size.max(initial=0.0) < SMALLEST:
        raise ValueError(f"the largest y of {o!r} is {size.max():g}: {UNIT}")


def _other_task(o: Observations, family: Family) -> str:
    """A hint at the other estimator, where that is the one for these observations."""
    classes = isinstance(family, Categorical)
    try:
        find_rule(type(o.aggregate), (Normal if classes else Categorical).distribution)
    except TypeError:
        return ""
    if classes:
        return ", use AggregateRegressor, which is for numbers"
    return ", use AggregateClassifier, which is for classes"
