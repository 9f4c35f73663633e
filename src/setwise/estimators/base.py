"""What the regressor and the classifier share: fitting, predicting, scoring, aligning."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.distributions import Distribution

from setwise._random import seed_of
from setwise._threads import at_most
from setwise.distributed import on_dask
from setwise.distributions import Family, map_parameters
from setwise.identifiability import Alignment, Identifiability, diagnose, identify, solve_alignment
from setwise.inference import Posterior, expected_aggregate, posterior
from setwise.io import Saveable
from setwise.learners import Learner, Model, Place, Task
from setwise.learners import resolve as resolve_learner
from setwise.learners.inputs import n_features, n_rows, raw_of, take_rows
from setwise.learners.interruption import interruptible, stopped
from setwise.learners.progress import Progress
from setwise.learners.reading import ReadsTables, read_table, table_like
from setwise.likelihood import Aggregate
from setwise.likelihood.classes import in_order
from setwise.objective import (
    Intercept,
    Objective,
    Parts,
    Unknowns,
    check_informative,
    judge,
    listed,
    objective_of,
    respread,
)
from setwise.observations import Observations
from setwise.sets import Sets
from setwise.stored import Files, Stored
from setwise.summary.described import Described
from setwise.validation import Split, fit_best, hold_out

__all__ = ["AggregateEstimator"]

# What held-out sets chose, which `refit` keeps.
_CHOSEN = (
    "shared_", "spread_", "history_", "leaderboard_", "validation_", "held_out_score_",
    "constant_score_",
)  # fmt: skip


class AggregateEstimator(Saveable, ReadsTables, Described):
    """What the regressor and the classifier share."""

    learner: str | Learner
    overlap: str
    random_state: Any
    verbose: int
    validation: str | None

    # ---- set by fit
    family_: Family
    learner_: Learner
    model_: Model
    shared_: Tensor
    unknowns_: Unknowns
    spread_: Tensor
    constant_: Intercept
    steps_: int
    identifiability_: Identifiability
    alignment_: Alignment | None
    history_: list[dict[str, Any]]
    interrupted_: bool = False
    leaderboard_: list[dict[str, Any]]
    validation_: str | None
    held_out_score_: float | None
    constant_score_: float | None

    @abstractmethod
    def _family(self, labels: NDArray[Any] | None) -> Family:
        """The family of distributions of a target, of these classes."""

    def _class_labels(self, observations: Sequence[Observations]) -> NDArray[Any] | None:
        """The classes that observations are about."""
        return None

    # ---- fitting

    def fit(
        self,
        X: Any,
        observations: Observations | Sequence[Observations],
        eval: tuple[Any, Observations | Sequence[Observations]] | None = None,
        *,
        client: Any = None,
    ) -> Self:
        """Learns from observations about sets of the rows of X.

        `observations` is one `Observations` or a list of several kinds, which add up.

        With `validation="auto"` some sets are held out at first. They choose the learner, where
        there are several, its penalty and how many steps it takes, and the scale of the targets
        around the predictions, since residuals of sets learned from are too small. Then the choice
        is fitted to all sets. `eval` is a pair (X, observations) that is held out instead, and not
        learned from in the end. `leaderboard_` lists what was tried, `validation_` is "rows" if the
        held-out sets share no rows with the others, and "sets" if they do.

        Ctrl-C ends a fit after the step that is under way and keeps the best model so far, where
        the learner makes steps; `interrupted_` says so. A second one ends it at once.

        With a `dask.distributed.Client` as `client`, trees grow on its workers (`XGBoost`,
        `LightGBM`, and ensembles of them), to the same model. X may then be a Dask data frame or
        array, or a list of delayed parts, whose rows stay on the workers.
        """
        learner = resolve_learner(self.learner)
        place = None if client is None else on_dask(client, learner)
        return self._fit(learner, X, observations, eval, self.validation, place)

    def refit(self, X: Any, observations: Observations | Sequence[Observations]) -> Self:
        """Fits what the held-out sets of the last `fit` chose once more, now to these sets.

        Learner, steps and penalty stay, and so does the scale of the targets.
        """
        self._check_fitted()
        kept = {name: getattr(self, name) for name in _CHOSEN}
        self._fit(self.learner_, X, observations, None, None)
        if kept["validation_"]:
            n = len(self.family_.shared)
            if n:  # the spread is relative to the shared parameters of the model
                kept["spread_"] = kept["shared_"][:n] - self.shared_[:n]
            kept["shared_"] = torch.cat([kept["shared_"][:n], self.shared_[n:]])
            self.__dict__.update(kept)
        return self

    def _fit(
        self,
        learner: Learner,
        X: Any,
        observations: Any,
        eval: Any,
        validation: str | None,
        place: Place | None = None,
    ) -> Self:
        if validation not in ("auto", None):
            raise ValueError(f'validation is "auto" or None, got {validation!r}')
        X, given = read_table(X if place is None else place.table(X)), listed(observations)
        if isinstance(X, Stored) and not learner.stored:
            raise TypeError(
                f"{learner!r} needs rows in memory: read them first, as in rows.read(), or use "
                f"Linear, LightGBM, XGBoost or Network"
            )
        labels = self._class_labels(given)
        family = self._family(labels)
        objective = self._objective(family, X, given, "observations", labels)
        splits: list[Split] = []
        if eval is not None:
            if not isinstance(eval, tuple | list) or len(eval) != 2:
                raise TypeError(f"eval is a pair (X, observations), got {type(eval).__name__}")
            X_eval = table_like(eval[0], getattr(X, "encoder", None), n_features(X))
            held = self._objective(
                family, X_eval, eval[1], "eval observations", labels, objective.unknowns
            )
            held_out = held.batch()
            splits = [Split(objective, take_rows(X_eval, held_out.rows), held_out)]
        identifiability = identify(family, objective.examples.observations)
        constant = objective.start(identifiability.scale)
        check_informative(objective, *constant)
        task = Task(
            X,
            objective,
            *constant,
            free=identifiability.scale,
            identifiability=identifiability,
            restarts=self._restarts(identifiability),
            seed=int(learner.peers().first(seed_of(self.random_state))[0]),
            progress=Progress(self.verbose),
            place=place,
        )
        apart = "given" if splits else None
        with interruptible(), at_most(learner.threads(task)):
            if validation and not splits:
                splits, apart = hold_out(X, objective, task.seed)
            fitted, learner, shared, spread, choice, self.validation_ = fit_best(
                learner, task, splits, apart
            )
            interrupted = stopped()
        self.__dict__.pop("interrupted_", None)
        if interrupted:
            self.interrupted_ = True
            warnings.warn(
                f"the fit was interrupted: the model is the best one so far, of {learner!r}"
                + (f" after {fitted.steps:,} steps" if fitted.steps else ""),
                UserWarning,
                stacklevel=3,
            )
        elif not fitted.converged:
            warnings.warn(
                f"{learner!r} stopped before it converged: the model may not be the best one; give "
                f"it more iterations, or a penalty",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.family_, self.learner_, self.identifiability_ = family, learner, identifiability
        self.model_, self.shared_, self.spread_ = fitted.model, shared, spread
        self.unknowns_ = objective.unknowns
        self.constant_, self.steps_ = task.intercept, fitted.steps
        self.leaderboard_ = choice.leaderboard if choice else []
        self.held_out_score_ = choice.best.score if choice else None
        self.constant_score_ = choice.constant if choice else None
        self.overlap_ = objective.overlap
        self.alignment_ = None
        self.history_ = task.progress.history
        self._note_columns(X)
        self._remember(X, given, task.progress)
        return self

    def _restarts(self, identifiability: Identifiability) -> int:
        return 1

    def _objective(
        self,
        family: Family,
        X: Any,
        observations: Any,
        what: str,
        labels: Any,
        unknowns: Unknowns | None = None,
    ) -> Objective:
        given = in_order(listed(observations, what), labels)
        stored = X if isinstance(X, Stored) else None
        return objective_of(family, n_rows(X), given, what, self.overlap, unknowns, stored)

    def _seen(self, X: Any, observations: Any) -> Objective:
        """The loss of observations of other rows, for the fitted model."""
        given, labels = listed(observations), getattr(self, "classes_", None)
        seen = self._objective(self.family_, X, given, "observations", labels, self.unknowns_)
        return seen.whole()

    def _told(self, observations: Any) -> list[Observations]:
        """Observations with the learned parameters of their aggregates filled in."""
        return [self.unknowns_.settled(o, self.shared_) for o in self._in_order(observations)]

    @property
    def aggregates_(self) -> list[Aggregate | dict[Any, Aggregate]]:
        """The aggregates that have learned parameters, with these filled in.

        One for each labeller, where these were named by `Observations(…, by=…)`.
        """
        self._check_fitted()
        return self.unknowns_.aggregates(self.shared_)

    def _in_order(self, observations: Any) -> list[Observations]:
        """Observations about classes in the order of the model."""
        return in_order(listed(observations), getattr(self, "classes_", None))

    def _check_fitted(self) -> None:
        check_is_fitted(
            self, msg="this %(name)s is not fitted yet: call fit(X, observations) first"
        )

    # ---- predicting

    def _rows(self, X: Any) -> tuple[Tensor, Tensor]:
        """Raw and shared parameters of the rows of X, without alignment."""
        self._check_fitted()
        return self._respread(self._raw(self._table(X))), self.shared_

    def _respread(self, raw: Tensor) -> Tensor:
        """Raw parameters of a model with the spread that held-out sets have found."""
        return respread(self.family_, raw, self.shared_, self.spread_, self.constant_)[0]

    def _raw(self, X: Any) -> Tensor:
        """Raw parameters as the model was trained to give them."""
        if not n_rows(X):
            return torch.zeros(0, len(self.family_.outputs), dtype=torch.float64)
        raw = torch.from_numpy(raw_of(self.model_, X))
        if not bool(raw.isfinite().all()):
            row = int((~raw.isfinite()).nonzero()[0, 0])
            raise ValueError(
                f"what the model predicts of row {row} of X is not finite: check the size of its "
                f"features beside those of the fit"
            )
        return raw

    def _distribution(self, X: Any) -> Distribution:
        """The distribution of each row's target, before alignment."""
        raw, shared = self._rows(X)
        return self.family_(raw, shared)

    def predict_dist(self, X: Any) -> Distribution:
        """The distribution of each row's target, as a `torch.distributions` object."""
        d = self._distribution(X)
        return d if self.alignment_ is None else self.alignment_.distribution(d)

    def predict_aggregate(self, X: Any, sets: Any, aggregate: Aggregate) -> NDArray[np.float64]:
        """The expected y of sets of the rows of X; for a 0/1 label its probability.

        Where y names one of several things (a choice, a cell), the most probable of them.
        """
        sets = sets if isinstance(sets, Sets) else Sets(sets)
        self._check_fitted()
        table = self._table(X)
        if not isinstance(table, Stored):
            return self._expected(table, sets, aggregate)
        parts, out = Parts(table, sets), []
        for j in range(len(parts)):
            some, numbers, members = parts.read([j])
            own = sets.take(numbers).moved(members)
            out.append(self._expected(some, own, aggregate.take(numbers)))
        return np.concatenate(out)

    def _expected(self, X: Any, sets: Sets, aggregate: Aggregate) -> NDArray[np.float64]:
        d = self.predict_dist(X)
        aggregate = self.unknowns_.filled(aggregate, self.shared_)
        return expected_aggregate(aggregate, map_parameters(d, sets.members), sets)

    def posterior(self, X: Any, observations: Observations) -> Posterior:
        """What is known of each member once its set's y is known."""
        (one,) = self._told(observations)
        return posterior(one, self._distribution(X), self.alignment_)

    def score(
        self,
        X: Any,
        observations: Observations | Sequence[Observations],
        *,
        profile: bool = False,
    ) -> float:
        """Mean log-likelihood per set of these observations: larger is better.

        With `profile=True` the scale of the targets is the one that suits these sets best, so that
        only predictions are judged: the way to compare models on sets that they have not seen, for
        which a scale fitted to the sets that a model learned from is too small.
        """
        raw, shared = self._rows(X)
        objective = self._seen(X, observations)
        if profile:
            return judge(objective, raw, shared, self.constant_).score
        return objective.score(raw, shared)

    def score_constant(self, X: Any, observations: Observations | Sequence[Observations]) -> float:
        """What `score(..., profile=True)` gives a model without features, of the same fit."""
        self._check_fitted()
        objective = self._seen(X, observations)
        raw, shared = self.constant_
        return judge(objective, raw.expand(objective.n_rows, -1), shared, self.constant_).score

    # ---- identifiability

    def diagnose(self, X: Any, observations: Observations | Sequence[Observations]) -> list[str]:
        """What these very sets leave open, in words; an empty list where nothing is."""
        table, rows = None if isinstance(X, Files) else X, self._rows(X)
        labels, told = getattr(self, "classes_", None), self._told(observations)
        objective = self._objective(self.family_, X, told, "observations", labels)
        return diagnose(objective, table, *rows, listed(observations))

    def align(self, X_few: Any, z_few: Any) -> Self:
        """Settles what sets leave open, from a few rows whose targets are known."""
        d, z = self._distribution(X_few), self._targets(z_few)
        self.alignment_ = solve_alignment(self.identifiability_, self.family_, d, z)
        self._settle(X_few, z)
        return self

    def _targets(self, z: Any) -> NDArray[Any]:
        return np.asarray(z, dtype=np.float64)

    # ---- looking at it

    def report(
        self,
        path: str | os.PathLike[str],
        X: Any = None,
        observations: Observations | Sequence[Observations] | None = None,
        *,
        eval: tuple[Any, Observations | Sequence[Observations]] | None = None,
        truth: tuple[Any, Any] | None = None,
        title: str = "",
    ) -> Path:
        """Writes one self-contained HTML page about the fitted model; needs `setwise[plots]`.

        It shows data, likelihood, calibration, identifiability, important features and versions.
        `X` and `observations` are those of the fit. With `eval`, a pair (X, observations) that the
        fit has not learned from, likelihood and calibration are those of these sets. `truth` is a
        pair (X, z) of rows whose targets are known; `title` is the heading of the page.
        """
        from setwise.report import report  # imports matplotlib

        return report(self, path, X, observations, eval=eval, truth=truth, title=title)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
