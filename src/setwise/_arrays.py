"""Arrays in files (safetensors); names, types and shapes are checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError

__all__ = ["read_arrays", "write_arrays"]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes arrays of numbers by name."""
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        safetensors.numpy.save_file(plain, path)
    except SafetensorError as error:  # a full disk
        raise OSError(f"{path} could not be written: {error}") from None


def read_arrays(
    path: Path, kinds: Mapping[str, tuple[DTypeLike, int]] | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of a file, which must be those of `kinds`, of these types and dimensions.

    Memory is allocated for what the file really holds, whatever its header claims.
    """
    try:
        arrays = safetensors.numpy.load_file(path)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a whole file of arrays ({error})") from None
    found = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
    if kinds is not None and found != {n: (np.dtype(kind), k) for n, (kind, k) in kinds.items()}:
        raise ValueError(f"{path.name} does not hold the arrays {', '.join(kinds)}")
    return arrays
