"""What labels tell of classes: which may change places, and which only their totals are told of.

Suppose that every class has rows that surely belong to it. Then whatever fits the labels of a map T
of classes as well as the truth differs from it by a rearrangement of the classes that T does not
notice, and by what no member of a set can show: p is told only through the vectors [T(·, rest) = y]
of the classes that give y beside the rest of the set. (At the sure rows another model must put its
mass on classes that T cannot tell from the right ones. If T can tell any two classes apart that is
one class each, and no two share it: a rearrangement. The sure rows as the rest of a set then show
every other row through those vectors.) Both are found by asking T itself.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from setwise.distributions import Categorical
from setwise.identifiability.facts import (
    EXACTLY,
    NOTHING,
    PARTLY,
    PERMUTED,
    Identifiability,
    listed,
)
from setwise.likelihood import Aggregate, Targets, evaluate
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["identify_classes"]

TABLE = 20_000  # tuples of classes that are all tried; beyond, some are drawn
DRAWN = 256
SEARCHED = 20_000  # partial rearrangements tried before two classes count as exchangeable
LISTED = 1_000  # rearrangements kept where they are not all those within groups

Classes = Sequence[int]
Bools = NDArray[np.bool_]


class _View(ABC):
    """What one aggregate, of sets of one size, shows of C classes."""

    @abstractmethod
    def alike(self) -> Any:
        """For each class a key; classes of different keys cannot take each other's place."""

    @abstractmethod
    def same(self, here: Classes, there: Classes) -> bool:
        """Whether sets of the classes `here` look as before when each is replaced by `there`."""

    @abstractmethod
    def shown(self) -> NDArray[np.float64]:
        """Vectors v, as rows, so that Σ v(c) p(c) is all that is told of a row."""


class _Single(_View):
    """Sets of one member: P(y | class), as a matrix (outcomes, classes)."""

    def __init__(self, matrix: NDArray[np.float64]) -> None:
        self.matrix = matrix

    def alike(self) -> Any:
        return np.unique(self.matrix.round(9), axis=1, return_inverse=True)[1].reshape(-1)

    def same(self, here: Classes, there: Classes) -> bool:
        a, b = self.matrix[:, list(here)], self.matrix[:, list(there)]
        return bool(np.allclose(a, b, atol=1e-9))

    def shown(self) -> NDArray[np.float64]:
        return self.matrix


class _Map(_View):
    """T of sets of one size, asked on all tuples of classes or on some that are drawn."""

    def __init__(self, aggregate: Aggregate, size: int, n_classes: int) -> None:
        self.aggregate, self.size, self.n_classes = aggregate, size, n_classes

    def ask(self, z: NDArray[np.int64]) -> NDArray[np.int64]:
        """A number for what each line of classes gives; equal where T is equal."""
        sets = Sets(np.arange(z.size).reshape(z.shape))
        seen = self.aggregate.observe(z.reshape(-1), sets, seed=0)
        y = np.zeros(len(z)) if seen.y is None else np.asarray(seen.y, float).reshape(len(z), -1)
        order = seen.sets.indices - seen.sets.offsets[:-1].repeat(self.size)
        both = np.column_stack([y, order.reshape(len(z), -1)])
        return np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)

    @cached_property
    def table(self) -> NDArray[np.int64] | None:
        """T of every tuple, one axis per member; None where there are too many."""
        if self.n_classes**self.size > TABLE:
            return None
        shape = (self.n_classes,) * self.size
        return self.ask(np.indices(shape).reshape(self.size, -1).T).reshape(shape)

    def alike(self) -> Any:
        return self.ask(np.arange(self.n_classes).repeat(self.size).reshape(-1, self.size))

    def same(self, here: Classes, there: Classes) -> bool:
        if self.table is not None:
            a, b = (self.table[np.ix_(*[list(c)] * self.size)] for c in (here, there))
            return bool((a == b).all())
        which = np.random.default_rng(0).integers(0, len(here), (DRAWN, self.size))
        seen = self.ask(np.concatenate([np.asarray(here)[which], np.asarray(there)[which]]))
        return bool((seen[:DRAWN] == seen[DRAWN:]).all())

    def shown(self) -> NDArray[np.float64]:
        if self.table is not None:
            turned = [np.moveaxis(self.table, k, -1) for k in range(self.size)]
            seen = np.concatenate([t.reshape(-1, self.n_classes) for t in turned])
        else:
            seen = self.ask(self._contexts().reshape(-1, self.size)).reshape(-1, self.n_classes)
        seen = np.unique(seen, axis=0)
        cells = (seen[:, :, None] == seen[:, None, :]).reshape(-1, self.n_classes)
        return np.unique(cells, axis=0).astype(float)

    def _contexts(self) -> NDArray[np.int64]:
        """Sets of a few classes each, with every class in turn in one place, (·, C, size)."""
        rng = np.random.default_rng(0)
        c, n = self.n_classes, max(32, min(DRAWN, 200_000 // (self.n_classes * self.size)))
        few = rng.random((n, c)).argsort(1)  # the first m of these are the classes of a set
        m = rng.integers(1, c + 1, n)
        which = (rng.random((n, self.size)) * m[:, None]).astype(np.int64)
        sets = np.repeat(np.take_along_axis(few, which, 1)[:, None, :], c, 1)
        sets[np.arange(n), :, rng.integers(0, self.size, n)] = np.arange(c)
        return sets


def _views(o: Observations, n_classes: int) -> list[_View]:
    """What these observations show of classes; empty where it is nothing."""
    aggregate, sizes = o.aggregate, np.unique(o.sets.sizes)
    if len(sizes) > 4:
        sizes = sizes[np.linspace(0, len(sizes) - 1, 4).astype(int)]
    uniform = torch.zeros(int(o.sets.sizes[0]), n_classes, dtype=torch.float64)
    one = o.take([0])
    evaluate(aggregate, Categorical(n_classes)(uniform), one.sets, one.y)  # raises if it cannot be
    telling = [k for k in sizes.tolist() if aggregate.tells(Targets(n_classes, True), k)]
    aggregate = aggregate.bare
    if aggregate.identity_at_one:  # y is a target, or made of targets so that each one counts
        return [_Single(np.eye(n_classes))] if telling else []
    return [
        _Single(_given_class(aggregate, o, n_classes))
        if aggregate.size == 1
        else _Map(aggregate, size, n_classes)
        for size in telling
    ]


def _given_class(aggregate: Aggregate, o: Observations, n_classes: int) -> NDArray[np.float64]:
    """P(y | class) of sets of one, for every y there can be, or else every y there is."""
    y: Any = aggregate.outcome(Targets(n_classes, True), 1).values
    if y is None:
        assert o.y is not None
        y = np.unique(o.y[o.sets.sizes == 1], axis=0)
    y = np.asarray(y, float)
    # P is linear in the class probabilities, so rows that are not quite sure of a class will do
    probs = 0.9 * np.eye(n_classes) + 0.1 / n_classes
    logits = torch.from_numpy(np.log(np.tile(probs, (len(y), 1))))
    sets = Sets(np.arange(len(logits))[:, None])
    given = evaluate(aggregate, Categorical(n_classes)(logits), sets, y.repeat(n_classes, axis=0))
    out: NDArray[np.float64] = given.exp().numpy().reshape(-1, n_classes) @ np.linalg.inv(probs)
    return out


def _rearrangements(
    views: Sequence[_View], keys: NDArray[Any], first: tuple[int, int] | None = None
) -> Iterator[tuple[int, ...]]:
    """Every σ that no view notices, with σ(a) = b for `first` = (a, b), by depth-first search."""
    n = len(keys)
    steps = itertools.count()
    order = [c for c in range(n) if first is None or c != first[0]]
    begin = [] if first is None else [first]

    def extend(pairs: list[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
        if len(pairs) == n:
            yield tuple(b for _, b in sorted(pairs))
            return
        a = order[len(pairs) - len(begin)]
        used = {b for _, b in pairs}
        for b in sorted(set(range(n)) - used, key=lambda b: b != a):
            if (keys[a] == keys[b]).all() and next(steps) < SEARCHED:
                more = [*pairs, (a, b)]
                here, there = zip(*more, strict=True)
                if all(v.same(here, there) for v in views):
                    yield from extend(more)

    yield from extend(begin)
    if next(steps) >= SEARCHED and first is not None:  # not settled: count them as exchangeable
        a, b = first
        yield tuple({a: b, b: a}.get(c, c) for c in range(n))


def _exchangeable(views: Sequence[_View], n: int) -> tuple[list[list[int]], bool]:
    """Groups of classes that may change places, and whether they may do so in every way."""
    keys = np.column_stack([v.alike() for v in views])
    group, free = list(range(n)), True
    for b in range(n):
        for a in sorted({group[c] for c in range(b)} - {group[b]}):
            if not (keys[a] == keys[b]).all():
                continue
            found: tuple[int, ...] | None = tuple({a: b, b: a}.get(c, c) for c in range(n))
            if not all(v.same(range(n), found or ()) for v in views):
                found = next(_rearrangements(views, keys, (a, b)), None)
                free = free and found is None
            for c, d in enumerate(found or ()):
                old, new = max(group[c], group[d]), min(group[c], group[d])
                group = [new if g == old else g for g in group]
    groups = [[c for c in range(n) if group[c] == g] for g in sorted(set(group))]
    return [g for g in groups if len(g) > 1], free


def identify_classes(n: int, observations: Sequence[Observations]) -> Identifiability:
    """How far these observations tell the probabilities of n classes."""
    views = [view for o in observations for view in _views(o, n)]
    shown = np.concatenate([np.ones((1, n)), *(v.shown() for v in views)])
    _, size, axes = np.linalg.svd(shown, full_matrices=False)
    axes = axes[size > 1e-8 * size[0]]
    if len(axes) == 1:
        return Identifiability(
            NOTHING,
            "These labels say the same whatever the classes are, so nothing can be learned from "
            "them. Add observations of another kind.",
            scale=False,
        )
    swaps, free = _exchangeable(views, n)
    kinds = np.unique(axes.round(7), axis=1, return_inverse=True)[1].reshape(-1)
    permutation = any(len(set(kinds[list(s)])) > 1 for s in swaps)
    orders = None
    if permutation and not free:
        keys = np.column_stack([v.alike() for v in views])
        orders = list(itertools.islice(_rearrangements(views, keys), LISTED + 1))
        orders = orders if len(orders) <= LISTED else None
    facts: dict[str, Any] = {"permutation": permutation, "orders": orders}
    facts["swaps"] = swaps if permutation else []
    if len(axes) < n:
        return Identifiability(PARTLY, _partly(axes, kinds, permutation), **facts)
    if permutation:
        return Identifiability(PERMUTED, _permuted(swaps, n, orders), **facts)
    return Identifiability(
        EXACTLY,
        "Given enough sets, these labels tell the probability of every class for every row. "
        "Nothing needs to be aligned.",
    )


def _partly(axes: NDArray[np.float64], kinds: NDArray[Any], permutation: bool) -> str:
    """Which totals are told."""

    def told(v: NDArray[np.float64]) -> bool:
        return bool(np.linalg.norm(v - axes.T @ (axes @ v)) < 1e-6)

    blocks = [np.flatnonzero(kinds == k) for k in np.unique(kinds)]
    blocks = sorted(blocks, key=lambda b: int(b[0]))
    known = [b for b in blocks if told(np.isin(np.arange(len(kinds)), b).astype(float))]
    single = [int(b[0]) for b in known if len(b) == 1]
    totals = [listed(b) for b in known if len(b) > 1]
    words = []
    if single:
        words.append(f"the probability of class {listed(single)}")
    words += [f"only the total of the classes {total}" for total in totals]
    tell = ", ".join(words) or "only some sums of the classes' probabilities"
    return (
        f"These labels tell {tell}; how the rest is shared out among the other classes comes from "
        f"nowhere but the model's habits. "
        + ("Some classes may also come out swapped. " if permutation else "")
        + "A few labelled rows cannot repair that afterwards: add observations that tell those "
        "classes apart, such as `Direct` ones, to the fit."
    )


def _permuted(swaps: Sequence[Classes], n: int, orders: Sequence[Classes] | None) -> str:
    who = " and ".join(f"the classes {listed(s)}" for s in swaps)
    if len(swaps) == 1 and len(swaps[0]) == n:
        who = "the classes"
    how = ""
    if orders is not None:
        some = next(o for o in orders if list(o) != list(range(n)))
        how = f" (one of {len(orders)} ways to rearrange them is {list(some)})"
    return (
        f"These labels tell which rows belong together, but not which class is which: {who} may "
        f"come out in another order{how}. This supposes that each class has rows that clearly "
        f"belong to it; where every row is doubtful the labels tell less. `align` with a few "
        f"labelled rows of each class, or a few `Direct` observations in the fit, settle it."
    )
