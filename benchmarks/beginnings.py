"""What good beginnings, bounded steps and a hasty solver bring: `python -m benchmarks.beginnings`.

1. clusters: networks from pairs and triplets that begin at random, and with clusters.
2. noise: the same on digits, where some of the pairs and triplets are wrong.
3. bounds: boosting of classes whose leaves may move logits as far as Newton says, and a little.
4. solver: boosting whose leaf values are solved to the end, and about.
5. part: boosting whose leaf values are solved by the curvature of all sets, and of some.

First trial of the paper's splits, one thread; accuracy in % of the test part. Sections may be
named: `python -m benchmarks.beginnings clusters`.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from sklearn.datasets import load_digits

import setwise as sw
from reproduction import classification
from reproduction.baselines import METHODS
from setwise.datasets import load
from setwise.learners.boosting import base, leaves
from setwise.learners.network import initialization
from setwise.objective import categorical

SETS = ("isolet", "letter", "cardiotocography", "japanesevowels", "satimage", "vehicle")
KINDS = ("similarity_mle", "triplet_mle")
console = Console()


def fit(name: str, kind: str, learner: Any) -> tuple[float, float, float]:
    """Accuracy, held-out log-likelihood of a set, seconds."""
    data, method = classification.prepare(name, (0,), "cpu"), METHODS[kind]
    a, b = data.cuts
    x = data.table[data.rows(0, data.z.shape[1])[0]].double().numpy()
    seen = []
    for part, bounds in enumerate(((0, a), (a, b))):
        sample = classification.observe(data, method, bounds, [[0, method.size, part]])
        seen.append(
            sw.Observations(method.aggregate, sample.members[0].numpy(), sample.y[0].numpy())
        )
    begin = time.perf_counter()
    est = sw.AggregateClassifier(data.classes, learner, random_state=0, verbose=0)
    est.fit(x[:a], seen[0], eval=(x[a:b], seen[1]))
    seconds = time.perf_counter() - begin
    right = 100 * sw.metrics.permutation_accuracy(data.z[0, b:], est.predict(x[b:]))
    return right, max(entry["valid"] for entry in est.history_), seconds


def clusters() -> None:
    """Networks."""
    for name in SETS:
        for kind in KINDS:
            with patch.object(initialization, "_alike", lambda objective: None):
                random = fit(name, kind, sw.Network())
            found = fit(name, kind, sw.Network())
            console.print(
                f"{name} {kind}: random {random[0]:.1f} % ({random[2]:.0f} s), "
                f"clusters {found[0]:.1f} % ({found[2]:.0f} s)"
            )


def noise() -> None:
    """Networks from 8 000 pairs or triplets of digits, three seeds."""
    X, z = load_digits(return_X_y=True)
    for aggregate in (sw.Similarity(), sw.Triplet()):
        for flip in (0.05, 0.15, 0.25):
            right: dict[str, list[float]] = {"random": [], "clusters": []}
            for seed, (kind, found) in itertools.product(range(3), right.items()):
                order = np.random.default_rng(seed).permutation(len(z))
                known, new = order[:1200], order[1200:]
                sets = sw.Sets.random(1200, 8000, aggregate.size, seed=seed)
                seen = sw.Noisy(aggregate, flip=flip).observe(z[known], sets, seed=seed)
                est = sw.AggregateClassifier(10, sw.Network(), random_state=seed, verbose=0)
                here = initialization._alike if kind == "clusters" else lambda objective: None
                with patch.object(initialization, "_alike", here):
                    est.fit(X[known] / 16, seen)
                found.append(
                    100 * sw.metrics.permutation_accuracy(z[new], est.predict(X[new] / 16))
                )
            means = ", ".join(f"{kind} {np.mean(found):.1f} %" for kind, found in right.items())
            console.print(f"{aggregate!r}, {100 * flip:.0f} % wrong: {means}")


def bounds() -> None:
    """Counts of eight and bags of ten, from satimage."""
    data = load("satimage")
    assert data.z is not None
    order = np.random.default_rng(0).permutation(len(data.z))[:6000]
    X, z = np.asarray(data.X, float)[order], data.z[order]
    for aggregate, target, size in (
        (sw.Counts(n_classes=6), z, 8),
        (sw.AnyPositive(), (z == 0).astype(int), 10),
    ):
        sets = sw.Sets.random(3600, 14400 // size, size, seed=0)
        known = aggregate.observe(target[:3600], sets)
        held = aggregate.observe(
            target[3600:4800], sw.Sets.random(1200, 2400 // size, size, seed=1)
        )
        for farthest in (np.inf, base.FARTHEST):
            with patch.object(base, "FARTHEST", farthest):
                learner = sw.LightGBM(n_estimators=300, learning_rate=0.1, num_threads=1)
                classes = int(target.max()) + 1
                est = sw.AggregateClassifier(classes, learner, random_state=0, verbose=0)
                est.fit(X[:3600], known, eval=(X[3600:4800], held))
            valid = max(entry["valid"] for entry in est.history_)
            right = 100 * np.mean(est.predict(X[4800:]) == target[4800:])
            console.print(
                f"{aggregate!r} of {size}, logits move by at most {farthest}: "
                f"held-out log-likelihood {valid:.2f}, {right:.1f} % of the rows"
            )


@contextmanager
def one_guide() -> Iterator[None]:
    """Within it, the guide that boosting follows is learned the first time only."""
    guides: list[torch.Tensor] = []
    pilot = sw.Network.pilot

    def guide(task: Any) -> torch.Tensor:
        if not guides:
            guides.append(pilot(task))
        return guides[0]

    with patch.object(sw.Network, "pilot", staticmethod(guide)):
        yield


def solver() -> None:
    """Boosting from pairs and triplets."""
    for name in ("japanesevowels", "pendigits"):
        for kind in KINDS:
            with one_guide():
                learner = sw.LightGBM(**classification.BOOSTING, num_threads=1)
                fit(name, kind, sw.LightGBM(n_estimators=1, num_threads=1))  # learns the guide
                about = fit(name, kind, learner)
                with patch.object(leaves, "TOLERANCE", 1e-8):
                    whole = fit(name, kind, learner)
            console.print(
                f"{name} {kind}: to the end {whole[0]:.1f} % ({whole[1]:.4f}), about "
                f"{about[0]:.1f} % ({about[1]:.4f}) in {about[2] / whole[2]:.2f} of the time"
            )


def part() -> None:
    """100 rounds from two pairs or three triplets per row of a part of covertype."""
    data = load("covertype")
    assert data.z is not None
    rows = 300_000
    for kind in KINDS:
        order = np.random.default_rng(0).permutation(len(data.z))[:rows]
        X, z = np.asarray(data.X, float)[order], data.z[order]
        a, b = int(0.6 * rows), int(0.8 * rows)
        method = METHODS[kind]
        sets = sw.Sets.random(a, method.size * a, method.size, seed=0)
        seen = method.aggregate.observe(z[:a], sets)
        held = sw.Sets.random(b - a, method.size * (b - a), method.size, seed=1)
        evaluated = X[a:b], method.aggregate.observe(z[a:b], held)
        told = []
        with one_guide():
            some, every = categorical.PART, (len(seen), len(seen))
            for rounds, size in ((1, some), (100, every), (100, some)):
                learner = sw.LightGBM(n_estimators=rounds, learning_rate=0.1, num_threads=1)
                est = sw.AggregateClassifier(7, learner, random_state=0, verbose=0)
                begin = time.perf_counter()
                with patch.object(categorical, "PART", size):
                    est.fit(X[:a], seen, eval=evaluated)
                right = 100 * sw.metrics.permutation_accuracy(z[b:], est.predict(X[b:]))
                valid = max(entry["valid"] for entry in est.history_)
                told.append((right, valid, time.perf_counter() - begin))
        whole, part = told[1:]
        console.print(
            f"covertype, {len(seen)} {kind}: curvature of all sets {whole[0]:.1f} % "
            f"({whole[1]:.4f}), of {categorical.PART[1]} {part[0]:.1f} % ({part[1]:.4f}) in "
            f"{part[2] / whole[2]:.2f} of the time"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sections = {
        "clusters": clusters,
        "noise": noise,
        "bounds": bounds,
        "solver": solver,
        "part": part,
    }
    for section in sys.argv[1:] or sections:
        sections[section]()
