"""`setwise evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from setwise.cli import config as c
from setwise.cli.common import Mistake, as_json, facts_table, number
from setwise.cli.config import Command, FitSpec, SetsSpec
from setwise.cli.predict import load

if TYPE_CHECKING:
    from setwise.cli.columns import Columns
    from setwise.cli.tables import Table

__all__ = ["Command", "evaluate"]

KNOWN = 0.1  # of the rows of the fit; fewer are not worth a word


def evaluate(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(help="Folder that setwise fit wrote.")],
    rows: Annotated[
        Path, typer.Argument(help="Rows with the columns of the fit: a table or a folder.")
    ],
    truth: Annotated[str, typer.Option(help="Column of the rows file with the true target.")] = "",
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
    trusted: c.Trusted = False,
    json: c.Json = False,
) -> None:
    """Judge a model by rows whose targets are known, or by labels of other sets.

    What set labels leave open (order of classes, shift, unit) is aligned with the truth first.
    """
    from rich.console import Console

    from setwise.cli.columns import encoded, known_rows
    from setwise.cli.files import in_parts
    from setwise.cli.stored import read_stored
    from setwise.cli.tables import read
    from setwise.stored import FileRows

    console = Console(stderr=json, highlight=False)
    blocks = c.sets_specs(ctx.meta["order"], ctx.params)
    if not truth and not blocks:
        raise Mistake("judge by --truth column, or by --sets sets.csv --observe mean --y income …")
    est, columns = load(model, trusted)
    id = id or (columns.id or "")
    table: Table
    X: Any = None
    if in_parts(rows) and not truth:
        table = stored = read_stored(FitSpec(rows=rows, missing=columns.missing))
        assert stored.files is not None
        X = FileRows(stored.files, est.encoder_)
    else:
        table = read(rows, [id, truth, *(n for b in blocks for n in b.group)], columns.missing)
    for feature in est.encoder_.columns:
        table.known(feature.name)
    X = encoded(est.encoder_, table.data, table) if X is None else X
    result: dict[str, Any] = {"model": str(model), "rows": len(table)}
    if blocks:
        result["sets"] = [_by_sets(est, columns, X, table, id, block) for block in blocks]
    if truth:
        result["truth"] = _by_truth(est, X, table, truth)
        result["truth"]["of_the_fit"] = known_rows(columns, table, X)
    facts_table(console, _words(result, rows))
    if json:
        typer.echo(as_json(result))


def _by_sets(
    est: Any, columns: Columns, X: Any, rows: Table, id: str, spec: SetsSpec
) -> dict[str, Any]:
    from setwise.cli.membership import observe, prepare

    made, table = prepare(spec, columns.missing)
    names = None
    if hasattr(est, "classes_") and est.classes_.dtype.kind not in "iu":
        names = [str(v) for v in est.classes_]
    block = observe(spec, made, table, rows, id, names)
    try:
        score = est.score(X, block.observations, profile=True)
    except (ValueError, TypeError) as error:
        raise block.explain(error) from None
    return {
        "file": str(spec.file),
        "observe": repr(block.observations.aggregate),
        "n": len(block.observations),
        "log_likelihood": score,
        "log_likelihood_constant": est.score_constant(X, block.observations),
    }


def _by_truth(est: Any, X: Any, table: Table, column: str) -> dict[str, Any]:
    """Errors of individual predictions, once aligned with the truth."""
    import numpy as np

    import setwise as sw
    from setwise.cli.membership import class_numbers

    is_classifier = hasattr(est, "classes_")
    if is_classifier:
        codes, known = class_numbers(table, column, [str(v) for v in est.classes_])
        codes = codes[known].astype(int)
        z: Any = est.classes_[codes]
    else:
        numbers = table.numbers(column)
        known = ~np.isnan(numbers)
        z = numbers[known]
    if not len(z):
        raise Mistake(f"{table.path}, column {column}: there is no value in it")
    X = X[known]
    level = est.identifiability_.level
    out: dict[str, Any] = {"column": column, "n": len(z), "identifiability": level}
    try:
        est.align(X, z)
        out["aligned"] = level != "exactly"
    except ValueError as error:
        out |= {"aligned": False, "why_not_aligned": str(error)}
    guess = est.predict(X)
    if is_classifier:
        out["accuracy"] = float(np.mean(guess == z))
        if est.identifiability_.permutation:
            out["permutation_accuracy"] = sw.metrics.permutation_accuracy(z, guess)
        _, counts = np.unique(z, return_counts=True)
        out["most_frequent_class"] = float(counts.max() / len(z))
        chosen = est.predict_proba(X)[np.arange(len(z)), codes]
        out["log_loss"] = float(-np.log(np.maximum(chosen, 1e-300)).mean())
        return out
    out["mse"] = sw.metrics.mean_squared_error(z, guess)
    out["mae"] = float(np.abs(z - guess).mean())
    if np.ptp(z) > 0:
        out["r2"] = 1 - out["mse"] / float(np.var(z))
        out["concordance"] = sw.metrics.concordance(z, guess)
    low, high = sw.distributions.interval(est.predict_dist(X), 0.9)
    out["coverage_90"] = float(np.mean((z >= low) & (z <= high)))
    return out


def _words(result: dict[str, Any], rows: Path) -> list[tuple[str, str, str]]:
    out = [
        (
            "Sets",
            f"log-likelihood {one['log_likelihood']:.4g} per set",
            f"{one['log_likelihood_constant']:.4g} without features; {one['n']:,} sets of "
            f"{one['file']}: {one['observe']}",
        )
        for one in result.get("sets", [])
    ]
    one = result.get("truth")
    if one is None:
        return out
    if "accuracy" in one:
        text = f"accuracy {one['accuracy']:.1%}, log loss {one['log_loss']:.3g}"
        best = one.get("permutation_accuracy")
        if best is not None and not one["aligned"]:
            text += f", {best:.1%} with classes renamed to fit best"
        details = f"the most frequent class alone: {one['most_frequent_class']:.1%}"
    else:
        text = f"mean squared error {number(one['mse'])}, absolute {number(one['mae'])}"
        text += f", R² {one['r2']:.3f}" if "r2" in one else ""
        details = f"{one['coverage_90']:.0%} of the targets in their 90 % interval"
        if "concordance" in one:
            details += f", {one['concordance']:.1%} of pairs in the right order"
    details += f"; {one['n']:,} rows of {rows}, column {one['column']}"
    if one["aligned"]:
        details += f"\nafter alignment: set labels identify this model {one['identifiability']}"
    elif "why_not_aligned" in one:
        details += f"\nnot aligned: {one['why_not_aligned']}"
    if (share := one["of_the_fit"]) >= KNOWN:
        some = "these are" if share > 0.95 else f"among these are {share:.0%} of"
        details += f"\n{some} the rows of the fit: the model, which has learned from their sets, "
        details += "may predict new rows less well"
    return [*out, ("Rows", text, details)]
