"""How time grows with rows, sets, members and classes, with fitted exponents: `make bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import setwise as sw
from benchmarks.fits import fit, friedman
from benchmarks.rules import categorical, cost, each_once, normal
from benchmarks.table import in_turns

SHOWN = """
An exponent of 1 is time in proportion, fitted to the larger half of the sizes, in logs.

![Seconds by size, in logs, for each of the rows above](img/speed-growth.svg)
"""
PICTURE = Path(__file__).parents[1] / "docs" / "img" / "speed-growth.svg"


class Curve(NamedTuple):
    """Seconds at several sizes of what grows."""

    work: str
    what: str
    sizes: Sequence[int]
    seconds: Sequence[float]

    @property
    def exponent(self) -> float:
        """The slope in logs over the larger half, where fixed costs no longer count."""
        some = slice(len(self.sizes) // 2 - 1, None)
        return float(np.polyfit(np.log(self.sizes[some]), np.log(self.seconds[some]), 1)[0])


def _curve(work: str, what: str, sizes: Sequence[int], make: Callable[[int], Any]) -> Curve:
    return Curve(work, what, sizes, [in_turns(make(size), repeat=2)[0] for size in sizes])


def curves(small: bool) -> list[Curve]:
    """Fits by what they are given, and rules by sets, members and classes."""

    def rows(n: int) -> Callable[[], Any]:
        X, _, means = friedman(n, n, 4)
        return lambda: fit(X, means, sw.LightGBM(n_estimators=20))

    def sets(n: int) -> Callable[[], Any]:
        X, _, means = friedman(5_000, n, 8)
        return lambda: fit(X, means, sw.LightGBM(n_estimators=20))

    def members(k: int) -> Callable[[], Any]:
        X, _, means = friedman(5_000, 5_000, k)
        return lambda: fit(X, means, sw.LightGBM(n_estimators=20))

    def rule(aggregate: Any, make: Any, n: int, k: int) -> Callable[[], Any]:
        return cost(aggregate, make(n * k), each_once(n, k))

    def up(first: int, *, steps: int = 5, by: int = 4) -> list[int]:
        return [first * by**i for i in range(3 if small else steps)]

    few = 16 if small else 256
    return [
        _curve("LightGBM, 20 rounds", "rows, as many means of 4", up(50 if small else 2_000), rows),
        _curve("LightGBM, 20 rounds", "means of 8 over 5 000 rows", up(2_000), sets),
        _curve("LightGBM, 20 rounds", "members of 5 000 means", up(4, steps=4), members),
        _curve("Mean of Normal", "sets of 4", up(1_000), lambda n: rule(sw.Mean(), normal, n, 4)),
        _curve("Counts of 2 classes", "members",
               up(16, steps=4), lambda k: rule(sw.Counts(), lambda m: categorical(m, 2), few, k)),
        _curve("Sum of 4 classes", "members",
               up(4, steps=4), lambda k: rule(sw.Sum(), lambda m: categorical(m, 4), few, k)),
        _curve("Max of Normal", "members",
               up(4, steps=4), lambda k: rule(sw.Max(), normal, few, k)),
        _curve("Triplet", "classes", up(4, steps=4),
               lambda c: rule(sw.Triplet(), lambda m: categorical(m, c), 4 * few, 3)),
        _curve("Presence", "classes", up(2, steps=4, by=2),
               lambda c: rule(sw.Presence(), lambda m: categorical(m, c), few, 8)),
    ]  # fmt: skip


def written(found: Sequence[Curve]) -> str:
    """The exponents as markdown."""
    lines = [
        "| work | what grows | from, to | seconds | exponent |",
        "|---|---|---|---|---|",
        *(
            f"| {c.work} | {c.what} | {c.sizes[0]:,} to {c.sizes[-1]:,} | "
            f"{c.seconds[0]:.2g} to {c.seconds[-1]:.2g} | {c.exponent:.2f} |"
            for c in found
        ),
    ]
    return "\n".join(lines) + "\n"


def plotted(found: Sequence[Curve], path: Path = PICTURE) -> None:
    """One small panel for each curve, in logs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "setwise"
    across = 3
    down = -(-len(found) // across)
    figure, axes = plt.subplots(down, across, figsize=(9, 2.6 * down), squeeze=False)
    for ax, curve in zip(axes.flat, found, strict=False):
        ax.loglog(curve.sizes, curve.seconds, "o-", color="#00796b", markersize=4)
        ax.set_title(f"{curve.work}: {curve.exponent:.2f}", fontsize=9)
        ax.set_xlabel(curve.what, fontsize=8)
        ax.tick_params(labelsize=7)
        ax.grid(alpha=0.3)
    for ax in list(axes.flat)[len(found) :]:
        ax.remove()
    axes[0, 0].set_ylabel("seconds", fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
