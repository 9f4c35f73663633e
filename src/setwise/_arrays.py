"""Arrays in files (safetensors); names, types and shapes are checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError

__all__ = ["check_header", "read_arrays", "write_arrays"]

HEADER = 2**24  # bytes of the names, types and shapes in a file, which take more memory when read


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes arrays of numbers by name."""
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        safetensors.numpy.save_file(plain, path)
    except SafetensorError as error:  # a full disk
        raise OSError(f"{path} could not be written: {error}") from None
    check_header(path)


def check_header(path: Path) -> None:
    """Raises where a file names more arrays than are read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > HEADER:
        raise ValueError(f"{path.name} names more arrays than are read, or was altered")


def read_arrays(
    path: Path, kinds: Mapping[str, tuple[DTypeLike, int]] | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of a file, which must be those of `kinds`, of these types and dimensions.

    Memory is allocated for what the file really holds, whatever its header claims.
    """
    check_header(path)
    try:
        arrays = safetensors.numpy.load_file(path)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a whole file of arrays ({error})") from None
    found = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
    if kinds is not None and found != {n: (np.dtype(kind), k) for n, (kind, k) in kinds.items()}:
        raise ValueError(f"{path.name} does not hold the arrays {', '.join(kinds)}")
    return arrays
