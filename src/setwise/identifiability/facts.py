"""What set labels can tell about individuals, as a string with attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

EXACTLY = "exactly"
PERMUTED = "up to a permutation of classes"
PARTLY = "only in part"
NOTHING = "not at all"


@dataclass(eq=False, repr=False)
class Identifiability(str):
    """How far the labels determine each row's distribution, given enough sets.

    Attributes:
        level: The string itself, such as "exactly" or "up to a shift".
        words: What that means and what to do about it, in a few sentences.
        shift: A number added to all targets would not be noticed.
        scale: Whether the labels determine the unit of the targets, and with it the shared
            parameters; if not, these stay as they are (a scale of 1).
        centre: If stretching all targets about one point would not be noticed, that point; None
            where the labels determine the unit, or where any point will do.
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

    level: str
    words: str = ""
    _: KW_ONLY
    shift: bool = False
    scale: bool = True
    centre: float | None = None
    sign: bool = False
    permutation: bool = False
    swaps: Sequence[Sequence[int]] = ()
    orders: Sequence[Sequence[int]] | None = None

    def __new__(cls, level: str, *args: Any, **kwargs: Any) -> Self:
        """See the class."""
        return super().__new__(cls, level)

    def __post_init__(self) -> None:
        self.swaps = tuple(map(tuple, self.swaps))
        self.orders = None if self.orders is None else tuple(map(tuple, self.orders))

    def facts(self) -> dict[str, Any]:
        """All attributes, ready for JSON."""
        return dict(vars(self))

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """The one that `facts` describes."""
        return cls(**facts)


NOTHING_TOLD = Identifiability(
    NOTHING,
    "These labels say the same whatever the targets are, so nothing can be learned from them. Add "
    "observations of another kind.",
    scale=False,
)


def listed(items: Iterable[Any], most: int = 8) -> str:
    """Items as a phrase.

    >>> listed([0, 1, 2])
    '0, 1 and 2'
    """
    names = [str(item) for item in items]
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
