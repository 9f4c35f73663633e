"""Many small measurements, each a line of a file: what is there is not measured again."""

from __future__ import annotations

import csv
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import joblib
import torch
from rich.console import Console

console = Console()


class Plan(NamedTuple):
    """What to measure: its name, the tasks in order, and how one is measured.

    `key` and `found` are the kinds of named tuple that say what was measured, and what came out.
    """

    name: str
    tasks: Sequence[Any]
    measure: Callable[[Any], Any]
    key: type[Any]
    found: type[Any]


def read(path: Path, key: type[Any], found: type[Any]) -> dict[Any, Any]:
    """What has been measured."""
    if not path.exists():
        return {}

    def made(kind: type[Any], line: dict[str, str]) -> Any:
        return kind(*(of(line[name]) for name, of in get_type_hints(kind).items()))

    with path.open(newline="", encoding="utf-8") as file:
        return {made(key, line): made(found, line) for line in csv.DictReader(file)}


def _one(plan: Plan, task: Any) -> tuple[Plan, Any, Any, str]:
    """One measurement on one thread; an error does not end the others."""
    torch.set_num_threads(1)
    try:
        with joblib.parallel_config(backend="threading"):
            return plan, task, plan.measure(task), ""
    except Exception:
        return plan, task, None, traceback.format_exc(limit=-3)


def run(plans: Sequence[Plan], folder: Path, jobs: int = 1, minutes: float = 1e6) -> bool:
    """Measures what is missing, a share of every plan at a time; whether all of it went well.

    After `minutes` nothing more is begun.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until, todo = time.monotonic() + 60 * minutes, []
    files = {}
    for plan in plans:
        path = folder / f"{plan.name}.csv"
        there, new = read(path, plan.key, plan.found), not path.exists()
        files[plan.name] = file = path.open("a", newline="", encoding="utf-8")
        if new:
            csv.writer(file).writerow([*plan.key._fields, *plan.found._fields])
            file.flush()
        n = len(plan.tasks)
        todo += [(i / n, plan, t) for i, t in enumerate(plan.tasks) if t not in there]
    todo.sort(key=lambda one: one[0])

    def in_time() -> Iterator[Any]:
        for _, plan, task in todo:
            if time.monotonic() < until:
                yield joblib.delayed(_one)(plan._replace(tasks=()), task)

    good, begin = True, time.monotonic()
    parallel = joblib.Parallel(jobs, return_as="generator_unordered", pre_dispatch=jobs)
    try:
        for done, (plan, task, found, error) in enumerate(parallel(in_time()), 1):
            at = f"{time.monotonic() - begin:.0f} s, {done} of {len(todo)}: {plan.name}"
            if error:
                good = False
                console.print(at, *task, error, highlight=False, markup=False)
                continue
            shown = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in found]
            csv.writer(files[plan.name]).writerow([*task, *shown])
            files[plan.name].flush()
            console.print(at, *task, *shown, highlight=False, markup=False, soft_wrap=True)
    finally:
        for file in files.values():
            file.close()
    return good
