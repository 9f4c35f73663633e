"""Whether held-out sets make models worse: `python -m benchmarks.held_out [DATASET ...]`.

With `command-line` as the first word: `setwise fit`, which holds a fifth of the sets out, against
the same learner in Python that learns from all sets without `eval`, on tables of groups of four and
their means; 80 % of the rows are in groups, new rows are the others.

Six regression sets, 60 % of the rows to learn from, 20 % held out, 20 % to test, five splits. Each
fit is made twice, without `eval` and with the observations of the held-out rows as `eval`. The
ratio of the two errors, averaged over the splits, must not be above 1.05.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

import setwise as sw
from setwise.cli import app

console = Console()

DATASETS = ("abalone", "airfoil", "auto-mpg", "concrete", "housing", "power-plant")
SIZE = 4  # of the groups
LABELS = 50  # that fix shift and unit beside the ranks
BOUND = 1.05


ROUNDS = {"LightGBM": "n_estimators", "XGBoost": "n_estimators", "CatBoost": "iterations"}


def learners(threads: int | None = None) -> dict[str, Any]:
    """The learners that stop by held-out sets."""
    n = {} if threads is None else {"n_jobs": threads}
    c = {} if threads is None else {"thread_count": threads}
    return {
        "LightGBM": sw.LightGBM(n_estimators=100, **n),
        "XGBoost": sw.XGBoost(n_estimators=100, **n),
        "CatBoost": sw.CatBoost(iterations=200, **c),
        "Network": sw.Network(),
    }


def observe(kind: str, z: np.ndarray, seed: int) -> list[sw.Observations]:
    """What is seen of these rows."""
    n = len(z)
    if kind == "labels":
        return [sw.Direct().observe(z, np.arange(n)[:, None])]
    if kind == "means":
        return [sw.Mean().observe(z, sw.Sets.random(n, round(n / 0.6), 4, seed=seed))]
    pairs = np.random.default_rng(seed).integers(0, n, (15 * n, 2))
    pairs = pairs[z[pairs[:, 0]] != z[pairs[:, 1]]]
    few = np.random.default_rng(seed + 1).permutation(n)[:LABELS, None]
    return [sw.Rank().observe(z, pairs[: 10 * n]), sw.Direct().observe(z, few)]


KINDS = ("means", "ranks and 50 labels", "labels")


def errors(
    name: str, kind: str, learner: Any, seed: int, family: str | sw.Normal = "normal"
) -> tuple[float, float, int]:
    """Test error without and with `eval`, and the steps that were kept with it."""
    data = sw.datasets.load(name)
    X, z = np.asarray(data.X, np.float64), np.asarray(data.z, np.float64)
    order = np.random.default_rng(seed).permutation(len(z))
    train, held, test = np.split(order, [int(0.6 * len(z)), int(0.8 * len(z))])
    seen, held_out = observe(kind, z[train], seed), observe(kind, z[held], seed + 1)
    found, best = [], 0
    for eval in (None, (X[held], held_out)):
        est = sw.AggregateRegressor(family, learner, validation=None, random_state=seed, verbose=0)
        est.fit(X[train], seen, eval=eval)
        found.append(float(np.mean((est.predict(X[test]) - z[test]) ** 2)))
        if eval is not None:
            best = int(np.argmax([step["valid"] for step in est.history_])) + 1
    return found[0], found[1], best


def table(names: Iterable[str], splits: int = 5, threads: int | None = None) -> list[float]:
    """Prints the errors and their ratios; gives the ratios."""
    out = Table(title=f"Test error with eval over that without, {splits} splits")
    for i, column in enumerate(("data", "kind", "learner", "without", "with", "ratio", "steps")):
        out.add_column(column, justify="right" if i > 2 else "left")
    ratios = []
    for name in names:
        for kind in KINDS:
            for label, learner in learners(threads).items():
                found = np.array([errors(name, kind, learner, seed) for seed in range(splits)])
                without, with_eval, steps = found.mean(0)
                ratios.append(float(np.mean(found[:, 1] / found[:, 0])))
                cells = f"{without:.3g}", f"{with_eval:.3g}", f"{ratios[-1]:.3f}", f"{steps:.0f}"
                out.add_row(name, kind, label, *cells)
                if not console.is_terminal:
                    print(name, kind, label, *cells, sep=" | ", flush=True)
    console.print(out)
    return ratios


def from_command_line(name: str, seed: int) -> tuple[float, float]:
    """Error on new rows: in Python without `eval`, and of the model that `setwise fit` wrote."""
    data = sw.datasets.load(name)
    X, z = np.asarray(data.X, np.float64), np.asarray(data.z, np.float64)
    order = np.random.default_rng(seed).permutation(len(z))
    train, test = np.split(order, [int(0.8 * len(z))])
    group = np.arange(len(train)) // SIZE
    columns = [f"x{i}" for i in range(X.shape[1])]
    means = pd.Series(z[train]).groupby(group).mean()
    est = sw.AggregateRegressor(learner="lightgbm", validation=None, random_state=0, verbose=0)
    est.fit(X[train], sw.Observations.from_groups(sw.Mean(), group, means))
    with tempfile.TemporaryDirectory() as folder:
        rows, sets, model = (Path(folder) / n for n in ("rows.csv", "sets.csv", "model"))
        frame = pd.DataFrame(X[train], columns=columns)
        frame.assign(town=group).to_csv(rows, index=False)
        means.rename("y").rename_axis("town").reset_index().to_csv(sets, index=False)
        words = f"fit {rows} --sets {sets} --group town --observe mean --y y --out {model}"
        done = CliRunner().invoke(app, words.split())
        if done.exit_code:
            raise RuntimeError(done.output)
        by_command = sw.load(model)
    new = pd.DataFrame(X[test], columns=columns)
    errors = [np.mean((g - z[test]) ** 2) for g in (est.predict(X[test]), by_command.predict(new))]
    return float(errors[0]), float(errors[1])


def command_line(names: Iterable[str], splits: int = 5) -> list[float]:
    """Prints the errors and their ratios; gives the ratios."""
    out = Table(title=f"Error on new rows, {splits} splits: LightGBM from means of {SIZE}")
    for column in ("data", "Python, no eval", "setwise fit", "ratio"):
        out.add_column(column, justify="left" if column == "data" else "right")
    ratios = []
    for name in names:
        found = np.array([from_command_line(name, seed) for seed in range(splits)])
        ratios.append(float(np.mean(found[:, 1] / found[:, 0])))
        out.add_row(name, *(f"{v:.4g}" for v in found.mean(0)), f"{ratios[-1]:.3f}")
    console.print(out)
    return ratios


def main() -> int:
    """Prints the table; the exit status says whether every ratio is within the bound."""
    words = sys.argv[1:]
    show = table
    if words[:1] == ["command-line"]:
        words, show = words[1:], command_line
    ratios = show(words or DATASETS)
    above = sum(ratio > BOUND for ratio in ratios)
    console.print(
        f"{len(ratios) - above} of {len(ratios)} ratios are at most {BOUND}, the largest is "
        f"{max(ratios):.3f} ({platform.machine()}, Python {platform.python_version()})"
    )
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
