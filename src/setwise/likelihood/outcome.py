"""What kind of thing y is, of which targets, and for which sizes of set.

An aggregate declares its `Outcome`; checks of y, flips, expected observations, pictures and the
command line all follow from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution

from setwise.distributions import Discrete, Family
from setwise.errors import SetError
from setwise.sets import Sets

__all__ = [
    "Bounds",
    "ClassLabel",
    "Label",
    "Number",
    "Order",
    "Outcome",
    "PerClass",
    "Position",
    "SetSizes",
    "Targets",
    "Unordered",
    "padded",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Targets:
    """What is known of the members' targets: so many classes, or whole numbers, or numbers."""

    n_classes: int | None = None  # None where targets are no classes, or nobody knows yet
    discrete: bool | None = None  # whether two targets can be equal; None where nobody knows yet

    @classmethod
    def of(cls, what: Distribution | Family) -> Targets:
        """The targets that this distribution or family is about."""
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
        """Whether sets of these sizes will do."""
        sizes = np.asarray(sizes)
        good = (sizes >= self.least) & (sizes <= (np.inf if self.most is None else self.most))
        return good & (sizes % 2 == 1) if self.odd else good

    def check(self, who: object, sets: Sets) -> None:
        """Raises where a set has another size."""
        good = self.takes(sets.sizes)
        if not good.all():
            at = int((~good).argmax())
            why = f": {self.why}" if self.why else ""
            raise SetError(at, f"has {sets.sizes[at]} members: {who!r} takes sets of {self}{why}")

    def __str__(self) -> str:
        if self.least == self.most:
            return "1 member" if self.least == 1 else f"{self.least} members"
        limits = [f"at least {self.least}"] * (self.least > 1)
        limits += [f"up to {self.most}"] * (self.most is not None)
        number = " and ".join(limits) or ("an odd number of" if self.odd else "any number of")
        return f"{number} members"


class Outcome(ABC):
    """What y is for each set. The kinds are those of this file, and no others."""

    values: Sequence[float] | None = None  # every value there is, where there is a list of them
    named: bool = False  # y is a name: there is a most probable one, but a mean says nothing
    holds_targets: ClassVar[bool] = False  # y is made of values or bounds of single targets
    instead: ClassVar[str] = ""  # what to ask for, where there is no single y to expect

    @property
    @abstractmethod
    def words(self) -> str:
        """What y is, in a few words."""

    @abstractmethod
    def check(self, who: object, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y as an array with one entry per set, or an error that names the first bad set."""

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        """y from columns of a table, where NaN is an empty field; and which sets have a y."""
        if len(columns) == 1:
            return columns[0], ~np.isnan(columns[0])
        y = np.column_stack(columns)
        return y, np.asarray(~np.isnan(y).any(1))


@dataclass(frozen=True)
class Number(Outcome):
    """One finite number; `values` lists all it can be, where targets are classes."""

    values: Sequence[float] | None = None

    @property
    def words(self) -> str:
        return "a number"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        return _numbers(who, sets, y)


@dataclass(frozen=True)
class Label(Outcome):
    """One of a few numbers that stand for something: `meanings` says for what.

    The mean of labels is their share (of ones) or their score; `named` ones have none.
    """

    meanings: Mapping[float, str]
    named: bool = False

    @property
    def values(self) -> Sequence[float]:  # type: ignore[override]
        return tuple(self.meanings)

    @property
    def words(self) -> str:
        return ", ".join(f"{value:g}: {said}" for value, said in self.meanings.items())

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = _numbers(who, sets, y)
        wanted = " or ".join(f"{v:g}" for v in self.meanings)
        return _expect(who, array, np.isin(array, self.values), wanted)


@dataclass(frozen=True)
class ClassLabel(Outcome):
    """One of the classes that targets have, counted from 0; not `named` where they are ordered."""

    n_classes: int | None = None
    named: bool = True

    @property
    def values(self) -> Sequence[float] | None:  # type: ignore[override]
        return None if self.n_classes is None else range(self.n_classes)

    @property
    def words(self) -> str:
        return "a class"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = _numbers(who, sets, y)
        top = np.inf if self.n_classes is None else self.n_classes - 1
        good = (array >= 0) & (array <= top) & (array == np.floor(array))
        wanted = "a whole number from 0 on" if self.n_classes is None else f"a class, 0 to {top}"
        return _expect(who, array, good, wanted)


@dataclass(frozen=True)
class Position(Outcome):
    """The place of one member in its set, counted from 0."""

    size: int | None = None
    named: ClassVar[bool] = True  # type: ignore[misc]

    @property
    def values(self) -> Sequence[float] | None:  # type: ignore[override]
        return None if self.size is None else range(self.size)

    @property
    def words(self) -> str:
        return "the position of a member, from 0"

    def check(self, who: object, sets: Sets, y: Any) -> NDArray[np.int64]:
        array = _numbers(who, sets, y)
        whole = (array >= 0) & (array == np.floor(array))
        _expect(who, array, whole, "a whole number from 0 on")
        beyond = array >= sets.sizes
        if beyond.any():
            at = int(beyond.argmax())
            last = sets.sizes[at] - 1
            raise SetError(
                at, f"has y = {array[at]:g}, but its members are at positions 0 to {last}"
            )
        return array.astype(np.int64)


@dataclass(frozen=True)
class PerClass(Outcome):
    """A count, a share or a flag (0 or 1) for each class; for class 1 of 2 one number will do."""

    what: Literal["count", "share", "flag"]
    n_classes: int | None = None

    @property
    def words(self) -> str:
        one = "" if self.what == "flag" else f" (or the {self.what} of class 1 of 2)"
        return f"a {self.what} for each class{one}"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        try:
            columns = np.shape(y)[1] if np.ndim(y) == 2 else None
        except ValueError:  # lists of different lengths: reported below
            columns = None
        if self.what == "flag" and columns is None:
            raise ValueError(f"{who!r} needs y of shape (n_sets, n_classes), got {_shown(y)}")
        array = _numbers(who, sets, y, columns)
        if columns is not None and self.n_classes not in (None, columns):
            raise ValueError(f"{who!r} needs {self.n_classes} columns of y, got {columns}")
        return array

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        y, known = super().read(columns)
        return (np.column_stack(columns) if self.what == "flag" else y), known


@dataclass(frozen=True)
class Order(Outcome):
    """Nothing: the members of each set are listed in the order that was seen."""

    instead: ClassVar[str] = "ask for pairs with Rank(), or for the best member with Choice()"

    @property
    def words(self) -> str:
        return "none: each set lists its members in order, best first"

    def check(self, who: object, sets: Sets, y: Any) -> None:
        if y is not None:
            raise ValueError(
                f"{who!r} takes y=None, got {type(y).__name__}: list the rows of each set in "
                f"their order, best first"
            )

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        raise ValueError("an order has no column of labels, its members are listed best first")


@dataclass(frozen=True)
class Bounds(Outcome):
    """Two numbers that a target lies between, (low, high), ±inf allowed."""

    holds_targets: ClassVar[bool] = True
    instead: ClassVar[str] = "ask for Direct(), or take the quantiles of predict_dist"

    @property
    def words(self) -> str:
        return "(low, high), ±inf allowed"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        array = _numbers(who, sets, y, 2, infinite=True)
        wrong = array[:, 0] > array[:, 1]
        if wrong.any():
            at = int(wrong.argmax())
            low, high = array[at]
            raise SetError(at, f"has y = ({low:g}, {high:g}): low must not exceed high")
        return array

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        """An empty field is an end that is open."""
        if len(columns) != 2:
            raise ValueError("an interval has two ends, as in --y low,high")
        low, high = columns
        y = np.column_stack(
            [np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)]
        )
        return y, ~(np.isnan(low) & np.isnan(high))


@dataclass(frozen=True)
class Unordered(Outcome):
    """One number for each member, in unknown order; shorter lists are filled up with NaN."""

    holds_targets: ClassVar[bool] = True
    instead: ClassVar[str] = (
        "ask for Min(), Median() and Max(), or for the members themselves with predict"
    )

    @property
    def words(self) -> str:
        return "a list of the members' targets, in any order"

    def check(self, who: object, sets: Sets, y: Any) -> Floats:
        if y is None or len(y) != len(sets):
            raise ValueError(
                f"{who!r} needs the list of targets of each of {len(sets)} sets, got {_shown(y)}"
            )
        try:
            rows = [np.asarray(row, np.float64).reshape(-1) for row in y]
        except (TypeError, ValueError) as error:
            raise TypeError(f"{who!r} needs lists of numbers as y: {error}") from error
        rows = [row[~np.isnan(row)] for row in rows]
        for at, (row, size) in enumerate(zip(rows, sets.sizes, strict=True)):
            if len(row) != size:
                raise SetError(
                    at,
                    f"has {size} member(s) but {len(row)} target(s), NaN not counted: {who!r} "
                    f"needs one for each member",
                )
            if not np.isfinite(row).all():
                raise SetError(at, f"has y = {row.tolist()}: targets must be finite")
        return padded(np.concatenate([*rows, np.zeros(0)]), sets.sizes)

    def read(self, columns: Sequence[Floats]) -> tuple[Floats | None, NDArray[np.bool_]]:
        y = np.column_stack(columns)
        return y, np.asarray(~np.isnan(y).all(1))


def padded(values: Floats, sizes: NDArray[np.int64]) -> Floats:
    """Lists of these sizes, given one after another, as the lines of an array filled with NaN."""
    width = int(sizes.max(initial=0))
    out = np.full((len(sizes), width), np.nan)
    out[np.arange(width) < sizes[:, None]] = values
    return out


def _numbers(
    who: object, sets: Sets, y: Any, columns: int | None = None, infinite: bool = False
) -> Floats:
    """y as finite floats of shape (n_sets,) or (n_sets, columns)."""
    if y is None:
        raise ValueError(f"{who!r} needs a y for each set, got None")
    try:
        array = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{who!r} needs numbers as y: {error}") from error
    shape = (len(sets),) if columns is None else (len(sets), columns)
    if array.shape != shape:
        raise ValueError(f"{who!r} of {len(sets)} sets needs y of shape {shape}, got {array.shape}")
    bad = np.isnan(array) if infinite else ~np.isfinite(array)
    if bad.any():
        at = tuple(np.argwhere(bad)[0])
        raise SetError(at[0], f"has y = {array[at]}: {who!r} needs finite numbers")
    return array


def _expect(who: object, array: Floats, good: NDArray[np.bool_], wanted: str) -> Floats:
    """y, or an error that names the first set whose y is not what is `wanted`."""
    if not good.all():
        at = int((~good).argmax())
        raise SetError(at, f"has y = {array[at]:g}: {who!r} expects {wanted}")
    return array


def _shown(y: Any) -> str:
    return "None" if y is None else f"{len(y)} entries" if hasattr(y, "__len__") else repr(y)
