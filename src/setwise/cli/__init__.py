"""The command line. Each command is a module of its own; what it needs is imported when it runs."""

from __future__ import annotations

import typer

from setwise.cli.demo import demo
from setwise.cli.kinds import kinds
from setwise.cli.reproduce import reproduce

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _main() -> None:
    """Learn to predict individuals from labels given to sets of them."""


for command in (demo, kinds, reproduce):
    app.command()(command)
