"""`setwise demo`: the table, the page, and what they must not leave out."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from setwise.cli import app

pytest.importorskip("matplotlib")

LEVEL = 0.01  # scores of 92 molecules that are as close as this are called the same


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The output of a quick run, and its page."""
    out = tmp_path_factory.mktemp("demo") / "page.html"
    done = subprocess.run(
        [sys.executable, "-m", "setwise.cli", "demo", "--quick", "--out", str(out)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    return done.stdout, out.read_text(encoding="utf-8")


def test_the_table_has_every_task_in_three_columns(run):
    shown, _ = run
    rows = [line for line in shown.splitlines() if re.search(r"(\d\.\d\d\s+){2}(\d\.\d\d|–)", line)]
    assert len(rows) == 5
    for word in ("naive", "means", "comparisons", "proportions", "triplets", "Molecules"):
        assert word in shown
    assert max(map(len, shown.splitlines()[:14])) <= 80


def test_the_page_is_whole_and_says_what_was_done(run):
    _, html = run
    assert html.count("<section>") == 6
    assert html.count("<svg") >= 7
    for words in ("Naive:", "Judged by:", "CC BY 4.0", "30 settings", "quick run for tests"):
        assert words in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)


@pytest.mark.slow
def test_without_matplotlib_the_table_is_all(tmp_path):
    hidden = tmp_path / "hidden" / "matplotlib"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('hidden', name='matplotlib')")
    there = os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "setwise.cli", "demo", "--quick", "--out", str(tmp_path / "x.html")],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": there},
    )  # fmt: skip
    assert "No page: pictures need matplotlib: pip install 'setwise[plots]'" in done.stdout
    assert "Molecules" in done.stdout
    assert not (tmp_path / "x.html").exists()


def test_no_folder_is_said_before_anything_is_trained(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "nowhere" / "x.html")])
    assert done.exit_code == 1
    assert "there is no folder" in done.output


@pytest.mark.slow
def test_labels_of_sets_are_nowhere_worth_less_than_the_naive_recipe():
    """The whole demo. Of molecules the two are level, and the page says so."""
    from setwise.cli.demo.tasks import TASKS

    found = {f"{task.data}, {task.seen}": task.run(False) for task in TASKS}
    *simulated, molecules = found.values()
    assert all(result.gains for result in simulated), found
    assert molecules.scores[1] > molecules.scores[0] - LEVEL
    assert molecules.gains or "Level with the naive average" in molecules.more
