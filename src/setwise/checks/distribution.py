"""Whether a family of distributions agrees with itself: density, distribution function, samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setwise.checks.examples import (
    check_numerics,
    context,
    example_raw,
    refused,
    require,
    simulate,
)
from setwise.distributions import (
    Discrete,
    Family,
    families,
    log_cdf,
    log_density,
    log_survival,
    parameters,
    resolve,
)

__all__ = ["check_distribution"]

ROWS = 5
NODES, WEIGHTS = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(128))


def check_distribution(family: str | Family, *, n_samples: int = 4000, seed: int = 0) -> None:
    """Checks a family of distributions; raises AssertionError where something is wrong.

    * raw numbers of any size become parameters that the torch distribution allows, and wrong shapes
      are refused;
    * the distribution function is the integral (or sum) of the density, the survival function its
      complement, the limits are right, and samples follow it;
    * derivatives of all three, in raw and shared parameters, are finite and agree with difference
      quotients; single precision agrees with double;
    * a cumulant generating function, where there is one, is that of the samples.

    >>> import setwise as sw
    >>> check_distribution(sw.Laplace(scale="predicted"))
    """
    family = resolve(family)
    with context(repr(family)):
        _check_names(family)
        raw, shared = example_raw(family, ROWS, seed)
        d = family(raw, shared)
        _check_link(family, d, raw, shared)
        z = simulate(family, d, n_samples, seed).double()
        x = torch.quantile(z, torch.linspace(0.05, 0.95, 10, dtype=torch.float64), dim=0)
        if issubclass(family.kind, Discrete):
            _check_steps(d, z)
            x = x.round()
        else:
            _check_integral(d, x)
        _check_samples(d, x, z)
        _check_tails(d, x)
        for function in (log_density, log_cdf, log_survival):
            with context(f"`{function.__name__}`"):
                check_numerics(
                    lambda r, s, f=function: f(family(r, s), x.float().to(r)),
                    *(raw, shared, seed),
                    single_error=1e-4,
                )
        _check_cumulants(family, d, z)


def _check_names(family: Family) -> None:
    known = families().get(type(family).__name__.lower())
    require(known is type(family), "is not registered: set `distribution` in the class itself")
    names = (*family.outputs, *family.shared)
    require(family.outputs, "`outputs` is empty: a model must have something to predict")
    require(len(set(names)) == len(names), f"`outputs` and `shared` name something twice: {names}")


def _check_link(family: Family, d: Any, raw: Tensor, shared: Tensor) -> None:
    kind = family.distribution
    require(
        isinstance(d, kind), f"gives a {type(d).__name__}, but `distribution` is {kind.__name__}"
    )
    require(d.batch_shape == (ROWS,), f"{ROWS} rows gave batch_shape {tuple(d.batch_shape)}")
    require(not d.event_shape, f"a target must be one number, event_shape is {d.event_shape}")
    for size in (0.0, 60.0, -60.0, 1e4, -1e4):
        at = family(torch.full_like(raw, size), torch.full_like(shared, size))
        for name, value in parameters(at).items():
            good = value.isfinite().all() and at.arg_constraints[name].check(value).all()
            require(good, f"raw numbers of {size:g} make `{name}` = {value.flatten()[0]:g}")
    for wrong in (raw[:, 0], torch.cat([raw, raw], 1)):
        with refused(ValueError, f"raw numbers of shape {tuple(wrong.shape)}"):
            family(wrong, shared)


def _check_integral(d: Any, x: Tensor) -> None:
    """Between quantiles, the density integrated and the distribution function."""
    middle, half = (x[1:] + x[:-1]) / 2, (x[1:] - x[:-1]) / 2
    points = middle + half * NODES[:, None, None]
    found = (log_density(d, points).exp() * WEIGHTS[:, None, None]).sum(0) * half
    wanted = log_cdf(d, x[1:]).exp() - log_cdf(d, x[:-1]).exp()
    off = float((found - wanted).abs().max())
    require(
        off < 1e-3, f"the integral of the density is off the distribution function by {off:.3g}"
    )


def _check_steps(d: Any, z: Tensor) -> None:
    """The sum of the probabilities of 0, 1, … and the distribution function."""
    k = torch.arange(float(z.max()) + 1, dtype=torch.float64)[:, None]
    off = float((log_density(d, k).exp().cumsum(0) - log_cdf(d, k).exp()).abs().max())
    require(
        off < 1e-7, f"the sum of the probabilities is off the distribution function by {off:.3g}"
    )
    for between in (k + 0.5, -1 - k):
        p = log_density(d, between)
        require((p == -math.inf).all(), "numbers other than 0, 1, … must have log density −inf")
    steps = torch.equal(log_cdf(d, k + 0.5), log_cdf(d, k))
    require(steps, "the distribution function must be constant between whole numbers")


def _check_samples(d: Any, x: Tensor, z: Tensor) -> None:
    share = (z <= x.unsqueeze(1)).double().mean(1)
    p = log_cdf(d, x).exp()
    off = (share - p).abs() - 5 * (p * (1 - p) / len(z)).sqrt() - 1e-3
    at = int(off.argmax())
    require(
        off.max() <= 0,
        f"{float(share.flatten()[at]):.2%} of {len(z)} samples are at most "
        f"{float(x.flatten()[at]):.4g}, but P(Z ≤ x) is {float(p.flatten()[at]):.4g}",
    )


def _check_tails(d: Any, x: Tensor) -> None:
    off = float((log_cdf(d, x).exp() + log_survival(d, x).exp() - 1).abs().max())
    require(off < 1e-7, f"P(Z ≤ x) + P(Z > x) is off one by {off:.3g}")
    end = torch.full((ROWS,), math.inf, dtype=torch.float64)
    for at, low, high in ((-end, -math.inf, 0.0), (end, 0.0, -math.inf)):
        require((log_cdf(d, at) == low).all(), f"log P(Z ≤ {float(at[0])}) must be {low}")
        require((log_survival(d, at) == high).all(), f"log P(Z > {float(at[0])}) must be {high}")
        require((log_density(d, at) == -math.inf).all(), "the log density at ±inf must be −inf")
    try:
        own = d.log_prob(x)
    except NotImplementedError:
        return
    off = float((log_density(d, x) - own).abs().max())
    require(off < 1e-6, f"`log_density` is off the torch distribution's log_prob by {off:.3g}")


def _check_cumulants(family: Family, d: Any, z: Tensor) -> None:
    for side in family.cgf_domain(d):
        s = 0.2 * side.clamp(-1, 1)
        try:
            found = family.cgf(d, s).exp()
        except NotImplementedError:
            return
        power = (s * z).exp()
        error = power.std(0) / math.sqrt(len(z))
        off = (power.mean(0) - found).abs() - 6 * error
        require((off <= 0).all(), "`cgf` is not the log of the mean of exp(s·z) over samples")
