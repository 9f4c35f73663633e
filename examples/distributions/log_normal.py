"""LogNormal: positive targets with a normal logarithm, such as incomes."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from setwise.distributions import (
    Continuous,
    Family,
    log_cdf,
    log_density,
    log_survival,
)
from setwise.distributions.links import check_raw, exp_link
from setwise.distributions.special import with_ends


@dataclass(frozen=True)
class LogNormal(Family):
    """z = exp(loc + scale · normal): loc for each row, one log scale for all."""

    distribution: ClassVar = torch.distributions.LogNormal
    kind: ClassVar = Continuous
    positive: ClassVar = True  # integrals run over log z
    unit: ClassVar = "loc"  # the raw number that changes with the unit of z
    outputs: ClassVar = ("loc",)
    shared: ClassVar = ("log_scale",)

    def __call__(self, raw, shared=None):
        named = check_raw(self, raw, shared)
        loc, scale = (
            named["loc"].clamp(-300, 300),
            exp_link(named["log_scale"].clamp(-30, 5)),
        )
        return torch.distributions.LogNormal(loc, scale, validate_args=False)

    def start(self, mean, deviation):
        variance = math.log1p((deviation / mean) ** 2)  # of log z
        loc, log_scale = math.log(mean) - variance / 2, math.log(variance) / 2
        return {"loc": (loc, 1.0), "log_scale": (log_scale, 1.0)}

    @staticmethod
    def log_density(d, x):
        inside, normal, u = _log(d, x)
        return torch.where(inside, log_density(normal, u) - u, -math.inf)

    @staticmethod
    def log_cdf(d, x):
        inside, normal, u = _log(d, x)
        return with_ends(inside, log_cdf(normal, u), x, -math.inf, 0.0)

    @staticmethod
    def log_survival(d, x):
        inside, normal, u = _log(d, x)
        return with_ends(inside, log_survival(normal, u), x, 0.0, -math.inf)

    @staticmethod
    def centre_width(d):  # on the line of log z
        return d.loc.detach(), d.scale.detach()

    @classmethod
    def tilted(cls, d):
        yield {"loc": d.loc + d.scale**2, "scale": d.scale}, d.mean


def _log(d, x):
    """Whether x is in the support, the law of log z, and log x (elsewhere 0)."""
    inside = (x > 0) & x.isfinite()
    normal = torch.distributions.Normal(d.loc, d.scale, validate_args=False)
    return inside, normal, torch.where(inside, x, 1.0).log()
