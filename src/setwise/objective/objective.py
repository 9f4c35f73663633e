"""The objective: observations and a family as one function of the rows' raw parameters.

A learner sees nothing else. `raw` has one line per row of X and one column per output of the
family; `shared` holds the numbers that are learned once for all rows. The loss is
−Σ weight · log p(y), over all sets of all observations, so that several kinds simply add up.
Derivatives are taken at the members and then added up per row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from setwise.distributions import Categorical, Family, Normal
from setwise.likelihood import find_rule
from setwise.objective.categorical import Classes
from setwise.objective.linear_gaussian import Gaussian
from setwise.objective.pairwise import Differences, depends_on_differences
from setwise.objective.start import start
from setwise.objective.terms import General, Point, Term, Together
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Batch", "Objective"]


class Batch(NamedTuple):
    """Some of the sets: the rows they are about, and the objective over just those rows."""

    rows: NDArray[np.int64]
    objective: Objective


class Objective:
    """−Σ weight · log p(y) of all observations, as a function of raw and shared parameters.

    >>> import setwise as sw
    >>> means = sw.Observations(sw.Mean(), [[0, 1], [1, 2]], [1.0, 2.0])
    >>> objective = Objective(sw.Normal(scale=1.0), [means], n_rows=3)
    >>> point = objective.at(torch.zeros(3, 1, dtype=torch.float64))
    >>> point.raw.T
    tensor([[-1., -3., -2.]], dtype=torch.float64)
    """

    def __init__(self, family: Family, observations: Sequence[Observations], n_rows: int) -> None:
        self.family, self.n_rows = family, n_rows
        self.observations = list(observations)
        self.n_outputs, self.n_shared = len(family.outputs), len(family.shared)
        for o in self.observations:
            find_rule(type(o.aggregate), family.distribution)
            if o.sets.n_rows > n_rows:
                where = int((o.sets.indices >= n_rows).argmax())
                raise ValueError(
                    f"set {o.sets.set_ids[where]} of {o!r} names row {o.sets.indices[where]}, but "
                    f"X has only {n_rows} rows: give X every row that the sets name"
                )
        self.terms = [_term(family, o, n_rows) for o in self.observations]
        self.n_sets = sum(len(o) for o in self.observations)
        self.total_weight = float(sum(t.weight.sum() for t in self.terms))
        # Quadratic in raw; and with a minimum there that does not depend on the shared scale.
        self.quadratic = all(isinstance(t, Gaussian) for t in self.terms)
        self.separable = self.quadratic and all(t.noise == 0 for t in self.terms)  # type: ignore[attr-defined]

    # ---- value and derivatives

    def loss(self, raw: Tensor, shared: Tensor | None = None) -> Tensor:
        """The loss as a differentiable number; dtype and device are those of `raw`."""
        shared = self.no_shared(raw) if shared is None else shared
        total = raw.new_zeros(())
        for each in self.weighted(raw, shared):
            total = total - each.sum()
        return total

    def weighted(self, raw: Tensor, shared: Tensor) -> list[Tensor]:
        """weight · log p(y) of each set, for each `Observations`, differentiable."""
        found = [term.log_likelihood(raw, shared) for term in self.terms]
        weights = [torch.from_numpy(term.weight).to(raw) for term in self.terms]
        return [each * weight for each, weight in zip(found, weights, strict=True)]

    def value(self, raw: Tensor, shared: Tensor | None = None) -> float:
        """The loss."""
        with torch.no_grad():
            return float(self.loss(raw, shared))

    def score(self, raw: Tensor, shared: Tensor | None = None) -> float:
        """The mean log-likelihood per set (weighted)."""
        return -self.value(raw, shared) / self.total_weight

    def at(self, raw: Tensor, shared: Tensor | None = None) -> Point:
        """Value, gradient, curvature and Hessian products at these parameters (float64, CPU)."""
        shared = self.no_shared(raw) if shared is None else shared
        return Together([term.at(raw, shared) for term in self.terms])

    def per_set(self, raw: Tensor, shared: Tensor | None = None) -> list[Tensor]:
        """log p(y) of each set, for each `Observations`."""
        shared = self.no_shared(raw) if shared is None else shared
        with torch.no_grad():
            return [term.log_likelihood(raw, shared) for term in self.terms]

    def no_shared(self, like: Tensor) -> Tensor:
        """Shared parameters where none were given: an error if there should be some."""
        if self.n_shared:
            raise ValueError(f"{self.family!r} needs shared parameters: {self.family.shared}")
        return like.new_zeros(0)

    # ---- where to begin, and the shared parameters alone

    def start(self, free: bool = True) -> tuple[Tensor, Tensor]:
        """Raw numbers that are the same for all rows, and shared ones, of largest likelihood.

        With `free=False` the shared ones stay at 0 (a scale of 1). An observation that is
        impossible whatever the parameters is an error.
        """
        return start(self, free)

    def fit_shared(self, raw: Tensor, shared: Tensor) -> Tensor:
        """The shared parameters of largest likelihood at these raw ones."""
        if not self.n_shared:
            return shared

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            leaf = torch.from_numpy(x).requires_grad_()
            value = self.loss(raw, leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
            scale = max(self.total_weight, 1e-12)
            return float(value.detach()) / scale, gradient.numpy() / scale

        found = optimize.minimize(
            loss, shared.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": 30}
        )
        return torch.from_numpy(np.asarray(found.x, np.float64))

    # ---- parts of it

    def minibatches(self, size: int, rng: np.random.Generator) -> Iterator[Batch]:
        """The sets in random order, about `size` at a time, each kind in its share of every batch.

        The rows of a batch are distinct, so that a model sees each of them once.
        """
        n_batches = max(1, math.ceil(self.n_sets / size))
        # Sets are put in order once for all batches: each batch is then a slice of them.
        shuffled = [o.take(rng.permutation(len(o))) for o in self.observations]
        bounds = [np.arange(n_batches + 1) * len(o) // n_batches for o in shuffled]
        place = np.empty(self.n_rows, np.int64)
        for i in range(n_batches):
            parts = [
                _slice(o, int(b[i]), int(b[i + 1])) for o, b in zip(shuffled, bounds, strict=True)
            ]
            if any(len(o) for o in parts):
                yield self.batch(parts, place)

    def over(self, rows: NDArray[np.int64]) -> Objective:
        """The same observations over a table of these rows, which must be all that they name."""
        place = np.empty(self.n_rows, np.int64)
        place[rows] = np.arange(len(rows))
        return _Part(self.family, [_moved(o, place) for o in self.observations], len(rows))

    def batch(
        self, observations: Sequence[Observations], place: NDArray[np.int64] | None = None
    ) -> Batch:
        """These observations, over a table of just the rows that they are about.

        `place` is room for one number per row, which spares its creation for every batch.
        """
        observations = [o for o in observations if len(o)]
        place = np.empty(self.n_rows, np.int64) if place is None else place
        parts = [o.sets.indices for o in observations]
        members = np.concatenate(parts) if parts[1:] else parts[0]
        number = np.arange(len(members))
        place[members] = number
        rows = members[place[members] == number]  # of equal members, one wrote its number last
        place[rows] = number[: len(rows)]
        moved = [_moved(o, place) for o in observations]
        return Batch(rows, _Part(self.family, moved, len(rows)))


def _term(family: Family, observations: Observations, n_rows: int) -> Term:
    """The loss of one `Observations`, by the way that costs least."""
    if isinstance(family, Normal) and family.scale != "predicted":
        linear = observations.aggregate.linear(observations.sets)
        if linear is not None:
            return Gaussian(family, observations, n_rows, linear)
    if isinstance(family, Categorical):
        return Classes(family, observations, n_rows)
    if depends_on_differences(family, observations):
        return Differences(family, observations, n_rows)
    return General(family, observations, n_rows)


class _Part(Objective):
    """An objective over sets that were checked before; what costs time is made when asked for."""

    def __init__(self, family: Family, observations: list[Observations], n_rows: int) -> None:
        self.family, self.observations, self.n_rows = family, observations, n_rows
        self.total_weight = float(
            sum(len(o) if o.weight is None else o.weight.sum() for o in observations)
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "total_weight" not in self.__dict__ or "terms" in self.__dict__:
            raise AttributeError(name)
        super().__init__(self.family, self.observations, self.n_rows)
        return getattr(self, name)


def _sets(
    indices: NDArray[np.int64],
    offsets: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
    size: int | None,
) -> Sets:
    """Sets of parts that have been checked before; `size` is the common one, None if unknown."""
    out = Sets.__new__(Sets)
    out.indices, out.offsets, out.weights, out.names = indices, offsets, weights, None
    if size is not None:
        out.__dict__["size"] = size
    return out


def _moved(o: Observations, place: NDArray[np.int64]) -> Observations:
    """The observations over a table in which the rows have these places."""
    out = Observations.__new__(Observations)
    out.aggregate, out.y, out.weight = o.aggregate, o.y, o.weight
    out.sets = _sets(place[o.sets.indices], o.sets.offsets, o.sets.weights, o.sets.size)
    return out


def _slice(o: Observations, begin: int, end: int) -> Observations:
    """The observations from `begin` to before `end`, as views."""
    out = Observations.__new__(Observations)
    out.aggregate = o.aggregate
    out.y = None if o.y is None else o.y[begin:end]
    out.weight = None if o.weight is None else o.weight[begin:end]
    offsets = o.sets.offsets[begin : end + 1]
    low, high = int(offsets[0]), int(offsets[-1])
    weights = None if o.sets.weights is None else o.sets.weights[low:high]
    out.sets = _sets(o.sets.indices[low:high], offsets - low, weights, o.sets.size)
    return out
