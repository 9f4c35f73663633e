"""Running a table of experiments: cells in any order, each result kept as soon as it is there."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Cell", "Result", "Results", "run"]


@dataclass(frozen=True)
class Cell:
    """One number of a table: a data set, a method in one setting, and the number of the trial."""

    dataset: str
    method: str
    setting: str  # "protocol": the paper's model and budget; "best": our defaults
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
    note: str = ""

    @property
    def cell(self) -> Cell:
        """The cell that this is the result of."""
        return Cell(self.dataset, self.method, self.setting, self.trial)


class Results:
    """A file of results, one line each, that survives being killed at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Result] = []
        names = [f.name for f in fields(Result)]
        if path.exists():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # a line that was cut short is done again
            if whole != text:
                path.write_text(whole, encoding="utf-8")
            for number, line in enumerate(csv.DictReader(io.StringIO(whole)), start=2):
                try:
                    cell = line["dataset"], line["method"], line["setting"], int(line["trial"])
                    figures = float(line["value"]), float(line["seconds"])
                    self.rows.append(Result(*cell, *figures, line["note"]))
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(
                        f"{path}, line {number}: not a result ({error}); the columns are "
                        f"{', '.join(names)}. Name another file, or remove that line"
                    ) from error
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(",".join(names) + "\n", encoding="utf-8")

    @property
    def done(self) -> set[Cell]:
        """The cells that have a result."""
        return {row.cell for row in self.rows}

    def add(self, result: Result) -> None:
        """Keeps a result, on the disk too."""
        self.rows.append(result)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(asdict(result).values())
            file.flush()
            os.fsync(file.fileno())


def describe(path: Path, command: Sequence[str]) -> None:
    """Writes versions, machine and command beside a file of results."""
    facts: dict[str, Any] = {
        "command": " ".join(["setwise", *command]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
    }
    for name in ("setwise", "torch", "lightgbm", "scikit-learn", "numpy", "scipy"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    device = _device_name()
    if device:
        facts["device"] = device
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _device_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


Work = Callable[[Cell], tuple[float, str]]


def timed(work: Work, cell: Cell) -> Result:
    """One cell, with the seconds it took."""
    start = time.perf_counter()
    value, note = work(cell)
    return Result(**asdict(cell), value=value, seconds=time.perf_counter() - start, note=note)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def run(
    work: Work,
    cells: Iterable[Cell],
    results: Results,
    *,
    jobs: int = 1,
    title: str = "",
    console: Console | None = None,
) -> None:
    """Does every cell that has no result yet, in order, `jobs` at a time."""
    todo = [cell for cell in dict.fromkeys(cells) if cell not in results.done]
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[last]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=len(todo), last="")
        for result in _results(work, todo, jobs):
            results.add(result)
            last = f"{result.dataset} {result.method} {result.setting} {result.value:.4g}"
            bar.update(task, advance=1, last=last)


def _results(work: Work, todo: list[Cell], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from (timed(work, cell) for cell in todo)
        return
    with ProcessPoolExecutor(jobs, initializer=_one_thread) as pool:
        waiting = {pool.submit(timed, work, cell) for cell in todo}
        try:
            while waiting:
                ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ready)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
