"""Writes each tutorial as a Jupyter notebook: `python -m docs.notebooks [folder]`.

A Python block becomes a cell of code, with the output that the page shows; what is
between the blocks becomes a cell of text, whose links lead to the pages on the web.
Pictures that a cell draws are left to that cell.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from posixpath import normpath
from typing import Any

from docs.pictures import BLOCK, DOCS

SITE = "https://setwise.github.io/setwise/"
FOLDED = re.compile(r"</?details[^>]*>\n?")
SUMMARY = re.compile(r"<summary>(.*?)</summary>")
LINK = re.compile(r"(!?\[[^]]*\])\(([^):]+)\)")


def notebook(page: Path) -> dict[str, Any]:
    """The page as a notebook (nbformat 4.5)."""
    text, end = page.read_text(encoding="utf-8"), 0
    cells: list[dict[str, Any]] = []
    for block in BLOCK.finditer(text):
        cells += _words(text[end : block.start()], page)
        cells.append(_code(block["code"], block["shown"]))
        end = block.end()
    cells += _words(text[end:], page)
    title, *rest = cells[0]["source"]
    about = (
        f"[This page on the web]({_address(page.name, page)}). "
        f"The cells need `pip install 'setwise[cli,plots]'`.\n"
    )
    cells[0]["source"] = [title, "\n", about, *rest]
    for number, cell in enumerate(cells):
        cell |= {"id": f"{page.stem}-{number}", "metadata": {}}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {
        "cells": cells,
        "metadata": metadata,
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _code(code: str, shown: str | None) -> dict[str, Any]:
    out = {"output_type": "stream", "name": "stdout", "text": _lines(shown or "")}
    return {
        "cell_type": "code",
        "source": _lines(code.rstrip()),
        "outputs": [out] if shown else [],
        "execution_count": None,
    }


def _words(text: str, page: Path) -> list[dict[str, Any]]:
    """A cell of text, or none where there is nothing to read."""
    text = SUMMARY.sub(r"**\1**", FOLDED.sub("", text))
    text = re.sub(rf"!\[[^]]*\]\(\.\./img/{page.stem}-\d+\.png\)\n*", "", text)
    text = LINK.sub(lambda link: f"{link[1]}({_address(link[2], page)})", text)
    source = _lines(text.strip())
    return [{"cell_type": "markdown", "source": source}] if source else []


def _address(link: str, page: Path) -> str:
    """Where a link of the page leads on the web."""
    path, mark, place = link.partition("#")
    folder = page.parent.relative_to(DOCS).as_posix()
    path = normpath(f"{folder}/{path or page.name}")
    if path.endswith(".md"):
        path = path.removesuffix(".md").removesuffix("index") + "/"
    return SITE + path + mark + place


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Writes all notebooks into the folder, `notebooks` unless another is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "notebooks")
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        path = folder / f"{page.stem}.ipynb"
        text = json.dumps(notebook(page), indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
