"""Trees that grow on the workers of a Dask cluster."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch

from setwise._peers import connect, free_port
from setwise._threads import at_most
from setwise.distributed.division import Share, divide
from setwise.distributed.rows import DaskRows, of_dask
from setwise.learners import Fitted, Learner, Task, learners
from setwise.learners.inputs import n_rows, take_rows
from setwise.learners.progress import Progress
from setwise.stored import Stored, joined

__all__ = ["on_dask"]

ALIKE = ("setwise", "torch", "numpy", "lightgbm", "xgboost")  # versions that workers must share
LOST = 15.0  # seconds in which a worker that broke a connection shows to be lost
GONE = ("onnection", "ocket", "gloo", "Gloo", "abit", "ollective", "closed")  # said of connections


class Work(NamedTuple):
    """What a worker needs for its part of a fit, besides the rows."""

    rank: int
    size: int
    host: str  # of the first worker
    port: int
    own_host: str
    learner: Any
    task: Task  # without X
    share: Share


def on_dask(client: Any, learner: Learner) -> OnDask:
    """The workers of this client as the place for a learner that can be fitted there."""
    if not learner.distributes:
        able = [name for name, one in learners().items() if one.distributes is True]
        raise TypeError(
            f"{learner!r} cannot be fitted by the workers of a Dask cluster; {', '.join(able)} "
            f"can, and ensembles of them. Leave client= out, or choose another learner"
        )
    return OnDask(client)


class OnDask:
    """The workers of a `dask.distributed.Client`: each has whole sets, and owns some of the rows.

    They exchange the sums that a tree is grown by, and one small system for its leaves, so the
    model is the one that a single process finds. Every worker takes part in every tree: where one
    is lost the fit ends with an error that names it.
    """

    def __init__(self, client: Any) -> None:
        if not hasattr(client, "nthreads"):
            raise TypeError(f"client is a dask.distributed.Client, got {client!r}")
        self.client = client

    def table(self, X: Any) -> Any:
        """X as learners read it: parts that are on the workers stay there."""
        if not of_dask(X):
            return X
        with self._naming_lost(self._workers()):
            return DaskRows(self.client, X)

    def fit(self, learner: Any, task: Task) -> Fitted:
        """What `learner.fit(task)` gives, from the workers' work."""
        workers = self._workers()
        if not workers:
            raise RuntimeError("the Dask cluster has no workers: start some, then fit again")
        fitted: Fitted
        with self._naming_lost(workers):
            fitted, history = self._fitted(learner, task, workers)
        task.progress.history.extend(history)
        return fitted

    @contextmanager
    def _naming_lost(self, workers: list[str]) -> Iterator[None]:
        """Turns every error that follows from the loss of a worker into one that names it."""
        try:
            yield
        except Exception as error:
            if lost := self._lost(workers, LOST if _of_connection(error) else 0.0):
                raise RuntimeError(
                    f"the fit ended, for it lost the Dask worker {', '.join(lost)}: each worker "
                    f"holds sets that the others need. Fit again on those that are left"
                ) from error
            if isinstance(error, CancelledError):
                raise RuntimeError(
                    "parts of X are on no worker any more: one that had them was lost. Make them "
                    "again, then fit again"
                ) from error
            raise

    def _workers(self) -> list[str]:
        # Not `scheduler_info`: what it gives may at any time be replaced by one without workers.
        return sorted(self.client.nthreads())

    def _lost(self, workers: list[str], patience: float) -> list[str]:
        """The workers that are gone, or turn out to be gone within so many seconds."""
        end = time.monotonic() + patience
        while not (lost := sorted({*workers} - {*self._workers()})) and time.monotonic() < end:
            time.sleep(0.05)
        return lost

    def _fitted(self, learner: Any, task: Task, workers: list[str]) -> Any:
        client, n = self.client, len(workers)
        self._check_versions(workers)
        hosts = [urlsplit(worker).hostname or "127.0.0.1" for worker in workers]
        port = client.run(free_port, hosts[0], workers=workers[:1])[workers[0]]
        shares = divide(task.objective.whole(), n).shares
        sent = []
        for rank, (worker, share) in enumerate(zip(workers, shares, strict=True)):
            own = _own_task(task, share, rank, n)
            work = Work(rank, n, hosts[0], port, hosts[rank], learner, own, share)
            sent.append((_send(client, task.X, share, worker), work))
        futures = [
            client.submit(
                _work, rows, client.scatter(work, workers=[worker], hash=False),
                workers=[worker], allow_other_workers=False, pure=False, retries=0,
            )
            for worker, (rows, work) in zip(workers, sent, strict=True)
        ]  # fmt: skip
        return self._watch(futures, workers)

    def _check_versions(self, workers: list[str]) -> None:
        found = self.client.run(_versions, workers=workers)
        for worker in workers:
            if found[worker] != found[workers[0]]:
                raise RuntimeError(
                    f"workers must run the same versions on the same kind of processor: "
                    f"{workers[0]} has {found[workers[0]]}, {worker} has {found[worker]}"
                )

    def _watch(self, futures: list[Any], workers: list[str]) -> Any:
        """The result of the first worker; an error as soon as one of them fails or is lost."""
        failed_at = None
        try:
            while True:
                if lost := {*workers} - {*self._workers()}:
                    raise ConnectionError(f"connection to {', '.join(sorted(lost))} was lost")
                states = [future.status for future in futures]
                if all(state == "finished" for state in states):
                    return futures[0].result()
                if any(state in ("error", "cancelled", "lost") for state in states):
                    own: list[Any] = [f.exception() for f in futures if f.status == "error"]
                    real = [error for error in own if not _of_connection(error)]
                    if real:
                        raise real[0]
                    failed_at = failed_at or time.monotonic()
                    if time.monotonic() > failed_at + LOST:
                        number = next(i for i, s in enumerate(states) if s != "finished")
                        why = own[0] if own else states[number]
                        raise RuntimeError(
                            f"the Dask worker {workers[number]} ended its part of the fit: {why}"
                        )
                time.sleep(0.05)
        finally:
            self.client.cancel(futures, force=True)


def _own_task(task: Task, share: Share, rank: int, n: int) -> Task:
    """What one worker needs to know of a task, without the rows to learn from."""
    held = task.eval
    if held is not None:
        m = n_rows(held[0])
        if m < n:
            raise ValueError(f"{m} held-out rows are too few for {n} workers: use fewer workers")
        part = np.arange(m * rank // n, m * (rank + 1) // n)
        held = take_rows(held[0], part), held[1]
    return dataclasses.replace(
        task,
        X=None,
        objective=None,  # type: ignore[arg-type]
        guide=None if task.guide is None else task.guide[torch.from_numpy(share.rows)],
        eval=held,
        progress=Progress(0),
        place=None,
    )


def _send(client: Any, X: Any, share: Share, worker: str) -> Any:
    """The rows of a share, as futures; a table that workers can read is sent as it is."""
    if isinstance(X, DaskRows):
        return X.send(share.rows)
    part = X if isinstance(X, Stored) else take_rows(X, share.rows)
    return [client.scatter(part, workers=[worker], hash=False)]


def _of_connection(error: BaseException) -> bool:
    """Whether an error only says that another process has gone."""
    return isinstance(error, OSError) or any(said in str(error) for said in GONE)


def _versions() -> tuple[Any, ...]:
    """What must be equal in all processes for them to take the same decisions."""
    out: list[Any] = [platform.python_version(), torch.backends.cpu.get_cpu_capability()]
    for name in ALIKE:
        try:
            out.append((name, version(name)))
        except PackageNotFoundError:
            out.append((name, None))
    return tuple(out)


class _Watched(Progress):
    """Ends a fit that the client has cancelled."""

    key: Any = ""  # of the task on this worker

    def step(self, **figures: float) -> None:
        from distributed import get_worker

        task = get_worker().state.tasks.get(self.key)
        if task is None or task.state == "cancelled":
            raise ConnectionAbortedError("the client has cancelled the fit: connection closed")
        super().step(**figures)


def _work(tables: list[Any], work: Work) -> Any:
    """One worker's part of a fit; the first one has the model."""
    from distributed import get_worker

    X = tables[0].take(work.share.rows) if isinstance(tables[0], Stored) else joined(tables)
    progress = _Watched()
    worker = get_worker()
    progress.key = worker.get_current_task()
    with (
        at_most(worker.state.nthreads),
        connect(work.rank, work.size, work.host, work.port, work.own_host) as peers,
        work.learner.together(peers),
    ):
        objective = work.share.joined(peers)
        task = dataclasses.replace(work.task, X=X, objective=objective, progress=progress)
        fitted = work.learner.fit(task)
        return (fitted, progress.history) if work.rank == 0 else None
