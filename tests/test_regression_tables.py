"""What overlapping means tell of single targets."""

import numpy as np
import pytest
import torch

import setwise as sw
from reproduction.regression import _rank_slope, _sgd, solve_targets
from setwise.objective import Objective


def test_more_means_than_rows_tell_every_target():
    rng = np.random.default_rng(0)
    X, z = rng.normal(size=(300, 2)), rng.normal(size=300)
    means = sw.Mean().observe(z, sw.Sets.random(300, 600, 4, seed=1))
    solved = solve_targets(X, means)
    rows = solved.sets.indices
    np.testing.assert_allclose(solved.y, z[rows], atol=1e-6)
    assert len(rows) > 295


def test_disjoint_means_move_a_model_by_their_error_alone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    z = X @ [1.0, 2.0] + 0.1 * rng.normal(size=400)
    means = sw.Mean().observe(z, sw.Sets(np.arange(400).reshape(100, 4)))
    solved = solve_targets(X, means)
    model = sw.AggregateRegressor(sw.Normal(), sw.Linear(alpha=1e-3), verbose=0).fit(X, means)
    moved = (solved.y - model.predict(X)).reshape(100, 4)
    np.testing.assert_allclose(moved, np.repeat(moved[:, :1], 4, 1), atol=1e-9)
    np.testing.assert_allclose(solved.y.reshape(100, 4).mean(1), means.y, atol=1e-9)


@pytest.mark.parametrize("family", [sw.Normal(scale=1.0), sw.Gumbel(scale=1.0)])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_slopes_of_ranks_are_those_of_the_likelihood(family, y):
    gaps = np.linspace(-20, 20, 41)
    pairs = sw.Observations(sw.Rank(), np.arange(82).reshape(41, 2), np.full(41, y))
    raw = torch.from_numpy(np.stack([gaps, np.zeros(41)], 1).reshape(-1, 1))
    expected = Objective(family, [pairs], 82).at(raw).gradient.numpy()[::2, 0]
    found = _rank_slope(family, gaps, np.full(41, y))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_descent_learns_a_line_from_means():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    z = X @ [1.0, 2.0] + 0.5
    means = sw.Mean().observe(z, sw.Sets.random(2000, 4000, 4, seed=1))
    weight, bias = _sgd(X, means, sw.Normal(), 0, 1.0)
    np.testing.assert_allclose([*weight, bias], [1.0, 2.0, 0.5], atol=1e-6)
