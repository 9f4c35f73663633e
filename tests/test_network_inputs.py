"""Features that a network sees as normal scores of their ranks."""

import numpy as np
import pytest
import torch
from scipy import stats

import setwise as sw
from setwise.learners.auto import _tailed
from setwise.learners.network.scores import KNOTS, Scores
from setwise.stored import Files

RNG = np.random.default_rng(0)


def scored(x):
    return np.asarray(Scores.of(torch.tensor(x))(torch.tensor(x)))


def test_scores_are_those_of_middle_ranks():
    x = np.stack([RNG.normal(size=100), RNG.integers(0, 4, 100), np.full(100, 3.0)], 1)
    wanted = stats.norm.ppf((stats.rankdata(x, axis=0) - 0.5) / 100)
    np.testing.assert_allclose(scored(x), wanted, atol=1e-12)


def test_between_knots_scores_are_close_and_beyond_them_flat():
    x = np.exp(3 * RNG.normal(size=(5000, 2)))
    made = Scores.of(torch.tensor(x))
    assert made.knots.shape == (2, KNOTS)
    exact = stats.norm.ppf((stats.rankdata(x, axis=0) - 0.5) / 5000)
    inside = np.abs(exact) < 2
    assert np.abs(scored(x) - exact)[inside].max() < 0.05
    grid = torch.logspace(-9, 9, 1000).double()[:, None].expand(-1, 2)
    assert bool((made(grid).diff(dim=0) >= 0).all())
    assert torch.equal(made(grid)[[0, -1]], made.values[:, [0, -1]].T)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_scores_do_not_depend_on_unit_and_zero(unit):
    x = RNG.normal(size=(300, 1))
    np.testing.assert_allclose(scored(unit * (x + 5)), scored(x), atol=1e-6)


def test_long_tails_are_learned_better_and_kept(tmp_path):
    u = RNG.normal(size=(1200, 3))
    z = 2 * np.sin(u[:, 0]) + u[:, 1] + 0.3 * RNG.normal(size=1200)
    X, means = np.exp(3 * u), sw.Mean().observe(z[:800], np.arange(800).reshape(400, 2))
    error = {}
    for inputs in ("standard", "ranks"):
        network = sw.Network(inputs=inputs, hidden=(32,), epochs=30)
        est = sw.AggregateRegressor(learner=network, validation=None, random_state=0, verbose=0)
        est.fit(X[:800], means)
        error[inputs] = np.mean((est.predict(X[800:]) - z[800:]) ** 2)
    assert error["ranks"] < 0.6 * error["standard"]
    est.save(tmp_path / "model")
    np.testing.assert_array_equal(sw.load(tmp_path / "model").predict(X), est.predict(X))
    assert _tailed(X)
    assert not _tailed(u)
    assert not _tailed((u < -2).astype(float))  # of two values there is only one map
    able = sw.Auto()._able
    assert [repr(one) for one in able(X) if one not in able(u)][-1] == "Network(inputs='ranks')"


def test_what_cannot_be_ranked_is_refused(tmp_path):
    X, z = RNG.normal(size=(60, 2)), RNG.normal(size=60)
    means = sw.Mean().observe(z, np.arange(60).reshape(20, 3))

    def fit(X=X, **choices):
        sw.AggregateRegressor(learner=sw.Network(**choices), validation=None, verbose=0).fit(
            X, means
        )

    with pytest.raises(ValueError, match='inputs is "standard" or "ranks"'):
        fit(inputs="rank")
    with pytest.raises(ValueError, match="yours prepares its own"):
        fit(inputs="ranks", module=torch.nn.Linear(2, 1))
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",", header="a,b", comments="")
    with pytest.raises(ValueError, match="needs rows in memory"):
        fit(Files(tmp_path), inputs="ranks")
