"""Families that state their links in a table, and families on z ≥ 0."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise.distributions.base import Continuous, Family, Repeat, parameters, with_parameters
from setwise.distributions.links import check_raw, exp_link
from setwise.distributions.special import with_ends

__all__ = ["NonNegative", "ParametricFamily", "RateFamily"]


class ParametricFamily(Family):
    """A family whose `links` map each parameter to a raw number.

    A raw number whose name begins with "log_" is the logarithm of the parameter. A parameter that
    is also a field of the family is what the user chose: "shared", "predicted" or a fixed number.
    All others are predicted.
    """

    links: ClassVar[dict[str, str]]

    def __post_init__(self) -> None:
        for name, source in self.links.items():
            value: Any = getattr(self, name, "predicted")
            positive = source.startswith("log_")
            if isinstance(value, str) and value in ("shared", "predicted"):
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or (positive and value <= 0):
                kind = "positive number" if positive else "number"
                raise ValueError(
                    f'{type(self).__name__}: {name} must be "shared" (one for all rows, learned), '
                    f'"predicted" (one per row, from the features) or a fixed {kind}, got {value!r}'
                )

    def _chosen(self, choice: str) -> tuple[str, ...]:
        links = self.links.items()
        return tuple(raw for name, raw in links if getattr(self, name, "predicted") == choice)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The raw numbers behind predicted parameters."""
        return self._chosen("predicted")

    @property
    def shared(self) -> tuple[str, ...]:
        """The raw numbers behind shared parameters."""
        return self._chosen("shared")

    @property
    def n_spread(self) -> int:
        """One number, unless the second parameter is fixed."""
        return len(self.shared) or len(self.outputs) - 1

    def __call__(self, raw: Tensor, shared: Tensor | None = None) -> Distribution:
        """The distribution of each row: `raw` is (rows, outputs), `shared` is (len(shared),)."""
        named = check_raw(self, raw, shared)
        values = {}
        for name, source in self.links.items():
            choice = getattr(self, name, "predicted")
            if isinstance(choice, str):
                log = source.startswith("log_")
                values[name] = exp_link(named[source]) if log else named[source]
            else:
                values[name] = raw.new_full((), choice).expand(len(raw))
        make: Any = self.distribution
        made: Distribution = make(**values, validate_args=False)
        return made

    @classmethod
    def shifted(cls, d: Any, u: Tensor, repeat: Repeat) -> Distribution:
        """The location moves by u; of a family on z ≥ 0, the logarithm of the mean."""
        name, own = "loc" if "loc" in cls.links else next(iter(cls.links)), parameters(d)
        if cls.links[name].startswith("log_"):
            moved = own[name] * repeat(exp_link(u[:, 0]))
        else:
            moved = own[name] + repeat(u[:, 0])
        return with_parameters(d, {**own, name: moved})


class NonNegative(ParametricFamily):
    """Targets z ≥ 0: a concrete family gives `log_tail` inside the support."""

    @staticmethod
    @abstractmethod
    def log_tail(d: Any, x: Tensor, *, upper: bool) -> Tensor:
        """log P(Z > x) or log P(Z ≤ x) for finite x > 0 (counts: whole x ≥ 0), in float64."""

    @classmethod
    def log_cdf(cls, d: Any, x: Tensor) -> Tensor:
        """log P(Z ≤ x)."""
        return cls._extended(d, x, upper=False)

    @classmethod
    def log_survival(cls, d: Any, x: Tensor) -> Tensor:
        """log P(Z > x)."""
        return cls._extended(d, x, upper=True)

    @classmethod
    def _extended(cls, d: Any, x: Tensor, *, upper: bool) -> Tensor:
        """`log_tail` for every real x."""
        inside = (x > 0 if cls.positive else x >= 0) & x.isfinite()
        at = torch.where(inside, x.double(), 1.0)
        out = cls.log_tail(d, at if cls.positive else at.floor(), upper=upper)
        low, high = (0.0, -math.inf) if upper else (-math.inf, 0.0)
        return with_ends(inside, out, x, low, high)


class RateFamily(NonNegative):
    """Exponential families in z > 0 with natural parameter −rate."""

    kind: ClassVar[type] = Continuous
    positive: ClassVar[bool] = True
    log_mean: ClassVar[bool] = True

    @staticmethod
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]]:
        """−rate."""
        fixed = parameters(d)
        return -d.rate.unsqueeze(1), lambda eta: with_parameters(d, {**fixed, "rate": -eta[:, 0]})

    @staticmethod
    def cgf_domain(d: Any) -> tuple[Tensor, Tensor]:
        """(−∞, rate)."""
        return torch.full_like(d.rate, -math.inf), d.rate
