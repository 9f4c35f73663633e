"""The page that `setwise demo` writes."""

from __future__ import annotations

from typing import Any

from setwise import plots
from setwise.cli.demo.tasks import Result, Task
from setwise.report.page import Block, Cell, Section, Table, figure, render, versions

__all__ = ["page"]

LEAD = (
    "Five tasks, each learned in several ways by the same learner: with a naive recipe, with "
    "setwise from the labels of sets alone and, where somebody knows it, with the label of every "
    "individual. Scores are of what was not in the fit; 1 is perfect."
)
ABOUT = (
    "The sets and their labels are drawn at random from the training rows (seeds 100, 101, …), "
    "except those of the molecules, whose labels are real. The sizes of sets, who is compared with "
    "whom, and the learners of the first four tasks were chosen on other random splits of the same "
    "data. The learner and its settings are the same in every column."
)
SOURCES = (
    "Data: diabetes (Efron, Hastie, Johnstone & Tibshirani 2004) and digits (Alpaydin & Kaynak "
    "1998, UCI, CC BY 4.0) as in scikit-learn; MUSK, version 1 (Dietterich, Lathrop & Lozano-Pérez "
    "1997, UCI, CC BY 4.0), which ships with setwise."
)


def page(title: str, results: list[tuple[Task, Result]], seconds: float, quick: bool) -> str:
    """The figures and pictures of all tasks."""
    columns = ["what was seen", "judged by", "naive", "from set\nlabels", "from every\nlabel"]
    rows: list[list[str | Cell]] = []
    sections: list[Section] = []
    for task, result in results:
        naive, sets, full = result.shown
        known = Cell(full, tone="muted" if result.scores[2] is None else "")
        name = f"{task.data}: {task.seen}"
        rows.append([name, task.measure, naive, Cell(sets, result.gains), known])
        words = (
            f"**Naive:** {task.naive}. **Learner** in all columns: {task.learner}. **Judged by:** "
            f"{task.judged}. {result.more}"
        )
        pictures = [figure(draw().figure, caption) for draw, caption in result.pictures]
        sections.append((name, [task.about, words, *pictures]))
    blocks: list[Block] = [
        figure(_glance(results), "Every task at a glance: 1 is perfect."),
        Table(columns, rows),
    ]
    if quick:
        blocks.append("**A quick run for tests: these figures mean nothing.**")
    command = f"Made by `setwise demo` in {seconds:.0f} s with {versions('torch', 'scikit-learn')}."
    about: Section = ("About this page", [ABOUT, SOURCES, command])
    return render(title, LEAD, [("", blocks), *sections, about])


def _glance(results: list[tuple[Task, Result]]) -> Any:
    names = ("grey", "orange", "blue", "ink", "grid")
    grey, orange, blue, ink, lines = (plots.PALETTE[name] for name in names)
    ax = plots.blank(4.8, 0.9 + 0.45 * len(results))
    for y, (_, result) in enumerate(results):
        known = [v for v in result.scores if v is not None]
        ax.plot([min(known), max(known)], [y, y], color=grey, linewidth=1, zorder=1)
    for way, colour, mark, size, fill, label in (  # scores that are level stay visible
        (0, orange, "s", 5, orange, "naive"),
        (1, blue, "o", 7, blue, "from set labels"),
        (2, ink, "D", 11, "none", "from every label"),
    ):
        points = [(r.scores[way], y) for y, (_, r) in enumerate(results)]
        x, at = zip(*[(v, y) for v, y in points if v is not None], strict=True)
        look = {"color": colour, "markersize": size, "markerfacecolor": fill}
        ax.plot(x, at, mark, label=label, linestyle="none", zorder=4 - way, **look)
    tasks = [f"{task.seen}\n{task.measure}" for task, _ in results]
    ax.set_yticks(range(len(results)), tasks)
    ax.tick_params(axis="y", length=0, labelsize=8.5)
    ax.set(ylim=(len(results) - 0.5, -0.5), xlim=(min(0, *(r.scores[0] for _, r in results)), 1.02))
    ax.spines["left"].set_visible(False)
    ax.grid(True, axis="x", color=lines, linewidth=0.6)
    ax.legend(
        frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.35, -0.1), ncol=3,
        columnspacing=1, handletextpad=0.2,
    )  # fmt: skip
    return ax.figure
