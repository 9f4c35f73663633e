"""Simulated observations for the checks of an aggregate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise.checks.examples import example_raw, simulate
from setwise.distributions import Family, map_parameters
from setwise.likelihood import Aggregate, find_rule, log_likelihood
from setwise.observations import Observations
from setwise.sets import Sets

FEW = 40  # sets on which derivatives and the like are checked


@dataclass
class Sample:
    """Simulated observations of sets of `size` members, which are rows 0, …, size − 1."""

    aggregate: Aggregate
    family: Family
    size: int
    seed: int
    raw: Tensor
    shared: Tensor
    z: Tensor  # (n, size)
    observed: Observations
    members: NDArray[np.int64]  # (n, size): which row stands where
    log_p: Tensor  # of the first few

    @classmethod
    def draw(cls, aggregate: Aggregate, family: Family, size: int, n: int, seed: int) -> Sample:
        """Observations of n sets, each with its own targets."""
        raw, shared = example_raw(family, size, seed)
        d = family(raw, shared)
        table = Sets(np.arange(n * size).reshape(n, size))
        if aggregate.shares:
            every = map_parameters(d, lambda p: p.repeat(n, *[1] * (p.ndim - 1)))
            every = aggregate.drawn(every, table.flat, np.random.default_rng(seed))
            z = simulate(family, every, 1, seed).reshape(n, size)
        else:
            z = simulate(family, d, n, seed)
        observed = aggregate.observe(z.reshape(-1), table, seed=seed)
        members = (observed.sets.indices % size).reshape(n, size)
        y = None if observed.y is None else observed.y[:FEW]
        log_p = log_likelihood(aggregate, d, members[:FEW], y)
        return cls(aggregate, family, size, seed, raw, shared, z, observed, members, log_p)

    @property
    def n(self) -> int:
        """The number of observations."""
        return len(self.members)

    @property
    def exact(self) -> bool:
        """Whether the rule is registered as exact."""
        return find_rule(type(self.aggregate), self.family.distribution).exact

    @property
    def distribution(self) -> Distribution:
        """The distribution of the rows."""
        return self.family(self.raw, self.shared)

    def take(self, which: Any = slice(FEW)) -> tuple[NDArray[np.int64], Any]:
        """Members and y of some sets, by default the first few."""
        y = self.observed.y
        return self.members[which], None if y is None else y[which]

    def outcomes(self) -> NDArray[np.float64]:
        """What was observed, one line per set."""
        y = self.observed.y
        parts = [self.members] if y is None else [self.members, y.reshape(self.n, -1)]
        return np.concatenate(parts, axis=1).astype(np.float64)
