"""Running a table of experiments: cells in any order, each result kept as soon as it is there."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import setwise as sw
from reproduction.files import Lines, alone, rewrite

__all__ = ["Cell", "Result", "Results", "describe", "run"]


@dataclass(frozen=True)
class Cell:
    """One number of a table: a data set, a method in one setting, and the number of the trial."""

    dataset: str
    method: str
    # "protocol": the paper's model and budget; "best": our best settings, some of them code beside
    # the library, which each table's module describes
    setting: str
    trial: int


@dataclass(frozen=True)
class Result:
    """What came out of a cell."""

    dataset: str
    method: str
    setting: str
    trial: int
    value: float  # in the units of the paper's table
    seconds: float
    held_out: float | None = None  # mean loss of the sets that the model was chosen by
    note: str = ""
    history: tuple[tuple[int, float], ...] = ()  # the value after so many steps; its own file

    @property
    def cell(self) -> Cell:
        """The cell that this is the result of."""
        return Cell(self.dataset, self.method, self.setting, self.trial)


class Results:
    """Files of results, one line each, that survive being killed at any moment."""

    def __init__(self, path: Path) -> None:
        names = [f.name for f in fields(Result) if f.name != "history"]
        self.path, self.lines = path, Lines(path, names)
        cell = [f.name for f in fields(Cell)]
        self.history = Lines(path.with_name(f"{path.stem}-history.csv"), [*cell, "step", "value"])
        self.rows: list[Result] = []
        self.read()

    def read(self) -> None:
        """Takes up what is on the disk."""
        rows = []
        for number, line in self.lines.read():
            try:
                cell = line["dataset"], line["method"], line["setting"], int(line["trial"])
                figures = float(line["value"]), float(line["seconds"])
                held_out = float(line["held_out"]) if line["held_out"] else None
                rows.append(Result(*cell, *figures, held_out, line["note"]))
            except ValueError as error:
                raise ValueError(
                    f"{self.path}, line {number}: not a result ({error}). Name another file, or "
                    f"remove that line"
                ) from error
        self.rows = rows

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While this run alone adds to the files; `Busy` where another one does."""
        with alone(self.path):
            self.read()
            self._drop_histories()
            yield

    @property
    def done(self) -> set[Cell]:
        """The cells that have a result."""
        return {row.cell for row in self.rows}

    def add(self, result: Result) -> None:
        """Keeps a result, on the disk too."""
        self.rows.append(result)
        cell = astuple(result.cell)
        if result.history:
            self.history.append([[*cell, *point] for point in result.history])
        held_out = "" if result.held_out is None else f"{result.held_out:.6g}"
        figures = f"{result.value:.6g}", f"{result.seconds:.2f}", held_out
        self.lines.append([[*cell, *figures, " ".join(result.note.split())]])

    def _drop_histories(self) -> None:
        """Drops histories of cells without a result, of which the run was killed in between."""
        done = {(c.dataset, c.method, c.setting, str(c.trial)) for c in self.done}
        lines = [list(line.values()) for _, line in self.history.read()]
        kept = [line for line in lines if tuple(line[:4]) in done]
        if len(kept) < len(lines):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([self.history.names, *kept])
            rewrite(self.history.path, text.getvalue())


def describe(path: Path, command: Sequence[str]) -> None:
    """Adds versions, machine and command to the list of runs beside a file of results."""
    facts: dict[str, Any] = {
        "command": " ".join(["python -m reproduction", *command]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
    }
    facts["setwise"] = sw.__version__
    for name in ("torch", "lightgbm", "scikit-learn", "numpy", "scipy"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    device = _device_name()
    if device:
        facts["device"] = device
    beside = path.with_suffix(".json")
    try:
        runs = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else []
    except ValueError:  # cut short by an older version
        beside.replace(beside.with_suffix(".json.damaged"))
        runs = []
    if facts not in runs:
        rewrite(beside, json.dumps([*runs, facts], indent=1) + "\n")


def _device_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


Work = Callable[[Cell], tuple[float, str]]
Together = Callable[[Sequence[Cell]], list[Result]]


def timed(work: Work, cells: Sequence[Cell]) -> list[Result]:
    """Cells one after another, with the seconds each took."""
    out = []
    for cell in cells:
        start = time.perf_counter()
        value, note = work(cell)
        seconds = time.perf_counter() - start
        out.append(Result(**asdict(cell), value=value, seconds=seconds, note=note))
    return out


def groups(
    cells: Iterable[Cell], apart: Callable[[Cell], bool] = lambda cell: False
) -> list[list[Cell]]:
    """Cells that differ in the trial only, as lists, in the order they first come in.

    Those that are to stay `apart` are lists of their own.

    >>> a, b = Cell("iris", "kmeans", "best", 0), Cell("iris", "mle", "best", 0)
    >>> [len(group) for group in groups([a, b, replace(a, trial=1)])]
    [2, 1]
    >>> len(groups([a, b, replace(a, trial=1)], apart=lambda cell: cell.method == "kmeans"))
    3
    """
    found: dict[Cell, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell if apart(cell) else replace(cell, trial=0), []).append(cell)
    return list(found.values())


def run(
    work: Callable[..., Any],
    cells: Iterable[Cell],
    results: Results,
    *,
    together: bool = False,
    apart: Callable[[Cell], bool] = lambda cell: False,
    cost: Callable[[Cell], float] = lambda cell: 1.0,
    jobs: int = 1,
    spawn: bool = False,
    scheduler: str = "",
    title: str = "",
    console: Console | None = None,
    began: Callable[[], None] = lambda: None,
) -> None:
    """Does every cell that has no result yet, in order, `jobs` at a time.

    `work` takes a cell and gives its value and a note; if `together`, it takes all cells that
    differ in the trial only at once, those that are to stay `apart` one at a time, and gives their
    results. `cost` says how long a cell takes beside others, for the time left. `spawn` begins
    processes afresh, which a CUDA device needs. With a `scheduler` the workers of that Dask cluster
    do it, as many cells at a time as they have threads. `began` is called where there is something
    to do.
    """
    with results.writing():
        todo = [cell for cell in dict.fromkeys(cells) if cell not in results.done]
        if todo:
            began()
        parts = groups(todo, apart) if together else [[cell] for cell in todo]
        do: Together = work if together else partial(timed, work)
        console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}/{task.fields[of]}"),
            TextColumn("{task.fields[last]}"),
            TimeRemainingColumn(),
        )
        shown = Progress(
            *columns, console=console, disable=not console.is_terminal, speed_estimate_period=3600
        )
        with shown as bar:
            whole = sum(map(cost, todo))
            task = bar.add_task(title, total=whole, last="", done=0, of=len(todo))
            done = 0
            for part in _results(do, parts, jobs, spawn, scheduler):
                for result in part:
                    results.add(result)
                done += len(part)
                last = part[-1]
                what = f"{last.dataset} {last.method} {last.setting} {last.value:.4g}"
                bar.update(task, advance=sum(cost(r.cell) for r in part), last=what, done=done)


def _results(
    do: Together, parts: list[list[Cell]], jobs: int, spawn: bool, scheduler: str
) -> Iterator[list[Result]]:
    if jobs == 1 and not scheduler:
        yield from map(do, parts)
        return
    with _pool(jobs, spawn, scheduler) as pool:
        waiting = {pool.submit(do, part) for part in parts}
        try:
            while waiting:
                ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ready)
        except BaseException:
            for future in waiting:
                future.cancel()
            pool.shutdown(wait=False)
            raise


@contextmanager
def _pool(jobs: int, spawn: bool, scheduler: str) -> Iterator[Executor]:
    if scheduler:
        from distributed import Client

        client: Any = Client(scheduler)  # type: ignore[no-untyped-call]
        with client, client.get_executor(pure=False) as pool:
            yield pool
    else:
        context = multiprocessing.get_context("spawn" if spawn else None)
        with ProcessPoolExecutor(jobs, context, initializer=_begin) as pool:
            yield pool


def _begin() -> None:
    """Makes a process use one core, and end with the one that began it even if that is killed."""
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
