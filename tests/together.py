"""Fits of networks that one process does, or several that torchrun starts.

torchrun --nproc-per-node 2 tests/together.py FOLDER
torchrun --nproc-per-node 2 tests/together.py  # the second one is killed
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import setwise as sw

N = 240
CASES = {}
INTERRUPTED = {"epochs": 6, "hidden": (8,), "dropout": 0.1, "batch_size": 32, "device": "cpu"}


def case(function):
    CASES[function.__name__] = function
    return function


def data(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 3))
    return X, X[:, 0] - 2 * X[:, 1] + rng.normal(size=N)


def network(distributed, **more):
    usual = {"hidden": (8,), "epochs": 4, "batch_size": 33, "device": "cpu", "lr": 0.01}
    return sw.Network(distributed=distributed, **(usual | more))


def regressor(learner, family="normal", **more):
    usual = {"random_state": 0, "verbose": 0, "validation": None}
    return sw.AggregateRegressor(family, learner=learner, **(usual | more))


def told(est, X):
    raw, shared = est._rows(X)
    weights = [t.flatten().double() for t in est.model_.network.state_dict().values()]
    history = [[row[k] for k in ("train", "valid") if k in row] for row in est.history_]
    return {
        "raw": raw.numpy(),
        "shared": shared.numpy(),
        "history": np.array(history),
        "weights": torch.cat(weights).numpy(),
        "steps": np.array(est.steps_),
    }


@case
def means_and_held_out_sets(distributed, folder):
    X, z = data()
    seen = sw.Mean().observe(z, sw.Sets.random(N, 550, (2, 6), seed=0))
    learner = network(distributed, patience=2, epochs=15, lr=0.02)
    est = regressor(learner, validation="auto", overlap="independent")
    return told(est.fit(X, seen), X)


@case
def two_kinds_with_a_scale_for_each_row(distributed, folder):
    X, z = data()
    sets = sw.Sets.random(N, 70, 3, seed=0)
    sums = sw.Sum().observe(z, sets)
    sums = sw.Observations(sums.aggregate, sets, sums.y, weight=np.arange(70) % 3)
    few = sw.Direct().observe(z, np.arange(3)[:, None])  # no process has one of each batch
    est = regressor(network(distributed, batch_size=8), sw.Normal(scale="predicted"))
    return told(est.fit(X, [sums, few]), X)


@case
def joint_likelihood(distributed, folder):
    X, z = data()
    seen = sw.Mean().observe(z, sw.Sets.random(N, 100, 3, seed=0))
    est = regressor(network(distributed), sw.Normal(), overlap="joint")
    return told(est.fit(X, seen), X)


@case
def classes_from_clusters(distributed, folder):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4)) + np.repeat(np.eye(3, 4) * 4, 30, 0)
    pairs = sw.Similarity().observe(np.repeat(range(3), 30), sw.Sets.random(90, 300, 2, seed=0))
    est = sw.AggregateClassifier(
        3, network(distributed), random_state=0, verbose=0, validation=None, n_restarts=2
    )
    return told(est.fit(X, pairs), X)


def files(folder):
    X, z = data()
    path = Path(folder) / "rows.csv"
    return X, z, path


@case
def rows_in_files(distributed, folder):
    X, z, path = files(folder)
    rows = sw.Files(path, memory=80_000, scratch=folder).drop("area")
    means = z.reshape(-1, 4).mean(1)
    seen = sw.Observations(sw.Mean(), np.arange(N).reshape(-1, 4), means)
    return told(regressor(network(distributed, epochs=40)).fit(rows, seen), X)


def averaging(n_features, n_outputs):
    return nn.Sequential(nn.Linear(n_features, 8), nn.BatchNorm1d(8), nn.Dropout(0.2),
                         nn.ReLU(), nn.Linear(8, n_outputs))  # fmt: skip


@case
def what_a_module_draws_and_averages(distributed, folder):
    X, z = data()
    seen = sw.Mean().observe(z, sw.Sets.random(N, 200, 3, seed=0))
    learner = network(distributed, module=averaging, epochs=10)
    return told(regressor(learner, random_state=None).fit(X, seen), X)


class Stops(Exception):
    """In the middle of a fit."""


class Scheduled:
    """Half the rate; ends the fit on the way, where it has to."""

    def __init__(self, end=None):
        self.end = end

    def __call__(self, step, total):
        if step == self.end:
            raise Stops
        return 0.5

    def __repr__(self):
        return "Scheduled()"


def resumable(distributed, folder, end=None):
    X, z = data()
    seen = sw.Mean().observe(z, sw.Sets.random(N, 200, 3, seed=0))
    held = sw.Mean().observe(z, sw.Sets.random(N, 60, 3, seed=1))
    learner = network(distributed, checkpoint=folder, epochs=6, schedule=Scheduled(end))
    return told(regressor(learner).fit(X, seen, eval=(X, held)), X)


@case
def ends_in_the_middle(distributed, folder):
    try:
        resumable(distributed, Path(folder) / "by several", end=25)
    except Stops:
        return {}
    raise AssertionError


@case
def goes_on_from_one_process(distributed, folder):
    return resumable(distributed, Path(folder) / "by one")


@case
def other_rows_in_each_process(distributed, folder):
    X, z = data(seed=torch.distributed.get_rank())
    seen = sw.Mean().observe(z, sw.Sets.random(N, 200, 3, seed=0))
    try:
        regressor(network(distributed)).fit(X, seen)
    except ValueError as error:
        return {"said": np.array(str(error))}
    raise AssertionError


def kills(step, total):
    """Ends the second process without a word."""
    if step == 20 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def is_killed():
    X, z = data()
    seen = sw.Mean().observe(z, sw.Sets.random(N, 200, 3, seed=0))
    regressor(network(True, epochs=100, schedule=kills)).fit(X, seen)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        is_killed()
        raise AssertionError
    out = Path(sys.argv[1])
    for name, function in CASES.items():
        found = function(True, out)
        np.savez(out / f"{name}-{torch.distributed.get_rank()}.npz", **found)
