"""Tables of features: how many rows, which names, and plain arrays where a learner needs them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch.utils.data import Subset

from setwise.frames import LARGEST, Encoded, is_frame
from setwise.stored import Files, Stored

__all__ = [
    "as_array",
    "as_table",
    "check_features",
    "feature_names",
    "is_frame",
    "n_features",
    "n_rows",
    "native",
    "raw_of",
    "take_rows",
]


def _is_dataset(X: Any) -> bool:
    return hasattr(X, "__getitem__") and not hasattr(X, "shape") and not isinstance(X, list | tuple)


def as_table(X: Any) -> Any:
    """X as it is where its kind is known (frames, sparse, tensors, data sets), else an array."""
    if isinstance(X, Files):
        raise TypeError(
            f"rows in memory are expected here, got {X!r}: read all of them, X.read(), or take the "
            f"first ones, next(X.tables())"
        )
    if hasattr(type(X), "__dask_graph__") and is_frame(X):
        raise TypeError(
            "the rows of X are on a Dask cluster: fit takes them with client=, and predictions are "
            "made part by part, as in X.map_partitions(model.predict, meta=('prediction', float))"
        )
    if is_frame(X) or sparse.issparse(X) or hasattr(X, "shape") or _is_dataset(X):
        shape = getattr(X, "shape", None)
        if shape is not None and len(shape) < 2:
            raise ValueError(
                f"X needs one line per row and at least one feature, got shape {tuple(shape)}; for "
                f"a single feature use X.reshape(-1, 1)"
            )
        X = sparse.csr_matrix(X) if sparse.issparse(X) else X  # LightGBM takes no csr_array
        if isinstance(X, np.ndarray) and X.dtype.kind in "OUS":
            X = _as_floats(X)
        _check_numbers(X)
        return X
    return as_table(np.asarray(X))


def _as_floats(X: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"X is an array of things that are no numbers ({error}): give a data frame, in which "
            f"columns of words and dates are features too"
        ) from None


def _check_numbers(X: Any) -> None:
    """Raises where a table other than a frame has no features, or numbers that no learner can use.

    Missing values are for the learner to judge; frames are read, and judged, by an `Encoder`.
    """
    shape = getattr(X, "shape", None)
    if shape is not None and len(shape) == 2 and not shape[1]:
        raise ValueError(
            f"X has no features: its shape is {tuple(shape)}; give at least one column"
        )
    if is_frame(X) or isinstance(X, Encoded | Stored) or shape is None:
        return
    if "complex" in str(getattr(X, "dtype", "")):
        raise TypeError("X holds complex numbers: give their real and imaginary parts")
    place = _too_large(X)
    if place is not None:
        row, *where = place
        raise ValueError(
            f"X has {float(X[place]):g} in row {row}, column {', '.join(map(str, where))}: numbers "
            f"of at most {LARGEST:g} are expected; change the unit, or leave such rows out"
        )


def _too_large(X: Any) -> tuple[int, ...] | None:
    """The place of the first number that no learner can use."""
    if hasattr(X, "detach"):
        far = X.detach().abs() > LARGEST if X.is_floating_point() else X.new_zeros(0)
        return tuple(far.nonzero()[0].tolist()) if bool(far.any()) else None
    numbers = X.data if sparse.issparse(X) else np.asarray(X)
    if numbers.dtype.kind != "f" or not numbers.size:
        return None
    if max(np.fmax.reduce(numbers, axis=None), -np.fmin.reduce(numbers, axis=None)) <= LARGEST:
        return None
    far = np.argwhere(~(np.abs(numbers) <= LARGEST) & ~np.isnan(numbers))
    if not len(far):
        return None
    if sparse.issparse(X):
        table = X.tocoo()
        return int(table.row[far[0, 0]]), int(table.col[far[0, 0]])
    return tuple(far[0].tolist())


def n_rows(X: Any) -> int:
    """Number of rows."""
    shape = getattr(X, "shape", None)
    return len(X) if shape is None else int(shape[0])


def n_features(X: Any) -> int | None:
    """Number of features; None for data sets, whose rows may be anything."""
    shape = getattr(X, "shape", None)
    return None if shape is None or len(shape) != 2 else int(shape[1])


def feature_names(X: Any) -> list[str] | None:
    """Names of the columns of a data frame; None for other tables."""
    if not is_frame(X):
        return None
    names = X.column_names if hasattr(X, "column_names") else X.columns
    return [str(name) for name in names]


def check_features(X: Any, number: int | None) -> None:
    """Raises where X has another number of features than the table of the fit."""
    found = n_features(X)
    if number is not None and found is not None and found != number:
        raise ValueError(f"X has {found} features, but the model was fitted with {number}")


def take_rows(X: Any, rows: NDArray[np.int64]) -> Any:
    """These rows of X, of the same kind; in memory if they were not."""
    if isinstance(X, Stored):
        return X.take(rows)
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if hasattr(X, "column_names"):  # pyarrow
        return X.take(rows)
    if hasattr(X, "shape"):
        return X[rows]
    return Subset(X, rows.tolist())


def raw_of(model: Any, X: Any) -> NDArray[np.float64]:
    """Raw parameters of all rows by a model, batch by batch where they are not in memory."""
    parts = X.batches() if isinstance(X, Stored) else [X]
    found = [np.ascontiguousarray(model.raw(part)) for part in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)


def as_array(X: Any, *, missing: bool, who: str) -> NDArray[np.float64]:
    """X as a float array (rows, features).

    Columns that are not numbers are an error that names them, and so are missing values unless
    `missing` says that the learner takes them.
    """
    if sparse.issparse(X):
        raise TypeError(f"{who} does not take sparse X: use X.toarray(), or setwise.Linear()")
    if isinstance(X, Encoded):
        return X.dense(missing)
    if isinstance(X, Stored):
        raise TypeError(f"{who} needs rows in memory: read them first, as in rows.read()")
    if is_frame(X):
        import narwhals as nw

        frame = nw.from_native(X, eager_only=True)
        for name, kind in frame.schema.items():
            if not (kind.is_numeric() or kind == nw.Boolean):
                raise TypeError(
                    f"column {name!r} of X is of type {kind}, but {who} needs numbers: encode it "
                    f"(for instance with sklearn.preprocessing.OneHotEncoder), or use a boosting "
                    f"learner with pandas categories"
                )
        array = np.column_stack(
            [frame.get_column(name).cast(nw.Float64).to_numpy() for name in frame.columns]
        ).astype(np.float64)
    else:
        try:
            array = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{who} needs an X of numbers: {error}") from error
    if array.ndim != 2:
        raise ValueError(f"{who} needs X of shape (rows, features), got {array.shape}")
    bad = ~np.isfinite(array)
    if missing:
        bad &= ~np.isnan(array)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        names = feature_names(X)
        where = f"column {names[column]!r}" if names else f"column {column}"
        raise ValueError(
            f"X has {array[row, column]} in row {row}, {where}: {who} needs finite numbers"
            + ("" if missing else "; impute it, or use a boosting learner, which takes NaN")
        )
    return array


def native(X: Any) -> Any:
    """X in a form that boosting libraries take: frames become pandas, tensors arrays."""
    if hasattr(X, "detach"):
        return X.detach().cpu().numpy()
    if isinstance(X, Encoded):
        return X.frame()
    if hasattr(X, "to_pandas"):
        return X.to_pandas()
    return X
