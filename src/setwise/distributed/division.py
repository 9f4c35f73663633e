"""Which process gets which sets, and what that makes the processes exchange."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from setwise._peers import Peers
from setwise.objective import Objective
from setwise.objective.part import Held, Part, Whole

__all__ = ["Division", "Share", "divide"]

Ints = NDArray[np.int64]
UNEVEN = 1.25  # times its share of the members that a process may get to keep components whole


class Share(NamedTuple):
    """What one process gets: rows of X, the terms of its sets over these rows, and facts."""

    rows: Ints
    own: Objective
    whole: Whole
    held: Held

    def joined(self, peers: Peers) -> Part:
        """The objective, beside those that have the other shares."""
        return Part(self.own, self.whole, self.held, peers)


class Division(NamedTuple):
    """The shares of all processes, and how many of the rows are with more than one of them."""

    shares: list[Share]
    common: int


def divide(objective: Objective, n: int) -> Division:
    """The sets, cut into n shares of about as many members each.

    Sets that share rows, directly or through others, stay together where that leaves the shares
    even. Otherwise sets are cut apart in their order: a row that is then in several shares is held
    by each of them and owned by one.

    >>> import setwise as sw
    >>> pairs = sw.Observations(sw.Difference(), [[0, 1], [1, 2], [3, 4], [4, 5]], [1, 1, 1, 1])
    >>> found = divide(Objective(sw.Normal(), [pairs], 6, "independent"), 2)
    >>> [share.rows.tolist() for share in found.shares], found.common
    ([[0, 1, 2], [3, 4, 5]], 0)
    """
    terms = objective.terms
    sizes = np.concatenate([term.sets.sizes for term in terms])
    members = np.concatenate([term.sets.indices for term in terms])
    if len(sizes) < n:
        raise ValueError(f"{len(sizes)} sets are too few for {n} workers: use fewer workers")
    of = _components(members, sizes, objective.n_rows, n)
    if of is None:
        if not all(term.adds_up for term in terms):
            raise ValueError(
                f"the joint likelihood of sets that share rows cannot be cut apart, and the largest"
                f" group of sets that are connected by shared rows is more than one of {n} workers "
                f"should hold. Use overlap='independent', or fewer workers"
            )
        of = (np.cumsum(sizes) - sizes / 2) * n // sizes.sum()
        of = of.astype(np.int64)
    ends = np.cumsum([len(term.sets) for term in terms])
    which = np.split(of, ends[:-1])
    batches = [
        objective.only(
            [term.take(w == k) for term, w in zip(terms, which, strict=True) if (w == k).any()]
        ).batch()
        for k in range(n)
    ]
    times = np.zeros(objective.n_rows, np.int64)
    for rows, _ in batches:
        times[rows] += 1
    number = np.cumsum(times > 1) - 1
    whole = Whole.of(objective, int((times > 0).sum()))
    common, taken, shares = int((times > 1).sum()), np.zeros(objective.n_rows, bool), []
    for rows, own in batches:
        here = np.flatnonzero(times[rows] > 1)
        held = Held(~taken[rows], here, number[rows[here]], common)
        taken[rows] = True
        shares.append(Share(rows, own, whole, held))
    return Division(shares, common)


def _components(members: Ints, sizes: Ints, n_rows: int, n: int) -> Ints | None:
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
