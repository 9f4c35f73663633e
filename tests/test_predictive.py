"""Posterior-predictive checks: silent about true models, in words about each kind of fault."""

import numpy as np
import pytest
import torch

import setwise as sw
from setwise.inference.predictive import check_observations, shuffled_pairs

ROWS = 2000
MU = np.random.default_rng(0).normal(size=ROWS)
NORMAL = torch.distributions.Normal(torch.tensor(MU), torch.ones(ROWS).double())
CLASSES = torch.distributions.Categorical(logits=torch.tensor(np.stack([0 * MU, 2 * MU], 1)))
HEAVY = torch.distributions.Cauchy(torch.tensor(MU), torch.ones(ROWS).double())


def targets(seed):
    return MU + np.random.default_rng([seed, 1]).normal(size=ROWS)


def classes(seed):
    return (np.random.default_rng([seed, 2]).random(ROWS) < 1 / (1 + np.exp(-2 * MU))).astype(int)


def ragged(seed, n=300):
    return sw.Sets.random(ROWS, n, (2, 9), seed=seed)


@pytest.mark.parametrize("aggregate", [sw.Mean(), sw.Sum(), sw.Max()], ids=repr)
def test_a_true_model_of_numbers_is_left_alone(aggregate):
    observed = [aggregate.observe(targets(s), ragged(s)) for s in range(5)]
    checks = [check_observations(NORMAL, [o], seed=s) for s, o in enumerate(observed)]
    assert sum(len(check.findings) for check in checks) <= 1
    assert "as the model expects" in str(checks[0])


@pytest.mark.parametrize(
    "aggregate", [sw.AnyPositive(), sw.Counts(), sw.Similarity(), sw.Direct()], ids=repr
)
def test_a_true_model_of_classes_is_left_alone(aggregate):
    size = {sw.Similarity: 2, sw.Direct: 1}.get(type(aggregate), (2, 9))
    sets = sw.Sets.random(ROWS, 400, size, seed=1)
    check = check_observations(CLASSES, [aggregate.observe(classes(2), sets)])
    assert check.tests
    assert not check.findings


def test_members_that_are_alike_show_as_spread():
    means = sw.Mean().observe(targets(1), ragged(1))
    shifted = means.y + np.random.default_rng(2).normal(scale=0.8, size=len(means))
    check = check_observations(NORMAL, [sw.Observations(sw.Mean(), means.sets, shifted)])
    (found,) = check.findings
    assert found.statistic == "spread"
    assert found.observed > 3
    assert "times as much as independent members would (p < .001)" in str(check)
    assert "Noisy(Mean(), normal=…)" in str(check)


def test_a_level_that_is_off_is_found_in_heavy_tails_too():
    for distribution, noise in ((NORMAL, "normal"), (HEAVY, "standard_cauchy")):
        z = MU + 1.0 + getattr(np.random.default_rng(3), noise)(size=ROWS)
        check = check_observations(distribution, [sw.Mean().observe(z, ragged(4))])
        assert "level" in [found.statistic for found in check.findings]
        assert "above what is expected" in str(check)


@pytest.mark.parametrize("tails", ["heavy", "skewed", "none"])
def test_another_shape_is_told_apart_from_level_and_spread(tails):
    rng, sets = np.random.default_rng(10), sw.Sets.random(ROWS, 600, (1, 3), seed=11)
    noise = {
        "heavy": rng.standard_t(3, ROWS) / 3**0.5,
        "skewed": rng.exponential(size=ROWS) - 1,
        "none": rng.normal(size=ROWS),
    }[tails]
    check = check_observations(NORMAL, [sw.Mean().observe(MU + noise, sets)])
    shape = next(test for test in check.tests if test.statistic == "shape")
    assert (shape.observed > shape.expected + 0.5) == (tails != "none")
    if tails == "skewed":
        (found,) = check.findings
        assert found is shape
        assert "another family" in str(check)


def test_the_shape_of_true_models_is_seldom_rejected():
    found = []
    counts = torch.distributions.Poisson(torch.tensor(np.exp(MU)))
    for seed in range(8):
        rng = np.random.default_rng([seed, 12])
        for d, z in ((NORMAL, targets(seed)), (counts, rng.poisson(np.exp(MU)))):
            seen = sw.Sum().observe(z, ragged(seed, 100))
            tests = check_observations(d, [seen], seed=seed).tests
            found.append(next(test.p for test in tests if test.statistic == "shape"))
    assert sum(p < 0.05 for p in found) <= 3
    assert min(found) > 0.002


def test_flipped_labels_are_counted():
    pairs = sw.Sets.random(ROWS, 3000, 2, seed=5)
    y = sw.Similarity().observe(classes(6), pairs).y
    flipped = np.where(np.random.default_rng(7).random(len(y)) < 0.1, 1 - y, y)
    check = check_observations(CLASSES, [sw.Observations(sw.Similarity(), pairs, flipped)])
    (found,) = check.findings
    assert abs(found.observed - 0.1) < 0.05
    assert "Noisy(Similarity(), flip=" in str(check)


def test_sizes_that_tell_of_members_are_found():
    sets = ragged(8, 600)
    z = targets(9)
    y = sw.Mean().observe(z, sets).y + 0.5 * np.log(sets.sizes)
    check = check_observations(NORMAL, [sw.Observations(sw.Mean(), sets, y)])
    assert "level by size" in [found.statistic for found in check.findings]


def test_what_cannot_be_checked_is_said():
    few, order = sw.Mean().observe(targets(1), ragged(1, 5)), sw.Ranking().observe(MU, ragged(1))
    check = check_observations(NORMAL, [few, order])
    assert not check.tests
    assert "5 sets are too few to check" in str(check)
    assert "no check is known" in str(check)


@pytest.mark.parametrize("aggregate", [sw.Rank(tie_margin=0.3), sw.Difference()], ids=repr)
def test_an_order_that_tells_the_winner_is_no_fault_of_the_model(aggregate):
    """Winners listed first: every y is 1, or no difference negative."""
    pairs = sw.Sets.random(ROWS, 800, 2, seed=4)
    seen = aggregate.observe(targets(4), pairs)
    lost = seen.y < seen.aggregate.mirrored(seen.y)
    order = np.arange(1600).reshape(-1, 2)
    order[lost] = order[lost, ::-1]
    y = np.where(lost, aggregate.mirrored(seen.y), seen.y)
    first = sw.Observations(aggregate, pairs.reorder(order.ravel()), y)
    assert (first.y >= aggregate.mirrored(first.y)).all()
    assert not check_observations(NORMAL, [seen]).findings
    assert not check_observations(NORMAL, [first]).findings
    again = shuffled_pairs(first)
    for o in (seen, again):  # it is the same that was seen
        log_p = sw.log_likelihood(aggregate, NORMAL, o.sets, o.y)
        torch.testing.assert_close(log_p, sw.log_likelihood(aggregate, NORMAL, first.sets, first.y))
    flipped = torch.distributions.Normal(-NORMAL.loc, NORMAL.scale)
    assert check_observations(flipped, [first]).findings
    assert shuffled_pairs(seen) is seen
