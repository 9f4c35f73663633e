"""P(z₁ > z₂ > … > z_K) for any densities, by running integrals on one mesh per set.

Sets of smooth and light densities are left to `even_nodes`, which costs a tenth. The others:

    G_{K+1} = 1,   G_k(x) = ∫_{−∞}^x p_k(s) G_{k+1}(s) ds,   P = G₁(∞): only densities are needed.

Cells are those of `quadrature`, with nine nodes each (Chebyshev points, both ends included). The
log of each integrand, h = log p_k + log G_{k+1}, is taken as a polynomial in its cell and
integrated from node to node with positive weights, so that log G_k is known at the nodes to high
relative accuracy. Between two nodes an exponential is integrated exactly however steep it is:
members far out of order, which crowd together at a compromise, need no finer mesh.

Cells are split, without gradient, where members may be (their posterior given the order, from
running integrals from the left and from the right) and h is not yet a polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.even_nodes import UNKNOWN, log_ordered_evenly
from setwise._math.graded import graded
from setwise._math.groups import piecewise
from setwise._math.integration_axis import Line
from setwise._math.quadrature import (
    Cells,
    Floats,
    clenshaw_curtis,
    last_coefficients,
    mesh,
    rebuild,
)
from setwise.distributions import parameters
from setwise.numerics import gather, logcumsumexp, logsumexp, recomputed

_N = 8  # intervals between the nodes of a cell
_POINTS, _WEIGHTS = clenshaw_curtis(_N)
_LAST = last_coefficients(_POINTS, 3)
_GAUSS, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)
_STEEP = 6.0  # a larger change of h between two nodes is put into the weights
_AGREE, _BEND = 1e-8, 0.01  # aims for the last coefficients of log p, and for the bends of h
_NOISE = 64 * torch.finfo(torch.float64).eps
_DROP = 45.0
_ROUNDS = 60
_LONG = 32  # of longer chains only the running integrals are kept for the backward pass
_AT_ONCE = 1 << 20  # elements


def log_ordered(d: Distribution) -> Tensor:
    """log P(z₁ > z₂ > …) for members batched as (sets, K), in float64; K is at least 2.

    The relative error of the probability is about 1e-11 for members of comparable scale, 1e-8 where
    scales differ by many orders or an order is violated by many scales.

    >>> d = torch.distributions.Gumbel(torch.zeros(1, 4).double(), torch.ones(1, 4).double())
    >>> 1 / log_ordered(d).exp()  # 4!
    tensor([24.0000], dtype=torch.float64)
    """
    quick = log_ordered_evenly(d, Line.of(d))
    left = quick.detach() >= UNKNOWN
    if not left.any():
        return quick

    def by_cells(at: Tensor) -> Tensor:
        return _by_cells(rebuild(d, (gather(p, at) for p in parameters(d).values())))

    return piecewise((~left, partial(gather, quick)), (left, by_cells))


def _by_cells(d: Distribution) -> Tensor:
    """The same by running integrals in logs, on a mesh of its own for each set."""
    size = d.batch_shape[1]

    def plan(*part: Tensor) -> Callable[..., Tensor]:
        members = rebuild(d, part)
        line = Line.of(members)
        grid = _Grid(_place(members, line), len(part[0]))

        def integrate(below: Tensor, *values: Tensor) -> Tensor:
            member = rebuild(d, values)
            out = _running(grid.log_density(member, line) + below, grid.inside)
            return out + _kink(member, grid, below, out) if line.kinked else out

        def total(*part: Tensor) -> Tensor:
            below = torch.zeros_like(grid.x)
            for k in reversed(range(size)):
                values = [p[:, k] for p in part]
                long = size > _LONG
                below = recomputed(integrate, below, *values) if long else integrate(below, *values)
            return below[:, -1, -1]

        return total

    def value(*part: Tensor) -> Tensor:
        return torch.no_grad()(plan)(*part)(*part)

    return graded(value, *parameters(d).values(), cost=400 * size, budget=_AT_ONCE)


def _kink(member: Any, grid: _Grid, below: Tensor, out: Tensor) -> Tensor:
    """Zero, but with the second derivative of log G_k that fixed nodes miss.

    ∂²p/∂loc² of a Laplace density has, beside p/scale², the atom −1/scale² at x = loc.
    """
    with torch.no_grad():
        loc, scale = member.loc[:, None, None], member.scale[:, None, None]
        there = torch.where(grid.x == loc, below, -math.inf).amax((1, 2), keepdim=True)
        atom = (there - 2 * scale.log() - out).exp()
        atom = torch.where(grid.x[:, :, :1] >= loc, atom, 0.0)
    move: Tensor = (member.loc - member.loc.detach())[:, None, None]
    return -0.5 * move * move * atom


# ---- running integrals; h is (sets, cells, 9)


def _bend_matrix() -> Floats:
    """From h at the nodes to (a, b, c) in each interval: h = linear + t(1 − t)(a + b t + c t²)."""
    polynomial = np.linalg.inv(chebyshev.chebvander(_POINTS, _N))
    t = np.array([0.25, 0.5, 0.75])
    shape = (t * (1 - t))[:, None] * np.vander(t, 3, increasing=True)
    nodes = _POINTS[:-1, None] + t * np.diff(_POINTS)[:, None]
    inner = chebyshev.chebvander(nodes, _N) @ polynomial
    unit = np.eye(_N + 1)
    linear = (1 - t)[:, None] * unit[:-1, None] + t[:, None] * unit[1:, None]
    return np.linalg.solve(shape, inner - linear).transpose(2, 0, 1)


def _second_differences() -> Floats:
    """From h at the nodes to how far it lies above the chord past each inner node."""
    out = np.zeros((_N + 1, _N - 1))
    for i in range(_N - 1):
        left, middle, right = _POINTS[i : i + 3]
        share = (middle - left) / (right - left)
        out[i : i + 3, i] = share - 1, 1, -share
    return out


def _shape_matrix() -> Floats:
    """From (value at t = 0, rise, a, b, c) to h at Gauss points of 0 ≤ t ≤ 1."""
    t = (_GAUSS + 1) / 2
    return np.stack([np.ones_like(t), t, *(t * (1 - t) * t**k for k in range(3))])


_BENDS, _SECOND, _SHAPES = _bend_matrix(), _second_differences(), _shape_matrix()


def _between_nodes(h: Tensor) -> Tensor:
    """log of the integral of exp(h) between adjacent nodes: (…, 9) to (…, 8)."""
    bends = torch.einsum("...n,nij->...ij", h - h[..., _N // 2, None], h.new_tensor(_BENDS))
    # where h is no polynomial (there is no mass there), chords between its nodes are safer
    wild = bends.detach().abs().amax((-1, -2), keepdim=True) > 4
    bends = torch.where(wild, 0.0, bends)
    left, right = h[..., :-1], h[..., 1:]
    top, rise = torch.where(right < left, left, right), right - left
    steep = rise.detach().abs() > _STEEP
    # h − top at Gauss points, linear in its value at the left end, its rise and its bends
    shape = [torch.where(steep, 0.0, part) for part in (left - top, rise)]
    inner = torch.cat([torch.stack(shape, -1), bends], -1) @ h.new_tensor(_SHAPES)
    inner = (inner.exp() @ h.new_tensor(_GAUSS_WEIGHTS / 2)).log()
    if steep.any():
        there = torch.zeros_like(inner).masked_scatter(steep, _steep(rise[steep], bends[steep]))
        inner = torch.where(steep, there, inner)
    return top + inner + h.new_tensor(np.diff(_POINTS)).log()


def _steep(rise: Tensor, bends: Tensor) -> Tensor:
    """log ∫₀¹ exp(h − top) dt where the rise of h goes into the weights: exact without bends."""
    rise = rise.unsqueeze(-1)
    fall = torch.where(rise < 0, -rise, rise)
    v, w = rise.new_tensor((_GAUSS + 1) / 2), rise.new_tensor(_GAUSS_WEIGHTS / 2)
    with torch.no_grad():
        # exp(−m s) ds is uniform in v where s = −log(1 − v (1 − e⁻ᵐ)) / m
        loss = -torch.expm1(-fall)
        s = -torch.log1p(-v * loss) / fall
        log_weight = (w * loss / fall).log() + fall * s
        t = torch.where(rise < 0, s, 1 - s)
    a, b, c = bends.unsqueeze(-1).unbind(-2)
    bend = t * (1 - t) * (a + t * (b + t * c))
    return logsumexp(bend - fall * s + log_weight, -1)


def _running(h: Tensor, inside: Tensor, *, rough: bool = False) -> Tensor:
    """log ∫ exp(h) up to each node; with `rough`, without derivatives and linear between nodes."""
    if rough:
        fall = (h[..., 1:] - h[..., :-1]).abs().clamp_min(1e-9)
        between = torch.maximum(h[..., 1:], h[..., :-1]) + (-torch.expm1(-fall) / fall).log()
        between = between + h.new_tensor(np.diff(_POINTS)).log()
    else:
        between = _between_nodes(h)
    # left of all cells: an exponential with the slope of the first interval
    slope = ((h[:, 0, 1] - h[:, 0, 0]) / float(_POINTS[1] - _POINTS[0])).detach().clamp_min(1e-3)
    start = (h[:, 0, 0] - slope.log()).unsqueeze(1)
    between = torch.where(inside.unsqueeze(-1), between, -math.inf)
    return _cumulated(start, between, rough)


def _cumulated(start: Tensor, between: Tensor, rough: bool) -> Tensor:
    """Running sums of exp(between) at the nodes of each cell, on top of exp(start).

    In logs only from cell to cell, and in cells where h is so steep that a sum would underflow.
    """
    cumulate = torch.logcumsumexp if rough else logcumsumexp
    top = between.detach().amax(-1)
    some = torch.where(top == -math.inf, 0.0, top)
    sums = (between - some.unsqueeze(-1)).exp().cumsum(-1)
    last = sums[..., -1]
    whole = torch.where(last > 0, torch.where(last > 0, last, 1.0).log() + some, -math.inf)
    before = cumulate(torch.cat([start, whole], 1), 1)[:, :-1]
    high = torch.maximum(top, before.detach())
    total = (before - high).exp().unsqueeze(-1) + sums * (top - high).exp().unsqueeze(-1)
    lost = total.detach() < 1e-100  # whose cube is no number, and third derivatives need it
    steep = lost.any(-1).nonzero(as_tuple=True)
    out = torch.where(lost, 1.0, total).log() + high.unsqueeze(-1)
    own = torch.cat([before[steep].unsqueeze(-1), between[steep]], -1)
    out = out.index_put(steep, cumulate(own, 1)[:, 1:])
    return torch.cat([before.unsqueeze(-1), out], -1)


# ---- the mesh


class _Grid:
    """The cells of some sets as a rectangle (sets, cells, 9), the last cell repeated as padding."""

    def __init__(self, cells: Cells, n: int) -> None:
        counts = torch.bincount(cells.owner, minlength=n).unsqueeze(1)
        column = torch.arange(int(counts.max()), device=counts.device)
        number = counts.cumsum(0) - counts + torch.minimum(column, counts - 1)
        self.inside = column < counts
        self.x, self.log_dx = (v[number] for v in cells.nodes(_POINTS))

    def log_density(self, member: Distribution, line: Line) -> Tensor:
        """log p dx of one member per set, kept finite."""
        d = rebuild(member, (p[:, None, None] for p in parameters(member).values()))
        x = self.x
        if line.kinked:  # a cell that ends at a kink must see its own side of it
            ends = torch.zeros_like(x)
            ends[..., 0], ends[..., -1] = math.inf, -math.inf
            x = torch.where(ends == 0, x, torch.nextafter(x, ends))
        return (line.log_density(d, x) + self.log_dx).clamp_min(-1e290)


def _place(d: Distribution, line: Line) -> Cells:
    """The cells of each set, split until every member's integrand is resolved where it may be."""
    tensors = list(parameters(d).values())
    n, size = line.centres.shape
    cells = mesh(*line.places())
    most = 160 + size // 8 + 4 * torch.bincount(cells.owner, minlength=n)
    done: list[Cells] = []
    active = torch.arange(n, device=cells.owner.device)
    for left in reversed(range(_ROUNDS)):
        place = torch.full((n,), -1, device=active.device)
        place[active] = torch.arange(len(active), device=active.device)
        owner = place[cells.owner]
        grid = _Grid(replace(cells, owner=owner), len(active))
        mass, error = _posterior(rebuild(d, (p[active] for p in tensors)), line, grid)
        crowded = torch.bincount(owner, minlength=len(active)) > most[active]
        bad = (error > 1) & cells.divisible() & ~crowded[owner] & (left > 0)
        again = torch.zeros_like(crowded)
        again[owner[bad]] = True
        going = again[owner]
        done.append(cells.take(~going & (mass > -_DROP)))
        if not going.any():
            break
        # the error falls with about the 8th power of the length
        parts = torch.where(bad, error.clamp(1, 1e5).pow(1 / 8).ceil().long().clamp_min(2), 1)
        cells, _ = cells.take(going).split(parts[going])
        active = active[again]
    joined = Cells(*(torch.cat([getattr(c, f.name) for c in done]) for f in fields(Cells)))
    return joined.take(joined.owner.argsort(stable=True))


def _posterior(d: Distribution, line: Line, grid: _Grid) -> tuple[Tensor, Tensor]:
    """For each cell, the log of the largest share of a member's posterior, and error over aim."""
    tensors = list(parameters(d).values())
    size = d.batch_shape[1]
    density = [grid.log_density(rebuild(d, (p[:, k] for p in tensors)), line) for k in range(size)]
    above = [torch.zeros_like(grid.x)]  # log P(z₁ > … > z_k > x)
    for h in density[:-1]:
        h = (h + above[-1]).flip(1, 2)
        above.append(_running(h, grid.inside.flip(1), rough=True).flip(1, 2))
    below = torch.zeros_like(grid.x)
    mass = torch.full_like(below[..., 0], -math.inf)
    error = torch.zeros_like(mass)
    weights, last, second = (below.new_tensor(a) for a in (_WEIGHTS, _LAST, _SECOND))
    for own, beyond in zip(density[::-1], above[::-1], strict=True):
        h = own + below
        both = h + beyond
        share = torch.where(grid.inside, torch.logsumexp(both + weights.log(), -1), -math.inf)
        share = share - torch.logsumexp(share, 1, keepdim=True)
        noise = _NOISE * both.abs().amax(-1)
        rough = (own @ last).abs().amax(-1) / (_AGREE + noise)
        bent = (both @ second).abs().amax(-1) / (_BEND + noise)
        off = torch.maximum(rough, bent**5)
        mass = torch.maximum(mass, share)
        error = torch.maximum(error, torch.where(off > 0, share.exp() * off, 0.0))
        below = _running(h, grid.inside, rough=True)
    return mass[grid.inside], error[grid.inside]
