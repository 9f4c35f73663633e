"""No fit crawls because the machine is busy, and threads are left as they were found."""

import multiprocessing
import threading
import time

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

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


@pytest.mark.slow
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


def blas():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def side_by_side(first, second):
    """The second enters while the first is inside, and leaves after it.

    Returns the threads of BLAS once the first has left, and those of torch in each Python thread.
    """
    steps = [threading.Event() for _ in range(3)]
    held, ends = [], []

    def one():
        with first:
            steps[0].set()
            assert steps[1].wait(60)
        ends.append(torch.get_num_threads())
        steps[2].set()

    def other():
        assert steps[0].wait(60)
        with second:
            steps[1].set()
            assert steps[2].wait(60)
            held.append(blas())
        ends.append(torch.get_num_threads())

    both = [threading.Thread(target=work) for work in (one, other)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    begun_later = threading.Thread(target=lambda: ends.append(torch.get_num_threads()))
    begun_later.start()
    begun_later.join()
    return held[0], ends


@pytest.fixture
def two_threads():
    """Two threads for everything, whichever Python thread wants to change that."""
    before = torch.get_num_threads()
    limits = threadpool_limits(2)
    with threadpool_limits(None):  # the number stays, but is no longer reserved for this thread
        pass
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    with limits:
        pass


@pytest.mark.parametrize("second", [1, 2])
def test_limits_of_several_python_threads_end_with_the_last_one(two_threads, second):
    before = threads()
    held, ends = side_by_side(_threads.at_most(1), _threads.at_most(second))
    assert held == {second}
    assert ends == [2, 2, 2]
    assert threads() == before
    held, ends = side_by_side(_threads.torch_at_most(1), _threads.torch_at_most(second))
    assert held == {2}
    assert ends == [2, 2, 2]
    assert threads() == before


def test_the_smaller_limit_holds_and_an_inner_one_ends_first(two_threads):
    before = threads()
    with _threads.at_most(2):
        with _threads.at_most(1):
            with _threads.at_most(2):
                assert blas() == {1}
            assert threads()[0] == 1
        assert threads() == before
    assert threads() == before


def test_a_limit_in_another_python_thread_is_no_wish_of_the_user(two_threads, monkeypatch):
    monkeypatch.setattr(_threads, "cores", lambda: 2)
    monkeypatch.setattr(_threads, "_free", lambda: 2)
    for name in _threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    found = []
    with _threads.at_most(1):
        thread = threading.Thread(target=lambda: found.append(_threads.worth(1e9)))
        thread.start()
        thread.join()
    assert found == [2]
