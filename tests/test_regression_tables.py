"""What overlapping means tell of single targets."""

import numpy as np

import setwise as sw
from setwise.experiments.regression import solve_targets


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
