"""`setwise demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from setwise.cli.common import Failure, no_pictures, writing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from setwise.cli.demo.tasks import Result, Task

__all__ = ["demo"]

TITLE = "Learning about individuals from labels of sets"


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
    lacking = no_pictures() if html else ""
    console, start = Console(highlight=False), time.perf_counter()
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
        "scored on what was not in the fit; 1 is perfect.[/]"
    )
    if lacking:
        console.print(f"\nNo page: {lacking}", markup=False)
    elif html:
        from setwise.cli.demo.page import page
        from setwise.report.page import write

        with writing(out):
            write(out, page(TITLE, results, seconds, quick))
        console.print(f"\nPictures: [bold]{out}[/]")
    console.print(f"[dim]{seconds:.0f} s. Next: setwise kinds, setwise fit --help[/]")


def _run(console: Console, quick: bool) -> list[tuple[Task, Result]]:
    """The results of all tasks; a terminal shows the table while it fills."""
    from rich.console import Group
    from rich.live import Live
    from rich.spinner import Spinner

    done: list[tuple[Task, Result]] = []
    waiting = Spinner("dots", "getting ready")
    with Live(waiting, console=console, refresh_per_second=8, transient=True) as live:
        from setwise.cli.demo.tasks import TASKS

        for task in TASKS:
            waiting.update(text=f"{task.data}: learning from {task.seen}")
            live.update(Group(_table(done, task), waiting))
            done.append((task, task.run(quick)))
    console.print(_table(done, None))
    return done


def _table(done: list[tuple[Task, Result]], doing: Task | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=f"\n{TITLE}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("data", "seen", "judged by"):
        table.add_column(f"\n{name}")
    for name in ("\nnaive", "set\nlabels", "every\nlabel"):
        table.add_column(name, justify="right")
    for task, result in done:
        naive, sets, full = result.shown
        style = "bold green" if result.gains else "default"
        table.add_row(task.data, task.seen, task.measure, naive, f"[{style}]{sets}[/]", full)
    if doing is not None:
        table.add_row(f"[dim]{doing.data}", f"[dim]{doing.seen}", f"[dim]{doing.measure}")
    return table
