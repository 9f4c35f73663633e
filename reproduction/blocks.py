"""What the report is made of: blocks that become HTML for the page, or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import setwise as sw
from reproduction.aims import Aim

__all__ = [
    "Aims", "Block", "Cell", "Drawing", "Fold", "Grid", "Section", "Tiles", "as_html",
    "as_markdown",
]  # fmt: skip

MET = {True: ("met", True, "good"), False: ("not met", True, "bad"), None: ("open", False, "muted")}
NUMBER = re.compile(r"[~≈<>≤≥+\-−]*\s*[\d.][\d.,\u2009\u202f ]*([eE][+\-−]?\d+)?.{0,3}(±.*)?")
BLANK = ("", "–", "—")


class Cell(NamedTuple):
    """A cell of a table; `tone` is "", "good", "bad" or "muted"."""

    text: str
    strong: bool = False
    tone: str = ""


class Grid(NamedTuple):
    """A table of the report."""

    columns: list[str]
    rows: list[list[str | Cell]]
    caption: str = ""

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows with every text as a cell."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, which the page sets to the right."""
        out = []
        for j in range(len(self.columns)):
            known = [row[j].text for row in self.cells if row[j].text not in BLANK]
            out.append(bool(known) and all(NUMBER.fullmatch(text) for text in known))
        return out


class Aims(NamedTuple):
    """What was to be shown; the page has aim and measurement in one cell, which suits a phone."""

    aims: list[Aim]

    @property
    def verdicts(self) -> list[tuple[Cell, Aim]]:
        """Each aim after the word for whether it is met."""
        return [(Cell(*MET[aim.met]), aim) for aim in self.aims]


class Tiles(NamedTuple):
    """Numbers to see first."""

    pairs: list[tuple[str, str]]


class Drawing(NamedTuple):
    """A figure; Markdown leaves it out."""

    figure: Any
    caption: str


class Fold(NamedTuple):
    """What the page shows when asked to."""

    title: str
    blocks: list[Any]


Block = str | Grid | Aims | Tiles | Drawing | Fold  # a text is a paragraph
Section = tuple[str, list[Block]]


def as_html(title: str, lead: str, sections: list[Section]) -> str:
    """The whole page, by the template `page.html`."""
    template = _environment().get_template("page.html")
    return str(template.render(title=title, lead=lead, sections=sections, palette=sw.plots.PALETTE))


@cache
def _environment() -> Any:
    import jinja2

    here = jinja2.FileSystemLoader(Path(__file__).parent)
    made = jinja2.Environment(loader=here, autoescape=True)
    made.filters |= {"prose": _prose, "breaking": _breaking, "drawn": _drawn}
    return made


def _prose(text: str) -> Any:
    """The text as HTML, with `code` and **strong** words and nothing else that is markup."""
    from markupsafe import Markup, escape

    out = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", out))


def _breaking(text: str) -> Any:
    """The same, where a narrow screen may break the name of a method."""
    from markupsafe import Markup

    shown = _prose(text)
    return shown.replace("_", Markup("_<wbr>")) if re.fullmatch(r"`\w+`", text) else shown


def _drawn(drawing: Drawing) -> Any:
    """A figure of the width that it was drawn in."""
    from markupsafe import Markup

    text = sw.plots.svg(drawing.figure, drawing.caption.replace("`", ""))
    width = re.search(r'width="(\d+)"', text)
    assert width is not None
    below = Markup("<figcaption>{}</figcaption>").format(_prose(drawing.caption))
    return Markup(f'<figure style="width: {width[1]}px">{text}{below}</figure>')


def as_markdown(block: Block) -> Iterator[str]:
    """The block as paragraphs of Markdown."""
    match block:
        case str():
            yield block
        case Grid():
            if block.caption:
                yield block.caption
            rows = [[_plain(cell) for cell in row] for row in block.cells]
            lines = [block.columns, ["---"] * len(block.columns), *rows]
            yield "\n".join(f"| {' | '.join(_one_line(c) for c in line)} |" for line in lines)
        case Aims():
            table: list[list[str | Cell]] = [
                [aim.text, met, aim.measured] for met, aim in block.verdicts
            ]
            yield from as_markdown(Grid(["aim", "met?", "measured"], table))
        case Tiles():
            yield "\n".join(f"- **{number}** {label}" for number, label in block.pairs)
        case Fold():
            yield f"### {block.title}"
            for inner in block.blocks:
                yield from as_markdown(inner)


def _plain(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.strong and cell.text else cell.text


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
