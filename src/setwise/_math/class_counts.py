"""How many members are of each of C classes, exactly: a recursion over partial counts.

α(s), the probability that the first |s| members have the counts s = (s_1, …, s_C), satisfies
α(s) = Σ_c α(s − e_c) p_{|s|,c}. Every s belongs to one level |s|, so the whole costs
C · Π (counts_c + 1): the number of states, not that times the number of members. The same recursion
with K classes of count one gives the permanent of a K × K matrix, in K 2^K instead of K!.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.numerics import chunked, gather, logsumexp

MAX_STATES = 10**6

Ints = NDArray[np.int64]


def n_states(counts: tuple[int, ...]) -> int:
    """How many partial counts 0 ≤ s ≤ counts there are: Π (counts_c + 1)."""
    return math.prod(c + 1 for c in counts)


def n_compositions(size: int, n_classes: int) -> int:
    """How many partial counts of at most `size` members there are in all."""
    return math.comb(size + n_classes, n_classes)


def log_coefficient(logp: Tensor, counts: tuple[int, ...]) -> Tensor:
    """log Σ Π_i p_{i, c_i} over the assignments of members to classes that have these counts.

    `logp` is (n, K, C), not necessarily normalised, and the counts add up to K.

    >>> log_coefficient(torch.tensor([[[0.2, 0.8], [0.5, 0.5]]]).log(), (1, 1)).exp()
    tensor([0.5000])
    """
    used = [c for c, count in enumerate(counts) if count]
    return _recursion(logp[:, :, used], tuple(counts[c] for c in used))[:, 0]


def log_compositions(logp: Tensor) -> tuple[Tensor, Tensor]:
    """All possible counts of C classes, (states, C), and their log-probabilities, (n, states).

    >>> states, logs = log_compositions(torch.tensor([[[0.2, 0.8], [0.5, 0.5]]]).log())
    >>> states.tolist(), logs.exp()
    ([[0, 2], [1, 1], [2, 0]], tensor([[0.4000, 0.5000, 0.1000]]))
    """
    _, size, n_classes = logp.shape
    bounds = (size,) * n_classes
    states = torch.from_numpy(_levels(bounds, size)[1]).to(logp.device)
    return states, _recursion(logp, bounds)


_Levels = tuple[list[Tensor], Ints]


def _levels(bounds: tuple[int, ...], size: int) -> _Levels:
    """Where each state less one of each class stands in the level before, and the last states.

    The former is a table (states, C) for each level of states s ≤ bounds, |s| ≤ size; an entry past
    the end of the level before stands for a state that does not exist. Many small tables are kept
    in memory, few large ones.
    """
    small = min(n_states(bounds), n_compositions(size, len(bounds))) * len(bounds) <= 1 << 15
    return (_small_levels if small else _large_levels)(bounds, size)


def _make_levels(bounds: tuple[int, ...], size: int) -> _Levels:
    n_classes = len(bounds)
    radix = np.cumprod([1, *(b + 1 for b in bounds[:0:-1])], dtype=np.int64)[::-1]
    states = np.zeros((1, n_classes), np.int64)
    codes = np.zeros(1, np.int64)
    before = []
    for _ in range(size):
        larger = (codes[:, None] + radix)[states < bounds]
        next_codes = np.unique(larger)
        next_states = next_codes[:, None] // radix % (np.array(bounds) + 1)
        found = np.searchsorted(codes, next_codes[:, None] - radix)
        table = np.where(next_states > 0, found, len(codes)).astype(np.int32)
        before.append(torch.from_numpy(table))
        codes, states = next_codes, next_states
    return before, states


_small_levels = lru_cache(maxsize=1024)(_make_levels)
_large_levels = lru_cache(maxsize=8)(_make_levels)


def _recursion(logp: Tensor, bounds: tuple[int, ...]) -> Tensor:
    """log α of the last level: (n, states)."""
    tables = [table.to(logp.device) for table in _levels(bounds, logp.shape[1])[0]]

    def forward(piece: Tensor) -> Tensor:
        members = piece.permute(1, 2, 0)  # sets come last: rows of α are then copied whole
        alpha = members.new_zeros(1, members.shape[2])
        nothing = members.new_full((1, members.shape[2]), -math.inf)
        for table, logs in zip(tables, members, strict=True):
            reached = gather(torch.cat([alpha, nothing]), table.flatten())
            alpha = logsumexp(reached.unflatten(0, table.shape) + logs, 1)
        return alpha.T

    cost = sum(table.numel() for table in tables)
    return chunked(forward, logp.double(), cost=cost).to(logp.dtype)
