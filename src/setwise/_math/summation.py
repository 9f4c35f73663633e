"""Sums over the counts 0, 1, 2, …, set by set, in logs: few terms, however large the counts.

The counts are cut into blocks [start, start + 2^level). A block of 16 is summed term by term. A
longer one is summed from 17 of its terms, with weights that are exact for polynomials of degree 16,
and halved where the summand is no such polynomial (see `quadrature`). A Poisson distribution with
mean 10⁶ takes about 200 terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebder, chebint, chebval, chebvander
from torch import Tensor

from setwise._math.quadrature import Floats, Integrand, Pieces, adaptive_sum, last_coefficients

_SHORT = 4  # blocks of 2⁴ are summed term by term
_LONG = 8  # blocks of 2⁸ and more may be summed from some of their terms


@dataclass(frozen=True)
class Blocks(Pieces):
    """Counts start, …, start + 2^level − 1."""

    start: Tensor
    level: Tensor

    def part(self, index: Tensor, count: Tensor) -> Self:
        level = self.level - (count > 1).long()
        return replace(self, start=self.start + index * (1 << level), level=level)

    def divisible(self) -> Tensor:
        """Which blocks are longer than 16."""
        return self.level > _SHORT

    def trial(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        counts, weights, last = (self.start.new_tensor(t)[self.level] for t in _sum_rules())
        nothing = torch.where(weights == 0, -math.inf, 0.0)
        return self.start.unsqueeze(1) + counts, nothing, weights, last

    def rule(self) -> tuple[Tensor, Tensor]:
        counts, _, weights, _ = self.trial()
        return counts, weights.log()


def _sum_rule(level: int) -> tuple[Floats, Floats, Floats]:
    """17 counts of a block of 2^level, their weights, and the map to their last coefficients."""
    length = 1 << level
    if level <= _SHORT:
        counts = np.minimum(np.arange(17.0), length - 1)
        return counts, (np.arange(17) < length).astype(float), np.zeros((17, 4))
    if level < _LONG:  # too short for some terms to stand for all: whatever is there is an error
        counts = np.round(np.linspace(0, length - 1, 17))
        return counts, np.full(17, length / 17), np.full((17, 4), float(length))
    counts = np.round((1 - np.cos(np.pi * np.arange(17) / 16)) / 2 * (length - 1))
    step = 2 / length
    points = (counts + 0.5) * step - 1
    # Σ of the Chebyshev polynomials over the block, by Euler–Maclaurin
    unit = np.eye(17)
    terms = [(chebint(unit), 1.0), (chebder(unit), -(step**2) / 24)]
    terms += [(chebder(unit, 3), 7 * step**4 / 5760), (chebder(unit, 5), -31 * step**6 / 967680)]
    sums = sum(c * (chebval(1, s) - chebval(-1, s)) for s, c in terms) / step
    if level < 14:
        sums = chebvander((np.arange(length) + 0.5) * step - 1, 16).sum(0)
    weights: Floats = np.linalg.solve(chebvander(points, 16).T, sums)
    return counts, weights, last_coefficients(points, 4) * length


@cache
def _sum_rules() -> tuple[Floats, ...]:
    """Counts, weights and maps to the last coefficients, of every level below 63."""
    return tuple(np.stack(part) for part in zip(*map(_sum_rule, range(63)), strict=True))


def log_sum(term: Integrand, tensors: Sequence[Tensor], most: Tensor, *, cost: int) -> Tensor:
    """log Σ_k exp(term(k, *tensors)) over k = 0, 1, …, one for each entry of dimension 0.

    `tensors` are the parameters, with one entry per set; the term sees them gathered to its blocks.
    Terms above `most`, one number per set, do not matter. `cost` is the number of elements a term
    needs.

    >>> rate = torch.tensor([[2.0], [1e8]], dtype=torch.float64)
    >>> def poisson(k, rate):
    ...     return k * rate.log() - rate - torch.lgamma(k + 1)
    >>> log_sum(poisson, [rate], 2 * rate[:, 0] + 40, cost=1).abs() < 1e-6
    tensor([True, True])
    """
    return adaptive_sum(term, tensors, _first_blocks, most, cost=cost)


def _first_blocks(bound: Tensor) -> Blocks:
    """[0, 16), [16, 32), [32, 64), … up to the bound of each set."""
    top = math.ceil(math.log2(max(float(bound.max()), 1.0) + 1)) if len(bound) else 0
    level = torch.tensor([_SHORT, *range(_SHORT, top)], device=bound.device)
    start = torch.tensor([0, *(1 << j for j in range(_SHORT, top))], device=bound.device)
    keep = start <= bound.unsqueeze(1)
    owner = torch.arange(len(bound), device=bound.device).unsqueeze(1)
    every = (owner, start.to(bound), level)
    return Blocks(*(v.expand_as(keep)[keep] for v in every))
