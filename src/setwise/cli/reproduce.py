"""`setwise reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

import setwise as sw
from setwise.cli.common import choose, split
from setwise.cli.common import table as new_table

__all__ = ["reproduce"]


def reproduce(
    table: Annotated[str, typer.Argument(help="uci, varying-k or regression")],
    trials: Annotated[int, typer.Option(min=1, help="Trials of each cell.")] = 10,
    datasets: Annotated[str, typer.Option(help="Some of the data sets, a,b,c.")] = "",
    methods: Annotated[str, typer.Option(help="Some of the columns, a,b,c.")] = "",
    setting: Annotated[str, typer.Option(help="protocol, best or both.")] = "both",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of results; a run goes on there.")] = Path(
        "results"
    ),
) -> None:
    """Run one of the paper's tables; a run that was stopped goes on where it was."""
    from setwise.experiments import regression
    from setwise.experiments.runner import Cell, Results, describe, run

    tables = ("uci", "varying-k", "regression")
    settings = {"both": ["protocol", "best"], "protocol": ["protocol"], "best": ["best"]}
    choose("table", [table], tables)
    choose("setting", [setting], settings)
    names = choose("data set", split(datasets), sw.datasets.names(table))
    columns = choose("method", split(methods), regression.methods(table))
    cells = [
        Cell(name, method, which, trial)
        for trial in range(trials)
        for name in names
        for method in columns
        for which in settings[setting]
    ]
    try:
        results = Results(out / f"{table}.csv")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    describe(results.path, sys.argv[1:])
    try:
        run(regression.work, cells, results, jobs=jobs, title=table)
    except OSError as error:  # a data set that cannot be had
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    console = Console()
    shown = new_table(
        f"{table}: mean and standard deviation of {trials} trial(s)",
        ("data set", "method", "setting", "error"),
        ("", "", "", "MSE; for ranks the variance"),
    )
    wanted = set(cells)
    for name in names:
        for method in columns:
            for which in settings[setting]:
                kind = (name, method, which)
                values = [
                    r.value
                    for r in results.rows
                    if r.cell in wanted and (r.dataset, r.method, r.setting) == kind
                ]
                deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
                shown.add_row(*kind, f"{np.mean(values):.4g} ± {deviation:.2g}")
    console.print(shown)
    console.print(f"Every result is in {results.path}")
