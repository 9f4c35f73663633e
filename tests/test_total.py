"""Sums and means: closed forms, inversion of transforms, lattices, heavy tails and noise."""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import distributions as td

from setwise._math.integer_sums import _log_pmf, log_probability_of_class_sum
from setwise._math.normal_laplace import log_normal_laplace
from setwise._math.student_transform import end_of_cut, log_transform, log_transform_on_cut
from setwise.aggregates.noisy import Noisy, noisy_total
from setwise.aggregates.total import Mean, Sum
from setwise.distributions import LogisticDistribution, map_parameters
from setwise.likelihood import Targets, log_likelihood
from setwise.sets import Sets

NODES, WEIGHTS = np.polynomial.legendre.leggauss(18)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


# ---- an oracle: convolution by panels of Gauss-Legendre, cut at every kink and at many widths


class Density:
    """A scipy density of w·Z with the points that an integral over it should be cut at."""

    def __init__(self, frozen, centre, width, w=1.0, reach=9):
        self.frozen, self.w = frozen, w
        offsets = width * np.concatenate([[0], 2.0 ** np.arange(-2, reach)])
        low, high = frozen.support()
        cuts = np.unique(np.concatenate([centre - offsets, centre + offsets]))
        cuts = cuts[(cuts > low) & (cuts < high)]
        ends = [v for v in (low, high) if np.isfinite(v)]
        if math.isfinite(low):  # a root of x may start there
            cuts = np.concatenate([cuts, low + width * 3.0 ** np.arange(-16, 2)])
        self.cuts = np.unique(np.concatenate([cuts, ends])) * w
        self.kinks = np.array(ends or [centre]) * w

    def __call__(self, x):
        with np.errstate(over="ignore"):
            return self.frozen.pdf(x / self.w) / abs(self.w)


def integrate(f, cuts):
    """∫ f over panels between sorted cuts; cuts is (…, m), f takes (…, m−1, 20)."""
    half = 0.5 * np.diff(cuts)[..., None]
    x = cuts[..., :-1, None] + half * (1 + NODES)
    return (f(x) * half * WEIGHTS).sum((-1, -2))


def sum_density(densities, y):
    """The density of a sum of independent variables at an array of y."""
    first, *rest = densities
    y = np.asarray(y, float)
    if not rest:
        return first(y)
    if len(rest) == 1:
        other, cuts = rest[0], rest[0].cuts
    else:  # sums of kinks are kinks; elsewhere every fifth cut will do
        other = functools.partial(sum_density, rest)
        cuts = np.add.outer(*(d.cuts for d in rest)).ravel()
        cuts = np.unique([*cuts[::5], *np.add.outer(*(d.kinks for d in rest)).ravel()])
    edges = np.concatenate(
        [np.broadcast_to(first.cuts, (*y.shape, len(first.cuts))), y[..., None] - cuts], -1
    )
    return integrate(lambda x: first(x) * other(y[..., None, None] - x), np.sort(edges, -1))


def laplace(loc, scale, w=1.0):
    return Density(stats.laplace(loc, scale), loc, scale, w)


ORACLES = {
    "laplace": (td.Laplace, laplace),
    "logistic": (
        LogisticDistribution,
        lambda a, b, w=1.0: Density(stats.logistic(a, b), a, b, w),
    ),
    "gumbel": (td.Gumbel, lambda a, b, w=1.0: Density(stats.gumbel_r(a, b), a, b, w)),
    "exponential": (
        td.Exponential,
        lambda r, w=1.0: Density(stats.expon(scale=1 / r), 1 / r, 1 / r, w),
    ),
    "gamma": (
        td.Gamma,
        lambda a, r, w=1.0: Density(stats.gamma(a, scale=1 / r), a / r, math.sqrt(a) / r, w),
    ),
    "studentt": (
        td.StudentT,
        lambda n, a, b, w=1.0: Density(stats.t(n, a, b), a, b, w, reach=40),
    ),
}
PARAMETERS = {  # three members each
    "laplace": ([0.5, -1.0, 2.0], [1.0, 0.4, 2.5]),
    "logistic": ([0.5, -1.0, 2.0], [1.0, 0.4, 2.5]),
    "gumbel": ([0.5, -1.0, 2.0], [1.0, 0.4, 2.5]),
    "exponential": ([0.5, 2.0, 3.0],),
    "gamma": ([1.7, 2.3, 4.0], [1.0, 2.0, 0.6]),
    "studentt": ([3.0, 5.0, 2.5], [0.5, -1.0, 2.0], [1.0, 0.4, 2.5]),
}
each = pytest.mark.parametrize("family", sorted(ORACLES))


def members(family, k, weights=None):
    """The torch distribution of k members, and their oracles."""
    kind, oracle = ORACLES[family]
    values = [v[:k] for v in PARAMETERS[family]]
    w = [1.0] * k if weights is None else weights
    return kind(*(f64(*v) for v in values)), [
        oracle(*p, w=w[i]) for i, p in enumerate(zip(*values, strict=True))
    ]


def same_set(k, n, weights=None):
    return Sets(
        np.tile(np.arange(k), (n, 1)), weights=None if weights is None else np.tile(weights, n)
    )


@each
@pytest.mark.parametrize("weights", [None, (1.0, 2.5), (1.0, -0.7), (-1.0, -2.0)])
def test_two_members_against_convolution(family, weights):
    d, oracles = members(family, 2, weights)
    y = np.array([-30.0, -4.0, -0.51, 0.3, 0.8, 1.9, 6.0, 35.0])
    sets = same_set(2, len(y), weights)
    want = sum_density(oracles, y)
    got = log_likelihood(Sum(), d, sets, y).exp().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-250)
    total = 2 if weights is None else sum(weights)
    if abs(total) > 0.4:  # means: a change of scale
        got = log_likelihood(Mean(), d, sets, y / total).exp().numpy()
        np.testing.assert_allclose(got, want * abs(total), rtol=1e-9, atol=1e-250)


@pytest.mark.parametrize("weights", [None, (0.5, -1.0, 2.0)])
def test_stable_families(weights):
    y = np.array([-1e6, -30.0, 0.4, 5.0])
    loc, scale = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.4, 2.5])
    w = np.ones(3) if weights is None else np.array(weights)
    sets = same_set(3, len(y), weights)
    got = log_likelihood(Sum(), td.Normal(f64(*loc), f64(*scale)), sets, y)
    closed(got, stats.norm.logpdf(y, w @ loc, np.sqrt((w * scale) @ (w * scale))))
    got = log_likelihood(Mean(), td.Cauchy(f64(*loc), f64(*scale)), sets, y / w.sum())
    closed(got, stats.cauchy.logpdf(y, w @ loc, np.abs(w) @ scale) + math.log(w.sum()))


@pytest.mark.parametrize("family", [f for f in sorted(ORACLES) if f != "studentt"])
def test_three_members_against_convolution(family):
    weights = (0.5, -1.0, 2.0)
    d, oracles = members(family, 3, weights)
    y = np.array([0.4, 5.0])
    want = sum_density(oracles, y)
    got = log_likelihood(Sum(), d, same_set(3, len(y), weights), y).exp().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-250)


def test_ragged_sets_and_single_members():
    d, _ = members("gumbel", 3)
    sets = Sets([[0], [2, 0, 1], [1, 1], [2]])
    y = f64(0.3, 1.0, -2.0, 5.0)
    together = log_likelihood(Sum(), d, sets, y)
    alone = [log_likelihood(Sum(), d, sets.take([i]), y[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-13, atol=0)
    torch.testing.assert_close(together[[0, 3]], d.log_prob(f64(0.3, 0, 5.0))[[0, 2]])
    weighted = Sets([[0], [1]], weights=[2.0, -3.0])
    got = log_likelihood(Sum(), d, weighted, f64(0.5, 0.5))
    want = d.log_prob(f64(0.25, -0.5 / 3, 0.0))[:2] - f64(2.0, 3.0).log()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        log_likelihood(Mean(), d, weighted, f64(0.5, 0.5)), d.log_prob(f64(0.5))[:2]
    )


# ---- closed forms reached by inversion, near and far


def closed(got, want, rtol=1e-12):
    """Relative error of the probability where it is moderate, of its logarithm far out."""
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=rtol, atol=rtol)


FAR = np.array([1e-200, 1e-8, 1e-3, 0.2, 1.0, 3.0, 40.0, 1e3, 1e6, 1e9])


@pytest.mark.parametrize("k", [2, 3, 16, 300])
def test_exponentials_of_one_rate_are_erlang(k):
    own = torch.full((k,), 0.7, dtype=torch.float64, requires_grad=True)
    shared = f64(0.7)[0].expand(k)
    want = stats.gamma.logpdf(FAR, k, scale=1 / 0.7)
    closed(log_likelihood(Sum(), td.Exponential(own), same_set(k, len(FAR)), FAR), want)
    closed(log_likelihood(Sum(), td.Exponential(shared), same_set(k, len(FAR)), FAR), want)


@pytest.mark.parametrize("slow", [0.5, 1e-6])
def test_hypoexponential(slow):
    d = td.Exponential(f64(1.0, slow).requires_grad_())
    want = math.log(slow / (1 - slow)) - slow * FAR + np.log(-np.expm1(-(1 - slow) * FAR))
    closed(log_likelihood(Sum(), d, same_set(2, len(FAR)), FAR), want)


@pytest.mark.parametrize("shapes", [(1e-6, 2e-6), (1e-3, 0.3), (0.5, 3.0), (1e-3, 1e4)])
def test_gammas_of_one_rate(shapes):
    d = td.Gamma(f64(*shapes), f64(2.0, 2.0).requires_grad_())
    want = stats.gamma.logpdf(FAR, sum(shapes), scale=0.5)
    closed(log_likelihood(Sum(), d, same_set(2, len(FAR)), FAR), want, rtol=1e-11)
    shared = td.Gamma(f64(*shapes), f64(2.0)[0].expand(2))
    closed(log_likelihood(Sum(), shared, same_set(2, len(FAR)), FAR), want, rtol=1e-9)


@pytest.mark.parametrize("ratio", [1.0, 1e-6])
def test_two_laplace(ratio):
    y = np.array([0.0, 1e-9, 1e-3, -0.1, 1.0, -3.0, 40.0, -1e3, 1e6])
    d = td.Laplace(f64(3.0, -3.0), f64(1.0, ratio).requires_grad_())
    a = np.abs(y)
    if ratio == 1:
        want = np.log1p(a) - a - math.log(4)
    else:
        want = -a + np.log1p(-ratio * np.exp(-a / ratio + a)) - math.log(2 * (1 - ratio**2))
    closed(log_likelihood(Sum(), d, same_set(2, len(y)), y), want)


def test_difference_of_exponentials_is_laplace():
    y = np.array([0.0, 1e-12, -1e-3, 0.5, -4.0, 300.0, -1e6])
    sets = same_set(2, len(y), (1.0, -1.0))
    got = log_likelihood(Sum(), td.Exponential(f64(1.0, 1.0)), sets, y)
    closed(got, -np.abs(y) - math.log(2), rtol=1e-11)


@pytest.mark.parametrize(
    "family", ["laplace", "logistic", "gumbel", "studentt", "gamma", "exponential"]
)
@pytest.mark.parametrize("how", [1e-6, 1.0, 1e6])
def test_scale_and_shift(family, how):
    """The density of a·Σ + b at a·y + b is that at y, over |a|; locations keep their digits."""
    d, _ = members(family, 3)
    y = f64(-2.0, 0.7, 1.3, 30.0)
    base = log_likelihood(Sum(), d, same_set(3, 4), y)
    if family in ("gamma", "exponential"):
        moved = map_parameters(d, lambda v: v)
        moved.rate = d.rate / how
        got = log_likelihood(Sum(), moved, same_set(3, 4), y * how)
    else:
        moved = type(d)(**{k: getattr(d, k) for k in d.arg_constraints})
        moved.loc, moved.scale = (d.loc + f64(1e3, -5e2, -5e2)) * how, d.scale * how
        got = log_likelihood(Sum(), moved, same_set(3, 4), y * how)
    torch.testing.assert_close(got + math.log(how), base, rtol=1e-10, atol=1e-10)


def test_far_from_every_member():
    """A million scales away, value and gradient are those of the leading term."""
    y, sets = f64(1e6), same_set(4, 1)
    scale = f64(1.0, 0.5, 0.25, 0.1).requires_grad_()
    loc = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    for kind in (td.Laplace, LogisticDistribution, td.Gumbel):
        value = log_likelihood(Sum(), kind(loc, scale), sets, y)
        grads = torch.autograd.grad(value.sum(), (loc, scale))
        assert value.item() == pytest.approx(-1e6, rel=1e-4)
        torch.testing.assert_close(grads[0], torch.ones(4, dtype=torch.float64), rtol=1e-5, atol=0)
        assert grads[1][0].item() == pytest.approx(1e6, rel=1e-4)
    t = td.StudentT(torch.full((4,), 4.0, dtype=torch.float64), loc, scale)
    value = log_likelihood(Sum(), t, sets, y)
    want = np.log(sum(stats.t(4, 0, s).pdf(1e6) for s in scale.tolist()))
    assert value.item() == pytest.approx(want, rel=1e-9)
    low = log_likelihood(Sum(), td.Gumbel(loc, scale), sets, f64(-1e6))  # −exp(1e6 …)
    assert not low.isnan().any()
    assert low.item() < -1e100


# ---- large sets, whole distributions


@pytest.mark.parametrize(
    "family", ["laplace", "logistic", "gumbel", "exponential", "gamma", "studentt"]
)
def test_many_members_against_cumulants(family):
    """4096 members: the density near the mean follows the Edgeworth expansion."""
    rng = np.random.default_rng(3)
    size = 4096 if family != "studentt" else 1024
    kind = ORACLES[family][0]
    if family == "studentt":  # nine finite moments
        d = kind(
            f64(*rng.uniform(9, 12, size)),
            f64(*rng.normal(0, 1, size)),
            f64(*rng.uniform(0.5, 2, size)),
        )
    elif family == "exponential":
        d = kind(f64(*rng.uniform(0.5, 2, size)))
    else:
        d = kind(f64(*rng.uniform(0.5, 2, size)), f64(*rng.uniform(0.5, 2, size)))
    mean, variance = d.mean.sum().item(), d.variance.sum().item()
    z = np.array([-1.0, 0.0, 0.5])
    sets = same_set(size, len(z))
    got = log_likelihood(Sum(), d, sets, mean + z * math.sqrt(variance)).numpy()
    skew = {"gumbel": 1.1395470994046486, "exponential": 2.0}.get(family, 0.0)
    third = (skew * d.variance**1.5).sum().item() if family != "gamma" else (
        2 * d.concentration / d.rate**3).sum().item()  # fmt: skip
    g = third / variance**1.5
    excess = {"laplace": 3.0, "logistic": 1.2, "gumbel": 2.4, "exponential": 6.0, "gamma": 4.0}.get(
        family, 1.0
    )
    want = stats.norm.logpdf(z) - 0.5 * math.log(variance) + np.log1p(g / 6 * (z**3 - 3 * z))
    assert np.abs(got - want).max() < 2 * excess / size + g * g


@pytest.mark.parametrize("family", ["laplace", "gumbel", "gamma", "studentt"])
def test_sixteen_members_against_samples(family):
    rng = np.random.default_rng(5)
    values = {
        "laplace": (rng.normal(0, 1, 16), rng.uniform(0.2, 2, 16)),
        "gumbel": (rng.normal(0, 1, 16), rng.uniform(0.2, 2, 16)),
        "gamma": (rng.uniform(0.1, 3, 16), rng.uniform(0.3, 3, 16)),
        "studentt": (rng.uniform(2.2, 6, 16), rng.normal(0, 1, 16), rng.uniform(0.2, 2, 16)),
    }[family]
    d = ORACLES[family][0](*(f64(*v) for v in values))
    torch.manual_seed(1)
    draws = d.sample((20000,)).sum(1).numpy()
    cuts = np.quantile(draws, [0.1, 0.5, 0.9])

    def density(x):
        y = x.ravel()
        return log_likelihood(Sum(), d, same_set(16, len(y)), y).exp().numpy().reshape(x.shape)

    for low, high in itertools.pairwise(cuts):
        p = integrate(density, np.linspace(low, high, 2))
        assert abs(p - 0.4) < 5 * math.sqrt(0.24 / 20000)


@each
def test_total_probability(family):
    d, _ = members(family, 3, None)
    cuts = np.concatenate([[0], 2.0 ** np.arange(-8, 11)])
    cuts = np.concatenate([-cuts[:0:-1], cuts]) + (
        0 if family in ("gamma", "exponential") else 1.5 / 3
    )
    if family == "studentt":  # one number for all members, which is fast
        d = td.StudentT(*(f64(v)[0].expand(3) for v in (4.0, 0.0, 1.0)))
        cuts = np.concatenate([[0], 4.0 ** np.arange(-1, 9)])

    def density(x):
        y = x.ravel()
        return log_likelihood(Mean(), d, same_set(3, len(y)), y).exp().numpy().reshape(x.shape)

    total = integrate(density, cuts) * (2 if family == "studentt" else 1)
    assert total == pytest.approx(1, abs=1e-7)


# ---- counts and classes


def pmf_sum(pmfs):
    return functools.reduce(np.convolve, pmfs)


def test_counts_against_convolution():
    v = np.arange(400)
    y = np.array([0, 1, 2, 7, 30, 120])
    counts, logits = [0.5, 3.0, 1.2], [-1.0, 0.3, -2.0]
    nb = td.NegativeBinomial(f64(*counts), logits=f64(*logits).requires_grad_())
    want = pmf_sum(
        [stats.nbinom.pmf(v, r, special.expit(-l)) for r, l in zip(counts, logits, strict=True)]
    )
    got = log_likelihood(Sum(), nb, same_set(3, 6), y).exp().detach().numpy()
    np.testing.assert_allclose(got, want[y], rtol=1e-11)
    got = log_likelihood(Mean(), nb, same_set(3, 6), y / 3).exp().detach().numpy()
    np.testing.assert_allclose(got, want[y], rtol=1e-11)
    poisson = td.Poisson(f64(0.5, 3.0, 1.2))
    got = log_likelihood(Sum(), poisson, same_set(3, 6), y).numpy()
    np.testing.assert_allclose(got, stats.poisson.logpmf(y, 4.7), rtol=1e-12)


@pytest.mark.parametrize(("shape", "p"), [(0.3, 0.2), (1e-6, 0.9), (5.0, 0.999), (1e4, 0.5)])
def test_negative_binomials_of_one_probability(shape, p):
    y = np.array([0, 1, 2, 5, 30, 1000, 10**5, 10**7])
    logit = math.log(p / (1 - p))
    own = td.NegativeBinomial(f64(shape, 2 * shape), logits=f64(logit, logit).requires_grad_())
    shared = td.NegativeBinomial(f64(shape, 2 * shape), logits=f64(logit)[0].expand(2))
    want = stats.nbinom.logpmf(y, 3 * shape, 1 - p)
    closed(log_likelihood(Sum(), own, same_set(2, len(y)), y), want, rtol=1e-10)
    closed(log_likelihood(Sum(), shared, same_set(2, len(y)), y), want, rtol=1e-10)


@pytest.mark.parametrize(
    ("size", "n_classes"), [(1, 3), (2, 2), (3, 4), (12, 3), (200, 2), (60, 10)]
)
def test_classes_against_convolution(size, n_classes):
    rng = np.random.default_rng(size)
    logits = torch.log_softmax(torch.tensor(rng.normal(0, 2, (size, n_classes))), -1)
    want = np.log(pmf_sum(list(np.exp(logits.numpy().astype(np.longdouble))))).astype(float)
    top = size * (n_classes - 1)
    y = np.unique(np.linspace(0, top, min(top + 1, 25)).round())
    sets = same_set(size, len(y))
    got = log_likelihood(Sum(), td.Categorical(logits=logits), sets, y).numpy()
    np.testing.assert_allclose(got, want[y.astype(int)], rtol=1e-12, atol=1e-12)
    got = log_likelihood(Mean(), td.Categorical(logits=logits), sets, y / size).numpy()
    np.testing.assert_allclose(got, want[y.astype(int)], rtol=1e-12, atol=1e-12)
    closed(_log_pmf(logits[None])[0], want, rtol=1e-11)


def test_classes_with_gaps_and_extreme_logits():
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.choice([-1e4, 0.0, 1e4], (20, 3, 4)), requires_grad=True)
    normal = logits.log_softmax(-1)
    y = torch.tensor(rng.integers(0, 10, 20)).double()
    got = log_probability_of_class_sum(normal, y)
    z = np.array(list(itertools.product(range(4), repeat=3)))
    for i in range(20):
        terms = normal.detach()[i].numpy()[np.arange(3), z].sum(1)[z.sum(1) == y[i].item()]
        assert got[i].item() == pytest.approx(special.logsumexp(terms), rel=1e-12, abs=1e-9)
    (grad,) = torch.autograd.grad(got.sum(), logits)
    assert grad.isfinite().all()
    impossible = torch.tensor([[[0.0, -math.inf, 0.0]] * 2]).double().log_softmax(-1)
    assert log_probability_of_class_sum(impossible, f64(1.0)).item() == -math.inf


def test_impossible_observations():
    rate = f64(1.0, 2.0).requires_grad_()
    logits = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    cases = [
        (td.Exponential, rate, [-1.0, 0.0]),
        (lambda r: td.Gamma(r, r), rate, [-1.0]),
        (td.Poisson, rate, [-1.0, 0.5, 2.001]),
        (lambda r: td.NegativeBinomial(r, logits=r), rate, [-1.0, 0.5]),
        (lambda l: td.Categorical(logits=l), logits, [-1.0, 0.5, 5.0]),
    ]
    for make, leaf, y in cases:
        for aggregate in (Sum(), Mean()):
            k = 2 if aggregate == Mean() else 1
            value = log_likelihood(aggregate, make(leaf), same_set(2, len(y)), np.array(y) / k)
            assert (value == -math.inf).all(), value
            (grad,) = torch.autograd.grad(value.sum(), leaf)
            assert (grad == 0).all()
    third = log_likelihood(Mean(), td.Poisson(f64(1, 1, 1).float()), Sets([[0, 1, 2]]), [1 / 3])
    assert third.isfinite().all()  # 1/3 in single precision is still a multiple of 1/3


def test_errors_name_the_set():
    d = td.Normal(torch.zeros(3), torch.ones(3))
    sets = Sets([[0, 1], [1, 2]], weights=[1.0, 1.0, 1.0, -1.0])
    log_likelihood(Sum(), d, sets, [0.0, 0.0])
    with pytest.raises(ValueError, match="set 1 has weights that add up to 0"):
        log_likelihood(Mean(), d, sets, [0.0, 0.0])
    with pytest.raises(ValueError, match="set 1 has weights that add up to 0"):
        log_likelihood(Sum(), d, Sets([[0], [1]], weights=[1.0, 0.0]), [0.0, 0.0])
    unequal = Sets([[0, 1], [1, 2]], weights=[1.0, 1.0, 2.0, 1.0])
    with pytest.raises(ValueError, match=r"set 1 .* weight 2: Sum.* needs weights of 1"):
        log_likelihood(Sum(), td.Poisson(torch.ones(3)), unequal, [1.0, 1.0])
    with pytest.raises(ValueError, match=r"set 1 .* needs equal weights within a set"):
        log_likelihood(Mean(), td.Categorical(torch.ones(3, 2)), unequal, [1.0, 1.0])
    ragged = Sets([[0, 1], [0], [1, 2]], weights=[1.0, 1.0, 1.0, 2.0, 1.0])
    for aggregate in (Sum(), Noisy(Sum(), normal=1.0)):
        with pytest.raises(ValueError, match=r"set 2 .*weight.*2"):
            log_likelihood(aggregate, td.Categorical(torch.ones(3, 2)), ragged, [1.0, 1.0, 1.0])
    equal = Sets([[0, 1], [1, 2]], weights=[1.0, 1.0, 2.0, 2.0])
    assert log_likelihood(Mean(), td.Poisson(torch.ones(3)), equal, [1.0, 1.5]).isfinite().all()


def test_simulation():
    z = np.array([1, 2, 4])
    assert Sum().observe(z, [[0, 1], [2, 1]]).y.tolist() == [3.0, 6.0]
    weighted = Sets([[0, 1, 2]], weights=[1.0, 2.0, 1.0])
    assert Mean().observe(z, weighted).y.tolist() == [2.25]
    assert list(Sum().outcome(Targets(3, True), 2).values) == [0, 1, 2, 3, 4]
    assert list(Mean().outcome(Targets(2, True), 2).values) == [0, 0.5, 1]


# ---- derivatives and precision


def all_members():
    rng = np.random.default_rng(2)

    def u(low, high, n=5):
        return torch.tensor(rng.uniform(low, high, n), requires_grad=True)

    return {
        "normal": (td.Normal, [u(-1, 1), u(0.5, 2)]),
        "cauchy": (td.Cauchy, [u(-1, 1), u(0.5, 2)]),
        "laplace": (td.Laplace, [u(-1, 1), u(0.5, 2)]),
        "logistic": (LogisticDistribution, [u(-1, 1), u(0.5, 2)]),
        "gumbel": (td.Gumbel, [u(-1, 1), u(0.5, 2)]),
        "exponential": (td.Exponential, [u(0.5, 2)]),
        "gamma": (td.Gamma, [u(0.2, 2), u(0.5, 2)]),
        "studentt": (td.StudentT, [u(2.5, 5), u(-1, 1), u(0.5, 2)]),
        "poisson": (td.Poisson, [u(0.5, 2)]),
        "negativebinomial": (
            lambda r, l: td.NegativeBinomial(r, logits=l),
            [u(0.5, 2), u(-1, 1)],
        ),
        "categorical": (
            lambda l: td.Categorical(logits=l),
            [torch.tensor(rng.normal(0, 1, (5, 3)), requires_grad=True)],
        ),
    }


FAMILIES = sorted(all_members())
DISCRETE = ("poisson", "negativebinomial", "categorical")
SETS = [[0, 1], [2, 3, 4], [1], [3, 3]]


@pytest.mark.parametrize("family", FAMILIES)
def test_derivatives(family):
    make, leaves = all_members()[family]
    y = f64(2.0, 4.0)
    sets = Sets(SETS[:2])
    if family not in DISCRETE:
        sets = Sets(SETS[:2], weights=[1.0, 2.0, 0.5, 1.0, 1.5])
        y = f64(2.1, 9.0)

    def value(*leaves):
        return log_likelihood(Sum(), make(*leaves), sets, y)

    assert torch.autograd.gradcheck(value, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(value, leaves, fast_mode=True)


@pytest.mark.parametrize(
    "family",
    [f for f in FAMILIES if "loc" in getattr(all_members()[f][0], "arg_constraints", ())],
)
def test_derivative_in_y_is_that_of_the_location(family):
    make, leaves = all_members()[family]
    names = list(make.arg_constraints)
    y = f64(0.3, 1.0, 0.2, -40.0)
    value = log_likelihood(Sum(), make(*leaves), Sets(SETS), y)
    (grad,) = torch.autograd.grad(value.sum(), leaves[names.index("loc")])
    step = 1e-5
    up, down = (log_likelihood(Sum(), make(*leaves), Sets(SETS), y + e) for e in (step, -step))
    slope = -((up - down) / (2 * step)).detach()
    want = torch.zeros(5, dtype=torch.float64)
    for i, rows in enumerate(SETS):
        for row in rows:
            want[row] += slope[i]
    torch.testing.assert_close(grad, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_single_precision(family):
    make, leaves = all_members()[family]
    y = np.array([2.0, 3.0, 1.0, 2.0])
    single = [leaf.detach().float().requires_grad_() for leaf in leaves]
    a = log_likelihood(Sum(), make(*leaves), Sets(SETS), y)
    b = log_likelihood(Sum(), make(*single), Sets(SETS), y)
    assert b.dtype == torch.float32
    torch.testing.assert_close(b.double(), a, rtol=1e-4, atol=1e-4)
    for g, h in zip(
        torch.autograd.grad(a.sum(), leaves), torch.autograd.grad(b.sum(), single), strict=True
    ):
        torch.testing.assert_close(h.double(), g, rtol=1e-3, atol=1e-3)


def test_one_scale_for_all_members_is_one_number():
    """The cheap path for a shared scale gives the value and the gradient of the long one."""
    for kind in (td.Laplace, td.Gumbel, LogisticDistribution):
        loc = f64(0.1, 0.7, -0.4, 0.9).requires_grad_()
        one = f64(0.8)[0].requires_grad_()
        many = torch.full((4,), 0.8, dtype=torch.float64, requires_grad=True)
        sets, y = Sets([[0, 1, 2], [3, 1, 1]]), f64(1.0, 2.5)
        a = log_likelihood(Sum(), kind(loc, one.expand(4)), sets, y)
        b = log_likelihood(Sum(), kind(loc, many), sets, y)
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
        (g,) = torch.autograd.grad(a.sum(), one)
        (h,) = torch.autograd.grad(b.sum(), many)
        torch.testing.assert_close(g, h.sum(), rtol=1e-11, atol=1e-11)


# ---- heavy tails


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 7.3, 40.0, 60.0, 700.0])
def test_transform_of_student(mu):
    """Against the Bessel functions: z^μ K_μ(z), and its boundary values on the cut."""
    half = f64(mu)
    for angle in (math.pi / 2, 1.0, 0.3):
        for size in (1e-5, 0.1, 1.0, 6.0):
            if mu > 50 and angle < 1 and size > 1:
                continue
            x = torch.tensor(
                [size * complex(math.cos(angle), math.sin(angle))], dtype=torch.complex128
            )
            x = x if angle < 1.5 else f64(size)
            z = -1j * mpmath.sqrt(2 * mu) * size * mpmath.expjpi(angle / math.pi)
            want = mpmath.mpf(2) ** (1 - mu) / mpmath.gamma(mu) * z**mu * mpmath.besselk(mu, z)
            got = complex(log_transform(half, x).exp())
            assert abs(got / complex(want) - 1) < 1e-10
    for share in (1e-6, 0.1, 0.5, 0.8):
        u = share * end_of_cut(half)
        size, angle = (float(t) for t in log_transform_on_cut(half, u))
        x = mpmath.sqrt(2 * mu) * float(u)
        a, b = -mpmath.bessely(mu, x), mpmath.besselj(mu, x)
        front = mpmath.log(mpmath.pi * (x / 2) ** mu / mpmath.gamma(mu))
        assert size == pytest.approx(float(front + mpmath.log(abs(mpmath.mpc(a, b)))), abs=1e-9)
        assert angle == pytest.approx(float(mpmath.log(mpmath.atan(b / a))), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "df", [(4.0, 4.0), (3.0, 12.0), (0.4, 5.0), (30.0, 30.0), (3.0, 1e3), (1e4, 1e4)]
)
def test_student_near_and_far(df):
    y = np.array([0.0, 0.5, 3.0, 9.0, 20.0, 200.0, 1e4, 1e6])
    y = y[:5] if min(df) > 100 else y
    d = td.StudentT(f64(*df), f64(0.0, 0.0), f64(1.0, 0.5))
    oracles = [
        Density(stats.t(n, 0, s), 0, s, reach=70 if n < 30 else 24)
        for n, s in zip(df, (1.0, 0.5), strict=True)
    ]
    want = sum_density(oracles, y)
    got = log_likelihood(Sum(), d, same_set(2, len(y)), y).exp().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-250)


def test_three_student_members_against_bessel_functions():
    df, scale = np.array([3.0, 5.0, 2.5]), np.array([1.0, 0.4, 2.5])
    y = np.array([0.0, 1.0, -4.0, 12.0])

    def transform(t):
        z = np.sqrt(df) * scale * t[..., None]
        mu = df / 2
        return np.prod(z**mu * special.kv(mu, z) * 2 ** (1 - mu) / special.gamma(mu), -1)

    cuts = np.concatenate([2.0 ** np.arange(-40, -2), np.arange(0.25, 30, 0.1)])
    want = [integrate(lambda t, v=v: transform(t) * np.cos(t * v) / math.pi, cuts) for v in y]
    d = td.StudentT(f64(*df), f64(0.0, 0.0, 0.0), f64(*scale))
    got = log_likelihood(Sum(), d, same_set(3, 4), y).exp().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_student_with_one_degree_of_freedom_is_cauchy():
    scale = f64(1.0, 0.3, 2.0)
    y = np.array([0.0, 1.0, -7.0, 50.0, 1e4, -1e8])
    one = td.StudentT(torch.ones(3, dtype=torch.float64), torch.zeros(3), scale)
    got = log_likelihood(Sum(), one, same_set(3, len(y)), y)
    closed(got, stats.cauchy.logpdf(y, 0, 3.3), rtol=1e-10)


def test_student_with_many_degrees_of_freedom():
    """Where a sum stops being normal and one member takes over: a dense sum in log space."""
    x = np.arange(-80, 180, 0.002)
    y = np.array([11.0, 17.0, 25.0, 30.0, 40.0, 60.0])
    for df, error in ((99.0, 1e-9), (150.0, 1e-7)):
        terms = stats.t.logpdf(x, df) + stats.t.logpdf(y[:, None] - x, df)
        want = special.logsumexp(terms, 1) + math.log(0.002)
        one = f64(df)[0].expand(2)
        d = td.StudentT(one, torch.zeros(2), f64(1.0)[0].expand(2))
        got = log_likelihood(Sum(), d, same_set(2, len(y)), y).numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=error)


def test_student_beyond_reach_is_finite():
    """Many degrees of freedom, a hundred deviations out: rough, but finite and well directed."""
    loc = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    d = td.StudentT(f64(400.0, 500.0, 900.0), loc, f64(1.0, 1.0, 1.0))
    y = f64(80.0, 120.0, 1e3, -1e5)
    value = log_likelihood(Sum(), d, same_set(3, 4), y)
    assert value.isfinite().all()
    for i, v in enumerate(value):
        (grad,) = torch.autograd.grad(v, loc, retain_graph=True)
        assert grad.isfinite().all()
        assert (grad.sum() * y[i]) > 0


# ---- noise

NOISES = {
    "normal": (td.Normal, lambda s: Density(stats.norm(0, s), 0, s, reach=6)),
    "laplace": (td.Laplace, lambda s: Density(stats.laplace(0, s), 0, s)),
}


def with_noise(aggregate, d, sets, y, law):
    return noisy_total(
        aggregate, map_parameters(d, sets.members), sets.flat, torch.as_tensor(y), law
    )


@each
@pytest.mark.parametrize("noise", sorted(NOISES))
def test_noise_on_continuous_sums(family, noise):
    kind, oracle = NOISES[noise]
    y = np.array([-2.0, 0.3, 1.1, 20.0])
    for scale, weight in ((0.6, None), (2.0, [-0.5]), (0.05, None)):
        d, oracles = members(family, 1, weight)
        law = kind(torch.zeros((), dtype=torch.float64), torch.tensor(scale, dtype=torch.float64))
        got = with_noise(Sum(), d, same_set(1, len(y), weight), y, law)
        want = sum_density([*oracles, oracle(scale)], y)
        np.testing.assert_allclose(got.exp().numpy(), want, rtol=1e-9, atol=1e-250)
    if family == "studentt":
        return  # the oracle is slow; see the derivatives
    d, oracles = members(family, 2, None)
    got = with_noise(Sum(), d, same_set(2, 2), y[1:3], kind(f64(0.0)[0], f64(0.6)[0]))
    want = sum_density([*oracles, oracle(0.6)], y[1:3])
    np.testing.assert_allclose(got.exp().numpy(), want, rtol=1e-7)


@pytest.mark.parametrize("noise", sorted(NOISES))
@pytest.mark.parametrize("family", DISCRETE)
def test_noise_on_lattices(family, noise):
    make, leaves = all_members()[family]
    d = make(*leaves)
    v = np.arange(200)
    rows = {
        "poisson": lambda: [stats.poisson.pmf(v, r) for r in leaves[0].tolist()],
        "negativebinomial": lambda: [
            stats.nbinom.pmf(v, r, special.expit(-l))
            for r, l in zip(*(x.tolist() for x in leaves), strict=True)
        ],
        "categorical": lambda: list(leaves[0].detach().softmax(-1).numpy()),
    }[family]()
    sets = Sets([[0, 1], [2, 3, 4], [1, 4]])
    for scale in (0.01, 0.7, 8.0):
        law = NOISES[noise][0](torch.zeros((), dtype=torch.float64), f64(scale)[0])
        log_noise = {
            "normal": lambda e, s=scale: stats.norm.logpdf(e, 0, s),
            "laplace": lambda e, s=scale: -np.abs(e) / s - math.log(2 * s),
        }[noise]
        for y in (np.array([-3.0, 2.5, 4.0]), np.array([1.99, 40.0, 0.3])):
            for aggregate in (Sum(), Mean()):
                got = with_noise(aggregate, d, sets, y, law).detach().numpy()
                for i, members_ in enumerate(sets):
                    pmf = pmf_sum([rows[r] for r in members_])
                    at = np.arange(len(pmf)) / (len(members_) if aggregate == Mean() else 1)
                    with np.errstate(divide="ignore"):
                        want = special.logsumexp(np.log(pmf) + log_noise(y[i] - at))
                    assert got[i] == pytest.approx(want, rel=1e-9, abs=1e-9), (scale, aggregate, i)


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_noise_on_large_counts(noise):
    """Counts in the thousands, whose Fourier sums would be long."""
    shapes, p = (2.0, 0.7), (0.9995, 0.999)
    n = 1 << 17
    rows = [
        np.fft.rfft(stats.nbinom.pmf(np.arange(n), r, 1 - q))
        for r, q in zip(shapes, p, strict=True)
    ]
    pmf = np.fft.irfft(rows[0] * rows[1], n)
    d = td.NegativeBinomial(f64(*shapes), probs=f64(*p))
    y = np.array([3000.3, 5200.0, 30.0])
    for scale in (0.2, 1.5, 300.0):
        frozen = stats.norm(0, scale) if noise == "normal" else stats.laplace(0, scale)
        law = NOISES[noise][0](f64(0.0)[0], f64(scale)[0])
        got = with_noise(Sum(), d, same_set(2, 3), y, law).exp().numpy()
        want = [(pmf * frozen.pdf(v - np.arange(n))).sum() for v in y]
        np.testing.assert_allclose(got, want, rtol=1e-8)


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_noise_on_cauchy_and_normal(noise):
    kind, oracle = NOISES[noise]
    y = np.array([-600.0, -0.4, 0.3, 4.0, 1e5])
    for scale in (0.05, 0.6, 20.0):
        law = kind(f64(0.0)[0], f64(scale)[0])
        wide = Density(stats.cauchy(0.2, 1.5), 0.2, 1.5, reach=40)
        got = with_noise(Sum(), td.Cauchy(f64(0.1, 0.1), f64(0.7, 0.8)), same_set(2, 5), y, law)
        np.testing.assert_allclose(
            got.exp().numpy(), sum_density([wide, oracle(scale)], y), rtol=1e-8
        )
        got = with_noise(Sum(), td.Normal(f64(0.1, 0.1), f64(0.6, 0.8)), same_set(2, 5), y, law)
        if noise == "normal":
            closed(got, stats.norm.logpdf(y, 0.2, math.hypot(1, scale)))
        else:
            closed(got, log_normal_laplace(torch.tensor(y) - 0.2, f64(1.0), f64(scale)))


def test_noise_on_classes_with_gaps():
    logits = f64(0.0, -9000.0, -math.log(2)).log_softmax(0).expand(2, 3)
    law = td.Normal(torch.zeros((), dtype=torch.float64), f64(1e-3)[0])
    got = with_noise(Sum(), td.Categorical(logits=logits), same_set(2, 1), f64(1.0), law)
    terms = [-9000 + math.log(2) + 2 * logits[0, 0].item() + stats.norm.logpdf(0, 0, 1e-3)]
    assert got.item() == pytest.approx(special.logsumexp(terms), rel=1e-9)


def test_noise_far_out_and_mean_weights():
    d, oracles = members("laplace", 2, (0.25, 0.75))
    law = td.Normal(torch.zeros((), dtype=torch.float64), f64(0.5)[0])
    y = np.array([0.3, 2.0])
    sets = same_set(2, 2, (1.0, 3.0))
    got = with_noise(Mean(), d, sets, y, law).exp().numpy()
    np.testing.assert_allclose(got, sum_density([*oracles, NOISES["normal"][1](0.5)], y), rtol=1e-6)
    got = with_noise(Sum(), td.Poisson(f64(1e-3, 5.0)), same_set(2, 2), f64(-1e6, 1e7), law)
    assert got[0].item() == pytest.approx(stats.norm.logpdf(-1e6, 0, 0.5) - 5.001, rel=1e-14)
    assert got.isfinite().all()


@pytest.mark.parametrize(
    ("family", "noise"), list(zip(FAMILIES, itertools.cycle(sorted(NOISES)), strict=False))
)
def test_derivatives_with_noise(family, noise):
    make, leaves = all_members()[family]
    law = NOISES[noise][0](torch.zeros((), dtype=torch.float64), f64(0.7)[0])
    sets = Sets([[0, 1], [4, 2]])

    def value(*leaves):
        return with_noise(Mean(), make(*leaves), sets, f64(1.3, -0.6), law)

    assert torch.autograd.gradcheck(value, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(value, leaves, fast_mode=True)


def test_normal_plus_laplace():
    for tau, b in ((1.0, 1.0), (1e-4, 1.0), (1.0, 1e-4), (3.0, 0.2)):
        x = np.array([0.0, 0.3, -2.0, 8.0, 400.0, -1e5])
        got = log_normal_laplace(torch.tensor(x), f64(tau), f64(b)).numpy()
        for xi, gi in zip(np.abs(x), got, strict=True):
            t, s = mpmath.mpf(tau), mpmath.mpf(b)
            with mpmath.workdps(60 + int(min(2000, 0.5 * (tau / b) ** 2))):
                u = mpmath.erfc((t / s - xi / t) / mpmath.sqrt(2)) * mpmath.exp(-xi / s)
                w = mpmath.erfc((t / s + xi / t) / mpmath.sqrt(2)) * mpmath.exp(xi / s)
                want = t * t / (2 * s * s) + mpmath.log((u + w) / (4 * s))
            assert gi == pytest.approx(float(want), rel=1e-12, abs=1e-12)
