"""What the network learner costs and reaches, in one run: `python -m benchmarks.network`.

1. Time per row against a plain supervised loop on the same module and the same number of rows.
2. Digits from comparisons and counts against the same network supervised, seed by seed.
3. Friedman-1 from means of four, and a predicted scale.
4. Ten networks side by side as one stacked module against one after another.

Sections may be named: `python -m benchmarks.network throughput digits means together`;
SETWISE_BENCH_SEEDS sets the number of seeds (10).
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits, make_friedman1
from torch import nn

import setwise as sw
from benchmarks.table import in_turns
from setwise.learners.base import Task
from setwise.learners.network import Network
from setwise.learners.network.modules import MLP, RawNetwork, Rows, units
from setwise.learners.network.training import Settings, Training, cosine
from setwise.objective import Objective

console = Console()
SEEDS = range(int(os.environ.get("SETWISE_BENCH_SEEDS", 10)))
CPU = torch.device("cpu")


def make_task(X: Any, family: Any, observations: sw.Observations, **kwargs: Any) -> Task:
    objective = Objective(family, [observations], len(X))
    return Task(X, objective, *objective.start(), **kwargs)


# ---- 1. throughput


class Plain:
    """The loop that one writes for supervised training, one batch of rows after another."""

    def __init__(self, X: np.ndarray, target: torch.Tensor, size: int) -> None:
        self.X, self.target, self.size = torch.from_numpy(X).float(), target, size
        outputs = 1 if target.is_floating_point() else int(target.max()) + 1
        self.module = nn.Sequential(
            nn.Linear(X.shape[1], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, outputs),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3, fused=True)
        self.times: list[float] = []

    def epoch(self) -> None:
        order = torch.randperm(len(self.X))
        for begin in range(0, len(order) - self.size, self.size):
            start = time.perf_counter()
            rows = order[begin : begin + self.size]
            out, y = self.module(self.X[rows]), self.target[rows]
            if y.is_floating_point():
                loss = nn.functional.mse_loss(out[:, 0], y)
            else:
                loss = nn.functional.cross_entropy(out, y)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            self.optimizer.step()
            self.times.append((time.perf_counter() - start) / self.size)


class Setwise:
    """The same network by `Training`; times are from one batch of sets to the next."""

    def __init__(self, X: np.ndarray, family: Any, observed: sw.Observations, size: int) -> None:
        task = make_task(X, family, observed)
        rows = Rows(X, CPU)
        base, unit = units(family, task.raw, task.shared)
        network = RawNetwork(
            MLP(X.shape[1], len(base), (128, 128), 0.0, rows.moments()), base, unit
        )
        settings = Settings(100, size, 1e-3, 0.3, cosine, 1.0, "float32", CPU)
        self.training = Training(network, task, rows.prepared(network.prepare), settings, 0)
        self.objective, self.inner = task.objective, task.objective.minibatches
        self.objective.minibatches = self.timed  # type: ignore[method-assign]
        self.times: list[float] = []
        rng = np.random.default_rng(0)
        self.rows = int(np.mean([len(b.rows) for b in self.inner(size, rng)]))

    def timed(self, *how: Any) -> Any:
        start = time.perf_counter()
        for batch in self.inner(*how):
            yield batch
            now = time.perf_counter()
            self.times.append((now - start) / len(batch.rows))
            start = now

    def epoch(self) -> None:
        self.training.run_epoch(self.objective, 10_000)


def throughput() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    X, z, c = rng.uniform(size=(n, 20)), rng.normal(size=n), rng.integers(0, 10, n)
    table = Table(title="1. µs per distinct row: 2×128 perceptron, 20 features, about 1 000 rows")
    for name in ("observations", "sets", "rows", "plain", "setwise", "ratio"):
        table.add_column(name, justify="left" if name == "observations" else "right")
    for kind, members, size, family, truth in (
        (sw.Mean(), 4, 256, sw.Normal(), z),
        (sw.Similarity(), 2, 512, sw.Categorical(10), c),
        (sw.Triplet(), 3, 341, sw.Categorical(10), c),
    ):
        observed = kind.observe(truth, sw.Sets.random(n, n, members, seed=0))
        ours = Setwise(X, family, observed, size)
        target = torch.from_numpy(truth)
        plain = Plain(X, target.float() if truth is z else target, ours.rows)
        for _ in range(10):  # in turns, so that a busy machine slows both
            plain.epoch()
            ours.epoch()
        a, b = (1e6 * float(np.median(times)) for times in (plain.times, ours.times))
        table.add_row(repr(kind), str(size), str(ours.rows), f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}")
    console.print(table)


# ---- 2. digits


def aligned_accuracy(raw: np.ndarray, z: np.ndarray) -> float:
    table = np.zeros((10, 10))
    np.add.at(table, (raw.argmax(1), z), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(z))


def digits() -> None:
    pictures, labels = load_digits(return_X_y=True)
    kinds = {
        "supervised": (sw.Direct(), 0, 1),
        "similarity": (sw.Similarity(), 20_000, 5),
        "triplets": (sw.Triplet(), 20_000, 5),
        "counts": (sw.Counts(n_classes=10, method="normal"), 5_000, 1),
    }
    table = Table(title="2. Digits: test accuracy in % (seconds)")
    for name in ("seed", *kinds):
        table.add_column(name, justify="right")
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(labels))
        X, z = pictures[order], labels[order]
        cells = []
        for kind, n_sets, restarts in kinds.values():
            sets = sw.Sets(np.arange(1347)[:, None])
            if n_sets:
                size = kind.size or 16
                sets = sw.Sets.random(1347, n_sets, size, replace=False, seed=seed)
            task = make_task(
                X[:1347], sw.Categorical(10), kind.observe(z[:1347], sets),
                restarts=restarts, seed=seed,
            )  # fmt: skip
            start = time.perf_counter()
            raw = Network().fit(task).model.raw(X[1347:])
            seconds = time.perf_counter() - start
            hit = aligned_accuracy(raw, z[1347:])
            if restarts == 1:
                hit = float((raw.argmax(1) == z[1347:]).mean())
            cells.append(f"{100 * hit:.1f} ({seconds:.0f})")
        table.add_row(str(seed), *cells)
    console.print(table)


# ---- 3. means


def means() -> None:
    table = Table(title="3. Means")
    for name in ("data", "figure", "value", "seconds"):
        table.add_column(name)
    X, z = make_friedman1(20_000, noise=1.0, random_state=0)
    X_test, z_test = make_friedman1(20_000, noise=1.0, random_state=1)
    start = time.perf_counter()
    observed = sw.Mean().observe(z, sw.Sets.random(20_000, 20_000, 4, seed=0))
    model = Network().fit(make_task(X, sw.Normal(), observed)).model
    error = float(((model.raw(X_test)[:, 0] - z_test) ** 2).mean())
    seconds = time.perf_counter() - start
    table.add_row("Friedman-1, means of 4", "test MSE", f"{error:.3f}", f"{seconds:.0f}")
    rng = np.random.default_rng(0)
    x = rng.uniform(-4, 4, 5000)
    z = rng.normal(np.cos(x) + x / 2, np.exp(0.3 * x) / 2)
    observed = sw.Mean().observe(z, sw.Sets.random(5000, 5000, (2, 4), seed=0))
    start = time.perf_counter()
    model = Network().fit(make_task(x[:, None], sw.Normal(scale="predicted"), observed)).model
    seconds = time.perf_counter() - start
    grid = np.linspace(-4, 4, 400)
    truth = np.exp(0.3 * grid) / 2
    off = float(np.mean(np.abs(np.exp(model.raw(grid[:, None])[:, 1]) - truth) / truth))
    table.add_row("cos x + x/2, sd exp(0.3x)/2", "error of the sd", f"{off:.1%}", f"{seconds:.0f}")
    console.print(table)


def together() -> None:
    """The time of ten modules, value and gradient, which is what an ensemble could save."""
    table = Table(title="4. Ten perceptrons, value and gradient of one batch each, one thread")
    for name in ("rows of each", "side by side, ms", "in turn, ms"):
        table.add_column(name, justify="right")
    modules = [Plain(np.zeros((1, 10)), torch.zeros(1), 1).module for _ in range(10)]
    like, (found, _) = modules[0], torch.func.stack_module_state(modules)
    stacked = {name: weights.detach().requires_grad_() for name, weights in found.items()}
    every = torch.func.vmap(lambda weights, x: torch.func.functional_call(like, weights, (x,)))
    for size in (64, 512, 4096):
        x = torch.randn(10, size, 10)

        def side_by_side(x: torch.Tensor = x) -> None:
            torch.autograd.grad(every(stacked, x).square().sum(), list(stacked.values()))

        def in_turn(x: torch.Tensor = x) -> None:
            for module, own in zip(modules, x, strict=True):
                torch.autograd.grad(module(own).square().sum(), list(module.parameters()))

        times = in_turns(side_by_side, in_turn, repeat=20)
        table.add_row(str(size), *(f"{1e3 * seconds:.2f}" for seconds in times))
    console.print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for section in (throughput, digits, means, together):
        if len(sys.argv) == 1 or section.__name__ in sys.argv[1:]:
            section()
