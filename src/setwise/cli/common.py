"""What several commands share: errors, tables of facts, and writing beside a path."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setwise import _files

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "INTERRUPTED",
    "Failure",
    "Mistake",
    "as_json",
    "beside",
    "facts_table",
    "no_pictures",
    "note",
    "number",
    "plug_in",
    "split",
    "writing",
]  # fmt: skip


INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


class Mistake(Exception):
    """A wrong option or wrong data, which the user can correct: one line, exit code 2."""

    code = 2


class Failure(Exception):
    """A failure that is not the user's mistake: one line, exit code 1."""

    code = 1


def facts_table(console: Console, facts: Iterable[tuple[str, str, str]]) -> None:
    """Facts in rows: a word on the left, what it is, and dim details below."""
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


def no_pictures() -> str:
    """Why there can be no page with pictures; nothing where there can."""
    try:
        import_module("matplotlib.figure")
        import_module("jinja2")
    except ImportError as error:
        return f"pictures need {error.name or 'matplotlib'}: pip install 'setwise[plots]'"
    return ""


def plug_in(name: str) -> None:
    """Imports a Python file or a module, which registers what it defines."""
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
    """A number in a form that is easy to read.

    >>> number(1234567.0), number(0.00123456), number(12.0)
    ('1,234,567', '0.001235', '12')
    """
    if x == round(x) and abs(x) < 1e12:
        return f"{x:,.0f}"
    return f"{x:,.0f}" if 1e5 <= abs(x) < 1e12 else f"{x:.4g}"


def split(text: str) -> list[str]:
    """The parts of a,b,c."""
    return [part.strip() for part in text.split(",") if part.strip()]


def as_json(value: Any) -> str:
    """The value on one line of JSON; numpy's numbers are numbers, NaN and infinity are null."""
    text = json.dumps(value, default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v))
    finite = json.loads(text, parse_constant=lambda name: None)
    return json.dumps(finite, ensure_ascii=False)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While something is written there: what the disk says against it is a failure."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{path} could not be written: {error.strerror or error}") from None


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name to write a file under, which replaces `path` once it is whole."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _files.beside(path) as new:
            yield new
