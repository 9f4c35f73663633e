"""Densities of sums from cumulant generating functions, by integrals through the saddle point.

A sum of independent members has the cumulant generating function K(s) = Σ K_k(w_k s), and its
density is an integral over any path from below to above that stays clear of the singularities of K,
all of which lie on the real axis outside an interval (low, high) around 0:

    f(y) = 1/2πi ∫ exp(K(s) − s·y) ds.

The path chosen here passes the saddle point s₀, where K'(s₀) = y. There the integrand is as large
as it ever gets on the path and nothing cancels, so *relative* accuracy holds however improbable
y is.
The value does not depend on the path: path and nodes are therefore found without gradients, and the
derivatives are those of the trapezoidal sum over fixed nodes.

The path is a hyperbola, s(v) = s₀ ± ρ cos θ (cosh v − 1) + iρ sin θ sinh v: a vertical line for
θ = 90°, bent towards the side where exp(−s·y) decays for smaller angles. Straight is best where
sums are nearly Gaussian, bent where densities are rough (two exponentials) or y is far in a tail.
The
trapezoidal rule converges geometrically on it; the nodes are doubled until the sum stands still.
For counts the path ends at Im s = π, where the integrand repeats itself.

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
from torch.distributions import Distribution, Gamma, Laplace, NegativeBinomial, Normal
from torch.nn.functional import softplus

from setwise._math.contour_integrals import (
    ANGLES,
    Constants,
    Path,
    Plan,
    Sums,
    assemble,
    cot,
    trapezoid_sums,
)
from setwise.distributions import family_of, parameters
from setwise.sets import Sets

__all__ = [
    "Members",
    "lattice_noise_cgf",
    "log_density_of_sum",
    "noise_cgf",
    "saddle_point",
]

Noise = Normal | Laplace
Cgf = Callable[[Tensor], Tensor]  # s of shape (n_sets, nodes), real or complex, to K(s)


@dataclass(frozen=True)
class Members:
    """The members of sets of one size, taken apart so that the sets can be cut into pieces.

    `values` are the parameters as (n_sets, K), or (n_sets, 1) with `copies` = K where one number
    serves all members. A location is taken off beforehand (`shift` is Σ wₖ locₖ): that keeps its
    digits.
    """

    kind: type[Distribution]
    names: tuple[str, ...]
    values: tuple[Tensor, ...]
    weights: Tensor | None
    copies: int
    shift: Tensor | float

    @classmethod
    def of(cls, d: Distribution, weights: Tensor | None, sets: Sets) -> Members:
        """The members of `sets`; `weights` is (n_sets, K), or None where all are 1."""
        values = {name: sets.dense(value) for name, value in parameters(d).items()}
        shift: Tensor | float = 0.0
        if "loc" in values:
            loc = values.pop("loc").double()
            shift = (loc if weights is None else loc * weights).sum(1)
        copies = 1
        if weights is None and all(value.stride(1) == 0 for value in values.values()):
            copies = sets.size or 1
            values = {name: value[:, :1] for name, value in values.items()}
        exact = tuple(value.double() for value in values.values())
        return cls(type(d), tuple(values), exact, weights, copies, shift)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Weights, then parameters, one line per set: what `cgf` takes."""
        first = self.values[0]
        ones = first.new_ones(()).expand(len(first), 1)
        return (ones if self.weights is None else self.weights, *self.values)

    def build(self, values: tuple[Tensor, ...]) -> Distribution:
        """The distribution with these parameters (of any shape), located at 0."""
        named = dict(zip(self.names, values, strict=True))
        make: Any = self.kind
        if "loc" in make.arg_constraints:
            named["loc"] = values[0].new_zeros(())
        made: Distribution = make(**named, validate_args=False)
        return made

    def cgf(self, s: Tensor, weights: Tensor, *values: Tensor, biased: bool = False) -> Tensor:
        """K(s) for s of shape (n_sets, nodes); `biased` adds log K'(s), in closed form."""
        d = self.build(tuple(value.unsqueeze(-1) for value in values))
        w, s = weights.unsqueeze(-1), s.unsqueeze(1)
        out = family_of(d).cgf(d, s if self.weights is None else w * s).sum(1) * self.copies
        if not biased:
            return out
        if isinstance(d, Gamma):
            slope = d.concentration * w / (d.rate - w * s)
        else:
            assert isinstance(d, NegativeBinomial)
            slope = d.total_count / torch.expm1(softplus(-d.logits) - s)
        return out + (slope.sum(1) * self.copies).log()

    def domain(self) -> tuple[Tensor, Tensor]:
        """The open interval of real s on which K is finite, for each set, without gradient."""
        weights, *values = (t.detach() for t in self.tensors)
        d = self.build(tuple(values))
        low, high = family_of(d).cgf_domain(d)
        if self.weights is None:
            return low.amax(1), high.amin(1)
        away, down = weights == 0, weights < 0
        w = torch.where(away, 1.0, weights)
        left, right = torch.where(down, high, low) / w, torch.where(down, low, high) / w
        left, right = torch.where(away, -math.inf, left), torch.where(away, math.inf, right)
        return left.amax(1), right.amin(1)


def noise_cgf(noise: Noise, s: Tensor) -> Tensor:
    """σ²s²/2 for normal noise, −log(1 − b²s²) for Laplace noise, both centred at 0."""
    t = noise.scale.to(s.device) * s
    return 0.5 * t * t if isinstance(noise, Normal) else -torch.log1p(-t) - torch.log1p(t)


def lattice_noise_cgf(noise: Laplace, s: Tensor, offset: Tensor) -> Tensor:
    """log Σ_v noise(x) exp(s·x) over x = offset + v, all whole numbers v: two geometric series.

    `offset` in [0, 1) is (n_sets, 1). With it in place of the noise's own function, the integral up
    to Im s = π gives the density of a whole number plus noise.
    """
    edge = noise.scale.to(offset).reciprocal()
    below, above = edge - s, edge + s
    first = -offset * below - (-torch.expm1(-below)).log()
    second = -(1 - offset) * above - (-torch.expm1(-above)).log()
    top = torch.maximum(first.detach().real, second.detach().real)
    return ((first - top).exp() + (second - top).exp()).log() + (top + (0.5 * edge).log())


def log_density_of_sum(
    d: Distribution, weights: Tensor | None, sets: Sets, y: Tensor, noise: Noise | None = None
) -> Tensor:
    """log density (for counts: log probability) of Σ wₖZₖ, plus noise where given, at y.

    `sets` have one size and `d`, batched over the flat members, has a cumulant generating function;
    it is continuous (with any weights) or NegativeBinomial (weights None; noise, if normal, of
    scale 1.5 or more, through which whole numbers are not seen). `weights` is (n_sets, K) of any
    sign, or None for ones. `noise` has location 0 and one scale, and is added to the weighted sum.
    y must lie inside the support. Result in float64; its relative error is about 1e-13, or the
    rounding of y·s₀ where y is far out in a tail.
    """
    members = Members.of(d, weights, sets)
    return _invert(members, y.double() - members.shift, noise)


def _invert(members: Members, y: Tensor, noise: Noise | None) -> Tensor:
    lattice = issubclass(members.kind, NegativeBinomial)
    # y·f(y) = 1/2πi ∫ K'(s) exp(K(s) − s·y) ds has no cancellation for tiny shapes, where
    # the plain integrand is nearly constant; it needs K' > 0.
    biased = noise is None and issubclass(members.kind, Gamma | NegativeBinomial)
    biased = biased and (members.weights is None or bool((members.weights >= 0).all()))

    def cgf(s: Tensor, offset: Tensor, *tensors: Tensor) -> Tensor:
        out = members.cgf(s, *tensors, biased=biased)
        if noise is None:
            return out
        if lattice and isinstance(noise, Laplace):
            return out + lattice_noise_cgf(noise, s, offset)
        return out + noise_cgf(noise, s)

    def log_sum(n: int, constants: Constants, y: Tensor, *tensors: Tensor) -> Tensor:
        path = Path(*constants)
        top = cgf(path.centre.unsqueeze(1), *tensors).squeeze(1) - path.centre * y
        if n == 0:  # no integral was possible: the height and width of the saddle point
            return top + (path.up / math.sqrt(2 * math.pi)).log()
        top = top.detach()
        return top + path.terms(n, lambda s: cgf(s, *tensors), y, top).sum(1).log()

    plan = Plan(cost=4 * members.values[0].shape[1])
    with torch.no_grad():
        at = y.detach()
        offset = (at - at.floor()).unsqueeze(1)
        held = [offset, *(t.detach() for t in members.tensors)]
        low, high = members.domain()
        if isinstance(noise, Laplace):
            end = 1 / noise.scale.to(y)
            low, high = low.clamp(min=-end), high.clamp(max=end)
        # log Γ outgrows all numbers sooner than the logarithms of other families
        far = 340.0 if "scale" in members.names else 690.0
        _plan(plan, cgf, held, at, low, high, lattice, far)
    out = assemble(plan.evaluate(log_sum, y, offset, *members.tensors))
    return out - y.log() if biased else out


def _plan(
    plan: Plan,
    cgf: Callable[..., Tensor],
    tensors: list[Tensor],
    y: Tensor,
    low: Tensor,
    high: Tensor,
    lattice: bool,
    far: float,
) -> None:
    """Chooses among paths at several angles the first that needs the fewest nodes."""

    def own(s: Tensor) -> Tensor:
        return cgf(s, *tensors)

    def sums(n: int, which: Tensor, constants: Constants) -> Sums:
        some = [t[which] for t in tensors]
        terms = Path(*constants).terms(n, lambda s: cgf(s, *some), y[which], top[which])
        return trapezoid_sums(terms)

    s0, curvature = saddle_point(own, low, high, y, far)
    room = torch.minimum(s0 - low, high - s0)
    # Where K'' has left the range of numbers, the nearest singularity sets the scale.
    usual = (curvature > 1e-280) & (curvature < 1e280)
    width = torch.where(usual, torch.minimum(curvature.rsqrt(), room), 0.7 * room)
    height = own(s0.unsqueeze(1)).squeeze(1)
    top = height - s0 * y
    right = torch.where(low.isfinite() & high.isfinite(), y > 0, high.isfinite())
    side = torch.where(right, width, -width)
    paths = [Path(s0, side * cot(angle), width, width).long_enough(own, y, top) for angle in ANGLES]
    if lattice:  # beyond Im s = π there are other singularities; a straight path ends there
        paths = [_below_pi(path, own, y, top) for path in paths]
        paths.append(Path(s0, torch.zeros_like(y), width, -torch.ones_like(y)))
    slack = 8e-15 * (height.abs() + (s0 * y).abs())  # no sum is steadier than its exponents
    sets = torch.arange(len(y), device=y.device)
    rough = slack > 0.1
    candidates = [path.constants for path in paths]
    left = plan.refine(sets[~rough], candidates, sums, steady=1e-10, slack=slack)
    plan.take(0, torch.cat([sets[rough], left]), candidates[0])


def _below_pi(path: Path, cgf: Cgf, y: Tensor, top: Tensor) -> Path:
    """The path cut short of Im s = π; its length is NaN, which no sum survives, if too short."""
    length = torch.minimum(path.length, torch.asinh(3.1 / path.up))
    s, ds = path.at(length.unsqueeze(1))
    size = (cgf(s) - s * y.unsqueeze(1)).real.squeeze(1) - top
    fits = size + (ds.abs().squeeze(1) / path.up).log() < -37
    return Path(path.centre, path.ahead, path.up, torch.where(fits, length, math.nan))


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
