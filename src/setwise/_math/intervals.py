"""The probability of an interval."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.groups import piecewise
from setwise._math.quadrature import rebuild
from setwise.distributions import family_of, log_cdf, log_survival, parameters
from setwise.numerics import logsubexp


def log_between(distribution: Distribution, low: Tensor, high: Tensor) -> Tensor:
    """log P(low < Z ≤ high), ±inf allowed, from whichever tail keeps its digits.

    >>> d = torch.distributions.Normal(0.0, 1.0)
    >>> log_between(d, torch.tensor(1.0), torch.tensor(2.0)).exp()
    tensor(0.1359)
    """
    family = family_of(distribution)
    centre = family.centre_width(distribution)[0].detach()
    values = list(parameters(distribution).values())
    upper = low > (centre.exp() if family.positive else centre)
    flat = [t.reshape(-1) for t in torch.broadcast_tensors(upper, low, high, *values)]

    def part(at: Tensor, tail: Callable[..., Tensor], near: int, far: int) -> Tensor:
        d = rebuild(distribution, (t[at] for t in flat[3:]))

        def log_tail(x: Tensor) -> Tensor:
            finite = x.isfinite()
            limit = torch.where((x > 0) == (tail is log_cdf), 0.0, -math.inf)
            return torch.where(finite, tail(d, torch.where(finite, x, 0.0)), limit)

        return logsubexp(log_tail(flat[near][at]), log_tail(flat[far][at]))

    found = piecewise(
        (flat[0], lambda at: part(at, log_survival, 1, 2)),
        (~flat[0], lambda at: part(at, log_cdf, 2, 1)),
    )
    return found.reshape(torch.broadcast_shapes(upper.shape, high.shape, values[0].shape))
