"""EM with forests against giving every member its set's label: `python -m benchmarks.em`.

1. Friedman-1, 5 000 rows with noise of variance 1, the means of 5 000 random sets: mean squared
   error against the noiseless truth.
2. Digits, and three classes of unequal size (2 000 rows of `make_classification`), the class
   counts of random bags of 8: error rate on rows held out.

`naive` is the same forest, fitted to rows that carry the label of their sets (the mean of all sets
that a row is in; classes with the sets' proportions as weights); `supervised` sees all targets.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits, make_classification, make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import setwise as sw
from setwise.learners.base import Task
from setwise.learners.em import EM
from setwise.objective import Objective

console = Console()
Floats = NDArray[np.float64]


def fit_em(estimator: Any, family: Any, X: Floats, o: sw.Observations, seed: int) -> Any:
    objective = Objective(family, [o], len(X))
    raw, shared = objective.start()
    return EM(estimator).fit(Task(X, objective, raw, shared, seed=seed)).model


def row_labels(o: sw.Observations, n: int) -> tuple[Floats, NDArray[Any]]:
    """The labels of each row's sets, on average, and in how many sets it is."""
    assert o.y is not None
    y = o.y.reshape(len(o), -1)
    total, times = np.zeros((n, y.shape[1])), np.zeros(n)
    np.add.at(total, o.sets.indices, np.repeat(y, o.sets.sizes, axis=0))
    np.add.at(times, o.sets.indices, 1.0)
    return total / np.maximum(times, 1)[:, None], times


def friedman(size: int, seed: int, n: int = 5000, n_sets: int = 5000) -> tuple[float, ...]:
    """Mean squared errors of naive, EM and supervised forests, and the seconds EM took."""
    X, truth = make_friedman1(n + 5000, noise=0.0, random_state=seed)
    z = truth + np.random.default_rng(seed).normal(size=len(truth))
    o = sw.Mean().observe(z[:n], sw.Sets.random(n, n_sets, size, replace=False, seed=seed))

    def error(predicted: Floats) -> float:
        return float(np.mean((predicted - truth[n:]) ** 2))

    label, times = row_labels(o, n)
    used = times > 0
    naive = RandomForestRegressor(random_state=seed)
    naive.fit(X[:n][used], label[used, 0], sample_weight=times[used])
    start = time.perf_counter()
    model = fit_em(RandomForestRegressor(), sw.Normal(), X[:n], o, seed)
    seconds = time.perf_counter() - start
    full = RandomForestRegressor(random_state=seed).fit(X[:n], z[:n])
    return (
        error(naive.predict(X[n:])),
        error(model.raw(X[n:])[:, 0]),
        error(full.predict(X[n:])),
        seconds,
    )


def digits(n_bags: int, seed: int) -> tuple[float, ...]:
    X, z = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    return bags(X[order], z[order], 1200, n_bags, seed)


def unequal(n_bags: int, seed: int) -> tuple[float, ...]:
    X, z = make_classification(
        6000, 20, n_informative=8, n_classes=3, weights=[0.7, 0.2, 0.1], class_sep=1.5,
        random_state=seed,
    )  # fmt: skip
    return bags(X, z, 2000, n_bags, seed)


def bags(X: Floats, z: NDArray[Any], n: int, n_bags: int, seed: int) -> tuple[float, ...]:
    """Error rates of naive, EM and supervised forests, and the seconds EM took."""
    n_classes = int(z.max()) + 1
    sets = sw.Sets.random(n, n_bags, 8, replace=False, seed=seed)
    o = sw.Counts(n_classes=n_classes).observe(z[:n], sets)

    def error(predicted: Floats) -> float:
        return float(np.mean(predicted != z[n:]))

    label, times = row_labels(o, n)
    row, label_class = np.nonzero(label)
    naive = RandomForestClassifier(random_state=seed)
    naive.fit(X[row], label_class, sample_weight=(label * times[:, None])[row, label_class])
    start = time.perf_counter()
    model = fit_em(RandomForestClassifier(), sw.Categorical(n_classes), X[:n], o, seed)
    seconds = time.perf_counter() - start
    full = RandomForestClassifier(random_state=seed).fit(X[:n], z[:n])
    return (
        error(naive.predict(X[n:])),
        error(model.raw(X[n:]).argmax(1)),
        error(full.predict(X[n:])),
        seconds,
    )


def main() -> None:
    torch.set_num_threads(1)
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    table = Table(title=f"EM with a forest of 100 trees, mean over {len(seeds)} seeds")
    for column in ("data", "naive", "EM", "supervised", "naive / EM", "seconds"):
        table.add_column(column, justify="right" if column != "data" else "left")
    cases: list[tuple[str, Any]] = [
        ("Friedman-1, means of 4", lambda seed: friedman(4, seed)),
        ("Friedman-1, means of 8", lambda seed: friedman(8, seed)),
        ("Friedman-1, means of 32", lambda seed: friedman(32, seed)),
        ("digits, 300 bags of 8", lambda seed: digits(300, seed)),
        ("digits, 600 bags of 8", lambda seed: digits(600, seed)),
        ("unequal classes, 500 bags of 8", lambda seed: unequal(500, seed)),
    ]
    for name, case in cases:
        figures = np.array([case(seed) for seed in seeds])
        naive, em, full, seconds = figures.mean(0)
        table.add_row(
            name, f"{naive:.3f}", f"{em:.3f}", f"{full:.3f}", f"{naive / em:.1f}", f"{seconds:.0f}"
        )
    console.print(table)


if __name__ == "__main__":
    main()
