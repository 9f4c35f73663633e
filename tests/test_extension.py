"""The aggregates of the page on extending, one file each: everything works with them."""

from __future__ import annotations

import csv
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from small_learners import small_learners
from typer.testing import CliRunner

import setwise as sw
from setwise.cli import app
from setwise.inference.expected import expected_aggregate
from setwise.likelihood import ClassLabel, Number, Targets

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "aggregates"
N = 60


def load(name):
    spec = importlib.util.spec_from_file_location(f"extension_{name}", FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Range, MajorityClass = load("range").Range, load("majority_class").MajorityClass


def task(cls, size=(2, 4)):
    """Rows, their targets, and observations of sets of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    z = X @ [1.0, -1.0] + 0.3 * rng.normal(size=N)
    if cls is MajorityClass:
        z = np.digitize(z, [-0.7, 0.7])
    return X, z, cls().observe(z, sw.Sets.random(N, 50, size, replace=False, seed=1))


def estimator(cls, learner, **kwargs):
    common = {"learner": learner, "validation": None, "random_state": 0, "verbose": 0, **kwargs}
    if cls is MajorityClass:
        return sw.AggregateClassifier(3, **common)
    return sw.AggregateRegressor(sw.Normal(scale="shared"), **common)


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
both = pytest.mark.parametrize("cls", [Range, MajorityClass])


@pytest.mark.parametrize("name", ["range", "majority_class"])
def test_files_are_short_and_on_the_page(name):
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    page = (ROOT / "docs" / "extending" / "aggregate.md").read_text(encoding="utf-8")
    assert f"```python\n{text}```\n" in page


@both
def test_check_aggregate(cls):
    sw.checks.check_aggregate(cls())


def test_range_of_two_is_the_size_of_their_difference():
    rows = torch.distributions.Gumbel(torch.tensor([0.3, -0.5]).double(), 1.0)
    y = np.array([0.1, 1.0, 3.0])
    pair = sw.Sets([[0, 1]] * 3)
    sides = [sw.log_likelihood(sw.Difference(), rows, pair, s * y).exp() for s in (1, -1)]
    found = sw.log_likelihood(Range(), rows, pair, y).exp()
    torch.testing.assert_close(found, sum(sides), rtol=1e-9, atol=0)
    assert sw.log_likelihood(Range(), rows, pair, [0.0, -1.0, -2.0]).eq(-torch.inf).all()
    with pytest.raises(sw.SetError, match=r"set 1 has 1 members: .* takes sets of at least 2"):
        sw.Observations(Range(), [[0, 1], [1]], [1.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "name"),
    [(c, name) for c in (Range, MajorityClass) for name in small_learners(c is MajorityClass)],
)
def test_every_learner(cls, name):
    X, _, observed = task(cls)
    est = estimator(cls, small_learners(cls is MajorityClass)[name]).fit(X, observed)
    assert np.isfinite(est.score(X, observed))
    assert len(est.predict(X)) == N


@pytest.mark.slow
@both
def test_everything_around_a_fit(cls, tmp_path):
    X, _, observed = task(cls)
    est = estimator(cls, sw.Linear()).fit(X, observed)
    expected = est.predict_aggregate(X, observed.sets, cls())
    assert expected.shape == (50,)
    told = est.posterior(X, observed)
    assert np.isfinite(told.probs if cls is MajorityClass else told.mean).all()
    sw.plots.calibration(est, X, observed)
    page = est.report(tmp_path / "report.html", X, observed)
    assert (tmp_path / "report.html").exists() or page
    assert est.identifiability_


def test_expected_values_are_those_of_simulation():
    d = torch.distributions.Normal(torch.tensor([0.0, 1.0, 3.0]).double(), 1.0)
    z = d.sample((20_000,))
    mean = float((z.amax(1) - z.amin(1)).mean())
    assert expected_aggregate(Range(), d, sw.Sets([[0, 1, 2]]))[0] == pytest.approx(mean, abs=0.15)
    p = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]]).double()
    sets = sw.Sets([[0, 1], [2]])
    found = expected_aggregate(MajorityClass(), torch.distributions.Categorical(p), sets)
    assert found.tolist() == [0, 1]  # of two members of different classes the first class wins


def test_declared_outcomes():
    assert Range().outcome(Targets(), None) == Number()
    assert MajorityClass().outcome(Targets(3, True), 2) == ClassLabel(3)


def test_noise():
    X, z, _ = task(MajorityClass)
    noisy = sw.Noisy(MajorityClass(), flip=0.1)
    sw.checks.check_aggregate(noisy, sizes=[3])
    seen = noisy.observe(z, sw.Sets.random(N, 40, 3, seed=0), seed=0)
    assert np.isfinite(estimator(MajorityClass, "linear").fit(X, seen).score(X, seen))


def refused(make):
    with pytest.raises(TypeError) as caught:
        make()
    return str(caught.value)


def test_refused_noise_names_only_what_helps():
    z, sets = np.arange(30.0), sw.Sets.random(30, 30, 2)
    said = refused(lambda: sw.Noisy(Range(), flip=0.5).observe(z, sets, seed=0))
    assert "cannot be flipped" in said
    assert "linear in the targets" in said
    assert "use Noisy" not in said
    said = refused(lambda: sw.Noisy(Range(), normal=0.5))
    assert "linear in the targets" in said
    assert "flip" not in said
    assert "use flip" in refused(lambda: sw.Noisy(MajorityClass(), laplace=0.5))
    said = refused(lambda: sw.Noisy(sw.Mean(), flip=0.5).observe(z, sets, seed=0))
    assert "use Noisy(…, normal=s)" in said


@dataclass(frozen=True)
class Contrast(sw.Aggregate):
    """The first target plus twice the second."""

    size: ClassVar[int | None] = 2
    symmetric: ClassVar[bool] = False

    def apply(self, z, sets, rng):
        return sets.sum(z * torch.from_numpy(self.linear(sets)[0]).to(z))

    def linear(self, sets):
        return np.tile([1.0, 2.0], len(sets)), 0.0


def test_noise_on_amounts_that_are_linear_needs_no_rule():
    d = torch.distributions.Normal(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25]))
    found = sw.log_likelihood(sw.Noisy(Contrast(), normal=1.0), d, [[0, 1]], [4.0])
    expected = torch.distributions.Normal(5.0, 1.5**0.5).log_prob(torch.tensor(4.0))
    assert found[0] == pytest.approx(float(expected))


def write(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "file", "observe"),
    [(Range, "range.py", "range"), (MajorityClass, "majority_class.py", "majority-class")],
)
def test_command_line(cls, file, observe, tmp_path):
    X, _, observed = task(cls, size=2)
    write(tmp_path / "rows.csv", ["a", "b"], X.tolist())
    names = np.array(["low", "middle", "high"])
    y = names[observed.y.astype(int)] if cls is MajorityClass else observed.y
    lines = [[*rows, value] for rows, value in zip(observed.sets, y.tolist(), strict=True)]
    write(tmp_path / "sets.csv", ["i", "j", "y"], lines)
    args = ["--plugin", str(FOLDER / file), "fit", str(tmp_path / "rows.csv")]
    args += ["--sets", str(tmp_path / "sets.csv"), "--observe", observe, "--y", "y"]
    args += ["--rows-columns", "i,j", "--out", str(tmp_path / "model"), "--learner", "linear"]
    args += ["--classes", ",".join(names)] if cls is MajorityClass else []
    run = CliRunner().invoke(app, args)
    assert run.exit_code == 0, run.output
    assert f"{cls.__name__}()" in run.output
    lines[3][-1] = "lowest" if cls is MajorityClass else -1.0
    write(tmp_path / "sets.csv", ["i", "j", "y"], lines)
    run = CliRunner().invoke(app, args)
    assert run.exit_code == 2
    assert "line 5" in run.output
    run = CliRunner().invoke(app, ["--plugin", "nothing.py", "kinds"])
    assert run.exit_code == 2
    assert "--plugin nothing.py: FileNotFoundError" in run.output
    run = CliRunner().invoke(app, ["--plugin", str(FOLDER / file), "kinds", observe])
    assert run.exit_code == 0
    assert "y: a" in run.output
