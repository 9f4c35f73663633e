"""Files of fitted scikit-learn estimators: no pickle, and trees that are checked before use."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["read_estimator", "write_estimator"]

FILE = "estimator.skops"
# skops knows that the code of trees is harmless, but not their content: they are checked here.
TREES = (
    "sklearn.tree._tree.Tree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
)
TRUSTED = (
    *TREES,
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
)


def write_estimator(estimator: Any, folder: Path) -> None:
    """Writes the estimator into the folder; one that could not be read back is an error."""
    io = _skops("save")
    path = folder / FILE
    io.dump(estimator, path)
    _check_types(io, path)
    _check_trees(estimator)


def read_estimator(folder: Path) -> Any:
    """The estimator that was written; runs no code from the file."""
    io = _skops("load")
    path = folder / FILE
    _check_types(io, path)
    estimator = io.load(path, trusted=[*TRUSTED])
    _check_trees(estimator)
    return estimator


def _skops(what: str) -> Any:
    try:
        return importlib.import_module("skops.io")
    except ImportError as error:
        raise ImportError(
            f"EM wraps any scikit-learn estimator: to {what} it without pickle, install skops (pip "
            f"install skops). Or use joblib.dump and joblib.load, and load only files you trust"
        ) from error


def _check_types(io: Any, path: Path) -> None:
    unknown = set(io.get_untrusted_types(file=path)) - {*TRUSTED}
    if unknown:
        raise ValueError(
            f"an estimator with {', '.join(sorted(unknown)[:5])} cannot be kept without pickle: "
            f"these are not known to be safe to load. Use joblib.dump and joblib.load, and load "
            f"only files you trust"
        )


def _check_trees(estimator: Any) -> None:
    """Raises unless every tree leads from its root to a leaf, by features that there are.

    scikit-learn follows the numbers of nodes and features without looking, out of memory if they
    are wrong.
    """
    for tree, width in _trees(estimator, math.inf):
        if hasattr(tree, "capacity"):
            sound = tree.node_count <= tree.capacity
            names = ("children_left", "children_right", "feature") if sound else ()
            left, right, feature = [getattr(tree, name) for name in names] or np.zeros((3, 0))
            inner = left != -1
        else:
            nodes = tree.nodes
            left, right, feature = (
                nodes[k].astype(np.int64) for k in ("left", "right", "feature_idx")
            )
            inner = nodes["is_leaf"] == 0
            sound = not nodes["is_categorical"].any()
        number = np.arange(len(left))
        ahead = (left > number) & (right > number) & (left < len(left)) & (right < len(left))
        known = (feature >= 0) & (feature < width)
        if not (sound and len(left) and (ahead & known)[inner].all()):
            raise ValueError(
                f"a tree of {FILE} is damaged, or splits on categories: it cannot be used safely. "
                f"Use joblib.dump and joblib.load, and load only files you trust"
            )


def _trees(part: Any, width: float, seen: set[int] | None = None) -> Iterator[tuple[Any, float]]:
    """Every tree inside an estimator, and the least number of features of those around it."""
    seen = set() if seen is None else seen
    if id(part) in seen or isinstance(part, str | bytes | type):
        return
    seen.add(id(part))
    name = f"{type(part).__module__}.{type(part).__name__}"
    if name in TREES:
        yield part, min(width, getattr(part, "n_features", math.inf))
        return
    inside: Any = ()
    if isinstance(part, dict):
        inside = part.values()
    elif isinstance(part, list | tuple | set):
        inside = part
    elif isinstance(part, np.ndarray) and part.dtype == object:
        inside = part.ravel()
    elif hasattr(part, "__dict__"):
        inside = vars(part).values()
        width = min(width, vars(part).get("n_features_in_", math.inf))
    for each in inside:
        yield from _trees(each, width, seen)
