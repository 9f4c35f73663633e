"""Aggregates and families to try things on, found by discovery; here is only what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setwise import aggregates as A
from setwise.distributions import Categorical, Discrete, Family, families, resolve
from setwise.likelihood import Aggregate, aggregates, find_rule

__all__ = ["default_families", "example_aggregates", "example_raw", "examples", "noisy_examples"]


def require(condition: Any, message: str) -> None:
    """Raises an AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def context(where: str) -> Iterator[None]:
    """Puts where it happened before the message of an error."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


def _spread(z: Tensor) -> Tensor:
    return z.max() - z.min()


def _triplets(c: int) -> list[Aggregate]:
    distance = np.random.default_rng(7).integers(0, 4, (c, c)).astype(float)
    return [A.Triplet(d, three) for d in (None, distance) for three in (False, True)]


def _coarse(c: int) -> list[Aggregate]:
    complementary = [tuple(k for k in range(c) if k != i) for i in range(c)]
    return [A.Coarse([(0,), tuple(range(1, c))]), A.Coarse(complementary)]


def _folds(c: int) -> list[Aggregate]:
    step = np.random.default_rng(7).integers(0, 3, (3, c))
    return [A.Fold(step, [0, 1, 1]), A.Fold(step, [0, 1, 2], start=1)]


# What an aggregate is made of, where the constructor needs it or several kinds are of interest.
_MAKE: dict[str, Callable[[int], list[Aggregate]]] = {
    "Rank": lambda c: [A.Rank(), A.Rank(tie_margin=1.0)],
    "Interval": lambda c: [A.Interval(edges=(-1.0, 0.5, 1.0, 2.5))],
    "OrderStatistic": lambda c: [A.OrderStatistic(1), A.OrderStatistic(2)],
    "Triplet": _triplets,
    "AnyPositive": lambda c: [A.AnyPositive(), A.AnyPositive(positive=0)],
    "Counts": lambda c: [A.Counts(n_classes=c)],
    "Proportions": lambda c: [A.Proportions(n_classes=c)],
    "Presence": lambda c: [A.Presence(n_classes=c)],
    "Coarse": _coarse,
    "Fold": _folds,
    "Custom": lambda c: [A.Custom(_spread, samples=256, bandwidth=0.3)],
    "Noisy": lambda c: [],  # pairs with every other aggregate: see noisy_examples
}


def examples(cls: type[Aggregate], n_classes: int = 4) -> list[Aggregate]:
    """Aggregates of this class, for targets of so many classes where they are classes.

    >>> from setwise import Rank
    >>> examples(Rank)
    [Rank(tie_margin=0.0), Rank(tie_margin=1.0)]
    """
    if cls.__name__ in _MAKE:
        return _MAKE[cls.__name__](n_classes)
    try:
        return [cls()]
    except TypeError as error:
        raise AssertionError(
            f"{cls.__name__}() needs arguments: say in checks/examples.py what it is made of"
        ) from error


def noisy_examples(family: str, n_classes: int = 4) -> list[Aggregate]:
    """Noisy aggregates of targets of this family."""
    flips: list[Aggregate] = [A.Rank(), A.Choice()]
    sums: list[Aggregate] = [A.Sum(), A.Mean(), A.Direct()]
    if family == "categorical":
        flips = [A.Similarity(), A.AnyPositive(), A.Triplet(three_way=True), A.Direct(), A.Rank()]
        flips += [*_folds(n_classes), *_coarse(n_classes)]
        sums = [A.Sum(), A.Mean(), A.Counts(n_classes=n_classes)]
        sums += [A.Proportions(n_classes=n_classes)]
    elif issubclass(families()[family].kind, Discrete):
        flips = [A.Rank()]
    out: list[Aggregate] = [A.Noisy(a, flip=0.15) for a in flips]
    out += [A.Noisy(a, normal=0.7) for a in sums]
    return out + [A.Noisy(a, laplace=0.6) for a in sums]


def example_aggregates(family: str, n_classes: int = 3) -> list[Aggregate]:
    """One aggregate of every class of the library that has a rule for this family."""
    out = []
    for cls in aggregates():
        if not cls.__module__.startswith("setwise.") or not has_rule(cls, families()[family]):
            continue
        found = examples(cls, n_classes) or noisy_examples(family, n_classes)
        out.append(found[0])
    return out


def has_rule(cls: type[Aggregate], family: type[Family] | Family) -> bool:
    """Whether a likelihood rule is known for the pair."""
    try:
        find_rule(cls, family.distribution)
    except TypeError:
        return False
    return True


def default_families(
    aggregate: Aggregate, given: Iterable[str | Family] | None, n_classes: int
) -> list[Family]:
    """The given families, or every one that has a rule and needs no arguments."""
    if given is not None:
        return [resolve(family) for family in given]
    out: list[Family] = []
    for cls in families().values():
        if cls is Categorical:
            out.append(Categorical(n_classes))
        else:
            try:
                out.append(cls())
            except TypeError:
                continue
    chain = [aggregate]
    while isinstance(chain[-1], A.Noisy):
        chain.append(chain[-1].aggregate)
    return [family for family in out if all(has_rule(type(a), family) for a in chain)]


def example_raw(family: Family, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Moderate raw and shared parameters for n rows."""
    rng = np.random.default_rng(seed)
    raw = rng.uniform(-0.8, 0.8, (n, len(family.outputs)))
    return torch.from_numpy(raw), torch.from_numpy(rng.uniform(-0.5, 0.1, len(family.shared)))


def simulate(family: Family, d: Any, n: int, seed: int) -> Tensor:
    """n targets of each row, (n, rows), whole numbers where the family is of counts or classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        z: Tensor = d.sample((n,))
    return z.long() if issubclass(family.kind, Discrete) else z.double()
