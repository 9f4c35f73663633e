"""The benchmarks of `make bench`, at tiny sizes: that they run, and that they can fail."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import (
    columns,
    coverage,
    cuda,
    defaults,
    growth,
    likelihood,
    resume,
    speed,
    table,
)
from benchmarks.table import Figure

# The others start processes that keep the cores busy, or take their time.
QUICK = (
    "classes", "networks", "preferences", "counts", "permanents", "sums", "rankings", "precincts",
    "recordings",
)  # fmt: skip
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("trees", "elementwise")]


@pytest.mark.parametrize("section", [*QUICK, *SLOW])
def test_a_section_measures_every_figure(section):
    torch.manual_seed(0)
    figures = list(speed.SECTIONS[section](True))
    assert figures
    for figure in figures:
        assert figure.value > 0 or (math.isnan(figure.value) and figure.note)
        assert len(figure.cells) == len(table.HEADS)


@pytest.mark.parametrize(
    "path", sorted(Path(speed.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_a_benchmark_finds_what_it_measures(path):
    import_module(f"benchmarks.{path.stem}")


def test_the_table_of_the_readme_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(likelihood, "MEMBERS", 160)
    monkeypatch.setattr(likelihood, "best", lambda fn: fn() or 1.0)
    likelihood.elementwise()
    assert "Similarity" in capsys.readouterr().out


def test_a_figure_past_its_bound_fails_the_run(monkeypatch, capsys):
    good, bad = (
        Figure(name, "another", 2.0, bound) for name, bound in (("slow", 3), ("slower", 1))
    )
    monkeypatch.setattr(speed, "SECTIONS", {"good": lambda small: [good]})
    assert speed.main(["good"]) == 0
    monkeypatch.setattr(speed, "SECTIONS", {"bad": lambda small: [good, bad]})
    assert speed.main(["bad"]) == 1
    assert "past their bounds: slower" in capsys.readouterr().out
    assert speed.main(["bad", "--small"]) == 0  # sizes without meaning have no bounds
    with pytest.raises(SystemExit):
        speed.main(["unknown"])

    def broken(small):
        yield good
        raise ValueError("no such rule")

    monkeypatch.setattr(speed, "SECTIONS", {"broken": broken, "good": lambda small: [good]})
    assert speed.main(["broken", "good"]) == 1
    assert "failed: ValueError" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(ValueError, match="no such rule"):
        speed.main(["broken", "--small"])


def test_what_was_not_measured_says_why_and_does_not_fail():
    figure = table.skipped("permanents", "thewalrus", "thewalrus")
    assert figure.good
    assert "pip install thewalrus" in figure.note
    assert "| permanents | thewalrus | skipped |" in table.written([figure])


def test_figures_are_put_below_the_mark(tmp_path):
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n" + table.MARK + "old\n")
    table.publish("new\n", page)
    assert page.read_text() == "# Speed\n" + table.MARK + "\nnew\n"
    assert table.MARK in table.PAGE.read_text()


def test_exponents_are_those_of_powers(tmp_path):
    sizes = [10, 100, 1000, 10_000]
    curve = growth.Curve("squares", "numbers", sizes, [1e-9 * n**2 for n in sizes])
    assert curve.exponent == pytest.approx(2.0)
    assert "| squares | numbers | 10 to 10,000 |" in growth.written([curve])
    growth.plotted([curve], tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 1000


def test_without_a_device_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.main([]) == 0
    assert "no CUDA device" in capsys.readouterr().out


def test_the_page_on_cuda_begins_as_it_is_written():
    page = table.PAGE.with_name("speed-cuda.md")
    assert page.read_text(encoding="utf-8").startswith(cuda.PAGE)


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path, capsys):
    def measure(one):
        measured.append(one)
        if one.trial == 3:
            raise ValueError("no")
        return defaults.Found(one.trial + 0.5, 1.0)

    measured = []
    fits = [defaults.Fit("a set, quoted", "means", "auto", trial) for trial in range(3)]
    plan = resume.Plan("some", fits[:2], measure, defaults.Fit, defaults.Found)
    assert resume.run([plan], tmp_path)
    assert resume.run([plan._replace(tasks=fits)], tmp_path)
    assert measured == fits
    assert not resume.run([plan._replace(tasks=[fits[0]._replace(trial=3)])], tmp_path)
    found = resume.read(tmp_path / "some.csv", defaults.Fit, defaults.Found)
    assert [(one, what.value) for one, what in found.items()] == [
        (one, one.trial + 0.5) for one in fits
    ]
    line = coverage.Tally(20, 19, 19, 18, 20, 78.5, 80, 17.9, 0.5)
    one = resume.Plan(
        "c", [coverage.Part("means", 0)], lambda _: line, coverage.Part, coverage.Tally
    )
    assert resume.run([one], tmp_path)
    assert resume.read(tmp_path / "c.csv", coverage.Part, coverage.Tally) == {one.tasks[0]: line}
    assert "ValueError: no" in capsys.readouterr().out


def test_columns_by_estimators_are_those_of_the_table(capsys):
    columns.main(["wine", "--methods", "supervised", "--trials", "1"])
    told = capsys.readouterr().out
    assert "wine" in told
