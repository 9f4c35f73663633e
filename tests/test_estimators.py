"""AggregateRegressor and AggregateClassifier: what a user sees."""

import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tasks import friedman

import setwise as sw
from setwise.metrics import permutation_accuracy

FAST = sw.LightGBM(n_estimators=15, num_threads=1)


def regressor(learner=FAST, **more):
    return sw.AggregateRegressor(
        learner=learner, random_state=0, validation=None, verbose=0, **more
    )


def blobs(n=300, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    angle = 2 * np.pi * y / n_classes
    return np.column_stack([np.cos(angle), np.sin(angle)]) * 4 + rng.normal(size=(n, 2)), y


def test_several_kinds_add_up():
    X, z, means = friedman(n=600)
    ranks = sw.Rank().observe(z, sw.Sets.random(600, 3000, 2, replace=False, seed=3))
    few = sw.Direct().observe(z, np.arange(20)[:, None])
    model = regressor(overlap="independent").fit(X, [ranks, few, means])
    assert model.identifiability_ == "exactly"
    each = [model.score(X, o) * len(o) for o in (ranks, few, means)]
    total = len(ranks) + len(few) + len(means)
    assert model.score(X, [ranks, few, means]) == pytest.approx(sum(each) / total)


@pytest.mark.parametrize(
    "make", [pd.DataFrame, pl.DataFrame, torch.as_tensor, lambda X: X.tolist()]
)
@pytest.mark.parametrize("learner", ["linear", "lightgbm"])
def test_kinds_of_tables(make, learner):
    X, _, means = friedman(n=300)
    table = pd.DataFrame(X, columns=list("abcdefghij"))
    given = pl.from_pandas(table) if make is pl.DataFrame else table
    given = given if make in (pd.DataFrame, pl.DataFrame) else make(X)
    model = regressor(FAST if learner == "lightgbm" else learner).fit(given, means)
    plain = regressor(FAST if learner == "lightgbm" else learner).fit(X, means)
    np.testing.assert_allclose(model.predict(given), plain.predict(X), rtol=1e-6)
    assert model.n_features_in_ == 10
    if make in (pd.DataFrame, pl.DataFrame):
        assert list(model.feature_names_in_) == list("abcdefghij")
        again = model.predict(given[list("bacdefghij")])  # found by their names
        np.testing.assert_array_equal(again, model.predict(given))
        with pytest.raises(ValueError, match="no column 'c'"):
            model.predict(given[list("abdefghij")])


def test_predictions_of_classes_use_the_labels():
    X, y = blobs()
    counts = sw.Counts(n_classes=3).observe(y, sw.Sets.random(300, 200, 4, seed=1))
    model = sw.AggregateClassifier(
        ["red", "green", "blue"], "linear", validation=None, verbose=0
    ).fit(X, counts)
    names = np.array(["red", "green", "blue"])
    assert np.mean(model.predict(X) == names[y]) > 0.9
    assert model.predict_proba(X).shape == (300, 3)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1.0)
    expected = model.predict_aggregate(X, counts.sets, sw.Counts(n_classes=3))
    assert np.abs(expected - counts.y).mean() < 0.3
    after = model.posterior(X, counts)
    assert np.mean(after.probs.argmax(1) == y[counts.sets.indices]) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("learner", [sw.Linear(alpha=0.01), FAST], ids=str)
def test_similarity_and_alignment(learner):
    X, y = blobs()
    pairs = sw.Similarity().observe(y, sw.Sets.random(300, 1500, 2, seed=1))
    model = sw.AggregateClassifier(
        3, learner, n_restarts=2, random_state=0, validation=None, verbose=0
    )
    model.fit(X, pairs)
    assert model.identifiability_ == "up to a permutation of classes"
    assert permutation_accuracy(y, model.predict(X)) > 0.9
    model.align(X[:20], y[:20])
    assert np.mean(model.predict(X) == y) > 0.9


def test_ranks_with_a_few_labels():
    X, z, ranks = friedman(n=500, size=2, n_sets=4000, aggregate=sw.Rank())
    model = regressor(sw.LightGBM(n_estimators=40, num_threads=1)).fit(X, ranks)
    assert model.identifiability_ == "up to an affine map"
    assert float(model.shared_.exp()) == 1.0
    before = np.corrcoef(model.predict(X), z)[0, 1]
    model.align(X[:30], z[:30])
    assert np.mean((model.predict(X) - z) ** 2) < 0.3 * np.var(z)
    assert np.corrcoef(model.predict(X), z)[0, 1] == pytest.approx(before)
    assert model.predict_dist(X).scale[0] != 1.0


def test_posterior_and_expectation_of_means():
    X, z, means = friedman(n=500, n_sets=2000)
    model = regressor(sw.LightGBM(num_threads=1)).fit(X, means)
    after = model.posterior(X, means)
    prior = model.predict(X)[means.sets.indices]
    truth = z[means.sets.indices]
    assert np.mean((after.mean - truth) ** 2) < np.mean((prior - truth) ** 2)
    assert (after.std < float(model.shared_.exp())).all()
    expected = model.predict_aggregate(X, means.sets, sw.Mean())
    np.testing.assert_allclose(expected, prior.reshape(-1, 4).mean(1))


def test_scikit_learn_manners():
    X, _, means = friedman(n=300)
    model = sw.AggregateRegressor(sw.Normal(scale=1.0), sw.LightGBM(n_estimators=5, num_threads=1))
    model.set_params(verbose=0, random_state=1, learner__num_leaves=4)
    copy = clone(model)
    assert copy.learner.get_params()["num_leaves"] == 4
    with pytest.raises(NotFittedError, match="fit"):
        copy.predict(X)
    assert "Normal(scale=1.0)" in repr(copy)
    pipeline = make_pipeline(StandardScaler(), copy).fit(X, means)
    assert pipeline.predict(X).shape == (300,)
    assert np.isfinite(pipeline.score(X, means))


def test_pickle(tmp_path):
    X, _, means = friedman(n=200)
    model = regressor().fit(X, means)
    joblib.dump(model, tmp_path / "model.joblib")
    np.testing.assert_array_equal(
        joblib.load(tmp_path / "model.joblib").predict(X), model.predict(X)
    )


def test_nothing_is_printed_off_a_terminal(capfd):
    X, _, means = friedman(n=200)
    sw.AggregateRegressor(learner=FAST, verbose=1).fit(X, means)
    out, err = capfd.readouterr()
    assert out + err == ""


def test_impatience_is_a_warning():
    X, _, ranks = friedman(n=200, size=2, aggregate=sw.Rank())
    model = sw.AggregateRegressor(
        sw.Normal(scale=0.01), sw.Linear(max_iter=2), validation=None, verbose=0
    )
    with pytest.warns(ConvergenceWarning, match="iterations"):
        model.fit(X, ranks)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda X, o: (X[:10], o), ValueError, "X has only 10 rows"),
        (lambda X, o: (X[:, 0], o), ValueError, "reshape"),
        (lambda X, o: (X, []), ValueError, "no sets"),
        (lambda X, o: (X, "means"), TypeError, "Observations"),
        (lambda X, o: (np.where(X > 0.99, np.nan, X), o), ValueError, "impute"),
        (lambda X, o: (X, sw.Similarity().observe([0, 1, 1], [[0, 1]])), TypeError, "does not fit"),
    ],
)
def test_bad_input(change, error, words):
    X, _, means = friedman(n=300)
    with pytest.raises(error, match=words):
        regressor("linear").fit(*change(X, means))


def test_bad_choices():
    X, _, means = friedman(n=100)
    with pytest.raises(ValueError, match="unknown learner 'forest'; known are"):
        regressor("forest").fit(X, means)
    with pytest.raises(ValueError, match="unknown family"):
        sw.AggregateRegressor("weird").fit(X, means)
    with pytest.raises(TypeError, match="AggregateClassifier"):
        sw.AggregateRegressor(sw.Categorical(2)).fit(X, means)
    with pytest.raises(ValueError, match="distinct"):
        sw.AggregateClassifier(["a", "a"]).fit(X, means)
    with pytest.raises(ValueError, match="expects a class, 0 to 1"):
        sw.AggregateClassifier(2, "linear", validation=None, verbose=0).fit(
            X, sw.Direct().observe([0, 1, 2], [[2]])
        )
    with pytest.raises(ValueError, match="cannot give"):
        sw.AggregateRegressor("poisson", "linear").fit(
            X, sw.Observations(sw.Sum(), [[0, 1]], [1.5])
        )
    with pytest.raises(TypeError, match="eval is a pair"):
        regressor().fit(X, means, eval=means)


def test_it_does_not_warn():
    X, _, means = friedman(n=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor().fit(X, means, eval=(X, means)).predict(X)


def test_a_scale_from_held_out_sets_makes_honest_intervals():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    z = np.sin(2 * X[:, 0]) + X[:, 1] + rng.normal(size=3000)
    means = sw.Mean().observe(z[:1000], sw.Sets.random(1000, 300, 4, seed=1))
    held_out = sw.Mean().observe(z[1000:2000], sw.Sets.random(1000, 200, 4, seed=2))
    learner = sw.LightGBM(n_estimators=40, num_threads=1)
    model = sw.AggregateRegressor("normal", learner, random_state=0, validation=None, verbose=0)
    model.fit(X[:1000], means, eval=(X[1000:2000], held_out))
    d = model.predict_dist(X[2000:])
    inside = np.abs(z[2000:] - d.loc.numpy()) < 1.645 * d.scale.numpy()
    assert 0.86 < inside.mean() < 0.94
