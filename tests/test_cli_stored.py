"""`setwise fit` on a folder of rows, and on files of which a part is read at a time."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import setwise as sw
from setwise.cli import app

N, SIZE = 2000, 10


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "area": np.repeat(np.arange(N // SIZE), SIZE),
        "x": rng.normal(size=N),
        "job": rng.choice(["a", "b"], N),
    })  # fmt: skip
    frame.loc[3, "x"] = np.nan
    z = 2 * frame.x.fillna(0) + (frame.job == "b") + rng.normal(size=N)
    (tmp_path / "rows").mkdir()
    for i in range(4):
        part = frame.iloc[i * 500 : (i + 1) * 500]
        part.to_csv(tmp_path / "rows" / f"{i}.csv", index=False)
    frame.to_parquet(tmp_path / "all.parquet")
    z.groupby(frame.area).mean().rename("income").to_csv(tmp_path / "sets.csv")
    return tmp_path, frame


def fit(data, rows, *more):
    return run(
        "fit", data / rows, "--sets", data / "sets.csv", "--observe", "mean", "--y", "income",
        "--group", "area", "--out", data / "model", "--json", *more,
    )  # fmt: skip


@pytest.mark.parametrize("rows", ["rows", "all.parquet"])
def test_rows_that_are_read_in_parts(data, rows):
    folder, frame = data
    done = fit(folder, rows, "--memory", "2MB", "--learner", "linear")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[0])
    assert told["rows"]["n"] == N
    assert told["rows"]["missing_values"] == 1
    assert told["rows"]["features"] == {"x": "number", "job": "category"}
    assert told["log_likelihood"]["held_out"] > told["log_likelihood"]["held_out_constant"]
    model = sw.load(folder / "model")
    np.testing.assert_allclose(model.coef_, [2, 1], atol=0.6)
    out = run("predict", folder / "model", folder / "all.parquet", "--out", folder / "p.csv")
    assert out.exit_code == 0, out.output
    found = pd.read_csv(folder / "p.csv")
    np.testing.assert_allclose(found.prediction, model.predict(frame.drop(columns="area")))


def test_without_held_out_sets(data):
    folder, _ = data
    done = fit(folder, "rows", "--eval", "0", "--learner", "xgboost", "--set", "n_estimators=3")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[0])
    assert told["steps"] == 3
    assert told["log_likelihood"] == {}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--memory", "much"], 'memory is a number of bytes, or a text such as "2GB"'),
        (["--drop", "x,job"], "no feature is left"),
        (["--drop", "y"], "there is no column 'y'; it has area, x, job"),
        (["--group", "zone"], "there is no column 'zone'"),
        (["--learner", "catboost"], "CatBoost() needs rows in memory"),
    ],
)
def test_mistakes(data, more, said):
    folder, _ = data
    words = ["--sets", folder / "sets.csv", "--observe", "mean", "--y", "income"]
    words += [] if "--group" in more else ["--group", "area"]
    done = run("fit", folder / "rows", *words, "--out", folder / "model", *more)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_folder_without_tables(data):
    folder, _ = data
    (folder / "empty").mkdir()
    done = fit(folder, "empty")
    assert done.exit_code == 2
    assert "no such file, or no table in it" in " ".join(done.output.split())
