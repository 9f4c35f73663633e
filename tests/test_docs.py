"""Every Python block of the documentation and the README runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import setwise as sw
from docs.pictures import BLOCK, datasets_missing, run
from setwise.checks.examples import has_rule
from setwise.distributions import base, families
from setwise.learners import learners
from setwise.likelihood import aggregates

os.environ.setdefault("MPLBACKEND", "Agg")
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
README = TEXTS[PAGES[0]]
PATIENCE = 20  # seconds of a processor for a block; busy machines may need three times as many
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def same(shown, printed, rel=0.01):
    """The same words, and numbers that agree to 1 % or to one unit in the last digit shown.

    Less would be a lottery: sums run in another order on processors with other vector units, and
    with other versions of BLAS, so that iterations end a little elsewhere.
    """
    words = [NUMBER.sub("#", text).split() for text in (shown, printed)]
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    return words[0] == words[1] and all(
        float(theirs) == pytest.approx(float(mine), rel=rel, abs=1.01 * last_digit(mine))
        for mine, theirs in pairs
    )


def last_digit(number):
    """One unit in the last digit of a printed number.

    >>> last_digit("-0.38"), last_digit("12"), last_digit("1.5e-3")
    (0.01, 1.0, 0.0001)
    """
    digits, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def test_outputs_are_compared_strictly():
    assert same("loss 0.381, 120 sets", "loss 0.382, 121 sets")
    assert not same("loss 0.381", "loss 0.391")
    assert not same("120 sets", "130 sets")
    assert not same("loss 0.381", "error 0.381")
    assert not same("loss 0.381", "loss 0.381 0.4")


@pytest.mark.parametrize(
    "page",
    [page for page, text in TEXTS.items() if BLOCK.search(text)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_blocks_run(page, monkeypatch, record_property):
    monkeypatch.setattr(base, "_FAMILIES", dict(base._FAMILIES))  # a page may add one
    if missing := datasets_missing(TEXTS[page]):
        pytest.skip(f"needs {', '.join(missing)} in the folder named by SETWISE_DATA")
    drawn, seconds, begin = 0, [], time.process_time()
    record_property("blocks", (str(page.relative_to(ROOT)), seconds))  # see conftest.py
    for block, printed, figures in run(page):
        line = TEXTS[page].count("\n", 0, block.start()) + 1
        seconds.append((line, time.process_time() - begin))
        assert seconds[-1][1] < 3 * PATIENCE, f"line {line}: readers wait {PATIENCE} s at most"
        if block["shown"] is not None:
            assert same(block["shown"], printed), f"the page shows another output than\n{printed}"
        for _ in figures:
            drawn += 1
            name = f"img/{page.stem}-{drawn}.png"
            assert (ROOT / "docs" / name).is_file(), f"run docs/pictures.py to make {name}"
            assert name in TEXTS[page], f"the page does not show {name}"
        begin = time.process_time()


def test_every_block_is_well_formed():
    for page, text in TEXTS.items():
        fences = re.findall(r"^ *```(\S*)", text, re.M)
        assert len(fences) % 2 == 0, page
        assert len(re.findall(r"^```python", text, re.M)) == len(BLOCK.findall(text)), page


def test_pictures_are_small():
    pictures = [p for p in (ROOT / "docs" / "img").iterdir() if p.suffix in (".png", ".svg")]
    assert sum(p.stat().st_size for p in pictures) < 2e6
    shown = " ".join(TEXTS.values())
    assert not [p.name for p in pictures if p.name not in shown]


def test_every_aggregate_is_in_the_table():
    text = (ROOT / "docs" / "likelihoods.md").read_text(encoding="utf-8")
    for cls in aggregates():
        if cls.__module__.startswith("setwise."):
            assert f"| `{cls.__name__}" in text or f", `{cls.__name__}" in text, cls.__name__


def test_public_names_are_documented():
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in sw.__all__:
        assert getattr(sw, name).__doc__, name
        if name not in sw.aggregates.__all__:  # those are in the table of likelihoods
            assert f"::: setwise.{name}\n" in reference, f"docs/api.md does not list {name}"


@pytest.mark.slow
def test_the_demo_runs(tmp_path):
    out = subprocess.run(
        [sys.executable, "-m", "setwise.cli", "demo", "--quick", "--no-html"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "triplets" in out.stdout
    assert not out.stderr
    assert not list(tmp_path.iterdir())


def test_kinds_lists_every_aggregate():
    out = subprocess.run(
        [sys.executable, "-m", "setwise.cli", "kinds"], capture_output=True, text=True, check=True
    )
    for cls in aggregates():
        if cls.__module__.startswith("setwise."):
            assert cls.__name__ in out.stdout


def test_the_readme_reads_well_elsewhere():
    """On a package index only absolute addresses lead somewhere; these are pages and files here."""
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    homes = {
        "https://setwise.github.io/setwise/": "docs/",
        "https://github.com/setwise/setwise/blob/main/": "",
        "https://raw.githubusercontent.com/setwise/setwise/main/": "",
    }
    assert len(links) > 20
    for link in links:
        home = next((home for home in homes if link.startswith(home)), None)
        assert home, f"{link} is not absolute, or leads elsewhere"
        path = homes[home] + link.removeprefix(home)
        path = path.removesuffix("/") + ".md" if path.endswith("/") else path
        assert (ROOT / path).is_file(), f"{link}: there is no {path}"


def test_the_readme_counts_what_there_is():
    kinds, kin, ways = (
        [cls for cls in found if cls.__module__.startswith("setwise.")]
        for found in (aggregates(), families().values(), learners().values())
    )
    pairs = sum(has_rule(aggregate, family) for aggregate in kinds for family in kin)
    count = re.search(r"(\d+) aggregates × (\d+) families of distributions, (\d+) pairs", README)
    assert [*map(int, count.groups())] == [len(kinds), len(kin), pairs]
    for cls in (*kinds, *ways):
        assert re.search(rf"`{cls.__name__}\b", README), f"the README does not name {cls.__name__}"


def test_every_page_that_fits_a_model_leads_to_what_it_is_worth():
    fits = [page for page in TEXTS if ".fit(" in TEXTS[page] and "decisions" not in page.parts]
    assert len(fits) > 20
    silent = [p.name for p in fits if "good" not in TEXTS[p] or "report" not in TEXTS[p]]
    assert set(silent) <= {"architecture.md"}, silent


def test_every_decision_is_in_the_navigation_once_and_in_order():
    listed = re.findall(r"decisions/(\S+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert listed == sorted(p.name for p in (ROOT / "docs" / "decisions").glob("*.md"))
