"""The objective of observations as users give them."""

from __future__ import annotations

from typing import Any

from setwise.distributions import Categorical, Family, Normal
from setwise.errors import SetError
from setwise.likelihood import Aggregate, ClassLabel, Label, Targets, find_rule
from setwise.objective.objective import Objective
from setwise.objective.stream import Stream
from setwise.objective.unknown import Unknowns
from setwise.observations import Observations
from setwise.stored import Stored

__all__ = ["listed", "objective_of"]


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
    given = [o for o in given if len(o)]
    if stored is not None:
        return Stream(family, given, stored, overlap, unknowns=unknowns)
    return Objective(family, given, n_rows, overlap, unknowns)


def _check_labels(o: Observations, family: Family) -> None:
    """Raises where y is no label that targets of this family can have."""
    outcome = o.aggregate.outcome(Targets.of(family), None)
    if o.y is not None and isinstance(outcome, Label | ClassLabel):
        try:
            outcome.check(o.aggregate, o.sets, o.y)
        except SetError as error:
            raise SetError(error.set, error.said, error.of or repr(o)) from None


def _other_task(o: Observations, family: Family) -> str:
    """Which estimator is for these observations, where it is the other one."""
    classes = isinstance(family, Categorical)
    try:
        find_rule(type(o.aggregate), (Normal if classes else Categorical).distribution)
    except TypeError:
        return ""
    if classes:
        return ", use AggregateRegressor, which is for numbers"
    return ", use AggregateClassifier, which is for classes"
