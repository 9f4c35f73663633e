"""Any table as plain numbers, for the network that guides other learners."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from setwise.learners.inputs import as_array, is_frame

__all__ = ["as_numbers"]

MOST_CODES = 32  # categories that get a column each; the rest share none
DENSE = 10**7  # numbers of a sparse table that are written out
COMPONENTS = 64  # of a larger one


def as_numbers(X: Any) -> Any:
    """X as numbers without gaps: categories as columns of 0 and 1, NaN as the column's mean.

    A large sparse table becomes its leading singular vectors; tensors and data sets stay.
    """
    if sparse.issparse(X):
        if X.shape[0] * X.shape[1] <= DENSE:
            return as_numbers(X.toarray())
        from sklearn.decomposition import TruncatedSVD

        return TruncatedSVD(COMPONENTS, random_state=0).fit_transform(X)
    if is_frame(X):
        import narwhals as nw

        frame = nw.from_native(X, eager_only=True)
        return _fill(np.column_stack([c for n in frame.columns for c in _columns(frame[n])]))
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return _fill(as_array(X, missing=True, who="Network"))
    return X


def _columns(column: Any) -> list[NDArray[np.float64]]:
    """A column of numbers as it is, one of anything else as one column per frequent value."""
    import narwhals as nw

    if column.dtype.is_numeric() or column.dtype == nw.Boolean:
        return [column.cast(nw.Float64).to_numpy().astype(np.float64)]
    values = np.array([str(v) for v in column.to_list()])
    names, counts = np.unique(values, return_counts=True)
    frequent = names[np.argsort(-counts, kind="stable")[:MOST_CODES]]
    return [(values == name).astype(np.float64) for name in frequent]


def _fill(table: NDArray[np.float64]) -> Any:
    from sklearn.impute import SimpleImputer

    known = np.where(np.isfinite(table), table, np.nan)
    return SimpleImputer(keep_empty_features=True).fit_transform(known)
