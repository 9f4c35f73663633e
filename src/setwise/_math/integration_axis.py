"""The line on which a family's integrals run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from setwise._math.quadrature import Integrand, log_integral, rebuild
from setwise.distributions import family_of, log_cdf, log_density, log_survival, parameters

_MOST_KINKS = 64  # in larger sets, kinks are left to the halving of cells


@dataclass(frozen=True)
class Line:
    """The line on which a family's integrals run: x itself, or u = log x for positive targets.

    >>> Line.of(torch.distributions.Exponential(torch.ones(1, 2))).positive
    True
    """

    positive: bool
    kinked: bool  # densities have kinks at their centres
    centres: Tensor  # (sets, members), on the line
    widths: Tensor

    @classmethod
    def of(cls, d: Distribution) -> Line:
        """The line of a distribution batched as (sets, members)."""
        family = family_of(d)
        centres, widths = family.centre_width(d)
        return cls(family.positive, family.kinked, centres.detach(), widths.detach())

    def take(self, which: Tensor) -> Line:
        """The lines of these sets."""
        return replace(self, centres=self.centres[which], widths=self.widths[which])

    def outermost(self, n: int, way: float) -> Line:
        """The line with the first centre of each set and the n highest (way 1) or lowest (−1)."""
        at = (way * self.centres[:, 1:]).topk(min(n, self.centres.shape[1] - 1)).indices + 1
        at = torch.cat([torch.zeros_like(at[:, :1]), at], 1)
        return replace(self, centres=self.centres.gather(1, at), widths=self.widths.gather(1, at))

    def shifted(self, shift: Tensor) -> Line:
        """The line of the members' targets less a shift, (sets, members); positive ones stay so."""
        if not self.positive:
            return replace(self, centres=self.centres - shift)
        whole = self.centres.exp()
        rest = whole - shift
        inside = rest > 1e-3 * whole
        rest = torch.where(inside, rest, 1.0)
        widths = (self.widths * whole / rest).clamp_max(30)
        centres = torch.where(inside, rest.log(), self.centres)
        return replace(self, centres=centres, widths=torch.where(inside, widths, 1.0))

    def cut(self, at: float) -> Line:
        """The line with a centre at the positive target `at` too."""
        centres = pad(self.centres, (0, 1), value=math.log(at))
        return replace(self, centres=centres, widths=pad(self.widths, (0, 1), value=1.0))

    def integral(self, integrand: Integrand, tensors: Sequence[Tensor], *, cost: int) -> Tensor:
        """log ∫ exp(integrand(x, *tensors)) dx over the support, one per set."""
        over = _over_log(integrand) if self.positive else integrand
        return log_integral(over, tensors, *self.places(), cost=cost)

    def log_density(self, d: Distribution, x: Tensor) -> Tensor:
        """log density at a point of the line."""
        return _over_log(lambda z: log_density(d, z))(x) if self.positive else log_density(d, x)

    def log_tail(self, d: Distribution, x: Tensor, *, upper: bool) -> Tensor:
        """log P(Z > x) or log P(Z ≤ x) at a point of the line, kept finite."""
        tail = log_survival if upper else log_cdf
        return tail(d, x.clamp(-700, 700).exp() if self.positive else x).clamp_min(-1e290)

    def places(self) -> tuple[Tensor, Tensor]:
        """Centres and widths, less those that are well inside the cells of a narrower neighbour."""
        centres, widths = self.centres, self.widths
        if self.kinked and centres.shape[1] <= _MOST_KINKS:
            return centres, widths
        rank = widths.argsort(stable=True, dim=1).argsort(1)
        apart = (centres.unsqueeze(2) - centres.unsqueeze(1)).abs()
        near = (apart < 0.5 * widths.unsqueeze(1)) & (rank.unsqueeze(1) < rank.unsqueeze(2))
        drop = near.any(2)
        first, narrowest = widths.min(1, keepdim=True)
        # the same centre twice has no cells in between
        centres = torch.where(drop, centres.gather(1, narrowest), centres)
        return centres, torch.where(drop, first, widths)


def _over_log(integrand: Integrand) -> Integrand:
    def over(u: Tensor, *tensors: Tensor) -> Tensor:
        within = u.clamp(-700, 700)  # the range of exp; beyond it nothing is left but a decay
        return integrand(within.exp(), *tensors) + within - (u - within).abs()

    return over


def recentred(d: Distribution, member: int | None = None) -> Distribution:
    """The distribution, (sets, members), moved so that one member of each set is at 0.

    Only differences between targets matter where this is used, and they keep their digits. By
    default the narrowest member goes to 0. The move is differentiated, so that a kink at 0 stays at
    the end of a cell for second derivatives too.
    """
    values = parameters(d)
    if "loc" not in values:
        return d
    if member is None:
        at = values["scale"].detach().argmin(1, keepdim=True)
    else:
        at = torch.full_like(values["loc"][:, :1], member, dtype=torch.long)
    values["loc"] = values["loc"] - values["loc"].gather(1, at)
    out: Distribution = rebuild(d, values.values())
    return out
