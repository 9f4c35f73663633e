"""Damage to saved folders, as a stranger could do it who seals them again."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from setwise.learners.network.checkpoint import _sum

__all__ = ["damage", "reseal"]

NAME = "setwise.json"
Rng = np.random.Generator
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 10**6, 30_000_000, 2**31 - 1, 2**31, 10**9, 2**63 - 1,
    2**63, 10**18, -(10**18), 10**400, 0.0, -0.0, 0.5, 1e-320, 1e-300, 1e30, 1e39, 1e150, 1e308,
    -1e308, math.nan, math.inf, -math.inf, "", "x", "nan", "é" * 500, "../../x", "/etc/passwd",
    "S2000000000", "<U500000000", [], {}, [None], [math.nan], [0] * 500, [1e308, -1e308], {"a": 1},
    [[]], DEEP, "Categorical", "LinearModel", "EMModel", "EnsembleModel", "Linear", "Popen",
    {"kind": "array", "dtype": "<f8", "shape": [10**9], "items": []},
    {"kind": "array", "dtype": "O", "shape": [1], "items": [{"kind": "tuple", "items": []}]},
    {"kind": "family", "class": "Categorical", "params": {"n_classes": 10**9}},
    {"kind": "learner", "class": "Network", "params": {"hidden": [20000, 20000]}},
    {"kind": "sklearn", "class": "SVC", "params": {}}, {"kind": "unsaved", "what": "x"},
    {"array": "a0"}, {"class": "SVR", "state": {}}, {"list": []}, {"items": [], "shape": [0]},
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 127, 255, 2**15, 2**31 - 1, -(2**31), 2**62, 1e-320, 1e30, 1e38, 1e39,
           1e150, 1e300, -1e300, 1e308, math.nan, math.inf, -math.inf, 0.5, 1e9]  # fmt: skip


def damage(folder: Path, others: list[Path], rng: Rng) -> str:
    """Damages a folder in one way or several, and seals it again; says how."""
    said = []
    for _ in range(1 + int(rng.random() < 0.25) + int(rng.random() < 0.1)):
        kinds: list[tuple[float, Callable[..., str]]] = [
            (0.45, _description), (0.35, _arrays), (0.08, _bytes), (0.07, _graft), (0.05, _files),
        ]  # fmt: skip
        if not (folder / NAME).is_file() or (folder / NAME).is_symlink():
            break
        chances, ways = zip(*kinds, strict=True)
        way = ways[rng.choice(len(ways), p=chances)]
        try:
            said.append(f"{way.__name__[1:]}: {way(folder, others, rng)}")
        except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            said.append(f"{way.__name__[1:]}: not done ({type(error).__name__})")
    reseal(folder)
    return "; ".join(said)[:300]


def reseal(folder: Path) -> None:
    """Writes the digests that belong to the files as they are."""
    path = folder / NAME
    if not path.is_file() or path.is_symlink():
        return
    for file in _own(folder, "*.safetensors"):
        with suppress(Exception):  # a file so damaged that no sum of it can be had
            _resum(file)
    try:
        body = json.loads(path.read_bytes())
        if isinstance(body.get("files"), dict):
            for name in body["files"]:
                file = folder / name
                if file.is_file() and not name.startswith(("/", "..")):
                    body["files"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
        body["sha256"] = "0" * 64
        text = json.dumps(body, indent=1).encode()
    except (ValueError, AttributeError, TypeError, OSError, RecursionError):
        text = re.sub(
            rb'"sha256": "\w*"', b'"sha256": "' + b"0" * 64 + b'"', path.read_bytes(), count=1
        )
    digest = hashlib.sha256(text).hexdigest().encode()
    path.write_bytes(text.replace(b"0" * 64, digest, 1))


def _resum(path: Path) -> None:
    """Writes the sum of its content that a network's file keeps in its header."""
    header, data = _read(path)
    told = header["__metadata__"]
    if "sum" in told:
        told["sum"] = _sum(load_file(path), told["facts"])
        _write(path, header, data)


# ---- the description


def _description(folder: Path, others: list[Path], rng: Rng) -> str:
    path = folder / NAME
    body = json.loads(path.read_bytes())
    places = list(_places(body))
    inner = [place for place in places if place[0][:1] not in (("sha256",), ("files",))]
    deep = [place for place in inner if place[0][:1] in (("model",), ("encoder",), ("family",))]
    chosen = deep if deep and rng.random() < 0.5 else places if rng.random() < 0.05 else inner
    trail, holder, key = chosen[rng.integers(len(chosen))]
    value, how = holder[key], int(rng.integers(8))
    if how == 0:
        del holder[key]
        said = "removed"
    elif how == 1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
        said = "renamed"
    elif how == 2:
        _, other, at = places[rng.integers(len(places))]
        holder[key], said = other[at], "a copy of another"
    elif how == 3 and isinstance(value, list):
        changes = ([*value, *value], value[:-1], [value] * 3, value[::-1], value * 50)
        holder[key], said = changes[rng.integers(5)], "another list"
    elif how == 4 and isinstance(value, int | float) and not isinstance(value, bool):
        changes = (value + 1, value - 1, -value, value * 1000, float(value), str(value), value // 2)
        holder[key] = changes[rng.integers(7)]
        said = f"{value} as {holder[key]}"
    else:
        holder[key] = VALUES[rng.integers(len(VALUES))]
        said = repr(holder[key])[:60]
    path.write_text(json.dumps(body, indent=1))
    return f"{'.'.join(map(str, trail))[:80]} {said}"


def _places(body: Any) -> Any:
    """Every entry of a JSON value: how it is reached, what holds it, and by which key."""
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), body)]
    while waiting:
        trail, holder = waiting.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in list(pairs):
            yield (*trail, key), holder, key
            if isinstance(value, dict | list) and len(trail) < 30:
                waiting.append(((*trail, key), value))


# ---- arrays


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    text = path.read_bytes()
    (length,) = struct.unpack("<Q", text[:8])
    return json.loads(text[8 : 8 + length]), text[8 + length :]


def _write(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _packed(arrays: dict[str, Any], kinds: dict[str, str], path: Path, metadata: Any) -> None:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, array in arrays.items():
        part = np.ascontiguousarray(array).tobytes()
        ends = [len(data), len(data) + len(part)]
        header[name] = {"dtype": kinds[name], "shape": list(array.shape), "data_offsets": ends}
        data += part
    _write(path, header, data)


KINDS = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1", "U32": "<u4",
         "BOOL": "?", "I8": "i1", "U16": "<u2", "I16": "<i2", "U64": "<u8"}  # fmt: skip


def _own(folder: Path, pattern: str) -> list[Path]:
    """Files of the folder itself: who writes to a link may write to a file of the machine."""
    return [p for p in sorted(folder.rglob(pattern)) if p.is_file() and not p.is_symlink()]


def _arrays(folder: Path, others: list[Path], rng: Rng) -> str:
    paths = _own(folder, "*.safetensors")
    path = paths[rng.integers(len(paths))]
    header, data = _read(path)
    metadata = header.pop("__metadata__", None)
    kinds = {name: told["dtype"] for name, told in header.items()}
    arrays = {
        name: np.frombuffer(data[slice(*told["data_offsets"])], KINDS[told["dtype"]]).reshape(
            told["shape"]
        )
        for name, told in header.items()
    }
    name = list(arrays)[rng.integers(len(arrays))]
    array, how = arrays[name].copy(), int(rng.integers(12))
    if how <= 4 and array.size:
        flat = array.reshape(-1)
        for at in rng.integers(array.size, size=1 + int(rng.integers(3))):
            number = NUMBERS[rng.integers(len(NUMBERS))]
            with np.errstate(all="ignore"):
                if array.dtype.kind == "f":
                    flat[at] = number
                elif array.dtype.kind == "b":
                    flat[at] = ~flat[at]
                elif rng.random() < 0.5:
                    flat[at] += np.array(1 if rng.random() < 0.5 else 255).astype(array.dtype)
                else:
                    flat[at] = np.array(number).astype(array.dtype)
        said = f"some of {name} is now {flat[at]}"
    elif how == 5:
        array = array[:-1] if array.ndim and len(array) else array
        said = f"{name} is cut"
    elif how == 6:
        array = np.concatenate([array, array]) if array.ndim else array
        said = f"{name} is doubled"
    elif how == 7:
        array, said = array.reshape(-1)[::-1].reshape(array.shape), f"{name} is turned round"
    elif how == 8:
        kinds[name] = list(KINDS)[rng.integers(len(KINDS))]
        array, said = array.astype(KINDS[kinds[name]]), f"{name} is of {kinds[name]}"
    elif how == 9:
        del arrays[name], kinds[name]
        _packed(arrays, kinds, path, metadata)
        return f"{name} is missing"
    elif how == 10:
        array, said = array[:0] if array.ndim else array, f"{name} is empty"
    else:
        array, said = array.T if rng.random() < 0.5 else array[None], f"{name} is of other shape"
    arrays[name] = array
    if rng.random() < 0.1:  # a header that tells of more than there is
        header[name]["shape"] = [int(10 ** rng.integers(1, 19))]
        _write(path, header, data)
        return f"{name} is said to be {header[name]['shape']}"
    _packed(arrays, kinds, path, metadata)
    return said


# ---- files


def _bytes(folder: Path, others: list[Path], rng: Rng) -> str:
    paths = _own(folder, "*")
    path = paths[rng.integers(len(paths))]
    text = bytearray(path.read_bytes())
    how, at = int(rng.integers(4)), int(rng.integers(max(1, min(len(text), 4000))))
    if how == 0:
        text = text[:at]
    elif how == 1:
        text[at] ^= 1 << int(rng.integers(8))
    elif how == 2:
        text[at:at] = rng.bytes(int(rng.integers(1, 9)))
    else:
        text[:8] = struct.pack("<Q", int(rng.integers(2**62)))
    path.write_bytes(bytes(text))
    return f"{path.name}, {('cut', 'flipped', 'inserted', 'header')[how]} at {at}"


def _graft(folder: Path, others: list[Path], rng: Rng) -> str:
    """A part of another model in the place of its own."""
    other = others[rng.integers(len(others))]
    if rng.random() < 0.5:
        mine, theirs = (_own(f, "*.safetensors") for f in (folder, other))
        mine[rng.integers(len(mine))].write_bytes(theirs[rng.integers(len(theirs))].read_bytes())
        return f"arrays of {other.name}"
    body, second = (json.loads((f / NAME).read_bytes()) for f in (folder, other))
    keys = sorted(body.keys() - {"sha256", "files", "format"})
    key = keys[rng.integers(len(keys))]
    if key == "model":
        second["model"]["folder"] = body["model"]["folder"]
    body[key] = second[key]
    (folder / NAME).write_text(json.dumps(body, indent=1))
    return f"{key} of {other.name}"


def _files(folder: Path, others: list[Path], rng: Rng) -> str:
    paths = _own(folder, "*")
    path, how = paths[rng.integers(len(paths))], int(rng.integers(6))
    if how == 5:
        body = json.loads((folder / NAME).read_bytes())
        body["files"] = {}
        (folder / NAME).write_text(json.dumps(body, indent=1))
        return "no files"
    path.unlink()
    if how == 1:
        path.symlink_to("/etc/passwd")
    elif how == 2:
        path.symlink_to(others[rng.integers(len(others))] / NAME)
    elif how == 3:
        path.mkdir()
    elif how == 4:
        os.mkfifo(path)
    return f"{path.name} is {('gone', 'a link', 'a link', 'a folder', 'a pipe')[how]}"
