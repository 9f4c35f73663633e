"""The report: its statistics, what it says, what it refuses, and how a browser shows it."""

import csv
import json
import os
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from reproduction.aims import aims
from reproduction.command import app
from reproduction.folder import ResultsError, read
from reproduction.paper import (
    TABLES,
    Figure,
    bold,
    columns,
    figures,
    gain,
    probability,
    seen,
    verdict,
)
from reproduction.report import html, markdown
from setwise.datasets import info, names

ROOT = Path(__file__).parent.parent
HEAD = "dataset,method,setting,trial,value,seconds,held_out,note\n"


def write_table(folder, table, shift=0.0, trials=4, settings=("protocol", "best"), skip=()):
    """Results like the paper's; `shift` in standard deviations for the better."""
    rng = np.random.default_rng(0)
    sign = TABLES[table].sign
    with (folder / f"{table}.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        file.write(HEAD)
        for (dataset, method), theirs in figures(table).items():
            noise = rng.normal(size=trials)
            noise = (noise - noise.mean()) / noise.std(ddof=1)
            for setting in settings:
                for trial in range(trials):
                    value = theirs.mean + theirs.std * (sign * shift + noise[trial])
                    if (dataset, method, setting) not in skip:
                        out.writerow([dataset, method, setting, trial, value, 0.5, "", ""])


def change(path, line, text):
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_table(folder, "images", shift=1.0)
    write_table(folder, "uci", skip={("housing", "mean_mle_gbm", "best")})
    write_table(folder, "varying-k", shift=-2.0)
    write_table(folder, "binary", settings=("best",))
    (folder / "uci.json").write_text(
        json.dumps([{"command": "python -m reproduction uci", "torch": "2"}])
    )
    (folder / "notes.toml").write_text('airfoil = "too few <rounds>"\n[concrete]\ngbm_k2 = "odd"\n')
    with (folder / "binary-history.csv").open("w") as file:
        file.write("dataset,method,setting,trial,step,value\n")
        for trial in range(2):
            for step in range(1, 5):
                file.write(f"banana,triplet_mle,best,{trial},{step},{80 + trial + step}\n")
    return folder


# ---- statistics


@pytest.mark.parametrize("table", [t for t in TABLES if t != "varying-k"])
def test_the_bold_print_of_the_paper(table):
    found = figures(table)
    for dataset in names(table):
        row = {m: found[dataset, m] for m in columns(table)}
        kept = {m for m in bold(row, TABLES[table].sign) if seen(m) != "single labels"}
        assert kept == {m for m, figure in row.items() if figure.bold}, dataset


def test_the_paper_is_whole():
    for table in TABLES:
        found = figures(table)
        assert {d for d, _ in found} == set(names(table))
        assert len(found) == len(names(table)) * len(columns(table))


def test_statistics_agree_with_scipy():
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 10), rng.normal(0.7, 3, 6)
    fa, fb = (Figure(float(v.mean()), float(v.std(ddof=1)), len(v)) for v in (a, b))
    test = ttest_ind(a, b, equal_var=False, alternative="less")
    assert probability(fa, fb, 1) == pytest.approx(test.pvalue)
    assert gain(fa, fb, 1) == -gain(fa, fb, -1) == gain(fb, fa, -1)
    error = np.sqrt(a.var(ddof=1) / 10 + b.var(ddof=1) / 6)
    near = Figure(fa.mean + 0.99 * error, fb.std, 6)
    far = Figure(fa.mean + 1.01 * error, fb.std, 6)
    assert verdict(near, fa, 1) == verdict(near, fa, -1) == "level"
    assert (verdict(far, fa, 1), verdict(far, fa, -1)) == ("ahead", "behind")


def test_one_trial_and_no_spread():
    nan = float("nan")
    assert verdict(Figure(5.0, nan, 1), Figure(4.0, 1.0, 10), -1) == "level"
    assert gain(Figure(5.0, nan, 1), Figure(4.0, 1.0, 10), -1) == -1.0
    assert verdict(Figure(nan, nan, 3), Figure(4.0, 1.0, 10), -1) == "behind"
    assert gain(Figure(5.0, 0.0, 3), Figure(4.0, 0.0, 10), 1) == float("inf")
    assert verdict(Figure(4.0, 0.0, 3), Figure(4.0, 0.0, 10), 1) == "level"


# ---- what it says


def test_aims(folder):
    found = {aim.text: aim for aim in aims(read(folder))}

    def one(*words):
        (bar,) = (
            b
            for aim, b in found.items()
            if aim.startswith(words[0]) and all(w in aim for w in words)
        )
        return bar

    assert one("mnist, `similarity_mle`, best", "98.84").met
    assert one("kmnist, `triplet_mle`, protocol").met is False  # 81.94 + 4.59
    assert one("mnist, `triplet_mle_three_way`").met is None
    means = one("`mean_mle_gbm`", "`mean_mle_gbm`, within one standard error")
    assert means.met is None
    assert means.measured.startswith("5 of 26; not measured: housing, 2d-planes")
    assert one("`similarity_mle`, best", "complete").measured.startswith("17 of 26")
    assert one("cpu-act").met is None
    assert one("best: where").measured.startswith("9 of 48 rows behind have a reason")


def test_what_full_supervision_tells(tmp_path):
    """Of the trials that both have."""
    rows = [("similarity_mle", 0, 80), ("similarity_mle", 1, 82), ("supervised", 1, 85)]
    lines = [f"banana,{method},best,{trial},{value},1,,\n" for method, trial, value in rows]
    (tmp_path / "binary.csv").write_text(HEAD + "".join(lines))
    lines = ["abalone,mean_mle_lr,best,0,5.5,1,,\n", "abalone,supervised_lr,best,0,5,1,,\n"]
    lines += ["airfoil,mean_mle_lr,best,0,nan,1,,\n", "airfoil,supervised_lr,best,0,5,1,,\n"]
    (tmp_path / "uci.csv").write_text(HEAD + "".join(lines))
    (tmp_path / "notes.toml").write_text('banana = "It is bent."\nsusy = "Out of reach."\n')
    found = read(tmp_path)
    assert found.why("binary", "banana", "similarity_mle") == (
        "Full supervision of the model in these trials has 85.00 (paper 88.42), so set labels cost "
        "3.0 points. It is bent."
    )
    assert found.why("uci", "abalone", "mean_mle_lr").endswith("cost 10.0 %.")
    assert found.why("uci", "abalone", "supervised_lr").startswith(
        "Single trials have 5.00 to 5.00"
    )
    assert found.why("binary", "banana", "triplet_mle") == "It is bent."
    assert not found.why("uci", "airfoil", "mean_mle_lr")  # nothing is told of what blew up
    page = markdown(tmp_path)
    assert "Full supervision" in page
    assert page.count("Out of reach.") == 2  # why there is no figure, once for each method


def test_growth_and_blow_ups(tmp_path):
    write_table(tmp_path, "varying-k", trials=2)
    write_table(tmp_path, "regression", trials=2)
    found = {aim.text: aim for aim in aims(read(tmp_path))}
    (growth,) = (b for aim, b in found.items() if "15 %" in aim and "best" in aim)
    assert growth.met  # the paper's own figures
    assert "abalone +6 %" in growth.measured
    (blow,) = (b for aim, b in found.items() if "blows up" in aim)
    assert blow.met is False


def test_page_and_markdown(folder):
    page, text = html(folder), markdown(folder)
    for shown in (page, text):
        assert "**uci**" in shown or "<b>uci</b>" in shown
        for what in ("codrna (partial)", "no reason noted yet", "TF-IDF", "Scale of ranks"):
            assert what in shown
        assert "multiclass, regression" in shown  # without results
        assert "every data set" in shown  # binary in protocol
        assert re.search(r"housing: mean_mle_gbm", shown)  # missing
        assert "python -m reproduction uci" in shown
        assert "too few &lt;rounds" in shown
    drawn = {"images": 2, "uci": 4, "varying-k": 6, "binary": 2, "curves": 1}
    assert page.count("<svg") == sum(drawn.values())
    assert "<svg" not in text
    assert not re.search(r'(?:src|href)=(?!"(?:data:|#))', page)
    assert "http" not in page.replace("http-equiv", "")
    for name in names("images"):
        assert f"| {name} |" in text


def test_better_is_up_in_either_direction(folder):
    found = read(folder).tables
    for table in ("images", "varying-k"):
        measured = found[table]
        method = columns(table)[3]
        for dataset in measured.datasets:
            pair = measured.ours(dataset, method, "best"), measured.theirs(dataset, method)
            step = gain(*pair, measured.table.sign)
            assert step == pytest.approx(1.0 if table == "images" else -2.0, abs=0.01)


def test_other_columns_and_sets(tmp_path):
    rows = ["digits,similarity_mle,best,0,97,1,,", "mnist,triplet_mle_three_way,best,0,97,1,,"]
    (tmp_path / "images.csv").write_text(HEAD + "\n".join(rows) + "\nmnist,cut sh")
    measured = read(tmp_path).tables["images"]
    assert measured.datasets[-1] == "digits"
    assert measured.theirs("digits", "similarity_mle") is None
    assert measured.theirs("mnist", "triplet_mle_three_way").mean == 94.94
    assert (tmp_path / "images.csv").read_text().endswith("cut sh")  # nothing is written
    text = markdown(tmp_path)
    assert "beside the paper's `triplet_mle`" in text
    assert "1 trial a cell, of which the paper has 10" in text


def test_either_model(tmp_path):
    rows = [
        "banana,triplet_mle,best,0,90,1,0.4,",
        "banana,triplet_mle_gbm,best,0,80,1,0.5,",
        "banana,triplet_mle,best,1,91,1,0.5,",
        "banana,triplet_mle_gbm,best,1,81,1,0.4,",
        "banana,triplet_mle,best,2,92,1,0.3,",  # nothing to compare it with
        "banana,triplet_mle,protocol,0,70,1,,",
        "banana,triplet_mle_gbm,protocol,0,71,1,0.3,",
    ]
    (tmp_path / "binary.csv").write_text(HEAD + "\n".join(rows) + "\n")
    found = read(tmp_path).tables["binary"]
    assert found.values["banana", "triplet_mle_either", "best"] == {0: 90.0, 1: 81.0}
    assert ("banana", "triplet_mle_either", "protocol") not in found.values
    assert found.theirs("banana", "triplet_mle_either").mean == 57.53


def test_values_that_are_no_numbers(tmp_path):
    rows = [f"airfoil,mean_mle_lr,best,{i},{v},1,," for i, v in enumerate(("nan", "inf", "2"))]
    (tmp_path / "uci.csv").write_text(HEAD + "\n".join(rows) + "\n")
    assert "not finite" in markdown(tmp_path)


# ---- what it refuses


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nowhere,mean_mle_lr,best,0,1,1,,", "line 3: no data set is called 'nowhere'"),
        ("airfoil,mean_mle_lr,best,0,x,1,,", "line 3: value should be a number, got 'x'"),
        ("airfoil,mean_mle_lr,best,0.5,1,1,,", "line 3: trial should be a whole number"),
        ("airfoil,mean_mle_lr,better,0,1,1,,", "line 3: the setting should be protocol or best"),
        ("airfoil,mean_mle_lr", "line 3: expected 8 fields, got 2"),
        ("abalone,mean_baseline_lr,protocol,0,1,1,,", "line 3: a second result of abalone"),
    ],
)
def test_a_wrong_line(tmp_path, line, message):
    write_table(tmp_path, "uci", trials=2)
    change(tmp_path / "uci.csv", 3, line)
    with pytest.raises(ResultsError, match=re.escape(message)):
        read(tmp_path)


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ("a = [", "not TOML"),
        ('nowhere = "x"', "no data set is called 'nowhere'"),
        ('"airfoil/guess" = "x"', "no table has a method guess"),
        ("airfoil = 3", "expected a text, got 3"),
    ],
)
def test_wrong_notes(tmp_path, notes, message):
    write_table(tmp_path, "uci", trials=2)
    (tmp_path / "notes.toml").write_text(notes + "\n")
    with pytest.raises(ResultsError, match=re.escape(message)):
        read(tmp_path)


def test_the_command(tmp_path):
    results, out = tmp_path / "results", tmp_path / "report.html"

    def call(*more):
        return CliRunner().invoke(app, ["report", str(results), "--out", str(out), *more])

    out.write_text("as it was")
    assert call().exit_code == 2  # no folder
    results.mkdir()
    empty = call()
    assert empty.exit_code == 2
    assert "holds no results" in empty.output
    write_table(results, "uci", trials=2)
    change(results / "uci.csv", 1, "dataset,value")
    wrong = call()
    assert wrong.exit_code == 2
    assert "uci.csv, line 1: the columns should be" in wrong.output
    assert len(wrong.output.strip().splitlines()) == 1
    (results / "uci.json").write_text("{")
    change(results / "uci.csv", 1, HEAD.strip())
    assert "uci.json: not JSON" in call().output
    assert out.read_text() == "as it was"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "results"]
    (results / "uci.json").unlink()
    assert call().exit_code == 0
    assert out.read_text().startswith("<!doctype html>")
    out = tmp_path / "results.md"
    assert call().exit_code == 0
    assert out.read_text() == markdown(results)
    out = tmp_path / "absent" / "report.html"
    assert call().exit_code == 2


def test_partial_sets_are_known():
    assert [n for n in names("binary") if info(n).partial] == ["codrna", "ijcnn", "w8a"]


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="no results in this folder")
def test_the_page_of_results_is_up_to_date():
    page = ROOT / "docs" / "results.md"
    assert page.read_text(encoding="utf-8") == markdown(ROOT / "results"), (
        "write it again: python -m reproduction report results --out docs/results.md"
    )


# ---- in a browser

SCRIPT = """<script>addEventListener("load", () => {
  const seen = {
    width: innerWidth, scroll: document.documentElement.scrollWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    figures: [...document.querySelectorAll("svg")].every(s => s.clientHeight > 99),
    tables: document.querySelectorAll("table").length,
    asked: performance.getEntriesByType("resource").length };
  parent.document.body.innerHTML = "<pre id=seen>" + JSON.stringify(seen) + "</pre>";
});</script>"""


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
    if found is None:
        pytest.skip("no Chromium to look at the page with")
    return found


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1200, False)])
def test_in_chromium(browser, folder, tmp_path, width, dark):
    page = html(folder)
    policy = re.search(r'<meta http-equiv="Content-Security-Policy".*?>', page)[0]
    assert "default-src 'none'" in policy
    # the script that looks must be let in; a window has a least width, a frame has not
    inner = escape(page.replace(policy, "").replace("</head>", f"{SCRIPT}</head>"))
    frame = f'<meta charset="utf-8"><iframe width={width} height=900 srcdoc="{inner}"></iframe>'
    (tmp_path / "page.html").write_text(frame, encoding="utf-8")
    call = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/u",
            "--window-size=1300,1000", "--hide-scrollbars", "--virtual-time-budget=5000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom",
            (tmp_path / "page.html").as_uri()]  # fmt: skip
    done = subprocess.run(
        call, capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)}
    )
    seen = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)[1])
    assert seen["scroll"] <= seen["width"]  # nothing but tables in their boxes is too wide
    assert seen["width"] == width
    assert seen["figures"]
    assert seen["tables"] > 20
    assert seen["asked"] == 0
    assert seen["paper"] == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
