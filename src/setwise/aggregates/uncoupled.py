"""Uncoupled: the targets of a set are known, but not which belongs to which member."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.class_counts import log_coefficient
from setwise.distributions import Continuous, Discrete, double, log_density, map_parameters
from setwise.likelihood import Aggregate, by_size, likelihood
from setwise.sets import Sets

__all__ = ["Uncoupled"]

MAX_SIZE = 16


@dataclass(frozen=True)
class Uncoupled(Aggregate):
    """All K targets of the set in unknown order, every one of the K! orders being equally likely.

    p(y) = (1/K!) Σ_π Π_k p_k(y_π(k)): the permanent of the matrix of densities, over K!. It takes
    K·2^K steps, for sets of up to 16 members. y is an array (n_sets, K) or a list of lists.

    >>> sorted(Uncoupled().observe([3.0, 1.0, 2.0], [[0, 1]], seed=0).y[0].tolist())
    [1.0, 3.0]

    Carpentier & Schlüter, "Learning relationships between data obtained independently", 2016.
    """

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> NDArray[np.float64]:
        order = np.lexsort((rng.random(len(z)), sets.set_ids))
        return _padded(z.double().numpy()[order], sets.sizes)

    def check_y(self, sets: Sets, y: Any) -> NDArray[np.float64]:
        large = sets.sizes > MAX_SIZE
        if large.any():
            at = int(large.argmax())
            raise ValueError(
                f"set {at} has {sets.sizes[at]} members: {self!r} sums over all orders, which is "
                f"possible for up to {MAX_SIZE}; use smaller sets"
            )
        if y is None or len(y) != len(sets):
            found = "None" if y is None else f"{len(y)} entries"
            raise ValueError(
                f"{self!r} needs the list of targets of each of {len(sets)} sets, got {found}"
            )
        try:
            rows = [np.asarray(row, np.float64).reshape(-1) for row in y]
        except (TypeError, ValueError) as error:
            raise TypeError(f"{self!r} needs lists of numbers as y: {error}") from error
        rows = [row[~np.isnan(row)] for row in rows]  # NaN pads shorter lists
        for at, (row, size) in enumerate(zip(rows, sets.sizes, strict=True)):
            if len(row) != size:
                raise ValueError(
                    f"set {at} has {size} member(s) but {len(row)} target(s), NaN not counted: "
                    f"{self!r} needs one for each member"
                )
            if not np.isfinite(row).all():
                raise ValueError(f"set {at} has y = {row.tolist()}: targets must be finite")
        return _padded(np.concatenate([*rows, np.zeros(0)]), sets.sizes)


def _padded(values: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lists of these sizes as the lines of one array, filled up with NaN."""
    width = int(sizes.max(initial=0))
    out = np.full((len(sizes), width), np.nan)
    out[np.arange(width) < sizes[:, None]] = values
    return out


@likelihood(Uncoupled, Continuous)
@likelihood(Uncoupled, Discrete)
@by_size
def _uncoupled(aggregate: Uncoupled, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Permanent of the members' densities at the targets, by recursion over subsets; K·2^K."""
    assert sets.size is not None
    members = map_parameters(double(distribution), lambda t: t.unsqueeze(1))
    targets = sets.repeat(y[:, : sets.size].double())
    matrix = sets.dense(log_density(members, targets))
    permanent = log_coefficient(matrix, (1,) * sets.size)
    return (permanent - math.lgamma(sets.size + 1)).to(y.dtype)
