"""Boosting: leaf values, starting values, large sets, and LightGBM itself."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from tasks import friedman, make_task

import setwise as sw
from setwise.learners.boosting import base as boosting
from setwise.learners.boosting import leaves as leaves_module
from setwise.learners.boosting.base import _Run
from setwise.learners.boosting.leaves import Leaves, solve_leaves
from setwise.learners.boosting.lightgbm import LightGBM, _nearest
from setwise.learners.network.learner import DOUBT
from setwise.objective import categorical as classes
from setwise.objective import judge

ONE = {"num_threads": 1}


@pytest.mark.parametrize(
    ("aggregate", "family", "size"),
    [
        (sw.Mean(), sw.Normal(), 3),
        (sw.Mean(), sw.Normal(), 12),
        (sw.Mean(), sw.Normal(), (2, 5)),
        (sw.Noisy(sw.Mean(), normal=0.5), sw.Normal(), 3),
        (sw.Rank(), sw.Normal(scale=1.0), 2),
        (sw.Max(), sw.Normal(), (1, 4)),
        (sw.Max(), sw.Normal(), 12),
        (sw.Mean(), sw.Normal(scale="predicted"), 3),
    ],
    ids=str,
)
def test_leaf_values_are_a_newton_step_in_leaf_space(monkeypatch, aggregate, family, size):
    """Against the Hessian over leaves built column by column from products."""
    monkeypatch.setattr(leaves_module, "TOLERANCE", 1e-10)
    X, _, observed = friedman(n=60, n_sets=80, size=size, aggregate=aggregate)
    task = make_task(X, observed, family)
    raw = task.raw.expand(60, -1) + 0.3 * torch.from_numpy(X[:, : len(task.raw)])
    point = task.objective.at(raw, task.shared)
    rng = np.random.default_rng(0)
    counts = [4] * len(task.raw)
    leaves = Leaves(torch.from_numpy(rng.integers(0, 4, (60, len(counts)))), counts)
    columns = []
    zero = torch.zeros_like(task.shared)
    for unit in torch.eye(leaves.n, dtype=torch.float64):
        columns.append(leaves.reduce(point.product(leaves.expand(unit), zero)[0]))
    hessian = torch.stack(columns, 1)
    if len(counts) == 1 and (direct := point.leaf_hessian(leaves.index[:, 0], 4)) is not None:
        torch.testing.assert_close(direct, hessian)
    curvature = point.curvature().abs()
    values = solve_leaves(point, leaves, curvature, penalty=0.0)
    if torch.linalg.eigvalsh(hessian).min() > 0.1:
        want = -torch.linalg.solve(hessian, leaves.reduce(point.gradient))
        torch.testing.assert_close(values, want, rtol=1e-3, atol=1e-3)
    assert float(values @ leaves.reduce(point.gradient)) < 0


def test_leaf_values_that_are_cut_still_lead_downhill(monkeypatch):
    """Cut one by one, values that balance each other can lead uphill."""
    X, _, observed = friedman(n=60, n_sets=80, size=3)
    task = make_task(X, observed, sw.Normal())
    point = task.objective.at(task.raw.expand(60, -1), task.shared)
    leaves = Leaves(torch.arange(60)[:, None] % 2, [2])
    gradient = leaves.reduce(point.gradient)
    own = leaves.reduce(curvature := point.curvature())
    up = torch.stack([100 * gradient[1], -101 * gradient[0]])  # downhill, but not when it is cut
    up *= -torch.sign(up @ gradient)
    monkeypatch.setattr(leaves_module, "_directly", lambda *a: up)
    assert float(up @ gradient) < 0
    for farthest in (0.1, 1e-3):
        values = solve_leaves(point, leaves, curvature, torch.zeros(1), farthest)
        assert float(values.abs().max()) <= farthest
        assert float(values @ gradient) < 0
        if float(up.clamp(-farthest, farthest) @ gradient) >= 0:
            torch.testing.assert_close(
                values, (-gradient / own).clamp(-farthest, farthest), rtol=1e-4, atol=0
            )


def test_boosting_by_a_part_of_the_sets_is_as_good(monkeypatch):
    """Curvature of every tenth set, the gradient of all: the same classes in the end."""
    X, z = make_blobs(600, 4, centers=3, cluster_std=2.5, random_state=0)
    seen = sw.Triplet().observe(z[:400], sw.Sets.random(400, 3000, 3, seed=0))
    right = []
    for part in (1 << 20, 300):
        monkeypatch.setattr(classes, "PART", (part, part))
        est = sw.AggregateClassifier(
            3, LightGBM(n_estimators=40, **ONE), random_state=0, validation=None, verbose=0
        )
        right.append(
            sw.metrics.permutation_accuracy(z[400:], est.fit(X[:400], seen).predict(X[400:]))
        )
    assert right[1] > right[0] - 0.03
    assert right[0] > 0.8


@pytest.mark.parametrize("size", [1, 4, 64, 512])
def test_no_set_size_diverges(size):
    X, _, means = friedman(size=size)
    task = make_task(X, means)
    fitted = LightGBM(n_estimators=60, **ONE).fit(task)
    test, truth = make_friedman1(1000, random_state=5)
    assert np.mean((fitted.model.raw(test)[:, 0] - truth) ** 2) < 2.5
    train = [entry["train"] for entry in task.progress.history]
    assert np.all(np.diff(train) > -1e-9)


def test_the_model_is_what_was_trained():
    """Predictions after all rewriting are the running sums: the last likelihood is reproduced."""
    X, _, means = friedman()
    task = make_task(X, means)
    fitted = LightGBM(n_estimators=20, **ONE).fit(task)
    score = task.objective.score(torch.from_numpy(fitted.model.raw(X)), fitted.shared)
    assert score == pytest.approx(task.progress.history[-1]["train"], rel=1e-9)


@pytest.mark.parametrize("coupled", [True, False])
def test_early_stopping_keeps_the_best_round(coupled):
    X, _, means = friedman(n=600, n_sets=600)
    X_eval, _, means_eval = friedman(n=600, n_sets=600, seed=1)
    held_out = make_task(X_eval, means_eval)
    task = make_task(X, means, eval=(X_eval, held_out.objective))
    fitted = LightGBM(
        n_estimators=300, learning_rate=0.7, early_stopping_rounds=10, coupled=coupled, **ONE
    ).fit(task)
    valid = [entry["valid"] for entry in task.progress.history]
    assert len(valid) < 300
    assert len(valid) == np.argmax(valid) + 11
    raw = torch.from_numpy(fitted.model.raw(X_eval))
    found = judge(held_out.objective, raw, fitted.shared, task.intercept)
    kept = np.flatnonzero(np.isclose(valid, found.score, rtol=0, atol=2e-6))
    assert len(kept) > 0  # the last round that is not worse than the best by more than chance
    assert kept[-1] >= np.argmax(valid)
    assert found.score > max(valid) - found.sets.std() * np.sqrt(len(found.sets))


def test_rows_in_no_set_do_not_matter():
    X, _, means = friedman(n=500)
    padded = np.vstack([X, np.full((300, X.shape[1]), 1e6)])
    one, other = (
        LightGBM(n_estimators=10, **ONE).fit(make_task(x, means)).model for x in (X, padded)
    )
    np.testing.assert_allclose(one.raw(X).std(), other.raw(X).std(), rtol=0.05)


def test_categories_and_missing_values():
    rng = np.random.default_rng(0)
    towns = rng.choice(["a", "b", "c"], 1000)
    effect = pd.Series(towns).map({"a": 0.0, "b": 5.0, "c": -5.0}).to_numpy()
    number = rng.normal(size=1000)
    z = effect + number
    frame = pd.DataFrame(
        {"town": pd.Categorical(towns), "x": np.where(rng.random(1000) < 0.2, np.nan, number)}
    )
    means = sw.Mean().observe(z, sw.Sets.random(1000, 1000, 3, seed=1))
    model = LightGBM(n_estimators=50, **ONE).fit(make_task(frame, means)).model
    assert np.corrcoef(model.raw(frame)[:, 0], z)[0, 1] > 0.9


def test_parameters_pass_and_are_cloned():
    learner = LightGBM(num_leaves=4, n_estimators=3, **ONE)
    assert clone(learner).get_params() == learner.get_params()
    assert repr(learner) == "LightGBM(num_leaves=4, n_estimators=3, num_threads=1)"
    X, _, means = friedman(n=300)
    booster = learner.fit(make_task(X, means)).model.booster
    trees = booster.dump_model()["tree_info"]
    assert len(trees) == 3
    assert max(tree["num_leaves"] for tree in trees) <= 4


@pytest.mark.parametrize("name", ["objective", "linear_tree", "boosting", "monotone_constraints"])
def test_what_cannot_be_passed_says_why(name):
    X, _, means = friedman(n=100)
    with pytest.raises(ValueError, match=name):
        LightGBM(**{name: "x"}).fit(make_task(X, means))


def test_the_same_seed_gives_the_same_model():
    X, _, means = friedman(n=500)
    learner = LightGBM(n_estimators=10, bagging_fraction=0.7, bagging_freq=1, **ONE)
    a, b, c = (learner.fit(make_task(X, means, seed=s)).model.raw(X) for s in (1, 1, 2))
    assert (a == b).all()
    assert not (a == c).all()


def test_leaves_are_told_by_their_values():
    rng = np.random.default_rng(0)
    values = rng.normal(size=31)
    leaf = rng.integers(0, 31, 5000)
    noise = 1e-13 * rng.normal(size=5000)
    np.testing.assert_array_equal(_nearest(values[leaf] + noise, values, 1e-12), leaf)
    assert _nearest(values[leaf], np.append(values, values[3]), 1e-12) is None
    assert (_nearest(values[:5], np.ones(1), 1e-12) == 0).all()


def test_too_few_rows_for_lightgbm_is_an_error_that_says_so():
    X = np.random.default_rng(0).normal(size=(5, 2))
    few = sw.Direct().observe(X[:, 0], np.arange(5)[:, None])
    with pytest.raises(ValueError, match="split none of the 2 features of 5 rows"):
        sw.AggregateRegressor("normal", sw.LightGBM(), validation=None, verbose=0).fit(X, few)


def test_leaves_that_are_not_coupled_warn_where_they_overshoot():
    X = np.random.default_rng(0).normal(size=(1000, 2))
    means = sw.Mean().observe(X[:, 0], sw.Sets.random(1000, 500, 64, seed=0))
    learner = sw.LightGBM(coupled=False, n_estimators=40, num_threads=1)
    with pytest.warns(ConvergenceWarning, match="coupled"):
        sw.AggregateRegressor(
            "normal", learner, validation=None, overlap="independent", verbose=0
        ).fit(X, means)


@pytest.mark.parametrize(("classes", "aggregate"), [(2, sw.Similarity()), (5, sw.Triplet())])
def test_a_network_that_guides_leaves_some_doubt(classes, aggregate, monkeypatch):
    X, z = make_blobs(300, centers=classes, n_features=4, cluster_std=0.5, random_state=0)
    sets = sw.Sets.random(300, 900, aggregate.size, replace=False, seed=0)
    follow, guides = _Run.follow, []
    monkeypatch.setattr(
        _Run, "follow", lambda run, guide: (guides.append(guide), follow(run, guide))
    )
    est = sw.AggregateClassifier(
        classes, LightGBM(n_estimators=5, **ONE), validation=None, random_state=0, verbose=0
    )
    est.fit(X, aggregate.observe(z, sets))
    (guide,) = guides
    assert float(guide.softmax(1).max()) == pytest.approx(1 - DOUBT + DOUBT / classes, abs=1e-3)
    assert sw.metrics.permutation_accuracy(z, est.predict(X)) > 0.98


def test_logits_move_no_farther_than_a_bound(monkeypatch):
    """Where sets say little, a Newton step of classes would be hundreds of logits long."""
    X, z = make_blobs(300, centers=2, random_state=0)
    bags = sw.AnyPositive().observe(z, sw.Sets.random(300, 200, 8, seed=0))
    task = make_task(X, bags, sw.Categorical(2))
    solve = leaves_module._conjugate_gradients
    monkeypatch.setattr(leaves_module, "_conjugate_gradients", lambda *args: 1000 * solve(*args))
    fitted = LightGBM(n_estimators=1, learning_rate=0.1, **ONE).fit(task)
    moved = torch.from_numpy(fitted.model.raw(X)) - task.raw
    assert 0 < float(moved.abs().max()) <= 0.1 * boosting.FARTHEST + 1e-12
