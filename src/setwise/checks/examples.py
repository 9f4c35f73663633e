"""What the checks share: aggregates and families to try, found by discovery, and assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setwise import aggregates as A
from setwise.distributions import Categorical, Discrete, Family, families, resolve
from setwise.likelihood import Aggregate, aggregates, find_rule


def require(condition: Any, message: str) -> None:
    """Raises an AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def context(where: str) -> Iterator[None]:
    """Puts `where` in front of the message of an error."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


@contextmanager
def refused(kinds: type[Exception] | tuple[type[Exception], ...], what: str) -> Iterator[None]:
    """Raises an AssertionError unless the block raises one of these exceptions."""
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    names = " or ".join(kind.__name__ for kind in listed)
    try:
        yield
    except listed:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} raised {type(error).__name__}, {names} is expected: {error}"
        ) from error
    raise AssertionError(f"{what} is accepted: raise a {names} that says why not")


def check_numerics(
    function: Callable[..., Tensor],
    raw: Tensor,
    shared: Tensor,
    seed: int,
    slope_error: float = 1e-3,
    single_error: float = 1e-3,
) -> None:
    """The gradient of `function(raw, shared)`, and its values in single precision, are right."""
    leaves = (raw.clone().requires_grad_(), shared.clone().requires_grad_())
    value = function(*leaves)
    finite = value.isfinite()
    gradients: tuple[Tensor, ...] = (torch.zeros_like(raw), torch.zeros_like(shared))
    if value.requires_grad:  # otherwise it is a constant
        total = value[finite].sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    good = all(g.isfinite().all() for g in gradients)
    require(good, f"the gradient is not finite: {gradients}")
    rng = np.random.default_rng(seed)
    way = [torch.from_numpy(rng.normal(size=tuple(leaf.shape))) for leaf in leaves]
    steps = (1e-5, -1e-5)
    ends = [function(raw + h * way[0], shared + h * way[1])[finite].sum() for h in steps]
    difference = float(ends[0] - ends[1]) / 2e-5
    slope = sum(float((g * w).sum()) for g, w in zip(gradients, way, strict=True))
    require(
        abs(slope - difference) < slope_error * (1 + abs(difference)),
        f"the gradient gives a slope of {slope:.8g}, differences give {difference:.8g}",
    )
    single = raw.float(), shared.float()
    found, wanted = function(*single), function(*(t.double() for t in single))
    require(found.dtype == torch.float32, f"float32 parameters gave {found.dtype}")
    off = torch.where(found == wanted, 0.0, (found - wanted).abs() / (1 + wanted.abs())).max()
    require(off < single_error, f"float32 is off by a relative {float(off):.2g}")


def examples(cls: type[Aggregate], n_classes: int = 4) -> list[Aggregate]:
    """Aggregates of this class; where targets are classes, there are `n_classes` of them.

    >>> from setwise import Rank
    >>> examples(Rank)
    [Rank(tie_margin=0.0), Rank(tie_margin=1.0)]
    """
    try:
        return cls.examples(n_classes)
    except TypeError as error:
        raise AssertionError(
            f"{cls.__name__}() needs arguments: give examples in its class method `examples`"
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


def library_aggregates() -> list[type[Aggregate]]:
    """The aggregates that are not a user's own."""
    return [cls for cls in aggregates() if cls.__module__.startswith("setwise.")]


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
    out: list[Family] = [Categorical(n_classes)]
    for cls in families().values():
        with suppress(TypeError):
            out.append(cls())
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
