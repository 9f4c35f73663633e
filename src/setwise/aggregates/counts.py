"""Counts and proportions: how many members of a set are of each class."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Laplace, Normal

from setwise._math.binary_counts import log_count, log_count_mixture
from setwise._math.class_counts import (
    MAX_STATES,
    log_coefficient,
    log_compositions,
    n_compositions,
)
from setwise.distributions import map_parameters
from setwise.errors import SetError
from setwise.likelihood import Aggregate, PerClass, Targets, by_size, likelihood
from setwise.numerics import chunked, logsumexp
from setwise.sets import Sets

__all__ = ["Counts", "Proportions", "noisy_counts"]

Method = Literal["exact", "normal", "auto"]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Tally(Aggregate):
    """The members of each class, counted; y is (n_sets, C), or (n_sets,) for class 1 of 2."""

    method: Method = "exact"
    n_classes: int | None = None

    classes_if_unsaid = 2

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"method is one of {get_args(Method)}, got {self.method!r}")
        if self.n_classes is not None and self.n_classes < 2:
            raise ValueError(f"n_classes is 2 or more, got {self.n_classes}")

    @abstractmethod
    def outcome(self, targets: Targets, size: int | None) -> PerClass:
        """Counts or shares."""

    @abstractmethod
    def unit(self, sizes: Any) -> Any:
        """What one member adds to y in sets of these sizes."""

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> NDArray[np.float64]:
        labels = z.long().numpy()
        n_classes = self.n_classes or max(2, int(labels.max(initial=0)) + 1)
        bad = (z.numpy() != labels) | (labels < 0) | (labels >= n_classes)
        if bad.any():
            at = int(bad.argmax())
            raise SetError(
                sets.set_ids[at],
                f"has a member of class {z[at]}: classes are the whole numbers 0 to "
                f"{n_classes - 1}",
            )
        cells = np.bincount(sets.set_ids * n_classes + labels, minlength=len(sets) * n_classes)
        return np.asarray(cells.reshape(len(sets), n_classes) * self.unit(sets.sizes[:, None]))

    def check_y(self, sets: Sets, y: Any) -> NDArray[np.float64]:
        array = self.outcome(Targets(), None).check(self, sets, y)
        flat = array.ndim == 1
        sizes = sets.sizes if flat else sets.sizes[:, None]
        self._check_whole(array, np.broadcast_to(sizes, array.shape))
        counts = self.counts(array, sizes)
        total = counts if flat else counts.sum(1)
        wrong = (total > sets.sizes) if flat else (total != sets.sizes)
        if wrong.any():
            at = int(wrong.argmax())
            what = "a count of" if flat else "counts that add up to"
            raise SetError(
                at,
                f"has {sets.sizes[at]} member(s) but {what} {total[at]} (y = {array[at].tolist()})",
            )
        return array

    def counts(self, y: Any, sizes: Any) -> Any:
        """The whole numbers that y stands for."""
        return (np.rint if isinstance(y, np.ndarray) else torch.round)(y / self.unit(sizes))

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(n_classes=n_classes)]

    @abstractmethod
    def _check_whole(self, y: NDArray[np.float64], sizes: Ints) -> None:
        """Raises where an entry of y does not stand for a whole number."""


@dataclass(frozen=True, kw_only=True)
class Counts(_Tally):
    """How many members of the set are of each class.

    P(y) = Σ Π_k p_k(z_k) over the z with these counts. Two classes: a tilted transform, O(K), sets
    of thousands. More: a recursion over the Π_c (y_c + 1) partial counts, at most 10⁶ of them;
    beyond, `method="normal"` takes the counts of all classes but the last as Gaussian with their
    true mean and covariance (plus 1/12 for the grid of whole numbers). Near the mean its relative
    error is a few per cent at K = 100 and falls with 1/√K; far out only the trend is right.
    `method="auto"` is exact wherever that is possible. `n_classes` is needed only to simulate.

    >>> Counts().observe([0, 2, 2, 1], [[0, 1, 2], [0, 3, 3]]).y.tolist()
    [[1.0, 0.0, 2.0], [1.0, 2.0, 0.0]]

    Kück & de Freitas, "Learning about individuals from group statistics", 2005.
    """

    def outcome(self, targets: Targets, size: int | None) -> PerClass:
        return PerClass("count", self.n_classes)

    def expected(self, members: Any, sets: Sets) -> Tensor:
        return sets.sum(members.probs)

    def unit(self, sizes: Any) -> Any:
        return 1

    def _check_whole(self, y: NDArray[np.float64], sizes: Ints) -> None:
        bad = ~((y >= 0) & (y == np.floor(y)) & np.isfinite(y))
        if bad.any():
            at = tuple(np.argwhere(bad)[0])
            raise SetError(
                at[0],
                f"has y = {y[at]:g}: {self!r} expects whole numbers from 0 on (for shares use "
                f"Proportions)",
            )


@dataclass(frozen=True, kw_only=True)
class Proportions(_Tally):
    """Which share of the set's members is of each class: `Counts` divided by the set's size.

    y times the size must be a whole number, or y that share rounded to two or more decimals, as
    long as no other share is rounded to the same. Otherwise as `Counts`.

    >>> Proportions().observe([0, 1, 1, 0], [[0, 1], [1, 2]]).y.tolist()
    [[0.5, 0.5], [0.0, 1.0]]

    Quadrianto et al., "Estimating labels from label proportions", 2009.
    """

    def outcome(self, targets: Targets, size: int | None) -> PerClass:
        return PerClass("share", self.n_classes)

    def expected(self, members: Any, sets: Sets) -> Tensor:
        return sets.mean(members.probs)

    def unit(self, sizes: Any) -> Any:
        return 1 / sizes

    def _check_whole(self, y: NDArray[np.float64], sizes: Ints) -> None:
        nearest = np.rint(y * sizes)
        good = np.abs(y * sizes - nearest) <= 1e-3
        for decimals in range(2, 6):
            rounded = np.round(nearest / sizes, decimals)
            good |= (np.abs(y - rounded) <= 1e-6) & (sizes < 10**decimals)
        bad = ~(good & (y > -1e-6) & (y < 1 + 1e-6))
        if bad.any():
            at = tuple(np.argwhere(bad)[0])
            count = int(np.clip(nearest[at], 0, sizes[at]) if np.isfinite(y[at]) else 0)
            raise SetError(
                at[0],
                f"has y = {y[at]:g}, which is no share of {sizes[at]} member(s); the nearest is "
                f"{count}/{sizes[at]} = {count / sizes[at]:.6g}",
            )


@likelihood(Counts, Categorical)
@likelihood(Proportions, Categorical)
def _counts(aggregate: _Tally, distribution: Any, sets: Sets, y: Tensor) -> Tensor:
    """Two classes: tilted transform, O(K). More: recursion over partial counts, or a normal law."""
    logits = distribution.logits
    _check_columns(aggregate, y, logits.shape[-1])
    sizes = sets.tensor("sizes", y).double()
    counts = aggregate.counts(y.double(), sizes if y.ndim == 1 else sizes[:, None])
    if aggregate.method == "normal":
        return _normal(aggregate, distribution, sets, counts)
    if logits.shape[-1] == 2:
        return _binary(aggregate, distribution, sets, counts)
    table = counts.long().cpu().numpy()
    states = (table + 1.0).prod(1)
    hard = states > MAX_STATES
    if not hard.any():
        return _recursion(distribution, sets, table)
    if aggregate.method == "exact":
        at = int(hard.argmax())
        raise SetError(
            at,
            f"with counts {table[at].tolist()} needs {states[at]:.3g} states, more than "
            f'{MAX_STATES}; use method="normal" or "auto"',
        )
    groups = [np.flatnonzero(~hard), np.flatnonzero(hard)]
    pieces = []
    for which, normal in zip(groups, (False, True), strict=True):
        part = sets.take(which)
        members = map_parameters(distribution, part.members)
        if normal:
            pieces.append(_normal(aggregate, members, part.flat, counts[which]))
        elif len(which):
            pieces.append(_recursion(members, part.flat, table[which]))
    return _restore(pieces, groups)


def _check_columns(aggregate: _Tally, y: Tensor, n_classes: int) -> None:
    if y.ndim == 1 and n_classes != 2:
        raise ValueError(
            f"{aggregate!r} of {n_classes} classes needs y of shape (n_sets, {n_classes}); one "
            f"number per set is enough only for two classes"
        )
    if y.ndim == 2 and y.shape[1] != n_classes:
        raise ValueError(
            f"y has {y.shape[1]} columns, but there are {n_classes} classes; give one column per "
            f"class (to simulate, set {type(aggregate).__name__}(n_classes={n_classes}))"
        )


def _restore(pieces: list[Tensor], groups: list[Ints]) -> Tensor:
    """The results of groups of sets, in the order of the sets."""
    order = np.argsort(np.concatenate(groups))
    return torch.cat(pieces)[torch.as_tensor(order, device=pieces[0].device)]


@by_size
def _binary(aggregate: Any, distribution: Any, sets: Sets, counts: Tensor) -> Tensor:
    k = counts if counts.ndim == 1 else counts[:, 1]
    zero, one = sets.dense(distribution.logits).unbind(2)
    return log_count(one, zero, k)


def _recursion(distribution: Any, sets: Sets, table: Ints) -> Tensor:
    """One dense problem for all sets that have the same counts up to the order of the classes."""
    order = np.argsort(-table, axis=1, kind="stable")
    shape = np.take_along_axis(table, order, 1)
    shapes, which = np.unique(shape, axis=0, return_inverse=True)
    groups = [np.flatnonzero(which.reshape(-1) == i) for i in range(len(shapes))]
    pieces = []
    for group, counts in zip(groups, shapes, strict=True):
        logits = sets.take(group).dense(distribution.logits)
        n_used = int((counts > 0).sum())
        columns = torch.as_tensor(order[group, :n_used], device=logits.device).unsqueeze(1)
        columns = columns.expand(-1, logits.shape[1], -1)
        pieces.append(log_coefficient(logits.gather(2, columns), tuple(counts[:n_used].tolist())))
    return _restore(pieces, groups)


@by_size
def _normal(aggregate: Any, distribution: Any, sets: Sets, counts: Tensor) -> Tensor:
    """The counts of all classes but the last as Gaussian, the grid of whole numbers smoothed."""
    p = sets.dense(distribution.logits).double().exp()
    p, counts = (p[..., 1:], counts[:, None]) if counts.ndim == 1 else (p[..., :-1], counts[:, :-1])
    return _gaussian(counts, p, 1 / 12).to(distribution.logits.dtype)


def _gaussian(counts: Tensor, p: Tensor, variance: Tensor | float) -> Tensor:
    """Log density of counts (n, c) with the moments of the members' classes p (n, K, c)."""
    mean = p.sum(1)
    extra = torch.eye(p.shape[2], dtype=p.dtype, device=p.device) * variance
    covariance = torch.diag_embed(mean) - p.transpose(1, 2) @ p + extra
    factor = torch.linalg.cholesky(covariance)
    z = torch.linalg.solve_triangular(factor, (counts - mean).unsqueeze(2), upper=False)
    log_det = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    constant = 0.5 * p.shape[2] * math.log(2 * math.pi)
    out: Tensor = -0.5 * z.square().sum((1, 2)) - log_det - constant
    return out


def noisy_counts(
    aggregate: Counts | Proportions,
    distribution: Any,
    sets: Sets,
    y: Tensor,
    noise: Normal | Laplace,
) -> Tensor:
    """log density of counts or proportions to which independent noise was added, entry by entry.

    Σ_v P(counts = v) · noise(y − v): for two classes by one tilted transform, O(K); for more over
    all compositions of K where there are at most 10⁶ of them; otherwise (or by `method="normal"`)
    the counts are taken as Gaussian and the variance of the noise is added. `noise` has location 0
    and one scale for all; for `Proportions` it is on the scale of the proportions.
    """
    n_classes = distribution.logits.shape[-1]
    _check_columns(aggregate, y, n_classes)

    @by_size
    def rule(aggregate: _Tally, distribution: Any, sets: Sets, y: Tensor) -> Tensor:
        assert sets.size is not None
        unit = aggregate.unit(sets.size)
        scaled: Any = map_parameters(noise, lambda t: t.to(y.device).double() / unit)
        counts = y.double() / unit
        log_unit = math.log(unit) * (1 if y.ndim == 1 else y.shape[1])
        logits = sets.dense(distribution.logits).double()
        if aggregate.method == "normal" or not _countable(aggregate, sets.size, n_classes):
            p = logits.exp()
            p, at = (p[..., 1:], counts[:, None]) if y.ndim == 1 else (p, counts)
            out = _gaussian(at, p, scaled.variance)
        elif n_classes == 2:
            out = _noisy_binary(logits, counts, scaled)
        else:
            out = _noisy_table(logits, counts, scaled)
        return (out - log_unit).to(y.dtype)

    return rule(aggregate, distribution, sets, y)


def _countable(aggregate: _Tally, size: int, n_classes: int) -> bool:
    """Whether all compositions can be listed; raises where they must be and cannot."""
    number = n_compositions(size, n_classes)
    if n_classes == 2 or (number <= MAX_STATES and (size + 1) ** n_classes < 2**62):
        return True
    if aggregate.method == "auto":
        return False
    raise ValueError(
        f"noisy counts of {size} members in {n_classes} classes need {number:.3g} states, more "
        f'than {MAX_STATES}; use {type(aggregate).__name__}(method="normal") or "auto"'
    )


def _noisy_binary(logits: Tensor, counts: Tensor, noise: Any) -> Tensor:
    size = logits.shape[1]
    v = torch.arange(size + 1, dtype=counts.dtype, device=counts.device)
    if counts.ndim == 1:
        log_weight = noise.log_prob(counts[:, None] - v)
    else:
        log_weight = noise.log_prob(counts[:, 1:] - v) + noise.log_prob(counts[:, :1] - (size - v))
    return log_count_mixture(logits[..., 1], logits[..., 0], log_weight)


def _noisy_table(logits: Tensor, counts: Tensor, noise: Any) -> Tensor:
    _, size, n_classes = logits.shape

    def total(logits: Tensor, counts: Tensor) -> Tensor:
        states, logs = log_compositions(logits)
        off = counts.unsqueeze(1) - states
        return logsumexp(logs + noise.log_prob(off).sum(2), 1)

    cost = n_classes * n_compositions(size, n_classes)
    return chunked(total, logits, counts, cost=cost)
