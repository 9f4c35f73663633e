"""Tables of means over the same people: `python -m benchmarks.overlapping [SECTION ...]`.

census     how often 90 % intervals hold the truth, from three tables, by the joint likelihood and
           by the product over sets
time       seconds of a fit, joint and independent, by the number of people and sets
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import setwise as sw
from setwise.objective import Objective

console = Console()
PEOPLE, SCALE, TIMES = 5000, 2.0, 200
WIDE = 1.6449  # standard errors of a 90 % interval
COEF = np.array([1.0, -0.5, 0.8, 0.3, 1.5])


def census(rng: np.random.Generator, crossed: bool = False, people: int = PEOPLE):
    """Features, targets and three tables of means.

    By region, by age group, and by sex and education; or, crossed, each of the last three within
    regions, so that every table tells the means of the regions.
    """
    region, age = rng.integers(0, 40, people), rng.integers(0, 16, people)
    sex, school = rng.integers(0, 2, people), rng.integers(0, 5, people)
    drift = rng.normal(size=(40, 2))
    X = np.column_stack([age / 8 - 1, sex, school / 2 - 1, drift[region]])
    X = X + 0.3 * rng.normal(size=X.shape)
    z = 10 + X @ COEF + SCALE * rng.normal(size=people)
    plain = (region, age, 5 * sex + school)
    within = (4 * region + age // 4, 2 * region + sex, 5 * region + school)
    sets = map(sw.Sets.from_groups, within if crossed else plain)
    return X, z, [sw.Mean().observe(z, s) for s in sets]


def estimator(learner, overlap: str) -> sw.AggregateRegressor:
    return sw.AggregateRegressor(
        learner=learner, overlap=overlap, validation=None, random_state=0, verbose=0
    )


def intervals(X, tables, overlap: str):
    """The fitted means of the rows, their standard errors, and the scale.

    The scale is the one of largest likelihood, corrected for the coefficients as in regression.
    """
    est = estimator(sw.Linear(alpha=0.0), overlap)
    est.fit(X, tables)
    raw = torch.from_numpy(est.predict(X))[:, None]
    point = Objective(est.family_, tables, len(X), overlap).at(raw, est.shared_)
    design = np.column_stack([X, np.ones(len(X))])
    none = torch.zeros_like(est.shared_)
    bent = [point.product(torch.from_numpy(c[:, None].copy()), none)[0] for c in design.T]
    cov = np.linalg.inv(design.T @ np.column_stack(bent))
    told = 0.5 * float(point.shared_curvature()[0])  # the number of independent observations
    more = np.sqrt(told / (told - design.shape[1]))
    error = more * np.sqrt(np.einsum("ij,jk,ik->i", design, cov, design))
    return raw[:, 0].numpy(), error, more * float(est.shared_.exp())


def coverage(times: int, crossed: bool, people: int = PEOPLE) -> dict[str, list[float]]:
    """Shares of E[z|x] and of z that 90 % intervals hold, and the mean scale."""
    found: dict[str, list[float]] = {}
    for overlap in ("joint", "independent"):
        figures = []
        for seed in range(times):
            X, z, tables = census(np.random.default_rng(seed), crossed, people)
            mean, error, scale = intervals(X, tables, overlap)
            truth = 10 + X @ COEF
            figures.append(
                (
                    np.mean(np.abs(mean - truth) < WIDE * error),
                    np.mean(np.abs(mean - z) < WIDE * scale),
                    scale,
                    np.mean((mean - truth) ** 2),
                )
            )
        found[overlap] = np.mean(figures, 0).tolist()
    return found


def show_census() -> None:
    for crossed, what in ((False, "three tables"), (True, "three tables within regions")):
        out = Table(title=f"90 % intervals, {PEOPLE} people, {what}, {TIMES} simulations")
        for name in ("likelihood", "E(z|x) held", "z held", f"scale (is {SCALE})", "squared error"):
            out.add_column(name, justify="right")
        for overlap, (expected, single, scale, error) in coverage(TIMES, crossed).items():
            out.add_row(overlap, f"{expected:.1%}", f"{single:.1%}", f"{scale:.3f}", f"{error:.4f}")
        console.print(out)


def show_time() -> None:
    out = Table(title="Seconds of a fit: joint, independent")
    for name in ("rows", "sets", "Linear", "LightGBM", "Network, 20 epochs"):
        out.add_column(name, justify="right")
    cases = {
        "three tables": census,
        "three tables within regions": lambda rng: census(rng, True),
        "means of 4": lambda rng: random_means(rng, 2000, 2500),
        "more means of 4 than rows": lambda rng: random_means(rng, 20_000, 33_000),
    }
    for name, make in cases.items():
        X, _, tables = make(np.random.default_rng(0))
        cells = []
        for learner in (sw.Linear(alpha=0.0), sw.LightGBM(), sw.Network(epochs=20)):
            seconds = []
            for overlap in ("joint", "independent"):
                begin = time.perf_counter()
                estimator(learner, overlap).fit(X, tables)
                seconds.append(time.perf_counter() - begin)
            cells.append(f"{seconds[0]:.2f}, {seconds[1]:.2f}")
        out.add_row(f"{len(X)}: {name}", str(sum(map(len, tables))), *cells)
    console.print(out)


def random_means(rng: np.random.Generator, rows: int, sets: int):
    X = rng.normal(size=(rows, 8))
    z = X[:, 0] + np.sin(2 * X[:, 1]) + 0.5 * rng.normal(size=rows)
    drawn = sw.Sets.random(rows, sets, 4, replace=False, seed=rng)
    return X, z, [sw.Mean().observe(z, drawn)]


SECTIONS = {"census": show_census, "time": show_time}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
