"""Aggregate: what is observed of a set, as a function of its members' targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Aggregate", "aggregates", "label_values", "real_values"]


class Aggregate(ABC):
    """T: what is observed of a set, as a function of its members' targets.

    A new aggregate needs `apply`, and a rule registered with `@likelihood`; by default y is one
    finite number per set. The class attributes are facts that the checks use.
    """

    size: int | None = None  # members per set; None: any number
    symmetric: ClassVar[bool] = True  # T does not depend on the order of the members
    identity_at_one: ClassVar[bool] = False  # T(z₁) = z₁ for a set of one
    of_differences: ClassVar[bool] = False  # T is a function of z₁ − z₂

    @abstractmethod
    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        """y for each set, from the members' targets `z`, listed flat; `sets.flat` is `sets`."""

    def arrange(self, z: Tensor, sets: Sets) -> Sets:
        """The sets as `observe` reports them; only a ranking changes the order of members."""
        return sets

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y as an array with one entry per set, or an error that names the first bad set."""
        array: NDArray[Any] = real_values(self, sets, y)
        return array

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float] | None:
        """Where T(z) = Σ aₖzₖ (+ noise): a for each member, and the noise's variance; else None."""
        return None

    def alike(
        self, sets: Sets, y: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        """Where y compares classes: pairs of rows, (n, 2), and whether they are likely alike.

        For a good beginning, so that "likely" will do; None where y says more, or something else.
        """
        return None

    def outcomes(self, size: int, n_classes: int | None, discrete: bool) -> Sequence[float]:
        """Every value that y can take for a set of `size` members.

        `n_classes` is None where the targets are numbers; `discrete` says whether they can tie.
        """
        raise TypeError(
            f"{self!r} has no fixed list of outcomes, so its y cannot be flipped; "
            f"use Noisy(…, normal=s) or Noisy(…, laplace=b)"
        )

    def check(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y in its checked form; raises where sets or y do not fit this aggregate."""
        if self.size is not None:
            wrong = sets.sizes != self.size
            if wrong.any():
                at = int(wrong.argmax())
                raise ValueError(
                    f"{self!r} is about sets of {self.size} member(s), but set {at} has "
                    f"{sets.sizes[at]}"
                )
        return self.check_y(sets, y)

    def observe(self, z: Any, sets: Any, seed: int | None = None) -> Observations:
        """What would be observed of `sets` if the rows' true targets were `z`.

        >>> import setwise as sw
        >>> sw.Max().observe([3.0, 1.0, 2.0], sw.Sets([[0, 1], [1, 2]])).y.tolist()
        [3.0, 2.0]
        """
        sets = sets if isinstance(sets, Sets) else Sets(sets)
        z = torch.as_tensor(np.asarray(z))
        z = z.double() if z.is_floating_point() else z.long()
        if z.ndim != 1:
            raise ValueError(f"one target per row is expected, got shape {tuple(z.shape)}")
        sets = self.arrange(sets.members(z), sets)
        y = self.apply(sets.members(z), sets.flat, np.random.default_rng(seed))
        return Observations(self, sets, y)


def real_values(aggregate: Aggregate, sets: Sets, y: Any, columns: int | None = None) -> Any:
    """y as finite floats of shape (n_sets,) or (n_sets, columns)."""
    if y is None:
        raise ValueError(f"{aggregate!r} needs a y for each set, got None")
    try:
        array = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{aggregate!r} needs numbers as y: {error}") from error
    shape = (len(sets),) if columns is None else (len(sets), columns)
    if array.shape != shape:
        raise ValueError(
            f"{aggregate!r} of {len(sets)} sets needs y of shape {shape}, got {array.shape}"
        )
    bad = np.isnan(array) if columns is not None else ~np.isfinite(array)
    if bad.any():
        at = tuple(np.argwhere(bad)[0])
        raise ValueError(f"set {at[0]} has y = {array[at]}: {aggregate!r} needs finite numbers")
    return array


def label_values(
    aggregate: Aggregate, sets: Sets, y: Any, allowed: Sequence[float] | None = None
) -> NDArray[np.float64]:
    """y as one label per set: one of `allowed`, or a whole number from 0 on."""
    array = real_values(aggregate, sets, y)
    good = (array >= 0) & (array == np.floor(array)) if allowed is None else np.isin(array, allowed)
    if not good.all():
        at = int((~good).argmax())
        wanted = "a whole number from 0 on"
        if allowed is not None:
            wanted = " or ".join(f"{v:g}" for v in allowed)
        raise ValueError(f"set {at} has y = {array[at]:g}: {aggregate!r} expects {wanted}")
    return array  # type: ignore[no-any-return]


def aggregates() -> list[type[Aggregate]]:
    """Every concrete aggregate class."""
    found: list[type[Aggregate]] = []
    todo: list[type[Aggregate]] = [Aggregate]  # type: ignore[type-abstract]
    while todo:
        cls = todo.pop()
        todo.extend(cls.__subclasses__())
        if not getattr(cls, "__abstractmethods__", None):
            found.append(cls)
    return sorted(set(found), key=lambda cls: cls.__name__)
