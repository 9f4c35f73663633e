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


def test_a_folder_is_predicted_and_judged(data):
    folder, _ = data
    assert fit(folder, "rows", "--learner", "linear").exit_code == 0
    found = []
    for rows in ("all.parquet", "rows", "rows/*.csv"):
        out = run("predict", folder / "model", folder / rows, "--out", folder / "p.csv")
        assert out.exit_code == 0, out.output
        found.append(pd.read_csv(folder / "p.csv"))
    pd.testing.assert_frame_equal(found[0], found[1])
    pd.testing.assert_frame_equal(found[0], found[2])
    sets = ["--sets", folder / "sets.csv", "--observe", "mean", "--y", "income", "--group", "area"]
    told = []
    for rows in ("all.parquet", "rows"):
        done = run("evaluate", folder / "model", folder / rows, *sets, "--json")
        assert done.exit_code == 0, done.output
        told.append(json.loads(done.stdout.splitlines()[0])["sets"][0])
    assert told[1] == pytest.approx(told[0])


def test_a_file_of_a_folder_that_lacks_a_column(data):
    folder, _ = data
    assert fit(folder, "rows", "--learner", "linear").exit_code == 0
    (folder / "rows" / "9.csv").write_text("area;x;job\n1;2;a\n")
    for words in (["predict", folder / "model"], ["evaluate", folder / "model", "--truth", "x"]):
        done = run(*words, folder / "rows")
        assert done.exit_code == 2
        assert "9.csv has no column" in " ".join(done.output.split())
    done = fit(folder, "rows")
    assert done.exit_code == 2, done.output
    assert "9.csv has no column 'area'" in " ".join(done.output.split())


def test_columns_that_folders_name(data):
    folder, frame = data
    for area, part in frame.groupby(frame.area % 2):
        (folder / "parts" / f"half={area}").mkdir(parents=True)
        part.to_parquet(folder / "parts" / f"half={area}" / "rows.parquet")
    assert fit(folder, "parts", "--learner", "linear").exit_code == 0
    out = run("predict", folder / "model", folder / "parts", "--out", folder / "p.csv")
    assert out.exit_code == 0, out.output
    model = sw.load(folder / "model")
    assert [*model.feature_names_in_] == ["x", "job", "half"]
    rows = sw.Files(folder / "parts").drop("area")
    np.testing.assert_allclose(pd.read_csv(folder / "p.csv").prediction, model.predict(rows))


@pytest.mark.parametrize(
    ("files", "wrong", "said"),
    [
        ("2.csv", "50,1.5,b,9", "2.csv, line 101: expected 3 fields as in the header, got 4"),
        ("*.csv", "50,many,b", "0.csv, line 101, column x: expected a number as in"),
    ],
)
def test_what_is_wrong_in_a_folder_has_a_file_and_a_line(data, files, wrong, said):
    folder, _ = data
    for path in (folder / "rows").glob(files):
        lines = path.read_text().splitlines()
        lines[100] = wrong
        path.write_text("\n".join(lines))
    done = fit(folder, "rows")
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
