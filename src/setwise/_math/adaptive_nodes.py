"""Integrals of a positive function of a few numbers against a normal law, one for each set.

∫ p(u) N(u; 0, s² I) du by Gauss–Hermite nodes that are moved to where the integrand is large: a
parabola through points one width apart gives its centre and width, again and again until both stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Nodes", "adapted", "prior"]

NUMBER = {1: 7, 2: 5}  # of nodes, in each direction, by the number of directions
STEPS = 40  # of the search; two or three are usual
NEAR = 0.25, 0.6, 1.7  # of a width: a last step; and what a width may change by in it
FARTHEST = 3.0  # widths that one step goes
NARROWER, WIDER = 400.0, 1 / 16  # the curvature that one step believes
BROAD, WIDE = 0.7, 1.2  # of the scale: what is narrower has one maximum, or one that matters
FEW = 3  # nodes that show whether there are others, or heavy tails
OFF = 1.25, 0.75  # widths: more than a normal law's own deviation, and its mean from the centre
REACH, GRID = 6.0, 49  # scales that a grid reaches to, and its points

LogDensity = Callable[[Tensor, Tensor], Tensor]  # of some sets, at several places for each of them


class Nodes(NamedTuple):
    """Places for each set, and the logarithms of their weights: ∫ p N = Σ exp(log_weight) p."""

    places: Tensor  # (nodes, sets, directions)
    log_weights: Tensor  # (nodes, sets), differentiable in the scale


@cache
def _hermite(k: int, number: int) -> tuple[Tensor, Tensor]:
    """Nodes, (n, k), and logarithms of weights of an integral against N(0, I)."""
    x, w = np.polynomial.hermite_e.hermegauss(number)
    places = np.array(list(itertools.product(x, repeat=k)))
    logs = np.log(w / math.sqrt(2 * math.pi))
    return torch.from_numpy(places), torch.from_numpy(
        np.array([sum(some) for some in itertools.product(logs, repeat=k)])
    )


def prior(scale: Tensor, k: int) -> Nodes:
    """Nodes for functions that change little within the scale, (sets,), of the normal law."""
    x, logs = (part.to(scale) for part in _hermite(k, NUMBER[k]))
    return Nodes(scale[:, None] * x[:, None], logs[:, None].expand(-1, len(scale)))


def adapted(log_p: LogDensity, scale: Tensor, k: int) -> Nodes:
    """Nodes for p = exp(log_p), which may be much narrower than the law of this scale, (sets,).

    `log_p(which, u)` is (places, sets), for the sets of these numbers and u of (places, sets,
    directions). The nodes are constants: derivatives of the sum are as exact as the sum.
    """
    centre, factor = _centres(log_p, scale.detach(), k)
    if k == 1:
        centre, factor = _wide(log_p, scale.detach(), centre, factor)
    x, logs = (part.to(scale) for part in _hermite(k, NUMBER[k]))
    size = factor[:, 0, 0].abs().log() if k == 1 else torch.linalg.slogdet(factor)[1]
    places = centre + _along(factor, x)
    own = 0.5 * (places / scale[:, None]).square().sum(-1) + k * scale.log()
    each = logs + 0.5 * x.square().sum(1)
    return Nodes(places, each[:, None] + size - own)


def _along(factor: Tensor, x: Tensor) -> Tensor:
    """factor · x of each set and each of x, (places, directions): (places, sets, directions)."""
    return (factor @ x.mT).permute(2, 0, 1)


@torch.no_grad()
def _centres(log_p: LogDensity, scale: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Centre, (sets, k), and width, (sets, k, k), of exp(log_p) times the normal law."""
    centre = scale.new_zeros((len(scale), k))
    factor = scale[:, None, None] * torch.eye(k).to(scale)
    left = torch.arange(len(scale), device=scale.device)
    for _ in range(STEPS):
        if not len(left):
            break
        middle, width, s = centre[left], factor[left], scale[left][:, None]

        def joint(x: Tensor) -> Tensor:
            u = middle + _along(width, x)  # noqa: B023
            return log_p(left, u) - 0.5 * (u / s).square().sum(-1)  # noqa: B023

        here, slope, bend = _parabola(joint, k, scale)
        good = here.isfinite()
        size, axes = (bend[:, 0], torch.ones_like(bend)) if k == 1 else torch.linalg.eigh(bend)
        size = size.clamp(WIDER, NARROWER)
        step = (axes @ ((axes.mT @ slope[:, :, None]) / size[:, :, None]))[:, :, 0]
        step = step * (FARTHEST / step.norm(dim=1, keepdim=True).clamp_min(FARTHEST))
        moved = (width @ step[:, :, None])[:, :, 0]
        turned = width @ (axes * size.rsqrt()[:, None, :])
        centre[left] = torch.where(good[:, None], middle + moved, middle)
        factor[left] = torch.where(good[:, None, None], turned, width)
        change = size.rsqrt()
        still = (step.norm(dim=1) > NEAR[0]) | ((change < NEAR[1]) | (change > NEAR[2])).any(1)
        left = left[good & still]
    return centre, factor


@torch.no_grad()
def _wide(
    log_p: LogDensity, scale: Tensor, centre: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor]:
    """The same; mean and deviation from a grid where one maximum does not say all."""

    def moments(which: Tensor, x: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
        each = log_p(which, x[:, None, None] * scale[which][:, None])
        weight = (each.T + log).softmax(1)
        mean = weight @ x
        deviation = (weight * (x - mean[:, None]).square()).sum(1).sqrt()
        return mean * scale[which], deviation * scale[which]

    which = (factor[:, 0, 0].abs() > BROAD * scale).nonzero()[:, 0]
    if not len(which):
        return centre, factor
    x, log = (part.to(scale) for part in _hermite(1, FEW))
    mean, deviation = moments(which, x[:, 0], log)
    width = factor[which, 0, 0].abs()
    off = (mean - centre[which, 0]).abs() > OFF[1] * width
    which = which[off | (deviation > OFF[0] * width) | (width > WIDE * scale[which])]
    if len(which):
        x = torch.linspace(-REACH, REACH, GRID).to(scale)
        centre[which, 0], factor[which, 0, 0] = moments(which, x, -0.5 * x.square())
    return centre, factor


def _parabola(f: Callable[[Tensor], Tensor], k: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f at 0, and its slope and negative second derivatives there from differences."""
    eye = torch.eye(k).to(like)
    pairs = list(itertools.combinations(range(k), 2))
    corners = [eye[i] + eye[j] for i, j in pairs]
    here, *others = f(torch.stack([torch.zeros_like(eye[0]), *eye, *-eye, *corners]))
    change = [one - here for one in others]
    up, down, both = change[:k], change[k : 2 * k], change[2 * k :]
    slope = torch.stack([(a - b) / 2 for a, b in zip(up, down, strict=True)], 1)
    bend = like.new_zeros((len(here), k, k))
    for i in range(k):
        bend[:, i, i] = -(up[i] + down[i])
    for (i, j), corner in zip(pairs, both, strict=True):
        bend[:, i, j] = bend[:, j, i] = -(corner - up[i] - up[j])
    most = 1e12
    slope, bend = (part.nan_to_num(0.0, most, -most) for part in (slope, bend))
    return here, slope, bend
