"""y as people write it: yes and no, win, loss and tie, names of classes, columns of any frame."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import setwise as sw
from setwise.likelihood import Aggregate, Label

PAIRS = [[0, 1], [1, 2], [2, 0]]
TRIPLES = [[0, 1, 2], [2, 1, 0], [1, 0, 2]]
COLUMNS = [list, np.array, pd.Series, pd.Categorical, pl.Series, pa.array]


@pytest.mark.parametrize("make", COLUMNS)
@pytest.mark.parametrize(
    ("aggregate", "sets", "texts", "y"),
    [
        (sw.Similarity(), PAIRS, ["same", "different", "same"], [1, 0, 1]),
        (sw.Similarity(), PAIRS, ["yes", "No", " YES "], [1, 0, 1]),
        (sw.Similarity(), PAIRS, ["1", "0", "1.0"], [1, 0, 1]),
        (sw.AnyPositive(), PAIRS, ["positive", "negative", "true"], [1, 0, 1]),
        (sw.Rank(), PAIRS, ["A", "B", "tie"], [1, 0, 0.5]),
        (sw.Rank(), PAIRS, ["win", "loss", "draw"], [1, 0, 0.5]),
        (sw.Rank(), PAIRS, ["left", "right", "equal"], [1, 0, 0.5]),
        (sw.Rank(), PAIRS, ["1-0", "0-1", "1/2-1/2"], [1, 0, 0.5]),
        (sw.Triplet(), TRIPLES, ["second", "third", "b"], [1, 0, 1]),
        (sw.Triplet(three_way=True), TRIPLES, ["b", "c", "tie"], [1, -1, 0]),
        (sw.Choice(), TRIPLES, ["a", "c", "second"], [0, 2, 1]),
        (sw.Noisy(sw.Similarity(), flip=0.1), PAIRS, ["same", "different", "same"], [1, 0, 1]),
        (sw.Direct(), [[0], [1], [2]], ["dog", "cat", "dog"], [1, 0, 1]),
        (sw.PrimaryInstance(), PAIRS, ["dog", "cat", "dog"], [1, 0, 1]),
    ],
)
def test_clear_texts_are_read(make, aggregate, sets, texts, y):
    assert sw.Observations(aggregate, sets, make(texts)).y.tolist() == y


@pytest.mark.parametrize(
    ("aggregate", "texts", "said"),
    [
        (sw.Similarity(), ["x", "y", "x"], r"'x' \(2 times\), 'y' \(once\).*positive='x'"),
        (sw.Similarity(), ["x", "same", "x"], "positive='x', or write different .two classes., sa"),
        (sw.AnyPositive(), ["ill", "well", "ill"], "stands for 'some member is', as in positive="),
        (sw.Rank(), ["model_a", "model_b", "tie"], r"loss \(the second is larger\), tie \(a tie\)"),
        (sw.Rank(), [1, 2, 1], r"set 1 has y = 2.*positive= says which is the 1"),
        (sw.Choice(), ["x", "a", "b"], r"write positions from 0 on, or a, b, c; .*from_ids"),
        (sw.Mean(), ["1", "x", "2"], "needs numbers as y, got 'x' for set 1"),
        (sw.Similarity(), ["same", None, "same"], "set 1 has y = nan.*leave sets without a y out"),
        (sw.Max(), ["low", "high", "low"], "from the smallest to the largest, as in classes="),
    ],
)
def test_what_is_not_clear_shows_how_to_say_it(aggregate, texts, said):
    with pytest.raises((ValueError, TypeError), match=said):
        sw.Observations(aggregate, PAIRS, texts)


@pytest.mark.parametrize(
    ("aggregate", "values", "positive", "y"),
    [
        (sw.AnyPositive(), ["ill", "well", "Ill"], "ill", [1, 0, 1]),
        (sw.Similarity(), ["yes", "no", "yes"], "no", [0, 1, 0]),
        (sw.Rank(), ["model_a", "model_b", "tie"], "model_a", [1, 0, 0.5]),
        (sw.Rank(), [1, 2, 1], 1, [1, 0, 1]),
        (sw.Rank(), np.array([1, 2, 1]), 2, [0, 1, 0]),
        (sw.AnyPositive(), [True, False, True], False, [0, 1, 0]),
        (sw.Triplet(three_way=True), ["near", "equal", "far"], "near", [1, 0, -1]),
    ],
)
def test_positive_says_which_is_the_one(aggregate, values, positive, y):
    sets = TRIPLES if aggregate.size == 3 else PAIRS
    assert sw.Observations(aggregate, sets, values, positive=positive).y.tolist() == y


@pytest.mark.parametrize(
    ("aggregate", "values", "options", "said"),
    [
        (sw.AnyPositive(), ["ill", "well", "ill"], {"positive": "sick"}, "does not occur in y"),
        (sw.AnyPositive(), ["a", "b", "c"], {"positive": "a"}, "one other label is expected"),
        (sw.Similarity(), ["a", "b", "tie"], {"positive": "a"}, "one other label is expected"),
        (sw.Mean(), [1, 2, 3], {"positive": 1}, "y that holds one of two labels: .* is a number"),
        (sw.Mean(), [1, 2, 3], {"classes": ["a", "b"]}, "y that holds names of classes"),
        (sw.PrimaryInstance(), ["a", "b", "c"], {"classes": ["a", "b"]}, "set 2 has y = 'c'.*'b'"),
        (sw.PrimaryInstance(), ["a", "b", "c"], {"classes": ["a", "a"]}, "distinct labels"),
        (sw.PrimaryInstance(), ["a", "b", "c"], {"positive": "a"}, "positive= is for"),
        (sw.Counts(), [[1, 1]] * 3, {"positive": 1}, "positive= is for"),
    ],
)
def test_options_that_do_not_suit(aggregate, values, options, said):
    with pytest.raises(ValueError, match=said):
        sw.Observations(aggregate, PAIRS, values, **options)


def test_every_label_of_zero_and_one_reads_yes_and_no():
    """Those of the library, and those of a user who has declared what y is."""

    class AllEqual(Aggregate):
        def apply(self, z, sets, rng):
            return (sets.max(z) == sets.min(z)).double()

        def outcome(self, targets, size):
            return Label({0: "several classes", 1: "one class"})

    sets = [[0], [1]]
    assert sw.Observations(AllEqual(), sets, ["yes", "no"]).y.tolist() == [1, 0]
    assert sw.Observations(AllEqual(), sets, ["a", "b"], positive="b").y.tolist() == [0, 1]


# ---- classes


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_the_columns_of_counts_are_classes(make):
    frame = make({"dem": [2, 0], "rep": [0, 1], "none": [1, 2]})
    sets = [[0, 1, 2], [3, 4, 5]]
    seen = sw.Observations(sw.Counts(), sets, frame)
    assert seen.classes == ("dem", "rep", "none")
    turned = sw.Observations(sw.Counts(), sets, frame, classes=["none", "dem", "rep"])
    assert turned.y.tolist() == [[1, 2, 0], [2, 0, 1]]
    keyed = make({"town": ["x", "y"], "dem": [2, 0], "rep": [0, 1], "none": [1, 2]})
    if make is pd.DataFrame:
        keyed = keyed.set_index("town")
    assert sw.Observations.from_groups(sw.Counts(), list("xxxyyy"), keyed).classes == seen.classes


X = np.random.default_rng(0).normal(size=(240, 2))
Z = np.where(X[:, 0] > 0.5, "hot", np.where(X[:, 0] < -0.5, "cold", "mild"))
BAGS = sw.Sets.random(240, 150, 4, seed=1)


def classifier(n_classes=None):
    return sw.AggregateClassifier(n_classes, "linear", validation=None, verbose=0, random_state=0)


def test_classes_come_from_texts(tmp_path):
    counts = sw.Counts().observe(Z, BAGS)
    assert counts.classes == ("cold", "hot", "mild")
    model = classifier().fit(X, counts)
    assert model.classes_.tolist() == ["cold", "hot", "mild"]
    assert np.mean(model.predict(X) == Z) > 0.9
    assert model.predict_proba(X).shape == (240, 3)
    model.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    assert again.classes_.tolist() == model.classes_.tolist()
    assert (again.predict(X) == model.predict(X)).all()


def test_all_observations_are_brought_into_one_order():
    """A frame of counts in its own order, some labels in that of the alphabet, and no hot one."""
    order = ["mild", "hot", "cold"]
    codes = np.array([order.index(z) for z in Z])
    numbers = sw.Counts(n_classes=3).observe(codes, BAGS).y
    counts = sw.Observations(sw.Counts(), BAGS, pd.DataFrame(numbers, columns=order))
    some = np.flatnonzero(Z != "hot")[:30]
    few = sw.Observations(sw.Direct(), some[:, None], Z[some])
    assert few.classes == ("cold", "mild")
    for given in ([counts, few], [few, counts]):
        model = classifier().fit(X, given)
        assert model.classes_.tolist() == order
        assert np.mean(model.predict(X) == Z) > 0.9
        assert model.score(X, given) > model.score_constant(X, given)
        at = model.posterior(X, few)
        assert at is not None
    turned = classifier(["cold", "mild", "hot"]).fit(X, [counts, few])
    assert turned.classes_.tolist() == ["cold", "mild", "hot"]
    assert np.mean(turned.predict(X) == Z) > 0.9
    with pytest.raises(ValueError, match=r"is about the classes .* but those of the model are"):
        classifier(["cold", "mild"]).fit(X, counts)
    with pytest.raises(ValueError, match="n_classes=4, but the observations name 3 classes"):
        classifier(4).fit(X, counts)


@pytest.mark.parametrize(
    ("seen", "classes"),
    [
        ([sw.Observations(sw.Direct(), [[0], [1], [2]], [0, 2, 1])], [0, 1, 2]),
        ([sw.Observations(sw.Direct(), [[0], [1]], [3, 5], classes=[3, 5])], [3, 5]),
        ([sw.Observations(sw.Direct(), [[0], [1]], [True, False])], [0, 1]),
        ([sw.Observations(sw.AnyPositive(), PAIRS, ["yes", "no", "no"])], [0, 1]),
        ([sw.Observations(sw.Counts(), PAIRS, [1, 0, 2])], [0, 1]),
        ([sw.Observations(sw.Counts(), PAIRS, [[1, 1, 0]] * 3)], [0, 1, 2]),
        ([sw.Observations(sw.Presence(), PAIRS, [[1, 1, 0]] * 3)], [0, 1, 2]),
        ([sw.Observations(sw.Coarse([(0, 1), (2,)]), [[0], [1]], [0, 1])], [0, 1, 2]),
        ([sw.Observations(sw.Fold([[0, 1, 0], [1, 0, 1]], [0, 1]), PAIRS, [0, 1, 1])], [0, 1, 2]),
        ([sw.Observations(sw.Triplet(1 - np.eye(3)), TRIPLES, [0, 1, 1])], [0, 1, 2]),
        (
            [
                sw.Observations(sw.Similarity(), PAIRS, [0, 1, 1]),
                sw.Observations(sw.Direct(), [[0], [1], [2]], ["b", "a", "c"]),
            ],
            ["a", "b", "c"],
        ),
        (
            [
                sw.Observations(sw.AnyPositive(), PAIRS, [0, 1, 1]),
                sw.Observations(sw.Direct(), [[0], [1], [2]], [0, 1, 2]),
            ],
            [0, 1, 2],
        ),
    ],
)
def test_classes_are_told_by_observations(seen, classes):
    assert classifier().fit(X, seen).classes_.tolist() == classes


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (sw.Observations(sw.Similarity(), PAIRS, [0, 1, 1]), "do not tell how many classes"),
        (sw.Observations(sw.Direct(), [[0], [1]], [1, 2]), r"counted from 0.*classes=\[1, 2\]"),
        (sw.Observations(sw.Direct(), [[0], [1]], [-1, 1]), "classes are counted from 0"),
        (sw.Observations(sw.Direct(), [[0], [1]], [0.5, 1]), "use AggregateRegressor for numbers"),
        (sw.Observations(sw.Direct(), [[0], [1]], [0, 0]), "all labels are of one class"),
        (sw.Observations(sw.Mean(), PAIRS, [0.3, 2, 1]), "use AggregateRegressor"),
    ],
)
def test_classes_that_are_not_told(seen, said):
    with pytest.raises((ValueError, TypeError), match=said):
        classifier().fit(X, seen)


def test_classes_are_not_known_before_the_fit():
    assert not hasattr(sw.AggregateClassifier(), "classes_")
    assert sw.AggregateClassifier(["a", "b"]).classes_.tolist() == ["a", "b"]


# ---- the wrong estimator, the wrong arguments

REGRESSOR = sw.AggregateRegressor("normal", "linear", validation=None, verbose=0)


@pytest.mark.parametrize(
    ("seen", "error", "said"),
    [
        (
            sw.Observations(sw.Rank(), PAIRS, ["win", "loss", "tie"]),
            ValueError,
            "set 2.*tie_margin",
        ),
        (
            sw.Observations(sw.Similarity(), PAIRS, [1, 0, 1]),
            TypeError,
            r"use AggregateClassifier.*Normal is known with: .*OrderStatistic.*, Uncoupled\.",
        ),
        (
            sw.Observations(sw.Direct(), [[0], [1]], ["a", "b"]),
            TypeError,
            "use AggregateClassifier",
        ),
        (sw.Rank(), TypeError, r"not of which sets.*sw.Observations\(Rank"),
        (np.arange(240.0), TypeError, r"got a ndarray.*sw.Direct\(\).*from_groups"),
        (pd.Series(np.arange(240.0)), TypeError, "got a Series"),
        ([1.0, 2.0], TypeError, "got a list"),
        (7, TypeError, "got a int"),
    ],
)
def test_what_to_do_instead(seen, error, said):
    with pytest.raises(error, match=said) as caught:
        REGRESSOR.fit(X, seen)
    assert "239" not in str(caught.value)  # y itself is not printed


def test_a_margin_lets_ranks_tie():
    seen = sw.Observations(sw.Rank(tie_margin=0.5), PAIRS, ["win", "loss", "tie"])
    REGRESSOR.fit(X, seen)
    counts = sw.Observations(sw.Rank(), PAIRS, ["win", "loss", "tie"])
    sw.AggregateRegressor("poisson", "linear", validation=None, verbose=0).fit(X, counts)


def test_columns_of_pandas_cause_no_warning_of_torch():
    """Their memory cannot be written to, of which torch warns."""
    y = pd.Series(np.arange(120.0))
    y.to_numpy().flags.writeable = False
    z = np.arange(240.0)
    z.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = sw.Observations(sw.Mean(), np.arange(240).reshape(120, 2), y)
        also = sw.Mean().observe(pd.Series(z), np.arange(240).reshape(120, 2))
        torch.from_numpy(seen.y)
        REGRESSOR.fit(pd.DataFrame(X), [seen, also])
