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
