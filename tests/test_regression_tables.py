"""The paper's tables of regression: what overlapping means tell, and plain gradient descent."""

import numpy as np
import pytest
import torch

import setwise as sw
from reproduction.regression import _rank_slope, _sgd, one, split
from setwise.objective import Objective


def test_overlapping_means_are_as_good_as_targets():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    z = X @ [1.0, 2.0] + rng.normal(size=300)
    parts = split(X, z, 0)
    errors = {m: one(parts, m, "best", 0) for m in ("mean_mle_lr", "supervised_lr")}
    (means, note), (targets, _) = errors.values()
    assert "joint likelihood of means over 18" in note
    assert means == pytest.approx(targets, rel=0.02)


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
