"""Summaries: what a fitted model says of itself, in text, tables and notebooks."""

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import setwise as sw

PLAIN = sw.Linear(alpha=0.0)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    z = 2 + X @ [1.0, 0.0, -2.0] + rng.normal(size=400)
    groups = sw.Sets(rng.permutation(400).reshape(100, 4))
    return X, z, sw.Mean().observe(z, groups)


@pytest.fixture(scope="module")
def linear(data):
    X, _, means = data
    frame = pd.DataFrame(X, columns=["age", "income", "height"])
    return sw.AggregateRegressor(learner=PLAIN, validation=None, verbose=0).fit(frame, means)


@pytest.fixture(scope="module")
def trees(data):
    X, _, means = data
    learner = sw.LightGBM(n_estimators=7)
    return sw.AggregateRegressor(learner=learner, validation=None, verbose=0).fit(X, means)


def test_coefficients_in_text(linear):
    text = str(linear.summary())
    for word in ("age", "income", "height", "intercept", "log_scale", "std. error", "95 % from"):
        assert word in text
    assert "100 sets of 4 rows: Mean()" in text
    assert "400 rows, 3 features" in text
    assert "sandwich over sets" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "90 % from" in str(linear.summary(level=0.9))
    assert "observed information" in str(linear.summary(robust=False))


def test_coefficients_as_a_table(linear):
    table = linear.summary().table
    assert list(table.index) == ["age", "income", "height", "intercept", "log_scale"]
    assert list(table.columns) == [
        "estimate", "std_error", "z", "p", "low", "high", "identified",
    ]  # fmt: skip
    np.testing.assert_allclose(table.estimate.iloc[:3], linear.coef_)
    assert table.estimate["intercept"] == linear.intercept_
    np.testing.assert_allclose(table.z.iloc[:4], (table.estimate / table.std_error).iloc[:4])
    assert table.p["age"] < 1e-6 < table.p["income"]
    assert (table.low < table.estimate).all()
    assert (table.estimate < table.high).all()


def test_in_a_notebook(linear, trees, data):
    html = linear.summary()._repr_html_()
    assert html.count("<tr>") > 10
    assert "height" in html
    for thing in (linear, trees):
        assert "100 sets of 4 rows" in thing._repr_html_()
        bundle = thing._repr_mimebundle_()
        assert bundle["text/plain"] == str(thing)
        assert bundle["text/html"] == thing._repr_html_()
    assert "AggregateRegressor" in sw.AggregateRegressor()._repr_html_()
    means = data[2]
    html = means._repr_html_()
    assert "Mean()" in html
    assert "<td" in html
    assert ">100<" in means.sets._repr_html_()
    named = sw.Sets.from_groups(["<b>", "a", "<b>"])
    assert "&lt;b&gt;" in named._repr_html_()
    assert "distinct" not in sw.Sets(np.zeros((0, 2), int))._repr_html_()
    assert "Ranking" in sw.Observations(sw.Ranking(), [[0, 1, 2]], None)._repr_html_()
    weighted = sw.Observations(sw.Sum(), sparse.csr_array([[1.0, 0.5]]), [1.0], [2.0])
    assert weighted._repr_html_().count("given") == 2


def test_before_and_after_a_fit(linear, trees):
    unfitted = sw.AggregateRegressor(learner="linear")
    assert str(unfitted) == repr(unfitted) == "AggregateRegressor(learner='linear')"
    for est in (linear, trees):
        lines = str(est).splitlines()
        assert 3 <= len(lines) <= 5
        assert max(map(len, lines)) <= 100
        assert "exactly" in str(est)
        assert repr(est).startswith("AggregateRegressor(")
    assert "7 steps" in str(trees)
    with pytest.raises(NotFittedError):
        unfitted.summary()
    for name in ("coef_", "intercept_", "feature_importances_"):
        assert not hasattr(unfitted, name)


def test_other_learners(trees):
    found = trees.summary()
    text = str(found)
    assert "7 were kept" in text
    assert "importance" in text
    np.testing.assert_allclose(found.table.importance.sum(), 1.0)
    np.testing.assert_allclose(trees.feature_importances_.sum(), 1.0)
    assert found.table.index[0] == "x2"


def test_what_was_held_out_and_tried(trees):
    est = copy.copy(trees)
    est.held_out_score_, est.constant_score_, est.validation_ = -1.25, -1.75, "rows"
    est.leaderboard_ = [{"learner": "Linear()", "score": -1.3}, {"learner": "LightGBM()"}]
    assert "+0.5 log-likelihood per set over a constant" in str(est)
    text = " ".join(str(est.summary()).split())
    assert "sets of rows that were not learned from" in text
    assert "Linear(), score −1.3 LightGBM()" in text
    est.leaderboard_ = pd.DataFrame(est.leaderboard_)
    assert "Linear(), score −1.3" in " ".join(str(est.summary()).split())


def test_classes_and_alignment(data):
    X, z, _ = data
    y = np.digitize(z, [1, 3])
    groups = sw.Sets(np.arange(400).reshape(80, 5))
    est = sw.AggregateClassifier(list("abc"), sw.Linear(alpha=1.0), validation=None, verbose=0)
    est.fit(X, sw.Counts().observe(y, groups))
    assert est.coef_.shape == (3, 3)
    assert est.intercept_.shape == (3,)
    raw = X @ est.coef_.T + est.intercept_
    probs = np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
    np.testing.assert_allclose(probs, est.predict_proba(X), atol=1e-9)
    table = est.summary().table
    np.testing.assert_allclose(table.estimate["c: x2"], est.coef_[2, 2] - est.coef_[0, 2])
    assert "log odds against class a" in str(est.summary())
    two = sw.AggregateClassifier(2, PLAIN, validation=None, random_state=0, verbose=0)
    pairs = sw.Sets.random(400, 800, 2, replace=False, seed=0)
    two.fit(X, sw.Similarity().observe((z > 2).astype(int), pairs))
    assert "Which class is which" in str(two.summary())
    two.align(X[:40], (z[:40] > 2).astype(int))
    odds = X @ two.coef_[0] + two.intercept_
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), two.predict_proba(X)[:, 1], atol=1e-9)
    assert two.coef_.shape == (1, 3)
    first = two.summary().table
    np.testing.assert_allclose(first.estimate.iloc[:3], two.coef_[0])


def test_aligned_numbers(data):
    X, z, _ = data
    ranks = sw.Rank().observe(z, sw.Sets.random(400, 900, 2, replace=False, seed=0))
    est = sw.AggregateRegressor(learner=PLAIN, validation=None, verbose=0).fit(X, ranks)
    assert "units of the targets' scale" in " ".join(str(est.summary()).split())
    est.align(X[:80], z[:80])
    np.testing.assert_allclose(X @ est.coef_ + est.intercept_, est.predict(X))
    assert "alignment as given" in " ".join(str(est.summary()).split())
    assert "align has settled" in str(est)
    both = sw.AggregateRegressor(sw.Normal(scale="predicted"), PLAIN, validation=None, verbose=0)
    both.fit(X, sw.Mean().observe(z, sw.Sets(np.arange(400).reshape(200, 2))))
    assert both.coef_.shape == (2, 3)
    assert "log_scale: x1" in str(both.summary())


def test_copies_have_no_data(linear, data):
    X, _, means = data
    frame = pd.DataFrame(X, columns=["age", "income", "height"])
    fresh = clone(linear).fit(frame, means)
    for other in (pickle.loads(pickle.dumps(fresh)), copy.deepcopy(fresh)):
        assert other._fitted_on is None
        assert "summary(X, observations)" in " ".join(str(other.summary()).split())
        with pytest.raises(ValueError, match=r"summary\(X, observations\)"):
            other.predict(frame, return_std=True)
        assert str(other.summary(frame, means)) == str(fresh.summary())
        other.predict(frame, return_std=True)
    with pytest.raises(ValueError, match="go together"):
        fresh.summary(frame)
    with pytest.raises(ValueError, match="level"):
        fresh.summary(level=95)


def test_other_data_are_noticed(linear, data):
    X, z, means = data
    frame = pd.DataFrame(X, columns=["age", "income", "height"])
    est = clone(linear).fit(frame, means)
    other = sw.Mean().observe(-z, means.sets)
    assert "not the data of the fit" in " ".join(str(est.summary(frame, other)).split())


def test_a_second_fit_forgets_the_first(data):
    X, _, means = data
    est = sw.AggregateRegressor(learner=PLAIN, validation=None, verbose=0).fit(X, means)
    est.summary()
    half = means.take(np.arange(50))
    est.fit(X, half)
    assert "50 sets" in str(est)
    assert est.summary().table.std_error.iloc[0] == pytest.approx(
        sw.AggregateRegressor(learner=PLAIN, validation=None, verbose=0)
        .fit(X, half)
        .summary()
        .table.std_error.iloc[0]
    )


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        lambda X: pd.DataFrame(X, columns=list("abc"), index=np.arange(400)[::-1]),
        lambda X: pl.DataFrame(X, schema=list("abc")),
        sparse.csr_array,
    ],
    ids=["array", "pandas", "polars", "sparse"],
)
def test_importance_by_permutation(make, data):
    X, _, means = data
    X = make(X)
    est = sw.AggregateRegressor(learner=PLAIN, validation=None, verbose=0).fit(X, means)
    found = est.permutation_importance(X, means, n_repeats=3, random_state=0)
    assert found.importances.shape == (3, 3)
    order = np.argsort(-found.importances_mean)
    assert order.tolist() == [2, 0, 1]
    assert abs(found.importances_mean[1]) < 0.05 < found.importances_mean[0]
    without_data = pickle.loads(pickle.dumps(est))
    with pytest.raises(AttributeError, match="permutation_importance"):
        without_data.feature_importances_  # noqa: B018
    own = est.feature_importances_  # of a learner that does not tell itself
    assert np.argsort(-own).tolist() == [2, 0, 1]
    assert own.sum() == pytest.approx(1.0)
    assert est.feature_importances_ is own


def test_saved_and_loaded(tmp_path, linear, trees):
    for name, est in (("linear", linear), ("trees", trees)):
        est.save(tmp_path / name)
        again = sw.load(tmp_path / name)
        assert str(again) == str(est)
        assert str(again.summary()) == str(est.summary())


def test_many_coefficients_are_cut_in_print(data):
    X = np.random.default_rng(1).normal(size=(400, 90))
    means = data[2]
    est = sw.AggregateRegressor(learner=sw.Linear(alpha=10.0), validation=None, verbose=0).fit(
        X, means
    )
    found = est.summary()
    assert len(found.table) == 92
    assert "32 more in .table" in str(found)
    assert "intercept" in str(found)
    assert "ridge penalty" in str(found)


def test_what_held_out_sets_said(data):
    X, _, means = data
    est = sw.AggregateRegressor(learner="linear", random_state=0, verbose=0).fit(X, means)
    assert "log-likelihood per set over a constant" in str(est)
    text = " ".join(str(est.summary()).split())
    assert "rows that were not learned from" in text
    assert "Tried" in text


def test_check_knows_the_sets_that_were_learned_from():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 2))
    means = sw.Mean().observe(X[:, 0] + rng.normal(size=800), np.arange(800).reshape(200, 4))
    own, new = means.take(slice(100)), means.take(slice(100, 200))
    est = sw.AggregateRegressor(learner="linear", random_state=0, verbose=0).fit(X, own)
    assert "these sets were learned from" in str(est.check(X, own))
    assert str(est.check(X, new)) == "Mean(): these sets are as the model expects them"
    again = sw.Observations(sw.Mean(), own.sets, own.y + 1e-9)
    assert "learned from," not in str(est.check(X, again))


def test_check_allows_for_the_few_sets_that_told_the_spread():
    """A hundred held-out sets tell a scale to within 7 %: here it came out too large by chance."""
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(2, 2000, 5))
    groups = np.arange(2000).reshape(500, 4)
    seen = sw.Mean().observe(X[:, 0] + rng.normal(size=2000), groups)
    other = sw.Mean().observe(new[:, 0] + rng.normal(size=2000), groups)
    est = sw.AggregateRegressor(learner="linear", random_state=0, verbose=0).fit(X, seen)
    assert est.leaderboard_[0]["sets"] == 100
    assert "on 100 sets of rows" in " ".join(str(est.summary()).split())
    est.shared_ = est.shared_ + np.log(1.15)
    spread = {test.statistic: test for test in est.check(new, other).tests}["spread"]
    assert spread.p > 0.01
    est.leaderboard_ = [{**row, "sets": 500} for row in est.leaderboard_]
    sure = {test.statistic: test for test in est.check(new, other).tests}["spread"]
    assert sure.p < spread.p / 5


def test_an_average_of_different_learners_has_no_steps_of_its_own():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    means = sw.Mean().observe(X[:, 0] + rng.normal(size=400), np.arange(400).reshape(100, 4))
    trees = sw.LightGBM(n_estimators=7, num_threads=1)
    both = sw.Blend([sw.Linear(alpha=1.0), trees])
    est = sw.AggregateRegressor(learner=both, validation=None, random_state=0, verbose=0)
    est.fit(X, means)
    assert est.steps_ == 7
    assert "steps" not in str(est)
    assert "each of the learners has its own" in str(est.summary())
