"""Checks of values from a file: an error names the first one that has an unexpected type."""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

__all__ = ["AnyFloat", "check_size", "checked", "read_json"]

AnyFloat = Annotated[float, "any"]  # NaN and infinity too
LARGEST = 2**25  # bytes of JSON that are read
DEEPEST = 100  # levels of it, which whatever walks through them can afford
PARTS = 2**21  # lists and objects in it, each of which takes more memory than its letters
WORDS = {
    bool: "true or false", int: "a whole number", float: "a finite number", str: "a text",
    NoneType: "null", list: "a list", tuple: "a list", Sequence: "a list", dict: "an object",
}  # fmt: skip


def read_json(path: Path) -> tuple[bytes, Any]:
    """The text of a JSON file and what it says; a ValueError where it is damaged or too large."""
    with path.open("rb") as file:
        text = file.read(LARGEST + 1)
    check_size(text)
    try:
        told = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    level: list[Any] = [[told]]
    for _ in range(DEEPEST + 1):
        level = [
            v.values() if isinstance(v, dict) else v
            for inside in level
            for v in inside
            if isinstance(v, dict | list)
        ]
        if not level:
            return text, told
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested too deeply, more than {DEEPEST} levels")


def check_size(text: bytes) -> None:
    """Raises where JSON is so large, or in so many parts, that it would not be read."""
    if len(text) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    if text.count(b"[") + text.count(b"{") > PARTS:
        raise ValueError(f"it has more than {PARTS} lists and objects")


def checked(value: Any, kind: Any, what: str) -> Any:
    """The value, converted to the type `kind`; a ValueError names the part that does not fit.

    Dataclasses, `NamedTuple`s and `TypedDict`s are JSON objects with exactly their fields; the
    first two are constructed from them. Numbers are finite unless `kind` is `AnyFloat`.

    >>> checked({"x": [1, 2]}, dict[str, tuple[float, ...]], "facts")
    {'x': (1.0, 2.0)}
    >>> checked([1, None], list[int], "sizes")
    Traceback (most recent call last):
    ...
    ValueError: sizes[1] is None where a whole number is expected
    """
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in inside:
            return None
        others = [one for one in inside if one is not NoneType]
        for one in others:
            try:
                return checked(value, one, what)
            except ValueError:
                if len(others) == 1:
                    raise
        raise _other(value, kind, what)
    if origin is Literal:
        if any(type(value) is type(one) and value == one for one in inside):
            return value
        raise ValueError(f"{what} is {_short(value)}, not one of {', '.join(map(repr, inside))}")
    if kind is float or origin is Annotated:
        return _number(value, kind, what)
    if origin in (bool, int, str, NoneType):
        if type(value) is not origin or (origin is int and abs(value) >= 2**63):
            raise _other(value, kind, what)
        return value
    if origin in (list, tuple, Sequence):
        if type(value) is not list:
            raise _other(value, kind, what)
        if origin is tuple and inside[-1] is not ...:
            if len(value) != len(inside):
                raise _other(value, kind, what)
            parts = enumerate(zip(value, inside, strict=True))
            return tuple(checked(v, one, f"{what}[{i}]") for i, (v, one) in parts)
        fast = inside[0] is str and all(type(v) is str for v in value)
        made = (
            value if fast else [checked(v, inside[0], f"{what}[{i}]") for i, v in enumerate(value)]
        )
        return made if origin is list else tuple(made)
    if type(value) is not dict:
        raise _other(value, dict, what)
    if origin is dict:
        return {name: checked(v, inside[1], f"{what}.{name[:40]}") for name, v in value.items()}
    hints = _fields(origin)
    if value.keys() != hints.keys():
        wrong = ", ".join(islice(sorted(value.keys() ^ hints.keys()), 3))[:80]
        raise ValueError(f"{what} has not the entries that are expected: see {wrong}")
    found = {name: checked(value[name], hints[name], f"{what}.{name}") for name in hints}
    return found if typing.is_typeddict(origin) else origin(**found)


def _fields(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    if is_dataclass(cls):
        return {name: hints[name] for name in cls.__dataclass_fields__ if name in hints}
    return hints


def _number(value: Any, kind: Any, what: str) -> float:
    if type(value) in (int, float):
        number = float(value) if abs(value) < 1e308 or type(value) is float else math.inf
        if kind is not float or math.isfinite(number):
            return number
    raise _other(value, float, what)


def _other(value: Any, kind: Any, what: str) -> ValueError:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]
    words = [WORDS.get(get_origin(one) or one, "an object") for one in kinds]
    return ValueError(f"{what} is {_short(value)} where {' or '.join(words)} is expected")


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = repr(value) if not isinstance(value, int) or abs(value) < 1e30 else "a huge number"
    return text if len(text) <= 40 else text[:37] + "…"
