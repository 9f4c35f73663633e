"""Sets of distinct rows: drawing them, and finding rows that are listed twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_distinct", "repeating", "repeats"]

Ints = NDArray[np.int64]
FEW = 20_000  # sets up to which each is drawn on its own
LARGE = 4  # sets of more than one row in so many are drawn by shuffling all rows
KEYS = 5_000_000  # random keys at a time


def draw_distinct(n_rows: int, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Members, set by set, of sets of these sizes: any distinct rows in any order, equally likely.

    Few sets are drawn one by one. Of many, all members are drawn at once, and those that a set has
    already are drawn again; large ones are the beginnings of shuffled lists of all rows. (Every
    step treats all rows alike, and so do the sets that come of it.)
    """
    if len(sizes) <= FEW:
        draws = [rng.choice(n_rows, k, replace=False, shuffle=True) for k in sizes]
        return np.concatenate(draws) if draws else np.zeros(0, np.int64)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    out: Ints = rng.integers(0, n_rows, len(ids))
    large = sizes > n_rows // LARGE
    offsets = np.cumsum(sizes) - sizes
    numbers = np.flatnonzero(large)
    step = max(1, KEYS // n_rows)
    for begin in range(0, len(numbers), step):
        part = numbers[begin : begin + step]
        shuffled = rng.random((len(part), n_rows)).argsort(1)
        first = np.arange(n_rows) < sizes[part][:, None]
        places = np.repeat(offsets[part], sizes[part]) + np.nonzero(first)[1]
        out[places] = shuffled[first]
    left = np.flatnonzero(~large[ids])  # places in `out` whose sets may have repeats
    while len(left):
        again = left[repeats(ids[left], out[left], n_rows)]
        out[again] = rng.integers(0, n_rows, len(again))
        concerned = np.zeros(len(sizes), dtype=bool)
        concerned[ids[again]] = True
        left = left[concerned[ids[left]]]
    return out


def repeats(ids: Ints, indices: Ints, n_rows: int) -> NDArray[np.bool_]:
    """Which members are rows that their set has listed before; `ids` are the sets' numbers."""
    keys = ids * n_rows + indices
    ordered = np.sort(keys)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    out = np.zeros(len(keys), dtype=bool)
    if len(twice):
        some = np.flatnonzero(np.isin(ids, twice // n_rows))  # the order of few is found faster
        few = some[keys[some].argsort(kind="stable")]
        out[few[1:]] = keys[few[1:]] == keys[few[:-1]]
    return out


def repeating(sets: Any) -> Ints:
    """The numbers of the sets that list a row more than once."""
    if not len(sets) or (sets.sizes == 1).all():
        return np.zeros(0, np.int64)
    if sets.size == 2:
        first, second = sets.indices.reshape(-1, 2).T
        return np.flatnonzero(first == second)
    ids = sets.set_ids
    return np.unique(ids[repeats(ids, sets.indices, sets.n_rows)])
