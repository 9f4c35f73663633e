"""Errors that carry data beside their words."""

from __future__ import annotations

__all__ = ["SetError"]


class SetError(ValueError):
    """Something is wrong with one set: `set` is its number, `said` what is wrong with it.

    `of` says among which observations the set is, where that is not plain.

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
