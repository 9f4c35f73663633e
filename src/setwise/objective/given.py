"""The objective of observations as users give them."""

from __future__ import annotations

from typing import Any

from setwise.distributions import Family
from setwise.likelihood import find_rule
from setwise.objective.objective import Objective
from setwise.objective.unknown import Unknowns
from setwise.observations import Observations

__all__ = ["objective_of"]


def objective_of(
    family: Family,
    n_rows: int,
    observations: Any,
    what: str,
    overlap: str,
    unknowns: Unknowns | None = None,
) -> Objective:
    """The loss of one `Observations` or a list of them, called `what` in errors."""
    listed = observations if isinstance(observations, list | tuple) else [observations]
    if not all(isinstance(o, Observations) for o in listed):
        raise TypeError(
            f"{what}: one setwise.Observations or a list of them is expected, got {observations!r}"[
                :500
            ]
        )
    if not sum(len(o) for o in listed):
        raise ValueError(f"{what}: there are no sets to learn from; give at least one")
    for o in listed:
        try:
            find_rule(type(o.aggregate), family.distribution).check_counts(o.sets)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {o!r} does not fit this task: {error}") from None
    return Objective(family, [o for o in listed if len(o)], n_rows, overlap, unknowns)
