"""Location-scale families: Z = loc + scale · W."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Continuous, parameters
from setwise.distributions.links import Choice
from setwise.distributions.parametric import ParametricFamily
from setwise.distributions.special import with_ends

__all__ = ["LocationScale"]


class LocationScale(ParametricFamily):
    """Z = loc + scale · W: a concrete family gives the functions of W.

    It says whether W is `symmetric`, and if not gives `standard_log_survival` too. Where W is
    infinitely divisible, its `jumps` make posteriors possible.
    """

    scale: Choice
    kind: ClassVar[type] = Continuous
    links: ClassVar[dict[str, str]] = {"loc": "loc", "scale": "log_scale"}
    located: ClassVar[bool] = True
    unit: ClassVar[str] = "log_scale"
    reach: ClassVar[int] = 6  # jumps of W beyond 2^reach do not matter
    one_scale: ClassVar[bool] = False  # `difference` is only known for two equal scales

    @staticmethod
    @abstractmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log P(W ≤ z) for finite z."""

    @classmethod
    def standard_log_survival(cls, d: Any, z: Tensor) -> Tensor:
        """log P(W > z) for finite z: that is log P(W ≤ −z) where W is symmetric."""
        return cls.standard_log_cdf(d, -z)

    @staticmethod
    @abstractmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """The log density of W at z, for finite z."""

    # ---- from raw outputs to a distribution

    @property
    def n_spread(self) -> int:
        """One number for a shared scale, two for predicted ones: a factor and a power."""
        return len(self.shared) or 2 * (len(self.outputs) - 1)

    def respread(self, raw: Tensor, shared: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """The same locations; log scales times 1 + change[1] plus change[0] where predicted."""
        if len(self.outputs) == 1:
            return raw, shared + change
        log_scale = (1 + change[1]) * raw[:, 1] + change[0]
        return torch.stack([raw[:, 0], log_scale], 1), shared

    def start(self, mean: float, deviation: float) -> dict[str, tuple[float, float]]:
        """The mean and the standard deviation."""
        return {"loc": (mean, deviation), "log_scale": (math.log(deviation), 1.0)}

    def units(self, raw: Tensor, shared: Tensor) -> Tensor:
        """A location changes in steps of the size of the scale."""
        d: Any = self(raw.detach().unsqueeze(0), shared.detach())
        return torch.cat([d.scale, torch.ones_like(raw[1:])])

    # ---- the functions of Z

    @staticmethod
    def difference(gap: Tensor, scale: Tensor, other: Tensor) -> Distribution | None:
        """The distribution of Z₁ − Z₂ with loc₁ − loc₂ = `gap`, if it is of a known family."""
        return None

    @classmethod
    def log_cdf(cls, d: Any, x: Tensor) -> Tensor:
        """log P(Z ≤ x)."""
        inside, z = _standard(d, x)
        return with_ends(inside, cls.standard_log_cdf(d, z), x, -math.inf, 0.0)

    @classmethod
    def log_survival(cls, d: Any, x: Tensor) -> Tensor:
        """log P(Z > x)."""
        inside, z = _standard(d, x)
        return with_ends(inside, cls.standard_log_survival(d, z), x, 0.0, -math.inf)

    @classmethod
    def log_density(cls, d: Any, x: Tensor) -> Tensor:
        """The log density at x."""
        inside, z = _standard(d, x)
        return torch.where(inside, cls.standard_log_density(d, z) - d.scale.log(), -math.inf)

    @staticmethod
    def centre_width(d: Any) -> tuple[Tensor, Tensor]:
        """The location and the scale."""
        return d.loc.detach(), d.scale.detach()

    @staticmethod
    def jumps(d: Any, x: Tensor) -> tuple[Tensor, ...] | None:
        """x times the density of the Lévy measure of W at x > 0: of jumps up, and down if any.

        Each is (len(x), rows), or (len(x), 1) if the same for all rows. None where not known.
        """
        return None

    @classmethod
    def tilted(cls, d: Any) -> Iterator[tuple[dict[str, Tensor], Tensor]] | None:
        """Distributions at other locations, from the jumps of Z.

        An infinitely divisible Z obeys E[Z f(Z)] = E[Z] E[f(Z)] + ∫ x ν(dx) E[f(Z + x) − f(Z)],
        with ν the measure of its jumps. The integral is a sum at Gauss–Legendre nodes, to about
        three digits where the density has a kink.
        """
        points, weights = np.polynomial.legendre.leggauss(16)
        edges = np.concatenate([[0.0], 2.0 ** np.arange(-1, cls.reach + 1)])
        half = np.diff(edges)[:, None] / 2
        x = torch.from_numpy((edges[:-1, None] + half * (1 + points)).ravel())
        jumps = cls.jumps(d, x)
        if jumps is None:
            return None
        w, own = torch.from_numpy((half * weights).ravel()), parameters(d)
        return (
            ({**own, "loc": d.loc + sign * at * d.scale}, sign * size * density * d.scale)
            for sign, side in zip((1, -1), jumps, strict=False)
            for at, size, density in zip(x, w, side, strict=True)
        )


def _standard(d: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Whether x is finite, and z = (x − loc) / scale where it is."""
    inside = x.isfinite()
    return inside, (torch.where(inside, x, d.loc) - d.loc) / d.scale
