"""The command line: `setwise demo`, `setwise kinds` and `setwise reproduce`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch.distributions import Categorical, Normal

import setwise as sw
from setwise.distributions import families
from setwise.likelihood import aggregates, find_rule

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.callback()
def _main() -> None:
    """Learn to predict individuals from labels given to sets of them."""


@app.command()
def demo() -> None:
    """Simulate set labels of two embedded data sets and show what they can tell."""
    from sklearn.datasets import load_diabetes, load_digits
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.preprocessing import scale

    console = Console()
    start = time.perf_counter()
    console.print(
        "\nThree models of each data set, from poor to good, judged twice: by the labels of\n"
        "[bold]sets[/], which is all that setwise sees, and by the hidden labels of [bold]"
        "individuals[/].\nThe two agree, so a model can be chosen, or learned, from set labels "
        "alone.\n"
    )

    X, z = load_diabetes(return_X_y=True)
    pairs, fours = sw.Sets.random(len(z), 4420, 2, seed=1), sw.Sets.random(len(z), 442, 4, seed=2)
    # the targets are whole numbers, so some pairs tie
    ranks, means = sw.Rank(tie_margin=0.5).observe(z, pairs), sw.Mean().observe(z, fours)
    table = _table(
        "Diabetes: 442 patients, progression of the disease",
        ("model", "means of 4", "ranks of 2", "R²"),
        ("", "log-lik. per set", "log-lik. per set", "per patient"),
    )
    for name, columns in (
        ("constant", []),
        ("body mass only", [2]),
        ("all 10 features", range(10)),
    ):
        guess = np.full(len(z), z.mean())
        if len(columns):
            guess = LinearRegression().fit(X[:, columns], z).predict(X[:, columns])
        rows = Normal(torch.tensor(guess), torch.tensor(float(np.std(z - guess))))
        scores = [_score(observed, rows) for observed in (means, ranks)]
        r2 = 1 - np.var(z - guess) / np.var(z)
        table.add_row(name, *(f"{s:.3f}" for s in scores), f"{r2:.2f}")
    console.print(table)

    X, z = load_digits(return_X_y=True)
    X = scale(X)
    triples, bags = sw.Sets.random(len(z), 5391, 3, seed=3), sw.Sets.random(len(z), 500, 8, seed=4)
    triplets = sw.Triplet().observe(z, triples)
    counts = sw.Counts(n_classes=10).observe(z, bags)
    table = _table(
        "Digits: 1797 images, 10 classes",
        ("model", "triplets", "counts of 8", "accuracy"),
        ("", "log-lik. per set", "log-lik. per set", "per image"),
    )
    for name, n_features in (("uniform", 0), ("top half only", 32), ("whole image", 64)):
        logits = np.zeros((len(z), 10))
        if n_features:
            features = X[:, :n_features]
            model = LogisticRegression(C=0.01, max_iter=500).fit(features, z)
            logits = model.decision_function(features)
        classes = Categorical(logits=torch.tensor(logits))
        scores = [_score(observed, classes) for observed in (triplets, counts)]
        accuracy = float(np.mean(logits.argmax(1) == z)) if n_features else 0.1
        table.add_row(name, *(f"{s:.3f}" for s in scores), f"{accuracy:.0%}")
    console.print(table)
    n_sets = sum(len(observed) for observed in (means, ranks, triplets, counts))
    console.print(
        f"{n_sets:,} set labels, every likelihood exact, {time.perf_counter() - start:.1f} s in "
        f"all.\n[dim]setwise kinds[/] lists what can be observed of a set.\n"
    )


def _table(title: str, columns: tuple[str, ...], units: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column, unit in zip(columns, units, strict=True):
        header = f"{column}\n[dim not bold]{unit}[/]"
        table.add_column(header, justify="right" if unit else "left")
    return table


def _score(observed: sw.Observations, rows: torch.distributions.Distribution) -> float:
    value = sw.log_likelihood(observed.aggregate, rows, observed.sets, observed.y)
    return float(value.mean())


@app.command()
def kinds() -> None:
    """List every aggregate and how its likelihood is computed for each family."""
    console = Console()
    for cls in aggregates():
        ways: dict[tuple[str, bool], list[str]] = {}
        for family in families().values():
            try:
                rule = find_rule(cls, family.distribution)
            except TypeError:
                continue
            ways.setdefault((rule.how, rule.exact), []).append(family.__name__)
        if not ways:
            continue
        summary = (cls.__doc__ or "").strip().split("\n")[0]
        console.print(f"[bold]{cls.__name__}[/]  {summary}")
        for (how, exact), names in ways.items():
            mark = "exact" if exact else "numerical"
            console.print(
                f"    [cyan]{', '.join(names)}[/]: {how} [dim]({mark})[/]", highlight=False
            )


@app.command()
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
    _choose("table", [table], tables)
    _choose("setting", [setting], settings)
    names = _choose("data set", _split(datasets), sw.datasets.names(table))
    columns = _choose("method", _split(methods), regression.methods(table))
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
    shown = _table(
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


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _choose(what: str, given: list[str], known: Iterable[str]) -> list[str]:
    """What was asked for, all where nothing was; an error that lists what there is."""
    known = list(known)
    for name in given:
        if name not in known:
            raise typer.BadParameter(f"unknown {what} {name!r}; known are {', '.join(known)}")
    return given or known


if __name__ == "__main__":
    app()
