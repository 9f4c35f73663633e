"""The objective: observations and a family as one function of the rows' raw parameters.

A learner sees nothing else. `raw` has one line per row of X and one column per output of the
family; `shared` holds the numbers that are learned once for all rows: first those of the family,
then those of aggregates (see `unknown`). The loss is
−Σ weight · log p(y), over all sets of all observations, so that several kinds simply add up.
Derivatives are taken at the members and then added up per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor
from torch.distributions import Distribution

from setwise._peers import ALONE, Peers
from setwise.distributions import Family
from setwise.errors import SetError
from setwise.likelihood import find_rule
from setwise.objective.autodiff import AutodiffTerm
from setwise.objective.categorical import ClassTerm
from setwise.objective.linear_gaussian import GaussianTerm
from setwise.objective.overlap import join
from setwise.objective.pairwise import DifferenceTerm
from setwise.objective.start import guess
from setwise.objective.terms import (
    Beside,
    FirstOrder,
    Point,
    SummedPoint,
    Term,
    added,
    with_gradient,
)
from setwise.objective.unknown import Unknowns
from setwise.observations import Observations

__all__ = ["Batch", "Objective"]

Parameters = tuple[Tensor, Tensor]
TERMS: tuple[type[Term], ...] = (GaussianTerm, ClassTerm, DifferenceTerm, AutodiffTerm)


class Batch(NamedTuple):
    """Some of the sets: the rows that they name, and the objective over just those rows."""

    rows: NDArray[np.int64]
    objective: Objective


class Objective:
    """−Σ weight · log p(y) of all observations, as a function of raw and shared parameters.

    >>> import setwise as sw
    >>> means = sw.Observations(sw.Mean(), [[0, 1], [1, 2]], [1.0, 2.0])
    >>> objective = Objective(sw.Normal(scale=1.0), [means], n_rows=3)
    >>> point = objective.at(torch.zeros(3, 1, dtype=torch.float64))
    >>> point.gradient.T
    tensor([[-1., -3., -2.]], dtype=torch.float64)
    """

    peers: Peers = ALONE  # who hold other sets of the same objective, see `part`

    def __init__(
        self,
        family: Family,
        observations: Sequence[Observations],
        n_rows: int,
        overlap: str = "independent",
        unknowns: Unknowns | None = None,
    ) -> None:
        # Objectives of one fit are given the same unknowns, so that `shared` means the same.
        self.unknowns = Unknowns.of(family, observations) if unknowns is None else unknowns
        for o in observations:
            find_rule(type(o.aggregate), family.distribution).check_counts(o.sets)
            if o.sets.n_rows > n_rows:
                where = int((o.sets.indices >= n_rows).argmax())
                raise SetError(
                    o.sets.set_ids[where],
                    f"names row {o.sets.indices[where]}, but X has only {n_rows} rows: give X "
                    f"every row that the sets name",
                    of=repr(o),
                )
        joined = join(family, observations, n_rows, overlap)
        terms: list[Term] = [] if joined.term is None else [joined.term]
        for i, o in enumerate(observations):
            if i not in joined.which:
                kind = next(kind for kind in TERMS if kind.suits(family, o))
                terms.append(kind(family, o, n_rows))
                terms[-1].slot = self.unknowns.slot(o)
        self.family, self.terms, self.n_rows = family, terms, n_rows
        self.overlap = joined.said

    def only(self, terms: Sequence[Term], n_rows: int | None = None) -> Objective:
        """The loss of these terms, which are parts of this one and are not checked again."""
        out = object.__new__(Objective)
        out.family, out.terms = self.family, [term for term in terms if len(term.sets)]
        out.overlap, out.unknowns = self.overlap, self.unknowns
        out.n_rows = self.n_rows if n_rows is None else n_rows
        return out

    # ---- facts

    @property
    def observations(self) -> list[Observations]:
        """The observations; those that are joined come first."""
        return [o for term in self.terms for o in term.parts]

    @property
    def n_sets(self) -> int:
        """The number of sets of all observations."""
        return sum(len(term.sets) for term in self.terms)

    @property
    def total_weight(self) -> float:
        """The sum of the weights of all sets."""
        return sum(term.total_weight for term in self.terms)

    @property
    def n_outputs(self) -> int:
        """The number of raw parameters of a row."""
        return len(self.family.outputs)

    @property
    def n_shared(self) -> int:
        """The number of shared parameters."""
        return len(self.family.shared) + self.unknowns.size

    def distribution(self, raw: Tensor, shared: Tensor) -> Distribution:
        """The distributions of rows with these raw parameters."""
        return self.family(raw, self.own(shared))

    def units(self, raw: Tensor, shared: Tensor) -> Tensor:
        """The size of each raw output, (outputs,), where a row has the raw numbers `raw`."""
        return self.family.units(raw, self.own(shared))

    def own(self, shared: Tensor) -> Tensor:
        """The shared parameters that belong to the family."""
        return shared[: len(self.family.shared)]

    def seen(self, term: Term, shared: Tensor) -> Tensor:
        """The shared parameters that a term takes."""
        return self.own(shared) if term.slot is None else shared

    @property
    def quadratic(self) -> bool:
        """Whether the loss is quadratic in raw."""
        return all(term.quadratic for term in self.terms)

    @property
    def separable(self) -> bool:
        """Whether the minimum in raw is the same for every value of the shared parameters."""
        return all(term.separable for term in self.terms)

    @property
    def of_classes(self) -> bool:
        """Whether the raw parameters are logits of classes."""
        return all(term.of_classes for term in self.terms)

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
        found = ((t, t.log_likelihood(raw, self.seen(t, shared))) for t in self.terms)
        return [term.weighted(each) for term, each in found]

    def value(self, raw: Tensor, shared: Tensor | None = None) -> float:
        """The loss."""
        with torch.no_grad():
            return float(self.loss(raw, shared))

    def score(self, raw: Tensor, shared: Tensor | None = None) -> float:
        """The mean log-likelihood per set (weighted)."""
        return -self.value(raw, shared) / self.total_weight

    def gradient(self, raw: Tensor, shared: Tensor | None = None) -> FirstOrder:
        """Value and gradient, in the dtype and on the device of `raw`, without synchronisation."""
        shared = self.no_shared(raw) if shared is None else shared
        found = [term.gradient(raw, self.seen(term, shared)) for term in self.terms]
        value, at_rows, own = zip(*found, strict=True)
        padded = [torch.cat([g, g.new_zeros(len(shared) - len(g))]) for g in own]
        return FirstOrder(added(value), added(at_rows), added(padded))

    def at(self, raw: Tensor, shared: Tensor | None = None) -> Point:
        """Value, gradient, curvature and Hessian products at these parameters (float64, CPU)."""
        shared = self.no_shared(raw) if shared is None else shared
        points = [term.at(raw, self.seen(term, shared)) for term in self.terms]
        n = len(shared)
        return SummedPoint([p if len(p.shared_gradient) == n else Beside(p, n) for p in points])

    def per_set(self, raw: Tensor, shared: Tensor | None = None) -> list[Tensor]:
        """log p(y) of each set, for each `Observations`."""
        shared = self.no_shared(raw) if shared is None else shared
        with torch.no_grad():
            found = [
                term.log_likelihood(raw, self.seen(term, shared)).split(
                    [len(o) for o in term.parts]
                )
                for term in self.terms
            ]
        return [each for some in found for each in some]

    def no_shared(self, like: Tensor) -> Tensor:
        """Shared parameters where none were given: an error if there should be some."""
        if self.n_shared:
            what = [
                *self.family.shared,
                *(u.name for k in self.unknowns.kinds.values() for u in k.unknown),
            ]
            raise ValueError(f"{self.family!r} needs shared parameters: {what}")
        return like.new_zeros(0)

    # ---- where to begin, and the shared parameters alone

    def start(self, free: bool = True) -> tuple[Tensor, Tensor]:
        """Raw numbers that are the same for all rows, and shared ones, of largest likelihood.

        With `free=False` the shared ones stay at 0 (a scale of 1). Learned parameters of aggregates
        keep their start: without features, noise would explain everything. An observation that is
        impossible whatever the parameters is an error.
        """
        packed, unit = map(torch.from_numpy, guess(self.family, self.examples.observations))
        n, scale = self.n_outputs, max(self.total_weight, 1e-12)
        if not free:
            packed[n:], unit[n:] = 0.0, 0.0
        unknown = self.unknowns.start

        def both(numbers: Tensor) -> tuple[Tensor, Tensor]:
            return self.everywhere(numbers[:n]), torch.cat([numbers[n:], unknown])

        for o, values in zip(self.observations, self.per_set(*both(packed)), strict=True):
            bad = ~values.isfinite()
            if bad.any():
                at = int(bad.nonzero()[0, 0])
                y = None if o.y is None else np.asarray(o.y[at]).tolist()
                raise SetError(
                    at,
                    f"has y = {y}, which {self.family!r} cannot give (log-likelihood "
                    f"{float(values[at]):g}): check y, or "
                    + (
                        "use AggregateRegressor for numbers"
                        if self.of_classes
                        else "choose another family"
                    ),
                    of=repr(o),
                )
        loss = with_gradient(lambda x: self.loss(*both(packed + x * unit)) / scale)
        found = optimize.minimize(
            loss, np.zeros(len(packed)), jac=True, method="BFGS", options={"maxiter": 50}
        )
        best = packed + (torch.from_numpy(found.x) if np.isfinite(found.fun) else 0.0) * unit
        return best[:n], torch.cat([best[n:], unknown])

    def learned(self, free: bool = True) -> slice:
        """Which of the shared parameters are learned: without `free`, not those of the family."""
        return slice(0 if free else len(self.family.shared), self.n_shared)

    def fit_shared(
        self, raw: Tensor | Callable[[Tensor], Tensor], shared: Tensor, free: bool = True
    ) -> Tensor:
        """The shared parameters of largest likelihood; the raw ones may be a function of them."""
        which = self.learned(free)
        if which.start == which.stop:
            return shared
        scale, held = max(self.total_weight, 1e-12), shared[: which.start]

        def value(own: Tensor) -> Tensor:
            every = torch.cat([held, own])
            return self.loss(raw(every) if callable(raw) else raw, every) / scale

        begin = shared[which].numpy()
        found = optimize.minimize(with_gradient(value), begin, jac=True, method="L-BFGS-B")
        return torch.cat([held, torch.from_numpy(np.asarray(found.x, np.float64))])

    # ---- rows

    def everywhere(self, raw: Tensor) -> Tensor:
        """The same raw parameters for all rows."""
        return raw.expand(self.n_rows, -1)

    @property
    def times_named(self) -> NDArray[np.int64]:
        """How often sets name each row."""
        members = np.concatenate([term.sets.indices for term in self.terms])
        return np.bincount(members, minlength=self.n_rows)

    def mean(self, rows: Tensor) -> Tensor:
        """The mean over all rows."""
        return rows.mean(0)

    # ---- parts of it

    @property
    def examples(self) -> Objective:
        """An objective over example sets: this one, where rows are in memory."""
        return self

    def of(self, observations: Sequence[Observations], overlap: str) -> Objective:
        """The objective of other observations of the same rows."""
        return Objective(self.family, observations, self.n_rows, overlap, self.unknowns)

    def whole(self) -> Objective:
        """The same with the rows of all sets listed in memory."""
        return self

    def parts(self, X: Any) -> Iterator[tuple[Any, Objective]]:
        """Some rows of the table X at a time, with an objective over them, which add up to this."""
        yield X, self

    def resampled(self, rng: np.random.Generator) -> Objective:
        """As many sets of each kind, drawn with replacement."""
        drawn = [
            term.take(np.sort(rng.integers(0, n, n)))
            for term in self.terms
            if (n := len(term.sets))
        ]
        return self.only(drawn)

    def precision(self, shared: Tensor) -> float:
        """The mean weight of sets in least squares, where the loss is quadratic."""
        weights = [term.least_squares(shared).weight for term in self.terms]
        return float(np.concatenate(weights).mean())

    def minibatches(
        self,
        size: int,
        rng: np.random.Generator,
        here: Callable[[], Parameters] | None = None,
        peers: Peers = ALONE,
    ) -> Iterator[Batch]:
        """The sets in random order, about `size` at a time, each kind in its share of every batch.

        The rows of a batch are distinct, so that a model sees each of them once. A term that is no
        sum over sets needs to know `here`, the raw and shared parameters as they are now. Processes
        that ask with equal `rng` get as many batches each, and their own share of every batch,
        which may be empty.
        """
        terms = self.terms
        if here is not None and not all(term.adds_up for term in terms):
            raw, shared = (now.detach().double().cpu() for now in here())
            terms = [t if t.adds_up else t.split(raw, self.seen(t, shared)) for t in terms]
        yield from self.only(terms).cut(max(1, math.ceil(self.n_sets / size)), rng, peers)

    def cut(
        self, n_batches: int, rng: np.random.Generator, peers: Peers = ALONE
    ) -> Iterator[Batch]:
        """This process's shares of `n_batches` batches of the sets in random order."""
        # Sets are put in order once for all batches: each batch is then a slice of them.
        shuffled = [term.take(rng.permutation(len(term.sets))) for term in self.terms]
        ends = [np.arange(n_batches + 1) * len(term.sets) // n_batches for term in shuffled]
        place = np.empty(self.n_rows, np.int64)
        for i in range(n_batches):
            slices = [peers.share(int(end[i + 1] - end[i]), int(end[i])) for end in ends]
            part = self.only([t.take(s) for t, s in zip(shuffled, slices, strict=True)])
            yield part.batch(place)

    def over(self, rows: NDArray[np.int64]) -> Objective:
        """The same observations over a table of these rows, which must be all that they name."""
        place = np.empty(self.n_rows, np.int64)
        place[rows] = np.arange(len(rows))
        return self.only([term.over(place, len(rows)) for term in self.terms], len(rows))

    def batch(self, place: NDArray[np.int64] | None = None) -> Batch:
        """The same observations over a table of just the rows that they name.

        `place` is an array for one number per row that may be overwritten.
        """
        place = np.empty(self.n_rows, np.int64) if place is None else place
        parts = [term.sets.indices for term in self.terms]
        members = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
        number = np.arange(len(members))
        place[members] = number
        rows = members[place[members] == number]  # of equal members, one wrote its number last
        place[rows] = number[: len(rows)]
        moved = [term.over(place, len(rows)) for term in self.terms]
        return Batch(rows, self.only(moved, len(rows)))
