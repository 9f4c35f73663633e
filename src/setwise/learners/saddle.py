"""Starting points where every row's gradient vanishes, and the way out of them.

Learners begin at the model without features. Where every set has the same counts, for a parity, a
range, and other labels, the gradient of every row is zero there (or carries nothing but noise)
although better models exist: a gradient would never leave. Such a start is recognised by how little
the sets' gradients carry: next to nothing beside what the rows' own targets would, and nothing that
features explain. The way out is a guide, as for classes that can be swapped: of several small
models of random smooth functions of the features, the one that suits held-out sets best.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from setwise.learners.base import Learner, Task
from setwise.learners.network.encoding import as_numbers
from setwise.likelihood import find_rule
from setwise.objective import Objective
from setwise.objective.terms import derivatives

__all__ = ["Saddle", "leave_saddle"]

Floats = NDArray[np.float64]
WEAK = 0.02  # information in a member's gradient, in units of 1/K of that in its own target
NONE = 1e-9  # so little is none at all
EXAMINED = 5_000  # sets that are looked at
LEARNED, FIRST = 1_600, 300  # sets that a guide is learned from, and at first
HELD_OUT = 0.25  # of them, to compare random starts by
COLUMNS, SMOOTH = 40, 40  # features that are taken as they are, and smooth functions of them
BEGINNINGS, SHORT = 4, 15  # of each kind, and the steps after which the best go on
KEPT, LONG = 2, 30
RESTARTS = 5  # of a network, which has random starts of its own
CERTAIN, LEAST = 2.0, 1e-3  # standard errors, and mean, by which a guide must be better per set


class Saddle(NamedTuple):
    """A start without direction: the mean log-likelihood there, and that of the guide."""

    constant: float
    guide: float

    def check(self, score: float, learner: Learner) -> None:
        """Warns where the learner, whose model has this score, has come back to the start."""
        if not score > self.constant + 0.25 * (self.guide - self.constant):
            warnings.warn(
                f"the model without features is a saddle, which these labels give no direction to "
                f"leave, and {learner!r} stayed near it: mean log-likelihood {score:.4g} per set, "
                f"{self.constant:.4g} without features, though {self.guide:.4g} is possible. Try "
                f"another learner, or add a few `Direct` observations",
                ConvergenceWarning,
                stacklevel=6,
            )


def leave_saddle(task: Task) -> Saddle | None:
    """Gives the task a guide where its start has no direction; None where it has one."""
    objective = task.objective
    if task.guide is not None or task.restarts > 1 or objective.quadratic:
        return None
    few = task.in_memory()
    if few is not task:
        if leave_saddle(few) is not None:
            warnings.warn(
                "the model without features is a saddle, which these labels give no direction to "
                "leave; a learner finds one where rows are in memory, as in rows.read()",
                ConvergenceWarning,
                stacklevel=6,
            )
        task.restarts = few.restarts
        return None
    told = _told(task)
    if not math.isfinite(told) or (told > WEAK and _exact(objective)):
        return None
    table = _features(task)
    if table is None:
        task.restarts = RESTARTS if told < NONE else 1
        return None
    rng = np.random.default_rng(task.seed)
    part = _some(objective, EXAMINED, rng)
    if told > NONE and _explained(part, task, table):
        return None
    guide = _Pilot(task, _some(objective, LEARNED, rng), table, rng).guide()
    if guide is None:
        return None
    task.guide, shared = guide
    task.restarts = RESTARTS
    constant = objective.score(task.raw.expand(objective.n_rows, -1), task.shared)
    return Saddle(constant, objective.score(task.guide, shared))


def _told(task: Task) -> float:
    """The least information of any output in a member's gradient, times K, beside that in Z."""
    objective = task.objective
    raw = task.raw.expand(objective.n_rows, -1).contiguous()
    slope = objective.gradient(raw, task.shared).gradient.double()
    members = sum(float(term.weight @ term.sets.individuals) for term in objective.terms)
    own = objective.family.information(raw[:1], task.shared, task.seed)[0] * members
    seen = slope.square().sum(0)
    if objective.of_classes:
        seen, own = seen.sum(), own.sum()
    if not bool((own > 0).all()) or not bool(seen.isfinite().all()):
        return math.inf
    return float((seen / own).min()) * members / max(objective.total_weight, 1e-300)


def _exact(objective: Objective) -> bool:
    """Whether gradients are exact: noise would hide that those of a simulation vanish."""
    kinds = [type(o.aggregate) for o in objective.observations]
    return all(find_rule(kind, objective.family.distribution).exact for kind in kinds)


def _features(task: Task) -> Floats | None:
    """Standardised features, at most `COLUMNS`; None where X is no table of numbers."""
    table = as_numbers(task.X)
    if not isinstance(table, np.ndarray) or table.ndim != 2 or not table.shape[1]:
        return None
    table = (table - table.mean(0)) / np.where(table.std(0) > 0, table.std(0), 1.0)
    if table.shape[1] > COLUMNS:  # the leading principal components
        axes = np.linalg.svd(table[:EXAMINED], full_matrices=False)[2][:COLUMNS]
        table = table @ axes.T
        table = table / np.where(table.std(0) > 0, table.std(0), 1.0)
    return np.asarray(table, np.float64)


def _some(objective: Objective, most: int, rng: np.random.Generator) -> Objective:
    """At most so many sets, with each kind in proportion."""
    share = min(1.0, most / max(objective.n_sets, 1))
    parts = []
    for term in objective.terms:
        known = np.flatnonzero(term.weight > 0)
        parts.append(term.take(np.sort(rng.permutation(known)[: math.ceil(share * len(known))])))
    return objective.only(parts)


def _explained(part: Objective, task: Task, table: Floats) -> bool:
    """Whether the sets' gradients depend on the features: a score test."""
    scores = []
    for term in part.terms:
        members = task.raw.expand(len(term.sets.indices), -1).clone().requires_grad_()
        with torch.enable_grad():
            each = term.at_members(members, task.shared).sum()
        slopes = derivatives(each, [members])[0].numpy()
        x, starts = table[term.sets.indices], term.sets.offsets[:-1]
        blocks = [np.add.reduceat(x * s[:, None], starts, axis=0) for s in slopes.T]
        scores.append(np.column_stack(blocks) * term.weight[:, None])
    score = np.concatenate(scores)
    score = score[np.isfinite(score).all(1)]
    total = score.sum(0)
    size, axes = np.linalg.eigh(score.T @ score)
    kept = size > 1e-9 * max(float(size[-1]), 1e-300)
    n = int(kept.sum())
    statistic = float(((axes[:, kept].T @ total) ** 2 / size[kept]).sum())
    return statistic > n + 4 * math.sqrt(2 * n)


class _Pilot:
    """Small models of random smooth functions of the features, by maximum likelihood."""

    def __init__(
        self, task: Task, part: Objective, table: Floats, rng: np.random.Generator
    ) -> None:
        self.task, self.table, self.rng = task, table, rng
        self.unit = task.objective.family.units(task.raw, task.shared)
        self.learned = task.learned
        self.learn, self.compare = part, part
        if part.n_sets >= 100:
            held, learn = [], []
            for term in part.terms:
                order = rng.permutation(len(term.sets))
                cut = int(HELD_OUT * len(order))
                held.append(term.take(order[:cut]))
                learn.append(term.take(order[cut:]))
            self.learn, self.compare = part.only(learn), part.only(held)
        n = table.shape[1]
        turns = rng.normal(size=(n, SMOOTH)) / math.sqrt(n)
        waves = np.sqrt(2) * np.cos(table @ turns * 1.5 + rng.uniform(0, 2 * np.pi, SMOOTH))
        self.designs = [table, np.column_stack([table, waves - waves.mean(0)])]

    def guide(self) -> tuple[Tensor, Tensor] | None:
        """Raw and shared parameters that suit held-out sets best; None where none are better."""
        start = self.task.raw.expand(self.task.objective.n_rows, -1)
        constant = self._per_set(start, self.task.shared)
        few = _some(self.learn, FIRST, self.rng)
        for design in self.designs:  # the second only where the first finds nothing
            columns = np.column_stack([design, np.ones(len(design))])
            begins = [self._random(columns) for _ in range(BEGINNINGS)]
            tried = [self._fit(few, columns, x, SHORT) for x in begins]
            tried.sort(key=lambda trial: trial[0])
            found = [self._fit(self.learn, columns, x, LONG)[1] for _, x in tried[:KEPT]]
            gains = [self._per_set(*self._parameters(columns, x)) - constant for x in found]
            best = max(range(len(found)), key=lambda i: float(gains[i].sum()))
            gain = gains[best]
            error = float(gain.std()) * math.sqrt(len(gain)) if len(gain) > 1 else math.inf
            if float(gain.sum()) > max(CERTAIN * error, LEAST * self.compare.total_weight):
                return self._parameters(columns, found[best])
        return None

    def _random(self, columns: Floats) -> Floats:
        """Coefficients that make raw parameters vary about as much as targets do."""
        slopes = self.rng.normal(size=(columns.shape[1], len(self.unit)))
        slopes *= self.rng.uniform(0.5, 1.5) / math.sqrt(columns.shape[1])
        slopes[-1] = 0.0
        return np.concatenate([slopes.ravel(), self.task.shared.numpy()[self.learned]])

    def _parameters(self, columns: Floats, x: Floats) -> tuple[Tensor, Tensor]:
        slopes = x[: columns.shape[1] * len(self.unit)].reshape(columns.shape[1], -1)
        raw = self.task.raw + torch.from_numpy(columns @ slopes) * self.unit
        own = torch.from_numpy(x[slopes.size :].copy())
        return raw, torch.cat([self.task.shared[: self.learned.start], own])

    def _per_set(self, raw: Tensor, shared: Tensor) -> Tensor:
        found = self.compare.per_set(raw, shared)
        weights = [torch.from_numpy(term.weight) for term in self.compare.terms]
        return torch.cat([w * each for w, each in zip(weights, found, strict=True)])

    def _fit(
        self, part: Objective, columns: Floats, begin: Floats, steps: int
    ) -> tuple[float, Floats]:
        """The loss, with a little of a ridge penalty, and the coefficients after so many steps."""
        size, weight = columns.shape[1] * len(self.unit), max(part.total_weight, 1e-300)

        def loss(x: Floats) -> tuple[float, Floats]:
            raw, shared = self._parameters(columns, x)
            here = part.gradient(raw, shared)
            slopes = columns.T @ (here.gradient * self.unit).numpy()
            own = here.shared_gradient.numpy()[self.learned]
            gradient = np.concatenate([slopes.ravel(), own])
            gradient[:size] += x[:size]
            value = float(here.value) + 0.5 * float((x[:size] ** 2).sum())
            if not (math.isfinite(value) and np.isfinite(gradient).all()):
                return 1e300, np.zeros_like(x)
            return value / weight, gradient / weight

        found: Any = optimize.minimize(
            loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": steps}
        )
        return float(found.fun), np.asarray(found.x, np.float64)
