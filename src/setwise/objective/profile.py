"""How well predicted locations fit held-out sets, at the best spread for these sets.

A scale fitted to the sets that a model learned from shrinks as the model overfits them, and the
likelihood of held-out sets at that scale falls long before predictions get worse. So models are
stopped and compared by a profile likelihood: the spread is fitted to the held-out sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setwise.distributions import Family
from setwise.objective.objective import Objective

__all__ = ["HeldOut", "Intercept", "Judged", "judge", "moved_on", "respread", "surely_worse"]

STEPS = 30  # of Newton's method; one or two are usual
ENOUGH = 1e-4  # per set: a step that brings less is the last
FARTHEST = 2.0  # that one step changes a logarithm
CHANCE = 1.0  # standard errors up to which a difference may be chance


class Intercept(NamedTuple):
    """The model without features: raw numbers that are the same for all rows, and shared ones."""

    raw: Tensor  # (outputs,)
    shared: Tensor  # (number of shared parameters,)


class Judged(NamedTuple):
    """The score of predictions by some sets, and the change of spread that suits these best."""

    score: float
    change: Tensor
    sets: Tensor  # what each set adds to the score


def respread(
    family: Family, raw: Tensor, shared: Tensor, change: Tensor, intercept: Intercept
) -> tuple[Tensor, Tensor]:
    """Raw and shared numbers of the same predictions with another spread.

    Probabilities of classes become more or less sure about those of the constant model. Entries of
    `change` beyond those of the family are added to the learned parameters of aggregates.
    """
    centre = intercept.raw.to(raw) if family.spread_about_constant else raw.new_zeros(())
    n, m = len(family.shared), family.n_spread
    moved, own = family.respread(raw - centre, shared[:n], change[:m])
    return moved + centre, torch.cat([own, moved_on(shared[n:], change[m:])])


def moved_on(numbers: Tensor, change: Tensor) -> Tensor:
    """The numbers, the first of which change."""
    k = len(change)
    return torch.cat([numbers[:k] + change, numbers[k:]]) if k else numbers


def judge(
    objective: Objective,
    raw: Tensor,
    shared: Tensor,
    intercept: Intercept,
    begin: Tensor | None = None,
    learned: bool = True,
) -> Judged:
    """The mean log-likelihood per set at the best spread, and how that differs from the given one.

    A few sets can suit a spread by chance, so there is a penalty for its distance from that of the
    intercept, with the weight of one set. `begin` is a change to start from. Learned parameters of
    aggregates, such as how noisy labels are, can be overfitted as well: it is part of the spread,
    unless `learned` is false.
    """
    family, total = objective.family, objective.total_weight
    n, m = len(family.shared), family.n_spread
    at = intercept.raw[1:].to(raw), intercept.shared[:n].to(raw)
    strength = total / objective.n_sets
    size = m + objective.unknowns.n_centres * learned

    def losses(change: Tensor) -> tuple[Tensor, Tensor]:
        moved, own = respread(family, raw, shared, change, intercept)
        located = torch.cat(
            [moved[:, 1:].mean(0) - at[0], own[:n] - at[1], 2 * change[1:m], change[m:]]
        )
        away = change if objective.of_classes else located
        sets = torch.cat(objective.weighted(moved, own))
        return sets, 0.5 * strength * away.square().sum() - sets.sum()

    change = raw.new_zeros(size) if begin is None else begin.to(raw)
    if not size:
        with torch.no_grad():
            sets, loss = losses(change)
        return Judged(-float(loss) / total, change, sets / total)
    for _ in range(STEPS):
        value, sets, step, gain = _newton(losses, change)
        if not gain > ENOUGH * total:
            break
        while step.abs().max() > 1e-9:
            with torch.no_grad():
                if float(losses(change + step)[1]) < value:
                    break
            step = 0.5 * step
        change = change + step
    # What the last step brings is known to third order.
    return Judged((gain - value) / total, change + step, sets / total)


class HeldOut:
    """Sets that a fit does not learn from, by which its steps are compared."""

    def __init__(self, objective: Objective, intercept: Intercept) -> None:
        self.objective, self.intercept = objective, intercept
        members = [o.sets.indices for o in objective.observations]
        self.n_rows = len(np.unique(np.concatenate(members)))
        self.change: Tensor | None = None
        self.best = -math.inf
        self.best_sets: Tensor | None = None

    def judge(self, raw: Tensor, shared: Tensor) -> tuple[float, bool, bool]:
        """The score of this step, whether it is the best so far, or surely worse than the best."""
        found = judge(self.objective, raw, shared, self.intercept, self.change)
        self.change = found.change
        if self.best_sets is None or found.score > self.best:
            self.best, self.best_sets = found.score, found.sets
            return found.score, True, False
        return found.score, False, surely_worse(found.sets, self.best_sets, self.n_rows)


def surely_worse(new: Tensor, old: Tensor, n_rows: int) -> bool:
    """Whether the new locations are worse by more than chance; both are `Judged.sets`.

    Errors of sets that share rows are correlated: the sets count as no more than there are rows.
    """
    loss = old - new
    if not loss.isfinite().all():
        return not bool(new.isfinite().all())
    error = (loss.var(correction=0) * len(loss) * max(1.0, len(loss) / n_rows)).sqrt()
    return bool(loss.sum() > CHANCE * error)


def _newton(
    losses: Callable[[Tensor], tuple[Tensor, Tensor]], at: Tensor
) -> tuple[float, Tensor, Tensor, float]:
    """The loss here, of each set too, a step downhill and what it brings to second order."""
    with torch.enable_grad():
        leaf = at.detach().clone().requires_grad_()
        sets, value = losses(leaf)
        (slope,) = torch.autograd.grad(value, leaf, create_graph=True)
        rows = [torch.autograd.grad(s, leaf, retain_graph=True)[0] for s in slope]
    slope, hessian = slope.detach(), torch.stack(rows)
    if not (value.isfinite() and slope.isfinite().all() and hessian.isfinite().all()):
        return float(value.detach()), sets.detach(), torch.zeros_like(at), 0.0
    sizes, directions = torch.linalg.eigh(hessian)
    step = -directions @ ((directions.T @ slope) / sizes.abs().clamp_min(1e-12))
    step = step * (FARTHEST / step.abs().max().clamp_min(FARTHEST))
    return float(value.detach()), sets.detach(), step, max(0.0, -0.5 * float(slope @ step))
