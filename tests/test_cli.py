"""The command line: what it understands, what it writes, and what it says of mistakes."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import call, ok

import setwise as sw
from setwise.cli import COMMANDS
from setwise.cli.config import FitSpec, read_config
from setwise.cli.names import aggregate, family, learner
from setwise.distributions import Discrete, families, interval, log_cdf, resolve
from setwise.likelihood import aggregates, find_rule

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

ROOT = Path(__file__).parent.parent
MEANS = "--sets towns.csv --observe mean --y income --group town"
PAIRS = "--sets pairs.csv --observe rank --y higher --rows-columns first,second"
FAST = "--learner lightgbm --set n_estimators=5"


def mistake(line, *parts):
    """The command ends with code 2 and one line that holds these parts."""
    result = call(line)
    assert result.exit_code == 2, result.output
    said = result.stderr.strip().splitlines()[-1]
    assert said.startswith("Error: ")
    for part in parts:
        assert part in said, said
    return said


def write(frame, path):
    path = Path(path)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".feather":
        frame.to_feather(path)
    else:
        frame.to_json(path, orient="records", lines=True)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """240 people in 40 towns: mean income of towns, who earns more in pairs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    rng = np.random.default_rng(0)
    n = 240
    job = rng.choice(["clerk", "doctor", "farmer"], n)
    age = rng.uniform(20, 70, n).round(1)
    z = (0.2 * age + 8 * (job == "doctor") + rng.normal(size=n)).round(3)
    rows = pd.DataFrame(
        {
            "name": [f"p{i:03d}" for i in range(n)],
            "town": [f"t{i % 40:02d}" for i in range(n)],
            "age": age,
            "job": job,
            "member": rng.random(n) < 0.5,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 999, n), "D"),
            "income": z,
        }
    )
    rows["since"] = rows.since.dt.strftime("%Y-%m-%d")
    rows.loc[3, "age"] = np.nan
    rows.loc[4, "job"] = None
    rows.to_csv("truth.csv", index=False)
    people = rows.drop(columns="income")
    people.to_csv("people.csv", index=False)
    rows.groupby("town").income.mean().round(4).reset_index().to_csv("towns.csv", index=False)
    pairs = rng.permuted(np.tile(np.arange(n), (300, 1)), axis=1)[:, :2]
    first, second = pairs.T
    higher = (z[first] > z[second]).astype(int)
    names = people.name.to_numpy()
    pd.DataFrame({"first": names[first], "second": names[second], "higher": higher}).to_csv(
        "pairs.csv", index=False
    )
    return rows


def edit(path, line, old, new):
    """Changes one line of a file, counted from 1."""
    lines = Path(path).read_text().splitlines()
    changed = re.sub(old, new, lines[line - 1])
    assert changed != lines[line - 1]
    lines[line - 1] = changed
    Path(path).write_text("\n".join(lines) + "\n")


# ---- the commands themselves


def test_help_lists_every_command_with_its_first_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = ok("--help").output
    for name in COMMANDS:
        module = __import__(f"setwise.cli.{name}", fromlist=[name])
        assert name in shown
        assert getattr(module, name).__doc__.strip().splitlines()[0] in shown


def test_help_imports_nothing_heavy():
    """Beside what `import setwise` itself takes: so the package is only named here."""
    code = (
        "import sys, types; p = types.ModuleType('setwise'); p.__path__ = [sys.argv[1]]; "
        "sys.modules['setwise'] = p; import setwise.cli.fit; from setwise.cli import app; "
        "print([m for m in ('torch', 'sklearn', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    where = str(ROOT / "src" / "setwise")
    out = subprocess.run([sys.executable, "-c", code, where], capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stderr


def test_unknown_command_and_version():
    assert call("fitt").exit_code == 2
    assert ok("--version").output == f"setwise {sw.__version__}\n"


# ---- fit, predict, evaluate


def test_fit_says_what_it_understood_and_saves_a_model(data):
    shown = ok(f"fit people.csv {MEANS} --id name {FAST} --out model").output
    for part in ("240 rows of people.csv", "4 features", "1 number", "40 sets of towns.csv"):
        assert part in " ".join(shown.split())
    assert shown.index("40 sets") < shown.index("log-likelihood") < shown.index("model")
    assert "exactly" in shown
    assert "setwise.json" in {p.name for p in Path("model").iterdir()}
    assert isinstance(sw.load("model"), sw.AggregateRegressor)
    ok(f"fit people.csv {MEANS} --id name {FAST} --out model")  # an older model is replaced
    assert not [p for p in Path().iterdir() if p.name.startswith(".model")]


def test_json_is_all_of_the_standard_output(data):
    result = ok(f"fit people.csv {MEANS} --id name --drop since {FAST} --json")
    found = json.loads(result.stdout)
    assert found["rows"]["features"] == {"age": "number", "job": "category", "member": "flag"}
    assert found["rows"]["missing_values"] == 2
    assert found["sets"][0]["sizes"] == [6, 6]
    assert (found["n_train"], found["n_held_out"]) == (32, 8)
    assert found["identifiability"]["level"] == "exactly"
    assert found["log_likelihood"]["held_out"] > found["log_likelihood"]["held_out_constant"]
    assert "240 rows" in result.stderr


@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "jsonl"])
def test_every_format_gives_the_same_predictions(data, kind):
    people, towns = pd.read_csv("people.csv"), pd.read_csv("towns.csv")
    if kind in ("parquet", "feather"):
        people["since"] = pd.to_datetime(people.since)
    write(people, f"p.{kind}")
    write(towns, f"t.{kind}")
    ok(f"fit p.{kind} --sets t.{kind} --observe Mean --y income --group town --id name {FAST}")
    shuffled = people[[*people.columns[::-1]]]  # columns in any order
    write(shuffled, f"new.{kind}")
    told = json.loads(ok(f"predict model new.{kind} --out out.{kind} --batch 100 --json").stdout)
    assert (told["rows"], told["batches"]) == (240, 3)
    ok(f"predict model new.{kind} --out whole.csv")
    readers = {"csv": pd.read_csv, "parquet": pd.read_parquet, "feather": pd.read_feather}
    read = readers.get(kind, lambda path: pd.read_json(path, lines=True))
    found, whole = read(f"out.{kind}"), pd.read_csv("whole.csv")
    assert list(found.columns) == ["name", "prediction", "low", "high"]
    assert (found.name == people.name).all()
    np.testing.assert_allclose(found.prediction, whole.prediction)
    ok(f"fit people.csv {MEANS} --id name {FAST} --out other")
    ok("predict other people.csv --out other.csv")
    np.testing.assert_allclose(found.prediction, pd.read_csv("other.csv").prediction)


def test_the_ways_to_say_who_is_in_a_set_agree(data):
    people, towns = pd.read_csv("people.csv"), pd.read_csv("towns.csv")
    people[["town", "name"]].assign(w=2).to_csv("members.csv", index=False)
    wide = people.groupby("town").name.agg(list)
    listed = pd.DataFrame(wide.to_list(), columns=list("abcdef"))
    listed["income"] = towns.set_index("town").loc[wide.index].income.to_numpy()
    listed.to_csv("listed.csv", index=False)
    ways = {
        "group": MEANS,
        "members": "--sets towns.csv --observe mean --y income "
        "--members members.csv:set=town,row=name",
        "weighted": "--sets towns.csv --observe mean --y income "
        "--members members.csv:set=town,row=name,weight=w",
        "listed": "--sets listed.csv --observe mean --y income --rows-columns a,b,c,d,e,f",
    }
    scores = []
    for way in ways.values():
        line = f"fit people.csv {way} --id name --features age,job --learner linear --json"
        scores.append(json.loads(ok(line).stdout)["log_likelihood"]["train"])
    assert scores == pytest.approx([scores[0]] * 4)


def test_several_kinds_in_one_fit_and_in_one_file(data):
    several = f"--id name --drop town {FAST}"
    line = f"fit people.csv {several} {MEANS} {PAIRS} --seed 3 --out both --json"
    found = json.loads(ok(line).stdout)
    assert [s["observe"] for s in found["sets"]] == ["Mean()", "Rank(tie_margin=0.0)"]
    Path("sub").mkdir()
    Path("sub/fit.yaml").write_text(
        "rows: ../people.csv\nid: name\ndrop: [town]\nlearner: lightgbm\nset: {n_estimators: 5}\n"
        "seed: 3\nout: model\nsets:\n"
        "  - {file: ../towns.csv, observe: mean, y: income, group: town}\n"
        "  - {file: ../pairs.csv, observe: rank, y: higher, rows-columns: [first, second]}\n"
    )
    again = json.loads(ok("fit --config sub/fit.yaml --json").stdout)
    assert again["log_likelihood"] == found["log_likelihood"]
    assert Path("sub/model/setwise.json").is_file()
    Path("fit.toml").write_text(
        'rows = "people.csv"\nid = "name"\ndrop = "town"\nseed = 3\nlearner = "lightgbm"\n'
        "[set]\nn_estimators = 5\n"
        '[[sets]]\nfile = "towns.csv"\nobserve = "mean"\ny = "income"\ngroup = "town"\n'
        '[[sets]]\nfile = "pairs.csv"\nobserve = "rank"\ny = "higher"\n'
        'rows-columns = "first,second"\n'
    )
    again = json.loads(ok("fit --config fit.toml --out toml --json").stdout)
    assert again["log_likelihood"] == found["log_likelihood"]


def test_sets_are_held_out_as_by_fit_itself(data):
    """With rows of their own, even if many others drop; else sets alone. It says which."""
    rng, z, names = np.random.default_rng(0), data.income.to_numpy(), data.name.to_numpy()
    pairs = np.array([rng.choice(240, 2, replace=False) for _ in range(900)])
    large = np.array([rng.choice(240, 60, replace=False) for _ in range(40)])
    for seen, apart, remark in (
        (sw.Mean().observe(z, pairs), "rows", "no row of a held-out set is in a set to learn from"),
        (sw.Mean().observe(z, large), "sets", "held-out sets share rows with others"),
    ):
        own = np.repeat(np.arange(len(seen)), seen.sets.sizes)
        write(pd.DataFrame({"set": own, "row": names[seen.sets.indices]}), "members.csv")
        write(pd.DataFrame({"set": np.arange(len(seen)), "income": seen.y}), "sets.csv")
        line = "fit people.csv --id name --drop town,since --learner linear --json"
        shown = ok(f"{line} --sets sets.csv --observe mean --y income --members members.csv")
        found = json.loads(shown.stdout)
        assert found["apart"] == apart
        assert found["n_train"] + found["n_held_out"] + found["n_dropped"] == len(seen)
        assert (found["n_dropped"] > 0.2 * len(seen)) == (apart == "rows")
        assert remark in " ".join(shown.stderr.split())
        est = sw.AggregateRegressor(learner="linear", random_state=0, verbose=0)
        X = data[["age"]].fillna(40.0).to_numpy()
        assert est.fit(X, seen).validation_ == apart


def test_evaluate_aligns_what_ranks_cannot_tell(data):
    ok(f"fit people.csv --id name --drop town {PAIRS} --learner linear --out ranks")
    result = ok(f"evaluate ranks truth.csv --truth income {PAIRS} --json")
    found = json.loads(result.stdout)
    assert found["truth"]["identifiability"] == "up to an affine map"
    assert found["truth"]["aligned"]
    assert found["truth"]["r2"] > 0.7
    assert 0.6 < found["truth"]["coverage_90"] <= 1
    sets = found["sets"][0]
    assert sets["log_likelihood"] > sets["log_likelihood_constant"]
    assert "after alignment" in result.stderr
    assert "up to an affine map" in ok("predict ranks people.csv --out p.csv").stderr


def test_classes_are_named_by_the_columns_of_counts(data):
    rng = np.random.default_rng(1)
    z = np.where(data.age.fillna(40) > 45, "old", "young")
    z[::17] = rng.choice(["old", "young"], len(z[::17]))
    counts = pd.crosstab(data.town, z).reset_index()
    counts.to_csv("counts.csv", index=False)
    data.assign(kind=z).to_csv("labelled.csv", index=False)
    line = "--sets counts.csv --observe counts --y old,young --group town --features age"
    ok(f"fit people.csv {line} {FAST} --out kinds")
    ok("predict kinds people.csv --out p.csv")
    found = pd.read_csv("p.csv")
    assert list(found.columns) == ["row", "prediction", "p_old", "p_young"]
    np.testing.assert_allclose(found.p_old + found.p_young, 1)
    told = json.loads(ok("evaluate kinds labelled.csv --truth kind --json").stdout)["truth"]
    assert told["accuracy"] > 0.85
    data.assign(kind=z)[["name", "kind"]].iloc[::7].to_csv("few.csv", index=False)
    few = "--sets few.csv --observe direct --y kind --rows-columns name"
    ok(f"fit people.csv --id name {few} --classes old,young --features age --learner linear")
    mistake(
        f"fit people.csv --id name {few} --classes old,new --features age",
        "few.csv, line 3, column kind: the set has y = 'young': Direct() expects one of"
        if z[7] == "young" else "few.csv",
    )  # fmt: skip


def test_permuted_classes_are_aligned(data):
    z = (data.age.fillna(40) > 45).astype(int)
    pairs = np.random.default_rng(2).random((300, 240)).argsort(1)[:, :2]
    same = (z.to_numpy()[pairs[:, 0]] == z.to_numpy()[pairs[:, 1]]).astype(int)
    pd.DataFrame({"a": pairs[:, 0], "b": pairs[:, 1], "same": same}).to_csv("same.csv", index=False)
    data.assign(kind=z).to_csv("labelled.csv", index=False)
    line = "--sets same.csv --observe similarity --y same --rows-columns a,b --classes 2"
    found = json.loads(ok(f"fit people.csv {line} --features age {FAST} --json").stdout)
    assert found["identifiability"]["level"] == "up to a permutation of classes"
    told = json.loads(ok("evaluate model labelled.csv --truth kind --json").stdout)["truth"]
    assert told["aligned"]
    assert told["accuracy"] == told["permutation_accuracy"] > 0.9


@pytest.mark.parametrize("name", ["linear", "network:epochs=2", "xgboost", "catboost"])
def test_learners_take_categories_and_missing_values(data, name):
    pytest.importorskip(name if name in ("xgboost", "catboost") else "torch")
    options = "--set n_estimators=3" if name in ("xgboost", "catboost") else ""
    ok(f"fit people.csv {MEANS} --id name --learner {name} {options}")
    if name == "catboost":  # keeps statistics of categories in files of its own
        assert "give --trusted" in call("predict model people.csv --out p.csv").stderr
    ok("predict model people.csv --out p.csv" + " --trusted" * (name == "catboost"))
    assert np.isfinite(pd.read_csv("p.csv").prediction).all()


def test_rankings_intervals_noise_and_weights(data):
    z = data.income.to_numpy()
    order = np.argsort(-z.reshape(-1, 3), axis=1) + 3 * np.arange(80)[:, None]
    pd.DataFrame(order, columns=["best", "next", "last"]).to_csv("order.csv", index=False)
    line = "--sets order.csv --observe ranking --rows-columns best,next,last --family gumbel"
    ok(f"fit people.csv {line} --features age,job {FAST}")
    ranks = pd.DataFrame(order, columns=["a", "b", "c"]).assign(ra=2, rb=1, rc=2)
    ranks.to_csv("levels.csv", index=False)
    line = "--sets levels.csv --observe ranking:top=2 --rows-columns a,b,c --y ra,rb,rc"
    ok(f"fit people.csv {line} --family gumbel --features age,job {FAST}")
    low = np.floor(z / 5) * 5
    bounds = pd.DataFrame({"name": data.name, "low": low, "high": low + 5, "w": 2})
    bounds.loc[0, "low"] = np.nan  # open below
    bounds.to_csv("bounds.csv", index=False)
    line = "--sets bounds.csv --observe interval --y low,high --rows-columns name --weight w"
    ok(f"fit people.csv {line} --id name --features age,job {FAST}")
    found = json.loads(
        ok(f"fit people.csv {MEANS} --noise laplace=0.5 --features age,job {FAST} --json").stdout
    )
    assert "laplace=0.5" in found["sets"][0]["observe"]
    found = json.loads(
        ok(f"fit people.csv {MEANS} --effect learned --features age,job {FAST} --json").stdout
    )
    assert found["sets"][0]["observe"].startswith("RandomEffect(aggregate=Mean()")


def test_sets_without_a_label_are_left_out(data):
    edit("towns.csv", 3, r",.*", ",")
    found = json.loads(ok(f"fit people.csv {MEANS} --id name {FAST} --json").stdout)
    assert found["sets"][0]["n"] == 39
    assert found["sets"][0]["remarks"] == ["left out: 1 group without y"]
    assert found["rows"]["in_no_set"] == 6


def test_unknown_categories_count_as_missing(data):
    ok(f"fit people.csv {MEANS} --id name {FAST}")
    edit("people.csv", 2, "clerk|doctor|farmer", "astronaut")
    assert "1 values of job" in ok("predict model people.csv --out p.csv").stderr


def test_predictions_go_to_the_terminal_by_default(data):
    ok(f"fit people.csv {MEANS} --id name {FAST}")
    lines = ok("predict model people.csv --interval 0").stdout.splitlines()
    assert len(lines) == 241
    assert lines[0].replace('"', "") == "name,prediction"


# ---- mistakes


def test_mistakes_name_file_line_and_column(data):
    base = f"fit people.csv {MEANS} --id name {FAST} --out never"
    edit("towns.csv", 7, r",.*", ",abc")
    mistake(base, "towns.csv, line 7, column income: expected a number, got 'abc'")
    edit("towns.csv", 7, "abc", "1")
    edit("towns.csv", 9, "t07", "nowhere")
    strict = f"{base} --on-missing error"
    mistake(strict, "people.csv, line 9, column town", "'t07', a group without y")
    edit("towns.csv", 9, "nowhere", "t00")
    mistake(base, "towns.csv, line 9, column town: y has two different entries for group 't00'")
    edit("towns.csv", 9, "t00", "t07,5")
    mistake(base, "towns.csv, line 9: expected 2 fields as in the header, got 3")
    edit("towns.csv", 9, "t07,5", "t07")
    edit("pairs.csv", 5, r"\d$", "2")
    ranks = f"fit people.csv {PAIRS} --id name --out never"
    mistake(ranks, "pairs.csv, line 5, column higher", "y = 2", "expects 0 or 0.5 or 1")
    edit("pairs.csv", 4, "^p...", "p999")
    mistake(
        f"{ranks} --on-missing error",
        "pairs.csv, line 4, column first, second: 1 set with an id of no row; the first is 'p999'",
    )
    mistake(f"fit people.csv {PAIRS}", "expected a row number from 0 to 239", "--id")
    edit("people.csv", 6, r"(,t..,)[^,]*", r"\1old")
    mistake(
        f"fit people.csv {MEANS} --id name", "people.csv, line 6, column age: expected a number",
        "'old'", "--missing",
    )  # fmt: skip
    assert not Path("never").exists()


def test_mistakes_in_json_lines_and_parquet(data):
    towns = pd.read_csv("towns.csv")
    write(towns, "towns.jsonl")
    text = Path("towns.jsonl").read_text().splitlines()
    bad = [*text[:4], '{"town": "t04", "income": "abc"}', *text[5:]]
    Path("towns.jsonl").write_text("\n".join(bad))
    line = "fit people.csv --sets towns.{} --observe mean --y income --group town --id name"
    mistake(line.format("jsonl"), "towns.jsonl, line 5, column income", "got 'abc'")
    Path("towns.jsonl").write_text("\n".join([*text[:4], "{", *text[5:]]))
    mistake(line.format("jsonl"), "towns.jsonl, line 5", "not valid JSON")
    write(towns.astype(str).replace(str(towns.income[2]), "abc"), "towns.parquet")
    mistake(line.format("parquet"), "towns.parquet, row 3, column income", "got 'abc'")
    Path("towns.parquet").write_text("this is no parquet")
    mistake(line.format("parquet"), "towns.parquet cannot be read")
    Path("towns.feather").touch()
    mistake(line.format("feather"), "the file is empty")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("", ["give the labels of sets"]),
        ("--sets towns.csv --y income --group town", ["--observe"]),
        ("--sets towns.csv --observe mean --y income", ["--group, --members and --rows-columns"]),
        ("--sets towns.csv --observe mena --y income --group town", ["unknown observation 'mena'"]),
        ("--sets towns.csv --observe mean:k=1 --y income --group town", ["Mean()"]),
        ("--sets towns.csv --observe mean --y pay --group town", ["no column 'pay'", "income"]),
        ("--sets towns.csv --observe mean --y income --group city", ["no column 'city'"]),
        ("--sets nowhere.csv --observe mean --y income --group town", ["no such file"]),
        ("--sets towns.xls --observe mean --y income --group town", [".parquet"]),
        (
            "--sets pairs.csv --observe similarity --y higher --rows-columns first,second",
            ["pairs.csv", "do not tell how many classes", "--classes 3 or --classes a,b,c"],
        ),
        ("--sets towns.csv --observe custom --y income --group town", ["Python"]),
        ("--observe mean", ["--sets"]),
        (f"{MEANS} --y town", ["--y is given twice"]),
        (f"{MEANS} --family poisson", ["towns.csv, line 2, column income", "Poisson() cannot"]),
        (f"{MEANS} --family categorical", ["--classes"]),
        (f"{MEANS} --family normal --classes 3", ["give one of them"]),
        (f"{MEANS} --learner forest", ["unknown learner 'forest'", "LightGBM"]),
        (f"{MEANS} --learner em", ["em:RandomForestRegressor"]),
        (f"{MEANS} --learner linear --set alpa=1", ["alpa", "alpha"]),
        (f"{MEANS} --set n_estimators", ["name=value"]),
        (f"{MEANS} --on-missing never", ["--on-missing is drop or error"]),
        (f"{MEANS} --seed {'9' * 400}", ["--seed is a whole number from 0 to 4294967295"]),
        (f"{MEANS} --missing ?,drop", ["--missing names texts", "--on-missing drop"]),
        (f"{MEANS} --missing error", ["--missing names texts", "--on-missing error"]),
        (f"{MEANS} --missing \udcff", ["--missing '\\udcff': this text is not UTF-8"]),
        (f"{MEANS} --learner lightgbm --set objective=l2", ["likelihood"]),
        (f"{MEANS} --set n_estimators=5", ["a learner that you name", "--learner lightgbm"]),
        (f"{MEANS} --noise laplace=-1", ["positive"]),
        (f"{MEANS} --features nothing", ["no column 'nothing'"]),
        (f"{MEANS} --out people.csv", ["is a file"]),
        (f"{MEANS} --out .", ["holds other things"]),
    ],
)
def test_wrong_options_are_said_in_one_line(data, options, parts):
    mistake(f"fit people.csv --id name {options}", *parts)


@pytest.mark.parametrize(
    "options", [f"--seed {'9' * 5000}", f"--{'x' * 5000}", "--eval 'a" + " b" * 999 + "'"]
)
def test_long_values_are_cut(options):
    said = call(f"fit people.csv {options}").stderr
    assert "…" in said
    assert len(said) < 2500


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rows: [1", ["not valid YAML"]),
        ("row: a.csv", ["unknown name 'row'", "rows"]),
        ("rows: a.csv\nseed: x", ["`seed`", "int"]),
        ("rows: a.csv\nsets: [{observe: mean}]", ["number 1 of `sets` has no `file`"]),
    ],
)
def test_wrong_configurations(tmp_path, text, parts):
    path = tmp_path / "fit.yaml"
    path.write_text(text)
    mistake(f"fit --config {path}", *parts)


def test_a_configuration_without_anything_is_the_default(tmp_path):
    (tmp_path / "fit.toml").write_text("")
    assert read_config(tmp_path / "fit.toml") == FitSpec()


def test_wrong_files_leave_outputs_untouched(data, monkeypatch):
    ok(f"fit people.csv {MEANS} --id name {FAST}")
    ok("predict model people.csv --out p.csv")
    before = {p: p.read_bytes() for p in [*Path("model").rglob("*"), Path("p.csv")] if p.is_file()}
    people = pd.read_csv("people.csv").astype(str)
    people.loc[200, "age"] = "old"
    people.to_csv("bad.csv", index=False)
    for batch in (10, 1000):  # the mistake is met after some batches were written, or at once
        mistake(
            f"predict model bad.csv --out p.csv --batch {batch}", "bad.csv, line 202, column age"
        )
    people.drop(columns=["age", "name"]).to_csv("short.csv", index=False)
    mistake("predict model short.csv --out p.csv", "no column age", "which the model needs")
    mistake(f"fit bad.csv {MEANS} --id name {FAST}", "bad.csv, line 202, column age")
    monkeypatch.setattr("setwise.io.persistence.save", _fails)
    result = call(f"fit people.csv {MEANS} --id name {FAST}")
    assert result.exit_code == 1
    assert "No space left" in result.stderr.splitlines()[-1]
    for path, content in before.items():
        assert path.read_bytes() == content
    assert not [p.name for p in Path().iterdir() if p.name.startswith(".")]


def _fails(*args):
    raise OSError(28, "No space left on device")


def test_wrong_models(data):
    mistake("predict nowhere people.csv", "no such folder")
    Path("empty").mkdir()
    mistake("predict empty people.csv", "has no setwise.json")
    ok(f"fit people.csv {MEANS} --id name {FAST}")
    mistake("evaluate model truth.csv", "--truth")
    mistake("evaluate model truth.csv --truth job", "truth.csv, line 2, column job")
    mistake("predict model people.csv --out people.csv", "file of rows itself")
    mistake("predict model people.csv --out p.xls", "ends in one of")
    Path("model/setwise.json").write_text("{}")
    mistake("predict model people.csv", "cut short or altered")


# ---- names, intervals, kinds


def test_every_name_is_found_in_any_spelling():
    assert aggregate("order-statistic:2") == aggregate("OrderStatistic:k=2") == sw.OrderStatistic(2)
    assert aggregate("any_positive") == sw.AnyPositive()
    assert aggregate("coarse:cells=[[0,1],[2]]") == sw.Coarse([[0, 1], [2]])
    assert aggregate("rank:tie_margin=0.5", "flip=0.1") == sw.Noisy(sw.Rank(0.5), flip=0.1)
    assert aggregate("counts", effect="learned") == sw.RandomEffect(sw.Counts())
    noisy = sw.Noisy(sw.Mean(), normal=0.5)
    assert aggregate("mean", "normal=0.5", "scale=2.0") == sw.RandomEffect(noisy, scale=2.0)
    assert family("student-t:df=3,scale=predicted") == sw.StudentT(df=3, scale="predicted")
    assert repr(learner("LightGBM:num_leaves=7", {"max_depth": 3})) == repr(
        sw.LightGBM(num_leaves=7, max_depth=3)
    )
    assert "RandomForestRegressor" in repr(learner("em:random-forest-regressor", {}))


@pytest.mark.parametrize("name", [n for n in families() if n != "categorical"])
def test_intervals_hold_their_probability(name):
    chosen = resolve(name)
    torch.manual_seed(0)
    raw, shared = torch.randn(10, len(chosen.outputs)), torch.zeros(len(chosen.shared))
    d = chosen(raw.double(), shared.double())
    for level in (0.5, 0.999):
        low, high = interval(d, level)
        for x, p in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
            at = log_cdf(d, torch.from_numpy(np.array(x))).exp().numpy()
            if issubclass(chosen.kind, Discrete):
                below = log_cdf(d, torch.from_numpy(x - 1)).exp().numpy()
                assert (x == np.round(x)).all()
                assert ((at >= p - 1e-9) & (below < p + 1e-9)).all()
            else:
                np.testing.assert_allclose(at, p, atol=1e-6)


def test_kinds_are_those_of_the_registry():
    found = json.loads(ok("kinds --json").stdout)["kinds"]
    pairs = {(k["aggregate"], f["family"]): f for k in found for f in k["families"]}
    ours = [cls for cls in aggregates() if cls.__module__.startswith("setwise.")]
    for cls in ours:
        for fam in families().values():
            try:
                rule = find_rule(cls, fam.distribution)
            except TypeError:
                assert (cls.__name__, fam.__name__) not in pairs
                continue
            assert pairs[cls.__name__, fam.__name__]["exact"] == rule.exact
    assert pairs["Rank", "Normal"]["tells"] == "up to an affine map"
    assert pairs["Similarity", "Categorical"]["tells"] == "up to a permutation of classes"
    shown = ok("kinds order-stat").output
    assert "OrderStatistic" in shown
    assert "Similarity" not in shown
    mistake("kinds nonsense", "'nonsense'")


def test_kinds_fit_into_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("setwise.cli.kinds._level", lambda family, aggregate: "exactly")
    shown = ok("kinds").output
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


# ---- the page


def test_the_page_of_the_command_line_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    n_commands = 0
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.S | re.M):
        here = re.match(r"(?:python|cat > (\S+)) ?-? ?<<'EOF'\n(.*?)^EOF\n", block, re.S | re.M)
        if here and here[1]:
            Path(here[1]).write_text(here[2])
        elif here:
            exec(compile(here[2], "command-line.md", "exec"), {})
        rest = block[here.end() :] if here else block
        for line in rest.replace("\\\n", " ").splitlines():
            if line.strip():
                assert line.startswith("setwise "), line
                ok(line.removeprefix("setwise "))
                n_commands += 1
    assert n_commands >= 8
    for name in ("model/setwise.json", "predictions.parquet"):
        assert Path(name).exists(), name
    assert math.isfinite(pd.read_parquet("predictions.parquet").prediction.sum())
