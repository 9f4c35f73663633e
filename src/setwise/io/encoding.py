"""Arguments of estimators and learners as JSON values, and back: no pickle, no code.

JSON values stay as they are; other things are objects with a `kind`: tuples, dicts, arrays, paths,
devices, families, aggregates, learners and scikit-learn's estimators. Of values without such a form
(a function, a torch module) only a description is kept. Classes are looked up by name among those
that are known, never imported.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from setwise._facts import checked
from setwise.distributions import Family, families
from setwise.learners import Learner, learners
from setwise.likelihood import Aggregate, aggregates

__all__ = ["NotSaved", "arguments", "decode", "encode", "known"]

DTYPE = re.compile(r"[<>|=]?([biuf][1248]|f16|O\d*|U\d+)")


@dataclass(frozen=True, repr=False)
class NotSaved:
    """In a loaded estimator: an argument that a file cannot hold, such as a function."""

    what: str

    def __repr__(self) -> str:
        return f"<not saved, give it again: {self.what}>"


def arguments(thing: Any) -> dict[str, Any]:
    """The constructor's arguments of an estimator or learner, or their descriptions."""
    out = {}
    for name, value in thing.get_params(deep=False).items():
        try:
            out[name] = encode(value)
        except TypeError:
            what = value.what if isinstance(value, NotSaved) else repr(value)[:200]
            out[name] = {"kind": "unsaved", "what": what}
    return out


def encode(value: Any) -> Any:
    """A value as JSON; TypeError where it has no such form."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [encode(v) for v in value]}
    if isinstance(value, dict):
        return {"kind": "dict", "items": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUO":
        items = [encode(v) for v in value.ravel().tolist()]
        shape = list(value.shape)
        return {"kind": "array", "dtype": value.dtype.str, "shape": shape, "items": items}
    if isinstance(value, Path | torch.device):
        return {"kind": "path" if isinstance(value, Path) else "device", "value": str(value)}
    name = type(value).__name__
    if isinstance(value, Family | Aggregate):
        names = inspect.signature(type(value)).parameters
        params = {name: encode(getattr(value, name)) for name in names}
        kind = "family" if isinstance(value, Family) else "aggregate"
        return {"kind": kind, "class": name, "params": params}
    if isinstance(value, Learner):
        return {"kind": "learner", "class": name, "params": arguments(value)}
    if isinstance(value, BaseEstimator) and type(value).__module__.startswith("sklearn."):
        return {"kind": "sklearn", "class": name, "params": arguments(value)}
    raise TypeError(f"{value!r} cannot be saved without pickle: it is not a plain value"[:500])


def decode(value: Any, module: Any) -> Any:
    """The inverse of `encode`; `module` takes the place of a module that was not saved."""
    if isinstance(value, list):
        return [decode(v, module) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    if kind == "unsaved":
        return NotSaved(str(value["what"]))
    if kind == "tuple":
        return tuple(decode(value["items"], module))
    if kind == "dict":
        return {decode(k, module): decode(v, module) for k, v in value["items"]}
    if kind == "array":
        return _array(decode(value["items"], module), value["dtype"], value["shape"])
    if kind in ("path", "device"):
        return (Path if kind == "path" else torch.device)(value["value"])
    if kind not in REGISTRIES:
        raise ValueError(f"{kind!r} is no kind of value")
    classes = {cls.__name__: cls for cls in REGISTRIES[kind]().values()}
    cls = known(value.get("class"), classes, KINDS.get(str(kind), str(kind)))
    params = {name: decode(v, module) for name, v in value["params"].items()}
    if module is not None and isinstance(params.get("module"), NotSaved):
        params["module"] = module
    return cls(**params)


def _array(items: list[Any], dtype: str, shape: list[int]) -> Any:
    """The array of these items; it takes no more room than they do."""
    if not isinstance(dtype, str) or not DTYPE.fullmatch(dtype):
        raise ValueError(f"{dtype!r} is no type of an array"[:100])
    if len(checked(shape, list[int], "shape")) > 32 or math.prod(shape) != len(items):
        raise ValueError(f"{len(items)} items have no shape {shape}"[:100])
    out = np.empty(len(items), dtype=dtype) if "U" not in dtype else np.array(items, str)
    out[:] = items
    return out.reshape(shape)


def known(name: Any, classes: dict[str, Any], what: str) -> Any:
    """The class of this name; a ValueError if it is not one of these."""
    if not isinstance(name, str) or name not in classes:
        raise ValueError(
            f"{str(name)[:60]!r} is not a known {what}; known are {some(sorted(classes))}. If it "
            "is your own, import its module before loading"
        )
    return classes[name]


def some(names: list[str], most: int = 12) -> str:
    """The first of these names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")


@cache
def _sklearn_classes() -> dict[str, type[Any]]:
    """Every estimator of scikit-learn, by name."""
    from sklearn.utils import all_estimators

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that only this listing imports
        return dict(all_estimators())


KINDS = {"sklearn": "estimator of scikit-learn"}
REGISTRIES: dict[str, Callable[[], Any]] = {
    "aggregate": lambda: {cls.__name__: cls for cls in aggregates()},
    "family": families,
    "learner": learners,
    "sklearn": _sklearn_classes,
}
