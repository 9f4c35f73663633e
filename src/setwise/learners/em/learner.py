"""EM: any scikit-learn classifier or regressor as a learner.

The E-step completes the data: for each row, the expected target given the y of its sets, from a
gradient of the set likelihood. The M-step is the estimator's own `fit`, and the next E-step begins
at its predictions.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from setwise._facts import checked
from setwise.learners.base import Fitted, Learner, Model, Task, shares
from setwise.learners.em.files import read_estimator, write_estimator
from setwise.learners.em.targets import targets_for, to_raw
from setwise.learners.em.trainer import Trainer, predict
from setwise.learners.inputs import as_array, take_rows
from setwise.learners.interruption import stopped
from setwise.objective import Objective, judge

__all__ = ["EM"]

Floats = NDArray[np.float64]
MOST_CLASSES = 2**16
FALL = 0.25  # of the likelihood gained so far: a fall by more means that a step was too long


class EM(Learner):
    """Wraps a scikit-learn classifier (for classes) or regressor (for numbers).

    Classes are fitted as weighted copies of a row, one per class; numbers as the expected target.
    The regressor predicts the location of location families (normal, Cauchy, …) and the mean of
    Poisson, exponential, gamma and negative binomial targets; scales may be fixed or shared, not
    predicted. An estimator without `sample_weight` gets rows drawn in proportion to the weights.

    A step is longer than that of plain EM, by the ratio of the information in complete data to that
    in the sets (for the mean of K members: K), and is halved while the likelihood falls. The E-step
    uses predictions for rows that the estimator was *not* fitted to, from `folds`-fold
    cross-fitting or, for bagged regressors, out of the bag: a forest that is fed its own fit would
    stay where it is (`folds=0`: plain predictions). Their set likelihood (that of `eval` where
    given) says when to stop, after `patience` iterations without a gain of `tol` per set; the best
    iterate is kept.

    >>> from sklearn.linear_model import LinearRegression
    >>> EM(LinearRegression(), max_iter=10)
    EM(estimator=LinearRegression(), max_iter=10)
    """

    missing: ClassVar[bool] = True  # both are for the estimator to decide
    sparse: ClassVar[bool] = True

    def __init__(
        self,
        estimator: Any,
        *,
        max_iter: int = 30,
        tol: float = 1e-3,
        patience: int = 3,
        folds: int = 3,
    ) -> None:
        self.estimator = estimator
        self.max_iter = max_iter
        self.tol = tol
        self.patience = patience
        self.folds = folds

    def fit(self, task: Task) -> Fitted:
        """Alternates completed targets and fits of the estimator."""
        rows, objective = _used(task.objective)
        targets = targets_for(objective, task.raw, task.shared, task.seed)
        trainer = Trainer(self.estimator, targets, self.folds, task.seed)
        X = take_rows(_table(task.X), rows)
        held_out = None if task.eval is None else (_table(task.eval[0]), task.eval[1])

        def score(predicted: Floats, shared: Tensor, fitted: list[Any]) -> dict[str, float]:
            out = {"train": objective.score(targets.raw(predicted, shared), shared)}
            if held_out is not None:
                each = [trainer.predict(f, held_out[0]) for f in fitted]
                values = (
                    np.mean(each, 0) if each else np.repeat(predicted[:1], held_out[1].n_rows, 0)
                )
                raw = targets.raw(values, shared)
                out["valid"] = judge(held_out[1], raw, shared, task.intercept).score
            return out

        raw = task.raw.expand(task.objective.n_rows, -1) if task.guide is None else task.guide
        values = targets.values(raw[torch.from_numpy(rows)], task.shared)
        start = _Iterate(-math.inf, values, values, task.shared, [])
        if task.guide is None:
            start = start._replace(score=_last(score(values, task.shared, [])))
        here, best, kept, stale, damp = start, start, None, 0, 1.0
        with task.progress.running("EM", self.max_iter):
            for _ in range(self.max_iter):
                wanted = targets.step(here.predicted, here.shared, damp)
                predicted, fitted = trainer.out_of_sample(X, wanted)
                raw_of = partial(targets.raw, predicted)
                shared = objective.fit_shared(raw_of, here.shared, task.free)
                figures = score(predicted, shared, fitted)
                task.progress.step(**figures)
                new = _Iterate(_last(figures), predicted, wanted, shared, fitted)
                if start.score == -math.inf:  # a guide saw these very sets: no measure of a fit
                    start = best = new
                stale = 0 if new.score > best.score + self.tol else stale + 1
                too_far = new.score < best.score - FALL * (best.score - start.score)
                if too_far:
                    here, damp = best, damp / 2
                else:
                    here, damp = new, min(1.0, 2 * damp) if new.score > best.score else damp
                best = max(best, new, key=lambda i: i.score)
                kept = new if kept is None else max(kept, new, key=lambda i: i.score)
                if stale >= self.patience or stopped():
                    break
        if kept is None or kept.score == -math.inf:
            raise ValueError(
                f"{self!r}: no iteration gave a finite likelihood; allow at least one, and check "
                f"that the estimator's predictions are finite"
            )
        worse = task.guide is None and kept.score < start.score - self.tol
        if worse and not task.on_trial:
            warnings.warn(
                f"{self!r} explains the sets less well than a model without features (mean "
                f"log-likelihood {kept.score:.4g} against {start.score:.4g}): the estimator does "
                f"not suit these labels, or there are too few sets",
                ConvergenceWarning,
                stacklevel=3,
            )
        only = kept.fitted[0] if len(kept.fitted) == 1 else trainer.fit(X, kept.wanted)
        link = targets.link(kept.shared)
        model = EMModel(only, **{k: v.item() if k == "offset" else v for k, v in link.items()})
        return Fitted(model, kept.shared, converged=stale >= self.patience)


class _Iterate(NamedTuple):
    """Targets, the predictions of estimators fitted to them, and the likelihood of these."""

    score: float
    predicted: Floats
    wanted: Floats
    shared: Tensor
    fitted: list[Any]


def _last(figures: dict[str, float]) -> float:
    """The held-out likelihood where there is one; −inf where it is not a number."""
    value = list(figures.values())[-1]
    return value if math.isfinite(value) else -math.inf


def _used(objective: Objective) -> tuple[NDArray[np.int64], Objective]:
    """The rows in sets of positive weight, and the objective over just those rows."""
    kept = objective.only([term.take(term.weight > 0) for term in objective.terms])
    if not kept.terms:
        raise ValueError("all sets have weight 0: there is nothing to learn from")
    rows = np.unique(np.concatenate([term.sets.indices for term in kept.terms]))
    return rows, kept.over(rows)  # in an order that does not depend on that of the sets


def _table(X: Any) -> Any:
    """X as scikit-learn takes it: frames, sparse matrices and arrays as they are."""
    if hasattr(X, "column_names") or not hasattr(X, "shape"):  # pyarrow; a data set is refused
        return as_array(X, missing=True, who="EM")
    return np.asarray(X.detach().cpu()) if isinstance(X, Tensor) else X


class Link(TypedDict):
    """The arguments of `to_raw` for classes and locations."""

    n_classes: int


class LinkOfMeans(Link):
    """The arguments of `to_raw` for means."""

    offset: float
    floor: float


class Told(TypedDict):
    """The saved form of a model."""

    link: Link | LinkOfMeans
    estimator: Any
    sklearn: str


class EMModel(Model):
    """A fitted estimator, and the arguments of `to_raw` for its predictions."""

    def __init__(self, estimator: Any, n_classes: int = 0, **link: Any) -> None:
        self.estimator, self.link = estimator, {"n_classes": n_classes, **link}

    def raw(self, X: Any) -> Floats:
        """Raw parameters of each row, (rows, outputs)."""
        values = predict(self.estimator, _table(X), self.link["n_classes"])
        return np.asarray(to_raw(values, **self.link))

    def importance(self) -> Floats | None:
        """The estimator's own `feature_importances_`, where it has them."""
        found = getattr(self.estimator, "feature_importances_", None)
        return None if found is None else shares(found)

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the estimator without pickle."""
        return {"link": self.link, **write_estimator(self.estimator, folder)}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any], trusted: bool = False) -> EMModel:
        """Reads it back; kinds that cannot be checked are refused unless they are `trusted`."""
        told: Told = checked(facts, Told, "EM's model")
        link: dict[str, Any] = {**told["link"]}
        if not 0 <= link["n_classes"] <= MOST_CLASSES or not link.get("floor", 1.0) > 0:
            raise ValueError("EM's model has no such number of classes, or no floor of a mean")
        estimator = read_estimator(folder, told["estimator"], told["sklearn"], trusted)
        return cls(estimator, **link)
