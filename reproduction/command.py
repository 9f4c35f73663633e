"""The command: one word for each table, and `report`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import setwise as sw
from reproduction.files import Busy, rewrite
from reproduction.paper import BOOSTED, TABLES, exists
from reproduction.runner import Cell, Results, describe, run

__all__ = ["app"]

SETTINGS = {"both": ["protocol", "best"], "protocol": ["protocol"], "best": ["best"]}

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _main() -> None:
    """Run the tables of "Learning from Aggregate Observations", and report what came out."""


class Kind(NamedTuple):
    """How one of the tables is run and shown."""

    methods: tuple[str, ...]
    work: Any
    unit: str
    digits: str
    options: dict[str, Any]  # of the runner
    others: tuple[str, ...] = ()  # data sets that the table takes beside the paper's


def reproduce(
    context: typer.Context,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each cell.")] = 10,
    datasets: Annotated[str, typer.Option(help="Some of the data sets, a,b,c.")] = "",
    methods: Annotated[str, typer.Option(help="Some of the columns, a,b,c.")] = "",
    setting: Annotated[str, typer.Option(help="protocol, best or both.")] = "both",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    scheduler: Annotated[str, typer.Option(help="Address of a Dask cluster to use.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda, for classes.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder of results; a run goes on there.")] = Path(
        "results"
    ),
) -> None:
    """Run a table; a run that was stopped goes on where it was."""
    table = str(context.info_name)
    choose("setting", [setting], SETTINGS)
    choose("device", [device], ("cpu", "cuda"))
    kind = _kind(table, device)
    paper = sw.datasets.names(table)
    names = choose("data set", split(datasets), (*paper, *kind.others))
    names = names if datasets else list(paper)
    columns = choose("method", split(methods), kind.methods)
    cells = [
        Cell(name, method, which, trial)
        for trial in range(trials)
        for name in names
        for method in columns
        for which in SETTINGS[setting]
        if exists(table, method, which)
    ]
    if not cells:
        raise typer.BadParameter(
            f"there is no {setting} for {', '.join(columns)}: leave --setting out"
        )
    try:
        results = Results(out / f"{table}.csv")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        began = partial(describe, results.path, sys.argv[1:])
        options = {"jobs": jobs, "scheduler": scheduler, **kind.options}
        run(kind.work, cells, results, title=table, began=began, **options)
    except (Busy, OSError) as error:  # of a full disk, or a data set that cannot be had
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    console = Console()
    title = f"{table}: mean and standard deviation of {trials} trial(s)"
    console.print(_shown(title, kind, cells, results))
    console.print(f"Every result is in {results.path}")


for one in TABLES.values():
    app.command(one.name, help=f"Run the table of {one.about}.")(reproduce)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="The folder that tables were written to.")],
    out: Annotated[Path, typer.Option(help="The page; .md for Markdown without drawings.")] = Path(
        "report.html"
    ),
) -> None:
    """Set the results of the tables beside the paper's figures, on one page."""
    from reproduction.folder import ResultsError
    from reproduction.report import html, markdown

    try:
        text = markdown(results) if out.suffix == ".md" else html(results)
        rewrite(out, text)
    except ImportError as error:
        message = f"{error}: pip install 'setwise[plots]', or ask for --out report.md"
    except (ResultsError, OSError) as error:
        message = str(error)
    else:
        typer.echo(f"The report is in {out}")
        return
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(2)


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


def _kind(table: str, device: str) -> Kind:
    if table in ("binary", "multiclass", "images"):
        return _classes(table, device)
    from reproduction import regression

    if device != "cpu":
        raise typer.BadParameter(f"the table {table} is for the CPU: leave --device out")
    unit = "MSE; for ranks the variance"
    return Kind(regression.methods(table), regression.work, unit, ".4g", {})


def _classes(table: str, device: str) -> Kind:
    import torch

    from reproduction import classification, images

    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch finds no CUDA device here: leave --device out")
    module: Any = images if table == "images" else classification
    fitting = [
        name
        for name in sw.datasets.names()
        if sw.datasets.info(name).task == table or (table == "images" and name == "digits")
    ]

    def cost(cell: Cell) -> float:
        return float(sw.datasets.info(cell.dataset).rows)

    def apart(cell: Cell) -> bool:
        return cell.method.endswith(BOOSTED)  # nothing is gained by boosting trials together

    options = {"together": True, "apart": apart, "cost": cost, "spawn": device == "cuda"}
    work = partial(module.work_many, device=device)
    return Kind(module.methods(), work, "accuracy, %", ".2f", options, tuple(fitting))


def _shown(title: str, kind: Kind, cells: list[Cell], results: Results) -> Table:
    shown = Table("data set", "method", "setting", title=title, title_justify="left",
                  title_style="bold", box=box.SIMPLE_HEAD)  # fmt: skip
    shown.add_column(f"figure\n[dim not bold]{kind.unit}[/]", justify="right")
    wanted = set(cells)
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in results.rows:
        if row.cell in wanted:
            values.setdefault((row.dataset, row.method, row.setting), []).append(row.value)
    for key in dict.fromkeys((c.dataset, c.method, c.setting) for c in cells):
        found = values[key]
        deviation = np.std(found, ddof=1) if len(found) > 1 else 0.0
        shown.add_row(*key, f"{np.mean(found):{kind.digits}} ± {deviation:.2g}")
    return shown
