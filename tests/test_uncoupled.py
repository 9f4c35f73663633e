"""Uncoupled targets against the sum over all permutations."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Categorical, Gumbel, NegativeBinomial, Normal, Poisson

from setwise._math.class_counts import log_coefficient
from setwise.aggregates.uncoupled import Uncoupled
from setwise.likelihood import log_likelihood
from setwise.sets import Sets

F64 = torch.float64


def by_permutations(logs):
    size = len(logs)
    terms = [sum(logs[i, j] for i, j in enumerate(p)) for p in itertools.permutations(range(size))]
    return np.logaddexp.reduce(terms) - math.lgamma(size + 1)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_uncoupled_by_permutations(rng, size):
    loc, scale = rng.normal(size=size) * 3, rng.uniform(0.1, 2, size)
    count = rng.uniform(0.5, 5, size)
    y = rng.normal(size=size) * 3
    k = rng.integers(0, 3, size)
    logits = torch.tensor(rng.normal(size=(size, 3))).log_softmax(1)
    half = torch.full((size,), 0.5, dtype=F64)
    place, rate = [torch.tensor(v) for v in (loc, scale)], torch.tensor(count)
    loc, scale, count = loc[:, None], scale[:, None], count[:, None]
    cases = [
        (Normal(*place), y, stats.norm.logpdf(y, loc, scale)),
        (Gumbel(*place), y, stats.gumbel_r.logpdf(y, loc, scale)),
        (Poisson(rate), k, stats.poisson.logpmf(k, count)),
        (NegativeBinomial(rate, half), k, stats.nbinom.logpmf(k, count, 0.5)),
        (Categorical(logits=logits), k, logits.numpy()[:, k]),
    ]
    for d, targets, logs in cases:
        found = log_likelihood(Uncoupled(), d, [list(range(size))], [targets])
        np.testing.assert_allclose(found.item(), by_permutations(logs), rtol=1e-11)


def test_uncoupled_ragged_and_derivatives(rng):
    loc = torch.tensor(rng.normal(size=6), requires_grad=True)
    sets, y = Sets([[0, 1, 2], [3], [4, 5]]), [[0.5, -1.0, 2.0], [0.3], [1.0, 1.0]]

    def value(loc):
        return log_likelihood(Uncoupled(), Normal(loc, torch.full_like(loc, 0.7)), sets, y)

    out = value(loc)
    for i, members in enumerate(sets):
        logs = stats.norm.logpdf(y[i], loc.detach().numpy()[members][:, None], 0.7)
        np.testing.assert_allclose(out[i].item(), by_permutations(logs), rtol=1e-12)
    assert gradcheck(value, loc)
    assert gradgradcheck(value, loc)


def test_uncoupled_extremes():
    loc = torch.tensor([0.0, 1e6, -1e6], dtype=F64, requires_grad=True)
    d = Normal(loc, torch.tensor([1.0, 1e-6, 1e6], dtype=F64))
    out = log_likelihood(Uncoupled(), d, [[0, 1, 2]], [[-3e6, 5.0, 7.0]])
    (grad,) = torch.autograd.grad(out.sum(), loc)
    assert out.isfinite().all()
    assert grad.isfinite().all()
    rate = torch.ones(2, requires_grad=True)
    out = log_likelihood(Uncoupled(), Poisson(rate), [[0, 1]], [[0.5, 1.0]])
    assert out.item() == -math.inf
    assert (torch.autograd.grad(out.sum(), rate)[0] == 0).all()


def test_uncoupled_against_thewalrus(rng):
    thewalrus = pytest.importorskip("thewalrus")
    logs = rng.normal(size=(9, 9))
    found = log_coefficient(torch.tensor(logs)[None], (1,) * 9)
    np.testing.assert_allclose(found.exp().item(), thewalrus.perm(np.exp(logs)), rtol=1e-10)


def test_uncoupled_sixteen_members(rng):
    """All densities equal: the permanent is 16! times their product."""
    found = log_coefficient(torch.full((1, 16, 16), -2.0, dtype=F64), (1,) * 16)
    np.testing.assert_allclose(found.item(), math.lgamma(17) - 32, rtol=1e-13)


def test_uncoupled_input():
    sets = Sets([[0, 1], [2]])
    y = Uncoupled().check(sets, [[1.0, 2.0], [3.0]])
    np.testing.assert_array_equal(y, [[1, 2], [3, np.nan]])
    np.testing.assert_array_equal(Uncoupled().check(sets, y), y)
    seen = Uncoupled().observe([5.0, 6.0, 7.0], sets, seed=1).y
    assert sorted(seen[0].tolist()) == [5, 6]
    assert seen[1, 0] == 7
    for bad, message in (
        ([[1.0, 2.0], [np.nan]], "set 1 has 1 member"),
        ([[1.0, 2.0, 3.0], [1.0]], "set 0 has 2 member.*3 target"),
        ([[1.0, np.inf], [1.0]], "set 0"),
        ([[1.0, 2.0]], "1 entries"),
        ([["a", "b"], ["c"]], "numbers"),
        (None, "needs the list of targets"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            Uncoupled().check(sets, bad)
    with pytest.raises(ValueError, match=r"set 0 has 17 members.*up to 16"):
        Uncoupled().check(Sets([list(range(17))]), [list(range(17))])
