"""Observations: keyed input, and what every aggregate refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import distributions as td

import setwise as sw
from setwise.likelihood import (
    Bounds,
    ClassLabel,
    Label,
    Number,
    Order,
    PerClass,
    Position,
    Unordered,
)

OUTCOMES = [
    Number(), Label({0: "no", 1: "yes"}), ClassLabel(), ClassLabel(2), Position(),
    PerClass("count"), PerClass("flag"), Order(), Bounds(), Unordered(),
]  # fmt: skip
TWO = Bounds | Order | Unordered  # two columns make a y
LABELS = ["b", "a", "b", "c"]
KEYED = {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    "y",
    [
        KEYED,
        pd.Series(KEYED),
        pd.DataFrame({"y": KEYED})["y"],
        pl.DataFrame({"town": list(KEYED), "y": list(KEYED.values())}),
        pa.table({"town": list(KEYED), "y": list(KEYED.values())}),
    ],
    ids=["dict", "series", "column", "polars", "pyarrow"],
)
def test_from_groups(y):
    assert sw.Observations.from_groups(sw.Mean(), LABELS, y).y.tolist() == [2.0, 1.0, 3.0]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_from_groups_with_columns(make):
    table = {"no": {"a": 1, "b": 0, "c": 1}, "yes": {"a": 0, "b": 2, "c": 0}}
    frame = (
        pd.DataFrame(table)
        if make is pd.DataFrame
        else pl.DataFrame({"town": ["a", "b", "c"], "no": [1, 0, 1], "yes": [0, 2, 0]})
    )
    observed = sw.Observations.from_groups(sw.Counts(), LABELS, frame)
    assert observed.y.tolist() == [[0, 2], [1, 0], [1, 0]]


def test_take_and_weights():
    observed = sw.Observations(sw.Mean(), [[0, 1], [1], [2]], [1, 2, 3], weight=[1, 0, 2])
    part = observed.take([2, 0])
    assert part.y.tolist() == [3, 1]
    assert part.weight.tolist() == [2, 1]
    with pytest.raises(ValueError, match="set 1 has weight -1"):
        sw.Observations(sw.Mean(), [[0], [1]], [1, 2], weight=[1, -1])
    with pytest.raises(ValueError, match="one weight per set"):
        sw.Observations(sw.Mean(), [[0], [1]], [1, 2], weight=[1])


PAIRS = [[0, 1], [1, 2]]
TRIPLES = [[0, 1, 2], [2, 1, 0]]


@pytest.mark.parametrize(
    ("aggregate", "sets", "y", "message"),
    [
        (sw.Mean(), PAIRS, [1.0], "needs y of shape"),
        (sw.Mean(), PAIRS, [1.0, np.nan], "set 1 has y = nan"),
        (sw.Sum(), PAIRS, [np.inf, 1.0], "set 0 has y = inf"),
        (sw.Mean(), PAIRS, None, "needs a y for each set"),
        (sw.Rank(), TRIPLES, [1, 0], "sets of 2 member"),
        (sw.Rank(), PAIRS, [1, 2], "set 1 has y = 2"),
        (sw.Similarity(), TRIPLES, [1, 0], "sets of 2 member"),
        (sw.Similarity(), PAIRS, [0.5, 1], "set 0 has y = 0.5"),
        (sw.Triplet(), PAIRS, [1, 0], "sets of 3 member"),
        (sw.Triplet(), TRIPLES, [1, -1], "set 1 has y = -1"),
        (sw.AnyPositive(), PAIRS, [1, 3], "set 1 has y = 3"),
        (sw.Counts(), PAIRS, [[1, 1], [1, 2]], "set 1"),
        (sw.Counts(), PAIRS, [1, 3], "set 1"),
        (sw.Counts(), PAIRS, [1.5, 1], "set 0"),
        (sw.Proportions(), PAIRS, [0.5, 0.3], "set 1"),
        (sw.Choice(), PAIRS, [0, 2], "set 1"),
        (sw.OrderStatistic(3), PAIRS, [0.0, 1.0], "set 0"),
        (sw.Uncoupled(), PAIRS, [[1.0, 2.0], [1.0]], "set 1"),
        (sw.Interval(), [[0], [1]], [[0, 1], [2, 1]], "set 1"),
        (sw.Interval(), [[0], [1]], [[0, 1], [np.nan, 1]], "set 1"),
        (sw.Coarse([(0, 1), (2,)]), [[0], [1]], [0, 2], "set 1 has y = 2"),
        (sw.Presence(), PAIRS, [[1, 0], [0, 0]], "set 1"),
        (sw.Presence(), PAIRS, [[1, 1, 1], [1, 0, 0]], "set 0"),
        (sw.Fold([[0, 1], [1, 0]], [0, 1]), PAIRS, [0, 2], "set 1 has y = 2"),
    ],
)
def test_refused_at_construction(aggregate, sets, y, message):
    with pytest.raises(ValueError, match=message):
        sw.Observations(aggregate, sets, y)


NORMAL = td.Normal(torch.zeros(3), torch.ones(3))
CLASSES = td.Categorical(logits=torch.zeros(3, 3))


@pytest.mark.parametrize(
    ("aggregate", "distribution", "sets", "y", "error", "message"),
    [
        (sw.Mean(), NORMAL, [[0, 3]], [0.0], ValueError, "names row 3, but the table has only 3"),
        (sw.Mean, NORMAL, [[0]], [0.0], TypeError, "a class: call it"),
        (sw.Mean(), 3.0, [[0]], [0.0], TypeError, "torch.distributions object"),
        (sw.Mean(), td.Normal(0.0, 1.0), [[0]], [0.0], ValueError, "one entry per row"),
        (sw.Similarity(), NORMAL, [[0, 1]], [1], TypeError, "Similarity is known for: Categorical"),
        (
            sw.Direct(),
            CLASSES,
            [[0]],
            [3],
            ValueError,
            "set 0 has y = 3, but the classes are 0 to 2",
        ),
        (sw.AnyPositive(5), CLASSES, [[0]], [1], ValueError, "needs class 5"),
        (sw.Counts(), CLASSES, [[0, 1]], [[1, 1]], ValueError, "class"),
        (sw.Counts(), CLASSES, [[0, 1]], [1], ValueError, "class"),
        (sw.Presence(), CLASSES, [[0, 1]], [[1, 1]], ValueError, "2 columns"),
        (
            sw.Triplet(np.zeros((2, 2))),
            CLASSES,
            [[0, 1, 2]],
            [1],
            ValueError,
            "there are 3 classes",
        ),
        (sw.Fold([[0, 0]], [0]), CLASSES, [[0]], [0], ValueError, "2 columns"),
        (sw.Coarse([(0,), (1,)]), CLASSES, [[0]], [0], ValueError, "class 2 is in no cell"),
        (sw.Custom(torch.sum), CLASSES, [[0] * 20], [0], ValueError, "tuples"),
        (sw.Uncoupled(), NORMAL, [[0] * 17], [[0.0] * 17], ValueError, "16"),
    ],
)
def test_refused_at_evaluation(aggregate, distribution, sets, y, error, message):
    with pytest.raises(error, match=message):
        sw.log_likelihood(aggregate, distribution, sets, y)


@pytest.mark.parametrize(
    ("aggregate", "distribution", "sets", "y"),
    [
        (sw.Sum(), td.Poisson(torch.ones(2, requires_grad=True)), [[0, 1]], [-1.0]),
        (sw.Sum(), td.Poisson(torch.ones(2, requires_grad=True)), [[0, 1]], [0.5]),
        (sw.Max(), td.Exponential(torch.ones(2, requires_grad=True)), [[0, 1]], [-1.0]),
        (sw.Sum(), td.Exponential(torch.ones(3, requires_grad=True)), [[0, 1, 2]], [-1.0]),
        (sw.Min(), td.Poisson(torch.ones(2, requires_grad=True)), [[0, 1]], [0.5]),
        (sw.Rank(), td.Normal(torch.zeros(2, requires_grad=True), 1.0), [[0, 1]], [0.5]),
        (sw.Direct(), td.Gamma(torch.ones(1, requires_grad=True), 1.0), [[0]], [-2.0]),
        (sw.Interval(), td.Exponential(torch.ones(1, requires_grad=True)), [[0]], [[-2.0, -1.0]]),
        (sw.Difference(), td.Poisson(torch.ones(2, requires_grad=True)), [[0, 1]], [0.5]),
        (sw.Mean(), td.Categorical(logits=torch.zeros(2, 3, requires_grad=True)), [[0, 1]], [0.3]),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, td.Distribution) else None,
)
def test_impossible_is_minus_infinity(aggregate, distribution, sets, y):
    """A value that cannot occur has log-probability −inf and gradient zero, never NaN."""
    value = sw.log_likelihood(aggregate, distribution, sets, y)
    assert (value == -torch.inf).all()
    from setwise.distributions import parameters

    leaf = next(iter(parameters(distribution).values()))
    (grad,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
    assert grad is None or (grad == 0).all()


def test_constructor_refusals():
    for make in (
        lambda: sw.Noisy(sw.Similarity()),
        lambda: sw.Noisy(sw.Similarity(), flip=0.1, normal=1.0),
        lambda: sw.Noisy(sw.Similarity(), flip=1.5),
        lambda: sw.Noisy(sw.Sum(), normal=-1.0),
        lambda: sw.Coarse([(0, 0)]),
        lambda: sw.Fold([[0, 5]], [0]),
        lambda: sw.Fold([[0, 0]], [0, 1]),
        lambda: sw.Triplet([[0, 1]]),
        lambda: sw.Rank(tie_margin=-1.0),
        lambda: sw.OrderStatistic(0),
        lambda: sw.Counts(method="fast"),
    ):
        with pytest.raises(ValueError, match=r".+"):
            make()
    for aggregate in (sw.Rank(), sw.Max(), sw.Noisy(sw.Sum(), normal=1.0)):
        with pytest.raises(TypeError, match="linear in the targets"):
            sw.Noisy(aggregate, laplace=1.0)
    with pytest.raises(TypeError, match="use flip=p"):
        sw.Noisy(sw.Rank(), laplace=1.0)
    with pytest.raises(TypeError, match="cannot be flipped"):
        sw.Noisy(sw.Mean(), flip=0.1).observe(
            np.arange(60.0), sw.Sets.random(60, 60, 2, seed=0), seed=0
        )


def test_a_new_pair_can_be_registered():
    class Largest(sw.Aggregate):
        def apply(self, z, sets, rng):
            return sets.max(z)

    with pytest.raises(TypeError, match="no likelihood rule is known for Largest of Normal"):
        sw.log_likelihood(Largest(), NORMAL, [[0, 1]], [0.0])

    @sw.likelihood(Largest, td.Normal)
    def rule(aggregate, distribution, sets, y):
        """Not really."""
        return sets.sum(distribution.loc) - y

    got = sw.log_likelihood(Largest(), td.Normal(torch.arange(3.0), 1.0), [[2, 1]], [1.0])
    assert got.tolist() == [2.0]


def test_errors_carry_the_number_of_the_set():
    cases = (
        (lambda: sw.Sets([[0], []]), 1),
        (lambda: sw.Observations(sw.Mean(), [[0], [1], [2]], [1.0, 2.0, np.nan]), 2),
        (lambda: sw.Observations(sw.Rank(), [[0, 1], [1]], [1, 0]), 1),
        (lambda: sw.log_likelihood(sw.Direct(), CLASSES, [[0], [1]], [0, 3]), 1),
        (lambda: sw.log_likelihood(sw.Direct(), NORMAL, [[0], [9]], [0, 3]), 1),
    )
    for make, number in cases:
        with pytest.raises(sw.SetError, match=f"^set {number} ") as caught:
            make()
        assert caught.value.set == number
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.set, str(again)) == (number, str(caught.value))


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: type(one).__name__)
def test_outcomes_are_checked_and_read(outcome):
    sets = sw.Sets([[0, 1], [1, 2]])
    first, second = np.array([1.0, np.nan]), np.array([1.0, np.nan])
    assert outcome.words
    if isinstance(outcome, Order):
        assert outcome.check("T", sets, None) is None
    y, known = outcome.read([first, second] if isinstance(outcome, TWO) else [first])
    assert known.tolist() == [True, False]
    good = np.stack([y[0], y[0]])
    assert np.array_equal(outcome.check("T", sets, good), good)
    for bad in (*[None] * (not isinstance(outcome, Order)), good[:1], ["?", "?"]):
        with pytest.raises((ValueError, TypeError), match="'T'"):
            outcome.check("T", sets, bad)
