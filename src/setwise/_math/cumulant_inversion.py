"""Densities of sums from cumulant generating functions, by integrals through the saddle point.

A sum of independent members has the cumulant generating function K(s) = Σ K_k(w_k s), and its
density is an integral over any path from below to above that stays clear of the singularities of K,
all of which lie on the real axis outside an interval (low, high) around 0:

    f(y) = 1/2πi ∫ exp(K(s) − s·y) ds.

The path passes the saddle point s₀, where K'(s₀) = y. There the integrand is as large as it ever
gets on the path and nothing cancels, so *relative* accuracy holds however improbable y is.

The path is a hyperbola, s(v) = s₀ ± ρ cos θ (cosh v − 1) + iρ sin θ sinh v: a vertical line for
θ = 90°, bent towards the side where exp(−s·y) decays for smaller angles. Straight is best where
sums are nearly Gaussian, bent where densities are rough (two exponentials) or y is far in a tail.
The trapezoidal rule converges geometrically on it. For counts the path ends at Im s = π, where the
integrand repeats itself.

Weideman and Trefethen, "Parabolic and hyperbolic contours for computing the Bromwich integral",
Mathematics of Computation 76 (2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Laplace, Normal

from setwise._math.contour_integrals import ANGLES, Path, Plan, Sums, cot, trapezoid_sums
from setwise._math.groups import piecewise
from setwise._math.padding import Padded
from setwise._math.quadrature import rebuild
from setwise.distributions import Count, family_of, parameters
from setwise.numerics import gather
from setwise.sets import Sets

Noise = Normal | Laplace
Cgf = Callable[[Tensor], Tensor]  # s of shape (n_sets, nodes), real or complex, to K(s)


@dataclass(frozen=True)
class Members:
    """The members of sets, as tensors with one entry per set.

    `tensors` are the weights and then the parameters as (n_sets, K), or (n_sets, 1) with `copies` =
    K where one number serves all members; where members stand for several individuals, their
    numbers come between the two. A location is taken off beforehand, which keeps its digits:
    `shift` is Σ wₖ locₖ, and `origin` the location that is left, 0.
    """

    d: Distribution
    weighted: bool
    tensors: tuple[Tensor, ...]
    copies: int = 1
    shift: Tensor | float = 0.0
    origin: tuple[Tensor, ...] = ()
    counted: bool = False

    @classmethod
    def of(cls, d: Distribution, weights: Tensor | None, sets: Sets) -> Members:
        """The members of `sets`; `weights` is (n_sets, K), or None where all are 1.

        In sets of fewer members than others the last one is repeated, with a weight of 0.
        """
        one = Padded.of(sets)
        if sets.size is None and weights is None:
            weights = one.inside(next(iter(parameters(d).values()))).double()
        named = {name: one.repeat_last(value) for name, value in parameters(d).items()}
        values = list(named.values())
        like = values[0].new_ones((), dtype=torch.float64)
        times = None if sets.counts is None else one.fill(sets.tensor("counts", like), 0.0)
        shift: Tensor | float = 0.0
        origin: tuple[Tensor, ...] = ()
        if "loc" in named:
            loc = named.pop("loc").double()
            shift = (loc if weights is None else loc * weights).mul(1 if times is None else times)
            shift = shift.sum(1)
            origin = (like.new_zeros(()),)
        values, copies = list(named.values()), 1
        if weights is None and all(value.stride(1) == 0 for value in values):
            values, copies = [value[:, :1] for value in values], sets.size or 1
            if times is not None:
                times, copies = times.sum(1, keepdim=True), 1
        values = [value.double() for value in values]
        ones = like.expand(len(values[0]), 1)
        numbers = () if times is None else (times,)
        tensors = (ones if weights is None else weights, *numbers, *values)
        return cls(d, weights is not None, tensors, copies, shift, origin, times is not None)

    def cgf(self, s: Tensor, weights: Tensor, *values: Tensor, biased: bool = False) -> Tensor:
        """K(s) for s of shape (n_sets, nodes); `biased` adds log K'(s), in closed form."""
        times, values = values[: self.counted], values[self.counted :]

        def total(each: Tensor) -> Tensor:
            return (each * times[0].unsqueeze(-1) if times else each).sum(1) * self.copies

        d = rebuild(self.d, (*self.origin, *(value.unsqueeze(-1) for value in values)))
        w, s = weights.unsqueeze(-1), s.unsqueeze(1)
        out = total(family_of(d).cgf(d, w * s if self.weighted else s))
        if not biased:
            return out
        return out + total(w * family_of(d).cgf_slope(d, w * s)).log()

    def domain(self) -> tuple[Tensor, Tensor]:
        """The open interval of real s on which K is finite, for each set, without gradient."""
        weights, *values = (t.detach() for t in self.tensors)
        values = values[self.counted :]
        d = rebuild(self.d, (*self.origin, *values))
        low, high = family_of(d).cgf_domain(d)
        away, down = weights == 0, weights < 0
        w = torch.where(away, 1.0, weights)
        left, right = torch.where(down, high, low) / w, torch.where(down, low, high) / w
        left, right = torch.where(away, -math.inf, left), torch.where(away, math.inf, right)
        return left.amax(1), right.amin(1)


def _lattice_noise_cgf(noise: Laplace, s: Tensor, offset: Tensor) -> Tensor:
    """log Σ_v noise(x) exp(s·x) over x = offset + v, all whole numbers v: two geometric series.

    `offset` in [0, 1) and the scale of the noise are (n_sets, 1). With it in place of the noise's
    own function, the integral up to Im s = π gives the density of a whole number plus noise.
    """
    edge = noise.scale.reciprocal()
    below, above = edge - s, edge + s
    first = -offset * below - (-torch.expm1(-below)).log()
    second = -(1 - offset) * above - (-torch.expm1(-above)).log()
    top = torch.maximum(first.detach().real, second.detach().real)
    return ((first - top).exp() + (second - top).exp()).log() + (top + (0.5 * edge).log())


def rescaled(noise: Noise, scale: Tensor) -> Noise:
    """Noise of the same kind with another scale."""
    return type(noise)(torch.zeros_like(scale), scale, validate_args=False)


def log_density_of_sum(
    d: Distribution, weights: Tensor | None, sets: Sets, y: Tensor, noise: Noise | None = None
) -> Tensor:
    """log density (for counts: log probability) of Σ wₖZₖ, plus noise where given, at y.

    `d`, batched over the flat members of `sets`, has a cumulant generating function; it is
    continuous (with any weights) or NegativeBinomial (weights None; noise, if normal, of scale 1.5
    or more, through which whole numbers are not seen). `weights` is (n_sets, K) of any sign, 0
    where a set has fewer members, or None for ones. `noise` has location 0 and one scale, for all
    sets or for each, and is added to the weighted sum.
    y must lie inside the support. Result in float64; its relative error is about 1e-13, or the
    rounding of y·s₀ where y is far out in a tail.
    """
    members = Members.of(d, weights, sets)
    lattice = isinstance(d, Count)
    # y·f(y) = 1/2πi ∫ K'(s) exp(K(s) − s·y) ds has no cancellation for tiny shapes, where
    # the plain integrand is nearly constant; it needs K' > 0.
    biased = noise is None and family_of(d).peaked
    biased = biased and (not members.weighted or bool((members.tensors[0] >= 0).all()))

    def cgf(s: Tensor, offset: Tensor, *tensors: Tensor) -> Tensor:
        if noise is None:
            return members.cgf(s, *tensors, biased=biased)
        law: Any = rescaled(noise, tensors[0])
        out = members.cgf(s, *tensors[1:], biased=biased)
        if lattice and isinstance(noise, Laplace):
            return out + _lattice_noise_cgf(law, s, offset)
        return out + family_of(law).cgf(law, s)

    def log_height(centre: Tensor, y: Tensor, *tensors: Tensor) -> Tensor:
        return cgf(centre.unsqueeze(1), *tensors).squeeze(1) - centre * y

    def terms(n: int, *given: Tensor) -> tuple[Tensor, Tensor]:
        path, y, tensors = Path(*given[:4]), given[4], given[5:]
        top = log_height(path.centre, y, *tensors).detach()
        return path.terms(n, lambda s: cgf(s, *tensors), y, top), top

    def log_sum(n: int, *given: Tensor) -> Tensor:
        found, top = terms(n, *given)
        return top + found.sum(1).log()

    def from_saddle_point(at: Tensor) -> Tensor:  # where no integral was possible
        centre, _, up, _, *rest = (gather(t, at) for t in (*plan.constants, *plan.tensors))
        return log_height(centre, *rest) + (up / math.sqrt(2 * math.pi)).log()

    y = y.double() - members.shift
    offset = (y - y.floor()).detach().unsqueeze(1)
    given: tuple[Tensor, ...] = ()
    if noise is not None:
        given = (noise.scale.to(y).expand(len(y)).unsqueeze(1),)
    plan = Plan(y, offset, *given, *members.tensors, cost=4 * members.tensors[1].shape[1])
    with torch.no_grad():
        low, high = members.domain()
        if noise is not None:
            law: Any = rescaled(noise, given[0].squeeze(1).detach())
            ends = family_of(law).cgf_domain(law)
            low, high = torch.maximum(low, ends[0]), torch.minimum(high, ends[1])
        # log Γ outgrows all numbers sooner than the logarithms of other families
        far = 340.0 if members.origin else 690.0
        held = [t.detach() for t in plan.tensors[1:]]
        paths, slack = _paths(lambda s: cgf(s, *held), y, low, high, far, lattice)
        sums: Callable[..., Sums] = lambda *given: trapezoid_sums(terms(*given)[0])  # noqa: E731
        plan.refine(slack <= 0.1, paths, sums, steady=1e-10, slack=slack)
    out = piecewise(*plan.cases(log_sum), (plan.nodes < 0, from_saddle_point))
    return out - y.log() if biased else out


def _paths(
    cgf: Cgf, y: Tensor, low: Tensor, high: Tensor, far: float, lattice: bool
) -> tuple[list[Path], Tensor]:
    """Paths through the saddle point at several angles, and the rounding error of the exponents."""
    s0, curvature = saddle_point(cgf, low, high, y, far)
    room = torch.minimum(s0 - low, high - s0)
    # Where K'' has left the range of numbers, the nearest singularity sets the scale.
    usual = (curvature > 1e-280) & (curvature < 1e280)
    width = torch.where(usual, torch.minimum(curvature.rsqrt(), room), 0.7 * room)
    height = cgf(s0.unsqueeze(1)).squeeze(1)
    top = height - s0 * y
    right = torch.where(low.isfinite() & high.isfinite(), y > 0, high.isfinite())
    side = torch.where(right, width, -width)
    zero = torch.zeros_like(y)
    paths = [Path(s0, side * cot(angle), width, zero).long_enough(cgf, y, top) for angle in ANGLES]
    if lattice:  # beyond Im s = π there are other singularities; a straight path ends there
        paths = [_below_pi(path, cgf, y, top) for path in paths]
        paths.append(Path(s0, zero, width, zero - 1))
    return paths, 8e-15 * (height.abs() + (s0 * y).abs())


def _below_pi(path: Path, cgf: Cgf, y: Tensor, top: Tensor) -> Path:
    """The path cut short of Im s = π; its length is NaN, which no sum survives, if too short."""
    length = torch.minimum(path.length, torch.asinh(3.1 / path.up))
    s, ds = path.at(length.unsqueeze(1))
    size = (cgf(s) - s * y.unsqueeze(1)).real.squeeze(1) - top
    fits = size + (ds.abs().squeeze(1) / path.up).log() < -37
    return path._replace(length=torch.where(fits, length, math.nan))


def saddle_point(
    cgf: Cgf, low: Tensor, high: Tensor, y: Tensor, far: float = 690.0
) -> tuple[Tensor, Tensor]:
    """s₀ with K'(s₀) = y, and K''(s₀), without gradients; `low` and `high` are the ends of s.

    By bisection on a line that the open interval is mapped to: near a finite end that line measures
    the logarithm of the distance from it, up to exp(`far`) times the size of that end. Where y is
    out of reach, s₀ is at the end of the line.
    """
    left, right = low.isfinite(), high.isfinite()
    low0, high0 = torch.where(left, low, 0.0), torch.where(right, high, 0.0)

    def place(q: Tensor) -> Tensor:
        share = (high0 - low0) * torch.sigmoid(-q.abs())
        both = torch.where(q > 0, high0 - share, low0 + share)
        one = torch.where(left, low0 + q.exp(), high0 - (-q).exp())
        return torch.where(left & right, both, torch.where(left | right, one, q.sinh()))

    def derivative(s: Tensor, order: int) -> Tensor:
        with torch.enable_grad():
            s = s.detach().requires_grad_()
            out = cgf(s.unsqueeze(1)).squeeze(1)
            for k in range(order):
                (out,) = torch.autograd.grad(out.sum(), s, create_graph=k + 1 < order)
        return out.detach()

    # A finite end can be approached to about 1e-15 of its own size, and left as far behind as K
    # stays in the range of numbers.
    near = 34.0
    size = torch.where(left, low0, high0).abs().clamp(1e-290).log()
    a = torch.where(right, (-far - size).clamp(min=-700), -690.0)
    b = torch.where(left, (far + size).clamp(max=700), 690.0)
    a = torch.where(left, torch.where(right, -near, size - near), a)
    b = torch.where(right, torch.where(left, near, near - size), b)
    for _ in range(36):
        q = 0.5 * (a + b)
        above = derivative(place(q), 1) > y
        a, b = torch.where(above, a, q), torch.where(above, q, b)
    s0 = place(0.5 * (a + b))
    return s0, derivative(s0, 2)
