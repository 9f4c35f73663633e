"""Self-contained HTML pages: no network, no scripts, for phone, desktop, paper, light and dark.

Every function gives a piece of HTML as a string; `page` joins pieces into a document.

>>> from setwise.page import Cell, page, section, table
>>> rows = [["means", Cell("0.49", strong=True)], ["constant", "0.00"]]
>>> html = page("A model", section("Results", table(["from", "R²"], rows)))
>>> html.startswith("<!doctype html>")
True
"""

from __future__ import annotations

import html
import io
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "Cell",
    "Raw",
    "figure",
    "page",
    "paragraph",
    "section",
    "table",
    "tiles",
    "write",
]

# The colours of figures: on a page they are replaced by variables, which change with the theme.
# Blue, orange, green and purple are told apart by every kind of colour vision (Okabe and Ito).
INK, GRID, PAPER, GREY = "#1b1f24", "#d8dde3", "#ffffff", "#8a929c"
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#aa5088"
_VARIABLES = {
    INK: "currentColor",
    "#000000": "currentColor",  # what matplotlib draws axes with by itself
    GRID: "var(--line)",
    PAPER: "var(--paper)",
    GREY: "var(--grey)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    PURPLE: "var(--purple)",
}

_LIGHT = f"""
  --paper: {PAPER}; --ink: {INK}; --soft: #59636e; --line: {GRID}; --tint: #f4f6f8; --grey: {GREY};
  --blue: {BLUE}; --orange: {ORANGE}; --green: {GREEN}; --purple: {PURPLE};
  --good: #00734f; --bad: #b33c00;"""
_DARK = """
    --paper: #14171b; --ink: #e3e7eb; --soft: #9aa4af; --line: #353c45; --tint: #1d2127;
    --grey: #7d8590; --blue: #58b0ea; --orange: #f0904e; --green: #3fc79b; --purple: #d992bd;
    --good: #4fd1a5; --bad: #f5a06a;"""
_STYLE = f"""
:root {{ color-scheme: light dark;{_LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{{_DARK} }}
}}
* {{ box-sizing: border-box; }}
body {{
  margin: 0 auto; padding: clamp(1rem, 4vw, 3rem); max-width: 68rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  -webkit-text-size-adjust: 100%; overflow-wrap: anywhere;
}}
h1 {{ font-size: clamp(1.5rem, 1.1rem + 2vw, 2.2rem); line-height: 1.2; margin: 0 0 .5rem; }}
h2 {{
  font-size: 1.25rem; line-height: 1.3; margin: 2.75rem 0 .75rem; padding-top: .75rem;
  border-top: 1px solid var(--line);
}}
p, li {{ max-width: 44rem; }}
p {{ margin: .6rem 0; }}
.lead {{ font-size: 1.1rem; color: var(--soft); margin-bottom: 1.5rem; }}
code {{
  font: .88em ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  background: var(--tint); border-radius: .25rem; padding: .1em .3em;
}}
.wide {{ overflow-x: auto; margin: 1rem 0; max-width: 100%; }}
table {{
  border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums;
  overflow-wrap: normal;
}}
caption {{
  caption-side: top; text-align: left; color: var(--soft); font-size: .9rem;
  padding-bottom: .4rem;
}}
th, td {{
  padding: .4rem .75rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap;
}}
td.text {{ white-space: normal; min-width: 9rem; }}
thead th {{
  font-weight: 600; font-size: .85rem; color: var(--soft); white-space: pre-line;
  vertical-align: bottom;
}}
tbody th {{ font-weight: 400; white-space: normal; min-width: 6.5rem; }}
th:first-child {{
  position: sticky; left: 0; background: var(--paper); z-index: 1; padding-left: 0;
}}
tbody tr:last-child > * {{ border-bottom: 0; }}
.number {{ text-align: right; }}
.strong {{ font-weight: 700; }}
.good {{ color: var(--good); }} .bad {{ color: var(--bad); }} .muted {{ color: var(--soft); }}
.tiles {{
  display: grid; gap: .75rem; margin: 1rem 0; padding: 0; list-style: none;
  grid-template-columns: repeat(auto-fit, minmax(min(9.5rem, 100%), 1fr));
}}
.tiles li {{ background: var(--tint); border-radius: .5rem; padding: .7rem .9rem; }}
.tiles b {{ display: block; font-size: 1.5rem; line-height: 1.25; font-weight: 650; }}
.tiles span {{ color: var(--soft); font-size: .88rem; line-height: 1.35; display: block; }}
figure {{
  display: inline-block; vertical-align: top; margin: 1rem 1.5rem 1rem 0; max-width: 100%;
}}
figure svg {{ display: block; width: 100%; height: auto; fill: currentColor; }}
figure svg * {{ stroke-linejoin: round; stroke-linecap: butt; }}
figure svg text {{
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif !important;
}}
figcaption {{ color: var(--soft); font-size: .88rem; line-height: 1.4; margin-top: .4rem; }}
@media (max-width: 40rem) {{ figure {{ display: block; margin-right: 0; }} }}
@media print {{
  body {{ max-width: none; padding: 0; font-size: 10pt; }}
  h2 {{ break-after: avoid; }}
  figure, tr, .tiles {{ break-inside: avoid; }}
  .wide {{ overflow: visible; }}
}}
"""

# Nothing outside the page can be asked for, whatever a name in the data might hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_NUMBER = re.compile(r"[~≈<>≤≥+\-−]*\s*[\d.][\d.,\u2009\u202f ]*([eE][+\-−]?\d+)?.{0,3}(±.*)?")
_BLANK = {"", "-", "–", "—", "−", "n/a", "nan"}


class Raw(str):
    """Text that is HTML already and goes into the page as it is."""

    __slots__ = ()


class Cell(NamedTuple):
    """A cell of a table; `tone` is "", "good", "bad" or "muted"."""

    text: str
    strong: bool = False
    tone: str = ""


def page(title: str, *parts: str, lead: str = "") -> str:
    """The whole document: a title, a sentence or two that say what this is, and the parts."""
    intro = f'<p class="lead">{_inline(lead)}</p>\n' if lead else ""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{html.escape(title)}</h1>\n"
        f"{intro}</header>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A part of the page under a heading."""
    inside = "\n".join(parts)
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{inside}\n</section>"


def paragraph(text: str) -> str:
    """A paragraph; the text is escaped, but for `Raw`, **strong** and `code`.

    >>> paragraph("**R²** of 1 < 2")
    '<p><b>R²</b> of 1 &lt; 2</p>'
    """
    return f"<p>{_inline(text)}</p>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Cell]], caption: str = "") -> str:
    """A table; columns of numbers are set to the right, and what is too wide scrolls in its box."""
    cells = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]
    for number, row in enumerate(cells):
        if len(row) != len(columns):
            raise ValueError(f"row {number} has {len(row)} cells for {len(columns)} columns")
    numeric = [
        bool(cells) and _numeric([row[j].text for row in cells]) for j in range(len(columns))
    ]
    head = "".join(
        f"<th{_classes('number' if right else '')} scope=col>{html.escape(name)}</th>"
        for name, right in zip(columns, numeric, strict=True)
    )
    body = "\n".join(f"<tr>{_row(row, numeric)}</tr>" for row in cells)
    above = f"<caption>{_inline(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0"><table>{above}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Big numbers with labels, from pairs (number, label)."""
    inside = "".join(f"<li><b>{_inline(n)}</b><span>{_inline(w)}</span></li>" for n, w in pairs)
    return f'<ul class="tiles">{inside}</ul>'


def figure(fig: Any, caption: str = "") -> str:
    """A matplotlib figure as inline SVG, with text as text and colours that follow the theme.

    Black and the colours of `setwise.plots` become variables of the page; other colours stay.
    """
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "setwise"}):
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        fig.savefig(
            stream,
            format="svg",
            transparent=True,
            bbox_inches="tight",
            pad_inches=0.03,
            metadata=nothing,
        )
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>|\s*<!--.*?-->", "", svg, flags=re.S
    )
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(
        r"#[0-9a-f]{6}(?=[;\"])", lambda m: _VARIABLES.get(m[0].lower(), m[0]), svg, flags=re.I
    )
    label = html.escape(re.sub(r"[*`]", "", caption) or "figure")
    opening = f'<svg role="img" aria-label="{label}" viewBox="{_find("viewBox", svg)}">'
    svg = opening + svg[svg.index(">") + 1 :].strip()
    width = float(_find("viewBox", svg).split()[2]) * 96 / 72
    below = f"<figcaption>{_inline(caption)}</figcaption>" if caption else ""
    return f'<figure style="width: {width:.0f}px">{svg}{below}</figure>'


def write(path: str | os.PathLike[str], html: str) -> Path:
    """Writes the page beside `path`, then renames it: there is never half a page."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} for {target.name}: create it")
    handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(html)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(beside, 0o666 & ~mask)  # as an ordinary new file, which mkstemp's is not
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
    return target


def _inline(text: str) -> str:
    if isinstance(text, Raw):
        return str(text)
    out = html.escape(text, quote=False)
    out = re.sub(r"`([^`]+)`", r"<code>\1</code>", out)
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", out)


def _numeric(texts: list[str]) -> bool:
    told = [t.strip() for t in texts if t.strip().lower() not in _BLANK]
    return bool(told) and all(_NUMBER.fullmatch(t) for t in told)


def _row(cells: list[Cell], numeric: list[bool]) -> str:
    out = []
    for j, (cell, right) in enumerate(zip(cells, numeric, strict=True)):
        if cell.tone not in ("", "good", "bad", "muted"):
            raise ValueError(f'tone is "", "good", "bad" or "muted", got {cell.tone!r}')
        kind = "number" if right else "text"
        names = _classes(kind, "strong" if cell.strong else "", cell.tone)
        tag, scope = ("th", " scope=row") if j == 0 else ("td", "")
        out.append(f"<{tag}{names}{scope}>{_inline(cell.text)}</{tag}>")
    return "".join(out)


def _classes(*names: str) -> str:
    kept = " ".join(name for name in names if name)
    return f' class="{kept}"' if kept else ""


def _find(attribute: str, text: str) -> str:
    found = re.search(rf'{attribute}="([^"]*)"', text)
    assert found is not None
    return found[1]
