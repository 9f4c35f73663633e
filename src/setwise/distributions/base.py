"""The interface of a family of distributions, and access to the parts of torch distributions."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution

DRAWS = 4096  # of targets, over all rows together, for `Family.information`


class Continuous(metaclass=ABCMeta):
    """Marker of distributions with a density on the real line or a part of it."""


class Discrete(metaclass=ABCMeta):
    """Marker of distributions on 0, 1, 2, …: counts and ordered classes."""


class Count(Discrete):
    """Marker of distributions on all of 0, 1, 2, …"""


Repeat = Callable[[Tensor], Tensor]
_FAMILIES: dict[str, type[Family]] = {}


class Family(ABC):
    """A family p(z | θ): how raw numbers become parameters, and its distribution functions.

    An *instance* holds what a user chose (a fixed, shared or predicted scale) and turns raw model
    outputs, any real numbers, into a torch distribution over rows. The *static methods* are the
    mathematics of the torch distribution itself, accurate in both tails and differentiable in the
    parameters and in x.

    A concrete family sets `distribution` (the torch class) and `kind` (`Continuous`, `Count` or
    `Discrete`), which registers it with every rule and every test. It must give `outputs`,
    `__call__`, `log_cdf`, `log_survival`, `log_density` and `centre_width`. Sums also need `cgf`
    and `cgf_domain`, posteriors need `natural` or `tilted`, and `start` gives learners good
    starting values. Quantiles, point estimates and information follow from these.
    """

    distribution: ClassVar[type[Distribution]]
    kind: ClassVar[type]
    positive: ClassVar[bool] = False  # support is (0, ∞): integrals run over log z
    kinked: ClassVar[bool] = False  # the density has a kink at the location
    spread_about_constant: ClassVar[bool] = False  # `respread` is of distances from a constant
    log_mean: ClassVar[bool] = False  # a lone raw output is log E[Z], up to a shared number
    located: ClassVar[bool] = False  # the family of Z contains Z + c, by another `loc`
    symmetric: ClassVar[bool] = False  # the family of Z contains −Z, by `loc` of opposite sign
    unit: ClassVar[str] = ""  # the raw number that changes with the unit in which Z is measured
    shape_varies: ClassVar[bool] = False  # with the parameters, beyond location and scale
    slow_tails: ClassVar[bool] = False  # tails cost much more than densities
    peaked: ClassVar[bool] = False  # most of Z may be near 0: sums are computed with `cgf_slope`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "distribution" in cls.__dict__:
            cls.kind.register(cls.distribution)  # type: ignore[attr-defined]
            _FAMILIES[cls.__name__.lower()] = cls

    # ---- from raw outputs to a distribution

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the raw numbers a model gives per row, e.g. ("loc", "log_scale")."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the raw numbers learned once for all rows, e.g. ("log_scale",)."""
        return ()

    @abstractmethod
    def __call__(self, raw: Tensor, shared: Tensor | None = None) -> Distribution:
        """The distribution of each row: `raw` is (rows, outputs), `shared` is (len(shared),)."""

    @property
    def n_spread(self) -> int:
        """How many learned numbers say how far targets scatter around their location or mean."""
        return len(self.shared)

    def respread(self, raw: Tensor, shared: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Raw and shared numbers of the same locations (or means) with another spread.

        `change` has `n_spread` numbers; at zero nothing changes.
        """
        return raw, shared + change

    def start(self, mean: float, deviation: float) -> dict[str, tuple[float, float]]:
        """Where to begin for targets of about this mean and standard deviation.

        For each raw and shared number, by name: its value, and the size of a typical step. What is
        not named starts at 0 with steps of about 1. The mean is positive where targets are.
        """
        return {}

    def units(self, raw: Tensor, shared: Tensor) -> Tensor:
        """The size of each raw output, (outputs,), where a row has the raw numbers `raw`."""
        return torch.ones_like(raw)

    def information(self, raw: Tensor, shared: Tensor, seed: int = 0) -> Tensor:
        """E[(∂ log p(z)/∂raw)²], (rows, outputs): the Fisher information in a row's own target.

        By default over a few thousand draws of z.
        """
        copies = max(1, DRAWS // len(raw))
        leaf = raw.detach().repeat(copies, 1).requires_grad_()
        d = self(leaf, shared)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            z = d.sample()
        (slope,) = torch.autograd.grad(self.log_density(d, z).sum(), leaf)
        return slope.square().reshape(copies, *raw.shape).mean(0)

    @classmethod
    def n_shifts(cls, d: Any) -> int:
        """How many numbers a shift that members share consists of."""
        return 1

    @classmethod
    def shifted(cls, d: Any, u: Tensor, repeat: Repeat) -> Distribution:
        """The distributions where u, (sets, n_shifts), is added to what a model predicts of rows.

        That is the location, the logarithm of the mean, or the log odds of classes. `repeat` gives
        rows what their sets have.
        """
        raise TypeError(
            f"it is not known how members of a set that share a shift are distributed: give "
            f"{cls.__name__} a class method `shifted`"
        )

    @classmethod
    def effect(cls, d: Any, u: Tensor) -> Tensor:
        """A shift as it is told: one number for each set, or one for each class."""
        return u

    # ---- mathematics of the torch distribution

    @staticmethod
    @abstractmethod
    def log_cdf(d: Any, x: Tensor) -> Tensor:
        """log P(Z ≤ x), for every real x."""

    @staticmethod
    @abstractmethod
    def log_survival(d: Any, x: Tensor) -> Tensor:
        """log P(Z > x), for every real x."""

    @staticmethod
    @abstractmethod
    def log_density(d: Any, x: Tensor) -> Tensor:
        """log density or log probability at x; −inf with gradient zero outside the support."""

    @staticmethod
    @abstractmethod
    def centre_width(d: Any) -> tuple[Tensor, Tensor]:
        """Centre and width of the bulk of Z, or of log Z where Z is `positive` (no gradient)."""

    @staticmethod
    def cgf(d: Any, s: Tensor) -> Tensor:
        """Cumulant generating function log E exp(s Z) for complex s inside `cgf_domain`."""
        raise NotImplementedError

    @staticmethod
    def cgf_slope(d: Any, s: Tensor) -> Tensor:
        """The derivative of `cgf`; only `peaked` families need it."""
        raise NotImplementedError

    @classmethod
    def cgf_domain(cls, d: Any) -> tuple[Tensor, Tensor]:
        """The open interval of real s where `cgf` is finite: the whole line unless overridden."""
        end = torch.full_like(cls.centre_width(d)[0], math.inf)
        return -end, end

    @classmethod
    def quantile(cls, d: Any, p: float) -> Tensor:
        """The smallest x with P(Z ≤ x) ≥ p (no gradient)."""
        with contextlib.suppress(NotImplementedError):
            found: Tensor = d.icdf(d.mean.new_tensor(p))
            return found
        found = quantile_by_bisection(cls, d, p)
        return found.round() if issubclass(cls.kind, Discrete) else found

    @classmethod
    def mean(cls, d: Any) -> Tensor:
        """E[Z], NaN where there is none."""
        out: Tensor = d.mean
        return out

    @classmethod
    def has_mean(cls, d: Any) -> bool:
        """Whether E[Z] exists for every row."""
        return not bool(cls.mean(d).isnan().any())

    @classmethod
    def point_estimate(cls, d: Any) -> Tensor:
        """The mean; the median where there is no mean (no gradient)."""
        mean = cls.mean(d)
        return mean if cls.has_mean(d) else torch.where(mean.isnan(), cls.quantile(d, 0.5), mean)

    @staticmethod
    def natural(d: Any) -> tuple[Tensor, Callable[[Tensor], Distribution]] | None:
        """For posteriors: natural parameters, (rows, statistics), and the distribution they give.

        The first one belongs to the statistic z; a second one, if any, to (z − E[Z])², so that
        variances need no second derivative. None where z is not a sufficient statistic.
        """
        return None

    @classmethod
    def tilted(cls, d: Any) -> Iterator[tuple[dict[str, Tensor], Tensor]] | None:
        """For posteriors without `natural`: members p_j of the family with weights c_j.

        They satisfy z p(z) = E[Z] p(z) + Σ c_j (p_j(z) − p(z)); each is given by its parameters.
        For a log-normal one is enough: z p(z) is E[Z] times the density with loc + scale².
        """
        return None


def quantile_by_bisection(family: type[Family], d: Any, p: float) -> Tensor:
    """The smallest x with P(Z ≤ x) ≥ p, to rounding error, from the smaller of the two tails."""

    def too_low(u: Tensor) -> Tensor:
        x = u.exp() if family.positive else u
        if p > 0.5:
            return family.log_survival(d, x) > math.log1p(-p)
        return family.log_cdf(d, x) < math.log(p)

    centre, width = family.centre_width(d)
    low, high = centre - width, centre + width
    for _ in range(64):  # the ends move out, twice as far each time
        left, right = ~too_low(low), too_low(high)
        if not (left | right).any():
            break
        reach = high - low
        low, high = torch.where(left, low - reach, low), torch.where(right, high + reach, high)
    for _ in range(128):
        middle = (low + high) / 2
        if ((middle <= low) | (middle >= high)).all():
            break
        below = too_low(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high.exp() if family.positive else high


def families() -> dict[str, type[Family]]:
    """Every known family by its lower-case name."""
    return dict(_FAMILIES)


def family_of(distribution: Distribution | type[Distribution]) -> type[Family]:
    """The family that a torch distribution belongs to.

    >>> family_of(torch.distributions.Normal(0.0, 1.0)).__name__
    'Normal'
    """
    cls = distribution if isinstance(distribution, type) else type(distribution)
    for base in cls.__mro__:
        for family in _FAMILIES.values():
            if family.distribution is base:
                return family
    known = ", ".join(sorted(f.distribution.__name__ for f in _FAMILIES.values()))
    raise TypeError(f"no distribution functions are known for {cls.__name__}; known are: {known}")


def kinds_of(cls: type[Distribution]) -> list[type]:
    """What a rule may be registered for so that it serves `cls`, most specific first."""
    own = [c for c in cls.__mro__ if c not in (Distribution, object)]
    markers = [m for m in (Count, Discrete, Continuous) if issubclass(cls, m)]
    return [*own, *markers, Distribution]


def log_cdf(d: Distribution, x: Tensor) -> Tensor:
    """log P(Z ≤ x), accurate in both tails.

    >>> log_cdf(torch.distributions.Laplace(0.0, 1.0), torch.tensor(-800.0))
    tensor(-800.6932)
    """
    return family_of(d).log_cdf(d, x)


def log_survival(d: Distribution, x: Tensor) -> Tensor:
    """log P(Z > x), accurate in both tails."""
    return family_of(d).log_survival(d, x)


def log_density(d: Distribution, x: Tensor) -> Tensor:
    """log density (or probability) at x; −inf with gradient zero outside the support."""
    return family_of(d).log_density(d, x)


def shifted(d: Distribution, u: Tensor, repeat: Repeat = torch.Tensor.clone) -> Distribution:
    """The distributions of rows that are shifted by u, (rows, `n_shifts`); see `Family.shifted`.

    >>> rows = torch.distributions.Normal(torch.zeros(2), torch.ones(2))
    >>> shifted(rows, torch.tensor([[1.0], [2.0]])).mean
    tensor([1., 2.])
    """
    return family_of(d).shifted(d, u, repeat)


def has_mean(d: Distribution) -> bool:
    """Whether E[Z] exists for every row."""
    return family_of(d).has_mean(d)


def point_estimate(d: Distribution) -> Tensor:
    """The mean of each row; the median where there is no mean; the mean number of a class.

    >>> point_estimate(torch.distributions.Cauchy(torch.tensor([3.0]), 1.0))
    tensor([3.])
    """
    return family_of(d).point_estimate(d)


def interval(d: Distribution, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The central interval that holds each target with this probability (or more, for counts).

    >>> low, high = interval(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), 0.9)
    >>> print(low.round(3), high.round(3))
    [-1.645] [1.645]
    """
    with torch.no_grad():
        d = double(d)
        ends = (family_of(d).quantile(d, (1 + sign * level) / 2) for sign in (-1, 1))
        low, high = (np.asarray(end, np.float64) for end in ends)
    return low, high


def parameters(d: Distribution) -> dict[str, Tensor]:
    """The constructor parameters of a torch distribution, logits rather than probabilities."""
    names = [n for n in d.arg_constraints if n != "probs" or "logits" not in d.arg_constraints]
    found = {name: getattr(d, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def map_parameters(d: Distribution, fn: Callable[[Tensor], Tensor]) -> Distribution:
    """The same kind of distribution with `fn` applied to every parameter, without checks.

    Logits of a categorical distribution are normalised already and stay as they are.
    """
    values = {name: fn(value) for name, value in parameters(d).items()}
    return normalised(**values) if isinstance(d, TorchCategorical) else with_parameters(d, values)


def normalised(logits: Tensor) -> TorchCategorical:
    """A categorical distribution with these logarithms of probabilities, which add up to one."""
    out = TorchCategorical.__new__(TorchCategorical)
    out.logits = out._param = logits
    out._num_events = logits.shape[-1]
    Distribution.__init__(out, logits.shape[:-1], validate_args=False)
    return out


def with_parameters(d: Distribution, values: dict[str, Tensor]) -> Distribution:
    """A distribution of the same kind with these parameters, unchecked."""
    make: Any = type(d)
    made: Distribution = make(**values, validate_args=False)
    return made


def double(d: Distribution) -> Distribution:
    """The distribution with parameters in float64: what numerical rules compute in."""
    return map_parameters(d, torch.Tensor.double)
