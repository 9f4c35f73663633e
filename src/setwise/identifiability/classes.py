"""What labels tell about classes: which may change places, and where only totals are determined.

Suppose that every class has rows that surely belong to it. Then any model that fits the labels of a
map T of classes as well as the truth does differs from the truth in two ways only: by a
rearrangement of the classes that T does not notice, and by what no label depends on. Labels depend
on the probabilities p of a row only through products with the vectors [T(·, rest) = y], which mark
the classes that give y together with the rest of the set. (At the sure rows such a model must put
its mass on classes that T cannot distinguish from the right ones. If T distinguishes any two
classes this is one class each, and no two share it: a rearrangement. With sure rows as the rest of
a set, labels then determine every other row through those vectors.) Both are found by evaluating T.

Without sure rows more may be lost: a linear map p → p + Dp of all rows' probabilities, where the
columns of D add up to 0, leaves P(y) of every set as it is, to first order, if Σ_k Σ_c D(c, z_k)
[T(z with c in place k) = y] = 0 for all tuples z and all y. (Wherever the vectors above span all
classes and the rows' probabilities do so too, there are no other continuous families.) That two
classes alike go unnoticed under rotations is said with every permutation; where there is no
permutation, such a family makes the difference between "exactly" and "only in part". (It is looked
for where all tuples of classes are tried.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from setwise.distributions import Categorical
from setwise.identifiability import facts
from setwise.identifiability.facts import Identifiability, listed
from setwise.likelihood import Aggregate, Targets, evaluate
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["identify_classes"]

TABLE = 20_000  # tuples of classes that are all tried; beyond, some are drawn
DRAWN = 256
SEARCHED = 20_000  # partial rearrangements tried before two classes count as exchangeable
LISTED = 1_000  # rearrangements kept where they are not all those within groups
FEW, MANY = 4, 64  # set sizes that are looked at: at first, and where these do not tell everything
EXAMINED = 24  # classes: with more, families of linear maps are not looked for

Classes = Sequence[int]
Bools = NDArray[np.bool_]


@dataclass
class _Single:
    """What sets of one member determine: P(y | class), as a matrix (outcomes, classes)."""

    matrix: NDArray[np.float64]

    def alike(self) -> Any:
        """For each class a key; classes with different keys cannot take each other's place."""
        return np.unique(self.matrix.round(9), axis=1, return_inverse=True)[1].reshape(-1)

    def same(self, here: Classes, there: Classes) -> bool:
        """Whether labels stay the same when each class of `here` is replaced by that of `there`."""
        a, b = self.matrix[:, list(here)], self.matrix[:, list(there)]
        return bool(np.allclose(a, b, atol=1e-9))

    def shown(self) -> NDArray[np.float64]:
        """Vectors v, as rows: labels depend on the probabilities p of a row through Σ v(c) p(c)."""
        return self.matrix

    def fixes(self) -> NDArray[np.float64]:
        """AᵀA of the equations A vec(D) = 0 of linear maps D that no label notices."""
        own = self.matrix.T @ self.matrix
        return np.asarray(np.kron(own, np.eye(len(own))), np.float64)


@dataclass
class _Map:
    """What T determines for sets of one size, from all tuples of classes or a random sample."""

    aggregate: Aggregate
    size: int
    n_classes: int

    def values(self, z: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each tuple of classes (a row of z) a number, equal where T is equal."""
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
        return self.values(np.indices(shape).reshape(self.size, -1).T).reshape(shape)

    def alike(self) -> Any:
        return self.values(np.arange(self.n_classes).repeat(self.size).reshape(-1, self.size))

    def same(self, here: Classes, there: Classes) -> bool:
        if self.table is not None:
            a, b = (self.table[np.ix_(*[list(c)] * self.size)] for c in (here, there))
            return bool((a == b).all())
        which = np.random.default_rng(0).integers(0, len(here), (DRAWN, self.size))
        seen = self.values(np.concatenate([np.asarray(here)[which], np.asarray(there)[which]]))
        return bool((seen[:DRAWN] == seen[DRAWN:]).all())

    def shown(self) -> NDArray[np.float64]:
        if self.table is not None:
            turned = [np.moveaxis(self.table, k, -1) for k in range(self.size)]
            seen = np.concatenate([t.reshape(-1, self.n_classes) for t in turned])
        else:
            seen = self.values(self._contexts().reshape(-1, self.size))
            seen = seen.reshape(-1, self.n_classes)
        seen = np.unique(seen, axis=0)
        cells = (seen[:, :, None] == seen[:, None, :]).reshape(-1, self.n_classes)
        return np.unique(cells, axis=0).astype(float)

    def fixes(self) -> NDArray[np.float64]:
        c, k = self.n_classes, self.size
        if self.table is None:  # not looked for
            return np.eye(c * c)
        z = np.indices(self.table.shape).reshape(k, -1)
        turned = [[*z[:j], np.full_like(z[j], b), *z[j + 1 :]] for j in range(k) for b in range(c)]
        seen = np.stack([self.table[tuple(t)] for t in turned]).reshape(k, c, -1)
        out = np.zeros((c * c, c * c))
        for y in np.unique(self.table):
            hit = seen == y
            some = np.flatnonzero(hit.any((0, 1)))
            rows = np.zeros((len(some), c, c))  # (tuple, z_k, class in its place), over all k
            for j in range(k):
                rows[np.arange(len(some)), z[j, some]] += hit[j][:, some].T
            flat = rows.reshape(len(some), -1)
            out += flat.T @ flat
        return out

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


View = _Single | _Map


def _views(o: Observations, n_classes: int, most: int) -> Sequence[View]:
    """What these observations determine of classes, from so many set sizes; empty if nothing."""
    aggregate, sizes = o.aggregate, np.unique(o.sets.individuals)
    if len(sizes) > most:  # small sets show most; of others, sizes with and without a common factor
        near = sizes[: most // 2]
        far = np.linspace(most // 2, len(sizes) - 1, most - most // 2).astype(int)
        sizes = np.concatenate([near, sizes[far]])
    uniform = torch.zeros(int(o.sets.sizes[0]), n_classes, dtype=torch.float64)
    one = o.take([0])
    evaluate(aggregate, Categorical(n_classes)(uniform), one.sets, one.y)  # raises if not possible
    telling = [k for k in sizes.tolist() if aggregate.informative(Targets(n_classes, True), k)]
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
    """P(y | class) of sets of one, for every possible y, or else for every observed one."""
    y: Any = aggregate.outcome(Targets(n_classes, True), 1).values
    if y is None:
        assert o.y is not None
        y = np.unique(o.y[o.sets.individuals == 1], axis=0)
    y = np.asarray(y, float)
    # P is linear in the class probabilities, so near-certain rows are enough
    probs = 0.9 * np.eye(n_classes) + 0.1 / n_classes
    logits = torch.from_numpy(np.log(np.tile(probs, (len(y), 1))))
    sets = Sets(np.arange(len(logits))[:, None])
    given = evaluate(aggregate, Categorical(n_classes)(logits), sets, y.repeat(n_classes, axis=0))
    out: NDArray[np.float64] = given.exp().numpy().reshape(-1, n_classes) @ np.linalg.inv(probs)
    return out


def _rearrangements(
    views: Sequence[View], keys: NDArray[Any], first: tuple[int, int] | None = None
) -> Iterator[tuple[int, ...]]:
    """Every σ that leaves all views as they are, with σ(a) = b if `first` is (a, b).

    By depth-first search.
    """
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
    if next(steps) >= SEARCHED and first is not None:  # undecided: count them as exchangeable
        a, b = first
        yield tuple({a: b, b: a}.get(c, c) for c in range(n))


def _exchangeable(views: Sequence[View], n: int) -> tuple[list[list[int]], bool]:
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
    """How far these observations determine the probabilities of n classes."""
    found = _identify(n, observations, FEW)
    several = max(len(np.unique(o.sets.individuals)) for o in observations)
    if found == facts.EXACTLY or several <= FEW:
        return found
    return _identify(n, observations, MANY)


def _unnoticed(views: Sequence[View], n: int) -> int:
    """The dimension of the linear maps of all rows' probabilities that no label notices."""
    if n > EXAMINED:
        return 0
    sums = np.kron(np.eye(n), np.ones((1, n)))  # D takes no row off the simplex
    total = sum((v.fixes() for v in views), sums.T @ sums)
    size = np.linalg.eigvalsh(total)
    return int((size < 1e-9 * size[-1]).sum())


def _identify(n: int, observations: Sequence[Observations], most: int) -> Identifiability:
    views = [view for o in observations for view in _views(o, n, most)]
    shown = np.concatenate([np.ones((1, n)), *(v.shown() for v in views)])
    _, size, axes = np.linalg.svd(shown, full_matrices=False)
    axes = axes[size > 1e-8 * size[0]]
    if len(axes) == 1:
        return facts.NOTHING_TOLD
    swaps, free = _exchangeable(views, n)
    kinds = np.unique(axes.round(7), axis=1, return_inverse=True)[1].reshape(-1)
    permutation = any(len(set(kinds[list(s)])) > 1 for s in swaps)
    orders = None
    if permutation and not free:
        keys = np.column_stack([v.alike() for v in views])
        orders = list(itertools.islice(_rearrangements(views, keys), LISTED + 1))
        orders = orders if len(orders) <= LISTED else None
    if len(axes) < n:
        level, words = facts.PARTLY, _partly(axes, kinds, permutation)
    elif permutation:
        level, words = facts.PERMUTED, _permuted(swaps, n, orders)
    elif family := _unnoticed(views, n):
        level = facts.PARTLY
        words = (
            f"Where no row surely belongs to a class, these labels leave {family} of the numbers "
            f"open that turn all rows' probabilities into others: the labels would be as likely "
            f"with those. Add observations of another kind, such as `Direct` ones, to the fit."
        )
    else:
        level = facts.EXACTLY
        words = (
            "In principle, given enough sets, these labels determine the probability of every "
            "class for every row. Nothing needs to be aligned."
        )
    swaps = swaps if permutation else []
    return Identifiability(level, words, permutation=permutation, orders=orders, swaps=swaps)


def _partly(axes: NDArray[np.float64], kinds: NDArray[Any], permutation: bool) -> str:
    """Which totals are determined."""

    def determined(v: NDArray[np.float64]) -> bool:
        return bool(np.linalg.norm(v - axes.T @ (axes @ v)) < 1e-6)

    blocks = [np.flatnonzero(kinds == k) for k in np.unique(kinds)]
    blocks = sorted(blocks, key=lambda b: int(b[0]))
    known = [b for b in blocks if determined(np.isin(np.arange(len(kinds)), b).astype(float))]
    single = [int(b[0]) for b in known if len(b) == 1]
    totals = [listed(b) for b in known if len(b) > 1]
    words = []
    if single:
        words.append(f"the probability of class {listed(single)}")
    words += [f"only the total of the classes {total}" for total in totals]
    tell = ", ".join(words) or "only some sums of the classes' probabilities"
    return (
        f"These labels tell {tell}; how the model divides the rest among the other classes is "
        f"arbitrary. "
        + ("Some classes may also be swapped. " if permutation else "")
        + "A few labelled rows cannot repair that afterwards: add observations that distinguish "
        "those classes, such as `Direct` ones, to the fit."
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
        f"be in another order{how}. This assumes that each class has rows that clearly belong to "
        f"it; if no row is certain the labels tell less. `align` with a few labelled rows of each "
        f"class, or add a few `Direct` observations."
    )
