"""Leaf values of a tree, solved jointly by one small Newton system.

The members of a set depend on one another, and so do the best values of a tree's leaves: with the
diagonal of the Hessian alone a step is too long by a factor of the set size, and diverges.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from setwise.objective import Objective, Point

__all__ = ["Leaves", "positive", "solve_leaves"]

MAX_PRODUCTS = 12  # Hessian products of one solution by conjugate gradients
TOLERANCE = 1e-2  # of the squared residual: a step that is cut by the rate need not be exact


class Leaves:
    """The trees of one round: for each row and output, the number of its leaf.

    Leaves are numbered through all outputs, so that `n` is the length of a vector of leaf values.
    """

    def __init__(self, leaf: Tensor, counts: list[int]) -> None:
        self.counts = counts
        self.n = sum(counts)
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
        leaf = leaf.int()  # half of what is to be read
        self.index = leaf if len(counts) == 1 else leaf + torch.from_numpy(begins)

    def expand(self, values: Tensor) -> Tensor:
        """Leaf values as values of each row and output."""
        return values.index_select(0, self.index.reshape(-1)).reshape(self.index.shape)

    def reduce(self, rows: Tensor) -> Tensor:
        """Sums of (rows, outputs) over each leaf."""
        return torch.bincount(self.index.reshape(-1), rows.reshape(-1), minlength=self.n)


def positive(curvature: Tensor, objective: Objective) -> Tensor:
    """A curvature that trees can be grown on: its size, kept away from zero."""
    size = curvature.abs()
    floor = 0.05 * objective.mean(size)
    return torch.maximum(size, torch.where(floor > 0, floor, 1.0))


def solve_leaves(
    point: Point,
    leaves: Leaves,
    curvature: Tensor,
    penalty: Tensor | float,
    farthest: float = math.inf,
    unit: Tensor | None = None,
) -> Tensor:
    """The leaf values that minimise the loss to second order, with penalty/2 · Σ value².

    `curvature` is that of the rows, in `unit`s, one number per output. So is the penalty, since
    outputs may be in very different units. Where the loss is not convex, the absolute value of its
    curvature is used. Values are cut at `farthest`; if the loss would then rise along them, each
    leaf takes its own Newton step instead.
    """
    add = point.peers.sum
    gradient = add(leaves.reduce(point.gradient))
    counts = torch.tensor(leaves.counts)
    unit = torch.ones_like(curvature[0]) if unit is None else unit
    penalty = (penalty + 1e-6 * unit * add(curvature.sum(0)) / counts).repeat_interleave(counts)
    one = len(leaves.counts) == 1
    hessian = point.leaf_hessian(leaves.index[:, 0], leaves.n) if one else None
    own = unit.repeat_interleave(counts) * add(leaves.reduce(curvature))
    if hessian is None:
        step = _conjugate_gradients(point, leaves, gradient, own + penalty, penalty)
    else:
        hessian.diagonal().add_(penalty)
        step = _directly(hessian, gradient, 1e-2 * float(own.sum()) / leaves.n)
    step = step.clamp(-farthest, farthest)
    if float(step @ gradient) < 0:
        return step
    return (-gradient / (own + penalty)).clamp(-farthest, farthest)


def _directly(hessian: Tensor, gradient: Tensor, least: float) -> Tensor:
    """−H⁻¹g, with the size of its eigenvalues, at least `least`, where H is not positive."""
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if not failed:
        step: Tensor = torch.cholesky_solve(-gradient.unsqueeze(1), factor)
        return step.squeeze(1)
    values, vectors = torch.linalg.eigh(hessian)
    step = vectors @ ((vectors.T @ -gradient) / values.abs().clamp_min(least))
    return step


def _conjugate_gradients(
    point: Point, leaves: Leaves, gradient: Tensor, scale: Tensor, penalty: Tensor
) -> Tensor:
    """The same with products only, preconditioned by the diagonal `scale` (Steihaug).

    Where a part of the sets stands for all, products use that part, but for the diagonal of the
    Hessian, which is that of all sets: a leaf of few rows needs it.
    """
    part = point.part()
    own = None if part is point else point.curvature() - part.curvature()
    x = torch.zeros_like(gradient)
    rest = -gradient
    z = rest / scale
    direction = z
    size = float(rest @ z)
    first = size
    shared = torch.zeros_like(point.shared_gradient)
    for _ in range(MAX_PRODUCTS):
        if size <= TOLERANCE * first:
            break
        along = leaves.expand(direction)
        product = part.product(along, shared)[0]
        if own is not None:
            product += own * along
        product = point.peers.sum(leaves.reduce(product)) + penalty * direction
        bend = float(direction @ product)
        if bend <= 1e-10 * float(direction @ (scale * direction)):
            return x if bool(x.any()) else direction  # downhill, with the diagonal's length
        step = size / bend
        x = x + step * direction
        rest = rest - step * product
        z = rest / scale
        new = float(rest @ z)
        direction = z + new / size * direction
        size = new
    return x
