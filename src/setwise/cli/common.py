"""What several commands share: tables, and the choice among known names."""

from __future__ import annotations

from collections.abc import Iterable

import typer
from rich import box
from rich.table import Table

__all__ = ["choose", "split", "table"]


def table(title: str, columns: tuple[str, ...], units: tuple[str, ...]) -> Table:
    """A table without lines; columns with a unit are set to the right."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column, unit in zip(columns, units, strict=True):
        header = f"{column}\n[dim not bold]{unit}[/]"
        shown.add_column(header, justify="right" if unit else "left")
    return shown


def split(text: str) -> list[str]:
    """The parts of a,b,c."""
    return [part.strip() for part in text.split(",") if part.strip()]


def choose(what: str, given: list[str], known: Iterable[str]) -> list[str]:
    """What was asked for, all where nothing was; an error that lists what there is."""
    known = list(known)
    for name in given:
        if name not in known:
            raise typer.BadParameter(f"unknown {what} {name!r}; known are {', '.join(known)}")
    return given or known
