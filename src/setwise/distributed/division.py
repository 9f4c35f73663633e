"""Which process gets which sets and rows, and what that makes the processes exchange."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from setwise._peers import Peers
from setwise.objective import Objective
from setwise.objective.part import Guests, Part, Whole

__all__ = ["Division", "Share", "divide"]

Ints = NDArray[np.int64]
UNEVEN = 1.25  # times its share of the members that a process may get to keep components whole


class Share(NamedTuple):
    """What one process gets: rows of X, the terms of its sets, and facts about the others."""

    rows: Ints  # that it owns
    own: Objective  # over these rows and its guests
    whole: Whole
    guests: Guests

    def joined(self, peers: Peers) -> Part:
        """The objective, beside those that have the other shares."""
        return Part(self.own, self.whole, self.guests, peers)


class Division(NamedTuple):
    """The shares of all processes, and how many guests they have together."""

    shares: list[Share]
    guests: int


def divide(objective: Objective, n: int) -> Division:
    """The sets, cut into n shares of about as many members each.

    Sets that share rows, directly or through others, stay together where that leaves the shares
    even. Otherwise sets are cut apart, those of near rows together, and a row that sets of several
    shares name is owned by one of these and a guest of the others.

    >>> import setwise as sw
    >>> pairs = sw.Observations(sw.Difference(), [[0, 1], [1, 2], [3, 4], [4, 5]], [1, 1, 1, 1])
    >>> found = divide(Objective(sw.Normal(), [pairs], 6, "independent"), 2)
    >>> [share.rows.tolist() for share in found.shares], found.guests
    ([[0, 1, 2], [3, 4, 5]], 0)
    """
    terms = objective.terms
    sizes = np.concatenate([term.sets.sizes for term in terms])
    members = np.concatenate([term.sets.indices for term in terms])
    if len(sizes) < n:
        raise ValueError(f"{len(sizes)} sets are too few for {n} workers: use fewer workers")
    of = _by_components(members, sizes, objective.n_rows, n)
    if of is None:
        if not all(term.adds_up for term in terms):
            raise ValueError(
                f"the joint likelihood of sets that share rows cannot be cut apart, and the largest"
                f" group of sets that are connected by shared rows is more than one of {n} workers "
                f"should hold. Use overlap='independent', or fewer workers"
            )
        of = _by_rows(members, sizes, n)
    which = np.split(of, np.cumsum([len(term.sets) for term in terms])[:-1])
    held = [
        objective.only(
            [term.share(w == k) for term, w in zip(terms, which, strict=True) if (w == k).any()]
        ).batch()
        for k in range(n)
    ]
    owner = _owners([rows for rows, _ in held], objective.n_rows)
    whole = Whole.of(objective, int((owner >= 0).sum()))
    orders = [np.lexsort((rows, owner[rows], owner[rows] != k)) for k, (rows, _) in enumerate(held)]
    rows = [part.rows[order] for part, order in zip(held, orders, strict=True)]
    n_own = [int((owner[r] == k).sum()) for k, r in enumerate(rows)]
    guests = [r[m:] for r, m in zip(rows, n_own, strict=True)]
    counts = np.array([np.bincount(owner[g], minlength=n) for g in guests])  # (of whom, from whom)
    total, shares, place = int(counts.sum()), [], np.empty(objective.n_rows, np.int64)
    for k, ((_, part), order) in enumerate(zip(held, orders, strict=True)):
        own = rows[k][: n_own[k]]
        place[own] = np.arange(n_own[k])
        away = place[np.concatenate([g[owner[g] == k] for g in guests])]
        exchange = Guests(n_own[k], away, counts[:, k].tolist(), counts[k].tolist(), total)
        shares.append(Share(own, part.over(order), whole, exchange))
    return Division(shares, total)


def _owners(held: list[Ints], n_rows: int) -> Ints:
    """Which share owns each row: one of those that hold it, in turn; −1 for rows of none."""
    times = np.zeros(n_rows, np.int64)
    for rows in held:
        times[rows] += 1
    turn = np.arange(n_rows) % np.maximum(times, 1)
    owner = np.full(n_rows, -1)
    for k, rows in enumerate(held):
        owner[rows[turn[rows] == 0]] = k
        turn[rows] -= 1
    return owner


def _by_rows(members: Ints, sizes: Ints, n: int) -> Ints:
    """The share of each set, with sets ordered by the mean of their row numbers."""
    middle = np.add.reduceat(members, np.cumsum(sizes) - sizes) / sizes
    order = np.argsort(middle, kind="stable")
    share = np.empty(len(sizes), np.int64)
    share[order] = (np.cumsum(sizes[order]) - sizes[order] / 2) * n // sizes.sum()
    return share


def _by_components(members: Ints, sizes: Ints, n_rows: int, n: int) -> Ints | None:
    """The share of each set such that connected sets are in one; None where none would be even."""
    begins = np.cumsum(sizes) - sizes
    first = np.repeat(members[begins], sizes)
    graph = sparse.coo_array((np.ones(len(members), bool), (first, members)), (n_rows, n_rows))
    component = connected_components(graph, directed=False)[1][members[begins]]
    names, component = np.unique(component, return_inverse=True)
    weight = np.bincount(component, sizes)
    if len(names) < n:
        return None
    most = UNEVEN * weight.sum() / n
    if weight.max() > most:
        return None
    share = (np.cumsum(weight) - weight / 2) * n // weight.sum()
    share = share.astype(np.int64)
    load = np.bincount(share, weight, n).astype(np.float64)
    if load.max() > most or load.min() == 0:  # large ones first, each to the emptiest
        load[:] = 0.0
        for one in np.argsort(-weight, kind="stable"):
            share[one] = load.argmin()
            load[share[one]] += weight[one]
    return None if load.max() > most or load.min() == 0 else share[component]
