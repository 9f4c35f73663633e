"""Integrals over densities and distribution functions, and the aggregates that need them."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import distributions as td

from setwise._math import order_probability as chain
from setwise._math import quadrature, summation
from setwise._math.even_nodes import UNKNOWN, log_ordered_evenly
from setwise._math.integration_axis import Line, recentred
from setwise._math.order_probability import _by_cells, log_ordered
from setwise._math.pair_differences import Tails, between
from setwise._math.quadrature import clenshaw_curtis, log_integral, rebuild
from setwise._math.summation import log_sum
from setwise.aggregates.pairs import Difference, Rank
from setwise.aggregates.ranking import Choice, Ranking
from setwise.distributions import (
    LogisticDistribution,
    double,
    log_cdf,
    log_density,
    log_survival,
    map_parameters,
    parameters,
)
from setwise.likelihood import Targets, find_rule, log_likelihood
from setwise.numerics import log_ndtr
from setwise.observations import Observations
from setwise.sets import Sets

F64 = torch.float64
MAKE = {
    "normal": (td.Normal, "loc", "scale"),
    "cauchy": (td.Cauchy, "loc", "scale"),
    "laplace": (td.Laplace, "loc", "scale"),
    "logistic": (LogisticDistribution, "loc", "scale"),
    "gumbel": (td.Gumbel, "loc", "scale"),
    "studentt": (td.StudentT, "df", "loc", "scale"),
    "exponential": (td.Exponential, "rate"),
    "gamma": (td.Gamma, "concentration", "rate"),
    "poisson": (td.Poisson, "rate"),
    "negativebinomial": (td.NegativeBinomial, "total_count", "logits"),
    "categorical": (td.Categorical, "logits"),
}
RANGE = {
    "loc": (-1.5, 1.5), "scale": (0.5, 1.6), "df": (2.5, 6), "concentration": (0.7, 4),
    "total_count": (0.8, 4), "logits": (-2, -0.5),
}  # fmt: skip
CONTINUOUS = [name for name in MAKE if name not in ("poisson", "negativebinomial", "categorical")]
SCIPY = {
    "normal": stats.norm, "cauchy": stats.cauchy, "laplace": stats.laplace,
    "logistic": stats.logistic, "gumbel": stats.gumbel_r, "studentt": stats.t,
}  # fmt: skip


def leaves_of(family, n=6, seed=0, dtype=F64):
    rng = np.random.default_rng(seed)
    shape = (n, 5) if family == "categorical" else (n,)
    values = [rng.uniform(*RANGE.get(name, (0.5, 3)), shape) for name in MAKE[family][1:]]
    return [torch.tensor(v, dtype=dtype, requires_grad=True) for v in values]


def build(family, leaves):
    cls, *names = MAKE[family]
    return cls(**dict(zip(names, leaves, strict=True)))


def example(family, n=6, seed=0, dtype=F64):
    return build(family, leaves_of(family, n, seed, dtype))


def twin(family, d, row):
    at = {name: float(p.detach()[row]) for name, p in parameters(d).items() if p.ndim == 1}
    if family in SCIPY:
        shape = [at["df"]] if family == "studentt" else []
        return SCIPY[family](*shape, at["loc"], at["scale"])
    if family == "exponential":
        return stats.expon(scale=1 / at["rate"])
    if family == "gamma":
        return stats.gamma(at["concentration"], scale=1 / at["rate"])
    if family == "poisson":
        return stats.poisson(at["rate"])
    return stats.nbinom(at["total_count"], special.expit(-at["logits"]))


def quad(f, family, members, *shifts):
    """∫ f over the line, split at the members' centres, plain and shifted."""
    centre = [m.args[0] if family == "laplace" else m.median() for m in members]
    low = 0.0 if family in ("exponential", "gamma") else -np.inf
    points = {c + s for c in centre for s in (0, *shifts)} | ({*shifts} if low == 0 else set())
    points = [low, *sorted(p for p in points if p > low), np.inf]
    with np.errstate(over="ignore"):
        pieces = [
            integrate.quad(f, a, b, epsabs=1e-15, epsrel=1e-12, limit=200)[0]
            for a, b in itertools.pairwise(points)
        ]
    return math.fsum(pieces)


# ---- the integrator


def test_clenshaw_curtis_is_exact_for_polynomials():
    x, w = clenshaw_curtis(16)
    for degree in range(17):
        assert (w * x**degree).sum() == pytest.approx(2 / (degree + 1) if degree % 2 == 0 else 0)


def tensor(*rows):
    return torch.tensor(rows, dtype=F64)


def first_beats_second(d):
    """log P(Z₁ > Z₂) = log ∫ p₁ F₂, by the integrator, for d batched as (sets, 2)."""
    d = recentred(d)

    def integrand(x, *tensors):
        a, b = (rebuild(d, (t[:, k : k + 1] for t in tensors)) for k in (0, 1))
        return log_density(a, x) + log_cdf(b, x)

    return Line.of(d).integral(integrand, list(parameters(d).values()), cost=4)


@pytest.mark.parametrize(
    ("spread", "log_ratio"), [(1, 0.5), (3, 7), (30, 1), (1e3, 0), (1e6, 0), (1e12, 0)]
)
def test_integrals_with_known_answers(spread, log_ratio, rng):
    """Far apart and on very different scales: log probabilities down to −1e24."""
    n = 60
    loc = torch.tensor(np.stack([np.zeros(n), rng.normal(0, spread, n)], 1))
    scale = torch.tensor(np.exp(rng.uniform(-log_ratio, log_ratio, (n, 2))))
    gap = loc[:, 0] - loc[:, 1]
    got = first_beats_second(td.Normal(loc, scale))
    want = log_ndtr(gap / scale.square().sum(1).sqrt())
    torch.testing.assert_close(got, want, rtol=2e-11, atol=2e-11)
    got = first_beats_second(td.Cauchy(loc, scale))
    want = (torch.atan2(torch.ones(n, dtype=F64), -gap / scale.sum(1)) / math.pi).log()
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_a_narrow_step_in_a_wide_density():
    """The gradient with respect to the step's place is the density there, whatever the scales."""
    for width in (1e-3, 1e-6, 1e-9, 1e-12):
        loc = tensor([0.0, 0.3]).requires_grad_()
        d = td.Normal(loc, tensor([1.0, width]))
        value = first_beats_second(d)
        (grad,) = torch.autograd.grad(value.sum(), loc)
        p = stats.norm.sf(0.3)
        assert value.exp().item() == pytest.approx(p, rel=max(1e-10, width**2))
        assert grad[0, 1].item() == pytest.approx(-stats.norm.pdf(0.3) / p, rel=1e-6)


def test_steep_exponentials_and_kinks():
    rate = tensor([1e-8, 1.0, 1e8]).T
    zero = torch.zeros_like(rate)
    got = log_integral(lambda x, r: -r * x.abs(), [rate], zero, 1 / rate, cost=1)
    torch.testing.assert_close(got, (2 / rate[:, 0]).log(), rtol=1e-12, atol=1e-12)
    # no mass at all
    got = log_integral(lambda x, r: x * r - math.inf, [rate], zero, 1 / rate, cost=1)
    assert (got == -math.inf).all()


def test_three_bumps_of_a_power_law_against_mpmath():
    """∏ of three Cauchy densities whose centres and widths differ by many orders."""
    loc, scale = tensor([0.0, 1.0, 5e3]), tensor([1.0, 1e-4, 40.0])

    def product(x, loc, scale):
        d = td.Cauchy(loc.unsqueeze(1), scale.unsqueeze(1), validate_args=False)
        return log_density(d, x.unsqueeze(2)).sum(2)

    got = log_integral(product, [loc, scale], loc, scale, cost=3)
    with mp.workdps(30):
        pairs = list(zip(loc[0].tolist(), scale[0].tolist(), strict=True))
        poles = [mp.mpc(a, b) for a, b in pairs]
        roots = [p for z in poles for p in (z, mp.conj(z))]
        total = mp.mpf(0)
        for z in poles:  # residues in the upper half plane
            rest = mp.fprod(z - r for r in roots if r != z)
            total += (2j * mp.pi / rest).real
        want = mp.log(total * mp.fprod(mp.mpf(b) / mp.pi for _, b in pairs))
    assert got.item() == pytest.approx(float(want), abs=1e-11)


def test_pieces_give_the_same_answer_and_gradient(monkeypatch):
    for family in ("logistic", "studentt"):
        leaves = leaves_of(family, 24)
        rows = np.arange(24).reshape(8, 3)

        def both(family=family, leaves=leaves, rows=rows):
            d = build(family, leaves)
            out = log_likelihood(Ranking(), d, rows, None)
            out = out + log_likelihood(Choice(), d, rows, np.arange(8) % 3)
            return out.detach(), torch.autograd.grad(out.sum(), leaves)

        whole, grads = both()
        monkeypatch.setattr(chain, "_AT_ONCE", 400 * 3 * 3)
        monkeypatch.setattr(quadrature, "_AT_ONCE", 300 * 12 * 3)
        pieces, again = both()
        torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(again, grads, rtol=1e-9, atol=1e-9)
        monkeypatch.undo()


# ---- sums over counts


def test_sum_rules_are_positive_and_exact_for_polynomials():
    for level in (4, 8, 11, 13, 14, 20, 40):
        counts, weights, _ = summation._sum_rule(level)
        length = 1 << level
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(length, rel=1e-13)
        x = (counts + 0.5) / length
        mean = (weights * x**2).sum() / length
        assert mean == pytest.approx(1 / 3 - 1 / (12 * length**2), rel=1e-13)


@pytest.mark.parametrize("mean", [1e-6, 0.3, 5.0, 80.0, 2e3, 3e4, 1e6, 1e9])
def test_probabilities_of_counts_sum_to_one(mean):
    bound = tensor(mean + 12 * math.sqrt(mean) + 50)

    def poisson(k, rate):
        return log_density(td.Poisson(rate), k)

    assert log_sum(poisson, [tensor([mean])], bound, cost=4).item() == pytest.approx(0, abs=1e-11)
    for r in (0.05, 1.0, 7.0):
        logits = math.log(mean / r)
        bound = tensor(mean + 12 * math.sqrt(mean + mean**2 / r) + 50 * (1 + mean / r))

        def negative_binomial(k, r, logits):
            d = td.NegativeBinomial(r, logits=logits, validate_args=False)
            return log_density(d, k)

        total = log_sum(negative_binomial, [tensor([r]), tensor([logits])], bound, cost=4)
        assert total.item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize(("a", "b", "y"), [(2.0, 3.0, -4), (50.0, 70.0, 3), (3e4, 3.1e4, -900)])
def test_skellam(a, b, y):
    got = log_likelihood(Difference(), td.Poisson(tensor(a, b)), [[0, 1]], [y]).item()
    z = 2 * math.sqrt(a * b)  # exp(−z) I_y(z), then what is left of the exponents
    want = math.log(special.ive(abs(y), z)) - (math.sqrt(a) - math.sqrt(b)) ** 2
    want += y / 2 * math.log(a / b)
    assert got == pytest.approx(want, rel=1e-10)


def test_large_counts_meet_the_normal_limit_and_their_own_symmetry():
    d = td.Poisson(tensor(4e6, 4.001e6))
    got = [log_likelihood(Rank(), d, [[0, 1]], [y]).exp().item() for y in (0, 0.5, 1)]
    assert sum(got) == pytest.approx(1, abs=1e-11)
    assert got[2] == pytest.approx(stats.norm.cdf(-1000.5 / math.sqrt(8.001e6)), rel=1e-5)
    swapped = [log_likelihood(Rank(), d, [[1, 0]], [y]).exp().item() for y in (1, 0.5, 0)]
    assert got == pytest.approx(swapped, rel=1e-11)


# ---- against quadrature by scipy and enumeration


PAIRS = Sets([[0, 1], [2, 3], [4, 5]])


@pytest.mark.parametrize("family", CONTINUOUS)
@pytest.mark.parametrize("margin", [0.0, 0.02, 1.0])
def test_rank_of_continuous_targets(family, margin):
    d = example(family)
    for i, y in enumerate((0.0, 1.0, 0.5) if margin else (0.0, 1.0)):
        a, b = (twin(family, d, k) for k in PAIRS[i])
        f = {
            0.0: lambda x, a=a, b=b: b.pdf(x) * a.cdf(x - margin),
            0.5: lambda x, a=a, b=b: b.pdf(x) * (a.cdf(x + margin) - a.cdf(x - margin)),
            1.0: lambda x, a=a, b=b: b.pdf(x) * a.sf(x + margin),
        }[y]
        got = log_likelihood(Rank(margin), d, PAIRS.take([i]), [y]).exp().item()
        assert got == pytest.approx(quad(f, family, [a, b], margin, -margin), rel=1e-10)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_difference_of_continuous_targets(family):
    d = example(family)
    y = [0.4, -1.3, 0.0]
    got = log_likelihood(Difference(), d, PAIRS, y).exp()
    for i, (j, k) in enumerate(PAIRS):
        a, b = twin(family, d, j), twin(family, d, k)
        want = quad(lambda x, i=i, a=a, b=b: a.pdf(x + y[i]) * b.pdf(x), family, [a, b], -y[i])
        assert got[i].item() == pytest.approx(want, rel=1e-11)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_choice_and_ranking_of_continuous_targets(family):
    d = example(family)
    sets = Sets([[0, 1], [2, 3, 4], [5, 0, 3]])
    y = [1, 0, 2]
    choice = log_likelihood(Choice(), d, sets, y).exp()
    ranking = log_likelihood(Ranking(), d, sets, None).exp()
    for i, rows in enumerate(sets):
        members = [twin(family, d, k) for k in rows]
        rest = [m for k, m in enumerate(members) if k != y[i]]

        def chosen(x, i=i, members=members, rest=rest):
            return members[y[i]].pdf(x) * math.prod(m.cdf(x) for m in rest)

        def ordered(x, members=members):  # over the middle one of three, or the last one of two
            a, b, *c = members
            return b.pdf(x) * a.sf(x) * math.prod(m.cdf(x) for m in c)

        assert choice[i].item() == pytest.approx(quad(chosen, family, members), rel=1e-10)
        assert ranking[i].item() == pytest.approx(quad(ordered, family, members), rel=1e-9)


@pytest.mark.parametrize("family", ["poisson", "negativebinomial", "categorical"])
@pytest.mark.parametrize("margin", [0, 1, 3])
def test_pairs_of_discrete_targets_by_enumeration(family, margin):
    d = example(family)
    for i, (j, k) in enumerate(PAIRS):
        if family == "categorical":
            p, q = d.probs[j].detach().numpy(), d.probs[k].detach().numpy()
        else:
            p, q = (twin(family, d, r).pmf(np.arange(120)) for r in (j, k))
        table = np.outer(p, q)
        gap = np.subtract.outer(np.arange(len(p)), np.arange(len(p)))
        parts = {0: gap < -margin, 0.5: abs(gap) <= margin, 1: gap > margin}
        for y, part in parts.items():
            got = log_likelihood(Rank(margin), d, PAIRS, [y] * 3)[i].exp().item()
            assert got == pytest.approx(table[part].sum(), rel=1e-11)
        for y in (-3, 0, 2):
            got = log_likelihood(Difference(), d, PAIRS, [y] * 3)[i].exp().item()
            assert got == pytest.approx(table[gap == y].sum(), rel=1e-11)
    assert (log_likelihood(Difference(), d, PAIRS, [0.5] * 3) == -math.inf).all()


# ---- identities


@pytest.mark.parametrize("family", CONTINUOUS)
def test_identities(family):
    d = example(family)
    orders = Sets(list(itertools.permutations(range(4))))
    ranking = log_likelihood(Ranking(), d, orders, None).exp()
    assert ranking.sum().item() == pytest.approx(1, abs=1e-10)
    choice = log_likelihood(Choice(), d, np.tile(np.arange(4), (4, 1)), np.arange(4)).exp()
    assert choice.sum().item() == pytest.approx(1, abs=1e-11)
    first = torch.stack([ranking[[rows[0] == k for rows in orders]].sum() for k in range(4)])
    torch.testing.assert_close(first, choice, rtol=1e-9, atol=1e-11)
    two = log_likelihood(Rank(), d, [[0, 1], [1, 0]], [1, 0])
    assert two[0].item() == pytest.approx(two[1].item(), rel=1e-12)
    other = log_likelihood(Ranking(), d, [[0, 1]], None)
    assert other.item() == pytest.approx(two[0].item(), rel=1e-10)
    there = log_likelihood(Difference(), d, [[0, 1], [1, 0]], [0.7, -0.7])
    assert there[0].item() == pytest.approx(there[1].item(), rel=1e-12)
    alone = [log_likelihood(a, d, [[0]], y).item() for a, y in ((Choice(), [0]), (Ranking(), None))]
    assert alone == [0, 0]


def test_plackett_luce_bradley_terry_and_softmax():
    loc = leaves_of("gumbel", 6)[0]
    one = torch.tensor(0.8, dtype=F64, requires_grad=True)
    d = td.Gumbel(loc, one.expand(6))
    u = loc / one
    pair = log_likelihood(Rank(), d, [[2, 5]], [1])
    assert pair.item() == pytest.approx(torch.sigmoid(u[2] - u[5]).log().item(), rel=1e-13)
    rows = [3, 1, 4, 0]
    want = sum(u[rows[i]] - torch.logsumexp(u[rows[i:]], 0) for i in range(4))
    assert log_likelihood(Ranking(), d, [rows], None).item() == pytest.approx(
        want.item(), rel=1e-13
    )
    soft = torch.log_softmax(u[rows], 0)
    got = log_likelihood(Choice(), d, [rows, rows[:3], rows], [2, 0, 0])
    assert got[0].item() == pytest.approx(soft[2].item(), rel=1e-13)
    # a scale of its own for each member is integrated, and agrees where the scales do
    own = one.detach().repeat(6).requires_grad_()
    for aggregate, y in ((Rank(), [1]), (Difference(), [0.3])):
        a = log_likelihood(aggregate, d, [[2, 5]], y)
        b = log_likelihood(aggregate, td.Gumbel(loc, own), [[2, 5]], y)
        assert a.item() == pytest.approx(b.item(), rel=1e-11)
        (shared,) = torch.autograd.grad(a.sum(), one, retain_graph=True)
        (each,) = torch.autograd.grad(b.sum(), own)
        assert each.sum().item() == pytest.approx(shared.item(), rel=1e-8)
        assert each.count_nonzero() == 2
    fixed = td.Gumbel(loc.detach(), own.detach())
    assert find_rule(Rank, td.Gumbel).exact
    again = log_likelihood(Ranking(), fixed, [rows], None).item()
    assert again == pytest.approx(want.item(), rel=1e-13)


def test_cross_check_with_choix():
    choix = pytest.importorskip("choix")
    strength = np.random.default_rng(0).normal(0, 1, 6)
    d = td.Gumbel(torch.tensor(strength), torch.ones((), dtype=F64).expand(6))
    pairs = [(0, 3), (2, 1), (5, 4)]
    got = log_likelihood(Rank(), d, pairs, np.ones(3)).sum().item()
    assert got == pytest.approx(choix.log_likelihood_pairwise(pairs, strength), rel=1e-12)
    orders = [(3, 0, 1, 5), (4, 2, 0, 1)]
    got = log_likelihood(Ranking(), d, orders, None).sum().item()
    assert got == pytest.approx(choix.log_likelihood_rankings(orders, strength), rel=1e-12)
    tops = [(1, (0, 3)), (4, (2, 5))]
    got = log_likelihood(Choice(), d, [(1, 0, 3), (2, 4, 5)], [0, 1]).sum().item()
    assert got == pytest.approx(choix.log_likelihood_top1(tops, strength), rel=1e-12)


@pytest.mark.parametrize("size", [3, 8, 20])
@pytest.mark.parametrize("spread", [1.0, 20.0, 1e4])
def test_running_integrals_against_plackett_luce(size, spread, rng):
    """The stated error, for orders that hold and orders that are violated."""
    u = torch.tensor(rng.normal(0, spread, (6, size)))
    want = sum(u[:, k] - torch.logsumexp(u[:, k:], 1) for k in range(size))
    got = log_ordered(td.Gumbel(u, torch.ones_like(u)))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    rate = (-u.clamp(-200, 200)).exp()
    log_rate = rate.log()
    want = sum(log_rate[:, k] - torch.logsumexp(log_rate[:, : k + 1], 1) for k in range(size))
    torch.testing.assert_close(log_ordered(td.Exponential(rate)), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", ["normal", "laplace", "cauchy", "logistic"])
@pytest.mark.parametrize(("spread", "log_ratio"), [(1, 0.5), (5, 4), (300, 1), (1e6, 0)])
def test_running_integrals_against_single_ones(family, spread, log_ratio, rng):
    """Of three members, z₁ > z₂ > z₃ is an integral over the middle one alone."""
    shape = (30, 3)
    loc = torch.tensor(rng.normal(0, spread, shape))
    scale = torch.tensor(np.exp(rng.uniform(-log_ratio, log_ratio, shape)))
    d = MAKE[family][0](loc, scale)

    def middle(x, *tensors):
        a, b, c = (rebuild(d, (t[:, k : k + 1] for t in tensors)) for k in range(3))
        return log_density(b, x) + log_survival(a, x) + log_cdf(c, x)

    want = Line.of(d).integral(middle, [loc, scale], cost=4)
    tolerance = 1e-10 if spread < 5 else 1e-8
    torch.testing.assert_close(log_ordered(d), want, rtol=tolerance, atol=tolerance)


def test_intervals_keep_their_digits():
    d = td.Normal(tensor(0.0), tensor(1.0))
    cases = [
        (-1e-9, 1e-9),
        (8.0, 8.000001),
        (-40.0, -39.0),
        (30.0, 1e3),
        (-3.0, 9.0),
        (-12.0, 12.0),
    ]
    for low, high in cases:
        got = between(Tails.of(d), tensor(low), tensor(high)).item()
        with mp.workdps(500):
            p = (mp.erf(mp.mpf(high) / mp.sqrt(2)) - mp.erf(mp.mpf(low) / mp.sqrt(2))) / 2
            want = float(mp.log(p))
        assert got == pytest.approx(want, rel=1e-10)


# ---- extremes


@pytest.mark.parametrize("family", ["normal", "laplace", "logistic", "gumbel", "gamma", "poisson"])
def test_nearly_certain_outcomes_keep_their_digits(family):
    """log P ≈ −tiny is the complement of the other outcomes, to 1e-8."""
    cls, name, *others = MAKE[family]
    first = tensor(40.0, 0.01) if family in ("gamma", "poisson") else tensor(30.0, 0.0)
    d = cls(**{name: first}, **{other: tensor(1.0, 1.0) for other in others})
    outcomes = (0.0, 0.5) if family == "poisson" else (0.0,)
    rest = [log_likelihood(Rank(), d, [[0, 1]], [y]).item() for y in outcomes]
    got = log_likelihood(Rank(), d, [[0, 1]], [1.0]).item()
    assert got < 0
    assert got == pytest.approx(-math.fsum(math.exp(r) for r in rest), rel=1e-8)
    if family != "poisson":
        rows = [[0, 1, 1]]
        others = [log_likelihood(Choice(), d, rows, [k]).exp().item() for k in (1, 2)]
        chosen = log_likelihood(Choice(), d, rows, [0]).item()
        assert chosen == pytest.approx(-sum(others), rel=1e-8)


@pytest.mark.parametrize("family", ["normal", "cauchy", "laplace", "logistic", "studentt"])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_orders_violated_by_a_million_scales(family, dtype):
    cls, *names = MAKE[family]
    for scale in (1e-6, 1.0, 1e6):
        leaves = {n: torch.full((4,), 4.0, dtype=dtype) for n in names}
        leaves["scale"] = torch.full((4,), scale, dtype=dtype)
        loc = scale * 1e6 * torch.tensor([-2.0, -1.0, 0.0, 1.0], dtype=dtype)
        leaves["loc"] = loc.requires_grad_()
        d = cls(**leaves)
        for aggregate, rows, y in (
            (Ranking(), [[0, 1, 2, 3]], None), (Choice(), [[0, 1, 2, 3]], [0]),
            (Rank(), [[0, 3]], [1]), (Difference(), [[0, 3]], [5.0 * scale]),
        ):  # fmt: skip
            value = log_likelihood(aggregate, d, rows, y)
            assert value.isfinite().all()
            assert value.dtype == dtype
            (grad,) = torch.autograd.grad(value.sum(), loc)
            assert grad.isfinite().all()
            assert grad[0] > 0
            assert grad[3] < 0


def test_impossible_is_minus_infinity_with_gradient_zero():
    for family in CONTINUOUS:
        leaves = leaves_of(family)
        value = log_likelihood(Rank(), build(family, leaves), PAIRS, [0.5, 1, 0])
        assert value.isfinite().tolist() == [False, True, True]
        grads = torch.autograd.grad(value[0], leaves, allow_unused=True)
        assert all(g is None or (g == 0).all() for g in grads)
    logits = tensor([0.0, -math.inf, -math.inf], [-math.inf, 0.0, 0.0]).log_softmax(1)
    d = td.Categorical(logits=logits.requires_grad_(), validate_args=False)
    value = log_likelihood(Rank(), d, [[0, 1]] * 3, [1, 0.5, 0])
    assert value.tolist() == [-math.inf, -math.inf, 0]
    (grad,) = torch.autograd.grad(value[:2].sum(), logits)
    assert (grad == 0).all()


def test_large_sets():
    d = example("normal", 150)
    rows = Ranking().observe(d.sample().numpy(), [range(150)]).sets
    value = log_likelihood(Ranking(), d, rows, None)
    leaf = parameters(d)["loc"]
    assert torch.autograd.grad(value.sum(), leaf)[0].isfinite().all()
    # with one distribution all orders are equally likely
    same = td.Normal(torch.zeros((), dtype=F64).expand(150), torch.ones((), dtype=F64).expand(150))
    got = log_likelihood(Ranking(), same, rows, None).item()
    assert got == pytest.approx(-math.lgamma(151), rel=1e-10)
    big = example("normal", 4096)
    value = log_likelihood(Choice(), big, [range(4096)], [17])
    assert torch.autograd.grad(value.sum(), parameters(big)["loc"])[0].isfinite().all()


# ---- derivatives and precision


@pytest.mark.parametrize("family", [f for f in MAKE if f not in ("studentt", "exponential")])
def test_derivatives(family):
    """First and second ones; kinks (Laplace) and shapes (gamma) included."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves_of(family)]
    discrete = family not in CONTINUOUS
    y = [2.0, -1.0, 0.0] if discrete else [0.4, -1.3, 0.8]

    def value(*leaves):
        d = build(family, leaves)
        margin = 0.0 if family == "gamma" else 1.0
        out = [log_likelihood(Difference(), d, PAIRS, y)]
        out.append(log_likelihood(Rank(margin), d, PAIRS, [1, 0, 0.5 if margin else 1]))
        if not discrete:
            rows = [[0, 1, 2], [3, 5, 4]]
            out.append(log_likelihood(Choice(), d, rows, [2, 0]))
            out.append(log_likelihood(Ranking(), d, rows, None))
        return torch.cat(out).sum()

    assert torch.autograd.gradcheck(value, leaves, rtol=1e-5, fast_mode=True)
    assert torch.autograd.gradgradcheck(value, leaves, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("family", list(MAKE))
def test_single_precision(family):
    d = example(family)
    single = map_parameters(d, lambda p: p.detach().float())
    trials = [(Rank(), [1, 0, 1]), (Rank(1.0), [0.5, 0, 1]), (Difference(), [1, -1, 0])]
    if family in CONTINUOUS:
        trials += [(Choice(), [1, 0, 1]), (Ranking(), None)]
    for aggregate, y in trials:
        got = log_likelihood(aggregate, single, PAIRS, y)
        assert got.dtype == torch.float32
        want = log_likelihood(aggregate, double(single), PAIRS, y)
        torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-6)


# ---- what is observed, and what is refused


def test_observe():
    z = [1.0, 5.0, 3.0, 3.2]
    sets = Sets([[0, 1, 2], [3, 2]], names=["a", "b"])
    seen = Ranking().observe(z, sets)
    assert [rows.tolist() for rows in seen.sets] == [[1, 2, 0], [3, 2]]
    assert seen.y is None
    assert seen.sets.names.tolist() == ["a", "b"]
    weighted = Ranking().observe(z, Sets([[0, 1]], weights=[2.0, 7.0])).sets
    assert weighted.weights.tolist() == [7.0, 2.0]
    assert Choice().observe(z, sets).y.tolist() == [1, 0]
    assert Choice().observe([2, 2, 1], [[2, 0, 1], [0]]).y.tolist() == [1, 0]
    assert Rank(0.5).observe(z, [[0, 1], [1, 0], [2, 3]]).y.tolist() == [0, 1, 0.5]
    assert Difference().observe(z, [[1, 0]]).y.tolist() == [4]
    assert Rank(1.0).outcome(Targets(None, False), 2).values == (0, 0.5, 1)
    assert Rank().outcome(Targets(None, False), 2).values == (0, 1)
    assert list(Choice().outcome(Targets(None, False), 3).values) == [0, 1, 2]


@pytest.mark.parametrize(
    ("aggregate", "sets", "y", "message"),
    [
        (Rank(), [[0, 1], [1, 2]], [1, 2], "set 1 has y = 2: .* expects 0 or 0.5 or 1"),
        (Rank(), [[0, 1], [1, 2]], [0.3, 1], "set 0 has y = 0.3"),
        (Rank(), [[0, 1], [1, 2, 0]], [1, 1], "set 1 has 3 members: .* takes sets of 2 members"),
        (Difference(), [[0, 1]], None, "needs a y"),
        (Choice(), [[0, 1], [0, 1, 2]], [1, 3], "set 1 has y = 3, but .* positions 0 to 2"),
        (Choice(), [[0, 1]], [-1], "set 0 has y = -1"),
        (Choice(), [[0, 1]], [0.5], "whole number"),
        (Ranking(), [[0, 1]], [[1.0]], "has 2 member.* but 1 level"),
        (Ranking(), [[0]], [1.0], "y=None .*best first"),
        (Ranking(), [[0, 1]], [[1, 2], [2, 1]], "the list of levels of each of 1 sets, got 2"),
        (Ranking(), [[0, 1]], [[1, math.inf]], "infinite level"),
        (Difference(), [[0, 1]], [math.nan], "set 0 has y = nan"),
    ],
)
def test_bad_observations(aggregate, sets, y, message):
    with pytest.raises(ValueError, match=message):
        Observations(aggregate, sets, y)


def test_bad_margins_and_unknown_pairs():
    for margin in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="tie_margin"):
            Rank(margin)
    for aggregate in (Ranking(), Choice()):
        with pytest.raises(TypeError, match="no likelihood rule"):
            log_likelihood(aggregate, example("poisson"), [[0, 1]], None)


@pytest.mark.parametrize("size", [3, 9, 20])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_even_nodes_know_how_far_off_they_are(size, spread, rng):
    """Against Plackett and Luce; what is not known well enough is said to be unknown."""
    u = torch.tensor(rng.normal(0, spread, (100, size)))
    form = u + torch.tensor(rng.gumbel(size=u.shape))
    u = torch.cat([u, u.gather(1, form.argsort(1, descending=True))])  # of any order, likely ones
    want = sum(u[:, k] - torch.logsumexp(u[:, k:], 1) for k in range(size))
    d = td.Gumbel(u, torch.ones_like(u))
    got = log_ordered_evenly(d, Line.of(d))
    known = got < UNKNOWN
    assert (got[~known] == UNKNOWN).all()
    torch.testing.assert_close(got[known], want[known], rtol=0, atol=1e-10)
    assert size == 20 or known[100:].double().mean() > 0.8


@pytest.mark.parametrize("make", [td.Normal, td.Gumbel, td.Gamma], ids=lambda m: m.__name__)
def test_even_nodes_and_cells_agree(make, rng):
    """Values and gradients by two ways that share no mesh, for members of several widths."""
    first = torch.tensor(rng.normal(size=(40, 6)))
    first = 1 + first.exp() if make is td.Gamma else first
    second = torch.tensor(np.exp(0.3 * rng.normal(size=(40, 6))))
    first, second = first.requires_grad_(), second.requires_grad_()
    d = make(first, second)
    even, cells = log_ordered_evenly(d, Line.of(d)), _by_cells(d, (1,) * 6)
    known = even < UNKNOWN
    assert known.double().mean() > 0.3
    torch.testing.assert_close(even[known], cells[known], rtol=0, atol=2e-10)
    slopes = (torch.autograd.grad(each[known].sum(), (first, second)) for each in (even, cells))
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)
