"""Cost of likelihoods with gradients, as ratios within one run: `python -m benchmarks.likelihood`.

1. One million members against the plain elementwise work on the same tensor.
2. Two-class counts against a log-space loop over the members.
3. How time and memory grow with sets, set size and classes.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler measures memory; it need not talk

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch import distributions as td

import setwise as sw

console = Console()
MEMBERS = int(os.environ.get("SETWISE_BENCH_MEMBERS", 1_000_000))


def best(fn: Callable[[], object], repeat: int = 15) -> float:
    """Shortest of several runs, in seconds."""
    fn()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return min(times)


def backward(value: Tensor, *leaves: Tensor) -> None:
    torch.autograd.grad(value.sum(), leaves, retain_graph=True)


def elementwise() -> None:
    """Section 1: ratio to log_softmax or Normal.log_prob on the same tensor."""
    table = Table(
        title=f"1. {MEMBERS:,} members, value and gradient, against plain elementwise work"
    )
    for name in ("aggregate", "dtype", "rows", "plain ms", "setwise ms", "ratio", "bar"):
        table.add_column(name, justify="left" if name in ("aggregate", "rows") else "right")
    n = MEMBERS
    for dtype in (torch.float32, torch.float64):
        for aggregate, size, n_classes in (
            (sw.Mean(), 4, 0),
            (sw.Rank(), 2, 0),
            (sw.Similarity(), 2, 10),
            (sw.AnyPositive(), 16, 2),
        ):
            if n_classes:
                logits = torch.randn(n, n_classes, dtype=dtype, requires_grad=True)
                weight = torch.randn(n, n_classes, dtype=dtype)
                plain = best(lambda: backward(logits.log_softmax(-1) * weight, logits))

                def build() -> td.Distribution:
                    return td.Categorical(logits=logits, validate_args=False)

                leaves = [logits]
            else:
                loc = torch.randn(n, dtype=dtype, requires_grad=True)
                scale = torch.ones(n, dtype=dtype, requires_grad=True)
                target = torch.randn(n, dtype=dtype)
                leaves = [loc, scale]

                def build() -> td.Distribution:
                    return td.Normal(loc, scale, validate_args=False)

                plain = best(lambda: backward(build().log_prob(target), *leaves))
            index = np.arange(n).reshape(-1, size)
            shared = sw.Sets.random(n, len(index), size, seed=0)
            for rows, sets in (("each once", sw.Sets(index)), ("shared", shared)):
                y = (
                    np.ones(len(sets))
                    if not isinstance(aggregate, sw.Mean)
                    else np.zeros(len(sets))
                )
                y[::2] = 0
                ours = best(
                    lambda: backward(sw.log_likelihood(aggregate, build(), sets, y), *leaves)
                )
                table.add_row(
                    f"{type(aggregate).__name__} of {size}", str(dtype)[6:], rows,
                    f"{plain * 1e3:.1f}", f"{ours * 1e3:.1f}", f"{ours / plain:.2f}", "≤ 3",
                )  # fmt: skip
    console.print(table)


def counting_loop(logits: Tensor, k: Tensor) -> Tensor:
    """The usual log-space recursion over members, the thing to beat."""
    log_q, log_p = logits.unbind(-1)
    n, size = log_q.shape
    state = logits.new_full((n, size + 2), -1e30)
    state[:, 1] = 0.0
    for i in range(size):
        state = torch.cat(
            [
                state[:, :1],
                torch.logaddexp(
                    state[:, 1:] + log_q[:, i, None], state[:, :-1] + log_p[:, i, None]
                ),
            ],
            1,
        )
    return state.gather(1, k[:, None] + 1)[:, 0]


def counts() -> None:
    """Section 2: two-class counts against the loop."""
    table = Table(title="2. Counts of two classes, value and gradient, against a log-space loop")
    for name in ("K", "sets", "loop ms", "setwise ms", "times faster", "bar", "largest rel. error"):
        table.add_column(name, justify="right")
    for size in (16, 64, 256, 1024, 4096):
        n = max(1, min(4096, 2**22 // size**2 * 4 or 1))
        generator = torch.Generator().manual_seed(size)
        logits = torch.randn(
            n, size, 2, dtype=torch.float64, generator=generator, requires_grad=True
        )
        k = torch.randint(0, size + 1, (n,), generator=generator)  # mostly improbable counts
        sets = sw.Sets(np.arange(n * size).reshape(n, size))

        def loop() -> Tensor:
            return counting_loop(logits.log_softmax(-1), k)

        def ours() -> Tensor:
            rows = td.Categorical(logits=logits.reshape(-1, 2), validate_args=False)
            return sw.log_likelihood(sw.Counts(), rows, sets, k)

        repeat = 3 if size < 1024 else 1
        slow = best(lambda: backward(loop(), logits), repeat)
        fast = best(lambda: backward(ours(), logits), max(repeat, 3))
        error = (ours() - loop()).detach().expm1().abs().max()
        bar = "≥ 10" if size == 1024 else "≥ 1"
        table.add_row(
            str(size), str(n), f"{slow * 1e3:.1f}", f"{fast * 1e3:.1f}", f"{slow / fast:.1f}", bar,
            f"{float(error):.0e}",
        )  # fmt: skip
    console.print(table)


def peak_bytes(fn: Callable[[], object]) -> int:
    """Largest memory in use during fn beyond what was there before (torch allocations)."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        fn()
    raw = trace.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in raw if e.name() == "[memory]")
    now = top = 0
    for _, change in changes:
        now += change
        top = max(top, now)
    return top


def growth() -> None:
    """Section 3: time and memory per member, as the problem grows."""
    table = Table(title="3. Growth: microseconds and bytes per member, value and gradient, float64")
    for name in ("aggregate", "what grows", "members", "µs", "bytes"):
        table.add_column(name, justify="left" if name in ("aggregate", "what grows") else "right")

    def normal(n: int) -> tuple[td.Distribution, Tensor]:
        loc = torch.randn(n, dtype=torch.float64, requires_grad=True)
        return td.Normal(loc, torch.ones((), dtype=torch.float64)), loc

    def classes(n: int, c: int) -> tuple[td.Distribution, Tensor]:
        logits = torch.randn(n, c, dtype=torch.float64, requires_grad=True)
        return td.Categorical(logits=logits), logits

    plans: list[tuple[str, Any, str, list[tuple[int, int, int]]]] = [  # (sets, size, classes)
        ("Mean, Normal", sw.Mean(), "sets", [(n, 4, 0) for n in (10**3, 10**4, 10**5)]),
        ("Mean, Normal", sw.Mean(), "size", [(10**5 // k, k, 0) for k in (4, 64, 1024)]),
        ("Max, Normal", sw.Max(), "size", [(10**5 // k, k, 0) for k in (4, 64, 1024)]),
        ("Median, Normal", sw.Median(), "size", [(10**4 // k, k, 0) for k in (5, 65, 1025)]),
        ("Counts, 2 classes", sw.Counts(), "size", [(10**5 // k, k, 2) for k in (16, 256, 4096)]),
        ("Counts, 10 classes", sw.Counts(), "size", [(256 // k, k, 10) for k in (4, 8, 16)]),
        ("AnyPositive", sw.AnyPositive(), "size", [(10**5 // k, k, 2) for k in (4, 64, 1024)]),
        ("Triplet", sw.Triplet(), "classes", [(10**4, 3, c) for c in (2, 10, 100)]),
        ("Triplet, matrix", sw.Triplet, "classes", [(10**3, 3, c) for c in (10, 30, 90)]),
        ("Fold, 3 states", sw.Fold, "size", [(10**5 // k, k, 3) for k in (4, 64, 1024)]),
        ("Choice, Normal", sw.Choice(), "size", [(2**9 // k, k, 0) for k in (2, 8, 32)]),
        ("Ranking, Normal", sw.Ranking(), "size", [(2**9 // k, k, 0) for k in (4, 16, 64)]),
        ("Sum, Logistic", sw.Sum(), "size", [(2**12 // k, k, -1) for k in (4, 64, 1024)]),
        ("Uncoupled, Normal", sw.Uncoupled(), "size", [(2**9 // k, k, 0) for k in (4, 8, 12)]),
    ]
    for label, aggregate, grows, steps in plans:
        for n_sets, size, c in steps:
            number = {"sets": n_sets, "size": size, "classes": c}[grows]
            what = f"{grows}: {number}"
            n = n_sets * size
            if c > 0:
                d, leaf = classes(n, c)
            else:
                d, leaf = normal(n)
                if c < 0:
                    d = sw.distributions.LogisticDistribution(d.loc, d.scale)
            made = aggregate
            if aggregate is sw.Triplet:
                made = sw.Triplet(np.random.default_rng(0).random((c, c)))
            elif aggregate is sw.Fold:
                made = sw.Fold([[0, 1, 2], [1, 2, 0], [2, 0, 1]], [0, 1, 2])
            sets = sw.Sets(np.arange(n).reshape(-1, size))
            observed = made.observe(d.sample(), sets, seed=0)

            def run() -> None:
                backward(sw.log_likelihood(made, d, observed.sets, observed.y), leaf)

            run()
            seconds = best(run, 3)
            table.add_row(
                label, what, f"{n}", f"{seconds / n * 1e6:.3f}", f"{peak_bytes(run) / n:.0f}"
            )
    console.print(table)


def main() -> None:
    """Runs the sections named on the command line, or all of them."""
    torch.manual_seed(0)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    sections = {"elementwise": elementwise, "counts": counts, "growth": growth}
    for name in sys.argv[1:] or sections:
        sections[name]()


if __name__ == "__main__":
    main()
