"""Improbable is not impossible: finite values and helpful gradients at extreme parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import example, instances, known_pairs, make_sets, observe
from torch import distributions as td

import setwise as sw
from setwise.distributions import parameters
from setwise.likelihood import Targets

LOCATION = ("normal", "cauchy", "laplace", "logistic", "gumbel", "studentt")
PAIRS = [(c, f) for c, f in known_pairs() if c is not sw.Custom and c is not sw.Noisy]
each = pytest.mark.parametrize(
    ("cls", "family"), PAIRS, ids=[f"{c.__name__}-{f}" for c, f in PAIRS]
)
SLOW = ("studentt", "gamma")
LARGE = [  # at most 16 targets in unknown order, by design
    (c, f)
    for c, f in PAIRS
    if c is not sw.Uncoupled and instances(c)[0].set_sizes(Targets()).most is None
]
DTYPES = (torch.float32, torch.float64)


def stressed(family, n, dtype, seed=0, how=0):
    """A function from one parameter to a distribution, and that parameter at its extremes."""
    rng = np.random.default_rng(seed)

    def tensor(a):
        return torch.tensor(np.asarray(a, float), dtype=dtype, requires_grad=True)

    sign = rng.choice([-1.0, 1.0], n)
    if family == "categorical":
        logits = tensor(rng.choice([-1e4, 0.0, 1e4], (n, 4)))
        return lambda logits: td.Categorical(logits=logits), [logits]
    if family in LOCATION:
        scale = (1.0, 1e-6, 1e6)[how]
        loc = tensor(sign * 1e6 * scale)
        width = torch.full((n,), scale, dtype=dtype)
        if family == "studentt":
            return lambda loc: td.StudentT(torch.full((n,), 4.0, dtype=dtype), loc, width), [loc]
        kind = {
            "normal": td.Normal, "cauchy": td.Cauchy, "laplace": td.Laplace, "gumbel": td.Gumbel,
            "logistic": sw.distributions.LogisticDistribution,
        }[family]  # fmt: skip
        return lambda loc: kind(loc, width), [loc]
    level = tensor(rng.choice([1e-6, 1.0, 1e6] if how else [1e-3, 1e3], n))
    if family == "exponential":
        return td.Exponential, [level]
    if family == "poisson":
        return td.Poisson, [level]
    if family == "gamma":
        return lambda level: td.Gamma(level, torch.ones(n, dtype=dtype)), [level]
    logits = torch.full((n,), -1.0, dtype=dtype)
    return lambda level: td.NegativeBinomial(level, logits=logits), [level]


@each
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
def test_far_from_the_data(cls, family, dtype):
    """Data of ordinary size, parameters far from it."""
    for how in range(3 if family in LOCATION else 2):
        for aggregate in instances(cls):
            ordinary, _ = example(family, 9, dtype=dtype)
            median = isinstance(aggregate, sw.Median)
            sets = make_sets(aggregate, (1, 3) if median else (1, 2, 4), n_rows=9)
            observed = observe(aggregate, ordinary, sets)
            make, leaves = stressed(family, 9, dtype, how=how)
            value = sw.log_likelihood(aggregate, make(*leaves), observed.sets, observed.y)
            assert not value.isnan().any()
            if family not in ("gumbel",):  # exp(1e6) is a true −inf for the left tail of Gumbel
                assert value.isfinite().all(), (aggregate, how, value)
            if not value.isfinite().all():
                continue
            grads = torch.autograd.grad(value.sum(), leaves)
            for leaf, grad in zip(leaves, grads, strict=True):
                assert grad.isfinite().all(), (aggregate, how)
                if dtype == torch.float64:
                    check_direction(aggregate, make, leaf, grad, observed, value)


def check_direction(aggregate, make, leaf, grad, observed, value):
    """The likelihood rises along the gradient, as central differences of some length see it."""
    top, size = float(grad.abs().max()), float(value.detach().abs().sum())
    if top == 0 or size > 1e100:  # there exponentials are cut off
        return
    rounding = 1e3 * torch.finfo(value.dtype).eps * (size + len(value))
    tried = []
    for length in (1e-2, 1e-4, 1e-6, 1e-8):
        step = length * leaf.detach().abs().clamp(min=1e-3) * (grad / top)
        if float((step * grad).sum()) < 10 * rounding:
            break  # no step that counts
        above, below = (
            sw.log_likelihood(aggregate, make((leaf + s).detach()), observed.sets, observed.y)
            for s in (step, -step)
        )
        tried.append(float((above - below).sum()))
        if tried[-1] > 0:
            return
    assert not tried, f"{aggregate}: steps along the gradient change the likelihood by {tried}"


@pytest.mark.parametrize(("cls", "family"), LARGE, ids=[f"{c.__name__}-{f}" for c, f in LARGE])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
def test_large_sets(cls, family, dtype):
    """Sets of 4096 where sets may be large."""
    for aggregate in instances(cls)[:1]:
        size = 4095 if cls is sw.Median else 4096
        if family in SLOW and cls in (sw.Choice, sw.Ranking):
            size = 256  # a distribution function that is an integral, at every node
        elif cls is sw.Ranking and family != "exponential":
            size = 512
        if cls in (sw.Counts, sw.Proportions):
            distribution = td.Categorical(
                logits=torch.randn(size, 2, dtype=dtype, requires_grad=True)
            )
            y = [size // 2] if cls is sw.Counts else [0.5]
        else:
            distribution, _ = example(family, size, dtype=dtype, grad=True)
            sets = sw.Sets(np.arange(size)[None, :])
            observed = observe(aggregate, distribution, sets)
            y = observed.y
        sets = observed.sets if cls is sw.Ranking else sw.Sets(np.arange(size)[None, :])
        value = sw.log_likelihood(aggregate, distribution, sets, y)
        assert value.isfinite().all()
        leaf = next(iter(parameters(distribution).values()))
        (grad,) = torch.autograd.grad(value.sum(), leaf)
        assert grad.isfinite().all()
