"""Distribution functions in mpmath, at exactly the parameters and x of a double-precision grid."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath as mp
import torch
from torch import Tensor

import setwise.distributions as D

F64 = torch.float64
Triple = tuple[Any, Any, Any]  # log cdf, log survival, log density


def location(log_tail: Callable[..., Any], log_density: Callable[..., Any]) -> Any:
    """A symmetric family from log P(W > z) for z ≥ 0."""

    def oracle(x: float, loc: float, scale: float, *more: float) -> Triple:
        z = (mp.mpf(x) - mp.mpf(loc)) / mp.mpf(scale)
        tail = log_tail(abs(z), *more)
        other = mp.log1p(-mp.exp(tail))
        below, above = (tail, other) if z < 0 else (other, tail)
        return below, above, log_density(abs(z), *more) - mp.log(scale)

    return oracle


def student_log_tail(z: Any, df: float) -> Any:
    df = mp.mpf(df)
    return mp.log(mp.betainc(df / 2, 0.5, 0, df / (df + z * z), regularized=True) / 2)


def student_log_density(z: Any, df: float) -> Any:
    df = mp.mpf(df)
    return -(df + 1) / 2 * mp.log1p(z * z / df) - mp.log(mp.sqrt(df) * mp.beta(df / 2, 0.5))


def gumbel(x: float, loc: float, scale: float) -> Triple:
    z = (mp.mpf(x) - mp.mpf(loc)) / mp.mpf(scale)
    t = mp.exp(-z)
    above = mp.log(-mp.expm1(-t)) if t < 1 else mp.log1p(-mp.exp(-t))
    return -t, above, -z - t - mp.log(scale)


def exponential(x: float, rate: float) -> Triple:
    t = mp.mpf(x) * mp.mpf(rate)
    below = mp.log(-mp.expm1(-t)) if t < 1 else mp.log1p(-mp.exp(-t))
    return below, -t, mp.log(rate) - t


def gamma(x: float, a: float, rate: float) -> Triple:
    a, t = mp.mpf(a), mp.mpf(x) * mp.mpf(rate)
    below = mp.gammainc(a, 0, t, regularized=True)
    above = mp.gammainc(a, t, mp.inf, regularized=True)
    log_below = mp.log(below) if below < above else mp.log1p(-above)
    log_above = mp.log(above) if above < below else mp.log1p(-below)
    return log_below, log_above, a * mp.log(t) - t - mp.loggamma(a) - mp.log(x)


def by_summation(x: float, first: Any, ratio: Callable[[int], Any]) -> Triple:
    """A count distribution from P(0) and P(k+1)/P(k)."""
    term, k, below, above, at = first, 0, mp.mpf(0), mp.mpf(0), None
    while not (k > x and ratio(k) < 0.95 and term < above * mp.mpf(10) ** -42):
        if k <= x:
            below, at = below + term, term
        else:
            above += term
        term *= ratio(k)
        k += 1
    log_below = mp.log(below) if below < above else mp.log1p(-above)
    log_above = mp.log(above) if above < below else mp.log1p(-below)
    return log_below, log_above, mp.log(at)


def poisson(x: float, rate: float) -> Triple:
    rate = mp.mpf(rate)
    return by_summation(x, mp.exp(-rate), lambda k: rate / (k + 1))


def negative_binomial(x: float, r: float, logits: float) -> Triple:
    r, q = mp.mpf(r), 1 / (1 + mp.exp(mp.mpf(logits)))
    return by_summation(x, q**r, lambda k: (r + k) / (k + 1) * (1 - q))


def categorical(x: float, *logits: float) -> Triple:
    weights = [mp.exp(mp.mpf(v)) for v in logits]
    k, total = int(x), mp.fsum(weights)
    below, above = mp.fsum(weights[: k + 1]) / total, mp.fsum(weights[k + 1 :]) / total
    log_above = mp.log(above) if above else -mp.inf
    return (
        mp.log1p(-above),
        log_above if above < below else mp.log1p(-below),
        mp.log(weights[k] / total),
    )


ORACLES: dict[str, Callable[..., Triple]] = {
    "normal": location(lambda z: mp.log(mp.erfc(z / mp.sqrt(2)) / 2), lambda z: mp.log(mp.npdf(z))),
    "cauchy": location(
        lambda z: mp.log(mp.atan2(1, z) / mp.pi), lambda z: -mp.log(mp.pi * (1 + z * z))
    ),
    "laplace": location(lambda z: -z - mp.log(2), lambda z: -z - mp.log(2)),
    "logistic": location(
        lambda z: -z - mp.log1p(mp.exp(-z)), lambda z: -z - 2 * mp.log1p(mp.exp(-z))
    ),
    "studentt": location(student_log_tail, student_log_density),
    "gumbel": gumbel,
    "exponential": exponential,
    "gamma": gamma,
    "poisson": poisson,
    "negativebinomial": negative_binomial,
    "categorical": categorical,
}

Z = [1e-9, 0.3, 0.9, 1.1, 3.0, 9.9, 13.9, 14.1, 60.0, 700.0, 1e6]
Z = [0.0, *Z, *(-z for z in Z)]
LOCATION = [(z * s + m, m, s) for z in Z for m, s in ((0.0, 1.0), (0.7, 3.0), (-9.0, 1e6))]
LOCATION += [(z * 1e-6, 0.0, 1e-6) for z in Z]
GRIDS: dict[str, list[tuple[float, ...]]] = {
    **dict.fromkeys(("normal", "cauchy", "laplace", "logistic"), LOCATION),
    "gumbel": [case for case in LOCATION if case[0] - case[1] > -400 * case[2]],
    "studentt": [(*case, df) for case in LOCATION[::3] for df in (0.5, 4.0, 33.3)],
    "exponential": list(itertools.product([1e-9, 0.01, 0.6, 1.0, 40.0, 1e4], [1e-6, 0.7, 100.0])),
    "gamma": list(itertools.product([1e-9, 0.03, 0.9, 5.0, 70.0], [1e-4, 0.3, 1.0, 7.7], [0.4, 2])),
    "poisson": list(itertools.product([0.0, 1.0, 7.0, 90.0], [1e-6, 0.3, 4.0, 80.0])),
    "negativebinomial": list(
        itertools.product([0.0, 1.0, 7.0, 90.0], [1e-4, 0.5, 3.0, 200.0], [-20.0, -1.0, 0.8])
    ),
    "categorical": [
        (k, *logits)
        for k in (0.0, 1.0, 2.0)
        for logits in ((0.3, -1.0, 2.0), (0.0, 50.0, -60.0), (9000.0, 0.0, -9000.0))
    ],
}
NAMES = {
    "exponential": ("rate",),
    "gamma": ("concentration", "rate"),
    "poisson": ("rate",),
    "negativebinomial": ("total_count", "logits"),
    "studentt": ("loc", "scale", "df"),
}
ALL = sorted(D.families())
CONTINUOUS = [n for n in ALL if D.families()[n].kind is D.Continuous]
WITH_CGF = [n for n in ALL if n not in ("cauchy", "studentt")]


def make(name: str, *columns: Tensor) -> Any:
    """The torch distribution of a family, its parameters in the order of the grid."""
    cls: Any = D.families()[name].distribution
    if name == "categorical":
        return cls(logits=torch.stack(columns, -1), validate_args=False)
    named = dict(zip(NAMES.get(name, ("loc", "scale")), columns, strict=True))
    return cls(**named, validate_args=False)


def grid(name: str) -> list[Tensor]:
    return list(torch.tensor(GRIDS[name], dtype=F64).unbind(1))
