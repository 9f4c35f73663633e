"""Folders for copies that are read again and again."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

__all__ = ["Scratch"]


class Scratch:
    """A new folder that is removed with this object, or at the end of the process."""

    def __init__(self, parent: str | Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="setwise-", dir=parent))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
