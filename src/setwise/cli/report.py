"""`setwise report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from setwise.cli.common import Mistake

__all__ = ["report"]


def report(
    results: Annotated[Path, typer.Argument(help="The folder that `setwise reproduce` wrote to.")],
    out: Annotated[Path, typer.Option(help="The page; .md for Markdown without drawings.")] = Path(
        "report.html"
    ),
) -> None:
    """Set the results of the paper's tables beside its figures, on one page."""
    from setwise.experiments.folder import ResultsError
    from setwise.experiments.report import html, markdown
    from setwise.page import write

    try:
        write(out, markdown(results) if out.suffix == ".md" else html(results))
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise Mistake(
            "the drawings need matplotlib: pip install matplotlib, or ask for --out report.md"
        ) from None
    except (ResultsError, OSError) as error:
        raise Mistake(str(error)) from None
    typer.echo(f"The report is in {out}")
