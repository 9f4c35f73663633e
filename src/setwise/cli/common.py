"""What several commands share: errors, tables of facts, and writing beside a path."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Failure", "Mistake", "beside", "facts_table", "note", "number", "plug_in",
    "print_json", "split",
]  # fmt: skip


class Mistake(Exception):
    """What the user can put right, a wrong option or wrong data: one line, exit code 2."""

    code = 2


class Failure(Exception):
    """What went wrong although all was right: one line, exit code 1."""

    code = 1


def facts_table(console: Console, facts: Iterable[tuple[str, str, str]]) -> None:
    """Facts under each other: a word on the left, what it is, and dim details below."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table.grid(padding=(0, 2))
    shown.add_column(style="bold cyan", no_wrap=True, min_width=10)
    shown.add_column()
    for name, text, details in facts:
        shown.add_row(name, escape(text) + (f"\n[dim]{escape(details)}[/]" if details else ""))
    console.print(shown)
    console.print()


def note(console: Console, text: str) -> None:
    """A remark that the user should not miss."""
    from rich.markup import escape

    console.print(f"[yellow]Note:[/] {escape(text)}")


def plug_in(name: str) -> None:
    """Imports a Python file or a module: what it defines is known from then on."""
    path = Path(name)
    try:
        if path.suffix != ".py":
            import_module(name)
            return
        spec = spec_from_file_location(f"setwise_plugin_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's
        raise Mistake(f"--plugin {name}: {type(error).__name__}: {error}") from None


def number(x: float) -> str:
    """A number as one reads it.

    >>> number(1234567.0), number(0.00123456), number(12.0)
    ('1,234,567', '0.001235', '12')
    """
    if x == round(x) and abs(x) < 1e12:
        return f"{x:,.0f}"
    return f"{x:,.0f}" if 1e5 <= abs(x) < 1e12 else f"{x:.4g}"


def split(text: str) -> list[str]:
    """The parts of a,b,c."""
    return [part.strip() for part in text.split(",") if part.strip()]


def print_json(value: Any) -> None:
    """One JSON object on the standard output; numpy's numbers are numbers, NaN is null."""

    def plain(v: Any) -> Any:
        if isinstance(v, dict):
            return {str(k): plain(x) for k, x in v.items()}
        if isinstance(v, list | tuple):
            return [plain(x) for x in v]
        if hasattr(v, "tolist"):
            return plain(v.tolist())
        if isinstance(v, float) and not abs(v) < float("inf"):
            return None
        return v if v is None or isinstance(v, bool | int | float | str) else str(v)

    typer.echo(json.dumps(plain(value), ensure_ascii=False))


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write a file or folder under; in the end it replaces `path`.

    If anything goes wrong before, `path` stays as it was.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield new
        _replace(new, path)
    except OSError as error:
        raise Failure(f"{path} could not be written: {error.strerror or error}") from None
    finally:
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            new.unlink(missing_ok=True)


def _replace(new: Path, path: Path) -> None:
    if not path.is_dir():
        os.replace(new, path)
        return
    old = new.with_suffix(".old")  # a folder cannot be replaced in one step: it steps aside
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)
