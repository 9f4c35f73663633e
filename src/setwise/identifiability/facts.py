"""Identifiability: what set labels can tell of individuals, as a string that carries its facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

__all__ = ["EXACTLY", "NOTHING", "PARTLY", "PERMUTED", "Identifiability", "listed"]

EXACTLY = "exactly"
PERMUTED = "up to a permutation of classes"
PARTLY = "only in part"
NOTHING = "not at all"


class Identifiability(str):
    """How far the labels tell each row's distribution, given enough sets: a string with facts.

    Attributes:
        level: The string itself, such as "exactly" or "up to a shift".
        words: What that means and what settles it, in a few sentences.
        shift: A number added to all targets would not be noticed.
        scale: Whether the labels tell the unit of the targets, and with it the shared parameters;
            where they do not, these stay as they are (a scale of 1).
        centre: Where a stretch of all targets would not be noticed: the point that it leaves in
            place; None where the labels tell the unit, or where any point may be the centre.
        sign: A change of sign of all targets would not be noticed.
        permutation: Some classes can be swapped without notice.
        swaps: Groups of classes that may change places.
        orders: The rearrangements of classes that go unnoticed, each the list of the classes that
            take the places 0, 1, …; None where it is every one within the groups.

    >>> from setwise import Categorical, Observations, Similarity
    >>> pairs = Observations(Similarity(), [[0, 1], [1, 2]], [1, 0])
    >>> from setwise.identifiability import identify
    >>> found = identify(Categorical(3), [pairs])
    >>> found == "up to a permutation of classes", found.swaps
    (True, ((0, 1, 2),))
    """

    words: str
    shift: bool
    scale: bool
    centre: float | None
    sign: bool
    permutation: bool
    swaps: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[int, ...], ...] | None

    def __new__(
        cls,
        level: str,
        words: str = "",
        *,
        shift: bool = False,
        scale: bool = True,
        centre: float | None = None,
        sign: bool = False,
        permutation: bool = False,
        swaps: Iterable[Sequence[int]] = (),
        orders: Iterable[Sequence[int]] | None = None,
    ) -> Self:
        """See the class."""
        out = super().__new__(cls, level)
        out.words, out.shift, out.scale, out.centre = words, shift, scale, centre
        out.sign, out.permutation = sign, permutation
        out.swaps = tuple(tuple(s) for s in swaps)
        out.orders = None if orders is None else tuple(tuple(o) for o in orders)
        return out

    @property
    def level(self) -> str:
        """The string itself."""
        return str.__str__(self)

    def facts(self) -> dict[str, Any]:
        """Everything in it, fit for JSON."""
        listed = {name: getattr(self, name) for name in Identifiability.__annotations__}
        for name in ("swaps", "orders"):
            if listed[name] is not None:
                listed[name] = [list(part) for part in listed[name]]
        return {"level": self.level, **listed}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """The one that `facts` describes."""
        return cls(**facts)


def listed(items: Iterable[Any], most: int = 8) -> str:
    """Things in a row, as one says them.

    >>> listed([0, 1, 2])
    '0, 1 and 2'
    """
    names = [str(item) for item in items]
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
