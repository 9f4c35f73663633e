"""A picture of what set labels determine and what they leave open."""

from __future__ import annotations

import textwrap
from typing import Any

from setwise.identifiability.facts import NOTHING, PARTLY
from setwise.plots.style import BLUE, GREEN, INK, ORANGE, PAPER, axes, title

__all__ = ["identifiability", "told"]


def identifiability(est: Any, X: Any = None, observations: Any = None, ax: Any = None) -> Any:
    """What labels of this kind tell, what they leave open, and what `align` has settled.

    With X and observations, also what these very sets leave open (`est.diagnose`).
    """
    ends = {"told": " is determined", "open": " is left open", "settled": " was settled by align"}
    whole = est.identifiability_.level in (NOTHING, PARTLY)  # a sentence already
    lines = [(mark, text if whole else text + ends[mark]) for mark, text in told(est)]
    if X is not None and observations is not None:
        lines += [("open", text) for text in est.diagnose(X, observations)]
    wrapped = [(mark, textwrap.wrap(text, 60)) for mark, text in lines]
    ax = axes(ax, 0.5 + 0.2 * sum(len(rows) + 0.5 for _, rows in wrapped))
    ax.set_axis_off()
    y = 0.0
    marks = {"told": (GREEN, GREEN), "open": (ORANGE, PAPER), "settled": (BLUE, BLUE)}
    for mark, rows in wrapped:
        edge, face = marks[mark]
        ax.plot(0, y, "o", color=edge, markerfacecolor=face, markersize=8, markeredgewidth=1.6)
        for row in rows:
            ax.text(0.06, y, row, va="center", fontsize=9, color=INK)
            y += 1
        y += 0.5
    ax.set(xlim=(-0.03, 1), ylim=(y - 0.4, -0.9))
    title(ax, f"In principle, given enough sets, targets are told {est.identifiability_.level}")
    return ax


def told(est: Any) -> list[tuple[str, str]]:
    """What labels may determine, each "told", "open" or "settled" (by `align`)."""
    facts = est.identifiability_
    if facts.level in (NOTHING, PARTLY):
        return [("open", facts.words or f"The targets are determined {facts.level}")]
    left = "open" if est.alignment_ is None else "settled"
    if hasattr(est, "classes_"):
        groups = [", ".join(str(est.classes_[c]) for c in group) for group in facts.swaps]
        names = f" ({'; '.join(groups)})" if groups else ""
        questions = [(facts.permutation, f"Which class is which{names}")]
        first = "Which rows are of the same class"
    else:
        first = "How targets differ from row to row"
        questions = [
            (facts.shift, "The level (a number added to all targets)"),
            (not facts.scale, "The unit (a factor for all targets)"),
            (facts.sign, "The direction (which end is up)"),
        ]
    return [("told", first), *((left if is_open else "told", q) for is_open, q in questions)]
