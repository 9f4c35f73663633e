"""`setwise demo`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from setwise.cli.common import Failure

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from setwise.cli.demo_tasks import Result, Task

__all__ = ["demo"]

TITLE = "Learning about individuals from labels of sets"
LEAD = (
    "Five tasks, each learned three ways by the same learner: with a naive recipe, with setwise "
    "from the labels of sets alone, and with the label of every individual. Scores are of "
    "individuals that were not in the fit; 1 is perfect."
)


def demo(
    out: Annotated[Path, typer.Option(help="The page with the pictures.")] = Path("demo.html"),
    html: Annotated[bool, typer.Option(help="Write the page.")] = True,
    quick: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Learn from labels of sets on embedded data, and show what that is worth."""
    import torch
    from rich.console import Console

    if html and not out.parent.is_dir():
        raise Failure(f"there is no folder {out.parent} for {out.name}: create it")
    console, start = Console(), time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same figures everywhere, and no slower at this size
    try:
        results = _run(console, quick)
    finally:
        torch.set_num_threads(threads)
    seconds = time.perf_counter() - start
    console.print(
        "[dim]naive: each member is given the label of its set (molecules: then averaged;\n"
        "triplets: clusters without labels). The same learner in all three columns,\n"
        "scored on what was not in the fit; 1 is perfect.[/]",
        highlight=False,
    )
    if html:
        from setwise import page

        page.write(out, _page(results, seconds, quick))
        console.print(f"\nPictures: [bold]{out}[/]", highlight=False)
    console.print(
        f"[dim]{seconds:.0f} s. Next: setwise kinds, setwise fit --help[/]",
        highlight=False,
    )


def _run(console: Console, quick: bool) -> list[tuple[Task, Result]]:
    with _live(console) as show:
        show([], "getting ready")
        from setwise.cli.demo_tasks import TASKS

        done: list[tuple[Task, Result]] = []
        for task in TASKS:
            show(done, f"{task.data}: learning from {task.seen}", task)
            done.append((task, task.run(quick)))
        show(done, "")
    return done


@contextmanager
def _live(console: Console) -> Iterator[Any]:
    """Shows the table while it fills; where the output is no terminal, only the whole of it."""
    from rich.console import Group
    from rich.live import Live
    from rich.spinner import Spinner

    start, last = time.perf_counter(), None
    with Live(console=console, refresh_per_second=8, transient=True) as live:

        def show(done: list[Any], doing: str, task: Any = None) -> None:
            nonlocal last
            last = _table(done, task)
            if console.is_terminal:
                spent = f"[dim]{time.perf_counter() - start:.0f} s[/]"
                live.update(Group(last, Spinner("dots", f" {doing} {spent}")) if doing else "")

        yield show
    console.print(last)


def _table(done: list[tuple[Task, Result]], doing: Task | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"\n{TITLE}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )  # fmt: skip
    for name in ("data", "seen", "judged by"):
        table.add_column(f"\n{name}")
    table.add_column("\nnaive", justify="right")
    table.add_column("set\nlabels", justify="right")
    table.add_column("every\nlabel", justify="right")
    for task, result in done:
        style = "bold green" if result.gains else "default"
        table.add_row(
            task.data, task.seen, task.measure, _score(result.naive),
            f"[{style}]{_score(result.sets)}[/]", _score(result.full),
        )  # fmt: skip
    if doing is not None:
        table.add_row(f"[dim]{doing.data}", f"[dim]{doing.seen}", f"[dim]{doing.measure}")
    return table


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


# ---- the page


def _page(results: list[tuple[Task, Result]], seconds: float, quick: bool) -> str:
    import platform
    from importlib.metadata import version

    from setwise import page

    rows: list[list[str | page.Cell]] = [
        [
            f"{task.data}: {task.seen}",
            task.measure,
            _score(result.naive),
            page.Cell(_score(result.sets), strong=result.gains),
            page.Cell(_score(result.full), tone="muted" if result.full is None else ""),
        ]
        for task, result in results
    ]
    columns = [
        "what was seen",
        "judged by",
        "naive",
        "from set labels, setwise",
        "from every label",
    ]
    parts = [
        page.figure(_summary(results), "Every task at a glance: 1 is perfect."),
        page.table(columns, rows),
    ]
    if quick:
        parts.append(page.paragraph("**A quick run for tests: these figures mean nothing.**"))
    for task, result in results:
        pictures = [page.figure(draw().figure, caption) for draw, caption in result.pictures]
        words = (
            f"**Naive:** {task.naive}. **Learner** in all columns: {task.learner}. **Judged by:** "
            f"{task.judged}. {result.more}"
        )
        parts.append(
            page.section(
                f"{task.data}: {task.seen}",
                page.paragraph(task.about),
                page.paragraph(words),
                *pictures,
            )
        )
    made = [f"{name} {version(name)}" for name in ("setwise", "torch", "scikit-learn")]
    parts.append(
        page.section(
            "About this page",
            page.paragraph(
                "The sets and their labels are drawn at random from the training rows (seeds 100, "
                "101, …), but for the molecules, whose labels are real. The sizes of sets and the "
                "learners of the first four tasks were settled on other random splits of the same "
                "data; those of the molecules were not, see there. The learner and its settings "
                "are the same in every column."
            ),
            page.paragraph(
                "Data: diabetes (Efron, Hastie, Johnstone & Tibshirani 2004) and digits (Alpaydin "
                "& Kaynak 1998, UCI, CC BY 4.0) as in scikit-learn; MUSK, version 1 (Dietterich, "
                "Lathrop & Lozano-Pérez 1997, UCI, CC BY 4.0), which ships with setwise."
            ),
            page.paragraph(
                f"Made by `setwise demo` in {seconds:.0f} s with Python "
                f"{platform.python_version()}, {', '.join(made)}."
            ),
        )
    )
    return page.page(TITLE, *parts, lead=LEAD)


def _summary(results: list[tuple[Task, Result]]) -> Any:
    from setwise import plots
    from setwise.page import BLUE, GREY, ORANGE

    ax = plots.blank(4.8, 0.9 + 0.45 * len(results))
    for y, (_, result) in enumerate(results):
        values = [v for v in (result.naive, result.sets, result.full) if v is not None]
        ax.plot([min(values), max(values)], [y, y], color=GREY, linewidth=1, zorder=1)
    for key, colour, mark, label in (
        ("full", GREY, "D", "from every label"),
        ("naive", ORANGE, "o", "naive"),
        ("sets", BLUE, "o", "from set labels"),
    ):
        points = [(getattr(r, key), y) for y, (_, r) in enumerate(results)]
        x, at = zip(*[(v, i) for v, i in points if v is not None], strict=True)
        size = 8 if key == "sets" else 6.5
        ax.plot(x, at, mark, color=colour, markersize=size, label=label, linestyle="none")
    names = [f"{task.seen}\n{task.measure}" for task, _ in results]
    ax.set_yticks(range(len(results)), names)
    ax.tick_params(axis="y", length=0, labelsize=8.5)
    ax.set(ylim=(len(results) - 0.5, -0.5), xlim=(min(0, *(r.naive for _, r in results)), 1.02))
    ax.spines["left"].set_visible(False)
    ax.grid(True, axis="x", linewidth=0.6, alpha=0.5)
    ax.legend(
        frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.35, -0.1), ncol=3,
        columnspacing=1, handletextpad=0.2,
    )  # fmt: skip
    return ax.figure
