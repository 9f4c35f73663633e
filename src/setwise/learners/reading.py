"""How an estimator reads X: frames through an encoder that the fit has made, other tables as is."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from setwise.frames import Encoded, Encoder, is_frame
from setwise.learners.inputs import as_table, check_features, n_features
from setwise.stored import FileRows, Files, Stored

__all__ = ["ReadsTables", "read_table"]


def read_table(X: Any) -> Any:
    """X for a fit: a frame in numbers, with the encoder for its columns."""
    X = FileRows(X) if isinstance(X, Files) else as_table(X)
    if is_frame(X):
        X = Encoder.of(X).encode(X)
    encoder = getattr(X, "encoder", None)
    for name, why in (encoder.left_out if encoder else {}).items():
        warnings.warn(
            f"column {name!r} of X is left out: {why}. Drop it, or make numbers or categories of "
            f"it, and this message goes",
            UserWarning,
            stacklevel=4,
        )
    return X


class ReadsTables:
    """The part of an estimator that knows the columns of the fit.

    Attributes:
        encoder_: What the columns of a data frame were; None where X was no frame.
        n_features_in_: The number of features, columns of a frame; None for a `Dataset`.
        feature_names_in_: Their names, if X was a frame.
    """

    encoder_: Encoder | None = None
    n_features_in_: int | None
    feature_names_in_: Any

    def _note_columns(self, X: Any) -> None:
        """Called when a fit to X has ended."""
        self._know_columns(getattr(X, "encoder", None), n_features(X))

    def _know_columns(self, encoder: Encoder | None, number: int | None) -> None:
        self.encoder_, self.n_features_in_ = encoder, number
        self.__dict__.pop("feature_names_in_", None)
        if encoder is not None:
            self.feature_names_in_ = np.array(encoder.names(), dtype=object)

    def _table(self, X: Any) -> Any:
        """X in numbers, checked to have the columns of the fit."""
        return table_like(X, self.encoder_, self.n_features_in_)


def table_like(X: Any, encoder: Encoder | None, number: int | None) -> Any:
    """X in numbers, as an encoder reads it; without one it needs this number of features."""
    X = FileRows(X, encoder) if isinstance(X, Files) else as_table(X)
    if encoder is None or not is_frame(X):
        check_features(X, number)
        read = isinstance(X, Encoded | Stored)
        if encoder is not None and encoder.has_categories and not read:
            raise ValueError(
                f"the model was fitted to a data frame with categories: X needs to be a frame with "
                f"the columns {encoder.names()[:12]}"
            )
        return X
    found = encoder.encode(X)
    known = {*encoder.names(), *encoder.left_out}
    names = X.column_names if hasattr(X, "column_names") else X.columns
    if extra := [str(name) for name in names if str(name) not in known]:
        raise ValueError(
            f"X has a column {extra[0]!r}, which the model was not fitted with"
            + (f" (and {len(extra) - 1} more)" if len(extra) > 1 else "")
            + "; X[model.feature_names_in_] has those of the fit"
        )
    for name, count in found.unknown.items():
        warnings.warn(
            f"{count:,} values of column {name!r} are categories that the fit has not seen: they "
            f"count as missing",
            UserWarning,
            stacklevel=4,
        )
    return found
