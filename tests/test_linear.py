"""Linear models against closed forms and against scikit-learn."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge
from tasks import make_task

import setwise as sw
from setwise.learners.linear import Linear


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) * [1.0, 100.0, 0.01] + [5.0, -3.0, 0.0]
    z = 1e4 + X @ [3.0, -0.5, 800.0] + 7 * rng.normal(size=400)
    return X, z


def singles(n):
    return sw.Sets(np.arange(n)[:, None])


def test_direct_observations_are_ridge_regression(data):
    X, z = data
    task = make_task(X, sw.Direct().observe(z, singles(400)))
    fitted = Linear(alpha=5.0).fit(task)
    standard = (X - X.mean(0)) / X.std(0)
    ridge = Ridge(alpha=5.0).fit(standard, z)
    np.testing.assert_allclose(fitted.model.raw(X)[:, 0], ridge.predict(standard), rtol=1e-9)


def test_means_are_least_squares_of_the_means(data):
    X, z = data
    sets = sw.Sets.random(400, 300, (2, 5), seed=1)
    means = sw.Mean().observe(z, sets)
    fitted = Linear().fit(make_task(X, means))
    design = np.array([np.append(X[s].mean(0), 1.0) * np.sqrt(len(s)) for s in sets])
    want = np.linalg.lstsq(design, means.y * np.sqrt(sets.sizes), rcond=None)[0]
    np.testing.assert_allclose(fitted.model.coef[:, 0], want[:-1], rtol=1e-8)
    rest = (design @ want - means.y * np.sqrt(sets.sizes)) ** 2
    assert float(fitted.shared.exp()) == pytest.approx(np.sqrt(rest.mean()), rel=1e-4)


def test_classes_are_logistic_regression(data):
    X, z = data
    rng = np.random.default_rng(1)
    y = (z > np.median(z) + 60 * rng.normal(size=400)).astype(int)
    task = make_task(X, sw.Direct().observe(y, singles(400)), sw.Categorical(2))
    fitted = Linear(alpha=1.0).fit(task)
    standard = (X - X.mean(0)) / X.std(0)
    theirs = LogisticRegression(C=1.0, tol=1e-10).fit(standard, y)
    mine = np.diff(fitted.model.raw(X))[:, 0]
    np.testing.assert_allclose(mine, theirs.decision_function(standard), rtol=1e-4, atol=1e-4)


def test_three_classes_are_logistic_regression(data):
    X, z = data
    y = np.digitize(z, np.quantile(z, [0.3, 0.7]))
    fitted = Linear(alpha=20.0).fit(
        make_task(X, sw.Direct().observe(y, singles(400)), sw.Categorical(3))
    )
    standard = (X - X.mean(0)) / X.std(0)
    theirs = LogisticRegression(C=1 / 20, tol=1e-10, max_iter=1000).fit(standard, y)
    mine = torch.tensor(fitted.model.raw(X)).softmax(1)
    np.testing.assert_allclose(mine, theirs.predict_proba(standard), atol=1e-5)


@pytest.mark.parametrize("scale", ["shared", 7.0])
@pytest.mark.parametrize("noise", [None, 50.0])
def test_alpha_is_that_of_ridge_whatever_scale_and_noise(data, scale, noise):
    X, z = data
    aggregate = sw.Direct() if noise is None else sw.Noisy(sw.Direct(), normal=noise)
    task = make_task(X, sw.Observations(aggregate, singles(400), z), sw.Normal(scale=scale))
    standard = (X - X.mean(0)) / X.std(0)
    theirs = Ridge(alpha=30.0).fit(standard, z).predict(standard)
    np.testing.assert_allclose(Linear(alpha=30.0).fit(task).model.raw(X)[:, 0], theirs, rtol=1e-8)


@pytest.mark.parametrize(
    ("aggregate", "family", "size"),
    [
        (sw.Max(), sw.Normal(), 3),
        (sw.Rank(), sw.Normal(scale=7.0), 2),
        (sw.Mean(), sw.Laplace(), 3),
    ],
    ids=str,
)
def test_other_likelihoods_reach_a_stationary_point(data, aggregate, family, size):
    X, z = data
    observed = aggregate.observe(z, sw.Sets.random(400, 500, size, replace=False, seed=2))
    task = make_task(X, observed, family)
    fitted = Linear().fit(task)
    assert fitted.converged
    raw = torch.from_numpy(fitted.model.raw(X))
    point = task.objective.at(raw, fitted.shared)
    design = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(400)])
    assert np.abs(design.T @ point.gradient.numpy()).max() * 7 / 500 < 1e-4
    slope = np.polyfit(fitted.model.raw(X)[:, 0], z, 1)[0]
    assert slope == pytest.approx(1.0, abs=0.15)


def test_sparse_and_dense_agree():
    rng = np.random.default_rng(0)
    X = sparse.random_array((300, 20), density=0.2, rng=rng, format="csr")
    z = X @ rng.normal(size=20) + 0.1 * rng.normal(size=300)
    means = sw.Mean().observe(z, sw.Sets.random(300, 400, 3, seed=1))
    one, other = (Linear().fit(make_task(x, means)).model for x in (X, X.toarray()))
    np.testing.assert_allclose(one.raw(X), other.raw(X.toarray()), atol=1e-6)


def test_impatience_shows(data):
    X, z = data
    ranks = sw.Rank().observe(z, sw.Sets.random(400, 500, 2, replace=False, seed=2))
    assert not Linear(max_iter=1).fit(make_task(X, ranks, sw.Normal(scale=1.0))).converged


def test_what_differences_cannot_tell_stays_where_it_was(data):
    X, z = data
    sets = sw.Sets.random(400, 500, 2, replace=False, seed=2)
    task = make_task(X, sw.Difference().observe(z, sets))
    model = Linear().fit(task).model
    np.testing.assert_allclose(model.raw(X).mean(), 0.0, atol=1e-6)
    assert np.var(model.raw(X)[:, 0] - z) < 60


@pytest.mark.parametrize("alpha", [-1.0, float("nan")])
def test_a_negative_penalty_is_refused(data, alpha):
    X, z = data
    with pytest.raises(ValueError, match="alpha"):
        Linear(alpha=alpha).fit(make_task(X, sw.Direct().observe(z, singles(400))))
