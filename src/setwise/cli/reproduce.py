"""`setwise reproduce`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console

import setwise as sw
from setwise.cli.common import choose, split
from setwise.cli.common import table as new_table

if TYPE_CHECKING:
    from setwise.experiments.runner import Cell

__all__ = ["reproduce"]

TABLES = ("images", "uci", "varying-k", "binary", "multiclass", "regression")
SETTINGS = {"both": ["protocol", "best"], "protocol": ["protocol"], "best": ["best"]}


class Kind(NamedTuple):
    """How one of the tables is run and shown."""

    methods: tuple[str, ...]
    work: Any
    unit: str
    digits: str
    options: dict[str, Any]  # of the runner
    others: tuple[str, ...] = ()  # data sets that the table takes beside the paper's


def reproduce(
    table: Annotated[str, typer.Argument(help=", ".join(TABLES))],
    trials: Annotated[int, typer.Option(min=1, help="Trials of each cell.")] = 10,
    datasets: Annotated[str, typer.Option(help="Some of the data sets, a,b,c.")] = "",
    methods: Annotated[str, typer.Option(help="Some of the columns, a,b,c.")] = "",
    setting: Annotated[str, typer.Option(help="protocol, best or both.")] = "both",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda, for classes.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder of results; a run goes on there.")] = Path(
        "results"
    ),
) -> None:
    """Run one of the paper's tables; a run that was stopped goes on where it was."""
    from setwise.experiments.paper import exists
    from setwise.experiments.runner import Cell, Results, describe, run

    choose("table", [table], TABLES)
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
    if set(cells) - results.done:
        describe(results.path, sys.argv[1:])
    try:
        run(kind.work, cells, results, jobs=jobs, title=table, **kind.options)
    except OSError as error:  # a data set that cannot be had
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    title = f"{table}: mean and standard deviation of {trials} trial(s)"
    shown = new_table(title, ("data set", "method", "setting", "figure"), ("", "", "", kind.unit))
    wanted = set(cells)
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in results.rows:
        if row.cell in wanted:
            values.setdefault((row.dataset, row.method, row.setting), []).append(row.value)
    for key in dict.fromkeys((c.dataset, c.method, c.setting) for c in cells):
        found = values[key]
        deviation = np.std(found, ddof=1) if len(found) > 1 else 0.0
        shown.add_row(*key, f"{np.mean(found):{kind.digits}} ± {deviation:.2g}")
    console = Console()
    console.print(shown)
    console.print(f"Every result is in {results.path}")


def _kind(table: str, device: str) -> Kind:
    if table in ("binary", "multiclass", "images"):
        return _classes(table, device)
    from setwise.experiments import regression

    if device != "cpu":
        raise typer.BadParameter(f"the table {table} is for the CPU: leave --device out")
    unit = "MSE; for ranks the variance"
    return Kind(regression.methods(table), regression.work, unit, ".4g", {})


def _classes(table: str, device: str) -> Kind:
    import torch

    from setwise.experiments import classification, images
    from setwise.experiments.paper import BOOSTED

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
