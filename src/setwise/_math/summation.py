"""Sums over the counts 0, 1, 2, …, set by set, in logs: few terms, however large the counts.

The counts are cut into blocks [start, start + 2^level). A block of 16 is summed term by term. A
longer one is summed from 17 of its terms, with weights that are exact for polynomials of degree 16,
where the summand is one; where it is not, the block is halved (see `quadrature`). A Poisson
distribution with mean 10⁶ takes about 200 terms, and one with mean 5 is summed as it stands.
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

from setwise._math.quadrature import (
    Floats,
    Integrand,
    Pieces,
    judge,
    last_coefficients,
    refine,
    weighted_sum,
)
from setwise.numerics import recomputed

__all__ = ["log_sum"]

_SHORT = 4  # blocks of 2⁴ are summed term by term
_LONG = 8  # blocks of 2⁸ and more may be summed from some of their terms
_AT_ONCE = 1 << 19  # elements


@dataclass(frozen=True)
class Blocks(Pieces):
    """Counts start, …, start + 2^level − 1."""

    start: Tensor
    level: Tensor

    def part(self, index: Tensor, count: Tensor) -> Self:
        """The blocks themselves, or their halves where the count is 2."""
        level = self.level - (count > 1).long()
        return replace(self, start=self.start + index * (1 << level), level=level)

    def divisible(self) -> Tensor:
        """Which blocks are longer than 16."""
        return self.level > _SHORT


@cache
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
    sums = np.empty(17)
    for j in range(17):  # Σ of the j-th Chebyshev polynomial over the block, by Euler–Maclaurin
        series = np.eye(17)[j]
        terms = [(chebint(series), 1.0)]
        terms += [(chebder(series), -(step**2) / 24), (chebder(series, 3), 7 * step**4 / 5760)]
        terms += [(chebder(series, 5), -31 * step**6 / 967680)]
        sums[j] = sum(c * (chebval(1, s) - chebval(-1, s)) for s, c in terms) / step
    if level < 14:
        sums = chebvander((np.arange(length) + 0.5) * step - 1, 16).sum(0)
    weights: Floats = np.linalg.solve(chebvander(points, 16).T, sums)
    return counts, weights, last_coefficients(points, 4) * length


_Rules = tuple[Tensor, Tensor, Tensor]


def _rules(top: int, like: Tensor) -> _Rules:
    """Counts, weights and maps to the last coefficients, of every level up to `top`."""
    every = [_sum_rule(level) for level in range(top + 1)]
    counts, weights, last = (like.new_tensor(np.stack(part)) for part in zip(*every, strict=True))
    return counts, weights, last


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
    step = max(1, _AT_ONCE // (300 * cost))
    pieces = []
    for i in range(0, max(len(most), 1), step):
        part = [t[i : i + step] for t in tensors]
        bound = most[i : i + step].detach()
        top = max(_SHORT, math.ceil(math.log2(max(float(bound.max()), 1.0) + 1)))
        rules = _rules(top, bound)

        def measure(blocks: Blocks, part: list[Tensor] = part, rules: _Rules = rules) -> Tensor:
            counts, weights, last = (rule[blocks.level] for rule in rules)
            h = term(blocks.start.unsqueeze(1) + counts, *(t[blocks.owner] for t in part))
            return judge(torch.where(weights == 0, -math.inf, h), weights, last)

        with torch.no_grad():
            blocks = refine(_first_blocks(bound, top), measure, len(bound))
            k = blocks.start.unsqueeze(1) + rules[0][blocks.level]
            log_weight = rules[1][blocks.level].log()
        total = weighted_sum(term, k, log_weight, blocks.owner, len(bound))
        pieces.append(recomputed(total, *part) if step < len(most) else total(*part))
    return torch.cat(pieces)


def _first_blocks(bound: Tensor, top: int) -> Blocks:
    """[0, 16), [16, 32), [32, 64), … up to the bound of each set."""
    level = torch.tensor([_SHORT, *range(_SHORT, top)], device=bound.device)
    start = torch.tensor([0, *(1 << j for j in range(_SHORT, top))], device=bound.device)
    keep = start <= bound.unsqueeze(1)
    owner = torch.arange(len(bound), device=bound.device).unsqueeze(1)
    every = (owner, start.to(bound), level)
    return Blocks(*(v.expand_as(keep)[keep] for v in every))
