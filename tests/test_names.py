"""Sets that go by names: ids of any type, groups, and one rule for what does not match."""

from __future__ import annotations

import datetime
import uuid
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import setwise as sw

FRAMES = pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
GAMES = {"winner": ["Bob", "Cem", "Ann"], "loser": ["Ann", "Bob", "Cem"]}
PEOPLE = ["Ann", "Bob", "Cem"]


def listed(sets):
    return [members.tolist() for members in sets]


# ---- ids


@FRAMES
def test_ids_come_in_frames(make):
    assert listed(sw.Sets.from_ids(make(GAMES), PEOPLE)) == [[1, 0], [2, 1], [0, 2]]


@pytest.mark.parametrize(
    "ids",
    [
        ["Ann", "Bob", "Cem"],
        [7, 3, -1],
        [Decimal("1.5"), Decimal("2"), Decimal("3")],
        [uuid.UUID(int=i) for i in range(3)],
        [datetime.date(2024, 1, d) for d in (3, 1, 2)],
        [("Ann", 1), ("Ann", 2), ("Bob", 1)],
        np.array([10, 20, 30]),
        pd.Index(["x", "y", "z"]),
        pl.Series(["x", "y", "z"]),
        pa.array(["x", "y", "z"]),
    ],
    ids=lambda ids: type(ids).__name__ + type(ids[0]).__name__,
)
def test_ids_may_be_of_any_type(ids):
    names = ids.to_pylist() if hasattr(ids, "to_pylist") else list(ids)
    pairs = [(names[2], names[0]), (names[1], names[2])]
    assert listed(sw.Sets.from_ids(pairs, ids)) == [[2, 0], [1, 2]]


@FRAMES
def test_numbers_with_an_empty_field_are_still_ids(make):
    """A column of whole numbers with a missing value comes as floats."""
    frame = make({"a": [1, 2], "b": [2, 3], "c": [None, 1]})
    assert listed(sw.Sets.from_ids(frame, [1, 2, 3])) == [[0, 1], [1, 2, 0]]


@pytest.mark.parametrize(
    ("members", "ids", "error", "message"),
    [
        ([("Ann", "Eve")], PEOPLE, sw.SetError, "set 0 names 'Eve', which is the id of no row"),
        ([("Ann", "Bob")], ["Ann", "Ann"], ValueError, "id of row 0 and of row 1"),
        ([("Ann", "Bob")], ["Ann", None], ValueError, "row 1 has no id"),
        (["Ann", "Bob"], PEOPLE, TypeError, "expected several ids for each set"),
        ([("Ann", "Bob")], pd.DataFrame({"id": PEOPLE}), TypeError, "got a whole frame"),
    ],
)
def test_wrong_ids_are_said(members, ids, error, message):
    with pytest.raises(error, match=message):
        sw.Sets.from_ids(members, ids)


@FRAMES
def test_a_frame_of_row_numbers_is_read_by_its_lines(make):
    """Not by its header, as iterating over a frame would."""
    assert listed(sw.Sets(make({"0": [5, 6], "1": [7, 8]}))) == [[5, 7], [6, 8]]
    with pytest.raises(TypeError, match=r"in place of a row number.*from_ids"):
        sw.Sets(make(GAMES))


# ---- observations by ids


@FRAMES
def test_a_y_may_name_the_member(make):
    frame = make({"a": ["Ann", "Bob", "Cem"], "b": ["Bob", "Cem", "Ann"]})
    for y in (["Bob", "Bob", "tie"], ["b", "a", "tie"], ["B", "A", "draw"]):
        seen = sw.Observations.from_ids(sw.Rank(), frame, PEOPLE, y)
        assert seen.y.tolist() == [0.0, 1.0, 0.5]
    best = sw.Observations.from_ids(sw.Choice(), frame, PEOPLE, ["Bob", "Bob", "Cem"])
    assert best.y.tolist() == [1, 0, 0]


def test_a_y_of_numbers_may_be_ids():
    pairs = [(4, 5), (6, 4)]
    assert sw.Observations.from_ids(sw.Rank(), pairs, [4, 5, 6], [5, 6]).y.tolist() == [0.0, 1.0]
    pairs = [(0, 1), (2, 3)]  # who is not in its set did not win: these are numbers
    assert sw.Observations.from_ids(sw.Rank(), pairs, range(4), [1, 0]).y.tolist() == [1.0, 0.0]
    assert sw.Observations.from_ids(sw.Rank(), [(1, 0)], range(4), [1]).y.tolist() == [1.0]
    best = sw.Observations.from_ids(sw.Choice(), [range(10, 20)], range(20), [19])
    assert best.y.tolist() == [9]
    odd = sw.Triplet(three_way=True)
    assert sw.Observations.from_ids(odd, [(3, 4, 5)] * 2, range(9), [0, 1]).y.tolist() == [0, 1]
    assert sw.Observations.from_ids(odd, [("a", "b", "c")], "abc", ["c"]).y.tolist() == [-1]


@pytest.mark.parametrize(
    ("pairs", "ids", "winners", "message"),
    [
        ([("B", "A"), ("B", "A"), ("C", "D")], "ABCD", "AAA", r"set 2 has y = 'A'.*\['C', 'D'\]"),
        ([("q", "p"), ("r", "s")], "pqrs", "pp", "set 1 has y = 'p'"),
        ([("C", "D")], "ABCD", "A", "set 0 has y = 'A'.*write first or second"),
        ([("E", "A"), ("B", "A"), ("C", "D")], "ABCD", "AAA", "set 2 has y = 'A'"),
        ([(4, 5), (6, 4)], [4, 5, 6], [5, 5], "set 1 has y = 5"),
        ([(2, 1), (3, 1)], [1, 2, 3], [1, 1], "set 0 has y = 1.*may be a number or the id"),
        ([("2", "1")], ["1", "2"], ["1"], "may be a number or the id.*write first or second"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_winner_who_did_not_play_is_said(pairs, ids, winners, message):
    """Letters and the numbers 0 and 1 have another meaning, which was not meant here."""
    with pytest.raises(sw.SetError, match=message):
        sw.Observations.from_ids(sw.Rank(), pairs, list(ids), list(winners))


def test_words_make_it_clear():
    pairs, words = [(2, 1), (3, 1)], ["first", "second"]
    assert sw.Observations.from_ids(sw.Rank(), pairs, [1, 2, 3], words).y.tolist() == [1.0, 0.0]


@FRAMES
def test_without_y_the_first_has_won(make):
    """The columns of a file are often called winner and loser, and there is nothing else in it."""
    assert sw.Observations.from_ids(sw.Rank(), make(GAMES), PEOPLE).y.tolist() == [1.0] * 3
    assert sw.Observations(sw.Rank(), [[0, 1]]).y.tolist() == [1.0]
    assert sw.Observations(sw.Choice(), [[0, 1, 2]]).y.tolist() == [0]
    assert sw.Observations(sw.Triplet(), [[0, 1, 2]]).y.tolist() == [1.0]
    with pytest.raises(ValueError, match="needs a y for each set"):
        sw.Observations(sw.Similarity(), [[0, 1]])


def test_weights_follow_their_lines():
    pairs = [("Ann", "Eve"), ("Ann", "Bob"), ("Bob", "Cem")]
    seen = sw.Observations.from_ids(
        sw.Rank(), pairs, PEOPLE, [1, 0, 1], [1.0, 2.0, 3.0], missing="drop"
    )
    assert (seen.weight.tolist(), seen.y.tolist()) == ([2.0, 3.0], [0.0, 1.0])


# ---- what does not match

TOWNS = ["a", "b", None, "a", "c"]
MEANS = {"a": 1.0, "b": np.nan, "d": 4.0}


def groups(missing=None, y=MEANS):
    return sw.Observations.from_groups(sw.Mean(), TOWNS, y, missing=missing)


def test_what_does_not_match_is_left_out_and_counted():
    seen = groups("drop")
    assert (seen.sets.names.tolist(), listed(seen.sets), seen.y.tolist()) == (["a"], [[0, 3]], [1])
    assert seen.left_out == {
        "rows without a group": 1, "groups without y": 2, "groups without rows": 1,
    }  # fmt: skip
    assert "left out: 2 groups without y, 1 row without a group, 1 group without rows" in repr(seen)
    assert seen.take([0]).left_out == {}


def test_a_y_that_is_lost_is_a_warning_unless_asked_for():
    with pytest.warns(UserWarning, match="left out: 1 group without rows, such as 'd'"):
        groups()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups(y={"a": 1.0, "b": 2.0})  # rows of unknown towns, and towns of unknown means
    with pytest.raises(ValueError, match="2 groups without y, 1 row without a group, 1 group wit"):
        groups("error")
    with pytest.raises(ValueError, match='missing is "drop" or "error", got \'omit\''):
        groups("omit")


def test_nothing_is_missing():
    seen = sw.Observations.from_groups(sw.Mean(), ["a", "b"], {"b": 2, "a": 1}, missing="error")
    assert seen.y.tolist() == [1.0, 2.0]
    assert seen.left_out == {}


def test_names_of_another_type_are_said():
    with pytest.raises(ValueError, match=r"groups of rows look like 1, 2, those of y like '1', '2"):
        sw.Observations.from_groups(sw.Mean(), [1, 2, 1], {"1": 0.0, "2": 1.0})


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table])
def test_lines_that_are_there_twice(make):
    again = make({"town": ["a", "b", "a"], "y": [1.0, 2.0, 1.0]})
    with pytest.warns(UserWarning, match="1 group that is there twice"):
        seen = sw.Observations.from_groups(sw.Mean(), ["a", "b"], again)
    assert seen.y.tolist() == [1.0, 2.0]
    other = make({"town": ["a", "b", "a"], "y": [1.0, 2.0, 3.0]})
    for missing in (None, "drop", "error"):
        with pytest.raises(ValueError, match="two different entries for group 'a'"):
            sw.Observations.from_groups(sw.Mean(), ["a", "b"], other, missing=missing)
    late = make({"town": ["a", "b", "a"], "y": [None, 2.0, 3.0]})  # one of them is empty
    assert sw.Observations.from_groups(
        sw.Mean(), ["a", "b"], late, missing="drop"
    ).y.tolist() == [3.0, 2.0]  # fmt: skip


def test_the_same_rule_for_ids():
    games = [("Ann", "Bob"), ("Ann", None), ("Eve", "Bob"), ("Bob", "Cem")]
    y = ["win", "win", "loss", None]
    seen = sw.Observations.from_ids(sw.Rank(), games, PEOPLE, y, missing="drop")
    assert (listed(seen.sets), seen.y.tolist()) == ([[0, 1]], [1.0])
    assert seen.left_out == {
        "sets with an empty id": 1, "sets with an id of no row": 1, "sets without y": 1,
    }  # fmt: skip
    with pytest.warns(UserWarning, match="1 set with an empty id, 1 set with an id of no row"):
        sw.Observations.from_ids(sw.Rank(), games, PEOPLE, y)
    with pytest.raises(ValueError, match=r"first is \['Ann', None\], a set with an empty id"):
        sw.Observations.from_ids(sw.Rank(), games, PEOPLE, y, missing="error")
    with pytest.raises(ValueError, match=r"no line of members can be used.*ids look like"):
        sw.Observations.from_ids(sw.Rank(), [(1, 2)], PEOPLE, [1])
    with pytest.raises(ValueError, match="y has 1 entries for 4 lines"):
        sw.Observations.from_ids(sw.Rank(), games, PEOPLE, [1])


@FRAMES
def test_groups_may_have_names_of_several_parts(make):
    place = make({"state": ["NY", "NY", "CA", None], "county": [1, 2, 1, 1]})
    y = {("NY", 1): 1.0, ("NY", 2): 2.0, ("CA", 1): 3.0}
    seen = sw.Observations.from_groups(sw.Mean(), place, y)
    assert seen.y.tolist() == [1.0, 2.0, 3.0]
    assert seen.sets.names[2] == ("CA", 1)
    assert seen.left_out == {"rows without a group": 1}


@FRAMES
def test_a_long_table_says_who_is_in_which_set(make):
    """Tables of a census overlap: a person counts in a region and in an age group."""
    members = make({"cell": ["x", "x", "y", "y", "z"], "who": ["Ann", "Bob", "Bob", "Cem", "Eve"]})
    cells, who = members["cell"], members["who"]
    y = {"x": 1.0, "y": 2.0, "z": 3.0}
    seen = sw.Observations.from_groups(
        sw.Sum(), cells, y, rows=who, ids=PEOPLE, weights=[1, 2, 3, 4, 5], missing="drop"
    )
    assert listed(seen.sets) == [[0, 1], [1, 2]]
    assert (seen.y.tolist(), seen.sets.weights.tolist()) == ([1.0, 2.0], [1, 2, 3, 4])
    assert seen.left_out == {"sets with an id of no row": 1}
    plain = sw.Observations.from_groups(sw.Sum(), ["x", "x", "y"], {"x": 1.0, "y": 2.0},
                                        rows=[2, 0, 2], counts=[5, 1, 2])  # fmt: skip
    assert listed(plain.sets) == [[2, 0], [2]]
    assert plain.sets.counts.tolist() == [5, 1, 2]


def test_bounds_in_a_table_may_be_open():
    table = pd.DataFrame({"low": [1.0, np.nan], "high": [np.nan, 2.0]}, index=["a", "b"])
    seen = sw.Observations.from_groups(sw.Interval(), ["a", "b"], table)
    assert seen.y.tolist() == [[1.0, np.inf], [-np.inf, 2.0]]
