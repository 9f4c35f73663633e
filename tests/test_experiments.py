"""The runner of experiments, and the regression tables at tiny size."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from reproduction import regression
from reproduction.command import app
from reproduction.runner import Cell, Result, Results, run

CELLS = [Cell("a", method, "best", trial) for method in ("x", "y") for trial in range(3)]


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
    path.write_text("dataset,method\na,b\n")
    with pytest.raises(ValueError, match="line 2: not a result"):
        Results(path)


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
