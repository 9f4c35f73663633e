"""Counts and proportions: how many members of a set are of each class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Laplace, Normal

from setwise._math.binary_counts import log_count, log_count_mixture
from setwise._math.class_counts import (
    MAX_STATES,
    log_coefficient,
    log_coefficient_of_few,
    log_mixture_of_compositions,
    n_compositions,
)
from setwise._math.class_transform import FEW_CLASSES, log_class_counts
from setwise._math.padding import Padded, batches, overhead, partition
from setwise.distributions import map_parameters
from setwise.errors import check_each
from setwise.likelihood import Aggregate, PerClass, Targets, likelihood
from setwise.likelihood.registry import in_parts
from setwise.sets import Sets

__all__ = ["Counts", "Proportions", "noisy_counts"]

Method = Literal["exact", "normal", "auto"]
Ints = NDArray[np.int64]

_FEW_STATES = 1000  # of all classes but the most frequent one


@dataclass(frozen=True, kw_only=True)
class Counts(Aggregate):
    """How many members of the set are of each class; for class 1 of 2 one number is enough.

    P(y) = Σ Π_k p_k(z_k) over the z with these counts. A tilted transform, O(K), for two classes,
    and for three or four where the set is large; otherwise a recursion over the Π_c (y_c + 1)
    partial counts, at most 10⁶ of them. Beyond, `method="normal"` takes the counts of all classes
    but the last as Gaussian with their true mean and covariance (plus 1/12 for the grid of whole
    numbers). Near the mean its relative error is a few per cent at K = 100 and falls with 1/√K; far
    out only the trend is right. `method="auto"` is exact wherever that is possible. `n_classes` is
    needed only to simulate.

    >>> Counts().observe([0, 2, 2, 1], [[0, 1, 2], [0, 3]]).y.tolist()
    [[1.0, 0.0, 2.0], [1.0, 1.0, 0.0]]

    Kück & de Freitas, "Learning about individuals from group statistics", 2005.
    """

    method: Method = "exact"
    n_classes: int | None = None

    what: ClassVar[Literal["count", "share"]] = "count"
    default_n_classes = 2

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"method is one of {get_args(Method)}, got {self.method!r}")
        if self.n_classes is not None and self.n_classes < 2:
            raise ValueError(f"n_classes is 2 or more, got {self.n_classes}")

    def unit(self, sizes: Any) -> Any:
        """What one member adds to y in sets of these sizes."""
        return 1 / sizes if self.what == "share" else 1

    def counts(self, y: Any, sizes: Any) -> Any:
        """The whole numbers that y stands for."""
        return (y / self.unit(sizes)).round()

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> NDArray[np.float64]:
        labels = z.long().numpy()
        n_classes = self.n_classes or max(2, int(labels.max(initial=0)) + 1)
        check_each(
            (z.numpy() == labels) & (labels >= 0) & (labels < n_classes),
            lambda at: (
                f"has a member of class {z[at]}: classes are the whole numbers 0 to {n_classes - 1}"
            ),
            sets.set_ids,
        )
        cells = np.bincount(sets.set_ids * n_classes + labels, minlength=len(sets) * n_classes)
        return np.asarray(cells.reshape(len(sets), n_classes) * self.unit(sets.sizes[:, None]))

    def outcome(self, targets: Targets, size: int | None) -> PerClass:
        return PerClass(self.what, self.n_classes)

    def expected(self, members: Any, sets: Sets) -> Tensor:
        return sets.sum(members.probs) * torch.as_tensor(self.unit(sets.individuals[:, None]))

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return [cls(n_classes=n_classes)]


@dataclass(frozen=True, kw_only=True)
class Proportions(Counts):
    """Which share of the set's members is of each class: `Counts` divided by the set's size.

    y times the size must be a whole number. A share that was rounded to two or more decimals is
    also accepted, if no other share rounds to the same number.

    >>> Proportions().observe([0, 1, 1, 0], [[0, 1], [1, 2]]).y.tolist()
    [[0.5, 0.5], [0.0, 1.0]]

    Quadrianto et al., "Estimating labels from label proportions", 2009.
    """

    what = "share"


@likelihood(Counts, Categorical, counts=True)
def _counts(aggregate: Counts, distribution: Any, sets: Sets, y: Tensor) -> Tensor:
    """Tilted transform, O(K), for few classes; recursion over partial counts, or a normal law."""
    logits = distribution.logits
    _check_columns(aggregate, y, logits.shape[-1])
    sizes = sets.tensor("individuals", y).double()
    counts = aggregate.counts(y.double(), sizes if y.ndim == 1 else sizes[:, None])
    if aggregate.method == "normal":
        return _normal(distribution, sets, counts)
    if logits.shape[-1] == 2:
        return _binary(distribution, sets, counts)
    table = counts.long().cpu().numpy()
    kind = _kinds(table, sets)
    if (kind == _LISTED).all() and sets.counts is None:
        return _recursion(distribution, sets, table)
    if aggregate.method == "exact":
        check_each(
            kind != _APPROXIMATE,
            lambda at: (
                f"with counts {table[at].tolist()} needs {(table[at] + 1.0).prod():.3g} states, "
                f'more than {MAX_STATES}; use method="normal" or "auto"'
            ),
        )

    def rule(which: Ints, part: Sets) -> Tensor:
        members = map_parameters(distribution, part.members)
        engines = {_LISTED: _listed, _TRANSFORMED: _transformed, _APPROXIMATE: _normal}
        return engines[int(kind[which[0]])](members, part.flat, counts[which])

    return in_parts(sets.apart(kind), rule)


_LISTED, _TRANSFORMED, _APPROXIMATE = range(3)  # how the counts of a set are computed
_ANGLES = 100.0  # what one of the angles of a transform costs, in partial counts


def _kinds(table: Ints, sets: Sets) -> Ints:
    """The cheapest way for each set, where there is one."""
    classes = (table > 0).sum(1)
    states = (table + 1.0).prod(1)
    few = classes <= FEW_CLASSES
    work = states * sets.individuals, _ANGLES * 20.0 ** np.maximum(classes - 1, 0) * sets.sizes
    kind = np.where(few & (work[1] < work[0]), _TRANSFORMED, _LISTED)
    return np.where(states <= MAX_STATES, kind, np.where(few, _TRANSFORMED, _APPROXIMATE))


def _listed(distribution: Any, sets: Sets, counts: Tensor) -> Tensor:
    """By partial counts, individual by individual."""
    members, sets = _each(distribution, sets)
    return _recursion(members, sets, counts.long().cpu().numpy())


def _each(distribution: Any, sets: Sets) -> tuple[Any, Sets]:
    """Each individual as a member of its own."""
    if sets.counts is None:
        return distribution, sets
    every = sets.expand()
    return map_parameters(distribution, every.members), every.flat


def _transformed(distribution: Any, sets: Sets, counts: Tensor) -> Tensor:
    """By the tilted transform; where that loses digits, by partial counts or a normal law."""
    one = Padded.of(sets)
    times = torch.ones(len(sets.indices), dtype=torch.float64, device=counts.device)
    logits = one.fill(distribution.logits.double(), 0.0)
    out = log_class_counts(logits, one.fill(sets.by_count(times), 0.0), counts)
    lost = out.detach() == math.inf
    if lost.any():
        which = lost.nonzero()[:, 0].cpu().numpy()
        some = sets.take(which)
        table = counts[which].long().cpu().numpy()
        engine = _listed if ((table + 1.0).prod(1) <= MAX_STATES).all() else _normal
        again = engine(map_parameters(distribution, some.members), some.flat, counts[which])
        at = torch.from_numpy(which).to(out.device)
        out = torch.where(lost, 0.0, out).index_copy(0, at, again.to(out.dtype))
    return out.to(distribution.logits.dtype)


def _check_columns(aggregate: Counts, y: Tensor, n_classes: int) -> None:
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


def _binary(distribution: Any, sets: Sets, counts: Tensor) -> Tensor:
    k = counts if counts.ndim == 1 else counts[:, 1]

    def rule(which: Ints, part: Sets) -> Tensor:
        zero, one = _two_logits(part.members(distribution.logits), part.flat)
        at = torch.from_numpy(which).to(k.device)
        return log_count(one, zero, k[at], _times(part.flat, k))

    return in_parts(batches(sets, unit=4.0, power=2), rule)


def _times(sets: Sets, like: Tensor) -> Tensor | None:
    """The counts of members as (sets, members), where they have some."""
    return None if sets.counts is None else Padded.of(sets).fill(sets.tensor("counts", like), 0.0)


def _two_logits(logits: Tensor, sets: Sets) -> tuple[Tensor, Tensor]:
    """Logits of classes 0 and 1 as (sets, members); a member past the end is of class 0."""
    one = Padded.of(sets)
    return one.fill(logits[:, 0], 0.0), one.fill(logits[:, 1], -math.inf)


def _recursion(distribution: Any, sets: Sets, table: Ints) -> Tensor:
    """Sets that need few partial counts are computed together, whatever their counts are."""
    order = np.argsort(-table, axis=1, kind="stable")
    shape = np.take_along_axis(table, order, 1)
    states = (shape[:, 1:] + 1).prod(1)

    def few(which: Ints, part: Sets) -> Tensor:
        counts = shape[which]
        used = int((counts > 0).any(0).sum())
        columns = torch.as_tensor(order[which, :used], device=distribution.logits.device)
        logits = part.members(distribution.logits).gather(1, part.repeat(columns))
        out = log_coefficient_of_few(logits, part.flat, counts[:, :used])
        return out.to(logits.dtype)

    def many(which: Ints, part: Sets) -> Tensor:  # those that have one shape
        logits, counts = part.dense(distribution.logits), shape[which[0]]
        used = int((counts > 0).sum())
        columns = torch.as_tensor(order[which, :used], device=logits.device).unsqueeze(1)
        logits = logits.gather(2, columns.expand(-1, logits.shape[1], -1))
        return log_coefficient(logits, tuple(counts[:used].tolist()))

    hard = np.flatnonzero(states > _FEW_STATES)
    easy = np.flatnonzero(states <= _FEW_STATES)
    cost = overhead(distribution.logits)
    together = partition(states[easy], lambda n: n * 8.0, sets.sizes[easy], cost)
    parts = [easy[at] for at in together]
    _, same = np.unique(shape[hard], axis=0, return_inverse=True)
    parts += [hard[same.reshape(-1) == n] for n in np.unique(same)]

    def rule(which: Ints, part: Sets) -> Tensor:
        return (few if states[which[0]] <= _FEW_STATES else many)(which, part)

    return in_parts([(which, sets.take(which)) for which in parts], rule)


def _normal(distribution: Any, sets: Sets, counts: Tensor) -> Tensor:
    """The counts of all classes but the last as Gaussian, the grid of whole numbers smoothed."""
    p = distribution.logits.double().exp()
    p, counts = (p[:, 1:], counts[:, None]) if counts.ndim == 1 else (p[:, :-1], counts[:, :-1])
    return _gaussian(counts, p, sets, 1 / 12).to(distribution.logits.dtype)


def _gaussian(counts: Tensor, p: Tensor, sets: Sets, variance: Tensor | float) -> Tensor:
    """Log density of counts (n, c) with the moments of the members' classes p (members, c)."""
    mean = sets.sum(p)
    extra = torch.eye(p.shape[1], dtype=p.dtype, device=p.device) * variance
    covariance = torch.diag_embed(mean) - sets.sum(p.unsqueeze(2) * p.unsqueeze(1)) + extra
    factor = torch.linalg.cholesky(covariance)
    z = torch.linalg.solve_triangular(factor, (counts - mean).unsqueeze(2), upper=False)
    log_det = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    constant = 0.5 * p.shape[1] * math.log(2 * math.pi)
    out: Tensor = -0.5 * z.square().sum((1, 2)) - log_det - constant
    return out


def noisy_counts(
    aggregate: Counts, distribution: Any, sets: Sets, y: Tensor, noise: Normal | Laplace
) -> Tensor:
    """log density of counts or proportions to which independent noise was added, entry by entry.

    Σ_v P(counts = v) · noise(y − v): for two classes by one tilted transform, O(K); for more over
    all compositions of K where there are at most 10⁶ of them; otherwise (or by `method="normal"`)
    the counts are taken as Gaussian and the variance of the noise is added. `noise` has location 0
    and one scale for all; for `Proportions` it is on the scale of the proportions.
    """
    n_classes = distribution.logits.shape[-1]
    _check_columns(aggregate, y, n_classes)
    distinct = np.unique(sets.individuals)
    unit = torch.as_tensor(aggregate.unit(sets.individuals.astype(float)), device=y.device)
    unit = unit.double().expand(len(sets))
    counts, law = y.double() / (unit if y.ndim == 1 else unit[:, None]), _Noise(noise, unit)
    if aggregate.method == "normal":
        out = _noisy_normal(distribution, sets, counts, law)
    elif all(_countable(aggregate, int(size), n_classes) for size in distinct):
        engine = _noisy_binary if n_classes == 2 else _noisy_table
        out = engine(distribution, sets, counts, law)
    else:

        def rule(which: Ints, part: Sets) -> Tensor:
            members, at = map_parameters(distribution, part.members), torch.from_numpy(which)
            able = _countable(aggregate, int(part.individuals[0]), n_classes)
            engine, at = _noisy_table if able else _noisy_normal, at.to(y.device)
            return engine(members, part.flat, counts[at], law.take(at))

        out = in_parts(sets.apart(sets.individuals), rule)
    return (out - unit.log() * (1 if y.ndim == 1 else y.shape[1])).to(y.dtype)


class _Noise(NamedTuple):
    """Noise on counts or proportions, whose scale in counts may differ between sets."""

    law: Any
    unit: Tensor  # what one member adds to y: (sets,)

    def take(self, at: Tensor) -> _Noise:
        """The noise of these sets."""
        return self._replace(unit=self.unit[at])

    def scaled(self, at: Any = slice(None)) -> Any:
        """Its distribution in counts, (sets, 1)."""
        unit = self.unit[at].unsqueeze(1)
        return map_parameters(self.law, lambda t: t.to(unit.device).double() / unit)


def _noisy_normal(distribution: Any, sets: Sets, counts: Tensor, noise: _Noise) -> Tensor:
    """With the counts taken as Gaussian, where there are too many to list."""
    p = distribution.logits.double().exp()
    p, counts = (p[:, 1:], counts[:, None]) if counts.ndim == 1 else (p, counts)
    return _gaussian(counts, p, sets, noise.scaled().variance.unsqueeze(2))


def _countable(aggregate: Counts, size: int, n_classes: int) -> bool:
    """Whether all compositions can be listed; raises where they must be and cannot."""
    number = n_compositions(size, n_classes)
    if n_classes == 2 or (number <= MAX_STATES and (size + 1) ** n_classes < 2**62):
        return True
    if aggregate.method != "exact":
        return False
    raise ValueError(
        f"noisy counts of {size} members in {n_classes} classes need {number:.3g} states, more "
        f'than {MAX_STATES}; use {type(aggregate).__name__}(method="normal") or "auto"'
    )


def _noisy_binary(distribution: Any, sets: Sets, counts: Tensor, noise: _Noise) -> Tensor:
    logits = distribution.logits.double()

    def rule(which: Ints, part: Sets) -> Tensor:
        at = torch.from_numpy(which).to(counts.device)
        zero, one = _two_logits(part.members(logits), part.flat)
        v = torch.arange(part.individuals.max() + 1, dtype=counts.dtype, device=counts.device)
        size = part.tensor("individuals", counts)[:, None]
        own, law = counts[at], noise.scaled(at)
        if own.ndim == 1:
            log_weight = law.log_prob(own[:, None] - v)
        else:
            log_weight = law.log_prob(own[:, 1:] - v) + law.log_prob(own[:, :1] - (size - v))
        log_weight = log_weight.masked_fill(v > size, -math.inf)
        return log_count_mixture(one, zero, log_weight, _times(part.flat, counts))

    return in_parts(batches(sets, unit=4.0, power=2), rule)


def _noisy_table(distribution: Any, sets: Sets, counts: Tensor, noise: _Noise) -> Tensor:
    """Over all compositions."""

    def weigh(states: Tensor, at: Tensor) -> Tensor:
        law, own = noise.scaled(at), counts[at]
        terms = [law.log_prob(own[:, c, None] - states[:, c]) for c in range(states.shape[1])]
        return torch.stack(terms).sum(0).T

    members, sets = _each(distribution, sets)
    return log_mixture_of_compositions(members.logits.double(), sets, weigh)
