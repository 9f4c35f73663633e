"""Quantiles of every family, those included that torch has no formula for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch.distributions import Distribution, Gamma, NegativeBinomial, Poisson, StudentT

from setwise.distributions.base import double

__all__ = ["interval"]

Floats = NDArray[np.float64]


def interval(d: Distribution, level: float) -> tuple[Floats, Floats]:
    """The middle interval that holds each target with this probability (or more, for counts).

    >>> low, high = interval(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), 0.9)
    >>> print(low.round(3), high.round(3))
    [-1.645] [1.645]
    """
    with torch.no_grad():
        d = double(d)
        return _quantile(d, (1 - level) / 2), _quantile(d, (1 + level) / 2)


def _quantile(d: Any, p: float) -> Floats:
    """The smallest x with P(Z ≤ x) ≥ p."""
    found: Any
    if isinstance(d, StudentT):
        found = stats.t.ppf(p, d.df, d.loc, d.scale)
    elif isinstance(d, Gamma):
        found = stats.gamma.ppf(p, d.concentration, scale=1 / d.rate)
    elif isinstance(d, Poisson):
        found = stats.poisson.ppf(p, d.rate)
    elif isinstance(d, NegativeBinomial):
        found = stats.nbinom.ppf(p, d.total_count, torch.sigmoid(-d.logits))
    else:
        found = d.icdf(torch.full(d.batch_shape, p, dtype=torch.float64))
    return np.asarray(found, np.float64)
