"""Held-out sets of rows that are not in memory: no more of them than fit there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from setwise.objective import Objective, Stream
from setwise.observations import Observations
from setwise.stored import Ranges

__all__ = ["Held", "held_in_turn"]

Mask = NDArray[np.bool_]
Held = tuple[Stream, list[Observations]]
SHARE = 1 / 8  # of the memory that a table may take up, for rows that are held out
KEPT = 0.5  # of the sets, at least, are learned from where rows are to be held out with their sets
CHUNK = 1 << 12  # sets that are looked at together


def held_in_turn(
    objective: Objective, seed: int, parts: int, turns: int, fewest: int
) -> tuple[list[Held], str] | None:
    """The sets to learn from and those held out, in each turn; None for other objectives.

    A random part of the sets is held out, as far as it fits in memory. Other
    sets that name their rows are learned from only where most would be lost otherwise.
    """
    if not isinstance(objective, Stream) or not all(
        isinstance(o.sets, Ranges) for o in objective.kinds
    ):
        return None
    rng, kinds = np.random.default_rng(seed), objective.kinds
    many = [o if len(o) >= fewest else o.take([]) for o in kinds]
    most = SHARE * objective.X.memory / (8 * objective.X.width) / max(sum(map(len, many)), 1)
    orders = [np.array_split(rng.permutation(len(o)), parts) for o in many]
    if not any(map(len, many)):
        return None
    out, apart = [], "rows"
    for turn in range(turns):
        held = []
        for o, full, pieces in zip(many, kinds, orders, strict=True):
            mask = np.zeros(len(full), bool)
            piece = pieces[turn]
            if len(piece):
                fits = np.cumsum(o.sets.sizes[piece]) <= most * len(o)
                mask[piece[: max(1, int(fits.sum()))]] = True
            held.append(mask)
        test = [o.take(mask) for o, mask in zip(kinds, held, strict=True)]
        away = _touched(kinds, test, objective.n_rows)
        if sum(int((~mask).sum()) for mask in away) < KEPT * objective.n_sets:
            away, apart = held, "sets"
        out.append((objective.without(away), [o for o in test if len(o)]))
    return out, apart


def _touched(
    kinds: Sequence[Observations], held: Sequence[Observations], n_rows: int
) -> list[Mask]:
    """Which sets of each kind name a row of a set that is held out."""
    rows = np.zeros(n_rows, bool)
    for o in held:
        rows[o.sets.indices] = True
    out = []
    for o in kinds:
        found = [np.zeros(0, bool)]
        for begin in range(0, len(o), CHUNK):
            part = o.sets.take(slice(begin, begin + CHUNK))
            found.append(np.logical_or.reduceat(rows[part.indices], part.offsets[:-1]))
        out.append(np.concatenate(found))
    return out
