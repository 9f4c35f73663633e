"""Errors that carry data beside their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["SetError", "absent", "check_each", "in_short"]


class SetError(ValueError):
    """An error about one set: `set` is its number, `said` says what is wrong.

    `of` names the observations that hold the set, where that is unclear.

    >>> error = SetError(3, "has y = nan: Mean() needs finite numbers")
    >>> print(error)
    set 3 has y = nan: Mean() needs finite numbers
    >>> error.set
    3
    """

    def __init__(self, set: int, said: str, of: str = "") -> None:
        super().__init__(set, said, of)
        self.set, self.said, self.of = int(set), said, of

    def __str__(self) -> str:
        return f"set {self.set} {f'of {self.of} ' if self.of else ''}{self.said}"


def in_short(text: Any, most: int = 400) -> str:
    """A text on one line, cut where it is longer.

    >>> in_short("one" + chr(10) + "line")
    'one line'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def check_each(good: Any, said: Callable[[Any], str], set_ids: Any = None) -> None:
    """Raises a `SetError` about the first entry of the array `good` that is False.

    The first axis counts sets, or members whose sets are `set_ids`; `said` gets the entry's index.
    """
    if not good.all():
        at = tuple(int(axis[0]) for axis in (~good).nonzero())
        raise SetError(at[0] if set_ids is None else set_ids[at[0]], said(at))


def absent(value: Any) -> bool:
    """Whether a value is missing: None, NaN, or the marker of pandas."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA is neither equal to itself nor not
        return True
