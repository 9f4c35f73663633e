"""Order statistics against explicit sums over who is below, at and above (scipy only)."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import distributions as td
from torch.autograd import gradcheck, gradgradcheck

from setwise.aggregates.noisy import Noisy
from setwise.aggregates.order_statistics import Max, Median, Min, OrderStatistic
from setwise.distributions import LogisticDistribution
from setwise.likelihood import Targets, log_likelihood
from setwise.sets import Sets

F64 = torch.float64


def column(rng, size, low=0.3, high=2.0):
    return torch.tensor(rng.uniform(low, high, size))


def continuous(rng, size):
    """(torch distribution, list of scipy distributions) pairs with different parameters."""
    loc, scale = torch.tensor(rng.normal(size=size)), column(rng, size)
    rows = list(zip(loc.tolist(), scale.tolist(), strict=True))
    df = torch.full_like(loc, 2.5)
    return {
        "normal": (td.Normal(loc, scale), [stats.norm(m, s) for m, s in rows]),
        "laplace": (td.Laplace(loc, scale), [stats.laplace(m, s) for m, s in rows]),
        "cauchy": (td.Cauchy(loc, scale), [stats.cauchy(m, s) for m, s in rows]),
        "gumbel": (td.Gumbel(loc, scale), [stats.gumbel_r(m, s) for m, s in rows]),
        "logistic": (LogisticDistribution(loc, scale), [stats.logistic(m, s) for m, s in rows]),
        "student": (td.StudentT(df, loc, scale), [stats.t(2.5, m, s) for m, s in rows]),
        "exponential": (td.Exponential(scale), [stats.expon(0, 1 / s) for _, s in rows]),
        "gamma": (
            td.Gamma(scale, 1 + scale),
            [stats.gamma(s, scale=1 / (1 + s)) for _, s in rows],
        ),
    }


def discrete(rng, size):
    rate, logits = column(rng, size, 0.5, 4.0), torch.tensor(rng.normal(size=(size, 4)))
    half = torch.full_like(rate, 0.4)
    probs = logits.softmax(1).numpy()
    return {
        "poisson": (td.Poisson(rate), [stats.poisson(r) for r in rate.tolist()]),
        "binomial": (
            td.NegativeBinomial(rate, half),
            [stats.nbinom(r, 0.6) for r in rate.tolist()],
        ),
        "categorical": (
            td.Categorical(logits=logits),
            [stats.rv_discrete(values=(range(4), p)) for p in probs],
        ),
    }


def density_by_subsets(laws, y, k):
    """Σ_j f_j Σ_{A of size k−1 among the others} Π_A F Π_{not A} S."""
    total = 0.0
    for j, law in enumerate(laws):
        others = [i for i in range(len(laws)) if i != j]
        for below in itertools.combinations(others, k - 1):
            sides = [laws[i].cdf(y) if i in below else laws[i].sf(y) for i in others]
            total += law.pdf(y) * math.prod(sides)
    return total


def probability_by_places(laws, y, k):
    """Sum over who is below, at and above y, such that the k-th smallest is at y."""
    p = [(law.cdf(y - 1), law.pmf(y), law.sf(y)) for law in laws]
    total = 0.0
    for places in itertools.product((0, 1, 2), repeat=len(laws)):
        below, at = places.count(0), places.count(1)
        if below < k <= below + at:
            total += math.prod(p[i][c] for i, c in enumerate(places))
    return total


NAMES = list(continuous(np.random.default_rng(0), 1))
SMOOTH = [name for name in NAMES if name not in ("exponential", "gamma")]


@pytest.mark.parametrize("name", NAMES)
def test_continuous(rng, name):
    size = 5
    d, laws = continuous(rng, size)[name]
    cases = [(Min(), 1), (Max(), size), (Median(), 3)]
    cases += [(OrderStatistic(k), k) for k in range(1, size + 1)]
    for aggregate, k in cases:
        for y in (0.4, 2.0, -1.0) if name in SMOOTH else (0.1, 0.7, 3.0):
            found = log_likelihood(aggregate, d, [range(size)], [y]).exp().item()
            np.testing.assert_allclose(found, density_by_subsets(laws, y, k), rtol=1e-10)


@pytest.mark.parametrize("name", list(discrete(np.random.default_rng(0), 1)))
def test_discrete(rng, name):
    size = 5
    d, laws = discrete(rng, size)[name]
    cases = [(Min(), 1), (Max(), size), (Median(), 3)]
    cases += [(OrderStatistic(k), k) for k in range(1, size + 1)]
    for aggregate, k in cases:
        for y in (0, 1, 3):
            found = log_likelihood(aggregate, d, [range(size)], [y]).exp().item()
            np.testing.assert_allclose(found, probability_by_places(laws, y, k), rtol=1e-9)


def test_discrete_adds_up_to_one(rng):
    d = td.Poisson(column(rng, 40, 1.0, 9.0))
    values = range(60)
    sets = Sets([list(range(40))] * len(values))
    for aggregate in (Min(), Max(), OrderStatistic(11), OrderStatistic(33)):
        total = log_likelihood(aggregate, d, sets, values).exp().sum()
        np.testing.assert_allclose(total, 1.0, rtol=1e-11)


def test_largest_gumbel_is_gumbel(rng):
    loc = torch.tensor(rng.normal(size=(3, 50)))
    scale, y = 0.7, torch.tensor([0.0, 3.0, 40.0], dtype=F64)
    d = td.Gumbel(loc.flatten(), torch.full((150,), scale, dtype=F64))
    found = log_likelihood(Max(), d, np.arange(150).reshape(3, 50), y)
    expected = td.Gumbel(scale * (loc / scale).logsumexp(1), scale).log_prob(y)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_smallest_exponential_is_exponential(rng):
    rate = column(rng, 4096)
    y = 3e-4
    found = log_likelihood(Min(), td.Exponential(rate), [range(4096)], [y])
    torch.testing.assert_close(
        found, td.Exponential(rate.sum()).log_prob(torch.tensor([y], dtype=F64))
    )


@pytest.mark.parametrize("size", [33, 512, 4096])
def test_uniform_order_statistics_are_beta(rng, size):
    """Equal members: the k-th smallest of K has F(y) ~ Beta(k, K − k + 1), far out as well."""
    d = LogisticDistribution(torch.zeros(size, dtype=F64), torch.ones(size, dtype=F64))
    for k in (2, size // 3, size - 1):
        for y in (-3.0, 0.0, 25.0):
            found = log_likelihood(OrderStatistic(k), d, [range(size)], [y]).item()
            log_f, log_s = -np.logaddexp(0, -y), -np.logaddexp(0, y)
            expected = k * log_f + (size - k + 1) * log_s
            expected += math.lgamma(size + 1) - math.lgamma(k) - math.lgamma(size - k + 1)
            np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-10)


@pytest.mark.parametrize("size", [64, 1024])
def test_equal_discrete_members(rng, size):
    d = td.Poisson(torch.full((size,), 3.0, dtype=F64))
    law = stats.poisson(3.0)
    for k, y in ((2, 0), (size // 2, 3), (size - 1, 5)):
        found = log_likelihood(OrderStatistic(k), d, [range(size)], [y]).exp().item()
        expected = np.subtract(*stats.binom.sf(k - 1, size, law.cdf([y, y - 1])))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


# ---- the median of an even number


def joint_of_middle(laws, u, w):
    """Joint density of the middle two, by listing who is where."""
    size, total = len(laws), 0.0
    for i, j in itertools.permutations(range(size), 2):
        others = [m for m in range(size) if m not in (i, j)]
        for below in itertools.combinations(others, size // 2 - 1):
            sides = [laws[m].cdf(u) if m in below else laws[m].sf(w) for m in others]
            total += laws[i].pdf(u) * laws[j].pdf(w) * math.prod(sides)
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 4])
def test_even_median(rng, name, size):
    d, laws = continuous(rng, size)[name]
    y = 0.8
    found = log_likelihood(Median(), d, [range(size)], [y]).exp().item()
    end = np.inf if name in SMOOTH else y
    cuts = sorted(abs(y - law.mean()) for law in laws) if name == "laplace" else []
    if name == "gamma":  # the density may be infinite at 0: with u = x⁸ it is not
        end = y ** (1 / 8)

    def integrand(t):
        if name == "gamma":
            return joint_of_middle(laws, t**8, 2 * y - t**8) * 8 * t**7
        return joint_of_middle(laws, y - t, y + t)

    with np.errstate(over="ignore"):
        parts = [
            integrate.quad(integrand, low, high, epsabs=0, epsrel=1e-10)[0]
            for low, high in itertools.pairwise([0.0, *cuts, end])
        ]
    np.testing.assert_allclose(found, 2 * sum(parts), rtol=1e-9)


def test_median_of_two_is_their_mean(rng):
    loc, scale = torch.tensor(rng.normal(size=40) * 5), column(rng, 40, 1e-3, 10.0)
    y = torch.tensor(rng.normal(size=20) * 30)
    found = log_likelihood(Median(), td.Normal(loc, scale), np.arange(40).reshape(20, 2), y)
    mean, deviation = loc.reshape(20, 2).mean(1), scale.reshape(20, 2).norm(dim=1) / 2
    torch.testing.assert_close(found, td.Normal(mean, deviation).log_prob(y), rtol=1e-10, atol=1e-9)


def test_even_median_of_equal_members():
    """200 logistic members: the same integral over the closed joint density, by scipy."""
    size, y = 200, 0.05
    ones = torch.ones(size, dtype=F64)
    found = log_likelihood(Median(), LogisticDistribution(0 * ones, ones), [range(size)], [y])
    law, half = stats.logistic(), size // 2
    constant = math.lgamma(size + 1) - 2 * math.lgamma(half)

    def joint(t):
        low, high = y - t, y + t
        logs = law.logpdf(low) + law.logpdf(high) + (half - 1) * (law.logcdf(low) + law.logsf(high))
        return math.exp(constant + logs)

    expected = 2 * integrate.quad(joint, 0, 1, epsabs=0, epsrel=1e-11)[0]
    np.testing.assert_allclose(found.exp().item(), expected, rtol=1e-9)


# ---- derivatives


@pytest.mark.parametrize("aggregate", [Min(), Max(), OrderStatistic(2), Median()], ids=repr)
def test_derivatives(rng, aggregate):
    loc = torch.tensor(rng.normal(size=7), requires_grad=True)
    scale = column(rng, 7).requires_grad_()
    sets, y = Sets([[0, 1, 2], [3, 4, 5, 6]]), [0.3, -0.4]

    def value(loc, scale):
        return log_likelihood(aggregate, td.Normal(loc, scale), sets, y)

    assert gradcheck(value, (loc, scale))
    assert gradgradcheck(value, (loc, scale), fast_mode=True)


@pytest.mark.parametrize("tied", [False, True])
def test_derivatives_past_kinks(rng, tied):
    """Laplace densities have kinks, which the nodes of the even median must follow."""
    loc = torch.tensor([0.2, 0.2, -1.0, 3.0] if tied else [0.2, 0.7, -1.0, 3.0], dtype=F64)
    leaf = torch.zeros(3 if tied else 4, dtype=F64, requires_grad=True)

    def value(leaf):
        moved = leaf[[0, 0, 1, 2]] if tied else leaf
        d = td.Laplace(loc + moved, torch.tensor([1.0, 0.5, 2.0, 0.7], dtype=F64))
        return log_likelihood(Median(), d, [[0, 1, 2, 3], [3, 2, 1, 0]], [0.4, -1.5])

    assert gradcheck(value, leaf)
    assert gradgradcheck(value, leaf, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("aggregate", [Min(), Max(), OrderStatistic(2), Median()], ids=repr)
def test_derivatives_with_ties(rng, aggregate):
    logits = torch.tensor(rng.normal(size=(8, 3)), requires_grad=True)
    sets, y = Sets([[0, 1, 2], [3, 4, 5, 6, 7]]), [1, 2]

    def value(logits):
        return log_likelihood(aggregate, td.Categorical(logits=logits), sets, y)

    assert gradcheck(value, logits)
    assert gradgradcheck(value, logits, fast_mode=True)


# ---- extremes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "aggregate", [Min(), Max(), OrderStatistic(2), OrderStatistic(3), Median()], ids=repr
)
@pytest.mark.parametrize("family", [td.Normal, td.Cauchy, td.Laplace, td.Gumbel])
def test_far_away(aggregate, family, dtype):
    loc = torch.tensor([0.0, 1.0, -2.0, 5.0], dtype=dtype).repeat(4).requires_grad_()
    scale = torch.tensor([1.0, 1e-3, 1e3, 1.0], dtype=dtype).repeat(4)
    # a Gumbel that far to the left has the log-density −exp(1e9)
    y = [1e6, 50.0, 1e4, 7.0] if family is td.Gumbel else [1e6, -1e6, 1e4, 0.5]
    out = log_likelihood(aggregate, family(loc, scale), np.arange(16).reshape(4, 4), y)
    assert out.dtype == dtype
    assert out.isfinite().all()
    (grad,) = torch.autograd.grad(out.sum(), loc)
    assert grad.isfinite().all()
    grad = grad.reshape(4, 4).sum(1)
    if family is not td.Cauchy:  # larger locations make a larger y likelier
        assert grad[0] > 0
        assert family is td.Gumbel or grad[1] < 0


def test_members_of_very_different_widths(rng):
    """Three narrow members and a wide one, y far from all: checked against higher precision."""
    loc, scale = [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1e6]
    d = td.Normal(torch.tensor(loc, dtype=F64), torch.tensor(scale, dtype=F64))
    found = log_likelihood(Median(), d, [range(4)], [1e4]).item()
    laws = [stats.norm(m, s) for m, s in zip(loc, scale, strict=True)]

    def log_joint(u, w):
        terms = []
        for i, j in itertools.permutations(range(4), 2):
            a, b = (m for m in range(4) if m not in (i, j))
            ends = laws[i].logpdf(u) + laws[j].logpdf(w)
            for below, above in ((a, b), (b, a)):
                terms.append(ends + laws[below].logcdf(u) + laws[above].logsf(w))
        return np.logaddexp.reduce(terms)

    t = np.linspace(0, 7, 2001)  # the integrand falls with exp(−t²)
    logs = log_joint(1e4 - t, 1e4 + t)
    top = logs.max()
    expected = math.log(2 * integrate.simpson(np.exp(logs - top), x=t)) + top
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-6)


@pytest.mark.parametrize("aggregate", [Min(), Max(), OrderStatistic(2), Median()], ids=repr)
def test_impossible(aggregate):
    rate = torch.ones(6, dtype=F64, requires_grad=True)
    logits = torch.zeros(6, 3, dtype=F64, requires_grad=True)
    cases = [
        (td.Exponential(rate), -1.0, rate),
        (td.Gamma(rate, rate), -1.0, rate),
        (td.Poisson(rate), 0.5, rate),
        (td.Poisson(rate), -1.0, rate),
        (td.Categorical(logits=logits), 3.0, logits),
    ]
    for d, y, parameter in cases:
        out = log_likelihood(aggregate, d, [[0, 1, 2], [3, 4, 5]], [y, 1.0])
        assert out[0] == -math.inf
        assert out[1].isfinite()
        (grad,) = torch.autograd.grad(out.sum(), parameter)
        assert (grad[:3] == 0).all()
        assert grad.isfinite().all()


def test_impossible_even_median():
    rate = torch.ones(4, dtype=F64, requires_grad=True)
    out = log_likelihood(Median(), td.Exponential(rate), [range(4)], [-1.0])
    assert out.item() == -math.inf
    assert (torch.autograd.grad(out.sum(), rate)[0] == 0).all()


def test_certain_members():
    """Classes of probability zero: the only arrangement is found, others are impossible."""
    certain = torch.tensor([0, 0, 1, 1, 2, 2])
    logits = torch.where(torch.eye(3, dtype=torch.bool)[certain], 0.0, -torch.inf).double()
    d = td.Categorical(logits=logits)
    for k in range(1, 7):
        for y in range(3):
            out = log_likelihood(OrderStatistic(k), d, [range(6)], [y]).item()
            assert out == pytest.approx(0.0 if y == certain[k - 1] else -math.inf, abs=1e-14)


# ---- sets, observations, errors


def test_ragged_sets(rng):
    d, laws = continuous(rng, 9)["normal"]
    sets = Sets([[0, 1, 2], [3], [4, 5, 6, 7, 8], [0, 8]])
    y = rng.normal(size=4)
    for aggregate, rank in ((Min(), lambda n: 1), (Max(), lambda n: n)):
        found = log_likelihood(aggregate, d, sets, y).exp()
        expected = [
            density_by_subsets([laws[i] for i in members], v, rank(len(members)))
            for members, v in zip(sets, y, strict=True)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_sets_of_one_are_direct(rng):
    d, laws = continuous(rng, 1)["student"]
    for aggregate in (Min(), Max(), OrderStatistic(1), Median()):
        found = log_likelihood(aggregate, d, [[0]], [0.3]).item()
        np.testing.assert_allclose(found, laws[0].logpdf(0.3), rtol=1e-12)


def test_observe(rng):
    z, sets = rng.normal(size=9), Sets([[0, 1, 2], [3, 4, 5, 6], [7, 8]])
    members = [z[s] for s in sets]
    assert Min().observe(z, sets).y.tolist() == [m.min() for m in members]
    assert Max().observe(z, sets).y.tolist() == [m.max() for m in members]
    assert OrderStatistic(2).observe(z, sets).y.tolist() == [np.sort(m)[1] for m in members]
    np.testing.assert_allclose(Median().observe(z, sets).y, [np.median(m) for m in members])


def test_outcomes():
    assert list(Max().outcome(Targets(4, True), 3).values) == [0, 1, 2, 3]
    assert list(Median().outcome(Targets(2, True), 2).values) == [0, 0.5, 1]
    assert Max().outcome(Targets(None, False), 3).values is None
    with pytest.raises(TypeError, match="no fixed list"):
        Noisy(Max(), flip=0.1).values(Targets(None, False), 3)


def test_errors(rng):
    sets = Sets([[0, 1, 2], [3, 4]])
    with pytest.raises(ValueError, match=r"set 1 has 2 member.*at least 3"):
        OrderStatistic(3).check(sets, [0.0, 0.0])
    with pytest.raises(ValueError, match="at least 3"):
        OrderStatistic(3).observe(rng.normal(size=5), sets)
    for k in (0, 1.5, True, "a"):
        with pytest.raises((ValueError, TypeError)):
            OrderStatistic(k)
    with pytest.raises(ValueError, match=r"use OrderStatistic\(1\)"):
        log_likelihood(Median(), td.Poisson(torch.ones(5)), sets, [1, 1])
    with pytest.raises(ValueError, match="set 1 has y = nan"):
        Max().check(sets, [0.0, np.nan])
