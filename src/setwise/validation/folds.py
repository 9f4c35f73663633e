"""Training and test sets that have no rows in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from sklearn.base import BaseEstimator

from setwise._random import seed_of
from setwise.learners.inputs import as_table, n_rows
from setwise.observations import Observations
from setwise.stored import Files

__all__ = ["Fold", "SetKFold", "divided", "listed"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
KEPT = 0.5  # of the training sets of a plain split, at least this share is kept
UNEVEN = 1.5  # a fold may hold this many times its share before components are cut
ENOUGH = 10  # held-out sets that a fold needs where there are plenty
NOTED = 0.1  # a warning is given if a fold leaves out more than this share of the sets


class Fold(NamedTuple):
    """One split: observations of the sets to learn from, and of those held out."""

    train: list[Observations]
    test: list[Observations]


class SetKFold(BaseEstimator):  # type: ignore[misc]
    """Splits observations into training and test sets, `n_splits` times; X stays as it is.

    `disjoint` says what the two must not have in common. With "rows" (the default) no row is in a
    training set and in a test set: otherwise a flexible learner remembers a row's target from the
    sets that it was trained on, and the score is too good. Sets that share rows, directly or
    through others, are kept together. If that would put nearly all of them into one fold (random
    overlapping sets), each fold holds out sets that lie close together, and other sets that share
    rows with them are left out of that fold: `dropped_` counts them, with a warning if they are
    more than a tenth. Large sets that overlap at random cannot be split in this way and raise an
    error.

    With "sets" every set is held out in exactly one fold and nothing is left out, but rows are
    shared: right for learners that cannot remember single rows (a linear model), or to measure how
    well sets of *known* rows are predicted. "auto" holds out rows where that is possible, and else
    sets, with a warning.

    With `shuffle=False` sets are taken in their given order: sets that follow each other in time
    make folds of whole periods.

    Attributes:
        dropped_: After `split`, the number of sets in neither part, for each fold.
        disjoint_: After `split`, "rows" or "sets".

    >>> import setwise as sw
    >>> windows = sw.Sets([[i, i + 1, i + 2] for i in range(98)])
    >>> means = sw.Mean().observe(np.arange(100.0), windows)
    >>> folds = SetKFold(5, random_state=0)
    >>> [(len(train[0]), len(test[0])) for train, test in folds.split(np.zeros((100, 1)), means)]
    [(76, 20), (74, 20), (74, 20), (75, 19), (77, 19)]
    >>> folds.dropped_
    [2, 4, 4, 4, 2]
    """

    def __init__(
        self,
        n_splits: int = 5,
        *,
        shuffle: bool = True,
        random_state: Any = None,
        disjoint: str = "rows",
    ) -> None:
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state
        self.disjoint = disjoint

    def get_n_splits(self, X: Any = None, observations: Any = None) -> int:
        """The number of folds."""
        return self.n_splits

    def split(self, X: Any, observations: Observations | Sequence[Observations]) -> Iterator[Fold]:
        """(train, test) for each fold, each a list with one `Observations` per kind that was given.

        The sets of all kinds are split together, since they share the rows of X.
        """
        if self.disjoint not in ("rows", "sets", "auto"):
            raise ValueError(f'disjoint is "rows", "sets" or "auto", got {self.disjoint!r}')
        kinds = listed(observations)
        n = sum(len(o) for o in kinds)
        if not 2 <= self.n_splits <= n:
            raise ValueError(
                f"n_splits must be at least 2 and at most the number of sets, {n}; got "
                f"{self.n_splits}"
            )
        table = X if isinstance(X, Files) else as_table(X)
        for o in kinds:
            if o.sets.n_rows > n_rows(table):
                raise ValueError(
                    f"{o!r} names row {o.sets.n_rows - 1}, but X has only {n_rows(table)} rows"
                )
        rng = np.random.default_rng(seed_of(self.random_state))
        order = rng.permutation(n) if self.shuffle else np.arange(n)
        bounds = np.cumsum([len(o) for o in kinds])[:-1]
        parts = None
        if self.disjoint != "sets":
            try:
                parts = self._without_shared_rows(_incidence(kinds), order)
            except ValueError:
                if self.disjoint == "rows":
                    raise
                warnings.warn(
                    f"these {n} sets share so many rows that no fold can hold rows out: it holds "
                    f"out sets, but not their rows, and scores of learners that can remember rows "
                    f"are too high",
                    UserWarning,
                    stacklevel=2,
                )
        self.disjoint_ = "sets" if parts is None else "rows"
        if parts is None:
            ranks = [r.argsort().argsort() for r in np.split(order.argsort(), bounds)]
            fold = np.concatenate(ranks) % self.n_splits  # each kind is spread over all folds
            parts = [(fold != i, fold == i) for i in range(self.n_splits)]
        self.dropped_ = [int(n - (train | test).sum()) for train, test in parts]
        if max(self.dropped_) > NOTED * n:
            warnings.warn(
                f"sets share rows: on average {np.mean(self.dropped_) / n:.0%} of the {n} sets are "
                f"left out of a fold, so that no row is both learned from and held out (see "
                f"SetKFold, `disjoint`)",
                UserWarning,
                stacklevel=2,
            )

        def take(mask: Mask) -> list[Observations]:
            return [o.take(m) for o, m in zip(kinds, np.split(mask, bounds), strict=True)]

        return iter([Fold(take(train), take(test)) for train, test in parts])

    def _without_shared_rows(
        self, incidence: sparse.csr_array, order: Ints
    ) -> list[tuple[Mask, Mask]]:
        n = incidence.shape[0]
        fold = _by_components(incidence, order, self.n_splits, self.shuffle)
        if fold is not None:
            return [(fold != i, fold == i) for i in range(self.n_splits)]
        if self.shuffle:
            order = _neighbours_together(incidence, order)
        held_out = np.zeros(n, dtype=bool)
        parts = []
        share = n / self.n_splits
        least = min(ENOUGH, math.ceil(share / 4))
        most_touched = n - int(KEPT * (n - share))
        for piece in np.array_split(order, self.n_splits):
            test, touched = _grow(incidence, piece, held_out, most_touched)
            if test.sum() < least or touched.all():
                raise ValueError(
                    f"these {n} sets share so many rows that a fold can hold out only "
                    f"{int(test.sum())} of them without leaving out most of the others. Use fewer "
                    f"folds, smaller or less overlapping sets, or SetKFold(disjoint='sets'), which "
                    f"holds out sets but not their rows: scores of flexible learners are then too "
                    f"high"
                )
            held_out |= test
            parts.append((~touched, test))
        return parts


def divided(
    X: Any, observations: Sequence[Observations], n_splits: int, seed: int, disjoint: str = "auto"
) -> tuple[list[Fold], str, list[int]]:
    """The folds of a fit, what their parts are apart in, and how many sets are in neither part.

    What is left out here is learned from in the end, so that there is no warning of it.
    """
    folds = SetKFold(n_splits, disjoint=disjoint, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(folds.split(X, observations))
    return found, folds.disjoint_, folds.dropped_


def listed(observations: Any) -> list[Observations]:
    """One or several `Observations`, as a list."""
    found = [observations] if isinstance(observations, Observations) else list(observations)
    if not all(isinstance(o, Observations) for o in found):
        raise TypeError(
            f"one Observations or a list of them is expected, got {observations!r}"[:500]
        )
    return found


def _incidence(kinds: Sequence[Observations]) -> sparse.csr_array:
    """Which rows each set holds: (sets of all kinds, rows)."""
    rows = np.concatenate([o.sets.indices for o in kinds])
    ends = np.concatenate([o.sets.sizes for o in kinds]).cumsum()
    out = sparse.csr_array((np.ones(len(rows), np.int32), rows, np.concatenate([[0], ends])))
    out.sum_duplicates()
    return out


def _bipartite(incidence: sparse.csr_array) -> sparse.csr_array:
    """The graph of sets (first) and rows."""
    return sparse.block_array([[None, incidence], [incidence.T, None]], format="csr")


def _by_components(
    incidence: sparse.csr_array, order: Ints, n_splits: int, shuffle: bool
) -> Ints | None:
    """The fold of each set such that connected sets share one; None where folds get too uneven."""
    n = incidence.shape[0]
    label = connected_components(_bipartite(incidence), directed=False)[1][:n]
    names, first, number, size = np.unique(
        label[order], return_index=True, return_inverse=True, return_counts=True
    )
    if size.max() > UNEVEN * n / n_splits or len(names) < n_splits:
        return None
    fold_of, load = np.empty(len(names), np.int64), np.zeros(n_splits)
    if shuffle:  # large components first, each to the emptiest fold
        for component in np.lexsort((first, -size)):
            fold_of[component] = load.argmin()
            load[load.argmin()] += size[component]
    else:  # one after another
        in_order = np.argsort(first)
        end = np.cumsum(size[in_order])
        fold_of[in_order] = (end - size[in_order] / 2) * n_splits // n
    if len(np.unique(fold_of)) < n_splits:
        return None
    out = np.empty(n, np.int64)
    out[order] = fold_of[number]
    return out


def _neighbours_together(incidence: sparse.csr_array, order: Ints) -> Ints:
    """The sets, ordered so that those that share rows are close (Cuthill and McKee, 1969)."""
    rows = np.random.default_rng(int(order[0])).permutation(incidence.shape[1])
    found = reverse_cuthill_mckee(_bipartite(incidence[order][:, rows]), symmetric_mode=True)
    out: Ints = order[found[found < len(order)]]
    return out


def _grow(incidence: sparse.csr_array, piece: Ints, held_out: Mask, most: int) -> tuple[Mask, Mask]:
    """(sets to hold out, sets that share rows with them), at most `most` of the latter.

    Sets of `piece` are held out one after another until too many others are touched; then every
    set whose rows are all held out anyway is held out as well, unless another fold did so.
    """
    n, n_row = incidence.shape
    when = np.full(n_row, n, np.int64)  # at which step a row is held out
    part = incidence[piece]
    np.minimum.at(when, part.indices, np.repeat(np.arange(len(piece)), np.diff(part.indptr)))
    starts = incidence.indptr[:-1]
    first = np.minimum.reduceat(when[incidence.indices], starts)
    last = np.maximum.reduceat(when[incidence.indices], starts)
    touched = np.sort(first).searchsorted(np.arange(1, len(piece) + 1))  # after each step
    steps = int(touched.searchsorted(most, side="right"))
    test = (last < steps) & ~held_out
    return test, first < steps
