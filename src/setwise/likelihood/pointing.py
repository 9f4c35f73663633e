"""y that points at a member: by its id, or by the name of the column that it stands in.

The same text or number may also be a word or a number with a meaning of its own. Where that makes
a difference, it is an error that says how to be clear.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from setwise.errors import SetError
from setwise.likelihood.outcome import Outcome
from setwise.likelihood.texts import ORDINALS, TIES, as_number

__all__ = ["pointed"]

Lines = Sequence[Sequence[Any]]


def pointed(
    who: object,
    outcome: Outcome,
    values: Sequence[Any],
    lines: Lines,
    columns: Sequence[str],
    ids: Container[Any],
) -> list[Any] | None:
    """y with numbers where it points at members of its line; None where it does not mean to."""
    places = [_place(v, line, columns) for v, line in zip(values, lines, strict=True)]
    found = [None if at is None else outcome.points_at(at) for at in places]
    out = [v if number is None else number for v, number in zip(values, found, strict=True)]
    lost = [i for i, v in enumerate(values) if found[i] is None and not _is_tie(v)]
    odd = [i for i, v in enumerate(values) if not _is_meant(v, outcome, len(lines[i]))]
    if not odd:  # each has a meaning as a number
        other = [i for i, v in enumerate(values) if as_number(v) != out[i]]
        if other and not lost:
            raise _either(other[0], outcome, values, lines)
        return None
    if lost and not _look_like_ids(values, lines, ids):
        return None
    if lost:
        neither = sorted({*lost} & {*odd})
        raise _nobody((neither or lost)[0], outcome, values, lines)
    return out


def _is_meant(value: Any, outcome: Outcome, size: int) -> bool:
    """Whether a value is a number that y may be for sets of this size."""
    known = range(size) if outcome.values is None else outcome.values
    return as_number(value) in {*known, 0.5}


def _place(value: Any, line: Sequence[Any], columns: Sequence[str]) -> int | None:
    """Which member of the line a value names."""
    if isinstance(value, bool):
        return None
    if value in line:
        return line.index(value)
    return columns.index(value) if value in columns else None


def _is_tie(value: Any) -> bool:
    return isinstance(value, str) and value.strip().casefold() in TIES


def _look_like_ids(values: Sequence[Any], lines: Lines, ids: Container[Any]) -> bool:
    """Whether one of them is an id in its line, or all are ids of rows."""
    named = [(v, line) for v, line in zip(values, lines, strict=True) if not _is_tie(v)]
    return any(v in line for v, line in named) or all(v in ids for v, _ in named)


def _words(outcome: Outcome) -> str:
    pairs = zip(ORDINALS, outcome.members, strict=False)
    words = [word for word, number in pairs if number is not None]
    return " or ".join(words) if len(words) < 3 else f"{words[0]}, {words[1]} and so on"


def _nobody(i: int, outcome: Outcome, values: Any, lines: Lines) -> SetError:
    return SetError(
        i,
        f"has y = {values[i]!r}, but its members are {list(lines[i])}: where y is the id of a "
        f"member, it is so in every line (leave the others out, or write {_words(outcome)})",
    )


def _either(i: int, outcome: Outcome, values: Any, lines: Lines) -> SetError:
    return SetError(
        i,
        f"has y = {values[i]!r} and the members {list(lines[i])}: y may be a number or the id of "
        f"a member, so write {_words(outcome)} in place of it",
    )
