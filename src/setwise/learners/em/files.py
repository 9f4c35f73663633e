"""Files of fitted scikit-learn estimators of known classes: arrays and plain values.

The compiled code of scikit-learn goes where its arrays point without looking. So classes whose
arrays are known here are written as arrays, which are checked when they are read; see `sound`.
Others are written with skops, which runs no code but checks no numbers, and read only where they
are trusted.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import sklearn

from setwise._arrays import read_arrays, write_arrays
from setwise.learners.em.parts import Reader, Unknown, Writer

__all__ = ["read_estimator", "write_estimator"]

ARRAYS = "estimator.safetensors"
OTHER = "estimator.skops"


def write_estimator(estimator: Any, folder: Path) -> dict[str, Any]:
    """Writes the estimator into the folder; returns what else is needed to read it."""
    writer = Writer()
    try:
        told = writer.told(estimator)
    except Unknown as unknown:
        io = _skops(f"{unknown} is not kept as arrays, and other estimators are kept with skops")
        io.dump(estimator, folder / OTHER)
        return {"estimator": None, "sklearn": sklearn.__version__}
    write_arrays(folder / ARRAYS, writer.arrays)
    return {"estimator": told, "sklearn": sklearn.__version__}


def read_estimator(folder: Path, told: Any, version: str, trusted: bool) -> Any:
    """The estimator that was written, once every number in it is known to be sound."""
    if version != sklearn.__version__:
        warnings.warn(
            f"EM's estimator was fitted with scikit-learn {version}; with {sklearn.__version__} it "
            f"may predict something else: fit and save it again",
            UserWarning,
            stacklevel=2,
        )
    if told is not None:
        return Reader(read_arrays(folder / ARRAYS)).whole(told)
    if not trusted:  # not even to see its types: a small file may unfold to any size
        raise ValueError(
            "EM's estimator is of a kind whose file cannot be checked: if you trust whoever made "
            "this folder, give trusted=True"
        )
    io = _skops("this estimator was kept with skops")
    return io.load(folder / OTHER, trusted=io.get_untrusted_types(file=folder / OTHER))


def _skops(why: str) -> Any:
    try:
        return importlib.import_module("skops.io")
    except ImportError as error:
        raise ImportError(
            f"{why}: pip install 'setwise[skops]'. Or use joblib.dump and joblib.load, and load "
            f"only files you trust"
        ) from error
