"""No fit crawls because the machine is busy, and threads are left as they were found."""

import multiprocessing
import time

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

import setwise as sw
from setwise import _threads


def spin():
    while True:
        pass


@pytest.fixture
def busy():
    """Every core is kept busy by a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=spin, daemon=True) for _ in range(_threads.cores())]

    def begin():
        for process in processes:
            process.start()
        time.sleep(1.0)  # until they spin

    yield begin
    for process in processes:
        if process.is_alive():
            process.terminate()
            process.join()


def threads():
    pools = {(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()}
    return torch.get_num_threads(), pools


def task(n=3000):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 10))
    z = X[:, 0] + np.sin(2 * X[:, 1]) + 0.3 * rng.normal(size=n)
    return X, sw.Mean().observe(z, sw.Sets.random(n, n, 4, seed=1))


LEARNERS = [sw.LightGBM(), sw.XGBoost(), sw.Network(epochs=10), sw.Linear()]


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
def test_a_busy_machine_takes_at_most_three_times_as_long(learner, busy):
    X, means = task()

    def seconds():
        begin = time.perf_counter()
        est = sw.AggregateRegressor(
            learner=learner, validation=None, overlap="independent", random_state=0, verbose=0
        )
        est.fit(X, means)
        return time.perf_counter() - begin

    seconds()
    idle = min(seconds() for _ in range(2))
    busy()
    assert min(seconds() for _ in range(2)) <= 3 * idle + 0.3


@pytest.mark.parametrize("learner", LEARNERS[:3], ids=lambda learner: type(learner).__name__)
def test_threads_are_left_as_they_were(learner):
    X, means = task(200)
    sw.AggregateRegressor(learner=learner, random_state=0, verbose=0).fit(X, means)
    before = threads()
    sw.AggregateRegressor(learner=learner, random_state=0, verbose=0).fit(X, means)
    assert threads() == before
    with pytest.raises(ValueError, match="names row"):
        sw.AggregateRegressor(learner=learner, verbose=0).fit(X[:50], means)
    with pytest.raises(RuntimeError), _threads.at_most(1):
        raise RuntimeError
    assert threads() == before


def test_small_work_gets_one_thread_and_the_user_decides(monkeypatch):
    monkeypatch.setattr(_threads, "cores", lambda: 8)
    monkeypatch.setattr(_threads, "_free", lambda: 6)
    for name in _threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert _threads.worth(1e3) == 1
    assert _threads.worth(2.5e6) == 2
    assert _threads.worth(1e9) == 6
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert _threads.worth(1e3) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert _threads.worth(1e9) is None
