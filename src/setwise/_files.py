"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["beside"]


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write a file or folder under; in the end it replaces `path`.

    If anything goes wrong before, `path` stays as it was.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield new
        if new.is_file():
            with new.open("rb+") as file:
                os.fsync(file.fileno())
        _replace(new, path)
    finally:
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            new.unlink(missing_ok=True)


def _replace(new: Path, path: Path) -> None:
    if not path.is_dir():
        new.replace(path)
        return
    old = new.with_suffix(".old")  # a folder cannot be replaced in one step
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)
