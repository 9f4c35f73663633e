"""What a fit leaves behind: nothing in the process, no memory; and what threads change of it."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import setwise as sw
from setwise.learners.progress import Progress
from setwise.objective import Objective
from tests.attack.calls import ALONE, MEANS, C, X, label, learners, number
from tests.attack.outcome import Case

__all__ = ["broken", "changed", "fits", "grown", "memory", "state", "threads"]

PAGE = resource.getpagesize()
GROWTH = 0.05  # of the memory that the process has after the first fits
TOLERANCE = 1e-4  # of the spread of predictions, across numbers of threads
FIRST = 20  # fits in which libraries take what they keep
COUNTS = (1, 2)


def fits(classes: bool) -> dict[str, Callable[[], Any]]:
    """A small fit with each learner."""
    if classes:
        seen = sw.Direct().observe(C, ALONE)
        return {n: lambda l=l: label(l, None).fit(X, seen) for n, l in learners(True).items()}
    return {n: lambda l=l: number(l, None).fit(X, MEANS) for n, l in learners(False).items()}


# ---- global state


def _state() -> dict[str, Any]:
    """What belongs to the process and not to a fit."""
    kept = np.random.get_state()  # noqa: NPY002
    return {
        "threads of torch": torch.get_num_threads(),
        "threads of libraries": {p["filepath"]: p["num_threads"] for p in threadpool_info()},
        "random numbers of numpy": (kept[1].tobytes(), *kept[2:]),
        "random numbers of torch": torch.get_rng_state().numpy().tobytes(),
        "random numbers of Python": random.getstate(),
        "filters of warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "errors of numpy": np.geterr(),
        "dtype of torch": torch.get_default_dtype(),
        "determinism of torch": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "handlers of signals": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
        "folder": os.getcwd(),
        "recursion": sys.getrecursionlimit(),
        "hooks": (sys.excepthook, sys.stdout, sys.stderr),
    }


def changed(work: Callable[[], Any]) -> tuple[list[str], bool]:
    """What is not as it was before the work, and whether that failed on purpose."""
    before, failed = _state(), False
    try:
        work()
    except ZeroDivisionError:
        failed = True
    after = _state()
    pools = before["threads of libraries"]  # those of a library that was loaded since are new
    after["threads of libraries"] = {
        k: v for k, v in after["threads of libraries"].items() if k in pools
    }
    return [name for name in before if before[name] != after[name]], failed


@contextmanager
def broken(step: int) -> Iterator[None]:
    """The fit fails in the middle: at this step, or when its objective is asked that often."""
    left = [step]

    def fails(real: Any) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise ZeroDivisionError("on purpose")
            return real(self, *args, **options)

        return call

    with (
        patch.object(Progress, "step", fails(Progress.step)),
        patch.object(Objective, "at", fails(Objective.at)),
        patch.object(Objective, "per_set", fails(Objective.per_set)),
    ):
        yield


def state(seed: int, times: int) -> Iterator[Case]:
    """The process as it was found, after fits that end well and fits that fail at some step."""
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for classes in (False, True):
            for name, fit in fits(classes).items():
                fit()
                for at in (None, *rng.integers(12, size=times).tolist()):

                    def work(at: Any = at, fit: Any = fit) -> None:
                        if at is None:
                            fit()
                            return
                        with broken(at):
                            fit()

                    found, failed = changed(work)
                    said = f"{name}, classes {classes}, fails at {at}: {found}"
                    kind = "after a fit that fails" if failed else "after a fit"
                    yield Case("global state", kind, not found, said)


# ---- memory and threads, each in a process of its own


def grown(fit: Callable[[], Any], times: int, first: int = FIRST) -> float:
    """By what share the memory of this process grows over so many fits."""
    for _ in range(first):
        fit()
    gc.collect()
    before = _resident()
    for _ in range(times):
        fit()
    gc.collect()
    return (_resident() - before) / before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def memory(seed: int, times: int) -> Iterator[Case]:
    """So many fits of each learner."""
    for name in learners(False):
        said = _alone("memory", name, times)
        share = said.get("share", np.inf)
        yield Case("memory over many fits", "grown by less than 5 %" if share < GROWTH else "grown",
                   share < GROWTH, f"{name}, {times} fits: {said}")  # fmt: skip


def threads(seed: int, times: int) -> Iterator[Case]:
    """The same predictions, whatever the number of threads."""
    for name in learners(False):
        found = [_alone("threads", name, n).get("raw") for n in COUNTS]
        if not all(found):
            yield Case("numbers of threads", "died", False, name)
            continue
        raw = np.array(found)
        apart = float(np.abs(raw - raw[0]).max() / raw[0].std())
        yield Case("numbers of threads", f"within {TOLERANCE:g} of their spread",
                   apart <= TOLERANCE, f"{name}: {apart:.2g}")  # fmt: skip


def _alone(what: str, name: str, number: int) -> Any:
    words = [sys.executable, "-m", "tests.attack.traces", what, name, str(number)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=1200, cwd=root
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"exit": done.returncode, "said": done.stderr[-300:]}


def _with_threads(name: str, n: int) -> list[float]:
    """Predictions of a fit with so many threads, for rows enough that libraries use them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 8))
    z = rows[:, 0] - 2 * np.sin(rows[:, 1]) + 0.1 * rng.normal(size=1000)
    seen = sw.Mean().observe(z, sw.Sets.random(1000, 800, 3, seed=1))
    option = {"lightgbm": "num_threads", "xgboost": "nthread", "catboost": "thread_count"}
    learner = learners(False)[name]
    if name in option:
        learner.set_params(**{option[name]: n})
    torch.set_num_threads(n)
    with threadpool_limits(n):
        found: list[float] = number(learner, None).fit(rows, seen).predict(rows).tolist()
    return found


def _main(what: str, name: str, count: int) -> None:
    warnings.simplefilter("ignore")
    if what == "memory":
        torch.set_num_threads(1)
        print(json.dumps({"share": grown(fits(False)[name], count), "bytes": _resident()}))
    else:
        print(json.dumps({"raw": _with_threads(name, count)}))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
