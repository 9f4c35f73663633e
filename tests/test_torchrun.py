"""Two processes that torchrun has started train the network that one process trains."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import together
from together import CASES

import setwise as sw

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SAME = [
    "means_and_held_out_sets",
    "two_kinds_with_a_scale_for_each_row",
    "joint_likelihood",
]


def torchrun(*words, seconds=120):
    """The script, in two processes."""
    script = Path(together.__file__)
    paths = [*sys.path, str(script.parent)]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(script), *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes have found of all cases."""
    out = tmp_path_factory.mktemp("together")
    X, _, path = together.files(out)
    columns = {"area": np.arange(together.N) // 4, **dict(zip("abc", X.T, strict=True))}
    pd.DataFrame(columns).to_csv(path, index=False)
    with pytest.raises(together.Stops):
        together.resumable(False, out / "by one", end=25)
    run = torchrun(out)
    assert run.returncode == 0, run.stderr[-5000:]
    return out


def found(folder, name):
    """What the two have, which must be the same to the last bit."""
    one, two = (dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(2))
    for key, value in one.items():
        np.testing.assert_array_equal(value, two[key], err_msg=key)
    return one


def assert_close(one, two):
    for key in one.keys() - {"weights"}:
        np.testing.assert_allclose(one[key], two[key], rtol=2e-4, atol=2e-4, err_msg=key)


@pytest.mark.parametrize("name", SAME)
def test_the_curve_is_that_of_one_process(folder, name):
    alone = CASES[name](False, folder)
    assert len(alone["history"]) > 2
    assert_close(found(folder, name), alone)


def test_classes_from_clusters(folder):
    """A thousand steps to find clusters carry rounding far, but not to other classes."""
    name = "classes_from_clusters"
    alone, there = CASES[name](False, folder), found(folder, name)
    assert (alone["raw"].argmax(1) == there["raw"].argmax(1)).all()
    np.testing.assert_allclose(there["history"], alone["history"], atol=0.03)


def test_rows_in_files_are_read_by_turns(folder):
    alone, there = CASES["rows_in_files"](False, folder), found(folder, "rows_in_files")
    assert there["history"][-1] == pytest.approx(alone["history"][-1], abs=0.05)
    assert np.corrcoef(there["raw"][:, 0], alone["raw"][:, 0])[0, 1] > 0.98


def test_processes_keep_one_model_whatever_a_module_draws(folder):
    history = found(folder, "what_a_module_draws_and_averages")["history"]
    assert history[-1] > history[0] + 0.1


def test_checkpoints_of_another_number_of_processes(folder):
    whole = together.resumable(False, None)
    assert len(whole["history"]) == 6
    assert_close(found(folder, "goes_on_from_one_process"), whole)
    assert_close(together.resumable(False, folder / "by several"), whole)


def test_processes_must_have_the_same(folder):
    assert "have different X, observations" in str(
        found(folder, "other_rows_in_each_process")["said"]
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
def test_a_process_that_is_killed_ends_all_and_is_named():
    run = torchrun(seconds=150)
    assert run.returncode != 0
    said = " ".join(run.stderr.split())
    assert "AssertionError" not in said
    root = said[said.index("Root Cause") :]
    assert "rank : 1" in root
    assert "SIGKILL" in root


def test_a_process_that_torchrun_has_not_started(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    X, z = together.data()
    seen = sw.Mean().observe(z, np.arange(together.N).reshape(-1, 4))
    with pytest.raises(RuntimeError, match=r"torchrun --nproc-per-node 2 train\.py; leave it out"):
        together.regressor(together.network(True)).fit(X, seen)
