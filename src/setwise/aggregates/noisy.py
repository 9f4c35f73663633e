"""Noisy: an observation seen through noise, such as that of differential privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Laplace, Normal

from setwise.aggregates.counts import Counts, noisy_counts
from setwise.aggregates.noise import noisy_total
from setwise.distributions import Family
from setwise.likelihood import (
    LEARNED,
    Aggregate,
    Number,
    Outcome,
    PerClass,
    SetSizes,
    Targets,
    Unknown,
    evaluate,
    likelihood,
)
from setwise.likelihood.aggregate import Pairs
from setwise.numerics import logsumexp
from setwise.sets import Sets

__all__ = ["Noisy"]

Matrix = tuple[tuple[float, ...], ...]
LINEAR = "Sum, Mean, Difference, Direct, and what defines `linear`"
FIRST = 0.1  # the share of flipped labels with which a fit begins


@dataclass(frozen=True)
class Noisy(Aggregate):
    """The observation of another aggregate, seen through noise.

    `flip=p`: a discrete y is replaced, with probability p, by one of its other values, each equally
    likely; `flip=matrix`: value i of y, in increasing order, is seen as value j with probability
    `matrix[i][j]`. `normal=s` or `laplace=b`: Gaussian or Laplace noise of that scale is added to
    every entry of y, independently; y must be linear in the targets (`Sum`, `Mean`, `Difference`,
    `Direct`), or `Counts` or `Proportions`. Exactly one of the three is given.

    A `flip` or a scale that is "learned" is a parameter of the fit: one for all sets, or with
    `Observations(…, by=…)` one for each labeller. Learned flips stay below the rate at which labels
    would carry no information. Scales of noise on counts have to be given.

    >>> from setwise import Similarity
    >>> Noisy(Similarity(), flip=0.0).observe([0, 1, 1], [[0, 1], [1, 2]]).y.tolist()
    [0.0, 1.0]

    Natarajan et al., "Learning with noisy labels", NeurIPS 2013. Dawid and Skene, "Maximum
    likelihood estimation of observer error-rates", Applied Statistics 1979.
    """

    aggregate: Aggregate
    flip: float | str | Matrix | None = None
    normal: float | str | None = None
    laplace: float | str | None = None

    learnable: ClassVar[tuple[str, ...]] = ("flip", "normal", "laplace")
    not_on_command_line = "give the aggregate as --observe, its noise as --noise laplace=0.5"

    def __post_init__(self) -> None:
        if self.aggregate.shares:
            raise TypeError(
                "the noise of y comes first: write RandomEffect(Noisy(…)), not the other way round"
            )
        # facts that noise does not change
        for name in ("size", "symmetric", "of_differences", "distinct"):
            object.__setattr__(self, name, getattr(self.aggregate, name))
        kinds = {name: getattr(self, name) for name in self.learnable}
        given = {name: value for name, value in kinds.items() if value is not None}
        if len(given) != 1:
            raise ValueError(f"give exactly one of flip, normal, laplace; got {given or 'none'}")
        ((name, value),) = given.items()
        if isinstance(value, str):
            if value != LEARNED:
                raise ValueError(f'{name} is a number or "learned", got {value!r}')
        elif name == "flip" and np.ndim(value):
            object.__setattr__(self, "flip", _matrix(value))
        elif name == "flip":
            if not 0 <= value < 1:
                raise ValueError(f"flip is a probability in [0, 1), got {value}")
        elif not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is the scale of the noise, a positive number; got {value}")
        if name != "flip":
            self._check_scale(name, value)

    def _check_scale(self, name: str, value: Any) -> None:
        counts = isinstance(self.aggregate, Counts)
        if counts and isinstance(value, str):
            raise TypeError(
                f"the scale of noise on {type(self.aggregate).__name__} is not learned: give it, "
                f"as in Noisy(…, {name}=2.0)"
            )
        if not _adds(self.aggregate):
            flip = "; if its y has a fixed list of values, use flip=p"
            raise TypeError(
                f"{name} noise can be added to what is linear in the targets ({LINEAR}) and to "
                f"Counts and Proportions, but not to {type(self.aggregate).__name__}"
                + (flip if _listed(self.aggregate) else "")
            )

    def mirrored(self, y: NDArray[Any]) -> NDArray[Any] | None:
        return None if isinstance(self.flip, tuple) else self.aggregate.mirrored(y)

    @property
    def bare(self) -> Aggregate:
        return self.aggregate.bare

    @property
    def noise(self) -> Normal | Laplace:
        """The distribution of the added noise."""
        value: Any = self.laplace if self.normal is None else self.normal
        scale = torch.as_tensor(value, dtype=torch.float64)
        law = Laplace if self.normal is None else Normal
        return law(torch.zeros_like(scale), scale, validate_args=False)

    def apply(self, z: Tensor, sets: Sets, rng: np.random.Generator) -> Any:
        if self.learned:
            raise ValueError(f"{self!r} has something to learn: give numbers to simulate with")
        y = np.asarray(self.aggregate.apply(z, sets, rng), float).copy()
        if self.flip is None:
            draw = rng.laplace if self.normal is None else rng.normal
            return y + draw(0.0, np.asarray(self.noise.scale), y.shape)
        discrete = not z.is_floating_point()
        targets = Targets(int(z.max()) + 1 if discrete else None, discrete)
        if isinstance(self.flip, tuple):
            values = np.array(self.values(targets, int(sets.individuals.max(initial=1))))
            seen = np.cumsum(self._rows(len(values)), 1)[np.searchsorted(values, y)]
            return values[(rng.random(len(y))[:, None] > seen).sum(1)]
        for i in np.flatnonzero(rng.random(len(y)) < np.asarray(self.flip)):
            others = [v for v in self.values(targets, int(sets.individuals[i])) if v != y[i]]
            y[i] = rng.choice(others) if others else y[i]
        return y

    def outcome(self, targets: Targets, size: int | None) -> Outcome:
        """Unchanged by flips; with added noise, real numbers."""
        inner = self.aggregate.outcome(targets, size)
        if self.flip is not None:
            return inner
        return replace(inner, noisy=True) if isinstance(inner, PerClass) else Number()

    def values(self, targets: Targets, size: int | None) -> Sequence[float]:
        """The possible y without noise, which a flip chooses from."""
        found = self.aggregate.outcome(targets, size).values
        if found is None:
            added = "use Noisy(…, normal=s) or Noisy(…, laplace=b)"
            none = f"only amounts that are linear in the targets ({LINEAR}) can have noise"
            raise TypeError(
                f"{self.aggregate!r} has no fixed list of outcomes, so its y cannot be flipped; "
                + (added if _adds(self.aggregate) else none)
            )
        return sorted(found) if isinstance(self.flip, tuple) else found

    def _rows(self, n: int) -> NDArray[np.float64]:
        """The matrix of flips, for n values."""
        matrix = np.array(self.flip, float)
        if len(matrix) != n:
            raise ValueError(
                f"flip is a {len(matrix)}×{len(matrix)} matrix, but y of {self.aggregate!r} has "
                f"{n} values: a row and a column for each of them"
            )
        return matrix

    def set_sizes(self, targets: Targets) -> SetSizes:
        return self.aggregate.set_sizes(targets)

    def expected(self, members: Distribution, sets: Sets) -> Tensor | None:
        """As without noise if noise is added, since its mean is zero."""
        return None if self.flip is not None else self.aggregate.expected(members, sets)

    def informative(self, targets: Targets, size: int) -> bool:
        """False where every value of y is equally likely whatever the targets are."""
        if isinstance(self.flip, tuple):
            matrix = self._rows(len(self.values(targets, size)))
            if (np.abs(matrix - matrix[0]) <= 1e-9).all():
                return False
        elif isinstance(self.flip, float | int):
            m = len(self.values(targets, size))
            if abs(m - 1 - self.flip * m) <= 1e-9:
                return False
        return self.aggregate.informative(targets, size)

    def unknown(self, family: Family, y: Any = None) -> tuple[Unknown, ...]:
        inner = self.aggregate.unknown(family, y)
        if self.flip == LEARNED:
            most = 1 - 1 / len(self.values(Targets.of(family), self.size or 2))
            return (Unknown("flip", -math.log(most / min(FIRST, most / 2) - 1), most), *inner)
        if LEARNED in (self.normal, self.laplace):
            spread = 1.0 if y is None else float(np.std(np.asarray(y, float)))
            name = "normal" if self.normal == LEARNED else "laplace"
            return (Unknown(name, math.log(spread / 2) if spread > 0 else 0.0), *inner)
        return inner

    def with_classes(self, n_classes: int) -> Self:
        return replace(self, aggregate=self.aggregate.with_classes(n_classes))

    @classmethod
    def examples(cls, n_classes: int) -> list[Aggregate]:
        return []  # see `checks.noisy_examples`

    def check_y(self, sets: Sets, y: Any) -> NDArray[Any] | None:
        return super().check_y(sets, y) if self.flip is None else self.aggregate.check_y(sets, y)

    def linear(self, sets: Sets) -> tuple[NDArray[np.float64], float] | None:
        inner = self.aggregate.linear(sets)
        if inner is None or not isinstance(self.normal, float | int):
            return None
        return inner[0], self.normal**2

    def alike(self, sets: Sets, y: NDArray[Any]) -> Pairs | None:
        """As without noise, as long as most of y is not flipped."""
        flip: Any = self.flip
        if isinstance(flip, tuple):
            flip = 1 - min(row[i] for i, row in enumerate(flip))
        mostly = flip is not None and (isinstance(flip, str) or bool(np.all(np.array(flip) < 0.5)))
        return self.aggregate.alike(sets, y) if mostly else None


def _adds(aggregate: Aggregate) -> bool:
    """Whether noise can be added to its y."""
    linear = aggregate.linear(Sets(np.zeros((0, aggregate.size or 1), np.int64)))
    return isinstance(aggregate, Counts) or (linear is not None and linear[1] == 0)


def _listed(aggregate: Aggregate) -> bool:
    """Whether its y has a fixed list of values, at least for some targets."""
    kinds = Targets(2, discrete=True), Targets(None, discrete=False)
    return any(aggregate.outcome(t, aggregate.size or 2).values is not None for t in kinds)


def _matrix(given: Any) -> Matrix:
    """Rows of probabilities, one for each value of y."""
    matrix = np.asarray(given, float)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not (square and (matrix >= 0).all() and np.abs(matrix.sum(1) - 1).max() < 1e-6):
        raise ValueError(
            f"a matrix of flips is square, a row and a column for each value of y, and each row "
            f"holds probabilities that add up to 1; got {matrix.tolist()}"
        )
    return tuple(tuple(row) for row in matrix.tolist())


@likelihood(Noisy, Distribution, counts=True)
def _noisy(aggregate: Noisy, distribution: Distribution, sets: Sets, y: Tensor) -> Tensor:
    """Mixture with the flipped values, or convolution with the noise."""
    inner: Any = aggregate.aggregate
    if aggregate.flip is None:
        add = noisy_counts if isinstance(inner, Counts) else noisy_total
        return add(inner, distribution, sets, y, aggregate.noise)
    targets = Targets.of(distribution)
    if isinstance(aggregate.flip, tuple):
        return _confused(aggregate, distribution, sets, y, targets)
    sizes, which = np.unique(sets.individuals, return_inverse=True)
    numbers = [len(aggregate.values(targets, int(size))) for size in sizes]
    clean = evaluate(inner, distribution, sets, y)
    others = torch.as_tensor(np.array(numbers)[which] - 1).to(clean)
    flip: Any = aggregate.flip
    flip = flip.to(clean) if isinstance(flip, Tensor) else flip
    # P(y) = (1−p) L + p (1−L)/(m−1) = a + b·L, without subtracting where p < 1/2
    a = torch.where(others > 0, flip / others.clamp(min=1), 0.0)
    keep = 1 - a * others
    mixed = a + (keep - a) * clean.exp()
    pure = a == 0
    return torch.where(pure, clean + keep.log(), torch.where(pure, 1.0, mixed).log())


def _confused(
    aggregate: Noisy, distribution: Distribution, sets: Sets, y: Tensor, targets: Targets
) -> Tensor:
    """log Σ_i P(i) · matrix[i][y] over the values i that y has without noise."""
    out = []
    for size in np.unique(sets.individuals).tolist():
        aggregate._rows(len(aggregate.values(targets, size)))
    values = aggregate.values(targets, int(sets.individuals[0]))
    rows = torch.tensor(aggregate.flip, dtype=torch.float64).log()
    seen = torch.searchsorted(torch.tensor(values, dtype=torch.float64), y.double().cpu())
    for value, row in zip(values, rows, strict=True):
        clean = evaluate(aggregate.aggregate, distribution, sets, torch.full_like(y, value))
        out.append(clean + row[seen].to(clean))
    return logsumexp(torch.stack(out, 1), 1)
