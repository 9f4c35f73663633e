"""Which observations share rows, and can have a joint likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from setwise._math.joint_normal import Contradiction, Infeasible
from setwise.distributions import Family, Normal
from setwise.errors import SetError
from setwise.objective.joint_gaussian import JointGaussianTerm
from setwise.observations import Observations

__all__ = ["OVERLAP", "Joined", "join"]

OVERLAP = ("auto", "joint", "independent")


class Joined(NamedTuple):
    """The joint term of some observations, their numbers, and the reason, in words."""

    term: JointGaussianTerm | None
    which: list[int]
    said: str


def join(family: Family, observations: Sequence[Observations], n_rows: int, overlap: str) -> Joined:
    """What is to be joined of these observations.

    With "auto" these are the linear ones of normal targets, where they share rows and can be
    joined; with "joint" all, and an error says why where that cannot be.
    """
    if overlap not in OVERLAP:
        raise ValueError(f"overlap is one of {list(OVERLAP)}, got {overlap!r}")
    if overlap == "independent":
        return Joined(None, [], overlap)
    must = overlap == "joint"
    reasons = [_reason(family, o) for o in observations]
    which = [i for i, reason in enumerate(reasons) if not reason]
    times = np.zeros(n_rows, np.int64)
    for i in which:
        times += np.bincount(observations[i].sets.indices, minlength=n_rows)
    if times.max(initial=0) <= 1 and not must:
        return Joined(None, [], "independent: no linear observations of normal targets share rows")
    for i in which:
        reasons[i] = _repeats(observations[i])
    which = [i for i in which if not reasons[i]]
    why = next(filter(None, reasons), "")
    if must and why:
        raise ValueError(f"overlap='joint' is not possible: {why}. Use 'auto' or 'independent'")
    if not which:
        return Joined(None, [], f"independent: {why}")
    term = JointGaussianTerm(family, [observations[i] for i in which], n_rows)
    try:
        _ = term.directions
    except Contradiction as error:
        o, number = term.located(error.set)
        advice = "Say how noisy y is, with Noisy(…, normal=s), or use overlap='independent'"
        wrong = SetError(number, f"{error}. {advice}", of=repr(o))
        if must:
            raise wrong from None
        return Joined(None, [], f"independent: {wrong}")
    except Infeasible as error:
        why = f"of {len(term.sets)} sets {error}"
        if must:
            raise ValueError(
                f"overlap='joint' would cost too much: {why}. Use overlap='independent', or fewer "
                f"sets"
            ) from None
        return Joined(None, [], f"independent: {why}")
    return Joined(term, which, f"joint, but not all: {why}" if why else "joint")


def _reason(family: Family, o: Observations) -> str:
    """Why these observations can have no joint likelihood with others; empty where they can."""
    if not isinstance(family, Normal) or family.outputs != ("loc",):
        return f"targets are {family!r}, not normal with one scale for all rows"
    if o.aggregate.linear(o.sets) is None:
        return f"{o!r} are not linear in the targets, with normal noise or none"
    if o.weight is not None and not (o.weight == 1).all():
        return f"{o!r} have weights other than 1, for which there is no joint likelihood"
    return ""


def _repeats(o: Observations) -> str:
    """The same, where a set lists a row twice, or has it for several individuals."""
    if o.sets.counts is not None and (o.sets.counts > 1).any():
        return (
            f"rows of {o!r} stand for several individuals, and which are in two sets is not known"
        )
    order = np.lexsort((o.sets.indices, o.sets.set_ids))
    of, row = o.sets.set_ids[order], o.sets.indices[order]
    again = (of[1:] == of[:-1]) & (row[1:] == row[:-1])
    if not again.any():
        return ""
    at = int(again.argmax())
    return (
        f"set {of[at]} of {o!r} lists row {row[at]} twice: these are two individuals, and which of "
        f"them is in another set is not known"
    )
