"""Small tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["ObservationsHtml", "SetsHtml", "facts", "table"]

SHOWN = 5  # sets, of the first


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table; the last `numbers` columns are set to the right."""
    first = len(head) - numbers

    def line(cells: Sequence[str], tag: str) -> str:
        made = (
            f'<{tag} style="text-align:{"right" if j >= first else "left"}">{escape(cell)}</{tag}>'
            for j, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


def facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A title above a table of two columns.

    >>> facts("Sets", [("sets", "3 < 4")]).count("&lt;")
    1
    """
    body = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<div><b>{escape(title)}</b><table><tbody>{body}</tbody></table></div>"


def _sets(sets: Any, y: Any = None, title: str = "", more: Iterable[tuple[str, str]] = ()) -> str:
    """Sets, the first of them with their members, and what was seen of them if there is a `y`."""
    n, sizes = len(sets), sets.sizes
    rows = [("sets", f"{n:,}")]
    if n:
        low, high = int(sizes.min()), int(sizes.max())
        rows.append(("members", f"{low:,}" if low == high else f"{low:,} to {high:,}"))
        distinct = len(set(sets.indices.tolist())) if len(sets.indices) < 10**6 else None
        if distinct is not None:
            rows.append(("distinct rows", f"{distinct:,}"))
    if sets.weights is not None:
        rows.append(("members' weights", "given"))
    first = []
    for i in range(min(n, SHOWN)):
        members = [str(row) for row in sets[i][:10].tolist()] + ["…"] * (int(sizes[i]) > 10)
        name = str(i) if sets.names is None else str(sets.names[i])
        line = [name, ", ".join(members)]
        first.append(line if y is None else [*line, _short(y[i])])
    head = ["set", "rows"] if y is None else ["set", "rows", "y"]
    shown = table(head, first) if first else ""
    return facts(title or "Sets", [*more, *rows]) + shown


class SetsHtml:
    """What makes `Sets` show themselves in a notebook."""

    def _repr_html_(self) -> str:
        return _sets(self)


class ObservationsHtml:
    """What makes `Observations` show themselves in a notebook."""

    aggregate: Any
    sets: Any
    y: Any
    weight: Any

    def _repr_html_(self) -> str:
        more = [("aggregate", repr(self.aggregate))]
        if self.weight is not None:
            more.append(("weights of sets", "given"))
        return _sets(self.sets, self.y, "Observations", more)


def _short(value: Any) -> str:
    numbers = value.tolist() if hasattr(value, "tolist") else value
    text = f"{numbers:.6g}" if isinstance(numbers, float) else str(numbers)
    return text if len(text) <= 40 else text[:39] + "…"
