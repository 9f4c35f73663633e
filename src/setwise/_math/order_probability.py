"""P(z₁ > z₂ > … > z_K) for any densities, by running integrals on one mesh per set.

Sets of smooth and light densities are left to `even_nodes`, which costs a tenth. The others:

    G_{K+1} = 1,   G_k(x) = ∫_{−∞}^x p_k(s) G_{k+1}(s) ds,   P = G₁(∞): only densities are needed.

Members may be tied, which is to say that their order is not known: see `tied_orders`.

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
from collections.abc import Sequence
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
from setwise._math.tied_orders import Sizes, Steps, integrals, log_beside
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


def log_ordered(d: Distribution, tied: Sizes | None = None) -> Tensor:
    """log P(z₁ > z₂ > …) for members batched as (sets, K), in float64; K is at least 2.

    `tied` says how many members, from the first on, are tied with one another: (1, 2, 3) for the
    first, then two whose order is not known, then three more. By default it is (1, …, 1).

    The relative error of the probability is about 1e-11 for members of comparable scale, 1e-8 where
    scales differ by many orders or an order is violated by many scales.

    >>> d = torch.distributions.Gumbel(torch.zeros(1, 4).double(), torch.ones(1, 4).double())
    >>> 1 / log_ordered(d).exp()  # 4!
    tensor([24.0000], dtype=torch.float64)
    >>> 1 / log_ordered(d, (1, 3)).exp()
    tensor([4.0000], dtype=torch.float64)
    """
    tied = (1,) * d.batch_shape[1] if tied is None else tied
    quick = log_ordered_evenly(d, Line.of(d), tied)
    left = quick.detach() >= UNKNOWN
    if not left.any():
        return quick

    def by_cells(at: Tensor) -> Tensor:
        return _by_cells(rebuild(d, (gather(p, at) for p in parameters(d).values())), tied)

    return piecewise((~left, partial(gather, quick)), (left, by_cells))


def _by_cells(d: Distribution, tied: Sizes) -> Tensor:
    """The same by running integrals in logs, on a mesh of its own for each set."""
    cost = integrals(tied)

    def value(*part: Tensor) -> Tensor:
        with torch.no_grad():
            members = rebuild(d, part)
            line = Line.of(members)
            grid = _Grid(_place(members, line, tied), len(part[0]))
        return _Logs(d, part, line, grid, cost > _LONG).walk(tied)[:, -1, -1]

    return graded(value, *parameters(d).values(), cost=400 * cost, budget=_AT_ONCE)


class _Logs(Steps[Tensor]):
    """Running integrals in logs at the nodes of cells, (sets, cells, 9)."""

    def __init__(
        self, like: Distribution, tensors: Sequence[Tensor], line: Line, grid: _Grid, long: bool
    ) -> None:
        self.like, self.tensors, self.line, self.grid, self.long = like, tensors, line, grid, long

    def begin(self) -> Tensor:
        return torch.zeros_like(self.grid.x)

    def _tails(self, members: range, *, upper: bool) -> Tensor:
        """(members, sets, cells, 9)"""
        some = slice(members.start, members.stop)
        d = rebuild(self.like, (t[:, some].T[:, :, None, None] for t in self.tensors))
        return self.line.log_tail(d, self.grid.points(self.line), upper=upper)

    def below(self, members: range) -> Tensor:
        return self._tails(members, upper=False).sum(0)

    def above_beside(self, members: range, below: Tensor) -> list[Tensor]:
        if len(members) == 1:
            return [below]
        return [*(log_beside(self._tails(members, upper=True)) + below)]

    def integral(self, terms: Sequence[tuple[int, Tensor]]) -> Tensor:
        given = [t for k, below in terms for t in (below, *(p[:, k] for p in self.tensors))]
        return recomputed(self._integral, *given) if self.long else self._integral(*given)

    def _integral(self, *given: Tensor) -> Tensor:
        """Of some members, each with what is below it and its parameters."""
        each = 1 + len(self.tensors)
        terms = [
            (below, rebuild(self.like, values))
            for below, *values in (given[i : i + each] for i in range(0, len(given), each))
        ]
        h = [self.grid.log_density(member, self.line) + below for below, member in terms]
        out = _running(h[0] if len(h) == 1 else logsumexp(torch.stack(h), 0), self.grid.inside)
        if self.line.kinked:
            out = out + sum(_kink(member, self.grid, below, out) for below, member in terms)
        return out


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

    def points(self, line: Line) -> Tensor:
        """The nodes; at the ends of a cell on its own side of a kink that is there."""
        if not line.kinked:
            return self.x
        ends = torch.zeros_like(self.x)
        ends[..., 0], ends[..., -1] = math.inf, -math.inf
        return torch.where(ends == 0, self.x, torch.nextafter(self.x, ends))

    def log_density(self, member: Distribution, line: Line) -> Tensor:
        """log p dx of one member per set, kept finite."""
        d = rebuild(member, (p[:, None, None] for p in parameters(member).values()))
        return (line.log_density(d, self.points(line)) + self.log_dx).clamp_min(-1e290)


def _place(d: Distribution, line: Line, tied: Sizes) -> Cells:
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
        mass, error = _posterior(rebuild(d, (p[active] for p in tensors)), line, grid, tied)
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


def _densities(d: Distribution, line: Line, grid: _Grid, tied: Sizes) -> list[Tensor]:
    """Of each member, best first; of groups of tied ones, those that the integrals run over.

    These are the smallest of the first group and the largest of the last. A group in between is
    taken for as many members of the mixture of all of them.
    """
    tensors = list(parameters(d).values())
    tails = _Logs(d, tensors, line, grid, False)
    out, end = [], 0
    for i, n in enumerate(tied):
        group = range(end, end + n)
        end += n
        own = [grid.log_density(rebuild(d, (p[:, k] for p in tensors)), line) for k in group]
        between = 0 < i < len(tied) - 1
        if n > 1 and not between:
            beside = log_beside(tails._tails(group, upper=i == 0))
            own = [h + rest for h, rest in zip(own, beside, strict=True)]
        out += [torch.stack(own).logsumexp(0)] * (n if between else 1) if n > 1 else own
    return out


def _posterior(d: Distribution, line: Line, grid: _Grid, tied: Sizes) -> tuple[Tensor, Tensor]:
    """For each cell, the log of the largest share of a member's posterior, and error over aim."""
    density = _densities(d, line, grid, tied)
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
