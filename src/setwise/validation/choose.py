"""Choices by held-out sets: the learner, its penalty and steps, and the spread of targets.

A model cannot be judged by the sets that it has learned from. So some sets are held out, every
candidate is fitted to the others and judged by these, and the best is fitted once more, to all
sets. If there are few sets, they take turns at being held out, and the last model is the average of
the models of all turns.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from setwise.learners import Blend, Ensemble, Fitted, Learner, Network, Task
from setwise.learners.ensemble import at_shared, average, joined, match
from setwise.learners.inputs import n_rows, take_rows
from setwise.learners.interruption import stopped
from setwise.learners.progress import Progress
from setwise.learners.saddle import leave_saddle
from setwise.objective import Objective, judge, respread
from setwise.stored import Stored
from setwise.validation.folds import divided
from setwise.validation.learned import Split, learned
from setwise.validation.stored import held_in_turn
from setwise.validation.unit import fitted_in_unit, spread_in_unit

__all__ = ["Choice", "Final", "Split", "choose", "fit_best", "hold_out"]

PARTS = 5
MANY = 100  # held-out sets that are enough; where a part has fewer, the parts take turns
FEWEST = 10  # sets of a kind without which none of them are held out
MOST = 2 / 3  # of the sets: models of so many are averaged
SLACK = 1e-6  # per set
BLENDED = 6  # candidates that an average may hold, one that is in it several times counted so


class Trial(NamedTuple):
    """How one candidate did."""

    learner: Learner  # as it should be fitted to all sets
    score: float  # mean log-likelihood per held-out set, at the spread that suits them best
    shared: Tensor  # at that spread
    change: Tensor  # of the spread, that suits the held-out sets
    raws: list[Tensor]  # of the held-out rows, in each split, beside `shared`
    sets: Tensor  # what each held-out set adds to the score
    seconds: float
    fitted: Sequence[Fitted] = ()  # in each split
    history: Sequence[dict[str, Any]] = ()  # of the fit in the first split
    made_of: Sequence[tuple[Trial, float]] = ()  # of an average: what, with its weight


class Choice(NamedTuple):
    """What held-out sets chose."""

    best: Trial
    constant: float  # the score of the model without features
    leaderboard: list[dict[str, Any]]


def hold_out(
    X: Any, objective: Objective, seed: int, disjoint: str = "auto"
) -> tuple[list[Split], str]:
    """Ways to hold out sets, and what the parts are apart in: "rows", "sets", or "nothing".

    Sets with rows of their own are best, since sets of known rows flatter learners that remember
    rows. A kind of which there are few sets (labels that fix the unit of ranks) is never held out.
    """
    kinds = [o if o.weight is None else o.take(o.weight > 0) for o in objective.observations]
    many = [o for o in kinds if len(o) >= FEWEST]
    few = [o for o in kinds if 0 < len(o) < FEWEST]
    n = sum(len(o) for o in many)
    turns = 1 if n >= MANY * PARTS else PARTS
    family, unknowns = objective.family, objective.unknowns
    if stored := held_in_turn(objective, seed, PARTS, turns, FEWEST):
        held_out = [
            (part, Objective(family, test, n_rows(X), unknowns=unknowns).batch())
            for part, test in stored[0]
        ]
        return [Split(part, take_rows(X, held.rows), held) for part, held in held_out], stored[1]
    if not many:
        return [], "nothing"
    overlap = "auto" if objective.overlap.startswith("joint") else "independent"
    found, what, _ = divided(X, many, PARTS, seed, disjoint)
    # Where sets share rows, most name both rows held out and others, and are in neither part.
    # The spread of one model suits another one of more sets only where all rows share it.
    enough = sum(map(len, found[0].test)) >= MANY
    predicted = family.n_spread > len(family.shared) and not objective.of_classes
    turns = PARTS if predicted or not enough else 1
    splits = []
    for fold in found[:turns]:
        held = Objective(family, fold.test, n_rows(X), overlap, unknowns).batch()
        learn = objective.of([*fold.train, *few], overlap)
        splits.append(Split(learn, take_rows(X, held.rows), held))
    return splits, what


def choose(learner: Learner, task: Task, splits: Sequence[Split]) -> Choice:
    """The candidate of the learner, or the average of some, that suits held-out sets best."""
    candidates = learner.candidates(task)
    several = len(candidates) > 1
    waiting = task.restarts > 1 and task.guide is None
    if waiting and not all(isinstance(one, Network) for one in candidates):
        task.guide = Network.pilot(task)
    trials: list[Trial] = []
    failed: list[dict[str, Any]] = []
    begin, patience = time.perf_counter(), learner.patience_for(task)
    with task.progress.running("Choosing", len(candidates) if several else None):
        for candidate in candidates:
            if trials and (past := time.perf_counter() - begin) > patience:
                why = f"not tried: {past:.3g} s had passed, more than {patience:.3g} s"
                failed.append({"learner": repr(candidate), "error": why})
                continue
            progress = Progress(0) if several else task.progress
            try:
                trials.append(_attempt(candidate, task, splits, progress))
            except (ValueError, FloatingPointError) as error:  # too few rows for trees, say
                if candidate is candidates[-1] and not trials:
                    raise
                failed.append({"learner": repr(candidate), "error": str(error)})
            task.progress.advance(type(candidate).__name__)
            if stopped():
                trials = [t for t in trials if len(t.fitted) == len(splits)] or trials
                splits = splits[: len(trials[0].fitted)]
                break
    trials.sort(key=lambda trial: -trial.score)
    if len({type(trial.learner) for trial in trials}) > 1 and not stopped():
        trials += _averages(trials, task, splits)
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
        "sets": len(trial.sets),  # that were held out
        "seconds": trial.seconds,
    }


def _attempt(learner: Learner, task: Task, splits: Sequence[Split], progress: Progress) -> Trial:
    begin, fitted, raws = time.perf_counter(), [], []
    history: list[dict[str, Any]] = []
    for i, split in enumerate(splits):
        held_out = split.X, split.held.objective
        more: dict[str, Any] = {"progress": progress, "stage": f"{task.stage}-part{i}"}
        part = dataclasses.replace(task, objective=split.learn, eval=held_out, **more)
        share = split.learn.total_weight / task.objective.total_weight
        one = fitted_in_unit(learner.for_part(share), part)
        history = history or list(progress.history)
        progress.history.clear()
        fitted.append(one._replace(shared=one.shared.detach().double().cpu()))
        raws.append(torch.from_numpy(np.ascontiguousarray(one.model.raw(split.X))))
        if stopped():
            break
    steps = round(float(np.mean([one.steps for one in fitted])))
    final = learner.for_steps(steps) if steps else learner
    done = splits[: len(fitted)]
    trial = _judged(final, task, done, raws, [one.shared for one in fitted], begin)
    return trial._replace(fitted=fitted, history=history)


def _averages(trials: Sequence[Trial], task: Task, splits: Sequence[Split]) -> list[Trial]:
    """Averages of the candidates, best first in `trials`, each better than the one before.

    The first is of the best candidate with another, and each takes in whichever is best for it, as
    often as that pays. Of learners that take no steps only the best counts: they differ little.

    Caruana et al., "Ensemble selection from libraries of models", ICML 2004.
    """
    best_of = {type(trial.learner): trial for trial in reversed(trials)}
    able = [t for t in trials if t.learner.stops or t is best_of[type(t.learner)]]
    number = [1] + [0] * (len(able) - 1)
    found: list[Trial] = []
    while sum(number) < BLENDED:
        tried = []
        for i in range(len(able)):
            more = [n + (i == j) for j, n in enumerate(number)]
            if sum(n > 0 for n in more) > 1:
                tried.append((_blend(able, more, task, splits), more))
        average, number = max(tried, key=lambda pair: pair[0].score)
        if found and not average.score > found[-1].score:
            break
        found.append(average)
    return found


def _blend(
    every: Sequence[Trial], number: Sequence[int], task: Task, splits: Sequence[Split]
) -> Trial:
    """The trial of an average of candidates, each counted so many times."""
    begin, some = time.perf_counter(), [t for t, n in zip(every, number, strict=True) if n]
    weights = [n / sum(number) for n in number if n]
    family, raws = task.objective.family, []
    shared = sum((w * t.shared for w, t in zip(weights, some, strict=True)), 0 * some[0].shared)
    for each in zip(*(trial.raws for trial in some), strict=True):
        same = [at_shared(family, r, t.shared, shared) for r, t in zip(each, some, strict=True)]
        alike = [match(task.identifiability, same[0], raw)(raw) for raw in same]
        raws.append(average(family.outputs, torch.stack(alike), weights))
    equal = len(set(weights)) == 1
    learner = Blend([trial.learner for trial in some], None if equal else weights)
    trial = _judged(learner, task, splits, raws, [shared] * len(splits), begin)
    seconds = trial.seconds + sum(t.seconds for t in some)
    return trial._replace(seconds=seconds, made_of=list(zip(some, weights, strict=True)))


def _judged(
    learner: Learner,
    task: Task,
    splits: Sequence[Split],
    raws: list[Tensor],
    shared: Sequence[Tensor],
    begin: float,
) -> Trial:
    """The trial from the held-out sets of all splits; its spread is the mean of their best ones."""
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
    """The model of all sets, and what held-out sets chose on the way."""

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
        fitted = fitted_in_unit(learner, task)
        if saddle is not None:
            saddle.check(_score(task, fitted), learner)
        _check_gain(task, fitted, learner)
        shared, n = fitted.shared.detach().double().cpu(), len(family.shared)
        spread = spread_in_unit(learner, task, fitted)
        if spread is None:
            spread = torch.zeros(family.n_spread, dtype=torch.float64)
        shared = torch.cat([shared[:n] + spread[:n], shared[n:]]) if n else shared
        return Final(fitted, learner, shared, spread, None, apart)
    choice = choose(learner, task, splits)
    if apart == "rows" and not choice.best.score > choice.constant and not stopped():
        others, _ = hold_out(task.X, task.objective, task.seed, "sets")
        again = choose(learner, dataclasses.replace(task, stage="-sets"), others)
        if again.best.score > again.constant:
            choice, splits, apart = again, others, "sets"
    best = choice.best
    done = _last_fit(best, task, splits)
    if saddle is not None:
        saddle.check(_score(task, done, best), best.learner)
    if not best.score > choice.constant:
        warnings.warn(
            f"on sets held out, the model is no better than a constant: their mean log-likelihood "
            f"is {best.score:.4g}, that of the same prediction for all rows {choice.constant:.4g}",
            ConvergenceWarning,
            stacklevel=5,
        )
    else:
        _check_gain(task, done, best.learner, best)
    n, own = len(family.shared), done.shared.detach().double().cpu()
    spread = (best.shared - own)[:n] if n else best.change[: family.n_spread]
    shared = best.shared
    change = spread_in_unit(best.learner, task, done)
    if change is not None:
        spread, shared = change, torch.cat([own[:n] + change[:n], shared[n:]])
    whole = task.objective.whole() is task.objective
    if task.objective.unknowns.size and best.fitted and whole:
        values = learned(task, done, splits[0], best.fitted[0], best.learner.stops)
        shared = torch.cat([shared[:n], values])
    return Final(done, best.learner, shared, spread, choice, apart)


def _last_fit(best: Trial, task: Task, splits: Sequence[Split]) -> Fitted:
    """The model of all sets, and its history in `task.progress`.

    Sets that took turns have left a model of each part of them. The average of models that take
    steps errs less than one more that learns from all sets, and is there already; but not where
    parts had few of the sets, since most others named rows that were held out.
    """
    learned_from = splits[0].learn.total_weight / task.objective.total_weight
    fitted: list[Fitted] = []
    weights: list[float] = []
    for trial, weight in best.made_of or [(best, 1.0)]:
        own, history = list(trial.fitted), trial.history
        steps = trial.learner.stops and not isinstance(trial.learner, Ensemble)
        there = splits[0].learn is task.objective
        there = there or (len(splits) > 1 and steps and learned_from > MOST)
        if not there and not stopped():
            progress = Progress(task.progress.verbose)
            last = fitted_in_unit(trial.learner, dataclasses.replace(task, progress=progress))
            if not stopped():
                own, history = [last], progress.history
        if not fitted:
            task.progress.history[:] = history
        fitted += own
        weights += [weight / len(own)] * len(own)
    return fitted[0] if len(fitted) == 1 else joined(fitted, np.array(weights), task)


def _score(task: Task, fitted: Fitted, best: Trial | None = None) -> float:
    """Mean log-likelihood of what a model has learned from.

    It is that at its own spread, which averages of models have far too small, or at that of the
    trial that held-out sets preferred, if there was one: whichever is better.
    """
    objective, value = task.objective, fitted.value
    if value is None or best is not None:
        raw = torch.from_numpy(np.ascontiguousarray(fitted.model.raw(task.X)))
        shared = fitted.shared.detach().double().cpu()
        value = objective.value(raw, shared) if value is None else value
    if best is not None:
        raw, shared = respread(objective.family, raw, shared, best.change, task.intercept)
        n = len(objective.family.shared)
        value = min(value, objective.value(raw, torch.cat([best.shared[:n], shared[n:]])))
    return -value / objective.total_weight


def _check_gain(task: Task, fitted: Fitted, learner: Learner, best: Trial | None = None) -> None:
    """Warns where a model explains what it has learned from worse than a constant does."""
    if task.place is not None or isinstance(task.X, Stored):  # rows that are somewhere else
        return
    own = _score(task, fitted, best)
    other = task.objective.score(task.raw.expand(task.objective.n_rows, -1), task.shared)
    if not own > other - SLACK:
        warnings.warn(
            f"{learner!r} has ended worse than a constant: the mean log-likelihood of the sets it "
            f"learned from is {own:.6g}, that of the same prediction for all rows {other:.6g}. "
            f"Its steps may be too long (a smaller lr), or another learner suits these labels",
            ConvergenceWarning,
            stacklevel=6,
        )
