"""Ctrl-C in a fit: the best model so far is kept, a second one ends it, checkpoints resume."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import setwise as sw
from setwise.learners.interruption import interruptible, stopped
from setwise.learners.progress import Progress
from setwise.model_selection import cross_validate

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
Z = X @ [1.0, -2.0, 0.5] + 0.1 * RNG.normal(size=600)
MEANS = sw.Mean().observe(Z, sw.Sets.random(600, 300, 3, seed=1))
RANKS = sw.Rank().observe(Z, sw.Sets.random(600, 300, 2, seed=1))


@pytest.fixture(autouse=True)
def heeds_ctrl_c():
    """A shell starts what runs in the background deaf to Ctrl-C, and so are the tests then."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def press(monkeypatch):
    """Sends SIGINT after so many steps."""

    def after(steps):
        real, count = Progress.step, [0]

        def step(self, **figures):
            real(self, **figures)
            count[0] += self.keeps
            if count[0] == steps:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Progress, "step", step)
        return count

    return after


def regressor(learner, **options):
    return sw.AggregateRegressor("normal", learner, **{"verbose": 0, "random_state": 0, **options})


SLOW = {
    "lightgbm": lambda: sw.LightGBM(n_estimators=50, min_child_samples=5),
    "xgboost": lambda: sw.XGBoost(n_estimators=50),
    "catboost": lambda: sw.CatBoost(n_estimators=50),
    "network": lambda: sw.Network(epochs=50),
    "em": lambda: sw.EM(LinearRegression(), patience=50),
    "ensemble": lambda: sw.Ensemble(sw.LightGBM(n_estimators=8), n=30),
    "blend": lambda: sw.Blend([sw.LightGBM(n_estimators=8), sw.LightGBM(n_estimators=50)]),
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("validation", ["auto", None])
def test_the_best_model_so_far_is_kept(name, validation, press):
    steps = press(10)
    model = regressor(SLOW[name](), validation=validation)
    with pytest.warns(UserWarning, match="the fit was interrupted: the model is the best one so f"):
        model.fit(X, RANKS if name == "network" else MEANS)
    assert model.interrupted_
    assert steps[0] == 10  # it ended after that step
    assert np.corrcoef(model.predict(X), Z)[0, 1] > 0.5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_an_interrupted_choice_keeps_the_best_candidate(press):
    board = regressor("auto").fit(X, MEANS).leaderboard_
    press(60)  # in the middle of a candidate
    model = regressor("auto")
    with pytest.warns(UserWarning, match="interrupted"):
        model.fit(X, MEANS)
    assert 0 < len(model.leaderboard_) < len(board)
    assert model.held_out_score_ > model.constant_score_
    assert np.corrcoef(model.predict(X), Z)[0, 1] > 0.8


def test_the_next_fit_is_whole_again(press, monkeypatch):
    press(3)
    model = regressor(SLOW["lightgbm"](), validation=None)
    with pytest.warns(UserWarning, match="after 3 steps"):
        model.fit(X, MEANS)
    monkeypatch.undo()
    model.fit(X, MEANS)
    assert not model.interrupted_
    assert model.steps_ == 50


def test_a_second_one_ends_it_at_once():
    with interruptible():
        Progress().step(train=0.0)
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_before_the_first_step_there_is_nothing_to_keep():
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    assert not stopped()


def test_other_threads_and_other_handlers_are_left_alone():
    found = []

    def fit():
        found.append(regressor("linear").fit(X, MEANS).interrupted_)

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert found == [False]
    mine = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, mine)


def test_a_search_ends_as_a_whole(press):
    press(5)
    with (
        pytest.raises(KeyboardInterrupt),
        pytest.warns(UserWarning, match="interrupted"),
    ):
        cross_validate(regressor(SLOW["lightgbm"](), validation=None), X, MEANS, cv=3)


def test_a_checkpoint_goes_on_where_it_was_interrupted(press, monkeypatch, tmp_path):
    def model(folder):
        return regressor(sw.Network(epochs=12, checkpoint=folder), validation=None)

    whole = model(tmp_path / "whole").fit(X, RANKS)
    press(5)
    with pytest.warns(UserWarning, match="after 5 steps"):
        model(tmp_path / "part").fit(X, RANKS)
    monkeypatch.undo()
    resumed = model(tmp_path / "part").fit(X, RANKS)
    assert [h["step"] for h in resumed.history_] == list(range(1, 13))
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))


# ---- lines for output that is no terminal


def test_a_long_fit_prints_a_line_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    progress = Progress(1)
    with progress.running("LightGBM", 100):
        for _ in range(100):
            now[0] += 1.0
            progress.step(train=-1.25)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "LightGBM: 11 of 100 steps in 11 s, at most 89 s more, train -1.25"
    assert 4 <= len(lines) <= 8
    silent = Progress(0)
    with silent.running("LightGBM", 100):
        now[0] += 100.0
        silent.step(train=-1.25)
    short = Progress(1)
    with short.running("Choosing", None):
        now[0] += 5.0
        short.advance()
    assert not capsys.readouterr().err


# ---- the command line

SCRIPT = """
import sys, time, numpy, setwise.learners.progress as p
from setwise.cli import app
real = p.Progress.step
def step(self, **figures):
    real(self, **figures)
    print("step", file=sys.stderr, flush=True)
    time.sleep(0.05)
p.Progress.step = step
app()
"""


def interrupt(command, after, tmp_path):
    """Runs the command, presses Ctrl-C after so many steps, and waits for its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *command], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert process.stderr is not None
    said, steps = [], 0
    for line in process.stderr:
        said.append(line)
        steps += line.startswith("step\n")
        if steps == after:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    return process.returncode, out, re.sub("step\n", "", "".join(said) + err)


@pytest.fixture
def files(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = pd.DataFrame(X[:300].round(3), columns=list("abc")).assign(town=np.arange(300) // 5)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    means = rows.assign(z=Z[:300]).groupby("town").z.mean().reset_index()
    means.to_csv(tmp_path / "towns.csv", index=False)
    return [
        "fit",
        "rows.csv",
        "--sets",
        "towns.csv",
        "--observe",
        "mean",
        "--y",
        "z",
        "--group",
        "town",
    ]


def test_the_command_line_says_what_was_kept(files, tmp_path):
    code, out, err = interrupt([*files, "--learner", "network"], 12, tmp_path)
    assert code == 130, err
    shown = " ".join((out + err).split())
    assert "stopping after this step" in shown
    assert re.search(
        r"Note: the fit was interrupted: .* Network\(epochs=\d+\) after \d+ steps", shown
    )
    assert "Saved model" in shown
    assert sw.load(tmp_path / "model").predict(X[:5]).shape == (5,)


def test_an_interrupted_beginning_leaves_nothing(files, tmp_path):
    command = [sys.executable, "-c", "import signal, setwise.cli.fitting as f\n"
               "from setwise.cli import app\n"
               "def no(*args): signal.raise_signal(signal.SIGINT)\n"
               "f.Fitting.train = no\napp()", *files]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "Interrupted: nothing was written"
    assert not (tmp_path / "model").exists()
