"""Likelihood rules and a network on a CUDA device: `make bench-cuda`.

Every rule below, value and gradient, at 2²⁰ members on CPU and CUDA, and an epoch of `Network`
beside the same module in a supervised loop. Without a device it says so and ends well.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

import setwise as sw
from benchmarks.rules import categorical, cost, each_once, normal
from benchmarks.table import Figure, shown

MEMBERS = int(os.environ.get("SETWISE_BENCH_MEMBERS", 1 << 20))
RULES: tuple[tuple[Any, Callable[..., Any], int, float], ...] = (
    (sw.Mean(), normal, 4, 1.0),
    (sw.Rank(), normal, 2, 1.0),
    (sw.Similarity(), lambda n, **on: categorical(n, 10, **on), 2, 1.0),
    (sw.Triplet(), lambda n, **on: categorical(n, 10, **on), 3, 1.0),
    (sw.AnyPositive(), lambda n, **on: categorical(n, 2, **on), 16, 1.0),
    (sw.Max(), normal, 64, 15.0),
    (sw.Counts(), lambda n, **on: categorical(n, 2, **on), 64, 15.0),
    (sw.Sum(), lambda n, **on: categorical(n, 4, **on), 16, 15.0),
    (sw.Presence(), lambda n, **on: categorical(n, 4, **on), 16, 15.0),
)


def best(run: Callable[[], object], repeat: int = 5) -> float:
    """The shortest time of a run, in milliseconds, with the device's work done."""
    times = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times[1:])


def rules() -> list[Figure]:
    """Milliseconds of each rule on the device, and on the CPU in the note."""
    found = []
    for aggregate, make, size, bound in RULES:
        sets = each_once(MEMBERS // size, size)
        n = size * (MEMBERS // size)
        here, there = (
            best(cost(aggregate, make(n, device=device, dtype=torch.float32), sets))
            for device in ("cpu", "cuda")
        )
        work = f"{type(aggregate).__name__} of {size}, {n:,} members"
        found.append(Figure(work, "milliseconds", there, bound, "ms", f"CPU {here:.0f} ms"))
    return found


def network(n: int = 60_000, size: int = 256, epochs: int = 3) -> Figure:
    """Triplets of pictures by `Network`, and as many pictures in a supervised loop."""
    rng = np.random.default_rng(0)
    X, z = torch.rand(n, 1, 28, 28), rng.integers(0, 10, n)
    seen = sw.Triplet().observe(z, sw.Sets.random(n, n, 3, seed=0))

    def module() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def ours() -> None:
        learner = sw.Network(module(), epochs=epochs, batch_size=size, device="cuda")
        sw.AggregateClassifier(
            10, learner, n_restarts=1, validation=None, random_state=0, verbose=0
        ).fit(X, seen)

    def loop() -> None:
        own, table, target = module().cuda(), X.cuda(), torch.from_numpy(z).cuda()
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3, fused=True)
        for _ in range(3 * epochs):  # as many pictures as in the triplets
            for batch in torch.randperm(n, device="cuda").split(3 * size):
                loss = nn.functional.cross_entropy(own(table[batch]), target[batch])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(own.parameters(), 1.0)
                optimizer.step()

    took, plain = best(ours, 2), best(loop, 2)
    work = f"Network, {n:,} triplets of pictures, {epochs} epochs"
    return Figure(work, "a supervised loop", took / plain, 1.25, note=f"{took / 1e3:.1f} s")


def main() -> int:
    """1 if a figure is past its bound."""
    console = Console()
    if not torch.cuda.is_available():
        console.print("no CUDA device: nothing was measured")
        return 0
    figures = [*rules(), network()]
    console.print(torch.cuda.get_device_name(), shown(figures))
    return 1 if any(not figure.good for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
