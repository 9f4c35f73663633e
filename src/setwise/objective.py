"""The objective: observations and a family as one function of the rows' raw parameters.

A learner sees nothing else. `raw` has one line per row of X and one column per output of the
family; `shared` holds the numbers that are learned once for all rows. The loss is
−Σ weight · log p(y), over all sets of all observations, so that several kinds simply add up.
Derivatives are taken at the members and then added up per row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, sparse
from torch import Tensor

from setwise.aggregates import Interval, Uncoupled
from setwise.distributions import Categorical, Family, Normal
from setwise.likelihood import evaluate, find_rule
from setwise.observations import Observations

__all__ = ["Batch", "Objective", "Point", "Term", "make_term"]

PROBES = 16  # Hessian products spent on the diagonal of one set


class Point(ABC):
    """A term of the loss at one place: its value, gradient, and products with its Hessian."""

    value: float
    raw: Tensor  # gradient, (rows, outputs)
    shared: Tensor  # gradient, (number of shared parameters,)

    @abstractmethod
    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """The Hessian times a direction, of the same two shapes."""

    @abstractmethod
    def curvature(self) -> Tensor:
        """The diagonal of the Hessian, (rows, outputs); negative where the loss is not convex.

        Exact for classes, for linear observations of normal targets and for sets of up to 16
        members; in larger sets the members that were probed stand for the others.
        """


class Term(ABC):
    """−Σ weight · log p(y) over the sets of one `Observations`."""

    def __init__(self, family: Family, observations: Observations, n_rows: int) -> None:
        self.family, self.observations, self.n_rows = family, observations, n_rows
        self.sets = observations.sets
        weight = observations.weight
        self.weight = np.ones(len(self.sets)) if weight is None else weight

    @abstractmethod
    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        """log p(y) of each set, differentiable."""

    @abstractmethod
    def at(self, raw: Tensor, shared: Tensor) -> Point:
        """Everything of first and second order at these parameters."""


class _General(Term):
    """Any aggregate of any family, by automatic differentiation at the members."""

    def members(self, raw: Tensor) -> Tensor:
        return raw.index_select(0, self.sets.tensor("indices", raw))

    def at_members(self, members: Tensor, shared: Tensor) -> Tensor:
        distribution = self.family(members, shared)
        o = self.observations
        return evaluate(o.aggregate, distribution, self.sets, o.y)

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        return self.at_members(self.sets.members(raw), shared)

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return _GeneralPoint(self, raw, shared)


class _GeneralPoint(Point):
    def __init__(self, term: _General, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        with torch.enable_grad():
            self.leaf = term.members(raw.detach()).requires_grad_()
            self.leaf_shared = shared.detach().clone().requires_grad_()
            each = term.at_members(self.leaf, self.leaf_shared)
            loss = -(each * torch.from_numpy(term.weight).to(each)).sum()
            self.value = float(loss.detach())
            self.slopes = self._grad(loss, create_graph=True)
        self.raw = self._rows(self.slopes[0].detach())
        self.shared = self.slopes[1].detach()

    def _grad(self, value: Tensor, create_graph: bool = False) -> tuple[Tensor, Tensor]:
        leaves = (self.leaf, self.leaf_shared)
        if not value.requires_grad:
            return torch.zeros_like(leaves[0]), torch.zeros_like(leaves[1])
        found = torch.autograd.grad(
            value, leaves, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
        a, b = (torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))
        return a, b

    def _rows(self, members: Tensor) -> Tensor:
        index = self.term.sets.tensor("indices", members)
        return members.new_zeros((self.term.n_rows, members.shape[1])).index_add_(0, index, members)

    def _member_product(self, members: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            along = (self.slopes[0] * members).sum() + (self.slopes[1] * shared).sum()
            return self._grad(along)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        members, own = self._member_product(self.term.members(raw), shared)
        return self._rows(members), own

    def curvature(self) -> Tensor:
        if isinstance(self.term.family, Categorical):
            return self._class_curvature()
        sets = self.term.sets
        position = np.arange(len(sets.indices)) - np.repeat(sets.offsets[:-1], sets.sizes)
        sizes = np.repeat(sets.sizes, sets.sizes)
        out = torch.zeros_like(self.leaf)
        probed = np.zeros(len(position), dtype=bool)
        zero = torch.zeros_like(self.leaf_shared)
        for probe in range(min(PROBES, int(sets.sizes.max(initial=0)))):
            at = probe * np.maximum(sizes / PROBES, 1.0)
            hit = (position == at.astype(np.int64)) & ~probed
            probed |= hit
            where = torch.from_numpy(hit)
            for column in range(out.shape[1]):
                direction = torch.zeros_like(out)
                direction[where, column] = 1.0
                out[where, column] = self._member_product(direction, zero)[0][where, column]
        if not probed.all():
            mean = sets.sum(out) / torch.from_numpy(
                np.add.reduceat(probed, sets.offsets[:-1], dtype=np.float64)
            ).unsqueeze(1)
            out = torch.where(torch.from_numpy(probed).unsqueeze(1), out, sets.repeat(mean))
        return self._rows(out)

    def _class_curvature(self) -> Tensor:
        """p(1 − p) − r(1 − r): variances before and after y, with r = p + ∂ log p(y)/∂ logit."""
        weight = self.term.sets.repeat(torch.from_numpy(self.term.weight)).to(self.leaf)[:, None]
        p = self.leaf.detach().softmax(-1)
        change = -self.slopes[0].detach() / torch.where(weight > 0, weight, 1.0)
        return self._rows(weight * change * (change + 2 * p - 1))


class _Gaussian(Term):
    """Linear observations of normal targets: y ~ N(A·loc, scale²·Σa² + noise), in closed form."""

    def __init__(
        self,
        family: Normal,
        observations: Observations,
        n_rows: int,
        linear: tuple[NDArray[np.float64], float],
    ) -> None:
        super().__init__(family, observations, n_rows)
        a, self.noise = linear
        sets = observations.sets
        self.A = sparse.csr_array((a, sets.indices, sets.offsets), (len(sets), n_rows))
        self.squares = np.add.reduceat(a * a, sets.offsets[:-1]) if len(sets) else np.zeros(0)
        assert observations.y is not None
        self.y = observations.y
        self.fixed = None if isinstance(family.scale, str) else float(family.scale)
        self._transpose: sparse.csr_array | None = None

    @property
    def transpose(self) -> sparse.csr_array:
        if self._transpose is None:
            self._transpose = self.A.T.tocsr()
        return self._transpose

    @property
    def quadratic(self) -> bool:
        """Whether the best loc does not depend on the shared scale."""
        return self.fixed is not None or self.noise == 0

    def own_variance(self, shared: Tensor) -> NDArray[np.float64]:
        """scale²·Σa²."""
        scale = math.exp(float(shared[0])) if self.fixed is None else self.fixed
        return self.squares * scale**2

    def log_likelihood(self, raw: Tensor, shared: Tensor) -> Tensor:
        members = self.sets.members(raw[:, 0])
        a = torch.from_numpy(self.A.data).to(members)
        variance = torch.from_numpy(self.squares).to(members)
        if self.fixed is None:
            variance = variance * (2 * shared[0]).exp() + self.noise
        else:
            variance = variance * self.fixed**2 + self.noise
        y = torch.from_numpy(self.y).to(members)
        square = (y - self.sets.flat.sum(a * members)) ** 2
        return -0.5 * (square / variance + (2 * math.pi * variance).log())

    def at(self, raw: Tensor, shared: Tensor) -> Point:
        return _GaussianPoint(self, raw, shared)


class _GaussianPoint(Point):
    def __init__(self, term: _Gaussian, raw: Tensor, shared: Tensor) -> None:
        self.term = term
        own = term.own_variance(shared)
        variance = own + term.noise
        self.precision = term.weight / variance
        rest = term.y - term.A @ raw[:, 0].numpy()
        self.pull = self.precision * rest
        each = rest * self.pull + term.weight * np.log(2 * math.pi * variance)
        self.value = 0.5 * float(each.sum())
        self.raw = torch.from_numpy(-(term.transpose @ self.pull)).unsqueeze(1)
        share = own / variance
        self.share = share
        if term.fixed is None:
            total = (share * (term.weight - rest * self.pull)).sum()
            self.shared = torch.tensor([total], dtype=torch.float64)
            slope = 2 * share * (1 - share)  # of the share in the log scale
            self.second = float(
                (slope * (term.weight - rest * self.pull) + 2 * share**2 * rest * self.pull).sum()
            )
        else:
            self.shared = torch.zeros(0, dtype=torch.float64)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        term = self.term
        along = term.A @ raw[:, 0].numpy()
        member = self.precision * along
        out_shared = torch.zeros_like(self.shared)
        if term.fixed is None:
            member = member + 2 * self.share * self.pull * float(shared[0])
            cross = float((2 * self.share * self.pull * along).sum())
            out_shared[0] = cross + self.second * float(shared[0])
        return torch.from_numpy(term.transpose @ member).unsqueeze(1), out_shared

    def curvature(self) -> Tensor:
        return torch.from_numpy(self.term.transpose.power(2) @ self.precision).unsqueeze(1)


def make_term(family: Family, observations: Observations, n_rows: int) -> Term:
    """The loss of one `Observations`, in closed form where there is one."""
    linear = None
    if isinstance(family, Normal) and family.scale != "predicted":
        linear = observations.aggregate.linear(observations.sets)
    if linear is not None and isinstance(family, Normal):
        return _Gaussian(family, observations, n_rows, linear)
    return _General(family, observations, n_rows)


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
        self.terms = [make_term(family, o, n_rows) for o in self.observations]
        self.n_sets = sum(len(o) for o in self.observations)
        self.total_weight = float(sum(t.weight.sum() for t in self.terms))

    # ---- value and derivatives

    def loss(self, raw: Tensor, shared: Tensor | None = None) -> Tensor:
        """The loss as a differentiable number; dtype and device are those of `raw`."""
        shared = self.no_shared(raw) if shared is None else shared
        total = raw.new_zeros(())
        for term in self.terms:
            each = term.log_likelihood(raw, shared)
            total = total - (each * torch.from_numpy(term.weight).to(each)).sum()
        return total

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
        return _Sum([term.at(raw, shared) for term in self.terms])

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

    def start(self) -> tuple[Tensor, Tensor]:
        """Raw numbers that are the same for all rows, and shared ones, of largest likelihood.

        An observation that is impossible whatever the parameters is an error.
        """
        raw, shared, unit = _guess(self.family, self.observations)
        packed = np.concatenate([raw, shared])

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            leaf = torch.from_numpy(packed + x * unit).requires_grad_()
            rows = leaf[: self.n_outputs].expand(self.n_rows, -1)
            value = self.loss(rows, leaf[self.n_outputs :])
            (gradient,) = torch.autograd.grad(value, leaf)
            scale = max(self.total_weight, 1e-12)
            return float(value.detach()) / scale, gradient.numpy() * unit / scale

        with torch.no_grad():
            each = self.per_set(
                torch.from_numpy(raw).expand(self.n_rows, -1), torch.from_numpy(shared)
            )
        for o, values in zip(self.observations, each, strict=True):
            bad = ~values.isfinite()
            if bad.any():
                at = int(bad.nonzero()[0, 0])
                y = None if o.y is None else np.asarray(o.y[at]).tolist()
                raise ValueError(
                    f"set {at} of {o!r} has y = {y}, which {self.family!r} cannot give "
                    f"(log-likelihood {float(values[at]):g}): check y, or choose another family"
                )
        found = optimize.minimize(
            loss, np.zeros(len(packed)), jac=True, method="BFGS", options={"maxiter": 50}
        )
        best = packed + (found.x if np.isfinite(found.fun) else 0.0) * unit
        return torch.from_numpy(best[: self.n_outputs]), torch.from_numpy(best[self.n_outputs :])

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
        orders = [np.array_split(rng.permutation(len(o)), n_batches) for o in self.observations]
        for parts in zip(*orders, strict=True):
            yield self.batch(
                [o.take(which) for o, which in zip(self.observations, parts, strict=True)]
            )

    def batch(self, observations: Sequence[Observations]) -> Batch:
        """These observations, over a table of just the rows that they are about."""
        observations = [o for o in observations if len(o)]
        rows, index = np.unique(
            np.concatenate([o.sets.indices for o in observations]), return_inverse=True
        )
        moved = []
        begin = 0
        for o in observations:
            end = begin + len(o.sets.indices)
            moved.append(o.over(index[begin:end]))
            begin = end
        return Batch(rows, Objective(self.family, moved, len(rows)))


class _Sum(Point):
    """Several terms together."""

    def __init__(self, points: list[Point]) -> None:
        self.points = points
        self.value = sum(p.value for p in points)
        self.raw = torch.stack([p.raw for p in points]).sum(0) if points[1:] else points[0].raw
        self.shared = torch.stack([p.shared for p in points]).sum(0)

    def product(self, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        found = [p.product(raw, shared) for p in self.points]
        return (
            torch.stack([f[0] for f in found]).sum(0) if found[1:] else found[0][0],
            torch.stack([f[1] for f in found]).sum(0),
        )

    def curvature(self) -> Tensor:
        return torch.stack([p.curvature() for p in self.points]).sum(0)


def _guess(
    family: Family, observations: Sequence[Observations]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Raw and shared numbers in the right region, and the unit in which each is to be varied."""
    found = [level for o in observations if (level := _level(o)) is not None]
    mean, deviation = 0.0, 1.0
    if found and not isinstance(family, Categorical):
        weights = np.array([f[2] for f in found])
        mean = float(np.average([f[0] for f in found], weights=weights))
        deviation = float(np.average([f[1] for f in found], weights=weights))
    size = max(abs(mean), deviation)
    deviation = max(deviation, 1e-6 * size) or 1.0
    positive = max(mean, 1e-3 * size, 1e-12)
    variance = deviation**2
    excess = max(variance / positive - 1.0, 0.1)  # of a count's variance over its mean
    values = {
        "loc": mean,
        "log_scale": math.log(deviation),
        "log_mean": math.log(positive),
        "log_rate": math.log(positive)
        if "log_rate" in family.outputs and "log_concentration" not in family.outputs
        else math.log(positive / variance),
        "log_concentration": math.log(positive**2 / variance),
        "log_total_count": math.log(positive / excess),
        "logits": math.log(excess),
    }
    raw = np.array([values.get(name, 0.0) for name in family.outputs])
    shared = np.array([values.get(name, 0.0) for name in family.shared])
    names = (*family.outputs, *family.shared)
    return raw, shared, np.array([deviation if name == "loc" else 1.0 for name in names])


def _level(o: Observations) -> tuple[float, float, int] | None:
    """Mean and deviation of a target as far as y itself tells, and from how many numbers."""
    if o.y is None or not len(o):
        return None
    y: NDArray[Any] = o.y
    linear = o.aggregate.linear(o.sets)
    if linear is not None:
        starts = o.sets.offsets[:-1]
        total, square = (np.add.reduceat(a, starts) for a in (linear[0], linear[0] ** 2))
        some = float((total**2).sum())
        mean = float((total * y).sum()) / some if some > 1e-12 else 0.0
        return mean, float(np.sqrt(np.mean((y - total * mean) ** 2 / square))), len(y)
    if not (o.aggregate.identity_at_one or isinstance(o.aggregate, Interval | Uncoupled)):
        return None
    numbers = y[np.isfinite(y)]
    if not len(numbers):
        return None
    return float(numbers.mean()), float(numbers.std()), len(numbers)
