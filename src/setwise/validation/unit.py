"""Shift and unit from a few labels that a learner which takes steps would know by heart.

Ranks leave shift and unit open, and a few labels of single rows settle both. A flexible learner
passes through so few labels exactly. Then they look free of noise, the scale falls to nothing, and
the unit is that of the accidents of a few rows. So such labels are not learned from: the others are
learned from alone, without the sets of labelled rows, and the result is aligned to the labels.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.identifiability import Identifiability, identify, solve_alignment
from setwise.learners import Ensemble, Fitted, Learner, Task
from setwise.learners.ensemble import EnsembleModel, Match
from setwise.learners.inputs import take_rows
from setwise.objective import Objective, judge
from setwise.observations import Observations

__all__ = ["fitted_in_unit", "spread_in_unit"]

FEW = 0.1  # labels for each other set; where there are more, they are learned from
LOST = 0.1  # of the other sets, at most, may be left out since they name labelled rows
ENOUGH = 10  # labelled rows that are worth it


class _Apart(NamedTuple):
    """Labels of single rows, and the task without them."""

    task: Task
    labels: Objective
    rows: NDArray[np.int64]
    z: NDArray[np.float64]
    open: Identifiability  # without the labels
    new: bool  # whether no other set that is learned from names their rows


def fitted_in_unit(learner: Learner, task: Task) -> Fitted:
    """`learner.fit(task)`, with labels that only settle the unit used for that alone.

    `Linear` has too few parameters to know labels by heart, and copies of an `Ensemble` show by how
    much their unit is uncertain.
    """
    apart = _labels_apart(task) if _knows_by_heart(learner) else None
    if apart is None:
        return learner.fit(task)
    family, n = task.objective.family, len(task.objective.family.shared)
    done = learner.fit(apart.task)
    shared = done.shared.detach().double().cpu()
    raw = torch.from_numpy(np.ascontiguousarray(done.model.raw(take_rows(task.X, apart.rows))))
    try:
        found = solve_alignment(apart.open, family, family(raw.double(), shared[:n]), apart.z)
    except ValueError:  # the labels fall where the predictions rise
        task.progress.history.clear()
        return learner.fit(task)
    units = [name == family.unit for name in (*family.outputs, *family.shared)]
    more = torch.tensor(units, dtype=torch.float64) * math.log(abs(found.slope))
    offset = tuple(more[: len(family.outputs)].tolist())
    model = EnsembleModel(
        [done.model], [1.0], [Match(None, found.slope, found.shift, offset)], family.outputs
    )
    own = torch.cat([shared[:n] + more[len(family.outputs) :], shared[n:]])
    return done._replace(model=model, shared=own, value=None)


def spread_in_unit(learner: Learner, task: Task, done: Fitted) -> Tensor | None:
    """The change of spread that suits labels which only settled the unit of this model.

    What ranks tell of the spread holds for targets of the very family; that of labels for others,
    too. None where there are no such labels, or where their rows have been learned from.
    """
    apart = _labels_apart(task) if _knows_by_heart(learner) else None
    if apart is None or not apart.new or len(apart.rows) < ENOUGH:
        return None
    held = apart.labels.batch()
    raw = torch.from_numpy(np.ascontiguousarray(done.model.raw(take_rows(task.X, held.rows))))
    shared = done.shared.detach().double().cpu()
    change = judge(held.objective, raw.double(), shared, task.intercept, learned=False).change
    n = len(apart.rows)
    change[0] += 0.5 * math.log(n / (n - 2))  # shift and slope have been fitted to them
    return change


def _knows_by_heart(learner: Learner) -> bool:
    return learner.stops and not isinstance(learner, Ensemble)


def _labels_apart(task: Task) -> _Apart | None:
    """None where labels are to be learned from with all others."""
    objective, family = task.objective, task.objective.family
    elsewhere = task.place is not None and not hasattr(task.X, "shape")  # rows of other processes
    if not family.located or elsewhere or task.guide is not None:
        return None
    kinds = objective.observations
    labels, rest = [o for o in kinds if _single(o)], [o for o in kinds if not _single(o)]
    if not labels or not rest or sum(map(len, labels)) > FEW * sum(map(len, rest)):
        return None
    open = identify(family, objective.of(rest, "independent").examples.observations)
    if open.scale or not (open.shift or open.centre is not None):
        return None
    rows = np.concatenate([o.sets.indices for o in labels])
    z = np.concatenate([np.asarray(o.y, np.float64) for o in labels])
    rest, n, new = _without_rows(rest, rows, objective.n_rows)
    others = objective.of(rest, "independent")
    raw, shared = others.start(free=False)
    part = dataclasses.replace(
        task, objective=others, raw=raw, shared=shared, free=False, identifiability=open,
        eval=_without_labels(task.eval),
    )  # fmt: skip
    told = Objective(
        family, _first(labels, n), objective.n_rows, "auto", unknowns=objective.unknowns
    )
    return _Apart(part, told, rows[:n], z[:n], open, new)


def _first(kinds: list[Observations], n: int) -> list[Observations]:
    """The first n sets of these kinds, one after another."""
    begins = np.cumsum([0, *map(len, kinds)]).tolist()
    return [o.take(slice(max(0, n - begin))) for o, begin in zip(kinds, begins, strict=False)]


def _without_rows(
    kinds: list[Observations], rows: NDArray[np.int64], n_rows: int
) -> tuple[list[Observations], int, bool]:
    """The sets that do not name the first n of these rows, n, and whether any were left out.

    Predictions for rows that were learned from are too near to their targets, and would tell too
    large a unit. Where it would cost too many sets, n is less than all, or it is all of them and no
    set is left out.
    """
    first = np.full(n_rows, len(rows))
    np.minimum.at(first, rows, np.arange(len(rows)))
    at = [np.minimum.reduceat(first[o.sets.indices], o.sets.offsets[:-1]) for o in kinds]
    lost = np.bincount(np.concatenate(at), minlength=len(rows) + 1)[: len(rows)].cumsum()
    n = int((lost <= LOST * sum(map(len, kinds))).sum())
    if n < min(ENOUGH, len(rows)):
        return kinds, len(rows), False
    kept = [o.take(np.flatnonzero(own >= n)) for o, own in zip(kinds, at, strict=True)]
    return kept, n, True


def _single(o: Observations) -> bool:
    """Whether these are targets of single rows, y = z."""
    told = o.aggregate.identity_at_one and o.y is not None and np.ndim(o.y) == 1
    return told and o.sets.size == 1 and bool((o.sets.individuals == 1).all())


def _without_labels(held_out: tuple[object, Objective] | None) -> tuple[object, Objective] | None:
    if held_out is None:
        return None
    X, objective = held_out
    rest = [o for o in objective.observations if not _single(o)]
    return (X, objective.of(rest, "independent")) if rest else None
