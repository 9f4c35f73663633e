"""Every pair gives the same value and gradient on an accelerator as on the CPU."""

from __future__ import annotations

import pytest
import torch
from cases import example, make_sets, observe, trials

import setwise as sw
from setwise.distributions import map_parameters


def _draws(aggregate):
    return isinstance(getattr(aggregate, "aggregate", aggregate), sw.Custom)


# The random numbers of a CUDA device are others. Without one there is nothing to collect.
TRIALS = [
    trial
    for trial in trials()
    if torch.cuda.is_available() and not (_draws(trial[1]) and trial[2] != "categorical")
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("aggregate", "family"), [t[1:] for t in TRIALS], ids=[t[0] for t in TRIALS]
)
def test_cuda_agrees_with_cpu(aggregate, family, dtype):
    distribution, leaves = example(family, 7, dtype=dtype, grad=True)
    inner = getattr(aggregate, "aggregate", aggregate)
    sets = make_sets(aggregate, (1, 3) if isinstance(inner, sw.Median) else (2, 3, 4))
    observed = observe(aggregate, distribution, sets)
    here = sw.log_likelihood(aggregate, distribution, observed.sets, observed.y)
    there = map_parameters(distribution, lambda p: p.cuda())
    value = sw.log_likelihood(aggregate, there, observed.sets, observed.y)
    assert value.is_cuda
    assert value.dtype == dtype
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(value.cpu(), here, rtol=tolerance, atol=tolerance)
    a = torch.autograd.grad(here.sum(), leaves, allow_unused=True, retain_graph=True)
    b = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    for x, y in zip(a, b, strict=True):
        if x is not None:
            torch.testing.assert_close(x, y, rtol=10 * tolerance, atol=10 * tolerance)
