"""The forward pass of a finite automaton that reads independent random letters.

Words of any lengths are read together: all first letters, then all second letters of the words that
have one. Probabilities are not taken as logarithms: all terms are positive and add up to one, so
what underflows is below 1e-300 of it, and a result above 1e-200 has all its digits. The few words
below that are read again in logs. The derivative with respect to a letter is its posterior, from a
second pass from the end.
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

from setwise._math.padding import Packed, pieces
from setwise.numerics import gather, logsumexp, recomputed, segment_logsumexp
from setwise.sets import Sets

_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}  # elements
_SURE = math.log(1e-200)  # a probability that large has lost nothing to underflow

Ints = NDArray[np.int64]


class _Edges(NamedTuple):
    """What leads into each state: from which state, and on which group of letters.

    All are lists of (states · degree), or of so many as there are edges if there are many fewer:
    then `head` says where each one leads. `group` counts the lines of a matrix of groups, of which
    `none` is the empty one: for edges that are not there.
    """

    tail: Tensor
    group: Tensor
    degree: int
    head: Tensor | None

    @classmethod
    def of(cls, heads: Ints, tails: Ints, groups: Ints, n_states: int, none: int) -> _Edges:
        order = np.argsort(heads, kind="stable")
        heads, tails, groups = heads[order], tails[order], groups[order]
        number = np.bincount(heads, minlength=n_states)
        degree = int(number.max())
        if n_states * degree > 4 * len(heads):
            head = torch.from_numpy(heads)
            return cls(torch.from_numpy(tails), torch.from_numpy(groups), 0, head)
        place = np.arange(len(heads)) - (np.cumsum(number) - number)[heads]
        tail = np.zeros((n_states, degree), np.int64)
        group = np.full((n_states, degree), none)
        tail[heads, place], group[heads, place] = tails, groups
        return cls(*(torch.from_numpy(t.reshape(-1)) for t in (tail, group)), degree, None)

    def to(self, device: torch.device) -> _Edges:
        parts = (t if t is None else t.to(device) for t in (self.tail, self.group, self.head))
        tail, group, head = parts
        return _Edges(tail, group, self.degree, head)  # type: ignore[arg-type]

    def step(self, state: Tensor, weight: Tensor) -> Tensor:
        """The states after a step, from (states, words) and the weights of edges, (edges, words)."""
        moved = state.index_select(0, self.tail) * weight
        if self.head is None:
            return moved.unflatten(0, (-1, self.degree)).sum(1)
        return torch.zeros_like(state).index_add(0, self.head, moved)

    def log_step(self, state: Tensor, weight: Tensor) -> Tensor:
        """The same in logs."""
        moved = state.index_select(0, self.tail) + weight
        if self.head is None:
            return logsumexp(moved.unflatten(0, (-1, self.degree)), 1)
        return segment_logsumexp(moved, self.head, len(state))


class _Graph(NamedTuple):
    """An automaton: groups of letters as (groups, letters) of 0/1, edges into and out of states."""

    step: Tensor
    groups: Tensor
    into: _Edges
    out_of: _Edges

    @property
    def cost(self) -> int:
        """Elements that one letter takes."""
        return len(self.into.tail) + len(self.out_of.tail) + self.groups.numel() // 8


@lru_cache(maxsize=64)
def _graph(step: bytes, n_states: int, device: torch.device) -> _Graph:
    table = np.frombuffer(step, np.int64).reshape(n_states, -1)
    n_letters = table.shape[1]
    ends = np.stack([np.arange(n_states).repeat(n_letters), table.reshape(-1)], 1)
    pairs, which = np.unique(ends, axis=0, return_inverse=True)
    on = np.zeros((len(pairs) + 1, n_letters))  # which letters lead from here to there
    on[which.reshape(-1), np.tile(np.arange(n_letters), n_states)] = 1
    groups, group = np.unique(on, axis=0, return_inverse=True)
    *group, none = group.reshape(-1)
    into = _Edges.of(pairs[:, 1], pairs[:, 0], np.array(group), n_states, none)
    out_of = _Edges.of(pairs[:, 0], pairs[:, 1], np.array(group), n_states, none)
    return _Graph(
        torch.from_numpy(table.copy()).to(device),
        torch.from_numpy(groups).to(device),
        into.to(device),
        out_of.to(device),
    )


@dataclass(frozen=True)
class _Words:
    """Which words are read by which automaton, and from where to where; no derivatives in it."""

    graph: _Graph
    packed: Packed
    start: Tensor  # (words,)
    wanted: Tensor  # (words, states), bool

    def begin(self) -> Tensor:
        """1 at the start of each word, (states, words) in packed order."""
        start = self.start[self.packed.order]
        return torch.arange(len(self.graph.step), device=start.device)[:, None] == start

    def end(self) -> Tensor:
        """1 at the wanted states, (states, words) in packed order."""
        return self.wanted[self.packed.order].T

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

    def read_back(self, state: Tensor, weight: Tensor) -> list[Tensor]:
        """The probability of ending as wanted, from each state after each step."""
        after = []
        for begin, end in reversed(self.packed.runs):
            n = end - begin
            now = state if n == state.shape[1] else state[:, :n]
            after.append(now)
            new = self.graph.out_of.step(now, weight[:, begin:end])
            state = new if now is state else torch.cat([new, state[:, n:]], 1)
        return after[::-1]

    def probability(self, p: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """P(end as wanted) in packed order, from letters (C, packed); and what came before."""
        groups = self.graph.groups.to(p.dtype) @ p
        weight = groups.index_select(0, self.graph.into.group)
        state, before = self.read(self.begin().to(p.dtype), weight, self.graph.into.step)
        return (state * self.end()).sum(0), groups, before

    def log_probability(self, letters: Tensor) -> Tensor:
        """log P(end as wanted) from (letters, C) log-probabilities, all of it in logs."""
        logs = letters.index_select(0, self.packed.member).T
        on = (self.graph.groups > 0)[:, :, None]
        groups = logsumexp(torch.where(on, logs, -math.inf), 1)
        weight = groups.index_select(0, self.graph.into.group)
        begin = torch.where(self.begin(), 0.0, -math.inf).to(logs.dtype)
        state, _ = self.read(begin, weight, self.graph.into.log_step)
        out = logsumexp(state.masked_fill(~self.end(), -math.inf), 0)
        return out.index_select(0, self.packed.rank)

    def plain(self, letters: Tensor) -> Tensor:
        """log P(end as wanted) with probabilities, differentiable to any order where P > 0."""
        p = letters.exp().index_select(0, self.packed.member).T
        found = self.probability(p)[0]
        return torch.where(found > 0, found, 1.0).log().index_select(0, self.packed.rank)

    def posterior(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """log P(end as wanted) by word, and P(letter | end as wanted) as (letters, C)."""
        found, groups, before = self.probability(p)
        weight = groups.index_select(0, self.graph.out_of.group)
        after = torch.cat(self.read_back(self.end().to(p.dtype), weight), 1)
        alpha = torch.cat(before, 1)
        share = torch.stack(
            [(alpha * after.index_select(0, to)).sum(0) for to in self.graph.step.T]
        )
        some = torch.where(found > 0, found, 1.0)
        total = torch.cat([some[: end - begin] for begin, end in self.packed.runs])
        share = share * p / total
        return (
            found.log().index_select(0, self.packed.rank),
            share.T.index_select(0, self.packed.packed),
        )


class _Reach(torch.autograd.Function):
    """log P(end as wanted) from normalised (letters, C) log-probabilities."""

    @staticmethod
    def forward(ctx: Any, letters: Tensor, words: _Words) -> Tensor:
        p = letters.exp().index_select(0, words.packed.member).T.contiguous()
        ctx.words = words
        if not ctx.needs_input_grad[0]:
            return words.probability(p)[0].log().index_select(0, words.packed.rank)
        out, posterior = words.posterior(p)
        ctx.save_for_backward(letters, posterior)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        letters, posterior = ctx.saved_tensors
        if not torch.is_grad_enabled():
            packed = ctx.words.packed
            each = torch.cat([grad[packed.order][: e - b] for b, e in packed.runs])
            return posterior * each.index_select(0, packed.packed).unsqueeze(1), None
        value = recomputed(ctx.words.plain, letters)
        (out,) = torch.autograd.grad(value, letters, grad, create_graph=True)
        return out, None


def log_reach(logp: Tensor, sets: Sets, step: Ints, start: Tensor | int, wanted: Tensor) -> Tensor:
    """log P(a wanted state after the last letter), for words of any lengths; float64.

    The words are the flat `sets`, `logp` (letters, C) holds the log-probabilities of their letters,
    which need not be normalised. The automaton goes from state s to `step[s, c]` on letter c;
    `start` is one state or one per word, `wanted` (words, states) of bool.
    O(letters · states · C).

    >>> parity = np.array([[0, 1], [1, 0]])
    >>> logp = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    >>> log_reach(logp, Sets([[0, 1]]), parity, 0, torch.tensor([[True, False]])).exp()
    tensor([0.5000], dtype=torch.float64)
    """
    step = np.ascontiguousarray(step, np.int64)
    graph = _graph(step.tobytes(), len(step), logp.device)
    if isinstance(start, int):
        start = torch.full((len(sets),), start, device=logp.device)
    total = logsumexp(logp.double(), 1, keepdim=True)
    total = torch.where(total == -math.inf, 0.0, total)
    letters = logp - total
    budget = _AT_ONCE.get(logp.device.type, 1 << 20)
    out = []
    for begin, end, part in pieces(sets, budget // graph.cost):
        some = letters[sets.offsets[begin] : sets.offsets[end]]
        words = _Words(graph, Packed.of(part, logp), start[begin:end], wanted[begin:end])
        value: Tensor = _Reach.apply(some, words)  # type: ignore[no-untyped-call]
        lost = ~(value.detach() > _SURE)
        if lost.any():
            which = lost.nonzero()[:, 0]
            few = part.take(which.cpu().numpy())
            again = _Words(graph, Packed.of(few, logp), words.start[lost], words.wanted[lost])
            logs = recomputed(again.log_probability, gather(some, few.tensor("indices", some)))
            value = torch.where(lost, 0.0, value).index_copy(0, which, logs)
        out.append(value)
    return torch.cat(out) + sets.sum(total[:, 0])
