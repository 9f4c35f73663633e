"""The classes of a set's members given y, from one formula for P(class, y).

The formula is written once for probabilities and for their logarithms: an `Arithmetic` says how to
multiply and add. Probabilities are quicker, logarithms never underflow.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from setwise.numerics import log_others, logaddexp, logsumexp, others

FEW = 64  # classes up to which products of matrices are the quicker way
_UNCHECKED = ContextVar("unchecked", default=False)


@contextmanager
def unchecked() -> Iterator[None]:
    """Within it, probabilities are multiplied in float64 and none is looked at.

    So a device need not wait for the host, and has less to do than with logarithms. Where a
    probability underflows, below 1e-308, log p(y) is −inf: the caller has to look at the loss.
    """
    token = _UNCHECKED.set(True)
    try:
        yield
    finally:
        _UNCHECKED.reset(token)


class Arithmetic(NamedTuple):
    """How to compute with probabilities whose last dimension is classes."""

    times: Callable[[Tensor, Tensor], Tensor]
    plus: Callable[[Tensor, Tensor], Tensor]
    total: Callable[[Tensor], Tensor]  # over the classes, which stay as a dimension of 1
    others: Callable[[Tensor], Tensor]  # for each class the total of all others, if it is 1 in all
    rest: Callable[[Tensor], Tensor]  # the same of any table


def _log_total(x: Tensor) -> Tensor:
    return logsumexp(x, -1, keepdim=True)


def _log_rest(x: Tensor) -> Tensor:
    total = _log_total(x)
    return log_others(x - total) + total


PLAIN = Arithmetic(operator.mul, operator.add, lambda x: x.sum(-1, keepdim=True), others, others)
LOGS = Arithmetic(operator.add, logaddexp, _log_total, log_others, _log_rest)


def class_posterior(
    joint: Callable[[Arithmetic, Tensor], Tensor], logits: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """log p(y) of each set of `size` members, and P(class | y) of each member.

    `logits` are the members' normalised ones. `joint` gives P(class, y) from P(class), both as
    (sets, size, classes) in the arithmetic that it is given: it adds up to P(y) for every member.
    """
    own = logits.reshape(-1, size, logits.shape[-1])
    # All terms are positive, so sums of products keep their digits unless they underflow.
    trusted = _UNCHECKED.get()
    if own.shape[-1] <= FEW:
        found = joint(PLAIN, (own.double() if trusted else own).exp())
        total = found[:, :1].sum(-1, keepdim=True)
        if trusted or bool((total > torch.finfo(total.dtype).tiny ** 0.9).all()):
            after = (found / total).flatten(0, 1)
            return total[:, 0, 0].log().to(logits.dtype), after.to(logits.dtype)
    found = joint(LOGS, own)
    each = _log_total(found[:, :1])
    return each[:, 0, 0], (found - each).exp().flatten(0, 1)
