"""The M-step of EM: a scikit-learn estimator fitted to completed targets, and its predictions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.model_selection import KFold
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from setwise.learners.em.targets import Targets
from setwise.learners.inputs import take_rows

__all__ = ["Trainer", "predict"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TREES = 30  # from this many on, nearly every row is left out by some tree
TINY = 1e-3  # copies of a row with less of its weight than this are not fitted
# whether forests draw rows by weight: else a tree may have only the unlikely copies of a row
DRAWS_BY_WEIGHT = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9)


class Trainer:
    """Fits copies of the user's estimator, and predicts rows that a copy has not seen."""

    def __init__(self, given: Any, targets: Targets, folds: int, seed: int) -> None:
        if isinstance(given, type) or not (hasattr(given, "fit") and hasattr(given, "get_params")):
            raise TypeError(
                f"EM wraps a scikit-learn estimator such as RandomForestRegressor(), got {given!r}"
                + (" (a class: call it)" if isinstance(given, type) else "")
            )
        if is_classifier(given) != bool(targets.n_classes):
            kind = "a classifier" if targets.n_classes else "a regressor"
            raise TypeError(f"{targets.family!r} targets need {kind}, got EM({given!r})")
        if targets.n_classes and not hasattr(given, "predict_proba"):
            raise TypeError(
                f"EM needs class probabilities, but {given!r} has no predict_proba: wrap it, as in "
                f"sklearn.calibration.CalibratedClassifierCV({given!r})"
            )
        self.n_classes, self.seed = targets.n_classes, seed % 2**32
        self.weight = targets.weight / targets.weight.mean()
        params = given.get_params()
        self.estimator = clone(given).set_params(
            **{
                name: self.seed
                for name, value in params.items()
                if value is None and name.split("__")[-1] == "random_state"
            }
        )
        self.folds = min(folds, len(self.weight))
        self.out_of_bag = (
            self.folds > 1
            and not targets.n_classes
            and params.get("bootstrap") is True
            and params.get("n_estimators", 0) >= TREES
            and params.get("oob_score") is False
        )
        if self.out_of_bag:
            self.estimator.set_params(oob_score=True)
        bags = any(v is True and n.split("__")[-1] == "bootstrap" for n, v in params.items())
        drawn = targets.n_classes and bags and not DRAWS_BY_WEIGHT
        self.weight_name = None if drawn else _weight_name(self.estimator)

    def out_of_sample(self, X: Any, wanted: Floats) -> tuple[Floats, list[Any]]:
        """Predictions of each row by estimators not fitted to it, and these estimators."""
        if self.out_of_bag or self.folds < 2:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Some inputs do not have OOB scores")
                fitted = self.fit(X, wanted)
            predicted = self.predict(fitted, X)
            if self.out_of_bag:
                left_out = np.asarray(fitted.oob_prediction_, np.float64)
                known = np.isfinite(left_out) & (left_out != 0)  # 0 stands for: in every bag
                predicted = np.where(known, left_out, predicted)
            return predicted, [fitted]
        out, estimators = np.empty_like(wanted), []
        for there, here in KFold(self.folds, shuffle=True, random_state=self.seed).split(out):
            estimators.append(self.fit(X, wanted, there))
            out[here] = self.predict(estimators[-1], take_rows(X, here))
        return out, estimators

    def fit(self, X: Any, wanted: Floats, rows: Ints | None = None) -> Any:
        """A copy of the estimator, fitted to the completed targets of these rows."""
        rows = np.arange(len(wanted)) if rows is None else rows
        y: NDArray[Any] = wanted[rows]
        weight, n_rows = self.weight[rows], len(rows)
        if self.n_classes:
            place, label = _copies(y)
            rows, weight, y = rows[place], weight[place] * y[place, label], label
        if self.weight_name is None and not np.allclose(weight, weight[0]):
            drawn = _drawn(weight, n_rows, self.seed)
            rows, y = rows[drawn], y[drawn]
        extra = {} if self.weight_name is None else {self.weight_name: weight}
        part = take_rows(X, rows)
        try:
            return clone(self.estimator).fit(part, y, **extra)
        except ValueError:
            if self.n_classes or (y > 0).all():
                raise
            # a loss for positive targets only, such as that of PoissonRegressor
            return clone(self.estimator).fit(part, y.clip(min=1e-3 * max(y.mean(), 1e-9)), **extra)

    def predict(self, fitted: Any, X: Any) -> Floats:
        """One number per row, or (rows, C) probabilities."""
        return predict(fitted, X, self.n_classes)


def predict(fitted: Any, X: Any, n_classes: int) -> Floats:
    """Predicted numbers, or probabilities of all `n_classes` classes, also of those never seen."""
    if not n_classes:
        return np.asarray(fitted.predict(X), np.float64).reshape(-1)
    found = np.asarray(fitted.predict_proba(X), np.float64)
    out = np.zeros((len(found), n_classes))
    out[:, np.asarray(fitted.classes_, np.int64)] = found
    return out


def _weight_name(estimator: Any) -> str | None:
    """The name of the weights in the estimator's `fit`; the last step decides for a pipeline."""
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        inner = _weight_name(last)
        return None if inner is None else f"{name}__{inner}"
    return "sample_weight" if has_fit_parameter(estimator, "sample_weight") else None


def _copies(probs: Floats) -> tuple[Ints, Ints]:
    """Row and class of each copy that is worth fitting; every class keeps at least one."""
    keep = probs > TINY
    keep[probs.argmax(0), np.arange(probs.shape[1])] = True
    keep &= probs > 0
    place, label = np.nonzero(keep)
    return place, label


def _drawn(weight: Floats, n: int, seed: int) -> Ints:
    """n places drawn in proportion to the weights, evenly spread."""
    at = (np.arange(n) + np.random.default_rng(seed).random()) / n
    return np.searchsorted(np.cumsum(weight / weight.sum()), at).clip(max=len(weight) - 1)
