"""Custom: any function of a set's members, by enumeration or by simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution

from setwise.distributions import Continuous
from setwise.likelihood import Aggregate, by_size, likelihood
from setwise.numerics import chunked, logsumexp
from setwise.sets import Sets

__all__ = ["Custom"]

_MOST = 10**6


@dataclass(frozen=True)
class Custom(Aggregate):
    """Any function of the members: y = fn(z), with z the one-dimensional tensor of a set's targets.

    For classes the probability is exact, a sum over all Cᴷ tuples (at most 10⁶). For continuous
    targets it is a Monte Carlo estimate: `samples` draws of the members, made with a fixed `seed`
    so that the value is a smooth function of the parameters, give p(y) ≈ mean of Normal(y; fn(z),
    `bandwidth`) with reparametrised gradients. fn must then be made of torch operations. The error
    is of order bandwidth² (bias) plus 1/√(samples · bandwidth); the default bandwidth is
    Silverman's.

    >>> spread = Custom(lambda z: z.max() - z.min())
    >>> spread.observe([0, 2, 5], [[0, 1], [0, 2]]).y.tolist()
    [2.0, 5.0]
    """

    fn: Callable[[Tensor], Any]
    samples: int = 1024
    bandwidth: float | None = None
    seed: int = 0

    symmetric = False
    user_defined = True
    not_on_command_line = "a custom function cannot be given here: use Python, setwise.Custom(fn)"

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        y = np.empty(len(sets))
        for which, part in sets.by_size():
            y[which] = _each(self.fn, part.dense(z))
        return y

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(_spread, samples=256, bandwidth=0.3)]


def _spread(z: Tensor) -> Tensor:
    return z.max() - z.min()


@lru_cache(maxsize=64)
def _table(fn: Callable[[Tensor], Any], size: int, n_classes: int) -> NDArray[np.float64]:
    """fn of every tuple of classes, the last member varying fastest."""
    tuples = torch.tensor(list(itertools.product(range(n_classes), repeat=size)))
    return _each(fn, tuples)


def _each(fn: Callable[[Tensor], Any], sets: Tensor) -> NDArray[np.float64]:
    """fn of each row."""
    try:
        values = torch.vmap(fn)(sets)
    except Exception:  # fn is the user's: where vmap cannot trace it, it is called set by set
        values = [float(fn(z)) for z in sets]
    return np.asarray(values, dtype=np.float64)


@likelihood(Custom, Categorical)
@by_size
def _enumerate(aggregate: Custom, distribution: Categorical, sets: Sets, y: Tensor) -> Tensor:
    """Sum over all tuples of classes."""
    logits = sets.dense(distribution.logits)
    _, size, n_classes = logits.shape
    if n_classes**size > _MOST:
        raise ValueError(
            f"sets of {size} members with {n_classes} classes have {n_classes**size:.3g} tuples, "
            f"more than {_MOST:.0e}: use smaller sets, or write the function as a Fold"
        )
    table = torch.as_tensor(_table(aggregate.fn, size, n_classes), device=y.device)

    def total(logits: Tensor, y: Tensor) -> Tensor:
        tuples = logits.new_zeros(len(logits), 1)
        for k in range(size):
            tuples = (tuples[:, :, None] + logits[:, k, None, :]).flatten(1)
        want = y.double()[:, None]
        hit = (table - want).abs() <= 1e-6 * want.abs().clamp(min=1.0)
        return logsumexp(tuples.masked_fill(~hit, -math.inf), 1)

    return chunked(total, logits, y, cost=3 * n_classes**size)


@likelihood(Custom, Continuous, exact=False)
@by_size
def _simulate(aggregate: Custom, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Monte Carlo with a fixed seed, reparametrised gradients and a Gaussian kernel."""
    devices = [y.device] if y.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(aggregate.seed)
        z = distribution.rsample(torch.Size([aggregate.samples]))
    z = z.reshape(aggregate.samples * len(sets), -1)
    drawn = torch.vmap(aggregate.fn)(z).reshape(aggregate.samples, len(sets))
    if aggregate.bandwidth is None:
        q1, q3 = drawn.detach().quantile(torch.tensor([0.25, 0.75]).to(drawn), dim=0)
        spread = torch.minimum(drawn.detach().std(0), (q3 - q1) / 1.34)
        width = 0.9 * spread.clamp(min=1e-30) * aggregate.samples**-0.2
    else:
        width = torch.full_like(y, aggregate.bandwidth)
    kernel = torch.distributions.Normal(drawn, width, validate_args=False).log_prob(y)
    return logsumexp(kernel, 0) - math.log(aggregate.samples)
