"""How many members are of each of C classes, exactly: a recursion over partial counts.

α(s), the probability that the first |s| members have the counts s = (s_1, …, s_C), satisfies
α(s) = Σ_c α(s − e_c) p_{|s|,c}. Every s belongs to one level |s|, so the whole costs
C · Π (counts_c + 1): the number of states, not that times the number of members. The same recursion
with K classes of count one gives the permanent of a K × K matrix, in K 2^K instead of K!.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._math.automaton import log_reach
from setwise._math.padding import Packed, pieces
from setwise.numerics import at_once, chunked, gather, logsumexp, recomputed
from setwise.sets import Sets

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


def log_coefficient_of_few(logp: Tensor, sets: Sets, counts: Ints) -> Tensor:
    """`log_coefficient` for sets of any sizes, each with counts of its own, members listed flat.

    `logp` is (members, C) and `counts` (sets, C) with non-increasing rows: an automaton counts all
    classes but the first, as far as any set needs, for K · C · Π_{c>1} (counts_c + 1) steps a set.
    """
    bounds = tuple(counts.max(0)[1:].tolist())
    step, codes = _lattice(bounds)
    ends = torch.from_numpy((counts[:, 1:] * codes).sum(1)).to(logp.device)
    wanted = torch.arange(len(step), device=logp.device) == ends.unsqueeze(1)
    return log_reach(logp, sets, step, 0, wanted)


@lru_cache(maxsize=256)
def _lattice(bounds: tuple[int, ...]) -> tuple[Ints, Ints]:
    """An automaton that counts letters 1, 2, … up to these bounds; what each adds to a state."""
    shape = np.array(bounds, np.int64) + 1
    codes = np.cumprod([1, *shape[:0:-1]], dtype=np.int64)[::-1] if bounds else shape
    states = np.arange(shape.prod())
    digits = states[:, None] // codes % shape
    more = np.where(digits < shape - 1, states[:, None] + codes, -1)
    return np.concatenate([states[:, None], more], 1), codes


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


def log_mixture_of_compositions(
    logp: Tensor, sets: Sets, weigh: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """log Σ P(counts) · exp(weigh(counts, sets)) over all counts of C classes, for any sets.

    `logp` is (members, C), listed flat. `weigh` gets all counts of some number of members, (states,
    C), and the numbers of the sets that have so many; it returns (states, sets), without derivative
    where there are many sets. All sets take part in the recursion as long as they have members.
    """
    size, n_classes = int(sets.sizes.max()), logp.shape[1]
    tables = [t.to(logp.device) for t in _levels((size,) * n_classes, size)[0]]
    cost = n_compositions(size, n_classes) * n_classes // size + 1
    parts = pieces(sets, at_once(logp) // cost)

    def run(part: Sets, begin: int, logp: Tensor) -> Tensor:
        packed = Packed.of(part, logp)
        members = logp.index_select(0, packed.member).T
        alpha, out = members.new_zeros(1, len(part)), []
        for k, (low, high) in enumerate([*packed.runs, (0, 0)]):
            n = high - low
            if n < alpha.shape[1]:  # the last sets have no more members
                states = torch.from_numpy(_levels((k,) * n_classes, k)[1]).to(logp.device)
                own = packed.order[n : alpha.shape[1]] + begin
                out.append(logsumexp(alpha[:, n:] + weigh(states, own), 0))
                alpha = alpha[:, :n]
            if n:
                nothing = alpha.new_full((1, n), -math.inf)
                reached = gather(torch.cat([alpha, nothing]), tables[k].flatten())
                alpha = logsumexp(reached.unflatten(0, tables[k].shape) + members[:, low:high], 1)
        return torch.cat(out[::-1]).index_select(0, packed.rank)

    if len(parts) == 1:
        return run(sets, 0, logp)
    splits = [logp[sets.offsets[begin] : sets.offsets[end]] for begin, end, _ in parts]
    found = [
        recomputed(partial(run, part, begin), some)
        for (begin, _, part), some in zip(parts, splits, strict=True)
    ]
    return torch.cat(found)


_Levels = tuple[list[Tensor], Ints]


def _levels(bounds: tuple[int, ...], size: int) -> _Levels:
    """Indices, in the level before, of each state less one of each class; and the last states.

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
