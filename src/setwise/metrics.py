"""Metrics that ignore what set labels cannot determine, and scorers for scikit-learn.

Every metric takes the true targets z of some rows first and the predictions for them second. The
scorers take (estimator, X, z), as scikit-learn's `scoring=` expects: z are individual labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import kendalltau
from sklearn.metrics import make_scorer
from sklearn.metrics.cluster import contingency_matrix

__all__ = [
    "affine_mse",
    "affine_mse_scorer",
    "concordance",
    "concordance_scorer",
    "error_variance",
    "error_variance_scorer",
    "mean_squared_error",
    "mean_squared_error_scorer",
    "permutation_accuracy",
    "permutation_accuracy_scorer",
    "set_log_likelihood",
]

Floats = NDArray[np.float64]


def permutation_accuracy(z: Any, predicted: Any, n_classes: int | None = None) -> float:
    """The share of rows whose class is right after the best renaming of the predicted classes.

    max over one-to-one maps π of (1/n) Σ [π(predictedᵢ) = zᵢ], by the Hungarian method. Classes are
    numbers or any other labels; `n_classes`, where given, checks that they are 0 to n_classes − 1.

    >>> permutation_accuracy([0, 0, 1, 2], [2, 2, 0, 0])
    0.75
    """
    true, guess = _columns(z, predicted, 1)
    if n_classes is not None:
        for values, name in ((true, "z"), (guess, "predicted")):
            known = np.isin(values, np.arange(n_classes))
            if not known.all():
                at = int((~known).argmax())
                raise ValueError(
                    f"{name} has {values[at]!r} at row {at}: of {n_classes} classes the numbers "
                    f"are 0 to {n_classes - 1}"
                )
    table = contingency_matrix(true, guess)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(true))


def mean_squared_error(z: Any, predicted: Any) -> float:
    """The mean squared error, (1/n) Σ (zᵢ − predictedᵢ)².

    >>> mean_squared_error([1.0, 2.0], [2.0, 4.0])
    2.5
    """
    true, guess = _numbers(z, predicted, 1)
    return float(np.mean((true - guess) ** 2))


def error_variance(z: Any, predicted: Any) -> float:
    """The mean squared error after the best shift: the variance of zᵢ − predictedᵢ.

    min over b of (1/n) Σ (zᵢ − predictedᵢ − b)². For predictions that are known up to a shift, as
    from ranks with a given scale or from differences.

    >>> error_variance([1.0, 2.0, 3.0], [11.0, 12.0, 13.0])
    0.0
    """
    true, guess = _numbers(z, predicted, 2)
    return float(np.var(true - guess))


def affine_mse(z: Any, predicted: Any) -> float:
    """The mean squared error after the best rising straight line.

    min over a ≥ 0 and b of (1/n) Σ (zᵢ − a·predictedᵢ − b)², which is var(z)·(1 − max(r, 0)²) with
    the correlation r. For predictions that are known up to an affine map, as from ranks.

    >>> affine_mse([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    0.0
    """
    true, guess = _numbers(z, predicted, 2)
    true, guess = true - true.mean(), guess - guess.mean()
    square = float(guess @ guess)
    slope = max(float(true @ guess) / square, 0.0) if square > 0 else 0.0
    return float(np.mean((true - slope * guess) ** 2))


def concordance(z: Any, predicted: Any) -> float:
    """The share of pairs that the predictions order as the targets do; 1/2 is chance.

    (Σ [the pair is ordered right] + ½ Σ [the predictions tie]) over the pairs with different
    targets: (1 + D)/2 with Somers' D, found from Kendall's τ in O(n log n).

    >>> concordance([1.0, 2.0, 3.0], [5.0, 9.0, 7.0]).__round__(4)
    0.6667
    """
    true, guess = _numbers(z, predicted, 2)

    def untied(values: Floats) -> float:
        _, counts = np.unique(values, return_counts=True)
        n = len(values)
        return n * (n - 1) / 2 - float((counts * (counts - 1) / 2).sum())

    pairs, ordered = untied(true), untied(guess)
    if pairs == 0:
        raise ValueError("all targets z are equal: there is no order to get right")
    if ordered == 0:
        return 0.5
    tau = float(kendalltau(true, guess, variant="b").statistic)
    return 0.5 + 0.5 * tau * float(np.sqrt(ordered / pairs))


def set_log_likelihood(estimator: Any, X: Any, observations: Any) -> float:
    """The mean log-likelihood per set of held-out observations: no individual label is needed.

    (Σ weight · log p(y)) / Σ weight, at the scale of targets that suits these observations best:
    the estimator's own `score(..., profile=True)`. Larger is better.

    >>> import setwise as sw
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> means = sw.Observations(sw.Mean(), [[0, 1], [1, 2], [2, 3]], [0.6, 1.4, 2.6])
    >>> model = sw.AggregateRegressor(learner="linear", verbose=0).fit(X, means)
    >>> set_log_likelihood(model, X, means) > -1
    True
    """
    if not hasattr(estimator, "score"):
        raise TypeError(
            f"a fitted AggregateRegressor or AggregateClassifier is expected, got {estimator!r}"
        )
    return float(estimator.score(X, observations, profile=True))


permutation_accuracy_scorer = make_scorer(permutation_accuracy)
mean_squared_error_scorer = make_scorer(mean_squared_error, greater_is_better=False)
error_variance_scorer = make_scorer(error_variance, greater_is_better=False)
affine_mse_scorer = make_scorer(affine_mse, greater_is_better=False)
concordance_scorer = make_scorer(concordance)


def _columns(z: Any, predicted: Any, least: int) -> list[NDArray[Any]]:
    """Both as arrays of one length."""
    out = []
    for values, name in ((z, "z"), (predicted, "predicted")):
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.ndim != 1:
            raise ValueError(f"{name} must be one value per row, got shape {array.shape}")
        out.append(array)
    if len(out[0]) != len(out[1]):
        raise ValueError(f"z has {len(out[0])} rows, but predicted has {len(out[1])}")
    if len(out[0]) < least:
        raise ValueError(f"at least {least} row(s) are needed, got {len(out[0])}")
    return out


def _numbers(z: Any, predicted: Any, least: int) -> list[Floats]:
    """Both as finite floats of one length."""
    out = []
    for values, name in zip(_columns(z, predicted, least), ("z", "predicted"), strict=True):
        try:
            array = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be numbers, one per row: {error}") from error
        bad = ~np.isfinite(array)
        if bad.any():
            at = int(bad.argmax())
            raise ValueError(f"{name} is {array[at]} at row {at}: finite numbers are needed")
        out.append(array)
    return out
