"""Trees on a Dask cluster of two processes are those of one."""

import os
import signal
import threading
import time

import joblib
import numpy as np
import pandas as pd
import pytest

import setwise as sw
from reproduction.runner import Cell, Results, run
from setwise.distributed.dask import _versions

dask, distributed = (pytest.importorskip(name) for name in ("dask", "distributed"))

LIGHTGBM = {"n_estimators": 15, "min_child_samples": 5, "num_leaves": 7}
XGBOOST = {"n_estimators": 15, "max_depth": 3}
TREES = [sw.LightGBM(**LIGHTGBM), sw.XGBoost(**XGBOOST)]
N = 1200


def cluster_of(n):
    return distributed.LocalCluster(
        n_workers=n, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    )


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as cluster, distributed.Client(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def table():
    """Features of few values, so that the bins of a part are those of all; targets; classes."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 32, (N, 6)) / 32
    z = 4 * np.sin(3 * X[:, 0]) + 3 * X[:, 1] * X[:, 2] + rng.normal(size=N)
    return X, z


def groups(size):
    return sw.Sets(np.arange(N).reshape(-1, size))


def both(client, X, observations, learner, family="normal", eval=None, parts=None, **more):
    """The same fit by this process and by the workers."""
    options = {"learner": learner, "random_state": 0, "verbose": 0, "validation": None, **more}
    if isinstance(family, int):
        make = lambda: sw.AggregateClassifier(family, **options)  # noqa: E731
    else:
        make = lambda: sw.AggregateRegressor(family, **options)  # noqa: E731
    here = make().fit(X, observations, eval)
    return here, make().fit(X if parts is None else parts, observations, eval, client=client)


def assert_same(here, there, X, tolerance=1e-10):
    one, two = here._rows(X)[0], there._rows(X)[0]
    assert float((one - two).abs().max()) < tolerance
    assert float((here.shared_ - there.shared_).abs().sum()) < tolerance
    assert here.steps_ == there.steps_


@pytest.mark.parametrize("learner", TREES, ids=repr)
def test_means(client, table, learner):
    X, z = table
    assert_same(*both(client, X, sw.Mean().observe(z, groups(4)), learner), X)


@pytest.mark.parametrize(
    ("family", "aggregate"),
    [
        (sw.Normal(scale="predicted"), sw.Mean()),
        (sw.Poisson(), sw.Sum()),
        (sw.Gumbel(), sw.Max()),
        (sw.Exponential(), sw.Min()),
    ],
    ids=repr,
)
def test_families(client, table, family, aggregate):
    X, z = table
    targets = np.random.default_rng(0).poisson(np.exp(z / 4)) if aggregate == sw.Sum() else z
    seen = aggregate.observe(np.abs(targets), groups(3))
    assert_same(*both(client, X, seen, TREES[1], family), X)


@pytest.mark.parametrize("learner", TREES, ids=repr)
def test_early_stopping_on_held_out_sets(client, table, learner):
    X, z = table
    seen = sw.Mean().observe(z, groups(3))
    held = seen.take(slice(300, 400))
    learner = type(learner)(**{**learner.params, "n_estimators": 200, "early_stopping_rounds": 5})
    here, there = both(client, X, seen.take(slice(300)), learner, eval=(X, held))
    assert 2 < here.steps_ < 150
    assert_same(here, there, X)
    assert [row["valid"] for row in there.history_] == pytest.approx(
        [row["valid"] for row in here.history_]
    )


def test_classes_from_counts(client, table):
    X, z = table
    seen = sw.Counts().observe(np.digitize(z, [2, 4]), groups(4))
    here, there = both(client, X, seen, TREES[1], 3, n_restarts=1)
    assert_same(here, there, X)
    assert (here.predict(X) == there.predict(X)).all()


@pytest.mark.parametrize("aggregate", [sw.Rank(), sw.Difference()], ids=repr)
def test_pairs_that_straddle_the_workers(client, table, aggregate):
    X, z = table
    pairs = aggregate.observe(z, sw.Sets.random(N, 2 * N, 2, seed=0))
    few = sw.Direct().observe(z, np.arange(30)[:, None])
    here, there = both(client, X, [pairs, few], TREES[1], overlap="independent")
    named = np.unique(pairs.sets.indices)
    assert_same(here, there, X[named], 1e-8)


def test_lightgbm_on_pairs_is_as_good(client, table):
    """It checks `min_child_samples` by an estimate, so that single splits may be others."""
    X, z = table
    pairs = sw.Difference().observe(z, sw.Sets.random(N, 2 * N, 2, seed=0))
    here, there = both(client, X, pairs, TREES[0], overlap="independent")
    assert there.score(X, pairs) == pytest.approx(here.score(X, pairs), abs=0.03)
    assert np.corrcoef(here.predict(X), there.predict(X))[0, 1] > 0.97


def test_lightgbm_cuts_features_by_the_rows_of_all(client, table):
    """Each worker has other values of the first feature, since sets follow one another."""
    z = table[1]
    X = np.random.default_rng(1).normal(size=(N, 3)) + np.arange(N)[:, None] / N * [9, 0, 0]
    assert_same(*both(client, X, sw.Mean().observe(z, groups(4)), TREES[0]), X)


@pytest.mark.parametrize("learner", TREES, ids=repr)
def test_frames_whose_parts_are_on_the_workers(client, table, learner):
    X, z = table
    frame = pd.DataFrame(X[:, :3], columns=list("abc"))
    frame["colour"] = np.array(["red", "green", "blue"])[(X[:, 3] * 3).astype(int)]
    frame.loc[::7, "a"] = np.nan
    parts = [client.scatter(frame.iloc[i : i + 500], hash=False) for i in range(0, N, 500)]
    seen = sw.Mean().observe(z, groups(4))
    here, there = both(client, frame, seen, learner, parts=parts, validation="auto")
    assert there.encoder_.facts() == here.encoder_.facts()
    assert_same(here, there, frame)


def test_delayed_parts(client, table):
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    parts = [dask.delayed(X[i : i + 500]) for i in range(0, N, 500)]
    assert_same(*both(client, X, seen, TREES[1], parts=parts), X)


def test_dask_frames(client, table):
    frames = pytest.importorskip("dask.dataframe")
    X, z = table
    seen, frame = sw.Mean().observe(z, groups(4)), pd.DataFrame(X, columns=list("abcdef"))
    parts = frames.from_pandas(frame, npartitions=3)
    here, there = both(client, frame, seen, TREES[1], parts=parts)
    assert_same(here, there, frame)
    found = parts.map_partitions(there.predict, meta=("prediction", float)).compute()
    np.testing.assert_allclose(found, here.predict(frame), atol=1e-10)
    for told in (lambda: there.predict(parts), lambda: there.fit(parts, seen)):
        with pytest.raises(TypeError, match=r"on a Dask cluster.*client=.*map_partitions"):
            told()


def test_dask_collections(client, table):
    array = pytest.importorskip("dask.array")
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    for chunks in ((500, 6), (500, 3)):
        parts = array.from_array(X, chunks=chunks)
        assert_same(*both(client, X, seen, TREES[1], parts=parts), X)


def test_ensembles(client, table):
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    assert_same(*both(client, X, seen, sw.Ensemble(TREES[1], n=3)), X)


def test_copies_folds_and_trials_by_joblib(client, table):
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    few = sw.Ensemble(sw.LightGBM(**{**LIGHTGBM, "n_estimators": 3}), n=3)
    copies = sw.AggregateRegressor(learner=few, random_state=0, verbose=0, validation=None)
    linear = sw.AggregateRegressor(learner=sw.Linear(), random_state=0, verbose=0, validation=None)
    choose, options = sw.model_selection, {"cv": 2, "random_state": 0}
    options |= {"space": {"learner__alpha": (0.1, 10.0, "log")}, "n_trials": 2}

    def found():
        scores = choose.cross_validate(linear, X, seen, cv=2)["test_score"]
        best = choose.search(linear, X, seen, **options).best_score_
        return [*copies.fit(X, seen).predict(X), *scores, best]

    here, before = found(), done(client)
    with joblib.parallel_config(backend="dask"):
        there = found()
    np.testing.assert_array_equal(here, there)
    assert done(client) >= before + 3 + 2 + 2 * 2


def done(client):
    """How many tasks the workers have done."""
    return sum(client.run(lambda dask_worker: dask_worker.state.executed_count).values())


def test_tables_on_the_workers(client, tmp_path):
    cells, before = [Cell("a", "x", "best", trial) for trial in range(4)], done(client)
    results = Results(tmp_path / "table.csv")
    run(lambda cell: (cell.trial, ""), cells, results, scheduler=client.scheduler.address)
    assert results.done == set(cells)
    assert done(client) >= before + 4


def test_learners_that_cannot(client, table):
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    with pytest.raises(TypeError, match=r"Linear\(\) cannot be fitted by the workers.*xgboost"):
        sw.AggregateRegressor(learner="linear", verbose=0).fit(X, seen, client=client)
    with pytest.raises(TypeError, match=r"client is a dask.distributed.Client, got 'tcp"):
        sw.AggregateRegressor(learner="xgboost", verbose=0).fit(X, seen, client="tcp://x")


def test_an_error_of_a_worker_is_that_of_the_fit(client, table):
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    learner = sw.XGBoost(tree_method="no such method")
    with pytest.raises(Exception, match="no such method"):
        sw.AggregateRegressor(learner=learner, verbose=0, validation=None).fit(
            X, seen, client=client
        )
    assert_same(*both(client, X, seen, TREES[1]), X)  # and the workers go on


@pytest.mark.parametrize("learner", TREES, ids=repr)
def test_a_worker_that_dies(client, table, learner):
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    long = type(learner)(**{**learner.params, "n_estimators": 100_000})
    client.wait_for_workers(2, timeout=30)
    pids = client.run(os.getpid)
    client.run(_versions)  # which imports all that a fit needs
    lost = sorted(pids)[0]
    timer = threading.Timer(1.0, os.kill, (pids[lost], signal.SIGKILL))
    begin = time.monotonic()
    timer.start()
    with pytest.raises(RuntimeError, match=f"lost the Dask worker {lost}"):
        sw.AggregateRegressor(learner=long, validation=None, verbose=0).fit(X, seen, client=client)
    assert time.monotonic() - begin < 30
    client.wait_for_workers(2, timeout=30)
    assert_same(*both(client, X, seen, learner), X)  # the one that was left is free again


def test_parts_of_x_that_were_lost_with_a_worker(client, table):
    X, z = table
    seen = sw.Mean().observe(z, groups(4))
    client.wait_for_workers(2, timeout=30)
    pids = client.run(os.getpid)
    gone = sorted(pids)[0]
    parts = [client.scatter(X, workers=[gone], hash=False)]
    os.kill(pids[gone], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"lost the Dask worker {gone}|on no worker any more"):
        sw.AggregateRegressor(learner=TREES[1], validation=None, verbose=0).fit(
            parts, seen, client=client
        )
    with pytest.raises(RuntimeError, match=r"on no worker any more.*Make them again"):
        sw.AggregateRegressor(learner=TREES[1], validation=None, verbose=0).fit(
            parts, seen, client=client
        )
    client.wait_for_workers(2, timeout=30)
