"""A network that learns MNIST from triplets and pairs beside a supervised loop: `make bench-cuda`.

The loop is what one would write for labels: the same module, optimiser and clipping, batches of as
many images, rows and order of an epoch on the device. Both are timed with whole steps recorded as
CUDA graphs, and both call by call. Where MNIST cannot be had, as many random images serve: the time
is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import setwise as sw
from benchmarks.table import Figure, Rows
from setwise.datasets import DatasetError
from setwise.learners.network import layout

BATCH = 128  # sets
KINDS = {"triplets": (sw.Triplet(), 3), "pairs": (sw.Similarity(), 2)}
WHOLE = {"tf32": 16.0, "bf16": 13.0}  # seconds that ten epochs may take


class Images(NamedTuple):
    """Standardised images and their classes, and as much to test with."""

    X: Tensor
    z: Any
    X_test: Tensor
    z_test: Any


def images(small: bool) -> Images:
    """MNIST, or random images of its shape."""
    n, side = (200, 12) if small else (60_000, 28)
    try:
        data = sw.datasets.load("digits" if small else "mnist")
    except DatasetError:
        rng = np.random.default_rng(0)
        x = torch.randn(n + n // 6, 1, side, side)
        z = rng.integers(0, 10, len(x))
        return Images(x[:n], z[:n], x[n:], z[n:])
    x = torch.from_numpy(np.asarray(data.X, np.float32)).reshape(len(data.X), 1, *_square(data.X))
    own = x[:n]
    x = (x - own.mean()) / own.std()
    if data.X_test is None:
        return Images(x[:n], data.z[:n], x[n:], data.z[n:])
    test = torch.from_numpy(np.asarray(data.X_test, np.float32)).unsqueeze(1)
    return Images(x, data.z, (test - own.mean()) / own.std(), data.z_test)


def _square(X: Any) -> tuple[int, int]:
    side = math.isqrt(math.prod(X.shape[1:]))
    return side, side


def module(side: int) -> nn.Module:
    """The network of the paper's images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(64 * ((side - 4) // 2) ** 2, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 10),
    )  # fmt: skip


def measured(device: str, small: bool) -> Rows:
    """Epochs beside a supervised loop, and ten of them in all."""
    data, epochs = images(small), 2 if small else 4
    for kind, (aggregate, size) in KINDS.items():
        n_sets = size * len(data.X)
        seen = aggregate.observe(data.z, sw.Sets.random(len(data.X), n_sets, size, seed=0))
        for way, bound in (("recorded", 1 / 0.95), ("call by call", 1 / 0.8)):
            recorded = way == "recorded"
            if recorded and device == "cpu":
                continue
            ours = min(fit(data, seen, epochs, device, "tf32", recorded)[1])
            plain = min(loop(data, size, epochs, device, recorded))
            rate = size * n_sets / ours / 1e3
            work = f"an epoch of {n_sets:,} {kind} of images, {way}"
            note = f"{ours:.2f} s, {rate:.0f} 000 images/s; the loop {plain:.2f} s"
            yield Figure(work, "a supervised loop", ours / plain, round(bound, 3), note=note)
    aggregate, size = KINDS["triplets"]
    sets = sw.Sets.random(len(data.X), size * len(data.X), size, seed=0)
    seen, ten = aggregate.observe(data.z, sets), 2 if small else 10
    for precision, bound in WHOLE.items():
        begin = time.perf_counter()
        est, times = fit(data, seen, ten, device, precision)
        seconds = time.perf_counter() - begin
        right = sw.metrics.permutation_accuracy(data.z_test, est.predict(data.X_test))
        work = f"{ten} epochs of {len(sets):,} triplets, the whole fit, {precision}"
        note = f"epochs alone {sum(times):.1f} s; {100 * right:.2f} % of test images right"
        yield Figure(work, "seconds", seconds, bound, "s", note)


def fit(
    data: Images,
    seen: sw.Observations,
    epochs: int,
    device: str,
    precision: str,
    recorded: bool = True,
) -> tuple[Any, list[float]]:
    """A fit from sets by the public estimator, and the seconds of each epoch."""
    begun: list[float] = []
    steps = math.ceil(len(seen.sets) / BATCH)

    def schedule(step: int, total: int) -> float:  # constant; the host asks as an epoch begins
        if step % steps == 0:
            begun.append(time.perf_counter())
        return 1.0

    learner = sw.Network(
        module(data.X.shape[-1]), epochs=epochs, batch_size=BATCH, schedule=schedule,
        weight_decay=0.01, device=device, precision=precision,
    )  # fmt: skip
    est = sw.AggregateClassifier(10, learner, validation=None, random_state=0, verbose=0)
    with _call_by_call(not recorded):
        est.fit(data.X, seen)
    begun.append(time.perf_counter())
    return est, np.diff(begun).tolist()


@contextmanager
def _call_by_call(wanted: bool) -> Iterator[None]:
    """As where a module cannot be recorded."""
    before = layout.EAGER
    layout.EAGER = 1 << 60 if wanted else before
    try:
        yield
    finally:
        layout.EAGER = before


def loop(data: Images, size: int, epochs: int, device: str, recorded: bool) -> list[float]:
    """Seconds of each epoch of a supervised loop over as many images as sets have members."""
    torch.manual_seed(0)
    cuda = device == "cuda"
    own, table = module(data.X.shape[-1]).to(device), data.X.to(device)
    target = torch.from_numpy(np.asarray(data.z, np.int64)).to(device)
    optimizer = torch.optim.AdamW(
        own.parameters(), lr=1e-3, weight_decay=0.01, fused=True, capturable=cuda
    )
    batch = torch.zeros(size * BATCH, dtype=torch.int64, device=device)
    steps = math.ceil(size * len(table) / BATCH)

    def step() -> None:
        out = own(table.index_select(0, batch))
        loss = F.cross_entropy(out, target.index_select(0, batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(own.parameters(), 1.0, foreach=True)
        optimizer.step()

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = cuda
    torch.set_float32_matmul_precision("high")
    try:
        do, times = layout.Recorded(step, torch.device(device)) if recorded else step, []
        for _ in range(epochs):
            begin = time.perf_counter()
            for rows in torch.randint(len(table), (steps, len(batch)), device=device):
                batch.copy_(rows)
                do()
            if cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return times
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]
