"""Pages made of blocks, which the template `page.html` shows."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from setwise import plots
from setwise._files import beside

__all__ = [
    "Block",
    "Cell",
    "Figure",
    "Section",
    "Table",
    "Tiles",
    "figure",
    "render",
    "versions",
    "write",
]

NUMBER = re.compile(r"[~≈<>≤≥+\-−]*\s*[\d.][\d.,\u2009\u202f ]*([eE][+\-−]?\d+)?.{0,3}(±.*)?")
BLANK = {"", "-", "–", "—", "−", "n/a", "nan"}


class Cell(NamedTuple):
    """A cell of a table; `tone` is "", "good", "bad" or "muted"."""

    text: str
    strong: bool = False
    tone: str = ""


class Table(NamedTuple):
    """A table; what is too wide scrolls in its box."""

    columns: list[str]
    rows: list[list[str | Cell]]
    caption: str = ""

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows with every text as a cell."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, which are set to the right."""
        out = []
        for j in range(len(self.columns)):
            texts = [row[j].text.strip() for row in self.cells]
            known = [text for text in texts if text.lower() not in BLANK]
            out.append(bool(known) and all(NUMBER.fullmatch(text) for text in known))
        return out


class Tiles(NamedTuple):
    """Headline numbers, each with a label."""

    pairs: list[tuple[str, str]]


class Figure(NamedTuple):
    """A picture as SVG, as wide in pixels as it was drawn."""

    svg: str
    width: int
    caption: str


Block = str | Table | Tiles | Figure  # a text is a paragraph, with **strong** words and `code`
Section = tuple[str, list[Block]]  # a title, or "" where there is none, and what stands under it


def figure(drawn: Any, caption: str = "") -> Figure:
    """A matplotlib figure as a block."""
    text = plots.svg(drawn, re.sub(r"[*`]", "", caption) or "figure")
    width = re.search(r'width="(\d+)"', text)
    assert width is not None
    return Figure(text, int(width[1]), caption)


def render(title: str, lead: str, sections: Iterable[Section]) -> str:
    """The whole page: a title, a lead of a sentence or two, and the sections."""
    template = _environment().get_template("page.html")
    palette = plots.PALETTE
    filled = template.render(title=title, lead=lead, sections=list(sections), palette=palette)
    return str(filled)


@cache
def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "pages need Jinja2, which is not installed: pip install 'setwise[plots]'"
        ) from error
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True
    )
    made.filters["prose"] = _prose
    return made


def _prose(text: str) -> Any:
    """The text as HTML, with `code` and **strong** words and nothing else that is markup."""
    from markupsafe import Markup, escape

    out = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", out))


def versions(*packages: str) -> str:
    """The versions of Python, setwise and these packages, for the end of a page."""
    listed = [f"{name} {metadata.version(name)}" for name in ("setwise", *packages)]
    return ", ".join([f"Python {platform.python_version()}", *listed])


def write(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a page, whole or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} for {target.name}: create it")
    with beside(target) as new:
        new.write_text(text, encoding="utf-8", newline="\n")
    return target
