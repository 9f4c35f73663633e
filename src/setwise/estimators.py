"""AggregateRegressor and AggregateClassifier: individuals predicted from labels of sets."""

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
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils import check_random_state
from torch import Tensor
from torch.distributions import Distribution

from setwise import distributions
from setwise.distributions import Family, map_parameters, point_estimate
from setwise.identifiability import Alignment, Identifiability, diagnose, identify, solve_alignment
from setwise.inference import Posterior, expected_aggregate, posterior
from setwise.io import Saveable
from setwise.learners import Fitted, Learner, Model, Network, Task
from setwise.learners import resolve as resolve_learner
from setwise.learners.inputs import as_table, feature_names, n_features, n_rows
from setwise.learners.progress import Progress
from setwise.likelihood import Aggregate, find_rule
from setwise.objective import Intercept, Objective, judge
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["AggregateClassifier", "AggregateRegressor"]


class _AggregateEstimator(Saveable, BaseEstimator):  # type: ignore[misc]
    """What the regressor and the classifier share."""

    learner: str | Learner
    random_state: Any
    verbose: int

    # ---- set by fit
    family_: Family
    learner_: Learner
    model_: Model
    shared_: Tensor
    spread_: Tensor
    intercept_: Intercept
    steps_: int
    identifiability_: Identifiability
    alignment_: Alignment | None
    history_: list[dict[str, Any]]
    n_features_in_: int | None

    @abstractmethod
    def _family(self) -> Family:
        """The family of distributions of a target."""

    # ---- fitting

    def fit(
        self,
        X: Any,
        observations: Observations | Sequence[Observations],
        eval: tuple[Any, Observations | Sequence[Observations]] | None = None,
    ) -> Self:
        """Learns from observations about sets of the rows of X.

        `observations` is one `Observations` or a list of several kinds, which add up. `eval` is a
        pair (X, observations) that is held out: learners that take many steps stop where its
        likelihood is best, whatever the scale of the targets around the predictions; that scale is
        then set by the held-out sets, since residuals of what was learned from are too small.
        """
        return self._fit(resolve_learner(self.learner), X, observations, eval)

    def refit(self, X: Any, observations: Observations | Sequence[Observations]) -> Self:
        """Fits once more, now to all sets, as held-out sets have shown to be best.

        After a `fit` with `eval`: with as many rounds or epochs as were kept, and with the scale
        that the held-out sets told, which no residual of what is learned from could tell.
        """
        self._check_fitted()
        shared, spread, history = self.shared_, self.spread_, self.history_
        learner = self.learner_.for_steps(self.steps_) if self.steps_ else self.learner_
        self._fit(learner, X, observations, None)
        if learner.stops:
            self.spread_ = shared - self.shared_ if len(shared) else spread
            self.shared_ = shared
        self.history_ = history
        return self

    def _fit(self, learner: Learner, X: Any, observations: Any, eval: Any) -> Self:
        family = self._family()
        X = as_table(X)
        objective = self._objective(family, X, observations, "observations")
        held_out = None
        if eval is not None:
            if not isinstance(eval, tuple | list) or len(eval) != 2:
                raise TypeError(f"eval is a pair (X, observations), got {eval!r}")
            X_eval = as_table(eval[0])
            self._check_features(X_eval, n_features(X), feature_names(X))
            held_out = X_eval, self._objective(family, X_eval, eval[1], "eval observations")
        identifiability = identify(family, objective.observations)
        free = identifiability.scale
        raw, shared = objective.start(free)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        progress = Progress(self.verbose)
        task = Task(
            X=X, objective=objective, raw=raw, shared=shared, free=free, eval=held_out,
            restarts=self._restarts(identifiability), seed=seed, progress=progress,
        )  # fmt: skip
        if task.restarts > 1 and not isinstance(learner, Network):
            task.guide = Network.pilot(task)
        fitted: Fitted = learner.fit(task)
        if not fitted.converged:
            warnings.warn(
                f"{learner!r} stopped before it converged: the model may not be the best one; give "
                f"it more iterations, or a penalty",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.family_, self.learner_, self.identifiability_ = family, learner, identifiability
        self.model_, self.shared_ = fitted.model, fitted.shared.detach().double().cpu()
        self.intercept_, self.steps_ = task.intercept, fitted.steps
        self.spread_ = torch.zeros(family.n_spread, dtype=torch.float64)
        if held_out is not None and learner.stops:
            rows = self._raw(held_out[0])
            self.spread_ = judge(held_out[1], rows, self.shared_, self.intercept_).change
            self.shared_ = family.respread(rows, self.shared_, self.spread_)[1]
        self.alignment_ = None
        self.history_ = progress.history
        self.n_features_in_ = n_features(X)
        self.__dict__.pop("feature_names_in_", None)
        if (names := feature_names(X)) is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _restarts(self, identifiability: Identifiability) -> int:
        return 1

    def _objective(self, family: Family, X: Any, observations: Any, what: str) -> Objective:
        listed = [observations] if isinstance(observations, Observations) else observations
        if not isinstance(listed, list | tuple) or not all(
            isinstance(o, Observations) for o in listed
        ):
            raise TypeError(
                f"{what}: one setwise.Observations or a list of them is expected, got "
                f"{observations!r}"[:500]
            )
        if not sum(len(o) for o in listed):
            raise ValueError(f"{what}: there are no sets to learn from; give at least one")
        for o in listed:
            try:
                find_rule(type(o.aggregate), family.distribution)
            except TypeError as error:
                raise TypeError(f"{what}: {o!r} does not fit this task: {error}") from None
        return Objective(family, [o for o in listed if len(o)], n_rows(X))

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet: call fit(X, observations) first"
            )

    def _check_features(self, X: Any, number: int | None, names: Any) -> None:
        found = n_features(X)
        if number is not None and found is not None and found != number:
            raise ValueError(f"X has {found} features, but the model was fitted with {number}")
        mine = feature_names(X)
        if names is not None and mine is not None and list(names) != mine:
            missing = [name for name in names if name not in mine]
            extra = [name for name in mine if name not in names]
            raise ValueError(
                f"the columns of X are not those of the fit: missing {missing[:5]}, unknown "
                f"{extra[:5]}"
                + ("" if missing or extra else "; they are the same in another order")
            )

    # ---- predicting

    def _rows(self, X: Any) -> tuple[Tensor, Tensor]:
        """Raw and shared parameters of the rows of X, without alignment."""
        self._check_fitted()
        X = as_table(X)
        self._check_features(X, self.n_features_in_, getattr(self, "feature_names_in_", None))
        raw, _ = self.family_.respread(self._raw(X), self.shared_, self.spread_)
        return raw, self.shared_

    def _raw(self, X: Any) -> Tensor:
        """Raw parameters as the model was trained to give them."""
        return torch.from_numpy(np.ascontiguousarray(self.model_.raw(X)))

    def _distribution(self, X: Any) -> Distribution:
        """What the model itself says of each row, before alignment."""
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
        d = self.predict_dist(X)
        return expected_aggregate(aggregate, map_parameters(d, sets.members), sets)

    def posterior(self, X: Any, observations: Observations) -> Posterior:
        """What is known of each member once its set's y is known."""
        return posterior(observations, self._distribution(X), self.alignment_)

    def score(
        self,
        X: Any,
        observations: Observations | Sequence[Observations],
        *,
        profile: bool = False,
    ) -> float:
        """Mean log-likelihood per set of these observations: larger is better.

        With `profile=True` the scale of the targets is the one that suits these sets best, so that
        predictions are judged and nothing else: the way to compare models on sets that they have
        not seen. A scale that was fitted to the sets a model learned from is too small for others.
        """
        raw, shared = self._rows(X)
        objective = self._objective(self.family_, X, observations, "observations")
        if profile:
            return judge(objective, raw, shared, self.intercept_).score
        return objective.score(raw, shared)

    def score_constant(self, X: Any, observations: Observations | Sequence[Observations]) -> float:
        """What `score(..., profile=True)` gives a model without features, of the same fit."""
        self._check_fitted()
        objective = self._objective(self.family_, X, observations, "observations")
        raw, shared = self.intercept_
        return judge(objective, raw.expand(objective.n_rows, -1), shared, self.intercept_).score

    # ---- what set labels cannot tell

    def diagnose(self, X: Any, observations: Observations | Sequence[Observations]) -> list[str]:
        """What these very sets leave open, in words; an empty list where nothing is."""
        raw, shared = self._rows(X)
        objective = self._objective(self.family_, X, observations, "observations")
        return diagnose(objective, X, raw, shared)

    def align(self, X_few: Any, z_few: Any) -> Self:
        """Removes what set labels cannot tell, from a few rows whose targets are known."""
        d, z = self._distribution(X_few), self._targets(z_few)
        self.alignment_ = solve_alignment(self.identifiability_, self.family_, d, z)
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

        Data, likelihood, calibration, what is and is not told, which features matter, versions.

        Args:
            path: The file to write.
            X: The rows of the fit; with `observations`, the sets they were seen in.
            observations: The observations of the fit, one kind or a list of several.
            eval: A pair (X, observations) that the fit has not learned from: the likelihood and
                the calibration of sets are then those of these.
            truth: A pair (X, z) of rows whose targets are known.
            title: The heading of the page.
        """
        from setwise.report import report  # it draws, which nothing else here needs

        return report(self, path, X, observations, eval=eval, truth=truth, title=title)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


class AggregateRegressor(_AggregateEstimator):
    """Predicts a number for each individual, from labels given to sets of them.

    `distribution` is a family such as `setwise.Normal(scale="predicted")`, or the name of one;
    `learner` likewise.

    >>> import setwise as sw
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> z = 3 + X @ [1.0, -2.0]
    >>> means = sw.Mean().observe(z, sw.Sets.random(200, 300, 4, seed=1))
    >>> model = AggregateRegressor(learner="linear", verbose=0).fit(X, means)
    >>> model.predict([[0.0, 0.0], [1.0, 0.0]]).round(3).tolist()
    [3.0, 4.0]
    """

    def __init__(
        self,
        distribution: str | Family = "normal",
        learner: str | Learner = "lightgbm",
        *,
        random_state: Any = None,
        verbose: int = 1,
    ) -> None:
        self.distribution = distribution
        self.learner = learner
        self.random_state = random_state
        self.verbose = verbose

    def _family(self) -> Family:
        family = distributions.resolve(self.distribution)
        if isinstance(family, distributions.Categorical):
            raise TypeError("classes are for AggregateClassifier(n_classes), not the regressor")
        return family

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The mean of each row's target (the median where there is no mean)."""
        d = self.predict_dist(X)
        return np.asarray(point_estimate(d), dtype=np.float64)


class AggregateClassifier(_AggregateEstimator):
    """Predicts the class of each individual, from labels given to sets of them.

    `n_classes` is their number, or the class labels in order: in observations class i is the
    number i, in predictions it is the i-th label. `n_restarts` is how many beginnings are tried
    where classes can be swapped or collapse; None is a good number. From similarity and triplets
    of three classes or more, all but 1 mean one beginning with the clusters of an embedding.
    """

    def __init__(
        self,
        n_classes: Any,
        learner: str | Learner = "lightgbm",
        *,
        n_restarts: int | None = None,
        random_state: Any = None,
        verbose: int = 1,
    ) -> None:
        self.n_classes = n_classes
        self.learner = learner
        self.n_restarts = n_restarts
        self.random_state = random_state
        self.verbose = verbose

    @property
    def classes_(self) -> NDArray[Any]:
        """The class labels in order."""
        if isinstance(self.n_classes, int | np.integer):
            return np.arange(self.n_classes)
        labels = np.asarray(self.n_classes)
        if labels.ndim != 1 or len(set(labels.tolist())) != len(labels):
            raise ValueError(
                f"n_classes is a number, or a list of distinct class labels; got {self.n_classes!r}"
            )
        return labels

    def _family(self) -> Family:
        return distributions.Categorical(len(self.classes_))

    def _restarts(self, identifiability: Identifiability) -> int:
        if self.n_restarts is not None and self.n_restarts < 1:
            raise ValueError(f"n_restarts must be at least 1, got {self.n_restarts}")
        if not identifiability.permutation:
            return 1
        return 5 if self.n_restarts is None else self.n_restarts

    def _targets(self, z: Any) -> NDArray[Any]:
        order = {label: i for i, label in enumerate(self.classes_.tolist())}
        values = np.asarray(z).tolist()
        unknown = [v for v in values if v not in order]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not one of the classes {list(order)[:20]}")
        return np.array([order[v] for v in values])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, (rows, classes)."""
        return np.asarray(self.predict_dist(X).probs, dtype=np.float64)  # type: ignore[attr-defined]

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row, as its label."""
        best: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return best
