"""A small part of the attack, which `make attack` runs whole; and what section by section holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import pytest

from tests.attack import calls, damage, traces
from tests.attack.outcome import Case, Tally
from tests.attack.sandbox import run_each

# of each part so many cases: about a minute of a processor
FEW = {"fuzz": 90, "kills": 4, "races": 2, "disks": 1, "commands": 30}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and limits")


@pytest.mark.parametrize("part", FEW)
def test_a_part_of_the_attack(part):
    """In a process of its own, whose memory and threads are not those of other tests."""
    words = [sys.executable, "-m", "tests.attack", part, "--cases", str(FEW[part]), "--seed", "1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "seed 1" in done.stdout
    assert "0 bad" in done.stdout


def _do(what):
    if what == "memory":
        return str(len(bytearray(1 << 31)))
    if what == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while what == "hang":
        pass
    return f"done: {what}"


def test_the_sandbox_notices_what_it_is_for():
    found = dict(run_each(_do, ["a", "crash", "b", "memory", "hang", "c"], seconds=1))
    assert found == {
        "a": "done: a", "crash": "abort: SIGKILL", "b": "done: b",
        "memory": "allocation: over 1 GB", "hang": "hang: over 1 s", "c": "done: c",
    }  # fmt: skip


def test_the_table_counts():
    tally = Tally()
    for good in (True, True, False):
        tally.add(Case("part", "fine" if good else "worse", good))
    assert str(tally).splitlines()[0].split() == ["part", "3", "cases", "1", "bad"]
    assert str(tally).endswith("\n1 bad")


def test_every_damage_is_sealed_again(tmp_path):
    """Otherwise it would be the digests that are tested."""
    import numpy as np

    import setwise as sw

    est = sw.AggregateRegressor(learner=sw.Network(hidden=(2,), epochs=1), validation=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est.set_params(verbose=0).fit(calls.X, calls.MEANS).save(tmp_path / "model")
    (path,) = (tmp_path / "model").rglob("*.safetensors")
    header, data = damage._read(path)
    name = next(name for name in header if name.endswith("weight"))
    begin, end = header[name]["data_offsets"]
    damage._write(path, header, data[:begin] + bytes(end - begin) + data[end:])
    with pytest.raises(ValueError, match="altered"):
        sw.load(tmp_path / "model")
    damage.reseal(tmp_path / "model")
    assert np.isfinite(sw.load(tmp_path / "model").predict(calls.X)).all()


# ---- what a fit leaves behind


@pytest.mark.parametrize("name", calls.learners(False))
def test_nothing_of_the_process_is_changed(name):
    fit = traces.fits(False)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit()  # imports what it needs
        assert traces.changed(fit) == ([], False)

        def fails():
            with traces.broken(0):
                fit()

        assert traces.changed(fails) == ([], True)


@pytest.mark.parametrize("name", ["lightgbm", "network"])
def test_memory_does_not_grow(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert traces.grown(traces.fits(False)[name], 10, first=5) < traces.GROWTH


# ---- bad input in Python


@pytest.mark.parametrize("name", calls.ALIKE)
def test_bad_input_is_refused_in_one_sentence(name):
    """With one learner; the attack compares all of them."""
    classes, fit, words = calls.ALIKE[name]
    said = calls._said(lambda: fit(calls.learners(classes)["linear"], None))
    assert said.startswith("refused")
    assert words in said
    assert "\n" not in said
    assert len(said) < calls.LONGEST


@pytest.mark.parametrize("name", calls.OWN)
def test_other_bad_input_is_refused_in_one_sentence(name):
    call, words = calls.OWN[name]
    said = calls._said(call)
    assert said.startswith("refused")
    assert words in said
    assert "\n" not in said
    assert len(said) < calls.LONGEST
