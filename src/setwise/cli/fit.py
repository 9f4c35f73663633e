"""`setwise fit`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from setwise.cli import config as c
from setwise.cli.common import (
    INTERRUPTED,
    Failure,
    Mistake,
    as_json,
    facts_table,
    no_pictures,
    note,
    writing,
)
from setwise.cli.config import Command, FitSpec

__all__ = ["Command", "fit"]


def fit(
    ctx: typer.Context,
    rows: Annotated[
        Path | None,
        typer.Argument(help="Table of rows: CSV, Parquet, Feather, JSON lines; or a folder."),
    ] = None,
    sets: c.SetsFiles = None,
    observe: c.Observe = None,
    y: c.Y = None,
    group: c.Group = None,
    members: c.Members = None,
    rows_columns: c.RowsColumns = None,
    weight: c.Weight = None,
    noise: c.Noise = None,
    effect: c.Effect = None,
    positive: c.Positive = None,
    id: c.Id = "",
    features: Annotated[str, typer.Option(help="Feature columns: a,b,c. Default: all.")] = "",
    drop: Annotated[str, typer.Option(help="Columns that are no features.")] = "",
    categories: Annotated[str, typer.Option(help="Number columns that are categories.")] = "",
    missing: Annotated[str, typer.Option(help="Texts that mean a missing value: ?,unknown")] = "",
    on_missing: c.OnMissing = "",
    classes: Annotated[str, typer.Option(help="Number of classes, or their names a,b,c.")] = "",
    family: Annotated[str, typer.Option(help="Distribution of a target. Default: normal.")] = "",
    learner: Annotated[str, typer.Option(help="Default: auto. Also linear, lightgbm, …")] = "",
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the learner: n_estimators=300.")
    ] = None,
    eval: Annotated[
        float | None, typer.Option(min=0, max=0.5, help="Share of sets held out. Default: 0.2.")
    ] = None,
    memory: Annotated[
        str, typer.Option(help="Read the rows in parts of about so much: 2GB. Default of a folder.")
    ] = "",
    seed: Annotated[int | None, typer.Option(help="Seed of all chance. Default: 0.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the model. Default: model.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML or TOML file with any of these; options go first.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a page about the model there: report.html.")
    ] = None,
    json: c.Json = False,
) -> None:
    """Learn a model of rows from labels of sets of them.

    Options after a --sets are about that file, so that several kinds can be mixed.
    """
    spec = c.read_config(config) if config else FitSpec()
    lined = c.sets_specs(ctx.meta["order"], ctx.params)
    spec.update({**ctx.params, "rows": rows, "out": out, "sets": lined})
    if spec.rows is None:
        raise Mistake("give the table of rows: setwise fit rows.csv --sets sets.csv …")
    if not spec.sets:
        raise Mistake("give the labels of sets: --sets sets.csv --observe mean --y income …")
    if report is not None and not report.absolute().parent.is_dir():
        raise Mistake(f"there is no folder {report.parent} for {report.name}: create it")
    if report is not None and (lacking := no_pictures()):
        raise Mistake(f"--report: {lacking}")
    _run(spec, report, json)


def _run(spec: FitSpec, report: Path | None, json: bool) -> None:
    from rich.console import Console

    from setwise.cli.fitting import Fitting
    from setwise.cli.summary import facts, outcome, words
    from setwise.io.persistence import check_target, save

    console = Console(stderr=json, highlight=False)
    assert spec.rows is not None
    try:
        check_target(spec.out)
    except ValueError as error:
        raise Mistake(f"--out: {error}") from None
    _check_out(spec.out)
    fitting = Fitting(spec)
    facts_table(console, words(fitting))
    for remark in (text for block in fitting.blocks for text in block.notes):
        note(console, remark)
    begin = time.perf_counter()
    est, remarks = fitting.train(1)
    result = {**facts(fitting), **fitting.judge(est)}
    if report is not None:
        fitting.report(est, report)
    est, more = fitting.train_on_all(est)
    result["seconds"] = round(time.perf_counter() - begin, 3)
    for remark in dict.fromkeys(remarks + more):
        note(console, remark)
    with writing(spec.out):
        try:
            save(est, spec.out, fitting.columns().notes())
        except (ImportError, TypeError, ValueError) as error:
            raise Failure(f"the model could not be saved: {error}") from None
    result |= {"model": str(spec.out), "report": None if report is None else str(report)}
    facts_table(console, outcome(result, fitting))
    if json:
        typer.echo(as_json(result))
    if est.interrupted_:
        raise typer.Exit(INTERRUPTED)


def _check_out(out: Path) -> None:
    """Raises, before any work, where the model could not be put."""
    for parent in (out.absolute(), *out.absolute().parents):
        if parent.exists():
            if not parent.is_dir():
                raise Mistake(f"{parent} is a file: {out} cannot be made in it")
            if not os.access(parent, os.W_OK):
                raise Mistake(f"{out} cannot be made: {parent} cannot be written to")
            break
