"""Location-scale families: Z = loc + scale · W, with W free of parameters (or nearly so)."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Family
from setwise.distributions.links import Choice, ask, check_choice, check_raw, positive_parameter
from setwise.distributions.special import with_ends

__all__ = ["LocationScale"]


class LocationScale(Family):
    """Z = loc + scale · W: a concrete family gives the functions of W.

    The raw number behind a learned scale is its logarithm.
    """

    @property
    @abstractmethod
    def scale(self) -> Choice:
        """One for all rows ("shared"), one per row ("predicted"), or a fixed number."""

    @staticmethod
    @abstractmethod
    def standard_log_cdf(d: Any, z: Tensor) -> Tensor:
        """log P(W ≤ z) for finite z."""

    @staticmethod
    @abstractmethod
    def standard_log_survival(d: Any, z: Tensor) -> Tensor:
        """log P(W > z) for finite z."""

    @staticmethod
    @abstractmethod
    def standard_log_density(d: Any, z: Tensor) -> Tensor:
        """The log density of W at z, for finite z."""

    @abstractmethod
    def build(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The torch distribution with this location and scale."""

    # ---- from raw outputs to a distribution

    def __post_init__(self) -> None:
        check_choice(type(self).__name__, "scale", self.scale, positive=True)

    @property
    def outputs(self) -> tuple[str, ...]:
        """("loc",), and "log_scale" where the scale is predicted."""
        return ("loc", *ask(self.scale, "predicted", "log_scale"))

    @property
    def shared(self) -> tuple[str, ...]:
        """("log_scale",) where the scale is shared."""
        return ask(self.scale, "shared", "log_scale")

    def __call__(self, raw: Tensor, shared: Tensor | None = None) -> Distribution:
        """The distribution of each row: `raw` is (rows, outputs), `shared` is (len(shared),)."""
        named = check_raw(self, raw, shared)
        scale = positive_parameter(self.scale, named, "log_scale")
        return self.build(named["loc"], scale)

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

    # ---- the functions of Z

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


def _standard(d: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Whether x is finite, and z = (x − loc) / scale where it is."""
    inside = x.isfinite()
    return inside, (torch.where(inside, x, d.loc) - d.loc) / d.scale
