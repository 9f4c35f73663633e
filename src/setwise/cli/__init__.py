"""The command line. Each command is a module of its own, imported only when it runs."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from setwise.cli.common import INTERRUPTED, Failure, Mistake, plug_in
from setwise.errors import in_short

__all__ = ["COMMANDS", "app"]

LONGEST = 800  # letters of an error
LONGEST_WORD = 200  # letters of a value that an error repeats

# Command `x` is the function `x` of the module `setwise.cli.x`, which --help does not import. Here
# stands the first line of its docstring.
COMMANDS = {
    "demo": "Learn from labels of sets on embedded data, and show what that is worth.",
    "fit": "Learn a model of rows from labels of sets of them.",
    "predict": "Predict every row of a file or folder, which may be larger than memory.",
    "evaluate": "Judge a model by rows whose targets are known, or by labels of other sets.",
    "kinds": "List what can be observed of a set, how it is computed and what it can tell.",
}


class _Commands(TyperGroup):
    """Commands that are imported when they are called, so that --help is quick."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # enough for a list of commands; what runs is loaded by resolve_command
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _load(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Mistake, Failure, OSError) as error:  # of a disk that says no
            typer.secho(f"Error: {in_short(error, LONGEST)}", err=True, fg="red")
            raise typer.Exit(getattr(error, "code", Failure.code)) from None
        except KeyboardInterrupt:
            typer.secho("Interrupted: nothing was written", err=True, fg="yellow")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:  # of typer: a value that is no number, an unknown option
            if isinstance(said := getattr(error, "message", None), str):
                error.message = _cut(said)  # type: ignore[attr-defined]
            raise


def _cut(said: str) -> str:
    """An error of typer, whose long words are values that were given: no more of them."""
    words = re.sub(rf"(\S{{{LONGEST_WORD}}})\S+", r"\1…", said)
    return words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"


def _load(name: str) -> Any:
    module = import_module(f"setwise.cli.{name}")
    single = typer.Typer(add_completion=False)
    single.command(name, cls=getattr(module, "Command", None))(getattr(module, name))
    return typer.main.get_command(single)


app = typer.Typer(
    cls=_Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"setwise {version('setwise')}")
        raise typer.Exit


@app.callback()
def _main(
    show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SETWISE_PLUGIN",
            help="A Python file or module with aggregates, families or learners of your own.",
        ),
    ] = None,
) -> None:
    """Learn to predict individuals from labels given to sets of them."""
    for name in plugin or ():
        plug_in(name)
