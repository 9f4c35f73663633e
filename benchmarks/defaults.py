"""What the defaults reach: `python -m benchmarks.defaults [SECTION ...] [--jobs N] [--out FOLDER]`.

auto         `learner="auto"` beside each single learner, on ten regression and ten classification
             sets of the paper drawn by a seed, at most 10 000 rows, three trials
bags         accuracy of whole bags in ten folds of MUSK1, MUSK2, fox, tiger and elephant
proportions  bags of 8, 64 and 512 rows of adult and magic, beside a mean-proportion loss (DLLP)
             on the same network
intervals    how many targets 90 % intervals of single rows hold, on eight data sets

Every fit is one line of FOLDER/defaults-SECTION.csv; a run goes on where the last one stopped, and
`--minutes` ends it. Seconds are those of one thread. "auto" tries every library of trees that is
installed: the figures of the documentation are of an environment that `pip install setwise` makes.
Without a section all are measured, and what `python -m benchmarks.coverage` measures too.
`python -m benchmarks.defaults_page` writes the page of the documentation from these files.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from torch import nn

import setwise as sw
from benchmarks import coverage, resume
from setwise.distributions import interval

SEED, ROWS = 2026, 10_000
LABELS = 50  # of single rows, that fix shift and unit beside ranks and differences


class Fit(NamedTuple):
    """One fit to make: a data set, what is seen of it, the learner, and which trial."""

    data: str
    kind: str
    learner: str
    trial: int


class Found(NamedTuple):
    """What it gave: the figure of the section, and seconds."""

    value: float
    seconds: float


# ---- data


def table(name: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At most so many rows, in a random order, and their targets."""
    data = sw.datasets.load(name)
    order = np.random.default_rng([seed, 1]).permutation(len(data.X))[:rows]
    return np.asarray(data.X, np.float64)[order], np.asarray(data.z)[order]


def drawn() -> tuple[list[str], list[str]]:
    """Ten regression and ten classification sets of the paper, tables of numbers only."""
    rng = np.random.default_rng(SEED)
    known = {info.name: info for info in sw.datasets.available() if info.name != "susy"}
    chosen = []
    for tables in (("uci", "regression"), ("binary", "multiclass")):
        names = sorted(n for n, i in known.items() if set(i.tables) & set(tables) and i.features)
        chosen.append(sorted(rng.permutation(names)[:10].tolist()))
    return chosen[0], chosen[1]


def seen(kind: str, z: np.ndarray, seed: int) -> list[sw.Observations]:
    """What is observed of these rows: sets of each row about once for groups, twice for pairs."""
    n, rng = len(z), np.random.default_rng([seed, 2])
    classes = int(z.max()) + 1 if z.dtype.kind in "iu" else 0
    few = sw.Direct().observe(z, rng.permutation(n)[:LABELS, None])
    groups = {size: sw.Sets.from_groups(rng.permutation(n) // size) for size in (4, 8)}
    if kind == "means":
        return [sw.Mean().observe(z, groups[4])]
    if kind == "sums":
        return [sw.Sum().observe(z, groups[4])]
    if kind == "differences":
        return [sw.Difference().observe(z, sw.Sets.random(n, 2 * n, 2, seed=seed)), few]
    if kind == "ranks":
        pairs = sw.Sets.random(n, 5 * n, 2, seed=seed).indices.reshape(-1, 2)
        return [sw.Rank().observe(z, pairs[z[pairs[:, 0]] != z[pairs[:, 1]]]), few]
    if kind == "counts":
        return [sw.Counts(n_classes=classes).observe(z, groups[8])]
    size, aggregate = {"pairs": (2, sw.Similarity()), "triplets": (3, sw.Triplet())}[kind]
    return [aggregate.observe(z, sw.Sets.random(n, 2 * n, size, seed=seed))]


def quiet(fit: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, without its warnings, and how long it took."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = fit()
    return made, time.perf_counter() - begin


# ---- sections


def auto_fits() -> Iterator[Fit]:
    regression, classification = drawn()
    for trial in range(3):
        for names, kinds in (
            (regression, ("means", "ranks")),
            (classification, ("counts", "pairs", "triplets")),
        ):
            for name, kind, learner in product(names, kinds, POOL):
                yield Fit(name, kind, learner, trial)


POOL = ("auto", "linear", "lightgbm", "network")


def auto(one: Fit) -> Found:
    """Squared error, or share of wrong classes after the best renaming, on a fifth of the rows."""
    X, z = table(one.data, ROWS, one.trial)
    known = int(0.8 * len(z))
    observed = seen(one.kind, z[:known], one.trial)
    how: dict[str, Any] = {"learner": one.learner, "random_state": one.trial, "verbose": 0}
    if one.kind in ("means", "ranks"):
        est: Any = sw.AggregateRegressor(**how)
    else:
        est = sw.AggregateClassifier(int(z.max()) + 1, **how)
    _, seconds = quiet(lambda: est.fit(X[:known], observed))
    guess = est.predict(X[known:])
    if one.kind in ("means", "ranks"):
        return Found(float(np.mean((guess - z[known:]) ** 2)), seconds)
    if one.kind == "counts":
        return Found(float(np.mean(guess != z[known:])), seconds)
    return Found(1 - sw.metrics.permutation_accuracy(z[known:], guess), seconds)


def bags_fits() -> Iterator[Fit]:
    names = ("musk1", "fox", "tiger", "elephant", "musk2")
    for learner, name, fold in product(POOL, names, range(10)):
        yield Fit(name, "bags", learner, fold)


def bags(one: Fit) -> Found:
    """Share of the bags of a fold that are told right."""
    data = sw.datasets.load(one.data)
    observations = sw.Observations(sw.AnyPositive(), data.sets, data.y)
    y = np.asarray(data.y).astype(int)
    folds = StratifiedKFold(10, shuffle=True, random_state=0).split(y, y)
    train, test = list(folds)[one.trial]
    est = sw.AggregateClassifier(2, one.learner, random_state=0, verbose=0)
    X = np.asarray(data.X, np.float64)
    _, seconds = quiet(lambda: est.fit(X, observations.take(train)))
    p = est.predict_aggregate(X, observations.sets.take(test), sw.AnyPositive())
    return Found(float(np.mean((p > 0.5) == y[test])), seconds)


def proportions_fits() -> Iterator[Fit]:
    for name, size in product(("adult", "magic"), (8, 64, 512)):
        for learner, trial in product(("auto", "network", "dllp"), range(5)):
            yield Fit(name, f"bags of {size}", learner, trial)


def proportions(one: Fit) -> Found:
    """Area under the curve of new rows, learned from 8 192 rows in bags."""
    X, z = table(one.data, 8192 + 4096, one.trial)
    size, known = int(one.kind.split()[-1]), 8192
    groups = sw.Sets.from_groups(np.arange(known) // size)
    if one.learner == "dllp":
        p, seconds = quiet(lambda: dllp(X[:known], z[:known], size, X[known:], one.trial))
    else:
        est = sw.AggregateClassifier(2, one.learner, random_state=one.trial, verbose=0)
        counts = sw.Counts(n_classes=2).observe(z[:known], groups)
        _, seconds = quiet(lambda: est.fit(X[:known], counts))
        p = est.predict_proba(X[known:])[:, 1]
    return Found(float(roc_auc_score(z[known:], p)), seconds)


def dllp(X: np.ndarray, z: np.ndarray, size: int, new: np.ndarray, seed: int) -> np.ndarray:
    """Cross-entropy between a bag's share and the mean of its members' probabilities.

    Network, optimiser, epochs, batches and early stopping are those of `setwise.Network()`; a fifth
    of the bags is held out where there are more than ten of them.

    Ardehaly & Culotta, "Co-training for demographic classification using deep learning from label
    proportions", 2017.
    """
    torch.manual_seed(seed)
    mean, deviation = X.mean(0), X.std(0) + 1e-12
    x = torch.tensor((X - mean) / deviation, dtype=torch.float32).reshape(-1, size, X.shape[1])
    share = torch.tensor(z.reshape(-1, size).mean(1), dtype=torch.float32)
    order = np.random.default_rng(seed).permutation(len(x))
    held = order[: len(x) // 5] if len(x) > 10 else order[:0]
    train = order[len(held) :]
    net = nn.Sequential(
        nn.Linear(X.shape[1], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
    )
    batch = int(np.clip(min(512 // size, len(train) // 16), 1, 256))
    steps = -(-len(train) // batch)
    epochs = int(np.clip(3000 // steps, 20, 200))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.3)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)

    def loss(which: np.ndarray) -> torch.Tensor:
        p = net(x[which]).squeeze(-1).sigmoid().mean(1)
        return nn.functional.binary_cross_entropy(p.clamp(1e-7, 1 - 1e-7), share[which])

    rng, best, kept = np.random.default_rng(seed), np.inf, None
    for _ in range(epochs):
        for part in np.array_split(rng.permutation(train), steps):
            optimizer.zero_grad()
            loss(part).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            plan.step()
        if len(held):
            with torch.no_grad():
                now = float(loss(held))
            if now < best:
                best, kept = now, {k: v.clone() for k, v in net.state_dict().items()}
    if kept is not None:
        net.load_state_dict(kept)
    with torch.no_grad():
        rows = torch.tensor((new - mean) / deviation, dtype=torch.float32)
        return np.asarray(net(rows).squeeze(-1))


HELD = ("concrete", "abalone", "power-plant", "kin-8nm", "puma-8nh", "stock", "space-ga", "airfoil")


def intervals_fits() -> Iterator[Fit]:
    for name, kind in product(HELD, ("means", "sums", "ranks", "differences")):
        for trial in range(3):
            yield Fit(name, kind, "auto", trial)


def intervals(one: Fit) -> Found:
    """Share of the targets of new rows in their 90 % intervals."""
    X, z = table(one.data, 4000, one.trial)
    known = int(0.7 * len(z))
    est = sw.AggregateRegressor(random_state=one.trial, verbose=0)
    _, seconds = quiet(lambda: est.fit(X[:known], seen(one.kind, z[:known], one.trial)))
    low, high = interval(est.predict_dist(X[known:]), 0.9)
    return Found(float(np.mean((low <= z[known:]) & (z[known:] <= high))), seconds)


# ---- what is measured


class Section(NamedTuple):
    """What to fit, and how one fit is measured."""

    fits: Callable[[], Iterator[Fit]]
    measure: Callable[[Fit], Found]


SECTIONS = {
    "auto": Section(auto_fits, auto),
    "bags": Section(bags_fits, bags),
    "proportions": Section(proportions_fits, proportions),
    "intervals": Section(intervals_fits, intervals),
}


def cost(one: Fit) -> float:
    """About how long a fit takes, to begin with the long ones."""
    info = next(i for i in sw.datasets.available() if i.name == one.data)
    numbers = min(info.rows or ROWS, ROWS) * (info.features or 1)
    return numbers * (info.classes or 1) * (3 if one.learner == "auto" else 1)


def plan(name: str) -> resume.Plan:
    """A section, trial by trial, so that a run that was cut short has something of everything."""
    fits = sorted(SECTIONS[name].fits(), key=lambda one: (one.trial, -cost(one)))
    return resume.Plan(f"defaults-{name}", fits, SECTIONS[name].measure, Fit, Found)


def read(path: Path) -> dict[Fit, Found]:
    """What has been measured of a section."""
    return resume.read(path, Fit, Found)


def means(found: dict[Fit, Found]) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """The figures of all trials, by data set and kind, by learner."""
    cells: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, what in sorted(found.items()):
        cells[one.data, one.kind][one.learner].append(what.value)
    return {cell: {k: np.array(v) for k, v in by.items()} for cell, by in cells.items()}


def main() -> int:
    """Runs the sections named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults")
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no fit after that time")
    parser.add_argument("--without", nargs="*", default=[], help="data sets to leave out")
    options = parser.parse_args()
    plans = [plan(name) for name in options.sections or SECTIONS]
    plans = [p._replace(tasks=[t for t in p.tasks if t.data not in options.without]) for p in plans]
    if not options.sections:
        plans.append(coverage.plan())
    return 0 if resume.run(plans, options.out, options.jobs, options.minutes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
