"""Runs the pages and stores what they show: `python docs/pictures.py [page ...]`.

The Python blocks of a page share a namespace. The n-th figure that they draw is
stored as `img/<page>-<n>.png`, and a `text` block right after a Python block is
filled with what that block printed. A block in the language `py` is shown but not
run: it needs a package that is not here.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parent
BLOCK = re.compile(
    r"^```python[^\n]*\n(?P<code>.*?)^```\n(?:\n```text[^\n]*\n(?P<shown>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
GREY = "#808080"  # is read on white and on dark pages alike
STYLE: dict[str, Any] = {
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": GREY,
    "font.size": 11,
    "legend.frameon": False,
    "legend.labelcolor": GREY,
    "savefig.dpi": 130,
    "savefig.transparent": True,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
COLOURS = ["#009688", "#ef6c00", "#5c6bc0", "#d81b60", "#8d6e63"]


def datasets_missing(text: str) -> list[str]:
    """The data sets that a page loads and that are not on this machine."""
    import setwise as sw

    known = sw.datasets.available()
    away = {one.name for one in known if one.where in ("download", "missing")}
    code = "".join(block["code"] for block in BLOCK.finditer(text))
    return sorted({*re.findall(r'datasets\.load\("([^"]+)"', code)} & away)


def run(page: Path) -> Iterator[tuple[re.Match[str], str, list[Any]]]:
    """Runs the blocks of a page in turn: each with its output and its figures."""
    import matplotlib.pyplot as plt

    # A real module, so that classes defined on the page can be pickled.
    module = ModuleType(f"page_{page.stem}")
    sys.modules[module.__name__] = module
    plt.close("all")
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], str(page), "exec"), module.__dict__)
        yield block, printed.getvalue(), [plt.figure(n) for n in plt.get_fignums()]
        plt.close("all")


def refresh(page: Path) -> None:
    """Stores the pictures of a page and writes its outputs into it."""
    text, new, end, count = page.read_text(encoding="utf-8"), "", 0, 0
    for block, printed, figures in run(page):
        for figure in figures:
            count += 1
            figure.savefig(DOCS / "img" / f"{page.stem}-{count}.png")
        if block["shown"] is not None:
            new += text[end : block.start("shown")] + printed
            end = block.end("shown")
    page.write_text(new + text[end:], encoding="utf-8")


def main() -> None:
    """Refreshes the named pages, or all of them."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    cycle = matplotlib.cycler(color=COLOURS)
    plt.rcParams.update({**STYLE, "axes.prop_cycle": cycle})
    for page in [Path(name) for name in sys.argv[1:]] or sorted(DOCS.rglob("*.md")):
        print(page)
        refresh(page)


if __name__ == "__main__":
    main()
