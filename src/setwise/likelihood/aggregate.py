"""Aggregate: what is observed of a set, as a function of its members' targets."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise._distinct import repeating
from setwise._given import Given, given
from setwise._subclasses import concrete_subclasses
from setwise.distributions import Family, point_estimate
from setwise.errors import SetError
from setwise.likelihood.outcome import Number, Numbered, Outcome, SetSizes, Targets
from setwise.likelihood.pointing import Lines, pointed
from setwise.likelihood.texts import class_codes
from setwise.likelihood.unknown import Unknown
from setwise.observations import Observations
from setwise.sets import Sets

# Pairs of rows, (n, 2), and whether each is likely of one class.
Pairs = tuple[NDArray[np.int64], NDArray[np.bool_]]


class Conditioned(NamedTuple):
    """Members of sets given what they share; `weight`, (sets,), is how likely that is given y."""

    aggregate: Aggregate
    members: Distribution
    weight: Tensor
    shift: Tensor  # (sets, numbers)


class Aggregate(ABC):
    """T: what is observed of a set, as a function of its members' targets.

    A new aggregate needs `apply`, and a rule registered with `@likelihood`; `outcome` says what
    kind of thing y is (by default one finite number per set), `size` or `set_sizes` how many
    members a set has. The other attributes are facts about T.
    """

    size: int | None = None  # members per set; None: see `set_sizes`
    symmetric: ClassVar[bool] = True  # T does not depend on the order of the members
    identity_at_one: ClassVar[bool] = False  # T(z₁) = z₁ for a set of one
    of_differences: ClassVar[bool] = False  # T is a function of z₁ − z₂
    distinct: ClassVar[bool] = False  # T compares members: a row with itself says nothing
    user_defined: ClassVar[bool] = False  # T is a function passed by the user
    shares: ClassVar[bool] = False  # members share something: see `drawn` and `conditioned`
    learnable: ClassVar[tuple[str, ...]] = ()  # fields that may be "learned", see `unknown`
    default_n_classes: ClassVar[int | None] = None  # the number of classes, where none is given
    not_on_command_line: ClassVar[str] = ""  # what to do where the command line cannot make one

    @abstractmethod
    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        """y of each set, from the members' targets `z`, listed one after another."""

    def arrange(self, z: Tensor, sets: Sets) -> Sets:
        """The sets that `observe` returns; only a ranking changes the order of members."""
        return sets

    def outcome(self, targets: Targets, size: int | None) -> Outcome:
        """What kind of thing y is, for sets of `size` members (None: of any size)."""
        return Number()

    def set_sizes(self, targets: Targets) -> SetSizes:
        """How many members a set may have."""
        return SetSizes() if self.size is None else SetSizes(self.size, self.size)

    def read(
        self, sets: Sets, y: Any, positive: Any = None, classes: Sequence[Any] | None = None
    ) -> Numbered:
        """y in numbers, texts read as the outcome says, and the class labels they stand for."""
        told = given(y)
        targets, outcome = Targets(), self.outcome(Targets(), None)
        if y is None:
            return None if outcome.unsaid is None else np.full(len(sets), outcome.unsaid), None
        if told.texts or positive is not None or classes is not None:
            targets = Targets(2 if classes is None else len(classes), discrete=True)
            outcome = self.outcome(targets, None)
        elif told.columns is None:
            return told.values, None
        return outcome.numbered(self, told, positive, classes)

    def table(self, y: Given) -> tuple[Given, NDArray[np.bool_]]:
        """y from columns of a table, and which sets have one."""
        shape = np.shape(y.values) if hasattr(y.values, "shape") else ()
        columns = [*y.values.T] if len(shape) == 2 else [y.values]
        values, known = self.outcome(Targets(), None).read(columns)
        return y._replace(values=values), known

    def pointed(self, y: Given, lines: Lines, columns: Sequence[str], ids: Container[Any]) -> Given:
        """y as texts and numbers, where it names members: by their ids in lines, or by columns.

        `ids` are those of all rows.
        """
        outcome = self.outcome(Targets(2, discrete=True), None)
        if not outcome.members or np.ndim(y.values) != 1:
            return y
        out = pointed(self, outcome, y.listed(self), lines, columns, ids)
        if out is None:
            return y
        return y._replace(values=out, texts=any(isinstance(v, str) for v in out))

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y as an array with one entry per set, or an error that names the first bad set."""
        return self.outcome(Targets(), None).check(self, sets, y)

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float] | None:
        """Where T(z) = Σ aₖzₖ (+ noise): a for each member, and the noise's variance; else None."""
        return None

    def alike(self, sets: Sets, y: NDArray[Any]) -> Pairs | None:
        """Where y compares classes: pairs of rows, and whether their classes are likely the same.

        Learners initialise with these, so they may be wrong at times. None where y is not, or not
        only, a comparison.
        """
        return None

    def mirrored(self, y: NDArray[Any]) -> NDArray[Any] | None:
        """y of the same pairs with their members in the other order; None where it does not say."""
        return None

    def expected(self, members: Distribution, sets: Sets) -> Tensor | None:
        """E[y] of each set in closed form; None where there is none."""
        linear = self.linear(sets)
        if linear is None:
            return None
        return sets.sum(torch.from_numpy(linear[0]) * point_estimate(members))

    def drawn(self, members: Distribution, sets: Sets, rng: np.random.Generator) -> Distribution:
        """The members' distributions for one draw of their sets: of what these share, if `shares`.

        `sets` are flat, over a table that lists the members.
        """
        return members

    def conditioned(self, members: Distribution, sets: Sets, y: Any) -> list[Conditioned]:
        """What members may share, if `shares`: a few values, and how likely y makes them."""
        return []

    @property
    def bare(self) -> Aggregate:
        """The aggregate without the noise around it."""
        return self

    def informative(self, targets: Targets, size: int) -> bool:
        """Whether y of sets of this size depends on the members' targets at all."""
        return True

    # ---- numbers that a fit learns: own fields first, then those of `aggregate`, if it wraps one

    @property
    def learned(self) -> tuple[str, ...]:
        """The fields that are "learned", with those of an aggregate inside."""
        inner = getattr(self, "aggregate", None)
        own = tuple(name for name in self.learnable if isinstance(getattr(self, name), str))
        return own if inner is None else own + inner.learned

    def unknown(self, family: Family, y: Any = None) -> tuple[Unknown, ...]:
        """One for each name in `learned`; the start comes from the observed y."""
        inner = getattr(self, "aggregate", None)
        return () if inner is None else inner.unknown(family, y)

    def with_values(self, values: Sequence[Any]) -> Self:
        """The same aggregate with its `learned` fields filled in, by numbers or by tensors.

        A tensor is of one number, or of one for each set, which the rules then have to take.
        """
        own = [name for name in self.learnable if isinstance(getattr(self, name), str)]
        rest = values[len(own) :]
        return self._with(
            dict(zip(own, values, strict=False)), lambda inner: inner.with_values(rest)
        )

    def take(self, which: Any) -> Self:
        """The aggregate of these sets only: fields with an entry for each set are taken too."""
        fields = ((name, getattr(self, name)) for name in self.learnable)
        each = {n: v[which] for n, v in fields if isinstance(v, Tensor) and v.ndim}
        return self._with(each, lambda inner: inner.take(which))

    def _with(self, fields: dict[str, Any], inside: Callable[[Aggregate], Aggregate]) -> Self:
        """Fields, and an aggregate inside, replaced without the checks of the constructor."""
        inner = getattr(self, "aggregate", None)
        if inner is not None and (made := inside(inner)) is not inner:
            fields["aggregate"] = made
        if not fields:
            return self
        out = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(out, name, value)
        return out

    def with_classes(self, n_classes: int) -> Self:
        """The same with `n_classes` filled in, where that is a parameter that was left open."""
        if getattr(self, "n_classes", n_classes) is not None:
            return self
        open_one: Any = self
        out: Self = dataclasses.replace(open_one, n_classes=n_classes)
        return out

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        """Examples for tests; `n_classes` is for targets that are classes."""
        return [cls()]

    def check(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        """y as an array; raises where the sets or y do not fit this aggregate."""
        self.set_sizes(Targets()).check(self, sets)
        if self.distinct and len(wrong := repeating(sets)):
            at = int(wrong[0])
            raise SetError(
                at, f"is row {sets[at][0]} compared with itself: {self!r} needs two different rows"
            )
        return self.check_y(sets, y)

    # ---- the classes that y implies

    def told_classes(self, y: Any) -> int | None:
        """The least number of classes that y or the aggregate itself implies."""
        inner = getattr(self, "aggregate", None)
        if inner is not None:
            told: int | None = inner.told_classes(y)
            return told
        return getattr(self, "n_classes", None) or self._about_classes(2).told(y)

    def in_order(self, y: Any, place: NDArray[np.int64]) -> Any:
        """y where the class with number i gets the number place[i]."""
        return self._about_classes(len(place)).in_order(y, place)

    def _about_classes(self, n: int) -> Outcome:
        return self.outcome(Targets(n, discrete=True), None)

    def observe(self, z: Any, sets: Any, seed: int | None = None) -> Observations:
        """What would be observed of `sets` if the rows' true targets were `z`.

        Where members stand for several individuals (`Sets(counts=…)`), `z` has the targets of the
        individuals, listed in the order of `sets.expand()`.

        >>> import setwise as sw
        >>> sw.Max().observe([3.0, 1.0, 2.0], sw.Sets([[0, 1], [1, 2]])).y.tolist()
        [3.0, 2.0]
        """
        sets = sets if isinstance(sets, Sets) else Sets(sets)
        z, labels = _targets(z)
        made = self if labels is None else self.with_classes(len(labels))
        every = sets if sets.counts is None else made._individuals(z, sets)
        if every is sets and len(twice := repeating(sets)):
            warnings.warn(
                f"{len(twice)} of {len(sets)} sets list a row more than once (set "
                f"{twice[0]} is the first): each listing counts as an individual of its "
                f"own, but `z` has one target for all of them, so that this y has another "
                f"distribution than the likelihood assumes. Draw sets of distinct rows",
                UserWarning,
                stacklevel=2,
            )
        every = made.arrange(every.members(z), every)
        y = made.apply(every.members(z), every.flat, np.random.default_rng(seed))
        out = Observations(made, every if sets.counts is None else sets, y)
        out.classes = labels
        return out

    def _individuals(self, z: Tensor, sets: Sets) -> Sets:
        """The sets over a table of individuals, which has a target for each of them."""
        n = int(sets.individuals.sum())
        if len(z) != n:
            raise ValueError(
                f"members of {sets!r} stand for {n} individuals in all, each with its own target: "
                f"z needs {n} targets, listed in the order of sets.expand(), got {len(z)}"
            )
        every = sets.expand().flat
        if self.arrange(z, every) is not every:
            raise ValueError(f"{self!r} lists the individuals in order: use sets without counts")
        return every


def _targets(z: Any) -> tuple[Tensor, tuple[Any, ...] | None]:
    """True targets as numbers, and the class labels that these stand for."""
    told = given(z)
    values, labels = told.values, None
    if told.texts:
        listed = told.listed("observe")
        labels = told.order or tuple(sorted({v for v in listed if v is not None}, key=str))
        values = np.array(class_codes("observe", listed, labels))
        values = values if np.isnan(values).any() else values.astype(np.int64)
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"one target per row is expected, got shape {array.shape}")
    if (lost := np.isnan(array.astype(np.float64))).any():
        raise ValueError(f"row {int(lost.argmax())} has no target (missing value)")
    out = torch.as_tensor(np.require(array, requirements="W"))
    return out.double() if out.is_floating_point() else out.long(), labels


def aggregates() -> list[type[Aggregate]]:
    """Every concrete aggregate class."""
    import_module("setwise.aggregates")  # the library's own, which import this module
    return concrete_subclasses(Aggregate)
