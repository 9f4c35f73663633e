"""Whether intervals hold what they say: `python -m benchmarks.coverage [N] [CASE ...]`.

In each of N simulations (500) targets are drawn anew, sets are observed and `Linear` is fitted.
Counted is how often 95 % intervals of `summary()` hold the true coefficients (it should be 92 to
97 %), and how often 90 % intervals of `return_std=True` hold what is true of new rows: E[Z | x], or
the probability of class 1 (80 to 97 %). Ranks are aligned by 40 labelled rows. `mixture` are means,
ranks and single labels of the same rows; in `ranks` and `mixture` sets share rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

import setwise as sw

console = Console()

COEFFICIENTS = np.array([0.8, -0.5, 0.3])
LABELS = 40  # that align ranks


class Case(NamedTuple):
    """A kind of observations: how targets are drawn, and what is seen of them."""

    draw: Callable  # (eta, rng) -> targets
    observe: Callable  # (z, rng) -> observations
    level: float = 0.5  # the intercept
    n_rows: int = 1200
    distribution: str | None = "normal"  # None: two classes
    told: slice = slice(None)  # which of the coefficients and the intercept labels tell


def bags(rng, n, low, high):
    """The rows in random order, cut into sets."""
    order, out, at = rng.permutation(n), [], 0
    while at + high <= n:
        size = int(rng.integers(low, high + 1))
        out.append(order[at : at + size].tolist())
        at += size
    return sw.Sets(out)


def pairs(rng, n, number):
    return sw.Sets.random(n, number, 2, replace=False, seed=int(rng.integers(2**31)))


def sizes(aggregate, low, high):
    return lambda z, rng: aggregate.observe(z, bags(rng, len(z), low, high))


def mixture(z, rng):
    n = len(z)
    return [
        sw.Mean().observe(z, bags(rng, n // 2, 2, 5)),
        sw.Rank().observe(z, pairs(rng, n, n // 2)),
        sw.Direct().observe(z, rng.choice(n, n // 12, replace=False)[:, None]),
    ]


def normal(eta, rng):
    return eta + rng.normal(size=len(eta))


def binary(eta, rng):
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(int)


CASES = {
    "means": Case(normal, sizes(sw.Mean(), 2, 6)),
    "heavy": Case(  # the model takes them for normal ones of equal scale
        lambda eta, rng: eta + rng.standard_t(5, size=len(eta)) * np.exp(0.4 * eta),
        sizes(sw.Mean(), 2, 6),
    ),
    "ranks": Case(normal, lambda z, rng: sw.Rank().observe(z, pairs(rng, len(z), len(z))),
                  n_rows=800, told=slice(3)),
    "poisson": Case(
        lambda eta, rng: rng.poisson(np.exp(eta)), sizes(sw.Sum(), 2, 6), distribution="poisson"
    ),
    "counts": Case(binary, sizes(sw.Counts(), 2, 6), distribution=None),
    "bags": Case(binary, sizes(sw.AnyPositive(), 2, 4), level=-1.0, distribution=None),
    "mixture": Case(normal, mixture),
}  # fmt: skip


class Result(NamedTuple):
    """Shares of intervals that hold the truth."""

    coefficients: list[float]  # of each coefficient
    rows: float  # over all new rows
    worst: float  # of the standard deviations of estimates, over the mean standard error
    seconds: float  # of a fit and its standard errors


def simulate(case: Case, n: int, seed: int = 0) -> Result:
    """The coverage over n simulations."""
    truth = np.append(COEFFICIENTS, case.level)
    reach, narrow = stats.norm.ppf(0.975), stats.norm.ppf(0.95)
    learner = sw.Linear(alpha=0.0)  # intervals are about coefficients that are not drawn to zero
    held, inside, estimates, errors = [], [], [], []
    begin = time.perf_counter()
    for i in range(n):
        rng = np.random.default_rng([seed, i])
        X = rng.normal(size=(case.n_rows, 3))
        z = case.draw(X @ COEFFICIENTS + case.level, rng)
        if case.distribution is None:
            est = sw.AggregateClassifier(2, learner, validation=None, verbose=0)
        else:
            est = sw.AggregateRegressor(case.distribution, learner, validation=None, verbose=0)
        est.fit(X, case.observe(z, rng))
        lines = est.summary().lines
        found = np.array([line.estimate for line in lines])[case.told]
        error = np.array([line.std_error for line in lines])[case.told]
        held.append(np.abs(found - truth[case.told]) <= reach * error)
        estimates.append(found)
        errors.append(error)
        new = rng.normal(size=(100, 3))
        eta = new @ COEFFICIENTS + case.level
        if case.distribution is None:
            made, deviation = (a[:, 1] for a in est.predict_proba(new, return_std=True))
            eta = 1 / (1 + np.exp(-eta))
        else:
            if est.identifiability_.shift:
                few = rng.normal(size=(LABELS, 3))
                est.align(few, case.draw(few @ COEFFICIENTS + case.level, rng))
            made, deviation = est.predict(new, return_std=True)
            eta = np.exp(eta) if case.distribution == "poisson" else eta
        inside.append(np.abs(made - eta) <= narrow * deviation)
    seconds = (time.perf_counter() - begin) / n
    ratio = np.std(estimates, axis=0) / np.mean(errors, axis=0)
    worst = float(ratio[np.abs(np.log(ratio)).argmax()])
    return Result(np.mean(held, axis=0).tolist(), float(np.mean(inside)), worst, seconds)


def main(words: list[str]) -> None:
    n = int(words.pop(0)) if words and words[0].isdigit() else 500
    table = Table(title=f"share of intervals that hold the truth, % of {n} simulations")
    head = ("case", "95 %: x0", "x1", "x2", "intercept", "90 % of new rows", "sd / error", "ms")
    for name in head:
        table.add_column(name, justify="left" if name == "case" else "right")
    for name in words or CASES:
        found = simulate(CASES[name], n)
        shares = [f"{100 * c:.1f}" for c in found.coefficients]
        shares += [""] * (4 - len(shares))
        last = f"{100 * found.rows:.1f}", f"{found.worst:.2f}", f"{1000 * found.seconds:.0f}"
        table.add_row(name, *shares, *last)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
