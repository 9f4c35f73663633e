"""Every likelihood rule of the registry on the CPU and on a device: a part of `make bench-cuda`.

Value and gradient in float32 of sets of eight members, or as many as the aggregate takes, of four
classes where targets are classes. Each rule is timed at 2²⁰ members, or at fewer where that would
take too long: then the time is that of the largest number tried, in proportion, and marked by "≈".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

import setwise as sw
from benchmarks.rules import backward, each_once
from benchmarks.table import Figure, Rows, best
from setwise.checks.examples import (
    default_families,
    example_raw,
    examples,
    has_rule,
    library_aggregates,
    noisy_examples,
)
from setwise.distributions import families
from setwise.likelihood import Targets

MEMBERS = 1 << 20
FEW = 1 << 12  # members that are tried first
PATIENCE = {"cpu": 0.5, "cuda": 1.0}  # seconds that one evaluation may take
CLASSES = 4
SIZE = 8


class Pair(NamedTuple):
    """An aggregate and a family that a rule is known for."""

    aggregate: Any
    family: Any

    @property
    def size(self) -> int:
        """Members of a set."""
        takes = self.aggregate.set_sizes(Targets.of(self.family))
        wanted = 3 if isinstance(self.aggregate, sw.Custom) else SIZE
        size = max(takes.least, min(wanted, takes.most or wanted))
        return size - 1 if takes.odd and size % 2 == 0 else size

    def __str__(self) -> str:
        inner = getattr(self.aggregate, "aggregate", None)
        name = type(self.aggregate).__name__
        name += f"({type(inner).__name__})" if inner is not None else ""
        return f"{name} of {type(self.family).__name__}"


def known() -> Iterator[Pair]:
    """One example for each pair of classes that has a rule."""
    for cls in library_aggregates():
        if cls is sw.Noisy:
            for name, kind in families().items():
                if has_rule(cls, kind):
                    family = sw.Categorical(CLASSES) if name == "categorical" else kind()
                    yield from _noisy(name, family)
            continue
        if not (found := examples(cls, CLASSES)):
            continue
        aggregate = found[0]
        for family in default_families(aggregate, None, CLASSES):
            yield Pair(aggregate, family)


def _noisy(name: str, family: Any) -> Iterator[Pair]:
    """One for each aggregate inside."""
    seen = set()
    for aggregate in noisy_examples(name, CLASSES):
        inner = type(aggregate.aggregate)  # type: ignore[attr-defined]
        if inner not in seen and has_rule(inner, family):
            seen.add(inner)
            yield Pair(aggregate, family)


def seconds(pair: Pair, device: str, most: int = MEMBERS) -> tuple[float, int]:
    """Seconds of value and gradient at `most` members, and how many were tried."""
    n, took = 0, 0.0
    limit = PATIENCE["cuda" if device == "cuda" else "cpu"]
    for wanted in (min(FEW, most), min(FEW << 4, most), most):
        if wanted <= n or (n and took * wanted / n > limit):
            break
        n, took = wanted, best(_task(pair, device, wanted), device, 2)
    return took * most / n, n


def _task(pair: Pair, device: str, members: int) -> Any:
    """Value and gradient of simulated observations."""
    size = pair.size
    n = members // size * size
    raw, shared = (t.float().to(device) for t in example_raw(pair.family, n, 0))
    raw.requires_grad_()
    torch.manual_seed(0)
    z = pair.family(raw, shared).sample().cpu()
    seen = pair.aggregate.observe(z.double() if z.is_floating_point() else z,
                                  each_once(n // size, size), seed=0)  # fmt: skip
    y = seen.y
    if isinstance(y, np.ndarray) and y.dtype != object:
        y = torch.as_tensor(y, device=device)

    def run() -> None:
        value = sw.log_likelihood(pair.aggregate, pair.family(raw, shared), seen.sets, y)
        backward(value, raw)

    return run


def measured(device: str, small: bool) -> Rows:
    """Each pair: how many times the CPU's time the device takes."""
    most = 1 << 5 if small else MEMBERS
    for pair in known():
        work = f"{pair}, sets of {pair.size}"
        here, tried = seconds(pair, "cpu", most)
        there, there_tried = (here, tried) if device == "cpu" else seconds(pair, device, most)
        times = (_said(here, tried < most), _said(there, there_tried < most))
        note = f"CPU {times[0]}, {device} {times[1]}"
        yield Figure(work, "the CPU", there / here, 1.0, note=note)


def _said(time: float, about: bool) -> str:
    return ("≈ " if about else "") + f"{1e3 * time:.3g} ms"
