"""Fitted estimators in folders: plain files, no pickle; loading runs no code from them.

A saved folder holds `setwise.json`, see `setwise.io.description`, and one folder `model-…` with the
model's own files: arrays, each of which is checked before it is used. Of what has no form in JSON
(a function, a torch module) only a description is kept: the loaded model predicts all the same, but
`fit` needs the real thing.

Digests detect damage, not malice: whoever can write a folder can write its digests, and so give you
a wrong model, but no code, no crash, and no more memory taken than the folder holds.

A save writes its files beside the old ones and then replaces `setwise.json` in one step, so that
an interrupted save leaves a whole model, the old one or the new one. There is one writer at a time,
which sweeps what others have left unfinished.
"""

from __future__ import annotations

import inspect
import shutil
import uuid
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError

from setwise._files import beside, locked, sync
from setwise._subclasses import concrete_subclasses
from setwise.distributions import Categorical, Family, parameters
from setwise.errors import in_short
from setwise.frames import Encoded, Encoder
from setwise.io.description import (
    FORMAT,
    NAME,
    Description,
    Learned,
    check_files,
    digest,
    read,
    seal,
)
from setwise.io.encoding import arguments, decode, encode, known
from setwise.learners import Learner, models
from setwise.likelihood import Aggregate, Unknown
from setwise.objective import Intercept, Kind, Unknowns

__all__ = ["Saveable", "check_target", "load", "notes_of", "save"]

LOCK = ".setwise.lock"
OURS = (NAME, f".{NAME}.*.part", LOCK, "model-*")
VALIDATION = ("validation", "leaderboard", "held_out_score", "constant_score", "overlap")
WIDEST = 2**24  # features of a row that is tried
AGAIN = 5  # times that a reader begins anew because a writer was faster


# ---- writing


def save(est: Any, folder: str | Path, notes: dict[str, Any] | None = None) -> None:
    """Writes a fitted estimator into a folder, without pickle; `load` reads it.

    A folder that holds anything but a saved model is refused; an older model in it is replaced,
    at the very end and in one step. `notes`, plain values, are kept beside it: see `notes_of`.
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
    check_target(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / LOCK):
            _write(est, folder, notes or {})
    except BaseException:
        if is_new and not (folder / NAME).exists():
            with suppress(OSError):
                folder.rmdir()
        raise


def _write(est: Any, folder: Path, notes: dict[str, Any]) -> None:
    own = folder / f"model-{uuid.uuid4().hex}"
    try:
        own.mkdir()
        facts, told = est.model_.save(own), est._described(own)
        written = sorted(path for path in own.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): digest(path) for path in written}
        text = seal(_describe(est, own.name, facts, told, files, notes))
        for path in (*written, own, folder):
            sync(path)
        with beside(folder / NAME) as part:
            part.write_bytes(text)
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise
    for pattern in OURS:  # the old model, and what was left where a save was killed
        for path in folder.glob(pattern) if "*" in pattern else ():
            if path != own:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def check_target(folder: Path) -> None:
    """Raises unless the folder is new, empty, or holds nothing but a saved model."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a model is saved into a folder, name another one")
    inside = folder.iterdir() if folder.exists() else ()
    others = sorted(p.name for p in inside if not any(p.match(pattern) for pattern in OURS))
    if others:
        raise ValueError(
            f"{folder} holds other things than a saved model ({', '.join(others[:5])}): name a new "
            f"folder, or an empty one"
        )


def _describe(
    est: Any, own: str, facts: dict[str, Any], told: dict[str, Any], files: dict[str, str],
    notes: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    params = arguments(est)
    labels = params.get("n_classes")
    if isinstance(labels, dict) and labels["kind"] == "unsaved":  # but predictions need them
        params["n_classes"] = encode(est.classes_)
    alignment = est.alignment_
    return {
        "format": FORMAT,
        "sha256": "",
        "setwise": version("setwise"),
        "estimator": type(est).__name__,
        "params": params,
        "family": encode(est.family_),
        "learner": encode(est.learner_),
        "model": {"class": type(est.model_).__name__, "folder": own, "facts": facts},
        "learned": _learned(est.unknowns_),
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
        "notes": notes,
        "files": files,
    }


def _learned(unknowns: Unknowns) -> list[dict[str, Any]]:
    """The learned parameters of aggregates, ready for JSON."""
    out = []
    for name, kind in unknowns.kinds.items():
        try:
            aggregate = encode(kind.aggregate)
        except TypeError as error:
            raise ValueError(f"what was learned of {name} cannot be saved: {error}") from None
        labellers = [[encode(who), weight] for who, weight in kind.labellers.items()]
        unknown = [one._asdict() for one in kind.unknown]
        out.append({"aggregate": aggregate, "unknown": unknown, "labellers": labellers})
    return out


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

    Nothing in the folder is run as code, and every number in it is checked before it is used, so it
    may come from a stranger. A network of your own is saved without its code: give the module
    again, with any weights, as `module`. A folder that is missing, was cut short or altered, or was
    written by a newer version is a ValueError.

    A few models are kept in files whose content cannot be checked: CatBoost's with categories, and
    EM around estimators that are not known here. They are refused unless `trusted` says that
    whoever made the folder is to be trusted.
    """
    folder = Path(folder)
    for left in reversed(range(AGAIN)):
        body = read(folder)
        try:
            check_files(folder, body)
            est = _rebuild(folder, body, module, trusted)
            _try(est, probe=module is None and not trusted)
            return est
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # a library may raise anything about what it cannot read
            if left and _is_replaced(folder, body):
                continue
            whole = isinstance(error, ValueError)
            said = in_short(error if whole else f"{type(error).__name__}: {error}")
            raise ValueError(f"the model in {folder} cannot be loaded: {said}") from error
    raise AssertionError


def notes_of(folder: str | Path) -> dict[str, Any]:
    """What was kept beside a saved model."""
    return read(Path(folder))["notes"]


def _is_replaced(folder: Path, body: Description) -> bool:
    with suppress(ValueError, OSError):
        return read(folder)["model"]["folder"] != body["model"]["folder"]
    return False


def _rebuild(folder: Path, body: Description, module: Any, trusted: bool) -> Any:
    cls = known(body["estimator"], _estimators(), "estimator")
    est = cls(**{name: decode(value, module) for name, value in body["params"].items()})
    est.family_, est.learner_ = decode(body["family"], module), decode(body["learner"], module)
    if not isinstance(est.family_, Family) or not isinstance(est.learner_, Learner):
        raise ValueError("'family' or 'learner' is something else")
    family, intercept = est.family_, body["intercept"]
    if isinstance(family, Categorical) != hasattr(cls, "classes_"):
        raise ValueError(f"{cls.__name__} has no {type(family).__name__} targets")
    # before as many names as it has classes are made
    if isinstance(family, Categorical) and family.n_classes != len(intercept["raw"]):
        raise ValueError("there are other classes than outputs")
    est.unknowns_ = _unknowns(body["learned"], len(family.shared))
    n_shared = len(family.shared) + est.unknowns_.size
    est.shared_ = _vector(body["shared"], n_shared, "shared parameters")
    est.spread_ = _vector(body["spread"], family.n_spread, "parameters of spread")
    est.constant_ = Intercept(
        _vector(intercept["raw"], len(family.outputs), "outputs"),
        _vector(intercept["shared"], n_shared, "shared parameters"),
    )
    model, own = known(body["model"]["class"], models(), "model"), folder / body["model"]["folder"]
    if module is not None and "module" not in inspect.signature(model.load).parameters:
        raise ValueError(f"module= is for networks of your own, but this is a {model.__name__}")
    facts = body["model"]["facts"]
    est.model_ = model.reopen(own, facts, module=module, trusted=trusted)
    est.identifiability_, est.alignment_ = body["identifiability"], body["alignment"]
    est._describe_again(own, body["summary"])
    for name, value in body["validation"].items():
        setattr(est, name + "_", value)
    est.steps_, est.history_ = body["steps"], body["history"]
    columns = body["encoder"]
    encoder = None if columns is None else Encoder.from_facts(columns)
    est._know_columns(encoder, body["n_features_in"])
    return est


def _unknowns(told: list[Learned], n_own: int) -> Unknowns:
    kinds = []
    for one in told:
        aggregate, unknown = decode(one["aggregate"], None), one["unknown"]
        if not isinstance(aggregate, Aggregate) or len(aggregate.learned) != len(unknown):
            raise ValueError("there is nothing to learn of what something was learned of")
        made = tuple(Unknown(**number) for number in unknown)
        kinds.append(Kind(aggregate, made, dict(one["labellers"])))
    return Unknowns(n_own, kinds)


def _vector(values: list[float], length: int, what: str) -> torch.Tensor:
    if len(values) != length:
        raise ValueError(f"there are {len(values)} {what} where the family has {length}")
    return torch.tensor(values, dtype=torch.float64)


def _try(est: Any, probe: bool) -> None:
    """Raises unless the loaded parts fit together and predict finite numbers for a row."""
    n = len(est.family_.outputs)
    alignment, facts = est.alignment_, est.identifiability_
    orders = [*(facts.orders or ()), *([alignment.classes] if alignment else [])]
    if any(order is not None and sorted(order) != list(range(n)) for order in orders):
        raise ValueError("an order of classes is none")
    if any(not 0 <= c < n for group in facts.swaps for c in group):
        raise ValueError("a class is out of range")
    if alignment is not None and not alignment.slope:
        raise ValueError("an alignment has a slope of 0")
    width, encoder = est.n_features_in_, est.encoder_
    if encoder is not None and width != len(encoder.columns):
        raise ValueError("there are other columns than features")
    if not probe or width is None or width > WIDEST:
        return
    row: Any = np.zeros((1, width))
    if encoder is not None:
        fill = [np.nan if column.kind == "category" else column.fill for column in encoder.columns]
        row = Encoded(np.array([fill]), encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = est.predict_dist(row)
    if not all(bool(value.isfinite().all()) for value in parameters(d).values()):
        raise ValueError("its predictions are not finite")


def _estimators() -> dict[str, type[Any]]:
    """The estimators and what is derived from them, by name."""
    import_module("setwise.estimators")  # the library's own, which build upon this module
    found = {cls.__name__: cls for cls in concrete_subclasses(Saveable) if cls is not Saveable}
    return {name: cls for name, cls in found.items() if not name.startswith("_")}
