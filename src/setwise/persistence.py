"""Fitted estimators in folders: plain files, no pickle; loading runs no code from them.

A saved folder holds `setwise.json` and one folder `model-…` with the model's own files (native
model files of the boosting libraries, safetensors). `setwise.json` is an object with

* `format`: the version of this description, 1; a newer one is refused;
* `sha256`: the digest of this very file with 64 zeros in place of the digest;
* `setwise`: the version that wrote it;
* `estimator`, `params`: the class of the estimator and its constructor's arguments;
* `family`, `learner`: what the arguments meant when the estimator was fitted;
* `model`: the `class` of the model, the `facts` that it needs and the `folder` of its files;
* `shared`: the shared parameters; `identifiability`, `alignment`: what labels tell, what `align`
  found; `n_features_in`, `feature_names_in`, `history`: as the attributes of these names;
* `files`: the sha256 of every other file.

Arguments are JSON values as they are; other things are objects with a `kind`: tuples, dicts,
arrays, paths, devices, families, learners and scikit-learn's estimators. What has no such form (a
function, a torch module) is kept by its description only: the loaded model predicts all the same,
and `fit` asks for it. Classes are looked up by name among those that are known, never imported.

Digests find damage, not malice: whoever can write a folder can write its digests, and so give you
a wrong model, but no code. (The boosting libraries read their model files with their own parsers.)

A save writes its files beside the old ones and then replaces `setwise.json` in one step: whenever
it is interrupted, the folder holds a whole model, the old one or the new one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from setwise.distributions import Family, families
from setwise.identifiability import Alignment, Identifiability
from setwise.learners import Learner, learners, models

__all__ = ["NotSaved", "load", "save"]

FORMAT = 1
NAME = "setwise.json"
OURS = re.compile(r"setwise\.json(\.part)?|model-[0-9a-f]{32}")
DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
FIELDS: dict[str, type | tuple[type, ...]] = {
    "setwise": str,
    "estimator": str,
    "params": dict,
    "family": dict,
    "learner": dict,
    "model": dict,
    "shared": list,
    "identifiability": dict,
    "alignment": (dict, type(None)),
    "n_features_in": (int, type(None)),
    "feature_names_in": (list, type(None)),
    "history": list,
    "files": dict,
}


@dataclass(frozen=True, repr=False)
class NotSaved:
    """In a loaded estimator: an argument that a file cannot hold, such as a function."""

    what: str

    def __repr__(self) -> str:
        return f"<not saved, give it again: {self.what}>"


# ---- writing


def save(est: Any, folder: str | Path) -> None:
    """Writes a fitted estimator into a folder, without pickle; `load` reads it.

    A folder that holds anything but a saved model is refused; an older model in it is replaced,
    at the very end and in one step.
    """
    folder = Path(folder)
    known = _estimators()
    if type(est).__name__ not in known:
        raise TypeError(
            f"save is for {' and '.join(sorted(known))}, got {type(est).__name__}: of a Pipeline "
            f"save the last step, or keep the whole with joblib"
        )
    if not hasattr(est, "model_"):
        raise NotFittedError(
            f"this {type(est).__name__} is not fitted yet: call fit(X, observations) before save"
        )
    _check_target(folder)
    is_new = not folder.exists()
    own = folder / f"model-{uuid.uuid4().hex}"
    part = folder / (NAME + ".part")
    try:
        own.mkdir(parents=True)
        facts = est.model_.save(own)
        files = {path.relative_to(folder).as_posix(): _digest(path) for path in _files(own)}
        text = _seal(_describe(est, own.name, facts, files))
        with part.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        shutil.rmtree(own, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
    part.replace(folder / NAME)
    for old in folder.glob("model-*"):
        if old != own:
            shutil.rmtree(old, ignore_errors=True)


def _check_target(folder: Path) -> None:
    """Raises unless the folder is free, or holds nothing but what `save` once wrote."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file: a model is saved into a folder, name another one")
    others = sorted(path.name for path in folder.iterdir() if not OURS.fullmatch(path.name))
    if others:
        raise ValueError(
            f"{folder} holds other things than a saved model ({', '.join(others[:5])}): name a new "
            f"folder, or an empty one"
        )


def _describe(est: Any, own: str, facts: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    params = _arguments(est)
    if hasattr(est, "classes_"):  # predictions name them, so they must be kept
        labels = params["n_classes"]
        is_kept = not isinstance(labels, dict) or labels["kind"] != "unsaved"
        params["n_classes"] = labels if is_kept else _encode(est.classes_)
    alignment = est.alignment_
    names = getattr(est, "feature_names_in_", None)
    return {
        "format": FORMAT,
        "sha256": "0" * 64,
        "setwise": version("setwise"),
        "estimator": type(est).__name__,
        "params": params,
        "family": _encode(est.family_),
        "learner": _encode(est.learner_),
        "model": {"class": type(est.model_).__name__, "folder": own, "facts": facts},
        "shared": est.shared_.tolist(),
        "identifiability": est.identifiability_.facts(),
        "alignment": None if alignment is None else alignment.facts(),
        "n_features_in": est.n_features_in_,
        "feature_names_in": None if names is None else [str(name) for name in names],
        "history": est.history_,
        "files": files,
    }


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays among facts, as JSON knows them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not fit for JSON: {value!r}"[:500])


def _seal(body: dict[str, Any]) -> bytes:
    """The text of a description, with its own digest in it."""
    text = json.dumps(body, indent=1, default=_plain).encode() + b"\n"
    digest = hashlib.sha256(text).hexdigest()
    return text.replace(b"0" * 64, digest.encode(), 1)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _arguments(thing: Any) -> dict[str, Any]:
    """The constructor's arguments of an estimator or learner; what has no form is described."""
    out = {}
    for name, value in thing.get_params(deep=False).items():
        try:
            out[name] = _encode(value)
        except TypeError:
            what = value.what if isinstance(value, NotSaved) else repr(value)[:200]
            out[name] = {"kind": "unsaved", "what": what}
    return out


def _encode(value: Any) -> Any:
    """A value in the form that the format has for it; TypeError where it has none."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, list):
        return [_encode(v) for v in value]
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [_encode(v) for v in value]}
    if isinstance(value, dict):
        return {"kind": "dict", "items": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUO":
        items = [_encode(v) for v in value.ravel().tolist()]
        kind = {"kind": "array", "dtype": value.dtype.str, "shape": list(value.shape)}
        return {**kind, "items": items}
    if isinstance(value, Path | torch.device):
        return {"kind": "path" if isinstance(value, Path) else "device", "value": str(value)}
    if isinstance(value, Family):
        names = inspect.signature(type(value)).parameters
        params = {name: _encode(getattr(value, name)) for name in names}
        return {"kind": "family", "class": type(value).__name__, "params": params}
    if isinstance(value, Learner):
        return {"kind": "learner", "class": type(value).__name__, "params": _arguments(value)}
    if isinstance(value, BaseEstimator) and type(value).__module__.startswith("sklearn."):
        return {"kind": "sklearn", "class": type(value).__name__, "params": _arguments(value)}
    raise TypeError(f"{value!r} cannot be saved without pickle: it is no plain value"[:500])


# ---- reading


class Saveable:
    """What can be saved and loaded: a class derived from this is known to `load`."""

    def save(self, folder: str | Path) -> None:
        """Writes the fitted estimator into a folder, without pickle; `setwise.load` reads it."""
        save(self, Path(folder))


def load(folder: str | Path, *, module: Any = None) -> Any:
    """The fitted estimator that `est.save(folder)` wrote; it predicts exactly the same.

    Nothing in the folder is run as code, so it may come from a stranger. A network of your own is
    saved without its code: give the module again, with any weights, as `module`. A folder that
    is missing, was cut short or altered, or was written by a newer version is a ValueError.
    """
    folder = Path(folder)
    body = _read(folder)
    _check_files(folder, body["files"])
    try:
        return _rebuild(folder, body, module)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # whatever a library says of what it cannot read
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"the model in {folder} cannot be loaded: {said}") from error


def _read(folder: Path) -> dict[str, Any]:
    """The description, after every check that it can be given by itself."""
    path = folder / NAME
    if not path.is_file():
        missing = f"has no {NAME}" if folder.is_dir() else "is not a folder"
        raise ValueError(
            f"{folder} {missing}: give the folder that est.save(folder) wrote a fitted model into"
        )
    text = path.read_bytes()
    damaged = f"{path} was cut short or altered: save the model again, or copy the folder again"
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{damaged} ({error})") from error
    if not isinstance(body, dict) or type(body.get("format")) is not int:
        raise ValueError(f"{damaged} (there is no format version in it)")
    if body["format"] != FORMAT:
        raise ValueError(
            f"{path} is of format {body['format']}, written by setwise {body.get('setwise')}; this "
            f"version reads format {FORMAT}: update setwise"
        )
    found = DIGEST.search(text)
    if found is None:
        raise ValueError(f"{damaged} (there is no digest in it)")
    zeros = text[: found.start(1)] + b"0" * 64 + text[found.end(1) :]
    if hashlib.sha256(zeros).hexdigest().encode() != found[1]:
        raise ValueError(f"{damaged} (its digest is another)")
    for name, kind in FIELDS.items():
        if name not in body or not isinstance(body[name], kind) or isinstance(body[name], bool):
            raise ValueError(f"{path}: {name!r} is missing or of a wrong type")
    return body


def _check_files(folder: Path, files: dict[str, Any]) -> None:
    for name, digest in files.items():
        parts = PurePosixPath(name).parts
        if len(parts) < 2 or not OURS.fullmatch(parts[0]) or ".." in parts:
            raise ValueError(f"{folder / NAME} names a file outside of the model: {name!r}")
        path = folder.joinpath(*parts)
        if not path.is_file():
            raise ValueError(f"{path} is missing: copy the whole folder again")
        if _digest(path) != digest:
            raise ValueError(f"{path} was cut short or altered: copy the whole folder again")


def _rebuild(folder: Path, body: dict[str, Any], module: Any) -> Any:
    cls = _known(body["estimator"], _estimators(), "estimator")
    est = cls(**{name: _decode(value, module) for name, value in body["params"].items()})
    est.family_, est.learner_ = _decode(body["family"], module), _decode(body["learner"], module)
    if not isinstance(est.family_, Family) or not isinstance(est.learner_, Learner):
        raise ValueError("'family' or 'learner' is something else")
    shared = [float(x) for x in body["shared"]]
    if len(shared) != len(est.family_.shared):
        raise ValueError(f"{est.family_!r} has {len(est.family_.shared)} shared parameters")
    est.shared_ = torch.tensor(shared, dtype=torch.float64)
    facts = body["model"]
    model = _known(facts["class"], models(), "model")
    own = facts["folder"]
    if not OURS.fullmatch(own):
        raise ValueError(f"{own!r} is no folder of a model")
    given = {}
    if "module" in inspect.signature(model.load).parameters:
        given["module"] = module
    elif module is not None:
        raise ValueError(f"module= is for networks of your own, but this is a {model.__name__}")
    est.model_ = model.load(folder / own, facts["facts"], **given)
    est.identifiability_ = Identifiability.from_facts(body["identifiability"])
    alignment = body["alignment"]
    est.alignment_ = None if alignment is None else Alignment.from_facts(alignment)
    est.history_, est.n_features_in_ = body["history"], body["n_features_in"]
    names = body["feature_names_in"]
    if names is not None:
        est.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
    return est


def _decode(value: Any, module: Any) -> Any:
    """The inverse of `_encode`; `module` takes the place of a module that was not saved."""
    if isinstance(value, list):
        return [_decode(v, module) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind == "unsaved":
        return NotSaved(str(value["what"]))
    if kind == "tuple":
        return tuple(_decode(value["items"], module))
    if kind == "dict":
        return {_decode(k, module): _decode(v, module) for k, v in value["items"]}
    if kind == "array":
        items = _decode(value["items"], module)
        array = np.empty(len(items), dtype=np.dtype(value["dtype"]))
        array[:] = items
        return array.reshape(value["shape"])
    if kind in ("path", "device"):
        return (Path if kind == "path" else torch.device)(value["value"])
    if kind not in REGISTRIES:
        raise ValueError(f"{kind!r} is no kind of value")
    classes = {cls.__name__: cls for cls in REGISTRIES[kind]().values()}
    cls = _known(value["class"], classes, kind)
    params = {name: _decode(v, module) for name, v in value["params"].items()}
    if module is not None and isinstance(params.get("module"), NotSaved):
        params["module"] = module
    return cls(**params)


def _known(name: Any, known: dict[str, Any], what: str) -> Any:
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"{name!r} is not a known {what}; known are {', '.join(sorted(known))}. If it is your "
            f"own, import its module before loading"
        )
    return known[name]


def _estimators() -> dict[str, type[Any]]:
    """The estimators and what is derived from them, by name."""
    found: dict[str, type[Any]] = {}
    todo: list[type[Any]] = Saveable.__subclasses__()
    while todo:
        cls = todo.pop()
        todo.extend(cls.__subclasses__())
        if not cls.__name__.startswith("_"):
            found[cls.__name__] = cls
    return found


def _sklearn_classes() -> dict[str, type[Any]]:
    """Every estimator of scikit-learn, by name."""
    from sklearn.utils import all_estimators

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modules that only this listing imports
        return dict(all_estimators())


REGISTRIES: dict[str, Callable[[], Any]] = {
    "family": families,
    "learner": learners,
    "sklearn": _sklearn_classes,
}
