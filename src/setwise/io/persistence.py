"""Fitted estimators in folders: plain files, no pickle; loading runs no code from them.

A saved folder holds `setwise.json` and one folder `model-…` with the model's own files (native
model files of the boosting libraries, safetensors). `setwise.json` is an object with

* `format`: the version of this description; another one is refused;
* `sha256`: the digest of this very file with 64 zeros in place of the digest;
* `setwise`: the version that wrote it;
* `estimator`, `params`: the class of the estimator and its constructor's arguments;
* `family`, `learner`: what the arguments meant when the estimator was fitted;
* `model`: the `class` of the model, the `facts` that it needs and the `folder` of its files;
* `encoder`: what the columns of a data frame were (`setwise.Encoder`);
* `shared`, `spread`, `steps`, `intercept`, `identifiability`, `alignment`, `n_features_in`,
  `history`: the fitted attributes of these names;
* `summary`: what `est.summary()` says of the fit, and what `align` is sure of;
* `files`: the sha256 of every other file.

`setwise.io.encoding` says how arguments are written. Of what has no form in JSON (a function, a
torch module) only a description is kept: the loaded model predicts all the same, but `fit` needs
the real thing.

Digests detect damage, not malice: whoever can write a folder can write its digests, and so give you
a wrong model, but no code. (The boosting libraries read their model files with their own parsers.)

A save writes its files beside the old ones and then replaces `setwise.json` in one step, so that
an interrupted save leaves a whole model, the old one or the new one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import shutil
import uuid
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError

from setwise._files import beside
from setwise._subclasses import concrete_subclasses
from setwise.distributions import Family
from setwise.frames import Encoder
from setwise.identifiability import Alignment, Identifiability
from setwise.io.encoding import arguments, decode, encode, known
from setwise.learners import Learner, models
from setwise.objective import Intercept

__all__ = ["Saveable", "load", "save"]

FORMAT = 2
NAME = "setwise.json"
OURS = re.compile(r"setwise\.json|\.setwise\.json\.\w+\.part|model-[0-9a-f]{32}")
DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
VALIDATION = ("validation", "leaderboard", "held_out_score", "constant_score", "overlap")
FIELDS: dict[str, type | tuple[type, ...]] = {
    "setwise": str, "estimator": str, "params": dict, "family": dict, "learner": dict,
    "model": dict, "shared": list, "spread": list, "steps": int, "intercept": dict,
    "identifiability": dict, "alignment": (dict, type(None)), "n_features_in": (int, type(None)),
    "encoder": (dict, type(None)), "history": list,
    "validation": dict, "summary": dict, "files": dict,
}  # fmt: skip


# ---- writing


def save(est: Any, folder: str | Path) -> None:
    """Writes a fitted estimator into a folder, without pickle; `load` reads it.

    A folder that holds anything but a saved model is refused; an older model in it is replaced,
    at the very end and in one step.
    """
    folder = Path(folder)
    classes = _estimators()
    if type(est).__name__ not in classes:
        raise TypeError(
            f"save is for {' and '.join(sorted(classes))}, got {type(est).__name__}: of a Pipeline "
            f"save the last step, or keep the whole with joblib"
        )
    if not hasattr(est, "model_"):
        raise NotFittedError(
            f"this {type(est).__name__} is not fitted yet: call fit(X, observations) before save"
        )
    _check_target(folder)
    is_new = not folder.exists()
    own = folder / f"model-{uuid.uuid4().hex}"
    try:
        own.mkdir(parents=True)
        facts, told = est.model_.save(own), est._described(own)
        written = sorted(path for path in own.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): _digest(path) for path in written}
        with beside(folder / NAME) as part:
            part.write_bytes(_seal(_describe(est, own.name, facts, told, files)))
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
    for old in folder.glob("model-*"):
        if old != own:
            shutil.rmtree(old, ignore_errors=True)


def _check_target(folder: Path) -> None:
    """Raises unless the folder is new, empty, or holds nothing but a saved model."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file: a model is saved into a folder, name another one")
    inside = folder.iterdir() if folder.exists() else ()
    others = sorted(path.name for path in inside if not OURS.fullmatch(path.name))
    if others:
        raise ValueError(
            f"{folder} holds other things than a saved model ({', '.join(others[:5])}): name a new "
            f"folder, or an empty one"
        )


def _describe(
    est: Any, own: str, facts: dict[str, Any], told: dict[str, Any], files: dict[str, str]
) -> dict[str, Any]:
    params = arguments(est)
    labels = params.get("n_classes")
    if isinstance(labels, dict) and labels["kind"] == "unsaved":  # but predictions need them
        params["n_classes"] = encode(est.classes_)
    alignment = est.alignment_
    return {
        "format": FORMAT,
        "sha256": "0" * 64,
        "setwise": version("setwise"),
        "estimator": type(est).__name__,
        "params": params,
        "family": encode(est.family_),
        "learner": encode(est.learner_),
        "model": {"class": type(est.model_).__name__, "folder": own, "facts": facts},
        "shared": est.shared_.tolist(),
        "spread": est.spread_.tolist(),
        "steps": est.steps_,
        "intercept": {name: part.tolist() for name, part in est.constant_._asdict().items()},
        "identifiability": est.identifiability_.facts(),
        "alignment": None if alignment is None else alignment.facts(),
        "n_features_in": est.n_features_in_,
        "encoder": None if est.encoder_ is None else est.encoder_.facts(),
        "history": est.history_,
        "validation": {name: getattr(est, name + "_") for name in VALIDATION},
        "summary": told,
        "files": files,
    }


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as JSON has them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not fit for JSON: {value!r}"[:500])


def _seal(body: dict[str, Any]) -> bytes:
    """The text of a description, with its own digest in it."""
    text = json.dumps(body, indent=1, default=_plain).encode() + b"\n"
    digest = hashlib.sha256(text).hexdigest()
    return text.replace(b"0" * 64, digest.encode(), 1)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- reading


class Saveable:
    """A base class of estimators that `load` knows."""

    def save(self, folder: str | Path) -> None:
        """Writes the fitted estimator into a folder, without pickle; `setwise.load` reads it."""
        save(self, Path(folder))

    def export_onnx(self, path: str | Path, X: Any = None) -> Path:
        """Writes the fitted model as ONNX, for use without this library; needs `setwise[onnx]`.

        The graph takes `X`, float64 of shape (rows, features), and gives `raw`, the raw parameters
        of each row, and `mean` (what `predict` gives) or the class `probabilities`. Linear models,
        boosted trees on numbers, networks and averages of them can be exported. A module that takes
        rows of another shape needs some rows `X` to see it.
        """
        from setwise.io.onnx import export_onnx

        return export_onnx(self, path, X)


def load(folder: str | Path, *, module: Any = None, trusted: bool = False) -> Any:
    """The fitted estimator that `est.save(folder)` wrote; it predicts exactly the same.

    Nothing in the folder is run as code, so it may come from a stranger. A network of your own is
    saved without its code: give the module again, with any weights, as `module`. A folder that
    is missing, was cut short or altered, or was written by a newer version is a ValueError.

    A few models are kept in files whose content cannot be checked: CatBoost's with categories.
    They are refused unless `trusted` says that whoever made the folder is to be trusted.
    """
    folder = Path(folder)
    body = _read(folder)
    _check_files(folder, body["files"])
    try:
        return _rebuild(folder, body, module, trusted)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # a library may raise anything about what it cannot read
        said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"the model in {folder} cannot be loaded: {said}") from error


def _read(folder: Path) -> dict[str, Any]:
    """The description, once checked by itself."""
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
        older = body["format"] < FORMAT
        raise ValueError(
            f"{path} is of format {body['format']}, written by setwise {body.get('setwise')}; this "
            f"version reads format {FORMAT}: "
            + ("fit and save the model again" if older else "update setwise")
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


def _rebuild(folder: Path, body: dict[str, Any], module: Any, trusted: bool) -> Any:
    cls = known(body["estimator"], _estimators(), "estimator")
    est = cls(**{name: decode(value, module) for name, value in body["params"].items()})
    est.family_, est.learner_ = decode(body["family"], module), decode(body["learner"], module)
    if not isinstance(est.family_, Family) or not isinstance(est.learner_, Learner):
        raise ValueError("'family' or 'learner' is something else")
    family, intercept = est.family_, body["intercept"]
    est.shared_ = _vector(body["shared"], len(family.shared), "shared parameters")
    est.spread_ = _vector(body["spread"], family.n_spread, "parameters of spread")
    est.constant_ = Intercept(
        _vector(intercept["raw"], len(family.outputs), "outputs"),
        _vector(intercept["shared"], len(family.shared), "shared parameters"),
    )
    model, own = known(body["model"]["class"], models(), "model"), body["model"]["folder"]
    if not OURS.fullmatch(own):
        raise ValueError(f"{own!r} is no folder of a model")
    if module is not None and "module" not in inspect.signature(model.load).parameters:
        raise ValueError(f"module= is for networks of your own, but this is a {model.__name__}")
    facts = body["model"]["facts"]
    est.model_ = model.reopen(folder / own, facts, module=module, trusted=trusted)
    est.identifiability_ = Identifiability.from_facts(body["identifiability"])
    alignment = body["alignment"]
    est.alignment_ = None if alignment is None else Alignment.from_facts(alignment)
    est._describe_again(folder / own, body["summary"])
    for name in VALIDATION:
        setattr(est, name + "_", body["validation"][name])
    for name in ("steps", "history"):
        setattr(est, f"{name}_", body[name])
    columns = body["encoder"]
    encoder = None if columns is None else Encoder.from_facts(columns)
    est._know_columns(encoder, body["n_features_in"])
    return est


def _vector(values: Any, length: int, what: str) -> torch.Tensor:
    numbers = [float(x) for x in values]
    if len(numbers) != length:
        raise ValueError(f"there are {len(numbers)} {what} where the family has {length}")
    return torch.tensor(numbers, dtype=torch.float64)


def _estimators() -> dict[str, type[Any]]:
    """The estimators and what is derived from them, by name."""
    import_module("setwise.estimators")  # the library's own, which build upon this module
    found = {cls.__name__: cls for cls in concrete_subclasses(Saveable) if cls is not Saveable}
    return {name: cls for name, cls in found.items() if not name.startswith("_")}
