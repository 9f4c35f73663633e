"""Progress of a fit: likelihood, rate and time left on a terminal, and a record of it all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from setwise.learners.interruption import note_step

__all__ = ["Progress"]

FIRST = 10.0  # seconds after which a fit whose output is no terminal says how far it is
RARER = 1.5  # each further line comes after so many times the time before it


class Progress:
    """Collects what happens at each step of a fit, and shows it on demand.

    `verbose=0` is silent; otherwise a bar is drawn if the output is a terminal, and else a line is
    printed now and then.

    >>> progress = Progress()
    >>> with progress.running("LightGBM", total=2):
    ...     progress.step(train=-1.5)
    ...     progress.step(train=-1.2, valid=-1.3)
    >>> [entry["train"] for entry in progress.history]
    [-1.5, -1.2]
    """

    keeps: ClassVar[bool] = True  # what a step has learned is worth keeping

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose
        self.history: list[dict[str, Any]] = []
        self._bar: Bar | None = None
        self._made, self._started = time.perf_counter(), 0.0
        self._next = FIRST

    @contextmanager
    def running(self, what: str, total: int | None) -> Iterator[None]:
        """While something of `total` steps runs (None: unknown)."""
        self._started, self._next = time.perf_counter(), FIRST
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (self.verbose and console.is_terminal),
        )
        self._task = self._bar.add_task(what, total=total, figures="")
        with self._bar:
            yield

    def step(self, **figures: float) -> None:
        """One more step is done; `train` and `valid` are mean log-likelihoods per set."""
        elapsed = time.perf_counter() - self._started
        self.history.append({"step": len(self.history) + 1, "seconds": elapsed, **figures})
        self.advance(*(f"{name} {value:.4g}" for name, value in figures.items()))
        if self.keeps:
            note_step()

    def advance(self, *shown: str) -> None:
        """Moves the bar, and records nothing."""
        if self._bar is None:
            return
        elapsed = time.perf_counter() - self._started
        done = self._bar.tasks[0].completed
        rate = done / max(elapsed, 1e-9)
        self._bar.update(self._task, advance=1, figures="  ".join([*shown, f"{rate:.1f}/s"]))
        if self.verbose and self._bar.disable and elapsed > self._next:
            self._next = RARER * elapsed
            self._line(shown, elapsed)

    def tell(self, text: str) -> None:
        """Shows what a fit has found, on a terminal or where it took a while."""
        console = Console(stderr=True)
        if self.verbose and (console.is_terminal or time.perf_counter() - self._made > FIRST):
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _line(self, shown: tuple[str, ...], elapsed: float) -> None:
        assert self._bar is not None
        task = self._bar.tasks[0]
        steps = f"{task.completed:.0f}" + (f" of {task.total:.0f}" if task.total else "")
        left = ""
        if task.total:
            left = f", at most {elapsed * (task.total / task.completed - 1):.0f} s more"
        figures = "".join(f", {text}" for text in shown)
        self._bar.console.print(
            f"{task.description}: {steps} steps in {elapsed:.0f} s{left}{figures}", highlight=False
        )
