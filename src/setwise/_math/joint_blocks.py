"""Directions of many observations: of parts that share no rows, or each as if independent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from setwise._math.joint_normal import Contradiction, Directions, Infeasible

__all__ = ["Blocks", "Product", "directions"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TOGETHER = 1000  # observations of small parts that are taken together


def directions(A: sparse.csr_array, y: Floats, noise: Floats) -> Directions | Blocks:
    """The directions of N(A f, σ²AAᵀ + noise) at y; an error where they would cost too much."""
    try:
        return Directions(A, y, noise)
    except Infeasible:
        parts = _parts(A)
        if len(parts) == 1:
            raise
    return Blocks(A, y, noise, parts)


class Blocks:
    """`Directions` of several parts, one after another, with the attributes of one."""

    def __init__(
        self, A: sparse.csr_array, y: Floats, noise: Floats, parts: list[tuple[Ints, Ints]]
    ) -> None:
        self.n_rows: int = A.shape[1]
        self.blocks: list[tuple[Directions, Ints]] = []
        slots = []
        for sets, rows in parts:
            try:
                block = Directions(A[sets][:, rows], y[sets], noise[sets])
            except Contradiction as error:
                error.set = int(sets[error.set])
                raise
            self.blocks.append((block, rows))
            slots.append(sets[block.slot])
        each = [block for block, _ in self.blocks]
        self.slot = np.concatenate(slots)
        self.unit = np.concatenate([block.unit for block in each])
        self.noise = np.concatenate([block.noise for block in each])
        self.target = np.concatenate([block.target for block in each])
        self.constant = sum(block.constant for block in each)
        self.by_sets = all(block.by_sets for block in each)
        self._ends = np.cumsum([len(block) for block in each])[:-1]

    def __len__(self) -> int:
        return len(self.unit)

    def forward(self, rows: Any) -> Floats:
        """Ã times values at the rows, or a table of them."""
        return np.concatenate([block.forward(rows[own]) for block, own in self.blocks])

    def adjoint(self, along: Floats) -> Floats:
        """Ãᵀ times values of the directions."""
        out = np.zeros((self.n_rows, *along.shape[1:]))
        for (block, own), part in zip(self.blocks, np.split(along, self._ends), strict=True):
            out[own] = block.adjoint(part)
        return out

    def dual(self, along: Floats) -> Floats:
        """Values u of the observations `slot` such that Aᵀu equals Ãᵀ times the given values."""
        parts = zip(self.blocks, np.split(along, self._ends), strict=True)
        return np.concatenate([block.dual(part) for (block, _), part in parts])

    def diagonal(self, weight: Floats) -> Floats:
        """The diagonal of Ãᵀ·weight·Ã."""
        out = np.zeros(self.n_rows)
        for (block, own), part in zip(self.blocks, np.split(weight, self._ends), strict=True):
            out[own] = block.diagonal(part)
        return out


class Product:
    """The same interface, where every observation counts as independent of the others."""

    by_sets = True

    def __init__(self, A: sparse.csr_array, y: Floats, noise: Floats) -> None:
        self.n_rows: int = A.shape[1]
        self.matrix, self.across = A, A.T.tocsr()
        self.squares = self.across.multiply(self.across).tocsr()
        self.unit: Floats = np.asarray(self.squares.sum(0)).ravel()
        self.noise, self.target, self.slot = noise, y, np.arange(len(y))
        self.constant = 0.0

    def __len__(self) -> int:
        return len(self.unit)

    def forward(self, rows: Any) -> Floats:
        """A times values at the rows, or a table of them."""
        found = self.matrix @ rows
        out: Floats = found.toarray() if sparse.issparse(found) else found
        return out

    def adjoint(self, along: Floats) -> Floats:
        """Aᵀ times values of the observations."""
        out: Floats = self.across @ along
        return out

    def dual(self, along: Floats) -> Floats:
        """The same values."""
        return along

    def diagonal(self, weight: Floats) -> Floats:
        """The diagonal of Aᵀ·weight·A."""
        out: Floats = self.squares @ weight
        return out


def _parts(A: sparse.csr_array) -> list[tuple[Ints, Ints]]:
    """Sets and rows of parts that share no rows; small parts are put together."""
    m = A.shape[0]
    graph = sparse.block_array([[None, A], [A.T, None]])
    count, label = connected_components(graph, directed=False)
    sizes = np.bincount(label[:m], minlength=count)
    order = np.argsort(sizes, kind="stable")
    part = np.empty(count, np.int64)
    part[order] = np.maximum.accumulate(np.cumsum(sizes[order]) // TOGETHER)
    _, part = np.unique(part, return_inverse=True)
    of = part[label]
    by_part = np.argsort(of, kind="stable")
    ends = np.cumsum(np.bincount(of))[:-1]
    return [(p[p < m], p[p >= m] - m) for p in np.split(by_part, ends)]
