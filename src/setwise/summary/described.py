"""What a fitted estimator reports about itself: a base class of the estimators."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from setwise._arrays import read_arrays, write_arrays
from setwise._facts import checked
from setwise.distributions import Categorical, Family
from setwise.inference import Check, check_observations
from setwise.inference.standard_errors import StandardErrors
from setwise.learners import Learner
from setwise.learners.base import shares
from setwise.learners.progress import Progress
from setwise.objective.given import listed
from setwise.observations import Observations
from setwise.stored import Stored
from setwise.summary.coefficients import aligned
from setwise.summary.importance import permutation_importance
from setwise.summary.summary import Summary, summary
from setwise.summary.uncertainty import Settled, errors_of, settle
from setwise.summary.words import Data, board, brief, data_of, facts, page

__all__ = ["Described"]

Floats = NDArray[np.float64]
FILE = "standard_errors.safetensors"
MARKED = 10_000  # sets by which those learned from are known again
SAVED = 500  # coefficients: of so many the standard errors are computed for a file


class Kept(TypedDict):
    """The saved form of a summary."""

    data: Data | None
    settled: Settled | None
    errors: dict[str, Any] | None


class Described(BaseEstimator):  # type: ignore[misc]
    """Coefficients, standard errors and summaries of what was fitted.

    The data of the last fit of a model that does not tell its errors or features itself stay
    referred to (not copied) in memory, so that `summary()`, `return_std=True` and
    `feature_importances_` can compute them when they are first asked for; copies and saved files
    hold the standard errors, if they were computed, and never the data. The sets learned from are
    known by digests, which are not saved.
    """

    model_: Any
    family_: Family
    learner_: Learner
    leaderboard_: list[dict[str, Any]]

    data_: Data | None = None
    _errors: StandardErrors | None = None
    _importances: Floats | None = None
    _settled: Settled | None = None
    _fitted_on: tuple[Any, Any] | None = None
    _learned_from: frozenset[tuple[int, int, int]] = frozenset()

    # ---- what fit, align, save and load leave here

    def _remember(self, X: Any, observations: Any, progress: Progress) -> None:
        """Called when a fit has ended."""
        if len(self.leaderboard_) > 1:
            progress.tell(board(self))
        self.data_ = data_of(X, observations)
        self._learned_from = frozenset(map(_mark, observations))
        self._errors = self._settled = self._importances = None
        asked = hasattr(self.model_, "coef") or self.model_.importance() is None
        here = asked and not isinstance(X, Stored)
        self._fitted_on = (X, observations) if here else None

    def _settle(self, X_few: Any, z: Any) -> None:
        """Called when an alignment was found."""
        self._settled = settle(self, X_few, z)

    def _described(self, folder: Path) -> dict[str, Any]:
        """The part of this that is saved; arrays go into a file of their own."""
        few = hasattr(self.model_, "coef") and self.model_.coef.size <= SAVED
        if few and self._errors is None and self._fitted_on is not None:
            with suppress(ValueError, TypeError):
                errors_of(self)
        out: dict[str, Any] = {"data": self.data_, "settled": None, "errors": None}
        if self._settled is not None:
            out["settled"] = self._settled._asdict()
        if self._errors is not None:
            out["errors"] = self._errors.facts()
            write_arrays(folder / FILE, self._errors.arrays())
        return out

    def _describe_again(self, folder: Path, kept: dict[str, Any]) -> None:
        """Restores what `_described` gave."""
        told: Kept = checked(kept, Kept, "the summary")
        self.data_, self._settled = told["data"], told["settled"]
        self._errors = self._fitted_on = self._importances = None
        self._learned_from = frozenset()
        if told["errors"] is not None:
            width, outputs = self.model_.coef.shape
            self._errors = StandardErrors.of_file(
                read_arrays(folder / FILE), told["errors"], width, outputs
            )

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        if "_fitted_on" in state:
            state["_fitted_on"] = None
        return state

    # ---- coefficients

    @property
    def coef_(self) -> Floats:
        """The coefficients of `Linear`, after alignment: (features,), or a line for each output.

        Of classes a line for each, of which only differences matter; of two classes one line, the
        log odds of the second against the first, as in scikit-learn.
        """
        coef, _ = self._coefficients()
        return coef[:, 0] if coef.shape[1] == 1 and not hasattr(self, "classes_") else coef.T

    @property
    def intercept_(self) -> Any:
        """The intercepts that belong to `coef_`: a number where that is one line of numbers."""
        _, intercept = self._coefficients()
        single = len(intercept) == 1 and not hasattr(self, "classes_")
        return float(intercept[0]) if single else intercept

    def _coefficients(self) -> tuple[Floats, Floats]:
        self._fitted_or_none()
        coef, intercept = aligned(self)
        if isinstance(self.family_, Categorical) and coef.shape[1] == 2:
            return np.diff(coef, axis=1), np.diff(intercept)
        return coef, intercept

    def _fitted_or_none(self) -> None:
        if not hasattr(self, "model_"):
            raise AttributeError(
                f"this {type(self).__name__} is not fitted yet: call fit(X, observations) first"
            )

    @property
    def feature_importances_(self) -> Floats:
        """How much each feature matters, adding up to 1.

        Where the learner itself does not tell, what the sets of the fit lose when the feature is
        shuffled, as in `permutation_importance`, which better takes sets not learned from.
        """
        self._fitted_or_none()
        found = self.model_.importance()
        if found is None:
            found = self._importances = self._by_permutation()
        return np.asarray(found, np.float64)

    def _by_permutation(self) -> Floats:
        """Shares of what is lost by shuffling each feature, computed once."""
        if self._importances is not None:
            return self._importances
        if self._fitted_on is None or self.data_ is None or self.data_["features"] is None:
            raise AttributeError(
                f"{self.learner_!r} does not tell which features matter, and the sets of the fit "
                f"are not at hand: permutation_importance(X, observations) measures it on any sets"
            )
        found = self.permutation_importance(*self._fitted_on, random_state=0)
        return shares(np.maximum(found.importances_mean, 0.0))

    def permutation_importance(
        self,
        X: Any,
        observations: Observations | Sequence[Observations],
        *,
        n_repeats: int = 5,
        random_state: Any = None,
    ) -> Bunch:
        """What `score(X, observations, profile=True)` loses when a feature's entries are shuffled.

        Best measured on sets that the model has not learned from. The result is that of
        scikit-learn: `importances_mean`, `importances_std` and `importances` (features, repeats).
        """
        return permutation_importance(
            self, X, observations, n_repeats=n_repeats, random_state=random_state
        )

    # ---- words

    def summary(
        self,
        X: Any = None,
        observations: Observations | Sequence[Observations] | None = None,
        *,
        level: float = 0.95,
        robust: bool = True,
    ) -> Summary:
        """What was fitted, for `print`, for a notebook, or as `summary().table`.

        The data, how much better than a constant the model does on sets that were held out, what
        the labels determine, what was kept and tried; of `Linear` the coefficients with standard
        errors, z, p and intervals. Coefficients that the labels do not determine are marked.

        Args:
            X: The rows of the fit; needed where the estimator was copied or loaded without its
                standard errors.
            observations: The observations of the fit.
            level: Of the intervals.
            robust: Standard errors that hold whatever the spread of targets, and where sets share
                rows; else from the observed information, which trusts the model.
        """
        return summary(self, X, observations, level=level, robust=robust)

    def check(self, X: Any, observations: Observations | Sequence[Observations]) -> Check:
        """What held-out sets show to be wrong with the model, in sentences.

        Their y is compared with y simulated from the model: its level, how far it varies, whether
        either depends on the size of a set, the shape of its distribution (by the probability
        integral transform), and whether labels look flipped.

        >>> import setwise as sw
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(900, 2))
        >>> z = X @ [1.0, -2.0] + np.random.default_rng(2).normal(size=900)
        >>> means = sw.Mean().observe(z, np.arange(900).reshape(300, 3))
        >>> fitted = sw.AggregateRegressor(learner="linear", verbose=0).fit(
        ...     X, means.take(slice(150))
        ... )
        >>> print(fitted.check(X, means.take(slice(150, 300))))
        Mean(): these sets are as the model expects them
        """
        est: Any = self
        objective = est._seen(X, observations)
        learned_from = sum(kind["sets"] for kind in self.data_["kinds"]) if self.data_ else np.inf
        best = self.leaderboard_[0] if self.leaderboard_ else {}
        told = est._told(objective.observations)
        spread_from = best.get("sets", learned_from)
        found = check_observations(est._distribution(X), told, learned_from, spread_from)
        known = [
            f"{o.aggregate!r}: these sets were learned from, which a model suits too well: check "
            f"sets that it has not seen"
            for o in listed(observations)
            if len(o) and _mark(o) in self._learned_from
        ]
        return replace(found, skipped=[*known, *found.skipped])

    def __str__(self) -> str:
        return brief(self) if hasattr(self, "model_") else repr(self)

    def _repr_html_inner(self) -> str:
        if hasattr(self, "model_"):
            return page(type(self).__name__, facts(self), [])
        return str(super()._repr_html_inner())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        if hasattr(self, "model_"):
            return {"text/plain": str(self), "text/html": self._repr_html_inner()}
        return dict(super()._repr_mimebundle_(**kwargs))


def _mark(o: Observations) -> tuple[int, int, int]:
    """What tells these sets from others: their number, and digests of members and of y."""
    few = o.take(slice(MARKED))
    y = "" if few.y is None else repr(few.y.tolist())
    return len(o), zlib.crc32(few.sets.indices.tobytes()), zlib.crc32(y.encode())
