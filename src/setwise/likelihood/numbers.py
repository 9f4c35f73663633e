"""y as arrays of numbers: their shapes, what they may be, and which set is at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from setwise.errors import check_each
from setwise.likelihood.texts import as_number
from setwise.sets import Sets

__all__ = ["check_totals", "counts_of", "expect", "floats", "numbers", "padded", "whole"]

Floats = NDArray[np.float64]


def floats(who: object, y: Any) -> Floats:
    """y as floats in memory that may be written to, as torch wants it."""
    if y is None:
        raise ValueError(f"{who!r} needs a y for each set, got None")
    try:
        y = y.detach().cpu() if isinstance(y, Tensor) else y
        return np.require(y, np.float64, "W")
    except (TypeError, ValueError) as error:
        for at, value in enumerate(y):
            if isinstance(value, str) and as_number(value) is None:
                raise TypeError(f"{who!r} needs numbers as y, got {value!r} for set {at}") from None
        raise TypeError(f"{who!r} needs numbers as y: {error}") from error


def numbers(
    who: object, sets: Sets, y: Any, columns: int | None = None, infinite: bool = False
) -> Floats:
    """y as finite floats of shape (n_sets,) or (n_sets, columns)."""
    array = floats(who, y)
    shape = (len(sets),) if columns is None else (len(sets), columns)
    if array.shape != shape:
        raise ValueError(f"{who!r} of {len(sets)} sets needs y of shape {shape}, got {array.shape}")
    good = ~np.isnan(array) if infinite else np.isfinite(array)
    return expect(who, array, good, "finite numbers (leave sets without a y out)")


def expect(who: object, array: Floats, good: NDArray[np.bool_], wanted: str) -> Floats:
    """y, or an error that names the first set whose y is not what is `wanted`."""
    check_each(good, lambda at: f"has y = {array[at]:g}: {who!r} expects {wanted}")
    return array


def whole(who: object, array: Floats, wanted: str = "a whole number from 0 on") -> Floats:
    """y, or an error where it holds anything but whole numbers from 0 on."""
    return expect(who, array, (array >= 0) & (array == np.floor(array)), wanted)


def counts_of(y: Floats, sizes: NDArray[np.int64]) -> Floats:
    """The counts that shares of sets of these sizes stand for, rounded ones included."""
    counts = np.rint(y * sizes)
    good = np.abs(y * sizes - counts) <= 1e-3
    for decimals in range(2, 6):
        rounded = np.round(counts / sizes, decimals)
        good |= (np.abs(y - rounded) <= 1e-6) & (sizes < 10**decimals)

    def said(at: Any) -> str:
        size, nearest = sizes[at], int(np.clip(counts[at], 0, sizes[at]))
        return (
            f"has y = {y[at]:g}, which is no share of {size} member(s); the nearest is "
            f"{nearest}/{size} = {nearest / size:.6g}"
        )

    check_each(good & (y > -1e-6) & (y < 1 + 1e-6), said)
    return counts


def check_totals(sets: Sets, counts: Floats, y: Floats) -> None:
    """Raises where the counts of all classes are not the size of the set, or one exceeds it."""
    flat = counts.ndim == 1
    total = counts if flat else counts.sum(1)
    what = "a count of" if flat else "counts that add up to"
    check_each(
        total <= sets.individuals if flat else total == sets.individuals,
        lambda at: (
            f"has {sets.individuals[at]} member(s) but {what} {total[at]:g} (y = {y[at].tolist()})"
        ),
    )


def padded(values: Floats, sizes: NDArray[np.int64]) -> Floats:
    """Lists of these sizes, given one after another, as the rows of an array filled with NaN."""
    width = int(sizes.max(initial=0))
    out = np.full((len(sizes), width), np.nan)
    out[np.arange(width) < sizes[:, None]] = values
    return out
