"""Learners from overlapping linear observations of normal targets."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression
from test_joint import dense

import setwise as sw
from benchmarks.overlapping import coverage


def overlapping(n=600, seed=0):
    """Three tables of means over the same rows, each of which repeats the total."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    region, age = rng.integers(0, 20, n), rng.integers(0, 12, n)
    X[:, 0] += 0.1 * region
    X[:, 1] += 0.2 * age
    z = X @ [1.0, -0.5] + 3 + 0.4 * rng.normal(size=n)
    both = 100 * region + age // 4
    tables = [sw.Mean().observe(z, sw.Sets.from_groups(labels)) for labels in (region, age, both)]
    return X, z, tables


def generalised_least_squares(X, tables):
    A = np.concatenate([dense([o], len(X))[0] for o in tables])
    y = np.concatenate([o.y for o in tables])
    inverse = np.linalg.pinv(A @ A.T, rcond=1e-9, hermitian=True)
    design = A @ np.column_stack([X, np.ones(len(X))])
    hessian = design.T @ inverse @ design
    coef = np.linalg.solve(hessian, design.T @ inverse @ y)
    rest = y - design @ coef
    rank = np.linalg.matrix_rank(A @ A.T)
    return coef, np.sqrt(rest @ inverse @ rest / rank)


def test_linear_is_generalised_least_squares():
    X, _, tables = overlapping()
    coef, scale = generalised_least_squares(X, tables)
    est = sw.AggregateRegressor(learner=sw.Linear(), validation=None, verbose=0).fit(X, tables)
    found = est.predict(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(found, [coef[2], coef[2] + coef[0], coef[2] + coef[1]], atol=1e-6)
    assert float(est.shared_[0].exp()) == pytest.approx(scale, rel=1e-4)
    alone = sw.AggregateRegressor(
        learner=sw.Linear(), overlap="independent", validation=None, verbose=0
    ).fit(X, tables)
    assert np.abs(alone.predict(X) - est.predict(X)).max() > 1e-3
    sparse_fit = sw.AggregateRegressor(learner=sw.Linear(), validation=None, verbose=0).fit(
        sparse.csr_array(X), tables
    )
    np.testing.assert_allclose(sparse_fit.predict(X), est.predict(X), atol=1e-5)


@pytest.mark.parametrize(
    "learner",
    [
        sw.EM(LinearRegression(), folds=0),
        sw.LightGBM(n_estimators=60, num_leaves=7),
        sw.XGBoost(n_estimators=60, max_depth=3),
        sw.CatBoost(iterations=60, depth=3),
        sw.Network(hidden=(16,), epochs=60, lr=3e-3),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_every_learner_comes_near(learner):
    X, z, tables = overlapping()
    labels = sw.Direct().observe(z, np.arange(100)[:, None])
    est = sw.AggregateRegressor(learner=learner, random_state=0, validation=None, verbose=0)
    est.fit(X, [*tables, labels])
    error = np.mean((est.predict(X) - (X @ [1.0, -0.5] + 3)) ** 2)
    assert error < 0.05 * np.var(z)


def test_more_means_than_rows_are_as_good_as_targets():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    z = X @ [1.0, 2.0] + rng.normal(size=300)
    means = sw.Mean().observe(z, sw.Sets.random(300, 600, 4, replace=False, seed=1))
    rows = np.unique(means.sets.indices)
    direct = sw.Direct().observe(z, rows[:, None])
    for learner in (sw.Linear(alpha=0.0), sw.LightGBM(n_estimators=20)):
        made = [
            sw.AggregateRegressor(learner=learner, validation=None, verbose=0).fit(X, o).predict(X)
            for o in (means, direct)
        ]
        np.testing.assert_allclose(*made, atol=2e-2)


@pytest.mark.slow
def test_intervals_from_tables_over_the_same_people():
    """Three tables that all tell the means of the regions: the product counts these three times."""
    found = coverage(30, crossed=True, people=2000)
    for share in found["joint"][:2]:  # of E[z|x], and of single rows
        assert 0.86 < share < 0.94
    assert found["independent"][0] < 0.86
