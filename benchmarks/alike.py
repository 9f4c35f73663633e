"""Members that are alike: `python -m benchmarks.alike [CASE ...] [--simulations N]`.

`counts` and `means`: in each simulation 100 groups of 10 to 100 members share a shift of standard
deviation 0.6 (of the log odds of two classes, of the location), and `Linear` is fitted to the
counts or the means of the groups, as if members were independent and with `RandomEffect`. Told are
the mean error of each coefficient beside its own standard error, and how often 95 % intervals of
`summary()` hold the true one. `senc`: votes by race in two counties of North Carolina, whose truth
is known. `cost`: processor time of value and gradient, as a multiple of that of the rule inside.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats

import setwise as sw
from benchmarks.rules import backward, categorical, each_once, normal

console = Console()

GROUPS, SMALLEST, LARGEST, SHIFT = 100, 10, 100, 0.6
TRUTH = np.array([0.8, -0.5, 0.3])  # of a feature of members, one of groups, and the intercept
REACH = stats.norm.ppf(0.975)


def simulated(kind: str, seed: int) -> tuple[Any, Any, Any]:
    """Features, the aggregate of this kind, and what was seen of the groups."""
    rng = np.random.default_rng([1, seed])
    sizes = rng.integers(SMALLEST, LARGEST + 1, GROUPS)
    ones = np.clip(rng.binomial(sizes, rng.uniform(0.1, 0.9, GROUPS)), 1, sizes - 1)
    counts = np.column_stack([sizes - ones, ones])  # members of each group, without and with it
    of = np.repeat(np.arange(GROUPS), 2)
    X = np.column_stack([np.tile([0.0, 1.0], GROUPS), rng.normal(size=GROUPS)[of]])
    eta = X @ TRUTH[:2] + TRUTH[2] + SHIFT * rng.normal(size=GROUPS)[of]
    eta = np.repeat(eta, counts.ravel())
    sets = sw.Sets(np.arange(2 * GROUPS).reshape(GROUPS, 2), counts=counts)
    if kind == "counts":
        return X, sw.Counts(), sw.Counts().observe((rng.random(len(eta)) < expit(eta)) * 1, sets)
    return X, sw.Mean(), sw.Mean().observe(eta + rng.normal(size=len(eta)), sets)


def expit(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def estimator(kind: str, seed: int = 0) -> Any:
    options: dict[str, Any] = {"validation": None, "random_state": seed, "verbose": 0}
    if kind == "counts":
        return sw.AggregateClassifier(2, sw.Linear(), **options)
    return sw.AggregateRegressor("normal", sw.Linear(), **options)


def coverage(kind: str, times: int, first: int = 0) -> None:
    """Errors and intervals, with independent members and with alike ones; Ctrl-C ends it early."""
    found: dict[str, list[Any]] = {"independent": [], "RandomEffect": []}
    scales: list[float] = []
    try:
        for seed in range(first, first + times):
            X, inner, seen = simulated(kind, seed)
            both = {"independent": inner, "RandomEffect": sw.RandomEffect(inner)}
            lines = {}
            for name, aggregate in both.items():
                begin = time.process_time()
                est = estimator(kind, seed).fit(X, sw.Observations(aggregate, seen.sets, seen.y))
                told = est.summary().lines[:3]
                off = np.array([line.estimate for line in told]) - TRUTH
                held = np.abs(off) <= REACH * np.array([line.std_error for line in told])
                lines[name] = [*off, *held, time.process_time() - begin]
            scales.append(est.aggregates_[0].scale)
            for name, line in lines.items():
                found[name].append(line)
    except KeyboardInterrupt:
        times = len(scales)
    table = Table("members taken as", "coefficient", "mean error", "its error", "95 % hold", "s")
    for name, rows in found.items():
        mean, error = np.mean(rows, 0), np.std(rows, 0) / np.sqrt(times)
        for i, which in enumerate(("of members", "of groups", "intercept")):
            numbers = f"{mean[i]:+.4f}", f"{error[i]:.4f}", f"{mean[3 + i]:.1%}", f"{mean[6]:.2f}"
            table.add_row(name, which, *numbers)
    console.print(f"[bold]{kind}[/], {times} simulations")
    console.print(table)
    console.print(f"scale: mean {np.mean(scales):.3f}, sd {np.std(scales):.3f}; truth {SHIFT}\n")


def senc(times: int, first: int = 0) -> None:
    """Votes by race in Robeson and Columbus, beside the truth."""
    data = sw.datasets.load("senc", frame=True)
    chosen = np.flatnonzero(data.frame["county"].isin(["Robeson", "Columbus"]))
    sets = data.sets.take(chosen)
    rows = np.unique(sets.indices)
    voters, truth = data.z.sum(1), data.z / data.z.sum(1, keepdims=True)
    race = data.X[:, :3].argmax(1)
    by_race = [rows[race[rows] == r] for r in range(3)]
    table = Table(
        "members taken as", "rates by predict_proba", "by posterior", "per precinct", "scale", "s"
    )
    inner = sw.Counts(method="normal")
    for name, aggregate in (("independent", inner), ("RandomEffect", sw.RandomEffect(inner))):
        begin = time.process_time()
        model = sw.AggregateClassifier(
            list(data.classes), sw.Linear(alpha=1.0), random_state=0, verbose=0
        )
        o = sw.Observations(aggregate, sets, data.y[chosen])
        model.fit(data.X, o)
        seconds = time.process_time() - begin
        after = np.zeros_like(truth)
        after[sets.indices] = model.posterior(data.X, o).probs
        typical, own = (
            np.mean([np.abs(rate(p, voters, k) - rate(truth, voters, k)).mean() for k in by_race])
            for p in (model.predict_proba(data.X), after)
        )
        off = np.average(np.abs(after[rows] - truth[rows]).mean(1), weights=voters[rows])
        told = f"{model.aggregates_[0].scale:.3f}" if aggregate is not inner else ""
        errors = (f"{error:.4f}" for error in (typical, own, off))
        table.add_row(name, *errors, told, f"{seconds:.1f}")
    console.print(table)


def rate(p: Any, voters: Any, rows: Any) -> Any:
    return np.average(p[rows], axis=0, weights=voters[rows])


def poisson(n: int) -> tuple[Any, torch.Tensor]:
    """Counts, and the log rates to differentiate in."""
    raw = torch.randn(n, dtype=torch.float64, requires_grad=True)
    return torch.distributions.Poisson(raw.exp(), validate_args=False), raw


COSTS: dict[str, tuple[Any, Callable[[int], Any], int, int]] = {
    "Counts, 2 classes": (sw.Counts(), lambda n: categorical(n, 2), 2000, 20),
    "Counts, 2 classes, large": (sw.Counts(), lambda n: categorical(n, 2), 500, 100),
    "AnyPositive": (sw.AnyPositive(), lambda n: categorical(n, 2), 5000, 10),
    "Max, normal": (sw.Max(), normal, 3000, 10),
    "Mean, normal": (sw.Mean(), normal, 5000, 20),
    "Sum, Poisson": (sw.Sum(), poisson, 5000, 10),
    "Counts, 3 classes": (sw.Counts(), lambda n: categorical(n, 3), 300, 20),
}


def cost(times: int, first: int = 0) -> None:
    """Value and gradient, beside the rule inside; the least of some runs in turns."""
    table = Table("rule", "sets", "members", "the rule inside, ms", "times as much")
    for name, (inner, make, n_sets, size) in COSTS.items():
        sets, least = each_once(n_sets, size), [np.inf, np.inf]
        d, leaf = make(n_sets * size)
        z = d.sample()
        y = inner.observe(z.long() if "normal" not in name else z, sets).y
        for _ in range(times):
            for i, aggregate in enumerate((inner, sw.RandomEffect(inner, scale=SHIFT))):
                again = remade(d, leaf)
                begin = time.process_time()
                backward(sw.log_likelihood(aggregate, again, sets, y), leaf)
                least[i] = min(least[i], time.process_time() - begin)
        table.add_row(
            name, str(n_sets), str(size), f"{1000 * least[0]:.2f}", f"{least[1] / least[0]:.1f}"
        )
    console.print(table)


def remade(d: Any, leaf: torch.Tensor) -> Any:
    """The distribution with a graph of its own."""
    if isinstance(d, torch.distributions.Categorical):
        return type(d)(logits=leaf, validate_args=False)
    if isinstance(d, torch.distributions.Poisson):
        return type(d)(leaf.exp(), validate_args=False)
    return type(d)(leaf, d.scale, validate_args=False)


CASES: dict[str, tuple[Callable[[int, int], None], int]] = {
    "counts": (lambda n, first: coverage("counts", n, first), 200),
    "means": (lambda n, first: coverage("means", n, first), 500),
    "senc": (senc, 1),
    "cost": (cost, 10),
}


def main(argv: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--simulations", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first simulation")
    options = parser.parse_args(argv)
    for name in options.case or CASES:
        run, times = CASES[name]
        run(options.simulations or times, options.first)


if __name__ == "__main__":
    main()
