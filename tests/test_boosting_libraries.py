"""XGBoost and CatBoost behind the boosting loop."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone

import setwise as sw
from setwise.learners.base import Fitted, Task
from setwise.learners.boosting import LightGBM
from setwise.learners.boosting.base import Boosting, Chosen
from setwise.learners.boosting.catboost import CatBoost, CatBoostForest
from setwise.learners.boosting.catboost_trees import WIDEST, check_width, write_model
from setwise.learners.boosting.xgboost import XGBoost, XGBoostForest
from setwise.objective import Objective, judge

pandas = pytest.importorskip("pandas")
pytest.importorskip("xgboost")
pytest.importorskip("catboost")

CHOSEN = Chosen(rate=0.3, penalty=1.0, seed=0, threads=1)
LEARNERS = [XGBoost, CatBoost]
FORESTS = {XGBoost: XGBoostForest, CatBoost: CatBoostForest}
both = pytest.mark.parametrize("kind", LEARNERS)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(kind: type[Boosting], rounds: int = 20, **params) -> Boosting:
    threads = {LightGBM: "num_threads", XGBoost: "nthread", CatBoost: "thread_count"}[kind]
    return kind(**{threads: 1, "n_estimators": rounds, **params})


def make_task(X, observations, family=None, free=True, **options) -> Task:
    objective = Objective(family or sw.Normal(), [observations], len(X))
    raw, shared = objective.start(free)
    return Task(X, objective, raw, shared, free=free, **options)


def friedman(n: int, seed: int):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 6))
    f = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3]
    return X, f + 5 * X[:, 4] + rng.normal(size=n)


def means(z, n_sets: int, size: int, seed: int = 0) -> sw.Observations:
    return sw.Mean().observe(z, sw.Sets.random(len(z), n_sets, size, seed=seed))


def held(fitted: Fitted, task: Task) -> float:
    """The likelihood of the training sets, from the finished model."""
    return task.objective.score(torch.from_numpy(fitted.model.raw(task.X)), fitted.shared)


def mixed_frame(n: int, seed: int, categories: list[str] | None = None):
    """Numbers with gaps, a category with gaps and a category of many levels; and a target."""
    rng = np.random.default_rng(seed)
    small, large = rng.integers(0, 4, n), rng.integers(0, 60, n)
    number = rng.normal(size=n)
    z = np.array([3.0, -3.0, 0.0, 1.0])[small] + np.sin(large) + number
    names = np.array(["red", "green", "blue", "grey"], dtype=object)[small]
    names[rng.random(n) < 0.1] = None
    gaps = np.where(rng.random(n) < 0.2, np.nan, number)
    order = categories or ["red", "green", "blue", "grey"]
    levels = pandas.Categorical([f"level {i}" for i in large], [f"level {i}" for i in range(60)])
    return pandas.DataFrame(
        {"number": gaps, "colour": pandas.Categorical(names, order), "level": levels}
    ), z


# ---- it learns


@both
def test_error_is_close_to_that_of_lightgbm(kind):
    X, z = friedman(4000, 0)
    X_test, z_test = friedman(4000, 1)
    error = {}
    for k in (LightGBM, kind):
        fitted = make(k, 60).fit(make_task(X, means(z, 4000, 4)))
        error[k] = np.mean((fitted.model.raw(X_test)[:, 0] - z_test) ** 2)
    assert error[kind] < 1.2 * error[LightGBM]
    assert error[LightGBM] < 3


@both
@pytest.mark.parametrize("coupled", [True, False])
def test_finished_model_is_what_the_loop_computed(kind, coupled):
    X, z = friedman(1000, 0)
    task = make_task(X, means(z, 1000, 3))
    fitted = make(kind, coupled=coupled).fit(task)
    history = [entry["train"] for entry in task.progress.history]
    assert len(history) == 20
    assert history[-1] > history[0] + 0.3
    assert held(fitted, task) == pytest.approx(history[-1], abs=1e-6)


@both
def test_large_sets_do_not_diverge(kind):
    X, z = friedman(1000, 0)
    task = make_task(X, means(z, 1000, 64))
    fitted = make(kind).fit(task)
    assert np.var(fitted.model.raw(X)[:, 0] - z) < 0.5 * np.var(z)


@both
def test_classes_from_counts_of_bags(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    z = np.argmax(X[:, :3] + 0.3 * rng.normal(size=(1000, 3)), 1)
    sets = sw.Sets.random(1000, 300, 8, seed=1)
    task = make_task(X, sw.Counts().observe(z, sets), sw.Categorical(3))
    fitted = make(kind, 10).fit(task)
    raw = fitted.model.raw(X)
    assert raw.shape == (1000, 3)
    assert np.mean(raw.argmax(1) == z) > 0.75
    assert held(fitted, task) == pytest.approx(task.progress.history[-1]["train"], abs=1e-5)


@both
def test_ranks(kind):
    X, z = friedman(1000, 0)
    sets = sw.Sets.random(1000, 8000, 2, replace=False, seed=1)
    task = make_task(X, sw.Rank().observe(z, sets), sw.Normal(scale=1.0), free=False)
    raw = make(kind, 30).fit(task).model.raw(friedman(1000, 1)[0])[:, 0]
    assert np.corrcoef(raw, friedman(1000, 1)[1])[0, 1] > 0.9


@both
def test_two_outputs(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(2000, 2))
    z = 2 * X[:, 0] + np.exp(0.6 * X[:, 1]) * rng.normal(size=2000)
    learner = make(kind, max_depth=3, learning_rate=0.1)
    fitted = learner.fit(make_task(X, means(z, 2000, 2), sw.Normal(scale="predicted")))
    raw = fitted.model.raw(X)
    assert np.corrcoef(raw[:, 0], X[:, 0])[0, 1] > 0.97
    assert np.corrcoef(raw[:, 1], X[:, 1])[0, 1] > 0.9


@both
def test_a_target_in_small_units_is_learned_alike(kind):
    X, z = friedman(500, 0)
    one = make(kind).fit(make_task(X, means(z, 500, 2))).model.raw(X)
    small = make(kind).fit(make_task(X, means(1e-8 * z, 500, 2))).model.raw(X)
    np.testing.assert_allclose(small * 1e8, one, rtol=0.02)


# ---- trees, by hand


@both
@pytest.mark.parametrize("outputs", [1, 3])
def test_leaves_are_rewritten(kind, outputs):
    X, z = mixed_frame(600, 0)
    X_new, _ = mixed_frame(300, 1)
    X_turned, _ = mixed_frame(300, 1, categories=["grey", "blue", "green", "red"])
    rng = np.random.default_rng(2)
    family = sw.Normal() if outputs == 1 else sw.Categorical(3)
    observed = sw.Direct() if outputs == 1 else sw.Counts()
    y = z if outputs == 1 else rng.integers(0, 3, 600)
    task = make_task(X, observed.observe(y, sw.Sets(np.arange(600)[:, None])), family)
    forest = make(kind)._plant(X, task.raw.numpy(), CHOSEN, {"subsample": 0.7})
    sums, sums_new = np.zeros((5, 600, outputs)), np.zeros((5, 300, outputs))
    for i in range(5):
        gradient = torch.from_numpy(np.stack([z + 2 * j * np.cos(z) for j in range(outputs)], 1))
        gradient += 0.1 * torch.from_numpy(rng.normal(size=gradient.shape))
        weight = torch.from_numpy(rng.uniform(1, 2, gradient.shape))
        leaves = forest.grow(gradient, weight)
        step = forest.newest(X)  # by the library's own values, 0.3 of a damped Newton step
        assert torch.equal(step, leaves.expand(torch.from_numpy(np.concatenate(forest.values[-1]))))
        whole = leaves.expand(-leaves.reduce(gradient) / leaves.reduce(weight))
        slope = (step * whole).sum(0) / whole.square().sum(0)
        assert 0.2 < float(slope.min()) <= float(slope.max()) < 0.4
        assert leaves.reduce(torch.ones_like(gradient)).sum() == 600 * outputs
        again = forest.leaves(X)
        assert torch.equal(again.index, leaves.index)
        values = torch.from_numpy(rng.normal(size=leaves.n))
        forest.values[-1] = [v.numpy() for v in values.split(leaves.counts)]
        sums[i] = leaves.expand(values)
        sums_new[i] = forest.newest(X_new)
        np.testing.assert_array_equal(forest.newest(X_turned), sums_new[i])
    forest = forest.finish(4)
    start = task.raw.numpy()
    np.testing.assert_allclose(forest.raw(X), start + sums[:4].sum(0), atol=1e-5)
    np.testing.assert_allclose(forest.raw(X_new), start + sums_new[:4].sum(0), atol=1e-5)
    np.testing.assert_array_equal(forest.raw(X_turned), forest.raw(X_new))


@both
def test_a_round_without_trees_does_not_count(kind):
    X, z = friedman(200, 0)
    task = make_task(X, means(z, 200, 2))
    forest = make(kind)._plant(X, task.raw.numpy(), CHOSEN, {})
    ones = torch.ones(200, 1, dtype=torch.float64)
    assert forest.grow(torch.zeros_like(ones), ones) is None
    leaves = forest.grow(torch.from_numpy(z[:, None]), ones)
    forest.values[-1] = [np.full(count, 7.0) for count in leaves.counts]
    np.testing.assert_allclose(forest.finish(1).raw(X), np.full((200, 1), task.raw + 7))


@both
def test_nothing_to_grow_on(kind, tmp_path):
    X, z = np.ones((50, 2)), np.arange(50.0)
    task = make_task(X, means(z, 50, 2))
    fitted = make(kind).fit(task)
    np.testing.assert_allclose(fitted.model.raw(X), np.full((50, 1), task.raw), atol=1e-6)
    facts = fitted.model.save(tmp_path)
    assert (type(fitted.model).load(tmp_path, facts).raw(X) == fitted.model.raw(X)).all()
    fitted = make(kind, 0).fit(make_task(*friedman_means(50)))
    assert np.ptp(fitted.model.raw(X)) == 0


def friedman_means(n: int):
    X, z = friedman(n, 0)
    return X, means(z, n, 2)


# ---- stopping, seeds, parameters


@both
def test_stops_where_held_out_sets_are_best(kind):
    X, z = friedman(300, 0)
    X_new, z_new = friedman(300, 1)
    held_out = Objective(sw.Normal(), [means(z_new, 300, 2)], 300)
    task = make_task(X, means(z, 300, 2, seed=1), eval=(X_new, held_out))
    fitted = make(kind, 400, early_stopping_rounds=5, learning_rate=0.5).fit(task)
    scores = [entry["valid"] for entry in task.progress.history]
    assert len(scores) == np.argmax(scores) + 6
    raw = torch.from_numpy(fitted.model.raw(X_new))
    score = judge(held_out, raw, fitted.shared, task.intercept).score
    assert min(abs(score - s) for s in scores[np.argmax(scores) :]) < 1e-5


@both
@pytest.mark.parametrize("coupled", [True, False])
def test_follows_a_guide(kind, coupled):
    X, z = friedman(500, 0)
    task = make_task(X, means(z, 500, 2), guide=torch.from_numpy(z[:, None]))
    fitted = make(kind, 5, coupled=coupled).fit(task)
    assert held(fitted, task) == pytest.approx(task.progress.history[-1]["train"], abs=1e-5)
    assert np.corrcoef(fitted.model.raw(X)[:, 0], z)[0, 1] > 0.9


@pytest.mark.parametrize("kind", [LightGBM, *LEARNERS])
def test_seeds(kind):
    X, o = friedman_means(300)
    half = {"subsample": 0.5, **({"subsample_freq": 1} if kind is LightGBM else {})}
    raw = [make(kind, 5, **half).fit(make_task(X, o, seed=seed)).model.raw(X) for seed in (1, 1, 2)]
    assert (raw[0] == raw[1]).all()
    assert (raw[0] != raw[2]).any()
    given = [
        make(kind, 5, **half, random_state=3).fit(make_task(X, o, seed=seed)).model.raw(X)
        for seed in (1, 2)
    ]
    assert (given[0] == given[1]).all()


@both
def test_parameters(kind):
    learner = kind(max_depth=3, eta=0.2)
    assert clone(learner).get_params() == {"coupled": True, "max_depth": 3, "eta": 0.2}
    assert repr(kind(coupled=False, max_depth=3)).endswith("(coupled=False, max_depth=3)")
    X, o = friedman_means(200)
    with pytest.raises(ValueError, match="likelihood"):
        kind(objective="x").fit(make_task(X, o))
    with pytest.raises(ValueError, match="same parameter"):
        kind(eta=0.1, learning_rate=0.1).fit(make_task(X, o))


def test_parameters_reach_the_library():
    X, o = friedman_means(500)
    for learner in (make(XGBoost, 3, max_depth=2), make(CatBoost, 3, max_depth=2, max_bin=4)):
        assert len(np.unique(learner.fit(make_task(X, o)).model.raw(X))) <= 4**3
    with pytest.warns(UserWarning, match="not_a_parameter"):
        make(XGBoost, 1, not_a_parameter=1).fit(make_task(X, o))
    with pytest.raises(Exception, match="not_a_parameter"):
        make(CatBoost, 1, not_a_parameter=1).fit(make_task(X, o))
    X[:, 3] = np.where(X[:, 3] > 0.5, -999, X[:, 3])
    gaps = np.where(X == -999, np.nan, X)
    raw = make(XGBoost, 3, missing=-999).fit(make_task(X, o)).model.raw(X)
    np.testing.assert_array_equal(raw, make(XGBoost, 3).fit(make_task(gaps, o)).model.raw(gaps))


def test_without_the_package(monkeypatch):
    X, o = friedman_means(50)
    for kind in LEARNERS:
        name = kind.__name__.lower()
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"pip install setwise\[{name}\]"):
            kind().fit(make_task(X, o))


def test_packages_are_imported_late():
    code = (
        "import sys, setwise.learners.boosting.xgboost, setwise.learners.boosting.catboost; "
        "sys.exit(bool({'xgboost', 'catboost'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- tables


@both
@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_frames(kind, library):
    X, z = mixed_frame(800, 0)
    task = make_task(X, means(z, 800, 2))
    fitted = make(kind).fit(task)
    assert np.var(fitted.model.raw(X)[:, 0] - z) < 0.35 * np.var(z)
    if library == "polars":
        other = pytest.importorskip("polars").from_pandas(X)
    else:
        other = pytest.importorskip("pyarrow").Table.from_pandas(X)
    np.testing.assert_array_equal(fitted.model.raw(other), fitted.model.raw(X))
    again = make(kind).fit(make_task(other, means(z, 800, 2)))
    assert np.var(again.model.raw(X)[:, 0] - z) < 0.35 * np.var(z)


def test_categories_of_two_values():
    """CatBoost makes columns of 0 and 1 of them, which its quantised tables cannot send down."""
    rng = np.random.default_rng(0)
    word = np.array(["u", "v"])[rng.integers(0, 2, 600)]
    z = 3.0 * (word == "u") + rng.normal(size=600)
    X = pandas.DataFrame({"word": word, "x": rng.normal(size=600)})
    raw = make(CatBoost).fit(make_task(X, means(z, 600, 2))).model.raw(X)[:, 0]
    assert raw[word == "u"].mean() - raw[word == "v"].mean() > 2


def test_categories_of_catboost():
    rng = np.random.default_rng(0)
    code = rng.integers(0, 5, 600)
    z = np.array([0.0, 5.0, 1.0, 4.0, 2.0])[code]
    X = np.stack([code, rng.normal(size=600)], 1)
    fitted = make(CatBoost, cat_features=[0]).fit(make_task(X, means(z, 600, 2)))
    raw = fitted.model.raw(X)
    assert np.mean((raw[:, 0] - z) ** 2) < 0.1
    whole = pandas.DataFrame({"code": code, "noise": X[:, 1]})
    named = make(CatBoost, cat_features=["code"]).fit(make_task(whole, means(z, 600, 2)))
    np.testing.assert_array_equal(named.model.raw(whole), raw)
    np.testing.assert_array_equal(named.model.raw(X), raw)
    words = whole.assign(code=[f"word {c}" for c in code])
    assert make(CatBoost, 1).fit(make_task(words, means(z, 600, 2))).model.categorical == [0]


def test_a_full_disk_is_noticed_though_catboost_does_not(tmp_path):
    X, z = friedman(100, 0)
    (model,) = make(CatBoost, 2).fit(make_task(X, means(z, 100, 2))).model.models

    class Cut:
        def save_model(self, path, format):
            model.save_model(path, format=format)
            with open(path, "r+b") as file:
                file.truncate(tmp_path.joinpath("model").stat().st_size - 8)

    write_model(model, tmp_path / "model", "cbm")
    with pytest.raises(OSError, match="could not be written"):
        write_model(Cut(), tmp_path / "model", "cbm")


def test_features_of_all_outputs_have_room_in_json(tmp_path):
    X, z = friedman(100, 0)
    trees = make(CatBoost, 2).fit(make_task(X, means(z, 100, 2))).model.arrays()
    wide = dataclasses.replace(trees, features=np.zeros(WIDEST // 2 + 1, np.uint8))
    check_width(wide, 1)
    with pytest.raises(ValueError, match="at most 131072 features, of all outputs"):
        check_width(wide, 2)


@both
def test_rows_in_no_set_do_not_matter(kind):
    X, o = friedman_means(200)
    more = np.vstack([X, 100 * np.ones((50, 6))])
    raw = make(kind, 5).fit(make_task(X, o)).model.raw(X)
    np.testing.assert_allclose(make(kind, 5).fit(make_task(more, o)).model.raw(X), raw)


# ---- keeping it


@both
@pytest.mark.parametrize("outputs", [1, 2])
def test_save_and_load(kind, outputs, tmp_path):
    X, z = mixed_frame(400, 0)
    family = sw.Normal() if outputs == 1 else sw.Normal(scale="predicted")
    model = make(kind, 10).fit(make_task(X, means(z, 400, 2), family)).model
    facts = json.loads(json.dumps(model.save(tmp_path)))
    loaded = FORESTS[kind].reopen(tmp_path, facts, trusted=True)
    np.testing.assert_array_equal(loaded.raw(X), model.raw(X))
    np.testing.assert_allclose(loaded.importance(), model.importance())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).raw(X), model.raw(X))


@both
def test_importance(kind):
    X, z = friedman(1000, 0)
    importance = make(kind).fit(make_task(X, means(z, 1000, 2))).model.importance()
    assert importance.shape == (6,)
    assert importance.sum() == pytest.approx(1)
    assert importance.argmax() == 3
    assert importance[5] < 0.1


@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_several_outputs_do_not_depend_on_the_unit(unit):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (600, 1))
    z = X[:, 0] + np.exp(0.5 * X[:, 0]) * rng.normal(size=600)
    sets = sw.Sets.random(600, 800, 3, seed=1)
    raws = []
    for factor in (1.0, unit):
        task = make_task(X, sw.Mean().observe(z * factor, sets), sw.Normal(scale="predicted"))
        raw = sw.LightGBM(n_estimators=20, num_threads=1).fit(task).model.raw(X)
        raws.append(np.column_stack([raw[:, 0] / factor, raw[:, 1] - np.log(factor)]))
    np.testing.assert_allclose(raws[0], raws[1], rtol=0.02, atol=0.02)
