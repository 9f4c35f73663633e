"""Held-out sets choose: the learner, its penalty and steps, and how far targets scatter.

Nothing of a model can be judged by the sets it has learned from. So some sets are held out, every
candidate is fitted to the others and judged by these, and the best is fitted once more, to all
sets. Few sets take turns at being held out.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from setwise.learners import Blend, Fitted, Learner, Network, Task
from setwise.learners.ensemble import at_shared, average, match
from setwise.learners.inputs import n_rows, take_rows
from setwise.learners.interruption import stopped
from setwise.learners.progress import Progress
from setwise.learners.saddle import leave_saddle
from setwise.objective import Objective, judge, respread
from setwise.validation.folds import SetKFold
from setwise.validation.learned import Split, learned
from setwise.validation.stored import held_in_turn

__all__ = ["Choice", "Final", "Split", "choose", "fit_best", "hold_out"]

MANY = 500  # from so many sets on one part is held out once; fewer sets take turns
PARTS = 5
FEWEST = 10  # sets of a kind without which none of them are held out
BLENDED = 3  # candidates of different kinds that may be averaged


class Trial(NamedTuple):
    """How one candidate did."""

    learner: Learner  # as it should be fitted to all sets
    score: float  # mean log-likelihood per held-out set, at the spread that suits them best
    shared: Tensor  # at that spread
    change: Tensor  # of the spread, that suits the held-out sets
    raws: list[Tensor]  # of the held-out rows, in each split, beside `shared`
    sets: Tensor  # what each held-out set adds to the score
    seconds: float
    fitted: Fitted | None = None  # to the first split
    parts: int = 0  # splits that it was fitted to


class Choice(NamedTuple):
    """What held-out sets chose."""

    best: Trial
    constant: float  # the score of the model without features
    leaderboard: list[dict[str, Any]]


def hold_out(
    X: Any, objective: Objective, seed: int, disjoint: Sequence[str] = ("rows", "sets")
) -> tuple[list[Split], str]:
    """Ways to hold out sets, and what the parts are apart in: "rows", "sets", or "nothing".

    Sets with rows of their own are best, since sets of known rows flatter learners that remember
    rows. A kind of which there are few sets (labels that fix the unit of ranks) is never held out.
    """
    kinds = [o if o.weight is None else o.take(o.weight > 0) for o in objective.observations]
    many = [o for o in kinds if len(o) >= FEWEST]
    few = [o for o in kinds if 0 < len(o) < FEWEST]
    n = sum(len(o) for o in many)
    turns = 1 if n >= MANY else PARTS
    family, unknowns = objective.family, objective.unknowns
    if stored := held_in_turn(objective, seed, PARTS, turns, FEWEST):
        held_out = [
            (part, Objective(family, test, n_rows(X), unknowns=unknowns).batch())
            for part, test in stored[0]
        ]
        return [Split(part, take_rows(X, held.rows), held) for part, held in held_out], stored[1]
    overlap = "auto" if objective.overlap.startswith("joint") else "independent"
    for what in disjoint if many else ():
        folds = SetKFold(PARTS, disjoint=what, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sets left out here are learned from in the end
            try:
                found = list(folds.split(X, many))
            except ValueError:  # sets share too many rows
                continue
        splits = []
        for fold in found[:turns]:
            held = Objective(family, fold.test, n_rows(X), overlap, unknowns).batch()
            learn = objective.of([*fold.train, *few], overlap)
            splits.append(Split(learn, take_rows(X, held.rows), held))
        return splits, what
    return [], "nothing"


def choose(learner: Learner, task: Task, splits: Sequence[Split]) -> Choice:
    """The candidate of the learner, or the average of some, that suits held-out sets best."""
    candidates = learner.candidates(task)
    several = len(candidates) > 1
    waiting = task.restarts > 1 and task.guide is None
    if waiting and not all(isinstance(one, Network) for one in candidates):
        task.guide = Network.pilot(task)
    trials: list[Trial] = []
    failed: list[dict[str, Any]] = []
    with task.progress.running("Choosing", len(candidates) if several else None):
        for candidate in candidates:
            progress = Progress(0) if several else task.progress
            try:
                trials.append(_attempt(candidate, task, splits, progress))
            except (ValueError, FloatingPointError) as error:  # too few rows for trees, say
                if candidate is candidates[-1] and not trials:
                    raise
                failed.append({"learner": repr(candidate), "error": str(error)})
            task.progress.advance(type(candidate).__name__)
            if stopped():
                trials = [t for t in trials if t.parts == len(splits)] or trials
                splits = splits[: trials[0].parts]
                break
    trials.sort(key=lambda trial: -trial.score)
    kinds = {type(trial.learner): trial for trial in reversed(trials)}  # the best of each kind
    top = sorted(kinds.values(), key=lambda trial: -trial.score)[: 0 if stopped() else BLENDED]
    for size in range(2, len(top) + 1):
        trials += [_blend(some, task, splits) for some in combinations(top, size)]
    trials.sort(key=lambda trial: -trial.score)
    constant = [task.raw.expand(len(split.held.rows), -1) for split in splits]
    none = _judged(
        learner, task, splits, constant, [task.shared] * len(splits), time.perf_counter()
    )
    return Choice(trials[0], none.score, [*(_row(trial, none) for trial in trials), *failed])


def _row(trial: Trial, constant: Trial) -> dict[str, Any]:
    gain = trial.sets - constant.sets
    return {
        "learner": repr(trial.learner),
        "score": trial.score,
        "gain": float(gain.sum()),  # over the model without features
        "gain_error": float((gain.var() * len(gain)).sqrt()) if len(gain) > 1 else math.nan,
        "seconds": trial.seconds,
    }


def _attempt(learner: Learner, task: Task, splits: Sequence[Split], progress: Progress) -> Trial:
    begin, fitted, raws = time.perf_counter(), [], []
    for i, split in enumerate(splits):
        held_out = split.X, split.held.objective
        more: dict[str, Any] = {"progress": progress, "stage": f"{task.stage}-part{i}"}
        part = dataclasses.replace(task, objective=split.learn, eval=held_out, **more)
        one = learner.fit(part)
        fitted.append(one._replace(shared=one.shared.detach().double().cpu()))
        raws.append(torch.from_numpy(np.ascontiguousarray(one.model.raw(split.X))))
        if stopped():
            break
    steps = round(float(np.mean([one.steps for one in fitted])))
    final = learner.for_steps(steps) if steps else learner
    done = splits[: len(fitted)]
    trial = _judged(final, task, done, raws, [one.shared for one in fitted], begin)
    return trial._replace(fitted=fitted[0], parts=len(done))


def _blend(some: Sequence[Trial], task: Task, splits: Sequence[Split]) -> Trial:
    """The average of some candidates, as the other model that it is."""
    begin, weights = time.perf_counter(), [1 / len(some)] * len(some)
    family, raws = task.objective.family, []
    shared = torch.stack([trial.shared for trial in some]).mean(0)
    for each in zip(*(trial.raws for trial in some), strict=True):
        same = [at_shared(family, r, t.shared, shared) for r, t in zip(each, some, strict=True)]
        alike = [match(task.identifiability, same[0], raw)(raw) for raw in same]
        raws.append(average(family.outputs, torch.stack(alike), weights))
    learner = Blend([trial.learner for trial in some])
    trial = _judged(learner, task, splits, raws, [shared] * len(splits), begin)
    return trial._replace(seconds=trial.seconds + sum(t.seconds for t in some))


def _judged(
    learner: Learner,
    task: Task,
    splits: Sequence[Split],
    raws: list[Tensor],
    shared: Sequence[Tensor],
    begin: float,
) -> Trial:
    """What the held-out sets of all splits say; the spread is the mean of what suits each."""
    family, total = task.objective.family, sum(s.held.objective.total_weight for s in splits)
    changes, own, sets = [], [], []
    for split, raw, numbers in zip(splits, raws, shared, strict=True):
        found = judge(split.held.objective, raw, numbers, task.intercept)
        changes.append(found.change)
        own.append(respread(family, raw, numbers, found.change, task.intercept)[1])
        sets.append(found.sets * (split.held.objective.total_weight / total))
    each = torch.cat(sets)
    own_mean, change = torch.stack(own).mean(0), torch.stack(changes).mean(0)
    raws = [at_shared(family, r, n, own_mean) for r, n in zip(raws, shared, strict=True)]
    seconds = time.perf_counter() - begin
    return Trial(learner, float(each.sum()), own_mean, change, raws, each, seconds)


class Final(NamedTuple):
    """The model of all sets, and what held-out sets have said on the way."""

    fitted: Fitted
    learner: Learner
    shared: Tensor
    spread: Tensor
    choice: Choice | None
    apart: str | None  # what held-out sets had of their own


def fit_best(learner: Learner, task: Task, splits: Sequence[Split], apart: str | None) -> Final:
    """Fits what the held-out sets choose to all sets, with the spread that suits those.

    Without splits the learner itself is fitted. Where the one split learns from all sets of the
    task (its held-out sets are others), its model is the last one. Where nothing predicts sets of
    new rows, features may just be the names of rows: then sets of known rows decide.
    """
    saddle, family = leave_saddle(task), task.objective.family
    if not splits:
        if task.restarts > 1 and task.guide is None and not isinstance(learner, Network):
            task.guide = Network.pilot(task)
        fitted = learner.fit(task)
        if saddle is not None:
            saddle.check(task, fitted, learner)
        spread = torch.zeros(family.n_spread, dtype=torch.float64)
        return Final(fitted, learner, fitted.shared.detach().double().cpu(), spread, None, apart)
    choice = choose(learner, task, splits)
    if apart == "rows" and not choice.best.score > choice.constant and not stopped():
        others, _ = hold_out(task.X, task.objective, task.seed, ("sets",))
        again = choose(learner, dataclasses.replace(task, stage="-sets"), others)
        if again.best.score > again.constant:
            choice, splits, apart = again, others, "sets"
    best = choice.best
    done = best.fitted if splits[0].learn is task.objective or stopped() else None
    if done is None:
        progress = Progress(task.progress.verbose)
        done = best.learner.fit(dataclasses.replace(task, progress=progress))
        if not task.progress.history:
            task.progress.history[:] = progress.history
        if stopped() and best.fitted is not None:
            done = best.fitted
    if saddle is not None:
        saddle.check(task, done, best.learner)
    if not best.score > choice.constant:
        warnings.warn(
            f"on sets held out, the model is no better than a constant: their mean log-likelihood "
            f"is {best.score:.4g}, that of the same prediction for all rows {choice.constant:.4g}",
            ConvergenceWarning,
            stacklevel=5,
        )
    n, own = len(family.shared), done.shared.detach().double().cpu()
    spread = (best.shared - own)[:n] if n else best.change[: family.n_spread]
    shared = best.shared
    whole = task.objective.whole() is task.objective
    if task.objective.unknowns.size and best.fitted is not None and whole:
        shared = torch.cat([shared[:n], learned(task, done, splits[0], best.fitted)])
    return Final(done, best.learner, shared, spread, choice, apart)
