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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import joblib
import torch
from threadpoolctl import ThreadpoolController

__all__ = ["at_most", "cores", "worth"]

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
    given, most = torch.get_num_threads(), cores()
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
    """Torch, BLAS and OpenMP use so many threads at most, and afterwards as many as before."""
    if threads is None:
        yield
        return
    before = torch.get_num_threads()
    loaded = sum(name in sys.modules for name in HAVE_THREADS)
    with _pools(loaded).limit(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@cache
def _pools(loaded: int) -> ThreadpoolController:
    """The thread pools of the libraries in this process, cached by how many are loaded."""
    return ThreadpoolController()
