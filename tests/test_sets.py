"""Sets: construction from every source, reductions, and what is refused."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import setwise as sw
from setwise.errors import SetError

RAGGED = [[0, 2], [1], [2, 2, 0, 1]]


def as_lists(sets):
    return [members.tolist() for members in sets]


def test_from_array_lists_and_torch():
    assert as_lists(sw.Sets(np.array([[0, 1], [2, 0]]))) == [[0, 1], [2, 0]]
    assert as_lists(sw.Sets(torch.tensor([[0, 1], [2, 0]]))) == [[0, 1], [2, 0]]
    assert as_lists(sw.Sets(RAGGED)) == RAGGED
    assert sw.Sets(RAGGED).size is None
    assert sw.Sets(np.zeros((3, 2), int)).size == 2
    assert len(sw.Sets([])) == 0


def test_from_sparse_takes_values_as_weights():
    matrix = scipy.sparse.csr_matrix(np.array([[0.5, 0, 2.0], [0, 1.0, 0]]))
    sets = sw.Sets(matrix)
    assert as_lists(sets) == [[0, 2], [1]]
    assert sets.weights.tolist() == [0.5, 2.0, 1.0]
    assert sets.take([1]).weights.tolist() == [1.0]


@pytest.mark.parametrize("make", [list, np.array, pd.Series, pl.Series, pa.array])
def test_from_groups(make):
    sets = sw.Sets.from_groups(make(["b", "a", "b", "c"]))
    assert sets.names.tolist() == ["b", "a", "c"]
    assert as_lists(sets) == [[0, 2], [1], [3]]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_from_frame(make):
    frame = make({"bag": ["x", "y", "x"], "row": [4, 1, 0], "w": [1.0, 2.0, 3.0]})
    sets = sw.Sets.from_frame(frame)
    assert as_lists(sets) == [[4, 0], [1]]
    assert sets.names.tolist() == ["x", "y"]
    assert sw.Sets.from_frame(frame, weight="w").weights.tolist() == [1.0, 3.0, 2.0]
    with pytest.raises(ValueError, match="no column 'set'"):
        sw.Sets.from_frame(frame, set="set")


def test_random():
    sets = sw.Sets.random(10, 50, (2, 4), seed=1)
    assert set(sets.sizes) == {2, 3, 4}
    assert as_lists(sets) == as_lists(sw.Sets.random(10, 50, (2, 4), seed=1))
    distinct = sw.Sets.random(5, 50, 5, replace=False, seed=1)
    assert all(sorted(m.tolist()) == [0, 1, 2, 3, 4] for m in distinct)
    with pytest.raises(ValueError, match="6 distinct rows cannot be drawn from 5"):
        sw.Sets.random(5, 1, 6, replace=False)
    with pytest.raises(ValueError, match="at least 1"):
        sw.Sets.random(5, 1, 0)


def test_random_sets_have_distinct_members_unless_asked_otherwise():
    for n, k in ((40, 3), (40, 40), (5, (1, 5))):
        assert all(len(set(m.tolist())) == len(m) for m in sw.Sets.random(n, 60, k, seed=2))
    again = sw.Sets.random(5, 60, 4, replace=True, seed=2)
    assert any(len(set(m.tolist())) < 4 for m in again)


@pytest.mark.parametrize(("n", "size"), [(10**6, 8), (300, (2, 30)), (60, 59), (60, (1, 60))])
def test_many_sets_are_drawn_at_once(n, size):
    number = 100_000 if n > 1000 else 30_000
    start = time.perf_counter()
    sets = sw.Sets.random(n, number, size, seed=3)
    assert time.perf_counter() - start < 10
    some = [set(sets[i].tolist()) for i in range(0, number, 97)]
    assert [len(s) for s in some] == sets.sizes[::97].tolist()
    low, high = (size, size) if isinstance(size, int) else size
    assert (sets.sizes.min(), sets.sizes.max()) == (low, high)
    assert (sets.indices.min(), sets.indices.max()) in [(0, n - 1), *[
        (sets.indices.min(), sets.indices.max())] * (n > 1000)]  # fmt: skip


@pytest.mark.parametrize(("n", "k"), [(4, 3), (12, 2), (9, 3)])
def test_every_order_of_distinct_members_is_equally_likely(n, k):
    """A chi-squared test over all n!/(n − k)! of them."""
    number = 60_000
    members = sw.Sets.random(n, number, k, seed=4).indices.reshape(-1, k)
    times = np.unique(members @ n ** np.arange(k), return_counts=True)[1]
    cells = math.perm(n, k)
    assert len(times) == cells
    statistic = ((times - number / cells) ** 2).sum() / (number / cells)
    assert abs(statistic - (cells - 1)) < 4 * math.sqrt(2 * cells)


def test_observe_warns_where_a_set_lists_a_row_twice():
    z = np.array([1.0, 2.0, 3.0])
    with pytest.warns(UserWarning, match="2 of 3 sets list a row more than once .set 1 is"):
        sw.Mean().observe(z, [[0, 1, 2], [1, 1, 0], [2, 0, 2]])
    sw.Mean().observe(z, [[0, 1, 2], [2, 1]])  # rows that several sets share are fine


@pytest.mark.parametrize("aggregate", [
    sw.Rank(), sw.Similarity(), sw.Difference(), sw.Noisy(sw.Rank(), flip=0.1),
    sw.Noisy(sw.Difference(), normal=1.0),
])  # fmt: skip
def test_a_row_is_not_compared_with_itself(aggregate):
    with pytest.raises(SetError, match="set 1 is row 2 compared with itself"):
        sw.Observations(aggregate, [[0, 1], [2, 2]], [0, 1])


def test_each_listing_is_an_individual():
    """The mean of {i, j, i}: three targets, not two, so its variance is σ²/3."""
    d = torch.distributions.Normal(torch.tensor([1.0, 4.0]).double(), 2.0)
    found = sw.log_likelihood(sw.Mean(), d, [[0, 1, 0]], [2.5])
    expected = -0.5 * 0.5**2 / (4 / 3) - 0.5 * math.log(2 * math.pi * 4 / 3)
    assert float(found) == pytest.approx(expected)


def test_take_and_getitem():
    sets = sw.Sets(RAGGED)
    assert as_lists(sets.take([2, 0])) == [RAGGED[2], RAGGED[0]]
    assert as_lists(sets.take(np.array([False, True, False]))) == [[1]]
    assert sets[-1].tolist() == RAGGED[-1]
    with pytest.raises(IndexError):
        sets[3]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=6))
def test_reductions(lists):
    sets = sw.Sets(lists)
    x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for name in ("sum", "mean", "logsumexp"):
        got = getattr(sets, name)(x)
        plain = getattr(torch, name)
        want = torch.stack([plain(x[members], 0) for members in lists])
        torch.testing.assert_close(got, want)
    want = torch.stack([x[members].amax(0) for members in lists])
    torch.testing.assert_close(sets.max(x), want)
    torch.testing.assert_close(sets.min(-x), -want)


@pytest.mark.parametrize("lists", [RAGGED, [[0, 1], [1, 2]]])
def test_reductions_differentiate_twice(lists):
    sets = sw.Sets(lists)
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for name in ("sum", "mean", "logsumexp"):
        assert torch.autograd.gradcheck(getattr(sets, name), x)
        assert torch.autograd.gradgradcheck(lambda v, name=name: getattr(sets, name)(v) ** 2, x)


def test_logsumexp_of_impossible_members():
    x = torch.full((3,), -torch.inf, requires_grad=True)
    for lists in (RAGGED, [[0, 1]]):
        out = sw.Sets(lists).logsumexp(x)
        assert (out == -torch.inf).all()
        (grad,) = torch.autograd.grad(out.clamp(min=-1.0).sum(), x)
        assert (grad == 0).all()


def test_a_shared_number_stays_one():
    one = torch.tensor(2.0, requires_grad=True)
    members = sw.Sets(RAGGED).members(one.expand(3))
    assert members.stride(0) == 0
    assert len(members) == 7


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ([[0], []], ValueError, "set 1 is empty"),
        ([[0], [1, -3]], ValueError, "set 1 names row -3"),
        ([[0.5]], TypeError, "must be integers"),
        (np.arange(3), ValueError, r"index\[:, None\]"),
    ],
)
def test_refused(index, error, message):
    with pytest.raises(error, match=message):
        sw.Sets(index)


def test_refused_groups_weights_names():
    with pytest.raises(ValueError, match="row 1 has no group label"):
        sw.Sets.from_groups(["a", None])
    with pytest.raises(ValueError, match="row 0 has no group label"):
        sw.Sets.from_groups(np.array([np.nan, 1.0]))
    with pytest.raises(ValueError, match="3 weights given for 2 members"):
        sw.Sets([[0, 1]], weights=[1, 2, 3])
    with pytest.raises(ValueError, match="set 0 has a member weight of nan"):
        sw.Sets([[0, 1]], weights=[1, np.nan])
    with pytest.raises(ValueError, match="names row 2, but the table has only 2 rows"):
        sw.Sets(RAGGED).sum(torch.zeros(2))
