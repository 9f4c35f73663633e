"""`setwise.json`: what it holds, how it is sealed, and how it is read and checked.

It is an object with

* `format`: the version of this description; another one is refused;
* `sha256`: the digest of this very file with 64 zeros in place of the digest;
* `setwise`: the version that wrote it;
* `estimator`, `params`: the class of the estimator and its constructor's arguments;
* `family`, `learner`: what the arguments meant when the estimator was fitted;
* `model`: the `class` of the model, the `facts` that it needs and the `folder` of its files;
* `encoder`: what the columns of a data frame were (`setwise.Encoder`);
* `learned`: of which aggregates something was learned, and for whom; it comes last in `shared`;
* `shared`, `spread`, `steps`, `intercept`, `identifiability`, `alignment`, `n_features_in`,
  `history`: the fitted attributes of these names;
* `validation`: what held-out sets said;
* `summary`: what `est.summary()` says of the fit, and what `align` is sure of;
* `notes`: what a caller of `save` wants to keep beside the model; the command line its options;
* `files`: the sha256 of every other file.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from setwise._facts import AnyFloat, check_size, checked, read_json
from setwise.identifiability import Alignment, Identifiability

__all__ = ["FORMAT", "NAME", "Description", "check_files", "digest", "read", "seal"]

FORMAT = 3
NAME = "setwise.json"
FOLDER = re.compile(r"model-[0-9a-f]{32}")
DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
BLANK = "0" * 64

Model = TypedDict("Model", {"class": str, "folder": str, "facts": dict[str, Any]})


class Constant(TypedDict):
    """The model without features."""

    raw: list[float]
    shared: list[float]


class Number(TypedDict):
    """A learned parameter of an aggregate."""

    name: str
    start: float
    most: AnyFloat


class Learned(TypedDict):
    """The learned parameters of aggregates that are written alike."""

    aggregate: dict[str, Any]
    unknown: list[Number]
    labellers: list[tuple[str | int | float | bool, float]]


class Validation(TypedDict):
    """What held-out sets said."""

    validation: str | None
    leaderboard: list[dict[str, str | AnyFloat]]
    held_out_score: AnyFloat | None
    constant_score: AnyFloat | None
    overlap: str


class Description(TypedDict):
    """The entries of `setwise.json`; see above."""

    format: int
    sha256: str
    setwise: str
    estimator: str
    params: dict[str, Any]
    family: dict[str, Any]
    learner: dict[str, Any]
    model: Model
    learned: list[Learned]
    shared: list[float]
    spread: list[float]
    steps: int
    intercept: Constant
    identifiability: Identifiability
    alignment: Alignment | None
    n_features_in: int | None
    encoder: dict[str, Any] | None
    history: list[dict[str, AnyFloat]]
    validation: Validation
    summary: dict[str, Any]
    notes: dict[str, Any]
    files: dict[str, str]


def seal(body: dict[str, Any]) -> bytes:
    """The text of a description, with its own digest in it."""
    text = json.dumps({**body, "sha256": BLANK}, indent=1, default=_plain).encode() + b"\n"
    try:
        check_size(text)
    except ValueError as error:
        raise ValueError(f"the model cannot be saved, it could not be read: {error}") from None
    return text.replace(BLANK.encode(), hashlib.sha256(text).hexdigest().encode(), 1)


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as JSON values."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not fit for JSON: {value!r}"[:500])


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: Path) -> Description:
    """The description in a folder, once every entry of it is known to be of the right type."""
    path = folder / NAME
    if not path.is_file():
        missing = f"has no {NAME}" if folder.is_dir() else "is not a folder"
        raise ValueError(
            f"{folder} {missing}: give the folder that est.save(folder) wrote a fitted model into"
        )
    if path.is_symlink():
        raise ValueError(f"{path} is a link to a file elsewhere: copy the whole folder again")
    damaged = f"{path} was cut short or altered: save the model again, or copy the folder again"
    try:
        text, body = read_json(path)
    except ValueError as error:
        raise ValueError(f"{damaged} ({error})") from None
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
    blank = text[: found.start(1)] + BLANK.encode() + text[found.end(1) :]
    if hashlib.sha256(blank).hexdigest().encode() != found[1]:
        raise ValueError(f"{damaged} (its digest is another)")
    made: Description = checked(body, Description, str(path))
    if not FOLDER.fullmatch(made["model"]["folder"]):
        raise ValueError(f"{path} names {made['model']['folder']!r}, no folder of a model")
    return made


def check_files(folder: Path, body: Description) -> None:
    """Raises unless the model's folder holds the files of the description, and nothing else."""
    own = folder / body["model"]["folder"]
    there = [path for path in own.rglob("*") if path.is_symlink() or not path.is_dir()]
    if own.is_symlink() or any(path.is_symlink() or not path.is_file() for path in there):
        raise ValueError(f"{own} holds a link, or what is no file: copy the whole folder again")
    found = {path.relative_to(folder).as_posix(): path for path in there}
    for name in sorted(body["files"].keys() | found.keys()):
        path = folder / name
        if name not in body["files"]:
            raise ValueError(f"{path} is not one of the model's files: save the model again")
        if name not in found:
            raise ValueError(f"{path} is missing: copy the whole folder again")
        if digest(path) != body["files"][name]:
            raise ValueError(f"{path} was cut short or altered: copy the whole folder again")
