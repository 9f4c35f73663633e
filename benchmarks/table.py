"""What the benchmarks of `make bench` share: figures with bounds, runs in turn, busy machines."""

from __future__ import annotations

import gc
import math
import multiprocessing
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import joblib
from rich.table import Table

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
MARK = "<!-- What follows is written by `make bench`. -->\n"
PACKAGES = ("torch", "numpy", "scipy", "lightgbm", "choix", "fast-poibin", "thewalrus")


class Figure(NamedTuple):
    """One line of the table: what setwise took, beside what, in which unit, and how much it may."""

    work: str
    against: str
    value: float  # NaN where it was not measured
    bound: float = math.inf
    unit: str = "×"
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether it is within its bound; what was not measured is."""
        return math.isnan(self.value) or self.value <= self.bound

    @property
    def cells(self) -> list[str]:
        """Its line of the table."""
        value = "skipped" if math.isnan(self.value) else f"{self.value:.3g} {self.unit}"
        bound = "" if math.isinf(self.bound) else f"≤ {self.bound:g}"
        return [self.work, self.against, value, bound, "" if self.good else "past", self.note]


HEADS = ("work", "against", "measured", "bound", "", "note")

Rows = Iterator[Figure]


def in_turns(*runs: Callable[[], object], repeat: int = 5, warm: bool = True) -> list[float]:
    """The shortest time of each run, in seconds; in turns, so that a busy machine slows all."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(repeat + warm):
        for run, own in zip(runs, times, strict=True):
            gc.collect()
            begin = time.perf_counter()
            run()
            if turn >= warm:
                own.append(time.perf_counter() - begin)
    return [min(own) for own in times]


def best(run: Callable[[], object], device: str = "cpu", repeat: int = 5) -> float:
    """The shortest time of a run after a first one, in seconds, with the device's work done."""
    import torch

    times = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy() -> Iterator[None]:
    """As many spinning processes as there are cores."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_spin, daemon=True) for _ in range(int(joblib.cpu_count()))]
    for other in others:
        other.start()
    time.sleep(1.5)  # until they spin
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def told_by(code: str) -> list[float]:
    """The numbers that a process of its own prints on its last line."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def skipped(work: str, against: str, package: str) -> Figure:
    """The line of a comparison whose package is not installed."""
    return Figure(work, against, math.nan, note=f"needs `pip install {package}`")


# ---- what becomes of them


def machine() -> str:
    """What the figures were measured on."""
    found = [f"Python {platform.python_version()}, {joblib.cpu_count()} cores"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def shown(figures: Sequence[Figure]) -> Table:
    """The table for a terminal."""
    out = Table(*HEADS, title="Speed, each against the other in the same run")
    for figure in figures:
        out.add_row(*figure.cells, style=None if figure.good else "red")
    return out


def written(figures: Sequence[Figure]) -> str:
    """The table as markdown."""
    lines = [
        f"Measured on {date.today()}: {machine()}.",
        "",
        *("| " + " | ".join(cells) + " |" for cells in (HEADS, ["---"] * len(HEADS))),
        *("| " + " | ".join(figure.cells) + " |" for figure in figures),
    ]
    return "\n".join(lines) + "\n"


def publish(text: str, page: Path = PAGE) -> None:
    """Puts the figures into the page on speed, below its mark."""
    before = page.read_text().partition(MARK)[0]
    page.write_text(before + MARK + "\n" + text)
