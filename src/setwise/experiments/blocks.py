"""What the report is made of: blocks that become HTML for the page, or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from setwise import page
from setwise.experiments.bars import Bar
from setwise.page import Cell

__all__ = ["Aims", "Block", "Drawing", "Fold", "Grid", "Tiles", "as_html", "as_markdown"]

MET = {True: ("met", True, "good"), False: ("not met", True, "bad"), None: ("open", False, "muted")}


class Grid(NamedTuple):
    """A table of the report."""

    columns: list[str]
    rows: list[list[str | Cell]]
    caption: str = ""


class Aims(NamedTuple):
    """What was to be shown; the page has aim and measurement in one cell, which suits a phone."""

    bars: list[Bar]


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


def as_html(block: Block) -> str:
    """The block as it stands on the page."""
    match block:
        case str():
            return page.paragraph(block)
        case Grid():
            rows = [[_breaking(first), *rest] for first, *rest in block.rows]
            return page.table(block.columns, rows, block.caption)
        case Aims():
            rows = [[Cell(*MET[bar.met]), _aim(bar)] for bar in block.bars]
            return page.table(["", "aim, and what was measured"], rows)
        case Tiles():
            return page.tiles(block.pairs)
        case Drawing():
            return page.figure(block.figure, block.caption)
        case Fold():
            inside = "\n".join(map(as_html, block.blocks))
            return f"<details>\n<summary>{escape(block.title)}</summary>\n{inside}\n</details>"


def _breaking(name: str | Cell) -> str | Cell:
    """The name of a method such that a narrow screen may break it."""
    if isinstance(name, Cell) or not re.fullmatch(r"`\w+`", name):
        return name
    return page.Raw(f"<code>{name[1:-1].replace('_', '_<wbr>')}</code>")


def _aim(bar: Bar) -> page.Raw:
    aim, measured = (
        page.paragraph(text).removeprefix("<p>").removesuffix("</p>")
        for text in (bar.aim, bar.measured)
    )
    return page.Raw(f'{aim}<br><span class="muted">{measured}</span>')


def as_markdown(block: Block) -> Iterator[str]:
    """The block as paragraphs of Markdown."""
    match block:
        case str():
            yield block
        case Grid():
            if block.caption:
                yield block.caption
            lines = [block.columns, ["---"] * len(block.columns), *map(_plain, block.rows)]
            yield "\n".join(f"| {' | '.join(_one_line(c) for c in line)} |" for line in lines)
        case Aims():
            rows: list[list[str | Cell]] = [
                [bar.aim, Cell(*MET[bar.met]), bar.measured] for bar in block.bars
            ]
            yield from as_markdown(Grid(["aim", "met?", "measured"], rows))
        case Tiles():
            yield "\n".join(f"- **{number}** {label}" for number, label in block.pairs)
        case Fold():
            yield f"### {block.title}"
            for inner in block.blocks:
                yield from as_markdown(inner)


def _plain(row: list[str | Cell]) -> list[str]:
    cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
    return [f"**{cell.text}**" if cell.strong and cell.text else cell.text for cell in cells]


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
