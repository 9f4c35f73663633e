"""Sets of many sizes against sets of one: value and gradient of 512 sets, on one thread.

`python -m benchmarks.ragged` compares sets of 2 to 16 members with sets of 9, and with sets of
their own sizes, in turn within one run, and fails past the bound. Sections: `ragged`, `sums` (of
classes, by size of set), `rankings`, `noisy` (a fit of precincts with noise) and `presence` (fits
of a collection of recordings).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch import distributions as td

import setwise as sw

BOUND = 1.5
console = Console()
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


def in_turn(*runs: Run, repeat: int = 15) -> list[float]:
    """Shortest seconds of each, run in turn so that a busy machine is busy for all of them."""
    times = []
    for run in runs:
        run()
    for _ in range(repeat):
        row = []
        for run in runs:
            start = time.perf_counter()
            run()
            row.append(time.perf_counter() - start)
        times.append(row)
    return [float(t) for t in np.min(times, 0)]


def clocked(run: Run) -> str:
    """Seconds on the clock, and those of the processor: on a busy machine the former are more."""
    start, worked = time.perf_counter(), time.process_time()
    run()
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    return f"{seconds:.1f} s, {worked:.1f} s of work"


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


def ragged(only: str = "") -> bool:
    """Sets of 2 to 16 against sets of 9, and against sets of their own sizes, one size a run."""
    table = Table(title="512 sets, value and gradient, one thread")
    for name in ("aggregate", "sets of 9, ms", "2 to 16, ms", "ratio", "to their own sizes"):
        table.add_column(name, justify="left" if name == "aggregate" else "right")
    fine = True
    for name, aggregate, kind in CASES:
        if only not in name:
            continue
        sizes: list[int | tuple[int, int]] = [9, (2, 16), 3, 6, 12, 15]
        equal, mixed, *others = in_turn(*(task(aggregate, kind, size) for size in sizes))
        own = float(np.mean([equal, *others]))  # cost often grows faster than size
        fine &= mixed <= BOUND * max(equal, own)
        table.add_row(
            name, f"{equal * 1e3:.1f}", f"{mixed * 1e3:.1f}", f"{mixed / equal:.2f}",
            f"{mixed / own:.2f}",
        )  # fmt: skip
    console.print(table)
    return fine


def sums() -> bool:
    """Sums of ten classes, microseconds a set."""
    table = Table(title="Sum of 10 classes, 512 sets, value and gradient, one thread")
    for name in ("members", "µs a set"):
        table.add_column(name, justify="right")
    for size in (2, 4, 8, 16, 32, 64, 128):
        (seconds,) = in_turn(task(sw.Sum(), "classes 10", size), repeat=3)
        table.add_row(str(size), f"{seconds / 512 * 1e6:.0f}")
    console.print(table)
    return True


def rankings() -> bool:
    """Rankings of nine, microseconds a set."""
    table = Table(title="Ranking of 9, 512 sets, value and gradient, one thread")
    table.add_column("family")
    table.add_column("µs a set", justify="right")
    for kind in ("normal", "gumbel"):
        (seconds,) = in_turn(task(sw.Ranking(), kind, 9), repeat=3)
        table.add_row(kind, f"{seconds / 512 * 1e6:.0f}")
    console.print(table)
    return True


def noisy() -> bool:
    """LightGBM from counts of 500 precincts with Laplace noise."""
    rng = np.random.default_rng(0)
    sets = sw.Sets.from_groups(np.repeat(np.arange(500), rng.integers(20, 61, 500)))
    x = rng.normal(size=(len(sets.indices), 6))
    p = 1 / (1 + np.exp(-(x[:, 0] + x[:, 1] * x[:, 2])))
    z = (rng.random(len(p)) < p).astype(int)
    seen = sw.Noisy(sw.Counts(n_classes=2), laplace=2.0).observe(z, sets, seed=0)
    est = sw.AggregateClassifier(2, "lightgbm", random_state=0, verbose=0)
    fit = clocked(partial(est.fit, x, seen))
    console.print(f"Noisy counts, LightGBM, 500 precincts: {fit}")
    return True


def presence() -> bool:
    """A collection of recordings: 548 sets of 1 to 26 rows, 13 classes, three learners."""
    rng = np.random.default_rng(0)
    n_sets, n_classes = 548, 13
    sizes = np.clip(rng.gamma(2.2, 4.2, n_sets).round(), 1, 26).astype(int)
    sets = sw.Sets.from_groups(np.repeat(np.arange(n_sets), sizes))
    n = int(sizes.sum())
    z = np.concatenate([rng.choice(rng.choice(n_classes, 4), k) for k in sizes])
    x = rng.normal(size=(n_classes, 38))[z] + 1.5 * rng.normal(size=(n, 38))
    seen = sw.Presence(n_classes).observe(z, sets, seed=0)
    console.print(f"Presence, {n} rows, at most {int(np.sum(seen.y, 1).max())} classes a set")
    for learner in sys.argv[2:] or ("network", "linear", "lightgbm"):
        est = sw.AggregateClassifier(n_classes, learner, random_state=0, verbose=0)
        fit = clocked(partial(est.fit, x, seen))
        right = float((est.predict(x) == z).mean())
        console.print(f"  {learner}: {fit}, {right:.1%} of rows right")
    return True


def main() -> None:
    """Runs the sections named on the command line, or all of them."""
    torch.set_num_threads(1)
    sections = {f.__name__: f for f in (ragged, sums, rankings, noisy, presence)}
    named = [name for name in sys.argv[1:] if name in sections]
    found = [sections[name]() for name in named or sections]
    if not all(found):
        sys.exit(f"ragged sets cost more than {BOUND} times as much as sets of one size")


if __name__ == "__main__":
    main()
