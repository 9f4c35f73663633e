"""Trees that grow on the workers of a Dask cluster."""

from __future__ import annotations

import dataclasses
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch

from setwise._peers import connect, free_port
from setwise._threads import at_most
from setwise.distributed.division import Share, divide
from setwise.learners import Fitted, Learner, Task, learners
from setwise.learners.inputs import n_rows, take_rows
from setwise.learners.progress import Progress

__all__ = ["on_dask"]

ALIKE = ("setwise", "torch", "numpy", "lightgbm", "xgboost")  # versions that workers must share
LOST = 15.0  # seconds in which a worker that broke a connection shows to be lost


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
    """The workers of a `dask.distributed.Client`: each holds whole sets, and the rows they name.

    They exchange the sums that a tree is grown by, and one small system for its leaves, so the
    model is the one that a single process finds. Every worker takes part in every tree: where one
    is lost the fit ends with an error that names it.
    """

    def __init__(self, client: Any) -> None:
        if not hasattr(client, "scheduler_info"):
            raise TypeError(f"client is a dask.distributed.Client, got {client!r}")
        self.client = client

    def fit(self, learner: Any, task: Task) -> Fitted:
        """What `learner.fit(task)` gives, from the workers' work."""
        return self._gathered(learner, task, self._workers())

    def _workers(self) -> list[str]:
        info = self.client.scheduler_info(n_workers=-1)["workers"]
        if not info:
            raise RuntimeError("the Dask cluster has no workers: start some, then fit again")
        return sorted(info)

    def _gathered(self, learner: Any, task: Task, workers: list[str]) -> Fitted:
        client, n = self.client, len(workers)
        found = client.run(_versions, workers=workers)
        for worker in workers:
            if found[worker] != found[workers[0]]:
                raise RuntimeError(
                    f"workers must run the same versions on the same kind of processor: "
                    f"{workers[0]} has {found[workers[0]]}, {worker} has {found[worker]}"
                )
        hosts = [urlsplit(worker).hostname or "127.0.0.1" for worker in workers]
        port = client.run(free_port, hosts[0], workers=workers[:1])[workers[0]]
        futures = []
        for rank, (worker, share) in enumerate(
            zip(workers, divide(task.objective, n).shares, strict=True)
        ):
            own = dataclasses.replace(
                task,
                X=None,
                objective=None,  # type: ignore[arg-type]
                guide=None if task.guide is None else task.guide[torch.from_numpy(share.rows)],
                progress=Progress(0),
                place=None,
            )
            if task.eval is not None:
                m = n_rows(task.eval[0])
                if m < n:
                    raise ValueError(f"{m} held-out rows are too few for {n} workers")
                part = np.arange(m * rank // n, m * (rank + 1) // n)
                own.eval = take_rows(task.eval[0], part), task.eval[1]
            work = Work(rank, n, hosts[0], port, hosts[rank], learner, own, share)
            X = task.X if hasattr(task.X, "read") else take_rows(task.X, share.rows)
            sent = client.scatter([X, work], workers=[worker], hash=False)
            futures.append(
                client.submit(
                    _work, *sent, workers=[worker], allow_other_workers=False, pure=False, retries=0
                )
            )
        fitted: Fitted
        fitted, history = self._watch(futures, workers)
        task.progress.history.extend(history)
        return fitted

    def _watch(self, futures: list[Any], workers: list[str]) -> Any:
        """The result of the first worker; an error as soon as one of them fails or is lost."""
        failed_at = None
        try:
            while True:
                lost = sorted({*workers} - {*self._workers()})
                if lost:
                    raise RuntimeError(
                        f"the fit ended, for it lost the Dask worker {', '.join(lost)}: each "
                        f"worker holds sets that the others need. Fit again on those "
                        f"that are left"
                    )
                states = [future.status for future in futures]
                if all(state == "finished" for state in states):
                    return futures[0].result()
                if any(state in ("error", "cancelled", "lost") for state in states):
                    failed_at = failed_at or time.monotonic()
                    waited = time.monotonic() - failed_at
                    own = [self._own_error(f) for f in futures if f.status == "error"]
                    real = next((e for e in own if not _of_connection(e)), None)
                    if real is not None:
                        raise real
                    if waited > LOST:
                        number = next(i for i, s in enumerate(states) if s != "finished")
                        why = own[0] if own else states[number]
                        raise RuntimeError(
                            f"the Dask worker {workers[number]} lost its connection to the others: "
                            f"{why}"
                        )
                time.sleep(0.05)
        finally:
            self.client.cancel(futures, force=True)

    @staticmethod
    def _own_error(future: Any) -> BaseException:
        error: BaseException = future.exception()
        return error


def _of_connection(error: BaseException) -> bool:
    """Whether an error says that another process has gone, not what went wrong."""
    text = str(error)
    return any(
        part in text for part in ("onnection", "ocket", "gloo", "rabit", "Rabit", "collective")
    )


def _versions() -> tuple[Any, ...]:
    """What must be alike for processes to take the same decisions."""
    out: list[Any] = [platform.python_version(), torch.backends.cpu.get_cpu_capability()]
    for name in ALIKE:
        try:
            out.append((name, version(name)))
        except PackageNotFoundError:
            out.append((name, None))
    return tuple(out)


def _work(X: Any, work: Work) -> Any:
    """One worker's part of a fit; the first one has the model."""
    from distributed import get_worker

    if hasattr(X, "read"):
        X = X.take(work.share.rows)
    with (
        at_most(get_worker().state.nthreads),
        connect(work.rank, work.size, work.host, work.port, work.own_host) as peers,
        work.learner.together(peers),
    ):
        objective = work.share.joined(peers)
        task = dataclasses.replace(work.task, X=X, objective=objective)
        fitted = work.learner.fit(task)
        return (fitted, task.progress.history) if work.rank == 0 else None
