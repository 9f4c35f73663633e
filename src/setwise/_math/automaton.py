"""The forward pass of a finite automaton that reads independent random letters.

Words of any lengths are read together: all first letters, then all second letters of the words that
have one. Probabilities are not taken as logarithms: all terms are positive and add up to one, so
what underflows is below 1e-300 of it, and a result above 1e-100 has all its digits. The few words
with a smaller result are recomputed in logs. The derivative with respect to a letter is its
posterior, from a second pass from the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise._autograd import call
from setwise._math.padding import Packed, pieces
from setwise.numerics import at_once, gather, logsumexp, recomputed, segment_logsumexp
from setwise.sets import Sets

_SURE = math.log(1e-100)  # a probability that large has lost nothing, and its cube is a number

Ints = NDArray[np.int64]


class _Edges(NamedTuple):
    """The edges into each state: from which state, and on which group of letters.

    `tail` is a list of (states · degree), with one past the last state where there is no edge;
    `group` the same, or None where the i-th edge into any state belongs to the i-th group. With
    `head`, which says where each edge leads, the lists are as long as there are edges.
    """

    tail: Tensor
    group: Tensor | None
    head: Tensor | None
    degree: int
    gaps: bool

    @classmethod
    def of(cls, heads: Ints, tails: Ints, groups: Ints, n_states: int, n_groups: int) -> _Edges:
        order = np.argsort(heads, kind="stable")
        heads, tails, groups = heads[order], tails[order], groups[order]
        number = np.bincount(heads, minlength=n_states)
        degree = int(number.max(initial=1))
        if n_states * degree > 4 * len(heads):
            listed = [torch.from_numpy(t) for t in (tails, groups, heads)]
            return cls(listed[0], listed[1], listed[2], 0, False)
        place = np.arange(len(heads)) - (np.cumsum(number) - number)[heads]
        alone = len(np.unique(heads * n_groups + groups)) == len(heads)
        plain = alone and 2 * n_groups <= 3 * degree
        if plain:
            degree, place = n_groups, groups
        tail, group = np.full((n_states, degree), n_states), np.zeros((n_states, degree), np.int64)
        tail[heads, place], group[heads, place] = tails, groups
        flat = torch.from_numpy(tail.reshape(-1))
        of_edge = None if plain else torch.from_numpy(group.reshape(-1))
        return cls(flat, of_edge, None, degree, len(heads) < tail.size)

    def to(self, device: torch.device) -> _Edges:
        group, head = (t if t is None else t.to(device) for t in (self.group, self.head))
        return self._replace(tail=self.tail.to(device), group=group, head=head)

    def weights(self, groups: Tensor) -> Tensor:
        """The weights of the edges, from those of the groups: (lines, letters)."""
        return groups if self.group is None else groups.index_select(0, self.group)

    def _moved(self, state: Tensor, nothing: float) -> Tensor:
        if self.gaps:
            state = torch.cat([state, state.new_full((1, state.shape[1]), nothing)])
        moved = state.index_select(0, self.tail)
        return moved if self.head is not None else self._by_edge(moved)

    def step(self, state: Tensor, weight: Tensor) -> Tensor:
        """The states after a step, (states, words), from those before it and the edge weights."""
        moved = self._moved(state, 0.0)
        if self.head is not None:
            return torch.zeros_like(state).index_add(0, self.head, moved * weight)
        return (moved * self._by_edge(weight)).sum(1)

    def log_step(self, state: Tensor, weight: Tensor) -> Tensor:
        """The same step in logs."""
        moved = self._moved(state, -math.inf)
        if self.head is not None:
            return segment_logsumexp(moved + weight, self.head, len(state))
        return logsumexp(moved + self._by_edge(weight), 1)

    def _by_edge(self, weight: Tensor) -> Tensor:
        """(states, degree, words), or (1, degree, words) for all states."""
        return weight.reshape(-1, self.degree, weight.shape[1])


class _Graph(NamedTuple):
    """An automaton: groups of letters as (groups, letters) of 0/1, ways into and out of states."""

    n_states: int
    groups: Tensor
    into: _Edges
    out_of: Tensor  # (states · letters), one past the last state where a word is lost

    @property
    def cost(self) -> int:
        """Elements that one letter takes."""
        return len(self.into.tail) + len(self.out_of) + len(self.groups)


@lru_cache(maxsize=64)
def _graph(step: bytes, n_states: int, device: torch.device) -> _Graph:
    table = np.frombuffer(step, np.int64).reshape(n_states, -1)
    n_letters = table.shape[1]
    code = np.arange(n_states)[:, None] * n_states + table
    codes, which = np.unique(code[table >= 0], return_inverse=True)
    letter = np.broadcast_to(np.arange(n_letters), table.shape)[table >= 0]
    on = np.zeros((len(codes), n_letters), bool)  # which letters lead from here to there
    on[which.reshape(-1), letter] = True
    _, first, group = np.unique(
        np.packbits(on, axis=1), axis=0, return_index=True, return_inverse=True
    )
    ends, group = np.divmod(codes, n_states), group.reshape(-1)
    into = _Edges.of(ends[1], ends[0], group, n_states, len(first))
    return _Graph(
        n_states,
        torch.from_numpy(on[first].astype(float)).to(device),
        into.to(device),
        torch.from_numpy(np.where(table < 0, n_states, table).reshape(-1)).to(device),
    )


@dataclass(frozen=True)
class _Words:
    """Which words are read by which automaton, and from where; without derivatives."""

    graph: _Graph
    packed: Packed
    start: Tensor  # (words,)

    def begin(self) -> Tensor:
        """Whether a state is the first of a word, (states, words) in packed order."""
        start = self.start[self.packed.order]
        return torch.arange(self.graph.n_states, device=start.device)[:, None] == start

    def read(self, state: Tensor, weight: Tensor, step: Any) -> tuple[Tensor, list[Tensor]]:
        """The last states, and those before each step; `weight` is (edges, packed letters)."""
        before = []
        for begin, end in self.packed.runs:
            n = end - begin
            now = state if n == state.shape[1] else state[:, :n]
            before.append(now)
            new = step(now, weight[:, begin:end])
            state = new if now is state else torch.cat([new, state[:, n:]], 1)
        return state, before

    def read_back(self, state: Tensor, p: Tensor, before: list[Tensor]) -> Tensor:
        """∂ of the probability by each letter, (C, packed), from the last states backwards."""
        parts = []
        for (begin, end), alpha in zip(self.packed.runs[::-1], before[::-1], strict=True):
            n = end - begin
            now = state if n == state.shape[1] else state[:, :n]
            after = torch.cat([now, now.new_zeros(1, n)]).index_select(0, self.graph.out_of)
            after = after.unflatten(0, (-1, len(p)))
            parts.append((alpha.unsqueeze(1) * after).sum(0))
            new = after.mul_(p[:, begin:end]).sum(1)
            state = new if now is state else torch.cat([new, state[:, n:]], 1)
        return torch.cat(parts[::-1], 1)

    def shares(self, wanted: Tensor) -> Tensor:
        """exp(wanted), or 1 where a mask holds: (states, words) in packed order."""
        ends = wanted.index_select(0, self.packed.order).T
        return (ends.double() if ends.dtype == torch.bool else ends.exp()).contiguous()

    def probability(self, p: Tensor, share: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Σ P(end) · share in packed order, from letters (C, packed) and shares (states, packed).

        With it P(end) and what came before each step.
        """
        groups = self.graph.groups.to(p.dtype) @ p
        into = self.graph.into
        end, before = self.read(self.begin().to(p.dtype), into.weights(groups), into.step)
        return (end * share).sum(0), end, before

    def log_probability(self, letters: Tensor, wanted: Tensor) -> Tensor:
        """log Σ P(end) · exp(wanted), all of it in logs."""
        logs = letters.index_select(0, self.packed.member).T
        on = (self.graph.groups > 0)[:, :, None]
        groups, into = logsumexp(torch.where(on, logs, -math.inf), 1), self.graph.into
        begin = torch.where(self.begin(), 0.0, -math.inf).to(logs.dtype)
        end, _ = self.read(begin, into.weights(groups), into.log_step)
        wanted = wanted.index_select(0, self.packed.order).T
        if wanted.dtype == torch.bool:
            wanted = torch.where(wanted, 0.0, -math.inf)
        out = logsumexp(end + wanted, 0)
        return out.index_select(0, self.packed.rank)

    def plain(self, letters: Tensor, wanted: Tensor) -> Tensor:
        """The same by probabilities, differentiable to any order where it is above zero."""
        p = letters.exp().index_select(0, self.packed.member).T
        found = self.probability(p, self.shares(wanted))[0]
        return torch.where(found > 0, found, 1.0).log().index_select(0, self.packed.rank)

    def posterior(self, p: Tensor, share: Tensor, ends: bool) -> tuple[Tensor, ...]:
        """log Σ P(end) · share by word, P(letter | seen) as (letters, C), and P(end | seen)."""
        found, end, before = self.probability(p, share)
        each = self.read_back(share, p, before)
        some = torch.where(found > 0, found, 1.0)
        total = torch.cat([some[: end - begin] for begin, end in self.packed.runs])
        letters = each * p / total
        out = found.log().index_select(0, self.packed.rank)
        of_letters = letters.T.index_select(0, self.packed.packed)
        if not ends:
            return out, of_letters
        return out, of_letters, (end * share / some).T.index_select(0, self.packed.rank)


class _Reach(torch.autograd.Function):
    """log Σ P(end) · exp(wanted) from normalised (letters, C) log-probabilities."""

    @staticmethod
    def forward(ctx: Any, letters: Tensor, wanted: Tensor, words: _Words) -> Tensor:
        packed = words.packed
        p = letters.exp().index_select(0, packed.member).T.contiguous()
        share = words.shares(wanted)
        ctx.words = words
        if not any(ctx.needs_input_grad[:2]):
            return words.probability(p, share)[0].log().index_select(0, packed.rank)
        out, *posteriors = words.posterior(p, share, ctx.needs_input_grad[1])
        ctx.save_for_backward(letters, wanted, *posteriors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        letters, wanted, of_letters, *of_ends = ctx.saved_tensors
        if not torch.is_grad_enabled():
            packed = ctx.words.packed
            each = torch.cat([grad[packed.order][: e - b] for b, e in packed.runs])
            each = each.index_select(0, packed.packed).unsqueeze(1)
            ends = of_ends[0] * grad.unsqueeze(1) if of_ends else None
            return of_letters * each, ends, None
        inputs = [
            t for t, need in zip((letters, wanted), ctx.needs_input_grad, strict=False) if need
        ]
        value = recomputed(ctx.words.plain, letters, wanted)
        found = iter(torch.autograd.grad(value, inputs, grad, create_graph=True))
        return (*(next(found) if need else None for need in ctx.needs_input_grad[:2]), None)


def log_reach(
    logp: Tensor,
    sets: Sets,
    step: Ints,
    start: Tensor | int,
    wanted: Tensor,
    normalised: bool = False,
) -> Tensor:
    """log Σ_s P(state s after the last letter) · exp(wanted_s), for words of any lengths; float64.

    The words are the flat `sets`, `logp` (letters, C) holds the log-probabilities of their letters,
    which need not be normalised. The automaton goes from state s to `step[s, c]` on letter c, and
    nowhere if that is −1. `start` is one state or one per word. `wanted` (words, states) holds
    logarithms of at most about 1, or is a mask of states. `normalised` says that no letter makes
    all paths together more likely by much. O(letters · states · C).

    >>> parity = np.array([[0, 1], [1, 0]])
    >>> logp = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    >>> log_reach(logp, Sets([[0, 1]]), parity, 0, torch.tensor([[True, False]])).exp()
    tensor([0.5000], dtype=torch.float64)
    """
    step = np.ascontiguousarray(step, np.int64)
    graph = _graph(step.tobytes(), len(step), logp.device)
    if isinstance(start, int):
        start = torch.full((len(sets),), start, device=logp.device)
    logp, wanted = logp.double(), wanted if wanted.dtype == torch.bool else wanted.double()
    letters, scale = logp, torch.zeros(())
    if not normalised:
        scale = logsumexp(logp, 1, keepdim=True)
        scale = torch.where(scale == -math.inf, 0.0, scale)
        letters = logp - scale
    out = []
    for begin, end, part in pieces(sets, at_once(logp) // graph.cost):
        some = letters[sets.offsets[begin] : sets.offsets[end]]
        ends = wanted[begin:end]
        words = _Words(graph, Packed.of(part, logp), start[begin:end])
        value = call(_Reach, some, ends, words)
        lost = ~(value.detach() > _SURE)
        if lost.any():
            which = lost.nonzero()[:, 0]
            few = part.take(which.cpu().numpy())
            again = _Words(graph, Packed.of(few, logp), words.start[which])
            given = gather(some, few.tensor("indices", some)), gather(ends, which)
            logs = recomputed(again.log_probability, *given)
            value = torch.where(lost, 0.0, value).index_copy(0, which, logs)
        out.append(value)
    return torch.cat(out) if normalised else torch.cat(out) + sets.sum(scale[:, 0])
