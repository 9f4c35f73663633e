"""Random sets, parameters and observations for every rule, found by hypothesis.

Values are finite, or −inf with gradient zero, of the right shape, with gradients as differences
have them, in whatever order the sets come, and within seconds.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from cases import trials
from hypothesis import given, settings
from hypothesis import strategies as st

import setwise as sw
from setwise.checks.examples import check_numerics
from setwise.distributions import Count, families
from setwise.likelihood import Targets

TRIALS = [*trials(only_exact=True)]
CASES = pytest.mark.parametrize(
    ("aggregate", "name"), [(a, f) for _, a, f in TRIALS], ids=[each for each, *_ in TRIALS]
)
PATIENCE = 20  # seconds of a processor
MODERATE = 1.0  # where differences are to be trusted
HIGHEST = 8.0  # of counts the logarithm: a noisy mean of 10¹⁰ takes half a minute
SLACK = {"float": 1e-3, "single": 3e-3}


@st.composite
def tasks(draw, aggregate, name):
    """(a family, raw and shared parameters, observations, how wild)."""
    family = families()[name](4) if name == "categorical" else families()[name]()
    n_rows = draw(st.integers(4, 8))
    takes = aggregate.set_sizes(Targets.of(family))
    sizes = st.sampled_from([size for size in range(1, 5) if takes.takes(size)])
    seed = draw(st.integers(0, 2**32 - 1))
    listed = draw(st.lists(sizes, min_size=1, max_size=6))
    rng = np.random.default_rng(seed)
    sets = sw.Sets([rng.permutation(n_rows)[:size].tolist() for size in listed])
    wild = draw(st.sampled_from([0.1, 0.5, MODERATE, 10.0, 1e3 if name == "categorical" else 3.0]))

    def numbers(*shape):
        return torch.from_numpy(rng.normal(size=shape))

    raw, shared = numbers(n_rows, len(family.outputs)), 0.3 * numbers(len(family.shared))
    torch.manual_seed(seed % 2**31)
    seen = aggregate.observe(family(raw, shared).sample(), sets, seed=seed % 2**31)
    raw = wild * raw + 0.1 * numbers(*raw.shape)
    if issubclass(family.kind, Count):
        raw = raw.clamp(max=HIGHEST)
    return family, raw, shared, seen, wild


@CASES
@settings(max_examples=3)
@given(data=st.data())
def test_any_sets(aggregate, name, data):
    family, raw, shared, seen, wild = data.draw(tasks(aggregate, name))
    began = time.process_time()

    def function(raw, shared):
        return sw.log_likelihood(seen.aggregate, family(raw, shared), seen.sets, seen.y)

    leaf = raw.clone().requires_grad_()
    value = function(leaf, shared)
    assert value.shape == (len(seen),)
    assert not value.isnan().any()
    assert (value < torch.inf).all()
    if value.requires_grad:
        impossible = value == -torch.inf
        (slope,) = torch.autograd.grad(value[~impossible].sum(), leaf, retain_graph=True)
        assert slope.isfinite().all()
        if impossible.any():
            (slope,) = torch.autograd.grad(value[impossible].sum(), leaf)
            assert (slope == 0).all()
    order = np.random.default_rng(0).permutation(len(seen))
    turned = seen.take(order)
    again = sw.log_likelihood(turned.aggregate, family(raw, shared), turned.sets, turned.y)
    torch.testing.assert_close(again, value.detach()[order], rtol=1e-7, atol=1e-7)
    if wild <= MODERATE and value.isfinite().all():
        check_numerics(function, raw, shared, 0, SLACK["float"], SLACK["single"])
    assert time.process_time() - began < PATIENCE


@settings(max_examples=10)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=12),
    st.integers(0, 2**31 - 1),
    st.sampled_from(["normal", "poisson"]),
)
def test_any_sets_can_be_fitted_in_any_order(sizes, seed, family):
    """A fit of random sets is finite, and that of the same sets in another order the same."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(10, 2))
    sets = sw.Sets([rng.permutation(10)[:size].tolist() for size in sizes])
    z = rng.poisson(np.exp(0.3 * X[:, 0])) if family == "poisson" else X[:, 0] + rng.normal(size=10)
    seen = sw.Sum().observe(z, sets)
    model = sw.AggregateRegressor(family, sw.Linear(alpha=1.0), validation=None, verbose=0)
    order = rng.permutation(len(seen))
    try:
        found = [model.fit(X, o).predict(X) for o in (seen, seen.take(order))]
    except ValueError as error:
        if "explains every" not in str(error):  # all counts are 0, say
            raise
        return
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3)


def test_every_rule_may_be_drawn():
    assert {name for *_, name in TRIALS} == {*families()}
    with pytest.raises(AssertionError, match="slope"):  # the check would notice
        check_numerics(lambda raw, shared: raw.detach() * raw, torch.ones(2, 1), torch.ones(1), 0)
