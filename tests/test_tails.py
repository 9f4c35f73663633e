"""The gamma and beta tail engine and the special functions against mpmath."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest
import torch
from torch import Tensor

from setwise.distributions import special, tails

F64 = torch.float64


@pytest.fixture(autouse=True)
def _digits() -> Any:
    with mp.workdps(40):
        yield


def gamma_series(a: Any, u: Any) -> tuple[Any, Any]:
    """(log P, log Q) by Kummer's series."""
    t = mp.exp(u)
    total = term = 1 / a
    n = 0
    while n <= t - a or term > total * mp.mpf(10) ** -75:
        n += 1
        term *= t / (a + n)
        total += term
    below = mp.exp(a * u - t - mp.loggamma(a)) * total
    return mp.log(below), mp.log1p(-below)


def beta_series(a: Any, b: Any, u: Any) -> tuple[Any, Any]:
    """(log P, log Q) by the hypergeometric series of the left tail."""
    x, y = 1 / (1 + mp.exp(-u)), 1 / (1 + mp.exp(u))
    total = term = 1 / a
    n = 0
    while True:
        ratio = (a + b + n) * x / (a + n + 1)
        if ratio < 1 and term * ratio / (1 - ratio) < total * mp.mpf(10) ** -75:
            break
        term *= ratio
        total += term
        n += 1
    log_beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)
    below = mp.exp(a * mp.log(x) + b * mp.log(y) - log_beta) * total
    return mp.log(below), mp.log1p(-below)


def numeric(function: Callable[..., tuple[Any, Any]], case: tuple[float, ...]) -> Any:
    """Values and first derivatives of an oracle, by differences in 70 digits."""
    point = [mp.mpf(v) for v in case]
    slopes = []
    for i, v in enumerate(point):
        h = mp.mpf(10) ** -20 * max(abs(v), mp.mpf(10) ** -6)
        up, down = list(point), list(point)
        up[i], down[i] = v + h, v - h
        pairs = zip(function(*up), function(*down), strict=True)
        slopes.append([(p - m) / (2 * h) for p, m in pairs])
    return function(*point), slopes


def gamma_tail(a: Tensor, u: Tensor, upper: bool) -> Tensor:
    return tails.log_gamma_tail(a, u, u.exp(), upper=upper)


def tail_cases(kind: str) -> list[tuple[float, ...]]:
    """Random shapes from tiny to large, edges near the bulk, far left, and in flat stretches."""
    pick = random.Random(7)
    cases: list[tuple[float, ...]] = []
    while len(cases) < 36:
        a, b = 10 ** pick.uniform(-7, 3), 10 ** pick.uniform(-7, 3)
        narrow = max(a, 1) if kind == "gamma" else min(max(a, 1), max(b, 1))
        centre = math.log(a) if kind == "gamma" else math.log(a / b)
        u = (centre + pick.gauss(0, 2) / narrow**0.5, pick.uniform(-30, 1), -pick.random() * 3 / a)[
            len(cases) % 3
        ]
        if u < (4 if kind == "gamma" else 1):
            cases.append((a, u) if kind == "gamma" else (a, b, u))
    return cases


@pytest.mark.parametrize("kind", ["gamma", "beta"])
def test_tails(kind: str) -> None:
    oracle: Any = {"gamma": gamma_series, "beta": beta_series}[kind]
    tail: Any = {"gamma": gamma_tail, "beta": tails.log_beta_tail}[kind]
    cases = tail_cases(kind)
    inputs = [c.clone().requires_grad_() for c in torch.tensor(cases, dtype=F64).unbind(1)]
    values = [tail(*inputs, upper=upper) for upper in (False, True)]
    slopes = [torch.autograd.grad(value.sum(), inputs) for value in values]
    for i, case in enumerate(cases):
        with mp.workdps(70):
            wanted, wanted_slopes = numeric(oracle, case)
        for side, want in enumerate(wanted):
            if (side and want < -80) or want > -(mp.mpf(10) ** -40):
                continue  # where the oracle, or its complement, has no digits left
            error = abs(values[side][i].item() - want)
            assert error <= 1e-12 * max(1, abs(want)), (case, side)
            assert error <= 1e-11 * abs(want), (case, side)
            for slope, want_slope in zip(slopes[side], wanted_slopes, strict=True):
                error = abs(slope[i].item() - want_slope[side])
                assert error <= 1e-9 * abs(want_slope[side]) + 1e-14, (case, side)


def test_tails_at_extremes_are_finite_with_derivatives() -> None:
    shapes = [1e-100, 1e-6, 0.1, 1.0, 50.0, 1e6, 1e12]
    edges = [-1e8, -1e4, -40.0, -1.0, 0.0, 1.0, 20.0, 300.0]
    for tail, cases in (
        (gamma_tail, list(itertools.product(shapes, edges))),
        (tails.log_beta_tail, list(itertools.product(shapes, shapes, edges))),
    ):
        for upper in (False, True):
            inputs = [c.clone().requires_grad_() for c in torch.tensor(cases, dtype=F64).unbind(1)]
            value = tail(*inputs, upper=upper)
            first = torch.autograd.grad(value.sum(), inputs, create_graph=True)
            for g in (value, *first):
                assert g.isfinite().all()
            for g in first:
                for h in torch.autograd.grad(g.sum(), inputs, retain_graph=True):
                    assert not h.isnan().any()


def test_tails_use_bounded_memory_pieces() -> None:
    a, u = torch.full((9000,), 2.5, dtype=F64), torch.linspace(-3, 3, 9000, dtype=F64)
    whole = gamma_tail(a, u, upper=True)
    assert torch.equal(whole[::3000], gamma_tail(a[::3000], u[::3000], upper=True))
    assert gamma_tail(a[:0], u[:0], upper=True).shape == (0,)


def test_lgamma() -> None:
    pick = random.Random(1)
    z = [
        complex(10 ** pick.uniform(-3, 3), pick.choice((-1, 1)) * 10 ** pick.uniform(-3, 6))
        for _ in range(100)
    ]
    for at, value in zip(z, special.lgamma(torch.tensor(z, dtype=torch.complex128)), strict=True):
        want = mp.loggamma(mp.mpc(at))
        assert abs(mp.mpc(value.item()) - want) < 2e-14 * max(1, abs(want))
    x = torch.tensor([1e-8, 0.3, 4.0, 77.0], dtype=F64, requires_grad=True)
    (first,) = torch.autograd.grad(special.lgamma(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    for i, at in enumerate(x.tolist()):
        assert abs(first[i].item() / mp.psi(0, at) - 1) < 1e-13
        assert abs(second[i].item() / mp.psi(1, at) - 1) < 1e-13
