"""Sets: construction from every source, reductions, and what is refused."""

from __future__ import annotations

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
