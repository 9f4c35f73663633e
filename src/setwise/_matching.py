"""Matches y to sets by name; one policy covers everything that does not match.

What does not match is left out and counted: rows without a group, groups without rows, groups
without y, repeated lines. Two different y for one group are an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.errors import absent

__all__ = [
    "NO_Y", "SHORT", "UNKNOWN_ID", "Mismatch", "Unmatched", "match_groups", "said", "settle",
]  # fmt: skip

Ints = NDArray[np.int64]

# What may be left out, and whether a y that was seen is lost with it.
WITHOUT_GROUP = "rows without a group"
WITHOUT_ROWS = "groups without rows"
WITHOUT_Y = "groups without y"
NAMELESS = "y without a group"
AGAIN = "groups that are there twice"
UNKNOWN_ID = "sets with an id of no row"
SHORT = "sets with an empty id"
NO_Y = "sets without y"
ONE = {
    WITHOUT_GROUP: "row without a group", WITHOUT_ROWS: "group without rows",
    WITHOUT_Y: "group without y", NAMELESS: "y without a group", AGAIN: "group that is there twice",
    UNKNOWN_ID: "set with an id of no row", SHORT: "set with an empty id", NO_Y: "set without y",
}  # fmt: skip
LOSES = (WITHOUT_ROWS, NAMELESS, AGAIN, UNKNOWN_ID, SHORT)


class Mismatch(ValueError):
    """An entry of y, or a row, that matches nothing: `entry` or `row` is its number."""

    def __init__(self, said: str, entry: int | None = None, row: int | None = None) -> None:
        super().__init__(said)
        self.entry, self.row = entry, row


class Unmatched:
    """What does not match: what it is, how often, and the first of each kind."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.examples: dict[str, Any] = {}
        self.first: Mismatch | None = None

    def add(
        self, what: str, example: Any, *, entry: int | None = None, row: int | None = None
    ) -> None:
        """One more."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.examples.setdefault(what, example)
        if self.first is None:
            self.first = Mismatch(f"the first is {example!r}, a {ONE[what]}", entry, row)


def match_groups(
    rows: Sequence[Any],
    keys: Sequence[Any],
    same: Callable[[int, int], bool],
    known: NDArray[np.bool_],
) -> tuple[Ints, Ints, Unmatched]:
    """For each row the set it is in, −1 for none; for each set its entry of y; what is left out.

    `rows` are the groups of rows, `keys` those of the entries of y, of which some are not `known`.
    `same(i, j)` tells whether two entries of y are equal. Sets come in the order of their first
    rows.
    """
    entry: dict[Any, int] = {}
    left = Unmatched()
    for i, name in enumerate(keys):
        if absent(name):
            left.add(NAMELESS, name, entry=i)
        elif (first := entry.setdefault(name, i)) != i:
            if known[first] and known[i] and not same(first, i):
                raise Mismatch(f"y has two different entries for group {name!r}", entry=i)
            entry[name] = first if known[first] else i
            left.add(AGAIN, name, entry=i)
    number: dict[Any, int] = {}
    which = np.full(len(rows), -1, np.int64)
    unseen: set[Any] = set()
    for i, name in enumerate(rows):
        if absent(name):
            left.add(WITHOUT_GROUP, name, row=i)
        elif (at := entry.get(name, -1)) >= 0 and known[at]:
            which[i] = number.setdefault(name, len(number))
        elif name not in unseen:
            unseen.add(name)
            left.add(WITHOUT_Y, name, row=i)
    for name, i in entry.items():
        if name not in number and known[i]:
            left.add(WITHOUT_ROWS, name, entry=i)
    if not number:
        raise Mismatch(
            f"no group of rows has a y: groups of rows look like {_some(rows)}, those of y like "
            f"{_some(keys)}"
        )
    return which, np.array([entry[name] for name in number], np.int64), left


def settle(left: Unmatched, missing: str | None) -> dict[str, int]:
    """Applies the rule `missing`: "drop", "error", or None, which drops and warns of lost y."""
    if missing not in (None, "drop", "error"):
        raise ValueError(f'missing is "drop" or "error", got {missing!r}')
    if missing == "error" and left.first is not None:
        raise Mismatch(
            f"{said(left.counts)}; {left.first}. Correct them, or leave them out with "
            f'missing="drop"',
            left.first.entry,
            left.first.row,
        )
    lost = {what: n for what, n in left.counts.items() if what in LOSES}
    if missing is None and lost:
        warnings.warn(
            f"left out: {said(lost)}, such as {left.examples[next(iter(lost))]!r}; give "
            f'missing="drop" where that is fine, missing="error" where nothing may be lost',
            UserWarning,
            stacklevel=4,
        )
    return left.counts


def said(counts: dict[str, int]) -> str:
    """What was left out, in words.

    >>> said({"rows without a group": 3, "groups without y": 1})
    '3 rows without a group, 1 group without y'
    """
    words = ((n, ONE.get(what, what) if n == 1 else what) for what, n in counts.items())
    return ", ".join(f"{n:,} {what}" for n, what in words)


def _some(names: Sequence[Any]) -> str:
    known = dict.fromkeys(repr(name) for name in names if not absent(name))
    return ", ".join([*known][:3]) or "nothing"
