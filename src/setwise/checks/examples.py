"""Aggregates and families to try things on, found by discovery; here is only what they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def examples(cls: type[Aggregate], n_classes: int = 4) -> list[Aggregate]:
    """Aggregates of this class, for targets of so many classes where they are classes.

    >>> from setwise import Rank
    >>> examples(Rank)
    [Rank(tie_margin=0.0), Rank(tie_margin=1.0)]
    """
    try:
        return cls.examples(n_classes)
    except TypeError as error:
        raise AssertionError(
            f"{cls.__name__}() needs arguments: say in its class method `examples` which to try"
        ) from error


def noisy_examples(family: str, n_classes: int = 4) -> list[Aggregate]:
    """Noisy aggregates of targets of this family."""
    flips: list[Aggregate] = [A.Rank(), A.Choice()]
    sums: list[Aggregate] = [A.Sum(), A.Mean(), A.Direct()]
    if family == "categorical":
        flips = [A.Similarity(), A.AnyPositive(), A.Triplet(three_way=True), A.Direct(), A.Rank()]
        flips += [*A.Fold.examples(n_classes), *A.Coarse.examples(n_classes)]
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
    both = (type(aggregate), type(aggregate.bare))
    return [family for family in out if all(has_rule(cls, family) for cls in both)]


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
