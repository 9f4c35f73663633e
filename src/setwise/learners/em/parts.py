"""Fitted scikit-learn estimators taken apart into plain values and arrays, and put together."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.tree._tree import Tree

from setwise._facts import checked
from setwise._threads import cores
from setwise.learners.em.sound import KNOWN, REMADE, Known, check_tree, is_usual

__all__ = ["Reader", "Unknown", "Writer"]

PLAIN = (type(None), bool, int, float, str)
# Random numbers, optimisers and losses of the fit: predictions need none of them, or they are made
# again (REMADE).
LEFT_OUT = {
    *REMADE, "_rng", "_random_state", "_feature_subsample_rng", "_optimizer", "_scorer",
    "_loss_function_", "loss_function_", "_metadata_request", "_tree",
}  # fmt: skip
TREE = ("max_depth", "node_count", "nodes", "values")


class Unknown(Exception):
    """Something that has no form here."""


def class_of(thing: Any) -> str | None:
    """The name of a known class; None for others."""
    cls = type(thing)
    known = KNOWN.get(cls.__name__)
    return cls.__name__ if known is not None and cls is _imported(cls.__name__, known) else None


def _imported(name: str, known: Known) -> Any:
    return getattr(import_module(f"sklearn.{known.module}"), name, None)


class Writer:
    """Converts values to JSON; arrays are kept apart."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}

    def told(self, value: Any) -> Any:
        """The value as JSON; raises `Unknown` if it has no such form."""
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, np.generic):
            return self.told(value.item())
        if isinstance(value, np.random.RandomState | np.random.Generator):
            return None
        if isinstance(value, np.dtype) and value.kind in "biuf":
            return {"dtype": value.str}
        if isinstance(value, list | tuple):
            name = "tuple" if isinstance(value, tuple) else "list"
            return {name: [self.told(v) for v in value]}
        if type(value) is dict:
            pairs = [[self.told(k), self.told(v)] for k, v in value.items()]
            if all(isinstance(k, PLAIN) for k, _ in pairs):
                return {"dict": pairs}
        if isinstance(value, np.ndarray):
            return self._array(value)
        if type(value) is Tree:
            return {"tree": self._tree(value)}
        if type(value).__name__ == "TreePredictor":
            return {"predictor": self._nodes(value.nodes)}
        known = class_of(value)
        if known is None or not is_usual(value):
            raise Unknown(f"{type(value).__module__}.{type(value).__name__}")
        state = {k: self.told(v) for k, v in vars(value).items() if k not in LEFT_OUT}
        return {"class": known, "state": state}

    def _array(self, value: NDArray[Any]) -> Any:
        if value.dtype.kind in "biuf":
            name = f"a{len(self.arrays)}"
            self.arrays[name] = value
            return {"array": name}
        items = value.ravel().tolist()
        if value.dtype.kind == "U" or value.dtype == object:
            return {"items": [self.told(v) for v in items], "shape": list(value.shape)}
        raise Unknown(f"an array of {value.dtype}")

    def _nodes(self, nodes: NDArray[Any]) -> Any:
        return {name: self._array(nodes[name]) for name in nodes.dtype.names or ()}

    def _tree(self, tree: Any) -> Any:
        state = tree.__getstate__()
        return {
            "n_features": int(tree.n_features),
            "n_classes": self._array(np.asarray(tree.n_classes, np.int64)),
            "max_depth": int(state["max_depth"]),
            "nodes": self._nodes(state["nodes"]),
            "values": self._array(state["values"]),
        }


class Reader:
    """Restores values from the output of a `Writer` and its arrays, each of which is used once."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    def whole(self, told: Any) -> Any:
        """The estimator."""
        found = self.value(told)
        if class_of(found) is None or not hasattr(found, "predict"):
            raise ValueError("the file holds no estimator")
        return found

    def value(self, told: Any) -> Any:
        """The value that `told` describes."""
        if isinstance(told, PLAIN):
            return told
        if not isinstance(told, dict) or not 1 <= len(told) <= 2:
            raise ValueError("the estimator is described by something else than values")
        (kind, inside), *more = told.items()
        if kind in ("list", "tuple"):
            items = [self.value(v) for v in checked(inside, list[Any], kind)]
            return tuple(items) if kind == "tuple" else items
        if kind == "dict":
            pairs = checked(inside, list[tuple[bool | int | float | str | None, Any]], kind)
            return {k: self.value(v) for k, v in pairs}
        if kind == "dtype":
            dtype = np.dtype(checked(inside, str, kind)[:4])
            if dtype.kind in "biuf":
                return dtype
        if kind == "array":
            return self._array(told)
        if kind == "items" and more:
            return self._items(inside, told["shape"])
        if kind == "tree":
            return self._tree(inside)
        if kind == "predictor":
            return self._predictor(inside)
        if kind == "class" and more:
            return self._object(inside, told["state"])
        raise ValueError(f"{str(kind)[:40]!r} is no kind of value")

    def _array(self, told: Any) -> NDArray[Any]:
        found = self.arrays.pop(str(told["array"]), None)
        if found is None:
            raise ValueError("an array of the estimator is missing, or used twice")
        return found

    def _items(self, inside: Any, shape: Any) -> NDArray[Any]:
        items = [self.value(v) for v in checked(inside, list[Any], "items")]
        if len(checked(shape, list[int], "shape")) > 32 or math.prod(shape) != len(items):
            raise ValueError("an array of objects has another shape")
        out = np.empty(len(items), dtype=object)
        out[:] = items
        return out.reshape(shape)

    def _object(self, name: Any, state: Any) -> Any:
        known = KNOWN.get(name) if isinstance(name, str) else None
        cls = None if known is None else _imported(name, known)
        if known is None or cls is None:
            raise ValueError(f"{str(name)[:60]!r} is not a known estimator")
        made: Any = object.__new__(cls)
        params: list[str] = getattr(cls, "_get_param_names", list)()
        for key, value in checked(state, dict[str, Any], name).items():
            shadows = hasattr(cls, key) and key not in params
            if not key.isidentifier() or key.startswith("__") or shadows:
                raise ValueError(f"{name} has no attribute {key[:40]!r}")
            made.__dict__[key] = self.value(value)
        if type(made.__dict__.get("n_jobs")) is int:
            made.n_jobs = min(made.n_jobs, cores())
        for key, make in REMADE.items():
            if hasattr(made, make) and key in known.remade:
                made.__dict__[key] = getattr(made, make)(*known.remade[key])
        is_fitted = any(key not in params for key, value in state.items() if value is not None)
        return known.check(made) if is_fitted else made

    def _nodes(self, told: Any, dtype: Any) -> NDArray[Any]:
        """A structured array, field by field."""
        wanted = np.dtype(dtype)
        columns = {k: self.value(v) for k, v in checked(told, dict[str, Any], "nodes").items()}
        kinds = {name: kind for name, (kind, *_) in (wanted.fields or {}).items()}
        if {k: getattr(v, "dtype", None) for k, v in columns.items()} != kinds:
            raise ValueError("a tree has not the columns that this version of scikit-learn knows")
        shapes = {column.shape for column in columns.values()}
        out = np.zeros(shapes.pop(), dtype=wanted)
        if shapes or out.ndim != 1 or not len(out):
            raise ValueError("the columns of a tree are of different lengths")
        for name, column in columns.items():
            out[name] = column
        return out

    def _tree(self, told: Any) -> Any:
        from sklearn.tree._tree import NODE_DTYPE

        nodes, values = self._nodes(told["nodes"], NODE_DTYPE), self.value(told["values"])
        width = checked(told["n_features"], int, "n_features")
        classes = self.value(told["n_classes"])
        check_tree(nodes["left_child"], nodes["right_child"], nodes["feature"],
                   nodes["threshold"], nodes["left_child"] != -1, width)  # fmt: skip
        sound = isinstance(classes, np.ndarray) and classes.shape == (1,) and width < 2**31
        if not sound or getattr(values, "shape", None) != (len(nodes), 1, classes[0]):
            raise ValueError("a tree has not the values that it needs")
        if values.dtype != np.float64 or not np.isfinite(values).all():
            raise ValueError("a value of a tree is not a finite number")
        depth = checked(told["max_depth"], int, "max_depth")
        tree = Tree(width, classes.astype(np.intp), 1)
        tree.__setstate__(dict(zip(TREE, (depth, len(nodes), nodes, values), strict=True)))
        return tree

    def _predictor(self, told: Any) -> Any:
        from sklearn.ensemble._hist_gradient_boosting.predictor import (
            PREDICTOR_RECORD_DTYPE,
            TreePredictor,
        )

        nodes = self._nodes(told, PREDICTOR_RECORD_DTYPE)
        left, right = (nodes[side].astype(np.int64) for side in ("left", "right"))
        if nodes["is_categorical"].any() or not np.isfinite(nodes["value"]).all():
            raise ValueError("a tree splits on categories, or has a value that is not finite")
        check_tree(left, right, nodes["feature_idx"], nodes["num_threshold"],
                   nodes["is_leaf"] == 0, 2**31)  # fmt: skip
        none = np.zeros((0, 8), np.uint32)
        return TreePredictor(nodes, none, none)
