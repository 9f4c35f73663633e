"""`setwise predict`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from setwise.cli import config as c
from setwise.cli.common import Mistake, as_json, beside, facts_table, note

if TYPE_CHECKING:
    from setwise.cli.columns import Columns

__all__ = ["load", "predict"]

BATCH = 1 << 16


def predict(
    model: Annotated[Path, typer.Argument(help="Folder that setwise fit wrote.")],
    rows: Annotated[
        Path, typer.Argument(help="Rows with the columns of the fit: a table or a folder.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File of predictions. Default: CSV to the terminal.")
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0, max=0.9999, help="Probability of low to high; 0 for none.")
    ] = 0.9,
    id: c.Id = "",
    batch: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = BATCH,
    trusted: c.Trusted = False,
    json: c.Json = False,
) -> None:
    """Predict every row of a file or folder, which may be larger than memory."""
    from rich.console import Console

    from setwise.cli.files import format_of, names_in, write_batches

    console = Console(stderr=True, highlight=False)
    if out is None and json:
        raise Mistake("--json says what was done; name the file of predictions with --out")
    if out is not None:
        if out.suffix.lower() == ".gz":
            raise Mistake(f"{out}: predictions are not compressed with gzip; Parquet is small")
        format_of(out)
        if out.is_dir():
            raise Mistake(f"{out} is a folder: --out is a file")
        if out.exists() and rows.exists() and out.samefile(rows):
            raise Mistake(f"{out} is the file of rows itself: name another --out")
    est, columns = load(model, trusted)
    unknown: Counter[str] = Counter()
    name = id or (columns.id if columns.id in names_in(rows) else None)
    parts = _predictions(est, columns, rows, name, interval, batch, unknown)
    sizes: list[int] = []
    if out is None:
        write_batches(parts, sys.stdout.buffer, "csv")
    else:
        with beside(out) as new:
            sizes = write_batches(parts, new, format_of(out))
            if not sizes:
                raise Mistake(f"{rows}: there are no rows in it")
    for name, count in unknown.items():
        unseen = f"{count:,} values of {name} are categories that the model does not know"
        note(console, f"{unseen}; they count as missing")
    found = est.identifiability_
    if found.level != "exactly" and est.alignment_ is None:
        note(console, f"predictions are known {found.level}, in principle. {found.words}")
    if json:
        told = {"rows": sum(sizes), "batches": len(sizes), "unknown_categories": dict(unknown)}
        typer.echo(as_json({**told, "out": str(out), "identifiability": found.level}))
    elif out is not None:
        rows_done = f"{sum(sizes):,} rows of {rows}"
        facts_table(console, [("Predicted", rows_done, ""), ("Saved", str(out), "")])


def load(folder: Path, trusted: bool = False) -> tuple[Any, Columns]:
    """The model in a folder that `setwise fit` wrote, and what is known of its columns."""
    import setwise as sw
    from setwise.cli.columns import Columns

    if not folder.is_dir():
        raise Mistake(f"{folder}: there is no such folder; give the one that setwise fit wrote")
    columns = Columns.load(folder)
    try:
        est = sw.load(folder, trusted=trusted)
        if est.encoder_ is None:
            raise Mistake(f"{folder}: the model was not fitted to a table with names of columns")
        return est, columns
    except (ValueError, ImportError) as error:
        raise Mistake(str(error).replace("give trusted=True", "give --trusted")) from None


def _predictions(
    est: Any, columns: Columns, path: Path, id: str | None, level: float, size: int,
    unknown: Counter[str],
) -> Iterator[Any]:  # fmt: skip
    """Tables of predictions."""
    import numpy as np

    from setwise.cli.columns import encoded, types
    from setwise.cli.files import arrow, batches
    from setwise.cli.tables import Table
    from setwise.distributions import interval, point_estimate

    pa = arrow()
    wanted = types(est.encoder_)
    if id and id not in wanted:
        wanted[id] = pa.string()
    first = 0
    for data in batches(path, wanted, size, columns.missing):
        X = encoded(est.encoder_, data, Table(path, data), first)
        unknown.update(X.unknown)
        out: dict[str, Any] = {"row": np.arange(first, first + len(X))}
        if id:
            out = {id: data.column(id)}
        first += len(X)
        d = est.predict_dist(X)
        if hasattr(est, "classes_"):
            probs = np.asarray(d.probs)
            out["prediction"] = est.classes_[probs.argmax(1)]
            for i, name in enumerate(est.classes_.tolist()):
                out[f"p_{name}"] = probs[:, i]
        else:
            out["prediction"] = np.asarray(point_estimate(d), np.float64)
            if level > 0:
                out["low"], out["high"] = interval(d, level)
        yield pa.table(out)
