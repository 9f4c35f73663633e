"""Members that stand for many individuals: `python -m benchmarks.people [SECTION]`.

`precincts`: group rates of the 212 precincts of North Carolina (`senc`, 366 290 voters) and of two
counties, against the true cross table, with counts.
`voters`: the same (method "normal") with a row per voter, which takes minutes.
`million`: a million people of 40 kinds in 2 000 sets, seen through several aggregates.
`growth`: the same sets of rows, with more and more individuals each.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import setwise as sw

console = Console()


def timed(fit: Any) -> tuple[Any, float, float]:
    """What it gives, with the seconds by the clock and of this process."""
    wall, own = time.perf_counter(), time.process_time()
    out = fit()
    return out, time.perf_counter() - wall, time.process_time() - own


def rates(p: Any, race: Any, voters: Any) -> Any:
    """The share of each party among the voters of each race."""
    return np.array([np.average(p[race == r], 0, weights=voters[race == r]) for r in range(3)])


def precincts(listed: bool = False) -> None:
    """Errors of the group rates, and the time of the fits."""
    data = sw.datasets.load("senc", frame=True)
    console.print("a row per voter" if listed else "rows with counts")
    two = np.flatnonzero(data.frame["county"].isin(["Robeson", "Columbus"]))
    voters, race = data.z.sum(1), data.X[:, :3].argmax(1)
    truth = data.z / voters[:, None]
    for name, some in (("two counties", two), ("all", np.arange(len(data.sets)))):
        sets = data.sets.take(some)
        sets = sets.expand() if listed else sets
        for method in ("normal",) if listed else ("normal", "exact"):
            o = sw.Observations(sw.Counts(method=method), sets, data.y[some])
            for alpha in (1.0,) if listed else (1.0, "auto"):
                learner = sw.Linear(alpha=alpha)
                est = sw.AggregateClassifier(list(data.classes), learner, random_state=0, verbose=0)
                model, wall, own = timed(lambda est=est, o=o: est.fit(data.X, o))
                rows = np.unique(sets.indices)
                found = [
                    rates(p[rows], race[rows], voters[rows])
                    for p in (model.predict_proba(data.X), truth)
                ]
                error = np.abs(found[0] - found[1]).mean()
                console.print(
                    f"{name:12} {method:6} alpha={alpha!s:4} error of rates {error:.4f}, "
                    f"{wall:.1f} s, CPU {own:.1f} s"
                )


def voters() -> None:
    """The same with every voter in a row."""
    precincts(listed=True)


def people(n_sets: int, n: int, seed: int = 0) -> tuple[Any, sw.Sets]:
    """Features of 40 kinds of people in each of so many sets, and n people in all."""
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(40, 3))
    share = rng.dirichlet(np.ones(40), n_sets)
    counts = np.stack([rng.multinomial(n // n_sets, p) for p in share])
    at, kind = np.nonzero(counts)
    sets = sw.Sets(np.split(kind, np.flatnonzero(np.diff(at)) + 1), counts=counts[at, kind])
    return kinds, sets


CASES = (
    ("Mean of normal", sw.Mean(), "normal"),
    ("Sum of Poisson", sw.Sum(), "poisson"),
    ("Sum of gamma", sw.Sum(), "gamma"),
    ("Max of Gumbel", sw.Max(), "gumbel"),
    ("40th of normal", sw.OrderStatistic(40), "normal"),
    ("Counts of 2", sw.Counts(), 2),
    ("Counts of 3", sw.Counts(n_classes=3), 3),
    ("Counts of 3, normal", sw.Counts(n_classes=3, method="normal"), 3),
    ("AnyPositive", sw.AnyPositive(), 2),
)


def fitted(aggregate: Any, family: Any, X: Any, sets: sw.Sets) -> tuple[Any, float, float]:
    """A linear fit to simulated observations, timed."""
    rng = np.random.default_rng(1)
    row = sets.expand().indices
    eta = X @ [0.5, -0.4, 0.2]
    if isinstance(family, int):
        rare = -6.0 if type(aggregate).__name__ == "AnyPositive" else 0.0
        logits = np.stack([0 * eta, eta + rare, -eta][:family], 1)
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        z = (rng.random(len(row))[:, None] > p.cumsum(1)[row]).sum(1)
        est: Any = sw.AggregateClassifier(family, sw.Linear(alpha=0.0), validation=None, verbose=0)
    else:
        draw = {
            "normal": lambda: eta[row] + rng.normal(size=len(row)),
            "gumbel": lambda: eta[row] + rng.gumbel(size=len(row)),
            "poisson": lambda: rng.poisson(np.exp(eta[row])),
            "gamma": lambda: rng.gamma(2.0, np.exp(eta[row]) / 2),
        }
        z = draw[family]()
        est = sw.AggregateRegressor(family, sw.Linear(alpha=0.0), validation=None, verbose=0)
    o = aggregate.observe(z, sets)
    return timed(lambda: est.fit(X, o))


def million() -> None:
    """Fits to a million people in 2 000 sets."""
    X, sets = people(2000, 1_000_000)
    shown = Table("observed", "coefficients (0.5, −0.4, 0.2)", "seconds", "CPU")
    for name, aggregate, family in CASES:
        model, wall, own = fitted(aggregate, family, X, sets)
        coef = np.atleast_2d(model.coef_)
        coef = coef[1] - coef[0] if len(coef) > 1 else coef[0]
        said = ", ".join(f"{b:.2f}" for b in coef)
        shown.add_row(name, said, f"{wall:.1f}", f"{own:.1f}")
    console.print(f"{sets.individuals.sum():,} people, {len(sets.indices):,} members")
    console.print(shown)


def growth() -> None:
    """The time of a fit as the number of individuals grows and that of rows does not."""
    shown = Table("observed", *(f"{n:,} people" for n in (20_000, 200_000, 2_000_000)))
    for name, aggregate, family in CASES:
        cells = []
        for n in (20_000, 200_000, 2_000_000):
            X, sets = people(200, n)
            cells.append(f"{fitted(aggregate, family, X, sets)[2]:.2f} s")
        shown.add_row(name, *cells)
    console.print(shown)


SECTIONS = {"precincts": precincts, "voters": voters, "million": million, "growth": growth}


def main(arguments: list[str]) -> None:
    """Runs the sections that are named, or all of them."""
    for name in arguments or list(SECTIONS):
        SECTIONS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
