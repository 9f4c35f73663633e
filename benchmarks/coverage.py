"""Whether intervals hold what they say: `python -m benchmarks.coverage [CASE ...] [--jobs N]`.

In each of 500 simulations (`--simulations`) targets are drawn anew, sets are observed and `Linear`
is fitted. Counted is how often 95 % intervals of `summary()` hold the true coefficients (it should
be 92 to 97 %), and how often 90 % intervals of `return_std=True` hold what is true of new rows:
E[Z | x], or the probability of class 1 (80 to 97 %). Ranks are aligned by 40 labelled rows.
`mixture` are means, ranks and single labels of the same rows; in `ranks` and `mixture` sets share
rows. The cases named `ensemble` are of `Ensemble(Linear())`, whose resampled sets give the standard
deviations: 100 simulations.

Every 20 simulations are a line of FOLDER/coverage.csv (`--out`); a run goes on where the last one
stopped.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

import setwise as sw
from benchmarks import resume

console = Console()

TIMES, FEW, AT_ONCE = 500, 100, 20  # simulations, of ensembles, and in a line of the file
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
    copies: int = 0  # of an ensemble; 0 is one linear model with its information matrix


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
CASES |= {
    f"ensemble, {name}": CASES[name]._replace(copies=30)
    for name in ("means", "ranks", "counts", "bags")
}


class Part(NamedTuple):
    """Simulations that are one line of the file."""

    case: str
    part: int


class Tally(NamedTuple):
    """Of so many simulations: how many intervals held each coefficient, and sums.

    `squares` are those of (estimate − truth) / standard error of all coefficients told, `rows` of
    the shares of new rows whose intervals hold what is true.
    """

    n: int
    x0: int
    x1: int
    x2: int
    intercept: int
    squares: float
    told: int
    rows: float
    seconds: float


def simulate(name: str, seeds: Iterable[int]) -> Tally:
    """Simulates the case with these seeds."""
    case, truth = CASES[name], np.append(COEFFICIENTS, CASES[name].level)[CASES[name].told]
    reach, narrow = stats.norm.ppf(0.975), stats.norm.ppf(0.95)
    learner = sw.Linear(alpha=0.0)  # intervals are about coefficients that are not drawn to zero
    if case.copies:
        learner = sw.Ensemble(learner, case.copies)
    held, squares, rows, begin, n = np.zeros(4, int), 0.0, 0.0, time.perf_counter(), 0
    for seed in seeds:
        n += 1
        rng = np.random.default_rng([0, seed])
        X = rng.normal(size=(case.n_rows, 3))
        z = case.draw(X @ COEFFICIENTS + case.level, rng)
        if case.distribution is None:
            est = sw.AggregateClassifier(2, learner, validation=None, random_state=seed, verbose=0)
        else:
            est = sw.AggregateRegressor(
                case.distribution, learner, validation=None, random_state=seed, verbose=0
            )
        est.fit(X, case.observe(z, rng))
        if not case.copies:
            lines = est.summary().lines
            off = np.array([line.estimate for line in lines])[case.told] - truth
            error = np.array([line.std_error for line in lines])[case.told]
            held[: len(off)] += np.abs(off) <= reach * error
            squares += float(((off / error) ** 2).sum())
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
        rows += float(np.mean(np.abs(made - eta) <= narrow * deviation))
    told = 0 if case.copies else n * len(truth)
    return Tally(n, *held.tolist(), squares, told, rows, time.perf_counter() - begin)


def measure(one: Part) -> Tally:
    """The simulations of one line."""
    return simulate(one.case, range(AT_ONCE * one.part, AT_ONCE * (one.part + 1)))


def plan(names: Iterable[str] = (), times: int = TIMES) -> resume.Plan:
    """All simulations of these cases, or of all."""
    every = {name: min(times, FEW) if CASES[name].copies else times for name in names or CASES}
    parts = [Part(name, i) for name, n in every.items() for i in range(n // AT_ONCE)]
    parts.sort(key=lambda one: one.part)
    return resume.Plan("coverage", parts, measure, Part, Tally)


def added(found: dict[Part, Tally]) -> dict[str, Tally]:
    """What all lines of a case say together."""
    by: dict[str, list[Tally]] = defaultdict(list)
    for one, tally in found.items():
        by[one.case].append(tally)
    return {
        name: Tally(*(sum(v) for v in zip(*by[name], strict=True))) for name in CASES if name in by
    }


HEADS = (
    "case", "simulations", "95 %: x0", "x1", "x2", "intercept", "90 % of rows", "sd / error", "ms",
)  # fmt: skip


def cells(name: str, of: Tally) -> list[str]:
    """A line of the table."""
    told, n = CASES[name].told, of.n
    shares = [""] * 4
    if not CASES[name].copies:
        for i in range(4)[told]:
            shares[i] = f"{100 * of[1 + i] / n:.1f}"
    ratio = f"{(of.squares / of.told) ** 0.5:.2f}" if of.told else ""
    return [
        name,
        str(n),
        *shares,
        f"{100 * of.rows / n:.1f}",
        ratio,
        f"{1000 * of.seconds / n:.0f}",
    ]


def main() -> int:
    """Simulates what is missing and shows what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE")
    parser.add_argument("--simulations", type=int, default=TIMES)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--minutes", type=float, default=1e6)
    options = parser.parse_args()
    good = resume.run(
        [plan(options.cases, options.simulations)], options.out, options.jobs, options.minutes
    )
    table = Table(title="share of intervals that hold the truth, %")
    for name in HEADS:
        table.add_column(name, justify="left" if name == "case" else "right")
    for name, tally in added(resume.read(options.out / "coverage.csv", Part, Tally)).items():
        table.add_row(*cells(name, tally))
    console.print(table)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
