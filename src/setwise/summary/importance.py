"""Which features matter: the loss in likelihood when a feature is shuffled."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import Bunch

from setwise._random import seed_of
from setwise.frames import Encoded
from setwise.learners.inputs import as_table, n_features, n_rows

__all__ = ["permutation_importance"]


def permutation_importance(
    est: Any, X: Any, observations: Any, *, n_repeats: int = 5, random_state: Any = None
) -> Bunch:
    """See `AggregateRegressor.permutation_importance`."""
    est._check_fitted()
    if n_repeats < 1:
        raise ValueError(f"n_repeats must be at least 1, got {n_repeats}")
    X = as_table(X)
    width = n_features(X)
    if width is None:
        raise TypeError("the features of a data set cannot be shuffled one by one: give a table")
    rng = np.random.RandomState(seed_of(random_state))
    whole = est.score(X, observations, profile=True)
    out = np.empty((width, n_repeats))
    n = n_rows(X)
    for repeat in range(n_repeats):
        order = rng.permutation(n)
        for j in range(width):
            moved = _shuffled(X, j, order)
            out[j, repeat] = whole - est.score(moved, observations, profile=True)
    return Bunch(importances_mean=out.mean(1), importances_std=out.std(1), importances=out)


def _shuffled(X: Any, j: int, order: Any) -> Any:
    """X with the entries of one column in another order."""
    if sparse.issparse(X):
        columns = sparse.csc_matrix(X)
        parts = [columns[:, :j], columns[:, [j]].tocsr()[order], columns[:, j + 1 :]]
        return sparse.csr_matrix(sparse.hstack(parts))
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        import narwhals as nw

        frame = nw.from_native(X, eager_only=True)
        name = frame.columns[j]
        column = frame.get_column(name)
        moved = column[order.tolist()]
        if hasattr(X, "iloc"):  # pandas would put each entry back to its label
            out = X.copy()
            out[out.columns[j]] = X.iloc[order, j].to_numpy()
            out = out.astype({out.columns[j]: X.dtypes.iloc[j]})
            return out
        return frame.with_columns(moved.alias(name)).to_native()
    if isinstance(X, Encoded):
        return dataclasses.replace(X, values=_shuffled(X.values, j, order))
    moved = X.clone() if hasattr(X, "clone") else np.array(X)
    moved[:, j] = moved[order, j]
    return moved
