"""y as people write it, converted to numbers: yes and no, win, loss and tie, names of classes.

What a text means follows from the outcome that an aggregate declares, so that all aggregates read
the same words. A word that is not clear is an error that shows how to state its meaning.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from setwise.errors import SetError
from setwise.frames import key

__all__ = ["ORDINALS", "TIES", "against", "as_number", "class_codes", "spoken_numbers", "words_of"]

YES_NO = {
    **dict.fromkeys(("yes", "true", "positive", "y", "t", "pos", "present"), 1.0),
    **dict.fromkeys(("no", "false", "negative", "n", "f", "neg", "absent"), 0.0),
}
TIES = ("tie", "draw", "equal", "tied", "drawn", "even", "=", "1/2-1/2", "½-½")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


# ---- labels with two values, or three


def words_of(values: Sequence[float], own: Mapping[str, float], members: Any) -> dict[str, float]:
    """Every word that is understood: its own, those that point at a member, and yes and no.

    >>> words_of([0.0, 0.5, 1.0], {"win": 1.0}, (1.0, 0.0))["b"]
    0.0
    """
    out = dict(own)
    pointing = [(j, value) for j, value in enumerate(members) if value is not None]
    for j, value in pointing:
        out |= {"abcdefgh"[j]: value, ORDINALS[j]: value}
    if len(members) == 2:
        out |= dict(zip(("left", "right"), members, strict=True))
    if {0.0, 1.0} <= {*values} <= {0.0, 0.5, 1.0}:
        out |= {word: value for word, value in YES_NO.items() if word not in out}
    if len(values) == 3:
        out |= dict.fromkeys(TIES, sorted(values)[1])
    return out


def spoken_numbers(
    who: object,
    values: Sequence[Any],
    words: Mapping[str, float],
    unclear: Callable[[Any, Mapping[str, float]], str],
) -> list[float]:
    """Numbers in place of words; `unclear` says what to do about a value that is none of them."""
    found = Counter(v for v in values if v is not None)
    meant = {value: _meant(value, words) for value in found}
    for value, number in meant.items():
        if number is None:
            raise ValueError(
                f"{who!r}: y is {_listed(found)}, and what {value!r} means is not clear: "
                f"{unclear(value, words)}"
            )
    return [math.nan if v is None else meant[v] for v in values]  # type: ignore[misc]


def _meant(value: Any, words: Mapping[str, float]) -> float | None:
    """The number that a value stands for, None where that is not clear."""
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in words:
            return words[word]
    return as_number(value)


def as_number(value: Any) -> float | None:
    """A number, or the text of one; None for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def against(
    who: object, values: Sequence[Any], positive: Any, numbers: Sequence[float]
) -> list[float]:
    """The largest of the numbers for `positive`, the smallest for the other value that there is.

    Where there are three numbers, a tie is the one between.
    """
    found = Counter(v for v in values if v is not None)
    wanted = key(positive).casefold()
    out, others = {}, []
    for value in found:
        word = key(value).casefold()
        if word == wanted:
            out[value] = numbers[-1]
        elif word in TIES and len(numbers) == 3:
            out[value] = numbers[1]
        else:
            out[value] = numbers[0]
            others.append(word)
    if numbers[-1] not in out.values():
        raise ValueError(f"{who!r}: positive={positive!r} does not occur in y, {_listed(found)}")
    if len({*others}) > 1:
        raise ValueError(
            f"{who!r}: with positive={positive!r} one other label is expected, but y is "
            f"{_listed(found)}: leave the others out, or write them as one"
        )
    return [math.nan if v is None else float(out[v]) for v in values]


def _listed(found: Counter[Any]) -> str:
    """The most frequent values, and how often they occur."""
    shown = [f"{v!r} ({f'{n:,} times' if n > 1 else 'once'})" for v, n in found.most_common(4)]
    return ", ".join(shown) + (f" and {len(found) - 4:,} more" if len(found) > 4 else "")


# ---- classes


def class_codes(who: object, values: Sequence[Any], classes: Sequence[Any]) -> list[float]:
    """The numbers of the classes that the values name."""
    order = {label: float(i) for i, label in enumerate(classes)}
    if len(order) < len(classes):
        raise ValueError(f"classes= needs distinct labels, got {list(classes)[:20]}")
    out = []
    for i, value in enumerate(values):
        number = np.nan if value is None else order.get(value)
        if number is None:
            raise SetError(i, f"has y = {value!r}: {who!r} expects one of {list(classes)[:20]}")
        out.append(number)
    return out
