"""XGBoost on rows that are not in memory: its own external memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from setwise.learners.inputs import native
from setwise.stored import Scratch, Stored, Table, joined

__all__ = ["from_batches"]

CELLS = 1 << 24  # numbers in one page of XGBoost's: each round reads all pages


def from_batches(X: Stored, *, missing: float = np.nan, **options: Any) -> Any:
    """A quantile matrix whose pages are on disk; XGBoost keeps some bytes for each row in memory.

    The pages are deleted with the matrix.
    """
    import xgboost

    folder = Scratch(X.scratch)

    class Batches(xgboost.DataIter):
        def __init__(self) -> None:
            self.coming: Iterator[Table] = _pages(X)
            super().__init__(cache_prefix=str(folder.path / "page"), release_data=True)

        def next(self, input_data: Any) -> bool:
            table = next(self.coming, None)
            if table is None:
                return False
            input_data(data=native(table))
            return True

        def reset(self) -> None:
            self.coming = _pages(X)

    options.setdefault("enable_categorical", True)
    options.pop("feature_types", None)
    data: Any = xgboost.ExtMemQuantileDMatrix(Batches(), missing=missing, **options)
    data.setwise_folder = folder  # which goes when the matrix does
    return data


def _pages(X: Stored) -> Iterator[Table]:
    """The rows in fewer and larger batches."""
    waiting: list[Table] = []
    for batch in X.batches():
        waiting.append(batch)
        if sum(map(len, waiting)) * X.shape[1] >= CELLS:
            yield joined(waiting)
            waiting = []
    if waiting:
        yield joined(waiting)
