"""Notebooks are the tutorials: the same code in the same order, and it runs."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys

import pytest

from docs.notebooks import notebook
from docs.pictures import BLOCK, DOCS, datasets_missing
from setwise.distributions import base

PAGES = sorted((DOCS / "tutorials").glob("*.md"))
SLOW = pytest.mark.slow


def sources(made, kind):
    return ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_its_page(page):
    made, text = notebook(page), page.read_text(encoding="utf-8")
    assert sources(made, "code") == [block["code"].rstrip() for block in BLOCK.finditer(text)]
    words = "\n".join(sources(made, "markdown"))
    assert words.startswith(text.partition("\n")[0])
    assert "<details" not in words
    assert f"img/{page.stem}-" not in words
    links = re.findall(r"\]\(([^)]*)\)", words)
    assert all(link.startswith("https://") and not link.endswith(".md") for link in links), links
    for cell in made["cells"]:  # what nbformat 4.5 asks of a cell
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["cell_type"] == "markdown" or {"outputs", "execution_count"} < {*cell}
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


def test_links_lead_to_the_pages_on_the_web():
    words = "\n".join(sources(notebook(DOCS / "tutorials" / "preferences.md"), "markdown"))
    assert "(https://setwise.github.io/setwise/tutorials/tennis/)" in words


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    command = [sys.executable, "-m", "docs.notebooks", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=DOCS.parent)
    assert {path.stem for path in folder.iterdir()} == {page.stem for page in PAGES}
    return folder


@pytest.mark.parametrize(
    "page",
    [page if page.stem == "preferences" else pytest.param(page, marks=SLOW) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_a_notebook_runs_as_written(written, page, monkeypatch, tmp_path):
    if missing := datasets_missing(page.read_text(encoding="utf-8")):
        pytest.skip(f"needs {', '.join(missing)} in the folder named by SETWISE_DATA")
    made = json.loads((written / f"{page.stem}.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "_FAMILIES", dict(base._FAMILIES))  # a page may add one
    space = {"__name__": "__main__"}
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec("".join(cell["source"]), space)
            shown = "".join("".join(out["text"]) for out in cell["outputs"])
            assert bool(shown) <= bool(printed.getvalue())
