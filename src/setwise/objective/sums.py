"""A Gaussian loss as a function of the scale alone: one number for each set is sufficient."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setwise.distributions import Family, Normal
from setwise.distributions.links import exp_link
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
        scale = (
            exp_link(shared[0]) if isinstance(given, str) else torch.tensor(float(given)).double()
        )
        a, y = torch.from_numpy(self.a), torch.from_numpy(self.y).double()
        variance = (scale * a).square() + self.noise
        rest = raw[self.sets.tensor("indices", raw), 0] * a - y
        return -0.5 * (rest * rest / variance + (2 * math.pi * variance).log())


class _Kind(NamedTuple):
    """The sets of one kind of observations, part by part: one entry for each Σa² in a part."""

    like: GaussianTerm  # without its sets
    squares: list[Floats]
    weight: list[Floats]
    rest: list[Floats]  # Σ weight · (Σ a·loc − y)²


class SetSums:
    """Residuals of many sets of normal targets, gathered part by part.

    y = Σ a·z has the likelihood of one target with the coefficient √Σa² and the mean Σ a·loc, and
    sets with the same Σa² that of one whose residual is their mean, in squares.
    """

    def __init__(self, whole: Objective) -> None:
        self.whole = whole
        self.found: dict[str, _Kind] = {}

    def add(self, part: Objective, raw: Floats) -> None:
        """Adds the sets of a part, whose rows have these locations."""
        for term in part.terms:
            assert isinstance(term, GaussianTerm)
            name = repr(term.observations.aggregate)
            kind = self.found.setdefault(name, _Kind(term.take(slice(0, 1)), [], [], []))
            rest = term.weight * (term.matrix @ raw - term.y) ** 2
            _gather(kind, term.squares, term.weight, rest)

    def objective(self) -> tuple[Objective, Tensor]:
        """The same loss over few sets, and the raw parameters of their rows."""
        terms, raws, begin = [], [], 0
        kinds = [_merged(kind) for kind in self.found.values()]
        n_rows = sum(len(kind.squares[0]) for kind in kinds)
        for like, (squares,), (weight,), (rest,) in kinds:
            n, root = len(squares), np.sqrt(squares)
            single = Sets._trusted(begin + np.arange(n), np.arange(n + 1), size=1)
            o = like.observations._with(sets=single, y=np.zeros(n), weight=weight)
            terms.append(_OneEach(like.family, o, n_rows, root, like.noise))
            raws.append(np.sqrt(rest / np.maximum(weight, 1e-300)) / root)
            begin += n
        return self.whole.only(terms, n_rows), torch.from_numpy(np.concatenate(raws)).unsqueeze(1)


def _gather(kind: _Kind, squares: Floats, weight: Floats, rest: Floats) -> None:
    own, which = np.unique(squares, return_inverse=True)
    kind.squares.append(own)
    kind.weight.append(np.bincount(which, weight).astype(np.float64))
    kind.rest.append(np.bincount(which, rest).astype(np.float64))


def _merged(kind: _Kind) -> _Kind:
    """The same with one entry for each Σa²."""
    out = _Kind(kind.like, [], [], [])
    _gather(out, *map(np.concatenate, kind[1:]))
    return out
