"""Identities between aggregates and known distributions, and independent packages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cases import example
from torch import distributions as td

import setwise as sw

N, K = 6, 5


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def sets_of(size, seed=0):
    return sw.Sets.random(N, 8, size, seed=seed)


def test_maximum_of_gumbels_is_gumbel():
    d, _ = example("gumbel", N, same=True)
    sets = sets_of(K)
    y = np.linspace(-2, 6, 8)
    loc = sets.logsumexp(d.loc / d.scale[0]) * d.scale[0]
    close(
        sw.log_likelihood(sw.Max(), d, sets, y),
        td.Gumbel(loc, d.scale[0]).log_prob(torch.tensor(y)),
    )


def test_minimum_of_exponentials_is_exponential():
    d, _ = example("exponential", N)
    sets, y = sets_of(K), np.linspace(0.01, 2, 8)
    want = td.Exponential(sets.sum(d.rate)).log_prob(torch.tensor(y))
    close(sw.log_likelihood(sw.Min(), d, sets, y), want)


def test_maximum_of_poissons_by_powers_of_the_cdf():
    from scipy import stats

    rate = torch.full((K,), 2.3, dtype=torch.float64)
    y = np.arange(8.0)
    got = sw.log_likelihood(sw.Max(), td.Poisson(rate), sw.Sets([list(range(K))] * 8), y).exp()
    cdf = stats.poisson(2.3).cdf
    np.testing.assert_allclose(got, cdf(y) ** K - cdf(y - 1) ** K, rtol=1e-10)


def test_difference_of_poissons_is_skellam():
    from scipy import stats

    d, _ = example("poisson", N)
    sets, y = sets_of(2), np.arange(-4.0, 4.0)
    a, b = (v.numpy() for v in sets.columns(d.rate))
    got = sw.log_likelihood(sw.Difference(), d, sets, y).exp()
    np.testing.assert_allclose(got, stats.skellam(a, b).pmf(y), rtol=1e-9)


def test_plackett_luce_of_two_is_bradley_terry():
    d, _ = example("gumbel", N, same=True)
    sets = sets_of(2)
    close(
        sw.log_likelihood(sw.Ranking(), d, sets, None),
        sw.log_likelihood(sw.Rank(), d, sets, np.ones(8)),
    )
    a, b = sets.columns(d.loc / d.scale[0])
    close(sw.log_likelihood(sw.Rank(), d, sets, np.ones(8)), torch.nn.functional.logsigmoid(a - b))


def test_choice_of_two_is_rank():
    for family in ("normal", "gumbel", "exponential", "cauchy", "studentt"):
        d, _ = example(family, N)
        sets = sets_of(2)
        close(
            sw.log_likelihood(sw.Choice(), d, sets, np.zeros(8)),
            sw.log_likelihood(sw.Rank(), d, sets, np.ones(8)),
        )


def test_counts_tell_any_positive():
    d, _ = example("categorical", N, n_classes=2)
    sets = sets_of(K)
    none = sw.log_likelihood(sw.Counts(), d, sets, np.zeros(8))
    close(sw.log_likelihood(sw.AnyPositive(), d, sets, np.zeros(8)), none)
    some = torch.stack(
        [sw.log_likelihood(sw.Counts(), d, sets, np.full(8, k)) for k in range(1, K + 1)]
    )
    close(sw.log_likelihood(sw.AnyPositive(), d, sets, np.ones(8)), some.logsumexp(0))


@pytest.mark.parametrize("size", [1, 4])
def test_folds_express_other_aggregates(size):
    d, _ = example("categorical", N, n_classes=2)
    sets, zeros, ones = sets_of(size), np.zeros(8), np.ones(8)
    seen = sw.Fold([[0, 1], [1, 1]], [0, 1])
    for y in (zeros, ones):
        close(sw.log_likelihood(seen, d, sets, y), sw.log_likelihood(sw.AnyPositive(), d, sets, y))
    states = np.arange(size + 2)
    count = sw.Fold(np.stack([states, np.minimum(states + 1, size + 1)], 1), states.astype(float))
    for k in range(size + 1):
        y = np.full(8, k)
        close(sw.log_likelihood(count, d, sets, y), sw.log_likelihood(sw.Counts(), d, sets, y))
        close(sw.log_likelihood(count, d, sets, y), sw.log_likelihood(sw.Sum(), d, sets, y))
    parity = sw.Fold([[0, 1], [1, 0]], [0, 1])
    p = d.probs[:, 1]
    odd = sets.dense(1 - 2 * p).prod(1)
    close(sw.log_likelihood(parity, d, sets, ones).exp(), (1 - odd) / 2)
    d, _ = example("categorical", N, n_classes=4)
    largest = sw.Fold(np.maximum(np.arange(4)[:, None], np.arange(4)), range(4))
    for k in range(4):
        y = np.full(8, k)
        close(sw.log_likelihood(largest, d, sets, y), sw.log_likelihood(sw.Max(), d, sets, y))


def test_one_of_each_class_is_uncoupled():
    d, _ = example("categorical", N, n_classes=4)
    sets = sets_of(4)
    counts = sw.log_likelihood(sw.Counts(), d, sets, np.ones((8, 4)))
    order = sw.log_likelihood(sw.Uncoupled(), d, sets, np.tile(np.arange(4.0), (8, 1)))
    close(counts, order + np.log(24))
    present = sw.log_likelihood(sw.Presence(), d, sets, np.ones((8, 4)))
    close(counts, present)


def test_three_way_triplets_refine_binary_ones():
    d, _ = example("categorical", N)
    sets = sets_of(3)
    three = sw.Triplet(three_way=True)
    far = [sw.log_likelihood(three, d, sets, np.full(8, v)) for v in (0, -1)]
    close(sw.log_likelihood(sw.Triplet(), d, sets, np.zeros(8)), torch.logaddexp(*far))
    plain = 1 - np.eye(4)
    for v in (-1, 0, 1):
        y = np.full(8, v)
        a = sw.log_likelihood(sw.Triplet(plain, three_way=True), d, sets, y)
        close(a, sw.log_likelihood(three, d, sets, y))


def test_mean_and_sum_are_one_scaled():
    for family in ("normal", "cauchy", "gamma", "laplace", "logistic", "gumbel", "exponential"):
        d, _ = example(family, N)
        sets = sets_of(3)
        y = np.linspace(0.5, 3, 8)
        a = sw.log_likelihood(sw.Mean(), d, sets, y)
        b = sw.log_likelihood(sw.Sum(), d, sets, 3 * y)
        close(a, b + np.log(3))


def test_median_of_two_is_their_mean():
    for family in ("normal", "laplace", "gamma"):
        d, _ = example(family, N)
        sets, y = sets_of(2), np.linspace(0.2, 2, 8)
        a = sw.log_likelihood(sw.Median(), d, sets, y)
        torch.testing.assert_close(
            a, sw.log_likelihood(sw.Mean(), d, sets, y), rtol=1e-8, atol=1e-8
        )


def test_intervals_cut_up_the_line():
    for family in ("normal", "cauchy", "gamma", "poisson", "categorical", "studentt"):
        d, _ = example(family, 1)
        edges = [-np.inf, -0.3, 0.4, 1.2, 2.7, np.inf]
        y = np.stack([edges[:-1], edges[1:]], 1)
        total = sw.log_likelihood(sw.Interval(), d, sw.Sets([[0]] * 5), y).exp().sum()
        assert float(total) == pytest.approx(1, abs=1e-10)


def test_weights_stretch_members():
    d, _ = example("normal", N)
    weights = np.array([0.5, 2.0, -1.0])
    sets = sw.Sets([[0, 1, 2]], weights=weights)
    w = torch.tensor(weights)
    want = td.Normal((w * d.loc[:3]).sum(), (w * d.scale[:3]).square().sum().sqrt())
    close(sw.log_likelihood(sw.Sum(), d, sets, [0.3])[0], want.log_prob(torch.tensor(0.3)))


def test_monte_carlo_agrees_with_the_closed_form():
    """The kernel estimate is, on average, the density seen through Gaussian noise."""
    d, _ = example("normal", N, grad=True)
    sets, y = sets_of(3), np.linspace(-1, 1, 8)
    total = sw.Custom(torch.sum, samples=100_000, bandwidth=0.4)
    got = sw.log_likelihood(total, d, sets, y)
    want = sw.log_likelihood(sw.Noisy(sw.Sum(), normal=0.4), d, sets, y)
    torch.testing.assert_close(got, want, rtol=0.03, atol=0.03)
    assert torch.equal(got, sw.log_likelihood(total, d, sets, y))  # seeded
    (a,) = torch.autograd.grad(got.sum(), d.loc)
    (b,) = torch.autograd.grad(want.sum(), d.loc)
    torch.testing.assert_close(a, b, rtol=0.1, atol=0.1)


def test_choix():
    choix = pytest.importorskip("choix")
    scores = np.random.default_rng(0).normal(size=N)
    d = td.Gumbel(torch.tensor(scores), torch.ones((), dtype=torch.float64))
    pairs = [(0, 1), (2, 3), (5, 1)]
    got = sw.log_likelihood(sw.Rank(), d, pairs, np.ones(3)).sum()
    assert float(got) == pytest.approx(choix.log_likelihood_pairwise(pairs, scores), rel=1e-12)
    rankings = [(0, 1, 4), (5, 3, 2, 1)]
    got = sw.log_likelihood(sw.Ranking(), d, sw.Sets(rankings), None).sum()
    assert float(got) == pytest.approx(choix.log_likelihood_rankings(rankings, scores), rel=1e-12)


@pytest.mark.parametrize("width", [1e-13, 1e-9, 1e-7, 9e-7, 1.1e-6, 1e-5, 1e-3, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_intervals_over_the_kink_of_a_laplace_density(width, share):
    """From −share·width to (1 − share)·width of the kink, against expm1 on either side."""
    loc, scale = torch.tensor([0.0], dtype=torch.float64), torch.tensor([1.3], dtype=torch.float64)
    low, high = -share * width, (1 - share) * width
    loc.requires_grad_()
    d = torch.distributions.Laplace(loc, scale)
    found = sw.log_likelihood(sw.Interval(), d, [[0]], [(low, high)])
    left, right = -math.expm1(low / 1.3) / 2, -math.expm1(-high / 1.3) / 2
    assert float(found.detach()) == pytest.approx(math.log(left + right), abs=1e-8)
    (slope,) = torch.autograd.grad(found.sum(), loc)
    ends = math.expm1(low / 1.3), math.expm1(-high / 1.3)
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / 2.6 / (left + right), abs=2e-6)
