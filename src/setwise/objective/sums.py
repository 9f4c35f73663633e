"""A Gaussian loss as a function of the scale alone: a number for each set says enough."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from setwise.distributions import Family, Normal
from setwise.objective.linear_gaussian import GaussianTerm
from setwise.objective.objective import Objective
from setwise.objective.terms import Floats
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["SetSums"]


class _OneEach(GaussianTerm):
    """y = a·z of one target in each set."""

    def __init__(
        self, family: Family, o: Observations, n_rows: int, a: Floats, noise: float
    ) -> None:
        super().__init__(family, o, n_rows)
        self.a = a
        self.__dict__["linear"] = a, noise

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        assert isinstance(self.family, Normal)
        given = self.family.scale
        scale = shared[0].exp() if isinstance(given, str) else torch.tensor(float(given)).double()
        a, y = torch.from_numpy(self.a), torch.from_numpy(self.y).double()
        variance = (scale * a).square() + self.noise
        rest = raw[self.sets.tensor("indices", raw), 0] * a - y
        return -0.5 * (rest * rest / variance + (2 * math.pi * variance).log())


class SetSums:
    """The sums of many sets of normal targets, gathered part by part.

    y = Σ a·z has the likelihood of one target with the coefficient √Σa² and the mean Σ a·loc.
    """

    def __init__(self, whole: Objective) -> None:
        self.whole = whole
        self.found: dict[str, list[tuple[GaussianTerm, Floats]]] = {}

    def add(self, part: Objective, raw: Floats) -> None:
        """The sets of a part, of which the rows have these locations."""
        for term in part.terms:
            assert isinstance(term, GaussianTerm)
            totals = term.matrix @ raw
            self.found.setdefault(repr(term.observations.aggregate), []).append((term, totals))

    def objective(self) -> tuple[Objective, Tensor]:
        """The same loss over a row for each set, and the raw parameters of these."""
        terms, raws, begin = [], [], 0
        n_rows = sum(len(totals) for kind in self.found.values() for _, totals in kind)
        for kind in self.found.values():
            root = np.sqrt(np.concatenate([term.squares for term, _ in kind]))
            n, first = len(root), kind[0][0]
            single = Sets._trusted(begin + np.arange(n), np.arange(n + 1), size=1)
            y = np.concatenate([term.y for term, _ in kind])
            weight = np.concatenate([term.weight for term, _ in kind])
            o = first.observations._with(sets=single, y=y, weight=weight)
            terms.append(_OneEach(first.family, o, n_rows, root, first.noise))
            raws.append(np.concatenate([totals for _, totals in kind]) / root)
            begin += n
        return self.whole.only(terms, n_rows), torch.from_numpy(np.concatenate(raws)).unsqueeze(1)
