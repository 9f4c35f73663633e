"""How many threads a piece of work is worth.

A loop that threads share ends when the last of them is done. Where other processes keep the cores
busy, a thread waits some milliseconds for a core in every such loop, and a fit of thousands of
loops takes a hundred times as long with two threads as with one. So threads are for long loops,
and for cores that are free.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import torch
from threadpoolctl import ThreadpoolController

__all__ = ["at_most", "cores", "torch_at_most", "worth"]

GRAIN = 1e6  # numbers in a loop for which one more thread pays
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
HAVE_THREADS = ("lightgbm", "xgboost", "sklearn.utils._openmp_helpers", "scipy.linalg")


def cores() -> int:
    """The number of cores that this process may use."""
    return int(joblib.cpu_count())


def worth(work: float) -> int | None:
    """How many threads loops over so many numbers deserve; None where the user has chosen.

    Users choose by one of the environment variables above, or by `torch.set_num_threads`.
    """
    given, most = _torch.unlimited(), cores()
    usual = given in (most, max(1, most // 2))  # logical or physical cores
    if not usual or any(os.environ.get(name) for name in VARIABLES):
        return None
    wanted = int(min(work / GRAIN, given))
    return max(1, min(wanted, _free())) if wanted > 1 else 1


def _free() -> int:
    """The number of cores that no other process keeps busy now, as far as the system tells."""
    every = os.cpu_count() or 1
    running = []
    for _ in range(7):
        try:
            told = Path("/proc/loadavg").read_text().split()[3]
        except OSError:  # only Linux tells
            return every
        running.append(int(told.partition("/")[0]) - 1)
        time.sleep(0.003)
    return every - round(statistics.median(running))


@contextmanager
def at_most(threads: int | None) -> Iterator[None]:
    """Torch, BLAS and OpenMP use so many threads at most, and afterwards as many as before.

    BLAS counts its threads for the whole process: where several Python threads are in here, the
    smallest of their numbers holds, and the last one to leave restores what the first one found.
    """
    if threads is None:
        yield
        return
    pools = _pools(sum(name in sys.modules for name in HAVE_THREADS))
    blas, openmp = pools.select(user_api="blas"), pools.select(user_api="openmp")
    # OpenMP, like torch, counts for each Python thread.
    with torch_at_most(threads), openmp.limit(limits=threads), _blas.at_most(threads, blas):
        yield


@contextmanager
def torch_at_most(threads: int) -> Iterator[None]:
    """Torch uses so many threads at most, in this Python thread and in those that begin now."""
    before = _torch.enter(threads)
    try:
        yield
    finally:
        _torch.leave(threads, before)


class _Torch:
    """Torch's number of threads, which each Python thread has for itself.

    A new Python thread begins with the number that was set last in any of them. Where that is the
    limit of another one, it is not what the new thread goes back to.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: list[int] = []  # the limits that hold now, in any Python thread
        self.before = 0  # the number that the first one found
        self.here = threading.local()

    def unlimited(self) -> int:
        """The number of threads of torch here, but for limits of other Python threads."""
        own, limited_here = torch.get_num_threads(), getattr(self.here, "depth", 0) > 0
        return self.before if own in self.inside and not limited_here else own

    def enter(self, threads: int) -> int:
        """Sets the limit; returns the number to go back to."""
        with self.lock:
            own = self.unlimited()
            if not self.inside:
                self.before = own
            self.inside.append(threads)
            self.here.depth = getattr(self.here, "depth", 0) + 1
            torch.set_num_threads(threads)
        return own

    def leave(self, threads: int, before: int) -> None:
        """Goes back to the number from before."""
        with self.lock:
            self.inside.remove(threads)
            self.here.depth -= 1
            torch.set_num_threads(before)


class _Blas:
    """The numbers of threads of the BLAS libraries, which the whole process shares."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: list[int] = []
        self.found: list[Any] = []  # what each one found when it entered, as threadpoolctl has it

    @contextmanager
    def at_most(self, threads: int, pools: ThreadpoolController) -> Iterator[None]:
        with self.lock:
            self.inside.append(threads)
            self.found.append(pools.limit(limits=min(self.inside)))
            _let_others(pools)
        try:
            yield
        finally:
            with self.lock:
                self.inside.remove(threads)
                if self.inside:
                    pools.limit(limits=min(self.inside))
                while self.found and not self.inside:  # what the first one found is set at last
                    self.found.pop().restore_original_limits()
                _let_others(pools)


def _let_others(pools: ThreadpoolController) -> None:
    """Lets other Python threads set the numbers, too, which threadpoolctl reserves for one."""
    with pools.limit(limits=None):
        pass


_torch, _blas = _Torch(), _Blas()


@cache
def _pools(loaded: int) -> ThreadpoolController:
    """The thread pools of the libraries in this process, cached by how many are loaded."""
    return ThreadpoolController()
