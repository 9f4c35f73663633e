"""The runner of experiments, and the regression tables at tiny size."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from reproduction import regression
from reproduction.command import app
from reproduction.files import Busy
from reproduction.runner import Cell, Result, Results, describe, run

CELLS = [Cell("a", method, "best", trial) for method in ("x", "y") for trial in range(3)]
HEAD = "dataset,method,setting,trial,value,seconds,held_out,note\n"
PAST = "dataset,method,setting,trial,step,value\n"
ROW = "a,x,best,0,0.5,1.00,,\n"


def work(cell):
    return float(cell.trial), cell.method


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_cell_once(tmp_path, jobs):
    results = Results(tmp_path / "table.csv")
    run(work, CELLS, results, jobs=jobs)
    assert results.done == set(CELLS)
    again = Results(tmp_path / "table.csv")
    kept = [replace(row, seconds=round(row.seconds, 2)) for row in results.rows]
    assert sorted(again.rows, key=str) == sorted(kept, key=str)

    def never(cell):
        raise AssertionError(cell)

    run(never, CELLS, again)


def test_a_killed_run_goes_on(tmp_path):
    path = tmp_path / "table.csv"

    def dies(cell):
        if cell == CELLS[4]:
            raise KeyboardInterrupt
        return work(cell)

    with pytest.raises(KeyboardInterrupt):
        run(dies, CELLS, Results(path))
    text = path.read_text()
    path.write_text(text[:-3])  # the last line was cut short
    results = Results(path)
    assert len(results.rows) == 3
    run(work, CELLS, results)
    assert len(results.rows) == len(Results(path).rows) == len(CELLS)
    assert Results(path).done == set(CELLS)


def together(cells):
    return [Result(c.dataset, c.method, c.setting, c.trial, c.trial, 0.5) for c in cells]


@pytest.mark.parametrize("jobs", [1, 2])
def test_trials_go_together(tmp_path, jobs):
    results = Results(tmp_path / "table.csv")
    run(together, [*CELLS, CELLS[0]], results, together=True, jobs=jobs, cost=lambda c: c.trial)
    assert len(results.rows) == len(CELLS)
    assert Results(results.path).done == set(CELLS)


def test_a_killed_run_does_the_missing_trials_of_a_group(tmp_path):
    path = tmp_path / "table.csv"
    seen = []

    def dies(cells):
        seen.append(list(cells))
        if cells[0].method == "y":
            raise KeyboardInterrupt
        return together(cells)

    with pytest.raises(KeyboardInterrupt):
        run(dies, CELLS, Results(path), together=True)
    assert seen == [CELLS[:3], CELLS[3:]]
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 4  # the group that was done is kept
    path.write_text("".join([lines[0], lines[2]]))  # as if killed between two lines
    seen.clear()

    def counts(cells):
        seen.append([(c.method, c.trial) for c in cells])
        return together(cells)

    run(counts, CELLS, Results(path), together=True)
    assert seen == [[("x", 0), ("x", 2)], [("y", 0), ("y", 1), ("y", 2)]]
    assert len(Results(path).rows) == len(CELLS)


def test_trials_that_stay_apart_are_kept_one_by_one(tmp_path):
    path, seen = tmp_path / "table.csv", []

    def counts(cells):
        seen.append(len(cells))
        assert len(Results(path).rows) == sum(seen[:-1])  # what was done before is on the disk
        return together(cells)

    run(counts, CELLS, Results(path), together=True, apart=lambda cell: cell.method == "y")
    assert seen == [3, 1, 1, 1]


def test_a_history_is_kept_beside_the_results(tmp_path):
    path = tmp_path / "table.csv"
    history = path.with_name("table-history.csv")

    def works(cells):
        return [replace(r, history=((5, 0.5), (10, 0.75))) for r in together(cells)]

    run(together, CELLS[:1], Results(path), together=True)
    assert not history.exists()  # where there is none
    run(works, CELLS[:3], Results(path), together=True)
    head = "dataset,method,setting,trial,step,value"
    assert history.read_text().splitlines()[:3] == [head, "a,x,best,1,5,0.5", "a,x,best,1,10,0.75"]
    history.write_text(history.read_text()[:-2])  # the last line was cut short
    run(works, CELLS[3:], Results(path), together=True)
    assert len(history.read_text().splitlines()) == 1 + 2 * (len(CELLS) - 1) - 1


def test_the_time_left_is_shown(tmp_path):
    console = Console(force_terminal=True, file=io.StringIO(), width=120)
    run(together, CELLS, Results(tmp_path / "t.csv"), together=True, console=console, title="toy")
    shown = console.file.getvalue()
    assert "toy" in shown
    assert "6/6" in shown
    assert "0:00:00" in shown


def test_a_strange_file_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    for text, line in (("dataset,method\na,b\n", 1), (HEAD + "a,b\n", 2), (ROW, 1)):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"line {line}: not a result"):
            Results(path)
    path.write_text(HEAD + ROW.replace("0.5", "half"))
    with pytest.raises(ValueError, match=r"line 2: not a result .*half"):
        Results(path)


def test_a_file_killed_at_any_letter_goes_on(tmp_path):
    """Whatever is left of the last line, all lines before it are kept, and nothing is twice."""
    path = tmp_path / "table.csv"
    history = path.with_name("table-history.csv")
    results = Results(path)
    whole = HEAD + ROW + ROW.replace("x", "y")
    for cut in range(len(whole)):
        path.write_text(whole[:cut])
        history.write_text(PAST + "a,x,best,0,5,0.5\na,z,best,0,5,0.5\na,y,be")
        results = Results(path)
        with results.writing():
            kept = max(whole[:cut].count("\n") - 1, 0)
            assert len(results.rows) == kept
            results.add(Result("b", "x", "best", 1, 2.0, 0.5, history=((5, 0.25),)))
        lines = path.read_text().splitlines(keepends=True)
        assert lines[0] == HEAD
        assert len(lines) == 2 + kept
        past = history.read_text().splitlines(keepends=True)
        assert past == [PAST, *["a,x,best,0,5,0.5\n"] * bool(kept), "b,x,best,1,5,0.25\n"]


def test_one_run_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.files.WAIT", 0.1)
    first, second = Results(tmp_path / "table.csv"), Results(tmp_path / "table.csv")
    with first.writing():
        with pytest.raises(Busy, match=r"another run writes to .*table\.csv: wait for its end"):
            run(work, CELLS, second)
        assert Results(first.path).rows == []  # everybody may look
    run(work, CELLS, first)
    run(work, CELLS, second)  # sees what the other one has done meanwhile
    assert len(Results(first.path).rows) == len(CELLS)


def test_a_full_disk_loses_no_line(tmp_path, monkeypatch):
    results = Results(tmp_path / "table.csv")
    run(work, CELLS[:1], results)
    before = results.path.read_bytes()

    class Full(io.FileIO):
        def write(self, text):
            super().write(text[:5])
            raise OSError(28, "No space left on device")

    usual = type(results.path).open

    def opened(path, mode="r", *args, **kwargs):
        return Full(path, mode) if mode == "ab" else usual(path, mode, *args, **kwargs)

    monkeypatch.setattr(type(results.path), "open", opened)
    with pytest.raises(OSError, match="No space"):
        results.lines.append([[1]])
    monkeypatch.undo()
    assert results.path.read_bytes() == before


def test_a_damaged_list_of_runs_is_put_aside(tmp_path):
    (tmp_path / "table.json").write_text('[{"command": "a')
    describe(tmp_path / "table.csv", ["uci"])
    describe(tmp_path / "table.csv", ["uci", "--trials", "1"])
    assert len(json.loads((tmp_path / "table.json").read_text())) == 2
    assert (tmp_path / "table.json.damaged").read_text() == '[{"command": "a'


@pytest.mark.parametrize("method", [*regression.METHODS, "lr_k8", "gbm_k2"])
def test_regression_methods(method):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    z = 3 * X[:, 0] + rng.normal(size=150)
    part = regression.split(X, z, trial=0)
    assert len(part.z) == 90
    assert len(part.z_valid) == len(part.z_test) == 30
    value, _ = regression.one(part, method, "protocol", seed=0)
    assert 0 < value < 20
    assert (value, _) == regression.one(part, method, "protocol", seed=0)


def test_the_naive_baseline_is_worse():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    part = regression.split(X, 3 * X[:, 0] + rng.normal(size=400), trial=0)
    errors = [regression.one(part, m, "best", 0)[0] for m in ("mean_baseline_lr", "mean_mle_lr")]
    assert errors[1] < 0.5 * errors[0]


def test_the_command(tmp_path):
    chosen = ["--trials", "1", "--datasets", "diabetes", "--methods", "mean_mle_lr,supervised_lr"]
    call = ["regression", *chosen, "--out", str(tmp_path)]
    first = CliRunner().invoke(app, call)
    assert first.exit_code == 0, first.output
    assert "supervised_lr" in first.output
    assert "MSE" in first.output
    lines = (tmp_path / "regression.csv").read_text().splitlines()
    assert len(lines) == 5
    CliRunner().invoke(app, call)
    assert (tmp_path / "regression.csv").read_text().splitlines() == lines
    wrong = CliRunner().invoke(app, ["regression", "--datasets", "diabetis"])
    assert wrong.exit_code == 2
    assert "diabetes" in wrong.output
