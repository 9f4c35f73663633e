"""The forward pass of a finite automaton that reads independent random letters."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.numerics import chunked, segment_logsumexp

__all__ = ["forward"]


def forward(logp: Tensor, step: NDArray[np.int64], start: int) -> Tensor:
    """log P(state after the last letter), (words, states), for letters of log-probability `logp`.

    `logp` is (words, K, C); the automaton goes from state s to `step[s, c]` on letter c. Log
    probabilities need not be normalised. O(K · states · C) per word; in logs, so a state that is
    merely improbable never becomes impossible.

    >>> parity = np.array([[0, 1], [1, 0]])
    >>> forward(torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log(), parity, 0).exp()
    tensor([[0.5000, 0.5000]])
    """
    _, size, n_letters = logp.shape
    n_states = len(step)
    target = torch.as_tensor(step.reshape(-1), device=logp.device)
    source = torch.arange(n_states, device=logp.device).repeat_interleave(n_letters)
    letter = torch.arange(n_letters, device=logp.device).repeat(n_states)

    def run(logp: Tensor) -> Tensor:
        state = logp.new_full((n_states, len(logp)), -torch.inf)
        state[start] = 0.0
        for k in range(size):
            letters = logp[:, k, :].T
            state = segment_logsumexp(state[source] + letters[letter], target, n_states)
        return state.T

    return chunked(run, logp, cost=4 * size * n_states * n_letters)
