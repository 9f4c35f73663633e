"""Every Python block of the documentation and the README runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import setwise as sw
from setwise.likelihood import aggregates

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_code_blocks_run(page, capsys):
    namespace = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def test_every_aggregate_is_in_the_tables():
    for page in (ROOT / "README.md", ROOT / "docs" / "likelihoods.md"):
        text = page.read_text(encoding="utf-8")
        for cls in aggregates():
            if cls.__module__.startswith("setwise."):
                assert f"`{cls.__name__}" in text, (page.name, cls.__name__)


def test_public_names_are_documented():
    for name in sw.__all__:
        assert getattr(sw, name).__doc__, name


def test_the_demo_runs():
    out = subprocess.run(
        [sys.executable, "-m", "setwise.cli", "demo"], capture_output=True, text=True, check=True
    )
    assert "whole image" in out.stdout
    assert not out.stderr


def test_kinds_lists_every_aggregate():
    out = subprocess.run(
        [sys.executable, "-m", "setwise.cli", "kinds"], capture_output=True, text=True, check=True
    )
    for cls in aggregates():
        if cls.__module__.startswith("setwise."):
            assert cls.__name__ in out.stdout
