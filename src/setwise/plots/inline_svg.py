"""A picture as text for a web page."""

from __future__ import annotations

import html
import io
import re
from typing import Any

from setwise.plots.style import PALETTE

__all__ = ["svg"]

PIXELS = 96 / 72  # of a web page, per point
VARIABLES = {colour: f"var(--{name}, {colour})" for name, colour in PALETTE.items()} | {
    PALETTE["ink"]: "currentColor",
    "#000000": "currentColor",  # what matplotlib draws axes with by default
}


def svg(figure: Any, label: str = "figure") -> str:
    """A matplotlib figure as an `<svg>` element to put into a web page, with text as text.

    The colours of `PALETTE` become CSS variables of the same names (`--blue`, …), which a page may
    set to follow its theme; ink and black become the colour of the text around. `label` is read out
    in place of the picture.
    """
    from matplotlib import rc_context

    stream = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "setwise"}):
        figure.savefig(
            stream, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.03,
            metadata=nothing,
        )  # fmt: skip
    text = stream.getvalue()
    opening, inside = text[text.index("<svg") :].split(">", 1)
    needless = r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>|\s*<!--.*?-->"
    inside = re.sub(needless, "", inside, flags=re.S)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', inside))
    inside = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", inside)
    colour = re.compile(r'#[0-9a-f]{6}(?=[;"])', re.I)
    inside = colour.sub(lambda m: VARIABLES.get(m[0].lower(), m[0]), inside)
    box = re.search(r'viewBox="([^"]*)"', opening)
    assert box is not None
    width = round(float(box[1].split()[2]) * PIXELS)
    return (
        f'<svg role="img" aria-label="{html.escape(label)}" width="{width}" viewBox="{box[1]}">'
        f"{inside.strip()}"
    )
