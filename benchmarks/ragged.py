"""Sets of many sizes against sets of one, sums, rankings, and fits of ragged sets: `make bench`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

import setwise as sw
from benchmarks.table import Figure, Rows, in_turns
from setwise._math import integer_sums, order_probability
from setwise._math.even_nodes import UNKNOWN
from setwise._threads import at_most

Run = Callable[[], object]


def rows(kind: str, n: int, seed: int = 0) -> tuple[td.Distribution, list[Tensor]]:
    """A distribution over n rows, each with its own parameters, and its leaves."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()

    family, _, number = kind.partition(" ")
    if family == "classes":
        logits = normal(n, int(number))
        return td.Categorical(logits=logits, validate_args=False), [logits]
    a, b = normal(n), normal(n)
    made: dict[str, Callable[[], td.Distribution]] = {
        "normal": lambda: td.Normal(a, (0.3 * b).exp(), validate_args=False),
        "gumbel": lambda: td.Gumbel(a, (0.3 * b).exp(), validate_args=False),
        "gamma": lambda: td.Gamma((0.5 * a).exp(), (0.5 * b).exp(), validate_args=False),
    }
    return made[family](), [a, b]


def task(aggregate: Any, kind: str, sizes: int | tuple[int, int], n_sets: int = 512) -> Run:
    """Value and gradient of the likelihood of simulated observations."""
    rng = np.random.default_rng(1)
    sizes = (sizes, sizes) if isinstance(sizes, int) else sizes
    drawn = np.repeat(np.arange(sizes[0], sizes[1] + 1), -(-n_sets // (sizes[1] - sizes[0] + 1)))
    drawn = rng.permutation(drawn)[:n_sets]
    ends = np.cumsum(drawn)
    sets = sw.Sets([np.arange(e - k, e) for e, k in zip(ends, drawn, strict=True)])
    d, _ = rows(kind, int(ends[-1]))
    torch.manual_seed(0)
    seen = aggregate.observe(d.sample(), sets, seed=0)

    def run() -> object:
        d, leaves = rows(kind, int(ends[-1]))
        value = sw.log_likelihood(aggregate, d, seen.sets, seen.y)
        return torch.autograd.grad(value.sum(), leaves)

    return run


CASES: list[tuple[str, Any, str]] = [
    ("Counts, 2 classes", sw.Counts(), "classes 2"),
    ("Counts, 3 classes", sw.Counts(n_classes=3), "classes 3"),
    ("Counts, 4 classes", sw.Counts(n_classes=4), "classes 4"),
    ("Fold, 3 states", sw.Fold([[0, 1, 2], [1, 2, 0], [2, 0, 1]], [0, 1, 2]), "classes 3"),
    ("Presence, 6 classes", sw.Presence(n_classes=6), "classes 6"),
    ("Max, normal", sw.Max(), "normal"),
    ("Max, 4 classes", sw.Max(), "classes 4"),
    ("OrderStatistic(2), normal", sw.OrderStatistic(2), "normal"),
    ("OrderStatistic(2), 4 classes", sw.OrderStatistic(2), "classes 4"),
    ("Sum, 3 classes", sw.Sum(), "classes 3"),
    ("Sum, 10 classes", sw.Sum(), "classes 10"),
    ("Sum, gamma", sw.Sum(), "gamma"),
    ("Noisy counts, 2 classes", sw.Noisy(sw.Counts(n_classes=2), laplace=2.0), "classes 2"),
    ("Noisy counts, 3 classes", sw.Noisy(sw.Counts(n_classes=3), laplace=2.0), "classes 3"),
    ("Noisy sum, 3 classes", sw.Noisy(sw.Sum(), laplace=2.0), "classes 3"),
    ("Noisy sum, gamma", sw.Noisy(sw.Sum(), laplace=2.0), "gamma"),
]  # fmt: skip


def ragged(small: bool) -> Rows:
    """Sets of 2 to 16 against those of 9, and of their own sizes, whichever takes longer.

    The work of counts of several classes grows with a power of the size, whatever the batches.
    """
    n = 8 if small else 512
    sizes: list[int | tuple[int, int]] = [9, (2, 16), 3, 6, 12, 15]
    for name, aggregate, kind in CASES:
        with at_most(1):
            runs = [task(aggregate, kind, size, n) for size in sizes]
            equal, mixed, *others = in_turns(*runs, repeat=1 if small else 5)
        own = float(np.mean([equal, *others]))
        note = f"{1e3 * mixed:.1f} ms; {mixed / equal:.2f} × sets of 9"
        work = f"{name}: {n} sets of 2 to 16"
        yield Figure(work, "as many of 9, or of 3 to 15", mixed / max(equal, own), 1.5, note=note)


@contextmanager
def _set(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _two_ways(aggregate: Any, kind: str, size: int, n: int, *other: Any) -> tuple[float, float]:
    """Seconds as it is, and with something in its place, in turn on one thread."""
    ours = task(aggregate, kind, size, n)

    def otherwise() -> None:
        with _set(*other):
            ours()

    with at_most(1):
        a, b = in_turns(ours, otherwise, repeat=2)
    return a, b


def sums(small: bool) -> Rows:
    """Sums of ten classes by products of polynomials."""
    n = 8 if small else 512
    for size in (2, 16, 64):
        found = _two_ways(sw.Sum(), "classes 10", size, n, integer_sums, "_DIRECT", 0)
        note = f"{1e6 * found[0] / n:.0f} µs a set"
        work = f"Sum of 10 classes, {n} sets of {size}"
        yield Figure(work, "by inversion", found[0] / found[1], 0.2, note=note)


def _unknown(members: td.Distribution, *line_and_ties: Any) -> Tensor:
    return torch.full(members.batch_shape[:1], UNKNOWN, dtype=torch.float64)


def rankings(small: bool) -> Rows:
    """Rankings of nine members of unequal scales on even nodes."""
    n = 4 if small else 512
    for kind in ("normal", "gumbel"):
        other = order_probability, "log_ordered_evenly", _unknown
        found = _two_ways(sw.Ranking(), kind, 9, n, *other)
        note = f"{1e6 * found[0] / n:.0f} µs a set"
        yield Figure(f"Ranking of 9, {kind}, {n} sets", "a mesh of cells", found[0] / found[1],
                     0.25, note=note)  # fmt: skip


def _classified(learner: Any, n_classes: int, x: Any, seen: sw.Observations) -> tuple[float, Any]:
    """Seconds of a fit with the defaults, and the classifier."""
    est = sw.AggregateClassifier(n_classes, learner, random_state=0, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tiny sets
        (seconds,) = in_turns(lambda: est.fit(x, seen), repeat=1, warm=False)
    return seconds, est


def precincts(small: bool) -> Rows:
    """LightGBM from counts of precincts with Laplace noise."""
    n = 20 if small else 500
    rng = np.random.default_rng(0)
    sets = sw.Sets.from_groups(np.repeat(np.arange(n), rng.integers(20, 61, n)))
    x = rng.normal(size=(len(sets.indices), 6))
    p = 1 / (1 + np.exp(-(x[:, 0] + x[:, 1] * x[:, 2])))
    z = (rng.random(len(p)) < p).astype(int)
    seen = sw.Noisy(sw.Counts(n_classes=2), laplace=2.0).observe(z, sets, seed=0)
    learner = sw.LightGBM(n_estimators=3) if small else sw.LightGBM()
    seconds, _ = _classified(learner, 2, x, seen)
    yield Figure(f"LightGBM, {n} precincts with Laplace noise", "seconds", seconds, 5.0, "s")


def recordings(small: bool) -> Rows:
    """Which of 13 classes are in recordings of 1 to 26 rows, by three learners."""
    n, n_classes = (30, 4) if small else (548, 13)
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.gamma(2.2, 4.2, n).round(), 1, 26).astype(int)
    sets = sw.Sets.from_groups(np.repeat(np.arange(n), sizes))
    z = np.concatenate([rng.choice(rng.choice(n_classes, 4), k) for k in sizes])
    x = rng.normal(size=(n_classes, 38))[z] + 1.5 * rng.normal(size=(len(z), 38))
    seen = sw.Presence(n_classes).observe(z, sets, seed=0)
    trees = sw.LightGBM(n_estimators=3) if small else sw.LightGBM()
    network = sw.Network(epochs=2) if small else sw.Network()
    linear = sw.Linear(alpha=1.0) if small else sw.Linear()
    for learner, bound in ((network, 10.0), (linear, 20.0), (trees, 20.0)):
        seconds, est = _classified(learner, n_classes, x, seen)
        note = f"{float((est.predict(x) == z).mean()):.1%} of rows right"
        work = f"{type(learner).__name__}, {n} recordings of {len(z):,} rows"
        yield Figure(work, "seconds", seconds, bound, "s", note)


SECTIONS = (ragged, sums, rankings, precincts, recordings)
