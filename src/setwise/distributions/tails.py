"""Gamma and beta distribution functions, accurate in both tails, differentiable in everything.

On the line u = log x (gamma) or u = logit x (beta) both densities are log-concave. The tail beyond
an edge is the density at the edge times the Mills ratio J = ∫ exp(g(s)) ds, where g falls from
g(0) = 0; J comes from Gauss–Legendre nodes that move with the edge, so autograd differentiates the
sum as it stands. Three things keep it exact everywhere:

* the density is written with deviances (Loader 2000), so nothing large cancels;
* some steps of the recurrence a → a + 1 remove slow exponential decay before the nodes see it;
* a flat stretch (tiny a, edge far to the left) is integrated as a series, term by term.

Always the smaller of the two tails is computed; the other one is its complement. For shapes from
1e-8 to 1e5 the logarithm agrees with 60-digit arithmetic to 1e-13 max(1, |log|).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setwise.distributions.special import log_sigmoid, polynomial, stirling_error
from setwise.numerics import chunked, log1mexp

_N = 48  # nodes for each tail
_NODES, _WEIGHTS = ((np.polynomial.legendre.leggauss(_N) + np.array([[1.0], [0.0]])) / 2).tolist()
_DROP = 40.0  # the integrand is followed down to exp(−40)
_STEPS = 8  # steps of the recurrences, and terms of the series of a flat stretch:
_FLAT = 37.0 / _STEPS  # it is used where exp(−_FLAT · _STEPS) is below the rounding error


def deviance(x: Tensor, m: Tensor, log_ratio: Tensor) -> Tensor:
    """x log(x/m) − x + m ≥ 0, without cancellation for x near m; `log_ratio` is log(x/m)."""
    v = (x - m) / (x + m)
    q = v * v
    series = q * polynomial(q, [1 / (2 * j + 1) for j in range(1, 9)])  # log(x/m) = 2 atanh v
    near = v * (x - m) + 2 * x * v * series
    return torch.where(v.abs() < 0.1, near, x * log_ratio - x + m)


def gamma_log_density(a: Tensor, u: Tensor, t: Tensor) -> Tensor:
    """log of exp(a·u − t) / Γ(a) with t = eᵘ: the density of u = log X for X ~ Gamma(a, 1).

    Both u and t are arguments because computing one from the other loses digits.
    """
    prefix = 0.5 * (a / (2 * math.pi)).log() - stirling_error(a)
    return prefix - deviance(a, t, a.log() - u)


def beta_log_density(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """log of exp(a·u) (1 + eᵘ)⁻⁽ᵃ⁺ᵇ⁾ / B(a, b): the density of u = logit x for x ~ Beta(a, b)."""
    n = a + b
    log_x, log_y = log_sigmoid(u), log_sigmoid(-u)
    prefix = 0.5 * (a / (2 * math.pi) * (b / n)).log()
    prefix = prefix + stirling_error(n) - stirling_error(a) - stirling_error(b)
    left = deviance(a, n * torch.sigmoid(u), (a / n).log() - log_x)
    return prefix - left - deviance(b, n * torch.sigmoid(-u), (b / n).log() - log_y)


def log_gamma_tail(a: Tensor, u: Tensor, t: Tensor, *, upper: bool) -> Tensor:
    """log P(X > t) or log P(X ≤ t) for X ~ Gamma(a, 1) and t = eᵘ, in float64."""
    a, u, t, shape = _flat(a, u, t)
    tail = chunked(_gamma_tail, a, u, t, cost=6 * _N).reshape(shape)
    return _complete(tail, _gamma_is_left(a, u).reshape(shape), upper)


def log_beta_tail(a: Tensor, b: Tensor, u: Tensor, *, upper: bool) -> Tensor:
    """log P(logit X > u) or log P(logit X ≤ u) for X ~ Beta(a, b), in float64."""
    a, b, u, shape = _flat(a, b, u)
    tail = chunked(_beta_tail, a, b, u, cost=10 * _N).reshape(shape)
    a, b, v, mirrored = _mirror(a, b, u)
    return _complete(tail, (_beta_is_left(a, b, v) ^ mirrored).reshape(shape), upper)


def _flat(*tensors: Tensor) -> tuple[Any, ...]:
    wide = torch.broadcast_tensors(*(t.double() for t in tensors))
    return (*(t.reshape(-1) for t in wide), wide[0].shape)


def _complete(tail: Tensor, is_left: Tensor, upper: bool) -> Tensor:
    return torch.where(is_left ^ upper, tail, log1mexp(tail))


def _mirror(a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same problem with u ≤ 0: X ~ Beta(a, b) is 1 − X ~ Beta(b, a)."""
    over = u > 0
    return torch.where(over, b, a), torch.where(over, a, b), torch.where(over, -u, u), over


@torch.no_grad()
def _gamma_is_left(a: Tensor, u: Tensor) -> Tensor:
    """Whether the left tail is the smaller one, roughly."""
    return torch.where(a < 1, a * u - torch.lgamma(1 + a) < -math.log(2), u < a.log())


@torch.no_grad()
def _beta_is_left(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """Whether the left tail is the smaller one, roughly, for v ≤ 0."""
    rising = torch.where(b > 10, a * b.log(), torch.lgamma(a + b) - torch.lgamma(b))
    bound = a * v + rising - torch.lgamma(1 + a)
    return torch.where(a < 1, bound < -math.log(2), torch.sigmoid(v) < a / (a + b))


def _gamma_tail(a: Tensor, u: Tensor, t: Tensor) -> Tensor:
    """log of the smaller tail of the gamma distribution."""
    left = _gamma_is_left(a, u)
    flat = ~left & (u < -_FLAT)
    edge = torch.where(flat, -_FLAT, u)
    t = torch.where(flat, math.exp(-_FLAT), t)
    slope = torch.where(left, a + _STEPS, a) - t
    s, weights = _nodes(left, slope, t, lambda s: -t.unsqueeze(-1) * _expm1_minus(s))
    bend = _expm1_minus(s)
    mills = ((slope.unsqueeze(-1) * s - t.unsqueeze(-1) * bend).exp() * weights).sum(-1)
    lowered, t_left, a_left = mills, torch.where(left, t, 0.0), torch.where(left, a, 1.0)
    for m in reversed(range(_STEPS)):
        lowered = (1 + t_left * lowered) / (a_left + m)
    t_flat = torch.where(flat, t, 0.0)
    stretch = _stretch(a, torch.where(flat, edge - u, 0.0), lambda m: -t_flat) * t_flat.exp()
    return gamma_log_density(a, edge, t) + (torch.where(left, lowered, mills) + stretch).log()


def _beta_tail(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """log of the smaller tail of the beta distribution."""
    a, b, v, _ = _mirror(a, b, u)
    n = a + b
    top = n + _STEPS
    left = _beta_is_left(a, b, v)
    start = -_FLAT - top.detach().log()
    flat = ~left & (v < start)
    edge = torch.where(flat, start, v)
    x = torch.sigmoid(edge)
    slope = torch.where(left, a + _STEPS, a) - top * x
    wide = top.unsqueeze(-1), x.unsqueeze(-1)
    s, weights = _nodes(left, slope, top * x, lambda s: -wide[0] * _beta_bend(wide[1], s))
    bend = _beta_bend(wide[1], s)
    mills = ((slope.unsqueeze(-1) * s - wide[0] * bend).exp() * weights).sum(-1)
    decay, share = torch.where(left, a, b), torch.where(left, x, torch.sigmoid(-edge))
    for m in reversed(range(_STEPS)):
        mills = (1 + (n + m) * share * mills) / (decay + m)
    odds, n_flat = torch.where(flat, edge, -math.inf).exp(), torch.where(flat, n, 0.0)
    stretch = _stretch(a, torch.where(flat, edge - v, 0.0), lambda m: -odds * (n_flat + m))
    return beta_log_density(a, b, edge) + (mills + stretch * (n_flat * odds.log1p()).exp()).log()


def _stretch(a: Tensor, gap: Tensor, ratio: Callable[[int], Tensor]) -> Tensor:
    """∫ e⁻ᵃˢ φ(s) ds over 0 < s < gap, where φ = Σ cₘ e⁻ᵐˢ and cₘ₊₁ = cₘ ratio(m) / (m + 1)."""
    a = torch.where(gap > 0, a, 1.0)
    total, c = torch.zeros_like(a), torch.ones_like(a)
    for m in range(_STEPS):
        total = total - c * torch.expm1(-(a + m) * gap) / (a + m)
        c = c * ratio(m) / (m + 1)
    return total


@torch.no_grad()
def _nodes(
    left: Tensor, slope: Tensor, curvature: Tensor, bend: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Gauss–Legendre nodes and weights from the edge to where slope·s + bend(s) is −_DROP."""
    sign = torch.where(left, -1.0, 1.0).to(slope)
    steep = slope.abs()
    high = (_DROP / steep).clamp_max(40.0).log()
    low = torch.minimum(10 / steep, 4 / curvature.sqrt()).clamp_max(0.5).log()
    for _ in range(10):
        middle = 0.5 * (low + high)
        s = sign * middle.exp()
        above = slope * s + bend(s.unsqueeze(-1)).squeeze(-1) > -_DROP
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    reach = high.exp().unsqueeze(-1)
    return sign.unsqueeze(-1) * reach * slope.new_tensor(_NODES), reach * slope.new_tensor(_WEIGHTS)


def _expm1_minus(s: Tensor) -> Tensor:
    """eˢ − 1 − s ≥ 0."""
    small = s.abs() < 0.3
    near = torch.where(small, s, 0.0)
    series = torch.zeros_like(near)
    for k in range(14, 1, -1):
        series = near / k * (1 + series)
    return torch.where(small, near * series, s.expm1() - s)


def _beta_bend(x: Tensor, s: Tensor) -> Tensor:
    """log(1 − x + x eˢ) − x s ≥ 0 for 0 ≤ x ≤ ½, differentiable in x."""
    step = s.expm1()
    small = s.abs() < 0.1
    y = x * torch.where(small, step, 0.0)
    series = y * polynomial(-y, [1 / k for k in range(2, 15)])  # y − log(1 + y) = y²/2 − y³/3 + …
    near = x * _expm1_minus(s) - y * series
    far = torch.log1p(x * step) - x * s
    return torch.where(small, near, far)
