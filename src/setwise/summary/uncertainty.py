"""The uncertainty of f itself: of coefficients, and of predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from setwise._facts import AnyFloat
from setwise.distributions import Categorical, point_estimate
from setwise.distributions.location import LocationScale
from setwise.identifiability import Alignment
from setwise.inference.standard_errors import StandardErrors, standard_errors
from setwise.learners.inputs import as_array

__all__ = ["Settled", "deviation", "deviation_of_classes", "errors_of", "settle"]

Floats = NDArray[np.float64]
STEP = 1e-4  # of numerical derivatives, relative to a raw parameter


class Settled(NamedTuple):
    """The uncertainty of an alignment that was found from a few labelled rows.

    `level` and `slope` are variances, of the level at the labelled rows and of the slope relative
    to itself; `centre` is where predictions turn when the slope changes. `anchor` are the mean
    features of the labelled rows, `levels` the mean predictions of them by each of many models.
    """

    level: AnyFloat  # infinite where too few rows are labelled
    slope: AnyFloat
    centre: float
    anchor: list[float] | None = None
    levels: list[float] | None = None

    def variance(self, mean: Floats, located: bool) -> Floats:
        """The variance that the alignment's own error adds to these aligned predictions."""
        level = self.level if located else self.level * mean**2
        return np.asarray(level + self.slope * (mean - self.centre) ** 2)


def settle(est: Any, X_few: Any, z: Floats) -> Settled | None:
    """The uncertainty of the alignment of `est`, which was found from these rows."""
    facts, alignment = est.identifiability_, est.alignment_
    if alignment is None or alignment == Alignment() or alignment.classes is not None:
        return None
    X_few = est._table(X_few)
    mean = _numbers(point_estimate(est.predict_dist(X_few)))
    located = isinstance(est.family_, LocationScale)
    slope = located and not facts.scale
    level = facts.shift or not located
    rest = z - mean if located else z / mean - 1
    left = len(z) - level - slope
    square = float((rest**2).sum()) / left if left > 0 else np.inf
    centre = float(mean.mean()) if facts.centre is None else facts.centre
    reach = float(((mean - centre) ** 2).sum())
    anchor = levels = None
    if level and hasattr(est.model_, "coef"):
        anchor = _array(X_few.toarray() if sparse.issparse(X_few) else X_few).mean(0).tolist()
    if level and _resampled(est):
        levels = [float(m.mean()) for m in _each_mean(est, X_few)]
    return Settled(
        level=square / len(z) if level else 0.0,
        slope=square / reach if slope and reach > 0 else 0.0,
        centre=centre, anchor=anchor, levels=levels,
    )  # fmt: skip


# ---- of coefficients


def errors_of(est: Any, X: Any = None, observations: Any = None) -> StandardErrors:
    """The standard errors of a fitted linear model, computed once and kept."""
    if not hasattr(est.model_, "coef"):
        raise TypeError(
            f"{est.learner_!r} has no coefficients: standard errors are those of setwise.Linear()"
        )
    if X is None and observations is None:
        if est._errors is not None:
            return est._errors  # type: ignore[no-any-return]
        if est._fitted_on is None:
            raise ValueError(
                "standard errors need the rows and observations of the fit, which a copy of the "
                "estimator does not hold: call summary(X, observations) once"
            )
        X, observations = est._fitted_on
    if X is None or observations is None:
        raise ValueError("X and observations go together: give both, or neither")
    X = est._table(X)
    family, free = est.family_, est.identifiability_.scale
    objective = est._seen(X, observations)
    raw = est._raw(X)
    shared = objective.fit_shared(raw, est.shared_, free)
    units = np.maximum(family.units(raw.mean(0), shared).numpy(), 1e-300)
    table, mean, scale = _standardised(X)
    est._errors = standard_errors(
        objective, table, raw, shared, mean=mean, scale=scale, units=units, free=free,
        penalty=getattr(est.model_, "penalty", None),
    )  # fmt: skip
    return est._errors  # type: ignore[no-any-return]


def _standardised(X: Any) -> tuple[Any, Floats, Floats]:
    """Features less a mean (0 if sparse) and divided by a scale, and a column of ones."""
    scaler = StandardScaler(with_mean=not sparse.issparse(X))
    scaled = scaler.fit_transform(X if sparse.issparse(X) else _array(X))
    ones = np.ones((X.shape[0], 1))
    if sparse.issparse(X):
        return sparse.hstack([scaled, ones], format="csr"), np.zeros(X.shape[1]), scaler.scale_
    return np.hstack([scaled, ones]), scaler.mean_, scaler.scale_


def _array(X: Any) -> Floats:
    return as_array(X, missing=False, who="Linear")


# ---- of predictions


def deviation(est: Any, X: Any) -> Floats:
    """The standard deviation of the estimate of each row's mean (or median)."""
    X = est._table(X)
    if _resampled(est):
        made = np.stack(_each_mean(est, X))
        settled = est._settled
        if settled is not None and settled.levels is not None:
            levels = np.array(settled.levels)[:, None]
            located = isinstance(est.family_, LocationScale)
            made = made - levels + levels.mean() if located else made * levels.mean() / levels
        variance = made.var(0, ddof=1)
    else:
        variance = _by_errors(est, X)[:, 0] ** 2
    if est._settled is not None:
        mean = _numbers(point_estimate(est.predict_dist(X)))
        variance = variance + est._settled.variance(mean, isinstance(est.family_, LocationScale))
    return np.asarray(np.sqrt(variance))


def deviation_of_classes(est: Any, X: Any) -> Floats:
    """The standard deviations of the estimates of class probabilities, (rows, classes)."""
    X = est._table(X)
    if _resampled(est):
        probs = torch.as_tensor(est.model_.each(X)).softmax(-1).numpy()
        found = np.asarray(probs.std(0, ddof=1), np.float64)
    else:
        found = _by_errors(est, X)
    return found if est.alignment_ is None else est.alignment_.probs(found)


def _by_errors(est: Any, X: Any) -> Floats:
    """From the covariance of coefficients, through the derivatives of what is predicted."""
    if not hasattr(est.model_, "coef"):
        raise TypeError(
            f"{type(est.learner_).__name__} does not tell how sure it is of its predictions: use "
            f"setwise.Linear(), or setwise.Ensemble({est.learner_!r}), whose models differ as "
            f"their sets do"
        )
    errors = errors_of(est)
    raw, shared = est._rows(X)
    if isinstance(est.family_, Categorical):
        probs = raw.softmax(-1).numpy()
        slopes = np.eye(probs.shape[1]) * probs[:, :, None] - probs[:, :, None] * probs[:, None, :]
        own: Floats = np.zeros((*probs.shape, errors.n_shared))
    else:
        slopes, own = _slopes(lambda r, s: _mean(est, r, s), raw, shared)
    dense = X if sparse.issparse(X) else _array(X)
    settled = est._settled
    anchor = None if settled is None or settled.anchor is None else np.array(settled.anchor)
    found = errors.of_rows(dense, slopes, own, anchor=anchor)
    open_rows = int(np.isinf(found).any(1).sum())
    if open_rows:
        warnings.warn(
            f"the observations do not tell the predictions of {open_rows:,} of {len(found):,} "
            f"rows, whose standard deviation is infinite: align with a few labelled rows, or fit "
            f"with more sets, or with a penalty",
            stacklevel=4,
        )
    return found


def _slopes(
    value: Callable[[Tensor, Tensor], Floats], raw: Tensor, shared: Tensor
) -> tuple[Floats, Floats]:
    """Numerical derivatives of a function of each row, (rows, 1, outputs) and (rows, 1, shared)."""
    columns, own = [], []
    for o in range(raw.shape[1]):
        step = torch.zeros_like(raw)
        step[:, o] = STEP * raw[:, o].abs().clamp_min(1.0)
        gap = value(raw + step, shared) - value(raw - step, shared)
        columns.append(gap / (2 * step[:, o].numpy()))
    for k in range(len(shared)):
        move = torch.zeros_like(shared)
        move[k] = STEP
        own.append((value(raw, shared + move) - value(raw, shared - move)) / (2 * STEP))
    n = len(raw)
    shape = (n, 1, len(shared))
    return np.stack(columns, 1)[:, None, :], np.stack(own, 1)[:, None, :] if own else np.zeros(
        shape
    )


def _mean(est: Any, raw: Tensor, shared: Tensor) -> Floats:
    """What is predicted of rows with these parameters, after alignment."""
    d = est.family_(raw, shared)
    d = d if est.alignment_ is None else est.alignment_.distribution(d)
    return _numbers(point_estimate(d))


def _resampled(est: Any) -> bool:
    """Whether the model averages fits to resampled sets: only their spread measures errors."""
    return hasattr(est.model_, "each") and getattr(est.learner_, "resample", None) == "sets"


def _each_mean(est: Any, X: Any) -> list[Floats]:
    """What each of many models predicts, after the alignment that they share."""
    out = []
    for raw in torch.as_tensor(est.model_.each(X)).double():
        out.append(_mean(est, est._respread(raw), est.shared_))
    return out


def _numbers(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)
