"""What kind of thing y is, for which targets, and for which sizes of set.

An aggregate declares its `Outcome`. Which texts stand for which y, checks of y, flips, expected
observations, plots and the command line all follow from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch.distributions import Categorical, Distribution

from setwise._given import Given
from setwise.distributions import Discrete, Family
from setwise.errors import absent, check_each
from setwise.likelihood.numbers import (
    expect,
    numbers,
    whole,
)
from setwise.likelihood.texts import against, class_codes, spoken_numbers, words_of
from setwise.sets import Sets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbered = tuple[Any, tuple[Any, ...] | None]  # y in numbers, and the class labels behind them


@dataclass(frozen=True)
class Targets:
    """What is known about the members' targets."""

    n_classes: int | None = None  # None where targets are not classes, or this is not known yet
    discrete: bool | None = None  # whether two targets can be equal; None where not known yet

    @classmethod
    def of(cls, what: Distribution | Family) -> Targets:
        """The targets of this distribution or family."""
        if isinstance(what, Family):
            classes = issubclass(what.distribution, Categorical)
            return cls(len(what.outputs) if classes else None, issubclass(what.kind, Discrete))
        if isinstance(what, Categorical):
            return cls(what.logits.shape[-1], True)
        return cls(None, isinstance(what, Discrete))


@dataclass(frozen=True)
class SetSizes:
    """How many members a set may have; `why` explains a limit.

    >>> print(SetSizes(2, 2), "|", SetSizes(3), "|", SetSizes(odd=True))
    2 members | at least 3 members | an odd number of members
    """

    least: int = 1
    most: int | None = None
    odd: bool = False
    why: str = ""

    def takes(self, sizes: Any) -> Any:
        """Whether sets of these sizes are allowed."""
        sizes = np.asarray(sizes)
        good = (sizes >= self.least) & (sizes <= (np.inf if self.most is None else self.most))
        return good & (sizes % 2 == 1) if self.odd else good

    def check(self, who: object, sets: Sets) -> None:
        """Raises where a set has another size."""
        why = f": {self.why}" if self.why else ""
        check_each(
            self.takes(sets.individuals),
            lambda at: f"has {sets.individuals[at]} members: {who!r} takes sets of {self}{why}",
        )

    def __str__(self) -> str:
        if self.least == self.most:
            return "1 member" if self.least == 1 else f"{self.least} members"
        limits = [f"at least {self.least}"] * (self.least > 1)
        limits += [f"up to {self.most}"] * (self.most is not None)
        number = " and ".join(limits) or ("an odd number of" if self.odd else "any number of")
        return f"{number} members"


class Outcome(ABC):
    """What y is for each set. The kinds are those here and in `several`, and no others."""

    named: bool = False  # y is a name: it has a most probable value, but no meaningful mean
    members: Sequence[float | None] = ()  # the y that points at each member, where one does
    holds_targets: ClassVar[bool] = False  # y consists of values or bounds of single targets
    instead: ClassVar[str] = ""  # where y has no expected value: what the user can do instead

    @property
    def values(self) -> Sequence[float] | None:
        """Every possible value of y, where they can be listed."""
        return None

    @property
    @abstractmethod
    def words(self) -> str:
        """What y is, in a few words."""

    @abstractmethod
    def check(self, who: object, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y as an array with one entry per set, or an error that names the first bad set."""

    def numbered(
        self, who: object, y: Given, positive: Any, classes: Sequence[Any] | None
    ) -> Numbered:
        """y with numbers in place of texts, and the labels of classes that its numbers stand for.

        `positive` says which of two labels is the 1, `classes` which labels there are, in order.
        """
        for name, value in (("positive", positive), ("classes", classes)):
            if value is not None:
                raise ValueError(
                    f"{name}= is for y that holds {_TAKES[name]}: that of {who!r} is {self.words}"
                )
        return y.values, None

    @property
    def unsaid(self) -> float | None:
        """The y where none is given: the members are listed in the order it stands for."""
        return next((value for value in self.members if value is not None), None)

    def points_at(self, place: int) -> float | None:
        """The y that points at the member in this place."""
        return self.members[place] if place < len(self.members) else None

    def told(self, y: Any) -> int | None:
        """The least number of classes that y implies."""
        return None

    def in_order(self, y: Any, place: Ints) -> Any:
        """y where the class with number i gets the number place[i]."""
        return y

    def read(self, columns: Sequence[Any]) -> tuple[Any, NDArray[np.bool_]]:
        """y from columns of a table, None or NaN where it is empty; and which sets have a y."""
        if len(columns) == 1:
            return columns[0], ~_empty(columns[0])
        y = np.column_stack(columns)
        return y, ~np.any([_empty(column) for column in columns], axis=0)


_TAKES = {"positive": "one of two labels", "classes": "names of classes"}


def _always(text: str) -> Callable[[Any], str]:
    return lambda at: text


def _empty(column: Any) -> NDArray[np.bool_]:
    """Which entries of a column are missing."""
    if isinstance(column, np.ndarray) and column.dtype.kind == "f":
        return np.isnan(column)
    return np.array([absent(value) for value in column], dtype=bool)


@dataclass(frozen=True)
class Number(Outcome):
    """One finite number; `values` lists all possible ones, where targets are classes."""

    values: Sequence[float] | None = None
    words = "a number"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        return numbers(who, sets, y)


@dataclass(frozen=True)
class Label(Outcome):
    """One of a few numbers, each with a meaning.

    `named` labels are names. Others have a mean: the share of ones, or the mean score. `spoken`
    are texts that stand for a number, beside yes and no for 1 and 0, and a and b where y points at
    a member (`members`). `never` are numbers that only other targets can have, and what to do.
    """

    meanings: Mapping[float, str]
    named: bool = False
    spoken: Mapping[str, float] = field(default_factory=dict)
    members: Sequence[float | None] = ()
    never: Mapping[float, str] = field(default_factory=dict)

    @property
    def values(self) -> Sequence[float]:
        return tuple(self.meanings)

    @property
    def words(self) -> str:
        return ", ".join(f"{value:g}: {meaning}" for value, meaning in self.meanings.items())

    def numbered(
        self, who: object, y: Given, positive: Any, classes: Sequence[Any] | None
    ) -> Numbered:
        if not y.texts and positive is None:
            return super().numbered(who, y, None, classes)
        if positive is not None and (self.named or len(self.meanings) > 3):
            return super().numbered(who, y, positive, classes)
        values = y.listed(who)
        if positive is not None:
            return against(who, values, positive, sorted(self.meanings)), None
        words = {} if self.named else words_of(self.values, self.spoken, self.members)
        return spoken_numbers(who, values, words, self._unclear), None

    def _unclear(self, value: Any, words: Mapping[str, float]) -> str:
        """How to say what a value means."""
        if self.named or len(self.meanings) > 3:
            return f"write {self.words}"
        first = {number: word for word, number in reversed([*words.items()])}
        known = [f"{first[v]} ({self.meanings[v]})" for v in self.values if v in first]
        return (
            f"say which one stands for {self.meanings[max(self.meanings)]!r}, as in "
            f"positive={value!r}" + (f", or write {', '.join(known)}" if known else "")
        )

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = numbers(who, sets, y)
        for value, why in self.never.items():
            check_each(array != value, _always(f"has y = {value:g}, {why}"))
        wanted = " or ".join(f"{v:g}" for v in self.meanings)
        if not self.named:
            wanted += " (where other values stand for these, positive= says which is the 1)"
        return expect(who, array, np.isin(array, self.values), wanted)


@dataclass(frozen=True)
class ClassLabel(Outcome):
    """One of the targets' classes, counted from 0; not `named` where the classes are ordered."""

    n_classes: int | None = None
    named: bool = True
    words = "a class"

    @property
    def values(self) -> Sequence[float] | None:
        return None if self.n_classes is None else range(self.n_classes)

    def numbered(
        self, who: object, y: Given, positive: Any, classes: Sequence[Any] | None
    ) -> Numbered:
        if positive is not None or not (y.texts or classes is not None):
            return super().numbered(who, y, positive, classes)
        values = y.listed(who)
        labels = y.order if classes is None else tuple(classes)
        if labels is None and not self.named:
            raise ValueError(
                f"{who!r} compares classes: say which there are, from the smallest to the largest, "
                f"as in classes={sorted({str(v) for v in values if v is not None})[:20]}"
            )
        labels = labels or tuple(sorted({v for v in values if v is not None}, key=str))
        return class_codes(who, values, labels), labels

    def told(self, y: Any) -> int | None:
        return int(np.max(y)) + 1 if self.named and len(y) else None

    def in_order(self, y: Any, place: Ints) -> Any:
        return place[y.astype(np.int64)].astype(np.float64)

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = numbers(who, sets, y)
        if self.n_classes is None:
            return whole(who, array)
        wanted = f"a class, 0 to {self.n_classes - 1}"
        return expect(who, array, np.isin(array, range(self.n_classes)), wanted)


@dataclass(frozen=True)
class Position(Outcome):
    """The position of one member in its set, counted from 0."""

    size: int | None = None
    named = True
    words = "the position of a member, from 0"
    members = range(8)

    @property
    def values(self) -> Sequence[float] | None:
        return None if self.size is None else range(self.size)

    def points_at(self, place: int) -> float:
        return float(place)

    def numbered(
        self, who: object, y: Given, positive: Any, classes: Sequence[Any] | None
    ) -> Numbered:
        if not y.texts or positive is not None or classes is not None:
            return super().numbered(who, y, positive, classes)
        words = words_of((), {}, self.members)
        return spoken_numbers(who, y.listed(who), words, self._unclear), None

    @staticmethod
    def _unclear(value: Any, words: Mapping[str, float]) -> str:
        return "write positions from 0 on, or a, b, c; ids of members: Observations.from_ids"

    def check(self, who: object, sets: Sets, y: Any) -> NDArray[np.int64]:
        array = whole(who, numbers(who, sets, y))
        check_each(
            array < sets.sizes,
            lambda at: (
                f"has y = {array[at]:g}, but its members are at positions 0 to {sets.sizes[at] - 1}"
            ),
        )
        return array.astype(np.int64)
