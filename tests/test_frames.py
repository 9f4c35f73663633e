"""Frames as people have them: texts, dates, flags, missing and odd types, one encoder for all."""

from __future__ import annotations

import datetime
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import setwise as sw

N = 120
RNG = np.random.default_rng(0)
AGE = RNG.uniform(20, 70, N).round(1)
JOB = RNG.choice(["clerk", "doctor", "farmer"], N)
Z = 0.2 * AGE + 8 * (JOB == "doctor") + RNG.normal(size=N)
MEANS = sw.Mean().observe(Z, np.arange(N).reshape(40, 3))
LEARNERS = ["linear", "lightgbm", sw.Network(epochs=3)]


def records():
    """Lines of Python values, some of them missing."""
    start = datetime.date(2020, 1, 1)
    out = [
        {
            "age": float(AGE[i]),
            "job": str(JOB[i]),
            "member": bool(i % 3 == 0),
            "since": start + datetime.timedelta(days=i),
            "seen": datetime.datetime(2021, 1, 1, i % 24),
            "price": Decimal(f"{i}.50"),
            "rooms": i % 5,
        }
        for i in range(N)
    ]
    for i, name in (
        (3, "age"),
        (4, "job"),
        (5, "member"),
        (6, "since"),
        (7, "price"),
        (8, "rooms"),
    ):
        out[i][name] = None
    return out


def pandas_of_objects():
    return pd.DataFrame(records())


def pandas_with_types():
    """Nullable integers and flags, categories, moments of pandas."""
    return pandas_of_objects().astype(
        {"age": "Float64", "rooms": "Int64", "member": "boolean", "job": "category"}
    ).assign(since=lambda f: pd.to_datetime(f.since))  # fmt: skip


def pandas_of_arrow():
    return pa.Table.from_pylist(records()).to_pandas(types_mapper=pd.ArrowDtype)


MAKERS = {
    "objects": pandas_of_objects,
    "typed": pandas_with_types,
    "arrow dtypes": pandas_of_arrow,
    "polars": lambda: pl.DataFrame(records(), infer_schema_length=None),
    "pyarrow": lambda: pa.Table.from_pylist(records()),
}
KINDS = {
    "age": "number", "job": "category", "member": "flag", "since": "date", "seen": "date",
    "price": "number", "rooms": "number",
}  # fmt: skip


def columns(frame):
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def select(frame, names):
    return frame[names] if isinstance(frame, pd.DataFrame) else frame.select(names)


@pytest.fixture(params=MAKERS)
def frame(request):
    return MAKERS[request.param]()


def test_all_kinds_of_frames_are_the_same_numbers(frame):
    encoder = sw.Encoder.of(frame)
    assert {c.name: c.kind for c in encoder.columns} == KINDS
    reference = sw.Encoder.of(pandas_of_objects())
    np.testing.assert_array_equal(
        encoder.encode(frame).values, reference.encode(pandas_of_objects()).values
    )
    dense = encoder.encode(frame).dense()
    assert dense.shape == (N, 8)
    assert np.isfinite(dense).all()
    assert encoder.names(one_hot=True)[1:3] == ["job=doctor", "job=farmer"]


def test_values_are_what_they_were(frame):
    values = sw.Encoder.of(frame).encode(frame).values
    by = dict(zip(KINDS, values.T, strict=True))
    assert by["age"][0] == AGE[0]
    assert np.isnan(by["age"][3])
    assert by["since"][1] == (datetime.date(2020, 1, 2) - datetime.date(1970, 1, 1)).days
    assert by["seen"][6] - by["seen"][0] == pytest.approx(0.25)
    assert (by["price"][1], by["member"][0], by["member"][1]) == (1.5, 1.0, 0.0)


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda one: type(one).__name__ + str(one)[:8])
def test_every_learner_takes_them(frame, learner):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three epochs are few
        model = sw.AggregateRegressor(
            "normal", learner, validation=None, verbose=0, random_state=0
        ).fit(frame, MEANS)
    shown = model.predict(frame)
    assert np.isfinite(shown).all()
    turned = select(frame, columns(frame)[::-1])
    np.testing.assert_array_equal(model.predict(turned), shown)
    with pytest.raises(ValueError, match="X has no column 'job', which the model was fitted with"):
        model.predict(select(frame, [n for n in columns(frame) if n != "job"]))


def test_the_encoder_is_saved_with_the_model(frame, tmp_path):
    model = sw.AggregateRegressor("normal", "lightgbm", validation=None, verbose=0)
    model.fit(frame, MEANS).save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    assert again.encoder_.facts() == model.encoder_.facts()
    other = pandas_of_objects()[[*KINDS][::-1]]  # a frame of another library, in another order
    np.testing.assert_array_equal(again.predict(other), model.predict(frame))
    assert again.feature_names_in_.tolist() == [*KINDS]


def test_what_a_fit_has_not_seen(frame):
    model = sw.AggregateRegressor("normal", "linear", validation=None, verbose=0)
    model.fit(frame, MEANS)
    odd = pandas_of_objects().assign(job=["astronaut"] * 2 + ["clerk"] * (N - 2))
    with pytest.warns(
        UserWarning, match="2 values of column 'job' are categories that the fit has"
    ):
        model.predict(odd)
    with pytest.raises(ValueError, match=r"row 1, column 'age': expected a number, got 'old'"):
        model.predict(pandas_of_objects().assign(age=["1", "old"] + ["2"] * (N - 2)))
    with pytest.raises(ValueError, match="needs to be a frame with the columns"):
        model.predict(np.zeros((2, 7)))
    with pytest.raises(ValueError, match="X has a column 'extra', which the model was not fitted"):
        model.predict(pandas_of_objects().assign(extra=1))


def test_columns_without_use_are_named():
    frame = pd.DataFrame({"age": AGE, "name": [f"p{i}" for i in range(N)], "none": [None] * N})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = sw.AggregateRegressor("normal", "linear", validation=None, verbose=0)
        model.fit(frame, MEANS)
    said = [str(w.message) for w in seen]
    assert any("column 'name' of X is left out: 120 different texts in 120 rows" in s for s in said)
    assert any("column 'none' of X is left out: every value is missing" in s for s in said)
    assert model.feature_names_in_.tolist() == ["age"]
    model.predict(frame)  # they may be there again


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            pd.DataFrame({"a": ["1", "2", "x"]}),
            "row 2, column 'a': expected a number as in 2 other",
        ),
        (
            pd.DataFrame({"a": [1.0, np.inf]}),
            "row 1, column 'a': expected a finite number, got inf",
        ),
        (pd.DataFrame({"a": [[1], [2]]}), "no column that can be a feature: a: of type list"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "X has more than one column 'a'"),
    ],
)
def test_frames_that_cannot_be_read(frame, message):
    with pytest.raises(ValueError, match=message):
        sw.Encoder.of(frame)


def test_texts_of_numbers_are_numbers_where_all_are():
    """As a file with quotes gives them; categories of numbers are asked for."""
    frame = pd.DataFrame({"a": ["1", "2.5", None], "zip": ["010", "2", "3"], "code": [7, 7, 8]})
    assert sw.Encoder.of(frame).encode(frame).values[:2, 0].tolist() == [1.0, 2.5]
    assert [c.kind for c in sw.Encoder.of(frame, categories=["code"]).columns] == [
        "number", "category", "category",
    ]  # fmt: skip


def test_facts_that_were_altered_are_refused():
    facts = sw.Encoder.of(pandas_of_objects()).facts()
    assert sw.Encoder.from_facts(facts).facts() == facts
    for bad in (
        {},
        {"columns": [], "left_out": {}},
        {"columns": [{**facts["columns"][0], "kind": "weird"}], "left_out": {}},
        {"columns": [{**facts["columns"][0], "fill": "x"}], "left_out": {}},
        {"columns": [{**facts["columns"][1], "shares": [1.0]}], "left_out": {}},
        {"columns": 3, "left_out": {}},
    ):
        with pytest.raises(ValueError, match=r"."):
            sw.Encoder.from_facts(bad)
