"""What every test shares: one thread per worker, fixed seeds, the device to test on."""

import os

import numpy as np
import pytest
import torch
from hypothesis import settings

# Several pytest workers run side by side; torch threads would fight over the cores.
torch.set_num_threads(1)

# The first call of a rule may be slow, and a failure must be repeatable.
settings.register_profile("setwise", deadline=None, derandomize=True)
settings.load_profile("setwise")


# Long tests whose subject quicker ones touch, too: `make test-slow` runs them.
LONG = (
    "test_saddles.py::test_every_learner_reaches_the_likelihood_of_the_truth[em-custom",
    "test_saddles.py::test_every_learner_reaches_the_likelihood_of_the_truth[xgboost-custom",
    "test_pairs.py::test_total_probability_is_one[Mean0-studentt]",
    "test_pairs.py::test_total_probability_is_one[Sum0-studentt]",
    "test_benchmarks.py::test_a_section_measures_every_figure[sums]",
    "test_benchmarks.py::test_a_section_measures_every_figure[counts]",
    "test_benchmarks.py::test_a_section_measures_every_figure[rankings]",
    "test_benchmarks.py::test_a_section_measures_every_figure[permanents]",
    "test_benchmarks.py::test_a_section_measures_every_figure[recordings]",
    "test_image_tables.py::test_the_command",
    "test_ensemble.py::test_copies_of_permuted_classes_are_matched",
    "test_ensemble.py::test_saved_and_loaded_it_predicts_the_same[Ensemble2]",
    "test_standard_errors.py::test_coverage[ensemble",
    "test_learned_noise.py::test_flipped_similarities_are_recovered",
)


@pytest.hookimpl(tryfirst=True)  # before those with this mark are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the long tests."""
    for item in items:
        if item.nodeid.rpartition("tests/")[2].startswith(LONG):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Each test starts from the same global torch seed, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """A numpy generator with a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test, named by SETWISE_TEST_DEVICE (default: cpu)."""
    return torch.device(os.environ.get("SETWISE_TEST_DEVICE", "cpu"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long each block of code on the pages took, in seconds of a processor."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = [dict(r.user_properties).get("blocks") for r in reports if r.when == "call"]
    for page, seconds in sorted(filter(None, found)):
        shown = ", ".join(f"{s:.1f} s (line {line})" for line, s in seconds)
        terminalreporter.write_line(f"{page}: {shown}")
