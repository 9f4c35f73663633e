"""Families against mpmath, in the bulk and in both tails; derivatives, supports, cumulants."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath as mp
import pytest
import scipy.stats
import torch
import torch.distributions as td
from family_oracles import ALL, CONTINUOUS, GRIDS, ORACLES, WITH_CGF, grid, make
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import setwise.distributions as D
from setwise.distributions import interval

F64 = torch.float64
INF = math.inf
FUNCTIONS = ("log_cdf", "log_survival", "log_density")


def t64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


@pytest.fixture(autouse=True)
def _digits() -> Any:
    with mp.workdps(40):
        yield


def test_every_family_has_an_oracle() -> None:
    assert set(ALL) == set(ORACLES) == set(GRIDS)


@pytest.mark.parametrize("name", ALL)
def test_values(name: str) -> None:
    x, *columns = grid(name)
    d = make(name, *columns)
    found = [getattr(D, f)(d, x).tolist() for f in FUNCTIONS]
    for i, case in enumerate(GRIDS[name]):
        for f, values, want in zip(FUNCTIONS, found, ORACLES[name](*case), strict=True):
            if mp.isinf(want):
                assert values[i] == -INF, (f, case)
                continue
            error = abs(values[i] - want)
            assert error <= 4e-13 * max(1, abs(want)), (f, case, values[i], float(want))
            if f != "log_density" and abs(want) > 1e-290:  # small logs are accurate too
                assert error <= 1e-11 * abs(want), (f, case, values[i], float(want))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_derivatives_in_x_far_out(name: str) -> None:
    """(log F)′ = f/F and (log F)″ = (f/F) ((log f)′ − f/F), and likewise for the survival."""
    x, *columns = grid(name)
    d = make(name, *columns)
    x = x.requires_grad_()
    log_f = D.log_density(d, x)
    (slope_f,) = torch.autograd.grad(log_f.sum(), x, retain_graph=True)
    for f, sign in (("log_cdf", 1.0), ("log_survival", -1.0)):
        value = getattr(D, f)(d, x)
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad((slope + 0 * x).sum(), x)
        hazard = sign * (log_f - value).exp().detach()
        clear = log_f.abs() < 1e3  # beyond, the difference of two logs has lost its digits
        torch.testing.assert_close(slope[clear], hazard[clear], rtol=1e-9, atol=1e-290)
        kink = x == d.loc if name == "laplace" else torch.zeros_like(x, dtype=torch.bool)
        wanted = torch.where(kink, curve, hazard * (slope_f - hazard))
        size = hazard.abs() * (hazard.abs() + slope_f.abs() + 1 / x.abs()) + 1e-290
        wrong = clear & ((curve - wanted).abs() > 1e-7 * size)
        assert curve.isfinite().all()
        assert not wrong.any(), (f, x[wrong], curve[wrong], wanted[wrong])


CHECKED = {  # a few ordinary points for gradcheck: x, then the parameters
    "normal": [(0.4, 0.1, 1.3), (-20.0, 0.1, 1.3), (6.0, 0.1, 0.7)],
    "cauchy": [(0.4, 0.1, 1.3), (-30.0, 0.1, 1.3), (14.0, 0.1, 0.7)],
    "laplace": [(0.4, 0.1, 1.3), (-3.0, 0.1, 1.3), (4.0, 0.1, 0.7)],
    "logistic": [(0.4, 0.1, 1.3), (-9.0, 0.1, 1.3), (4.0, 0.1, 0.7)],
    "gumbel": [(0.4, 0.1, 1.3), (-3.0, 0.1, 1.3), (9.0, 0.1, 0.7)],
    "studentt": [(0.4, 0.1, 1.3, 4.0), (-9.0, 0.1, 1.3, 0.7), (4.0, 0.1, 0.7, 50.0)],
    "exponential": [(0.01, 1.3), (0.4, 1.3), (9.0, 0.7)],
    "gamma": [(0.01, 0.8, 1.3), (0.4, 5.0, 1.3), (9.0, 0.2, 0.7), (2e-3, 0.1, 0.5)],
    "poisson": [(0.0, 1.3), (9.0, 1.3), (3.0, 8.0)],
    "negativebinomial": [(0.0, 0.8, 0.3), (9.0, 0.8, -1.0), (3.0, 8.0, 0.5)],
    "categorical": [(0.0, 0.3, -1.0, 2.0), (1.0, 3.0, 0.0, -3.0)],
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients(name: str, function: str) -> None:
    x, *columns = torch.tensor(CHECKED[name], dtype=F64).unbind(1)
    inputs = [c.clone().requires_grad_() for c in columns]

    if name in CONTINUOUS:
        inputs.append(x.clone().requires_grad_())

        def call(*values: Tensor) -> Tensor:
            return getattr(D, function)(make(name, *values[:-1]), values[-1])

    else:

        def call(*values: Tensor) -> Tensor:
            return getattr(D, function)(make(name, *values), x)

    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs)


# ---- large counts, supports, shapes, types


def test_large_counts() -> None:
    """Where textbook formulas lose digits to log Γ of large numbers."""
    x, rate = t64(1e8, 1e8 + 3e4), t64(1e8)
    with mp.workdps(60):
        wanted = [
            float(mp.mpf(k) * mp.log(mp.mpf(1e8)) - mp.mpf(1e8) - mp.loggamma(mp.mpf(k) + 1))
            for k in x.tolist()
        ]
        limit = [
            float(
                mp.loggamma(mp.mpf(1e10) + k)
                - mp.loggamma(mp.mpf(1e10))
                - mp.loggamma(k + 1)
                - mp.mpf(1e10) * mp.log1p(mp.exp(mp.mpf(-20)))
                - k * mp.log1p(mp.exp(mp.mpf(20)))
            )
            for k in (20, 40)
        ]
    torch.testing.assert_close(D.log_density(td.Poisson(rate), x), t64(*wanted), rtol=1e-12, atol=0)
    d = td.NegativeBinomial(t64(1e10), logits=t64(-20.0))
    torch.testing.assert_close(D.log_density(d, t64(20, 40)), t64(*limit), rtol=1e-12, atol=0)


def test_outside_the_support_probabilities_are_exact_and_gradients_zero() -> None:
    outside = {
        **{n: [-INF, INF] for n in ALL},
        "exponential": [-1.0, -INF, INF],
        "gamma": [-1.0, 0.0, -INF, INF],
        "poisson": [-1.0, 0.5, -INF, INF],
        "negativebinomial": [-1.0, 0.5, -INF, INF],
        "categorical": [-1.0, 0.5, 3.0, -INF, INF],
    }
    for name in ALL:
        x = t64(*outside[name])
        columns = [c[:1].clone().requires_grad_() for c in grid(name)[1:]]
        for f in FUNCTIONS:
            value = getattr(D, f)(make(name, *columns), x)
            if f == "log_density":
                assert (value == -INF).all(), name
                grads = torch.autograd.grad(value[value.isinf()].sum(), columns, allow_unused=True)
            else:
                up, down = (0.0, -INF) if f == "log_cdf" else (-INF, 0.0)
                ends = x.isinf() | (x <= 0)
                assert value[ends].tolist() == [up if v > 0 else down for v in x[ends]], name
                grads = torch.autograd.grad(value[ends].sum(), columns, allow_unused=True)
            assert all(g is None or (g == 0).all() for g in grads), (name, f)


def test_steps_of_discrete_families() -> None:
    for name in ("poisson", "negativebinomial", "categorical"):
        d = make(name, *[c[:1] for c in grid(name)[1:]])
        for f in ("log_cdf", "log_survival"):
            at, between = (getattr(D, f)(d, t64(x)) for x in (1.0, 1.7))
            assert torch.equal(at, between)
        counts = torch.tensor([0, 1, 2])
        for f in FUNCTIONS:
            assert torch.equal(getattr(D, f)(d, counts), getattr(D, f)(d, counts.double()))


@pytest.mark.parametrize("name", ALL)
def test_broadcasting_and_types(name: str) -> None:
    x, *columns = (c[:4] for c in grid(name))
    for f in FUNCTIONS:
        d = make(name, *columns)
        table = getattr(D, f)(d, x.unsqueeze(1))
        assert table.shape == (4, 4)
        assert torch.equal(table.diagonal(), getattr(D, f)(d, x))
        single = getattr(D, f)(make(name, *(c.float() for c in columns)), x.float())
        assert single.dtype == torch.float32
        assert getattr(D, f)(d, x[0]).dtype == F64
    centre, width = D.families()[name].centre_width(d)
    assert centre.shape == width.shape == (4,)
    assert centre.isfinite().all()
    assert (width >= 0).all()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_intervals_hold_what_they_say(name: str) -> None:
    d = make(name, *grid(name)[1:])
    low, high = (torch.from_numpy(end) for end in interval(d, 0.9))
    told = (low != 0) & (high != 0)  # a quantile can be too small for a number
    below, above = D.log_cdf(d, low).exp()[told], D.log_survival(d, high).exp()[told]
    assert told.any()
    torch.testing.assert_close(below, torch.full_like(below, 0.05))
    torch.testing.assert_close(above, torch.full_like(above, 0.05))


def test_intervals_of_counts_hold_at_least_what_they_say() -> None:
    rates = t64(0.01, 0.7, 5.0, 300.0)
    for d in (td.Poisson(rates), td.NegativeBinomial(rates, logits=torch.zeros_like(rates))):
        low, high = (torch.from_numpy(end) for end in interval(d, 0.9))
        assert (D.log_cdf(d, high).exp() >= 0.95 - 1e-12).all()
        assert (D.log_cdf(d, low).exp() >= 0.05 - 1e-12).all()
        assert (D.log_cdf(d, low - 1).exp() < 0.05).all()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_centre_and_width_hold_the_bulk(name: str) -> None:
    family = D.families()[name]
    d = make(name, *grid(name)[1:])
    centre, width = family.centre_width(d)
    low, high = centre - 20 * width, centre + 20 * width
    if family.positive:
        low, high = low.exp(), high.exp()
    inside = D.log_cdf(d, high).exp() - D.log_cdf(d, low).exp()
    assert (inside > 0.7).all()


@pytest.mark.parametrize("name", ALL)
def test_samples_follow_the_cdf(name: str) -> None:
    columns = torch.tensor(CHECKED[name], dtype=F64).unbind(1)[1:]
    d = make(name, *columns)
    z = d.sample((4000,)).double()
    p = D.log_cdf(d, z).exp()
    if name in CONTINUOUS:
        for column in p.unbind(1):
            assert scipy.stats.kstest(column.numpy(), "uniform").pvalue > 1e-3
    else:
        for k in (0.0, 1.0, 3.0):
            share = (z <= k).double().mean(0)
            exact = D.log_cdf(d, t64(k)).exp()
            assert ((share - exact).abs() < 4 * (exact * (1 - exact) / 4000).sqrt() + 1e-9).all()


# ---- cumulant generating functions


def cgf_oracle(name: str, s: Any, p: list[Any]) -> Any:
    """E exp(sZ) in closed form."""
    if name == "normal":
        return mp.exp(p[0] * s + (p[1] * s) ** 2 / 2)
    if name == "laplace":
        return mp.exp(p[0] * s) / (1 - (p[1] * s) ** 2)
    if name == "logistic":
        return mp.exp(p[0] * s) * mp.gamma(1 - p[1] * s) * mp.gamma(1 + p[1] * s)
    if name == "gumbel":
        return mp.exp(p[0] * s) * mp.gamma(1 - p[1] * s)
    if name == "exponential":
        return 1 / (1 - s / p[0])
    if name == "gamma":
        return (1 - s / p[1]) ** -p[0]
    if name == "poisson":
        return mp.exp(p[0] * (mp.exp(s) - 1))
    if name == "negativebinomial":
        q = 1 / (1 + mp.exp(p[1]))
        return (q / (1 - (1 - q) * mp.exp(s))) ** p[0]
    return mp.fsum(mp.exp(v + k * s) for k, v in enumerate(p)) / mp.fsum(map(mp.exp, p))


@pytest.mark.parametrize("name", WITH_CGF)
def test_cgf(name: str) -> None:
    columns = torch.tensor(CHECKED[name], dtype=F64).unbind(1)[1:]
    d, cgf = make(name, *columns), D.families()[name].cgf
    low, high = (end.clamp(-2, 2) for end in D.families()[name].cgf_domain(d))
    for share, t in itertools.product((-0.9, -1e-7, 0.0, 0.3, 0.9), (0.0, 1e-6, -0.4, 2.0, 30.0)):
        real = share * torch.where(t64(share) < 0, -low, high)
        s = torch.complex(real, torch.full_like(real, t))
        found = cgf(d, s)
        if t == 0:
            torch.testing.assert_close(cgf(d, real), found.real, rtol=1e-12, atol=1e-14)
        for i, value in enumerate(found.tolist()):
            parameters = [mp.mpf(c[i].item()) for c in columns]
            want = cgf_oracle(name, mp.mpc(s[i].real.item(), t), parameters)
            assert abs(mp.exp(mp.mpc(value)) / want - 1) < 1e-12, (share, t, i)


@pytest.mark.parametrize("name", WITH_CGF)
def test_cgf_derivatives(name: str) -> None:
    columns = torch.tensor(CHECKED[name], dtype=F64).unbind(1)[1:]
    family = D.families()[name]
    s = torch.zeros(len(columns[0]), dtype=F64, requires_grad=True)
    d = make(name, *columns)
    (mean,) = torch.autograd.grad(family.cgf(d, s).sum(), s, create_graph=True)
    (variance,) = torch.autograd.grad(mean.sum(), s)
    if family.peaked:
        torch.testing.assert_close(family.cgf_slope(d, s), mean, rtol=1e-12, atol=1e-14)
    if name == "categorical":
        centre, width = family.centre_width(d)
        expected = centre, width**2
    else:
        expected = d.mean, d.variance
    torch.testing.assert_close(mean.detach(), expected[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(variance, expected[1], rtol=1e-7, atol=1e-14)

    high = family.cgf_domain(d)[1].clamp_max(1.0)
    s = torch.complex(0.4 * high, torch.full_like(high, 0.8))
    inputs = [c.clone().requires_grad_() for c in columns]

    def call(*values: Tensor) -> Tensor:
        return torch.view_as_real(family.cgf(make(name, *values), s))

    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs)


def test_cgf_of_high_frequencies() -> None:
    s = torch.tensor([0.5 + 1e6j, -0.5 - 1e6j, 0.3 + 40j], dtype=torch.complex128)
    for name, terms in (("logistic", (-1, 1)), ("gumbel", (-1,))):
        d = make(name, t64(0.2), t64(0.9))
        for value, at in zip(D.families()[name].cgf(d, s).tolist(), s.tolist(), strict=True):
            b, z = mp.mpf(0.9), mp.mpc(at)
            want = mp.mpf(0.2) * z + mp.fsum(mp.loggamma(1 + k * b * z) for k in terms)
            assert abs(mp.mpc(value) - want) < 1e-14 * abs(want)


def test_heavy_tails_have_no_cgf() -> None:
    for name in ("cauchy", "studentt"):
        d = make(name, *[c[:1] for c in grid(name)[1:]])
        with pytest.raises(NotImplementedError):
            D.families()[name].cgf(d, t64(0.0))
