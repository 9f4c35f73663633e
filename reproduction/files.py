"""Files of results: lines are only ever added, by one run at a time, and survive any kill."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, where nobody keeps two runs apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["Busy", "Lines", "alone", "rewrite"]

WAIT = 3.0  # seconds for the processes of a run that was killed to end


class Busy(Exception):
    """Another run writes to the file."""


class Lines:
    """A CSV file with these columns; a last line that was cut short does not count."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, list(names)

    def read(self) -> Iterator[tuple[int, dict[str, str]]]:
        """(number, fields by name) of each whole line."""
        text = self._whole() if self.path.exists() else ""
        reader = csv.reader(io.StringIO(text))
        for number, fields in enumerate(reader, start=1):
            if number > 1 and len(fields) == len(self.names):
                yield number, dict(zip(self.names, fields, strict=True))
            elif number > 1 or fields != self.names:
                raise ValueError(
                    f"{self.path}, line {number}: not a result; the columns are "
                    f"{', '.join(self.names)}. Name another file, or remove that line"
                )

    def append(self, lines: Iterable[Sequence[Any]]) -> None:
        """Adds lines, below the header where there is none yet; the disk has them in the end."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        end = len(self._whole().encode()) if self.path.exists() else 0
        writer.writerows([*([] if end else [self.names]), *lines])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.truncate(end)  # without a line that was cut short
            try:
                file.write(text.getvalue().encode())
                file.flush()
            except OSError:
                os.ftruncate(file.fileno(), end)
                raise
            os.fsync(file.fileno())

    def _whole(self) -> str:
        text = self.path.read_text(encoding="utf-8")
        return text[: text.rfind("\n") + 1]


def rewrite(path: Path, text: str) -> None:
    """Replaces a file as a whole, or not at all."""
    new = path.with_name(f".{path.name}.part")
    try:
        with new.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While no other run adds to the file; `Busy` where one does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        until = time.monotonic() + WAIT
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Busy(f"another run writes to {path}: wait for its end") from None
                time.sleep(0.05)
        try:
            yield
        finally:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_UN)
