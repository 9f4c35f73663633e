"""Aggregate: what is observed of a set, as a function of its members' targets."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions import point_estimate
from setwise.likelihood.outcome import Number, Outcome, SetSizes, Targets
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Aggregate", "aggregates"]


class Aggregate(ABC):
    """T: what is observed of a set, as a function of its members' targets.

    A new aggregate needs `apply`, and a rule registered with `@likelihood`; `outcome` says what
    kind of thing y is (by default one finite number per set), `size` or `set_sizes` how many
    members a set has. The other attributes are facts that the checks use.
    """

    size: int | None = None  # members per set; None: see `set_sizes`
    symmetric: ClassVar[bool] = True  # T does not depend on the order of the members
    identity_at_one: ClassVar[bool] = False  # T(z₁) = z₁ for a set of one
    of_differences: ClassVar[bool] = False  # T is a function of z₁ − z₂
    of_a_function: ClassVar[bool] = False  # T is a function that the user passes: any at all
    classes_if_unsaid: ClassVar[int | None] = None  # how many, where nothing else tells
    not_in_words: ClassVar[str] = ""  # what to do instead, where a command line cannot make one

    @abstractmethod
    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        """y for each set, from the members' targets `z`, listed flat; `sets.flat` is `sets`."""

    def arrange(self, z: Tensor, sets: Sets) -> Sets:
        """The sets as `observe` reports them; only a ranking changes the order of members."""
        return sets

    def outcome(self, targets: Targets, size: int | None) -> Outcome:
        """What kind of thing y is, for sets of `size` members (None: of any size)."""
        return Number()

    def set_sizes(self, targets: Targets) -> SetSizes:
        """How many members a set may have."""
        return SetSizes() if self.size is None else SetSizes(self.size, self.size)

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y as an array with one entry per set, or an error that names the first bad set."""
        return self.outcome(Targets(), None).check(self, sets, y)

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

    def expected(self, members: Distribution, sets: Sets) -> Tensor | None:
        """E[y] of each set in closed form, where there is one that needs no list of outcomes."""
        linear = self.linear(sets)
        if linear is None:
            return None
        return sets.sum(torch.from_numpy(linear[0]) * point_estimate(members))

    @property
    def bare(self) -> Aggregate:
        """The aggregate without the noise around it."""
        return self

    def tells(self, targets: Targets, size: int) -> bool:
        """Whether y of sets of this size depends on their members at all."""
        return True

    def with_classes(self, n_classes: int) -> Self:
        """The same, told the number of classes where it would guess it from the targets."""
        if getattr(self, "n_classes", n_classes) is not None:
            return self
        told: Any = self
        out: Self = dataclasses.replace(told, n_classes=n_classes)
        return out

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        """Some to try, for targets of so many classes where they are classes."""
        return [cls()]

    def check(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y in its checked form; raises where sets or y do not fit this aggregate."""
        self.set_sizes(Targets()).check(self, sets)
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


def aggregates() -> list[type[Aggregate]]:
    """Every concrete aggregate class."""
    import_module("setwise.aggregates")  # the library's own, which build upon this module
    found: list[type[Aggregate]] = []
    todo: list[type[Aggregate]] = [Aggregate]  # type: ignore[type-abstract]
    while todo:
        cls = todo.pop()
        todo.extend(cls.__subclasses__())
        if not getattr(cls, "__abstractmethods__", None):
            found.append(cls)
    return sorted(set(found), key=lambda cls: cls.__name__)
