"""Files that appear whole or not at all, and one writer at a time."""

from __future__ import annotations

import errno
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

__all__ = ["beside", "locked", "sync"]

OWNED = sys.platform != "win32"  # where a lock would keep others from writing to the file
WAIT = 60.0  # seconds for another writer
PAUSE = 0.01


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to; in the end it replaces `path`.

    If anything goes wrong before, `path` stays as it was. What a killed writer left behind is
    removed by the next one.
    """
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        _sweep(left)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with new.open("xb") as alive:
        if OWNED:
            _lock(alive.fileno())
        else:
            alive.close()
        try:
            yield new
            sync(new)
            new.replace(path)
            sync(path.parent)
        finally:
            with suppress(OSError):  # of a disk that can no longer be written to
                new.unlink(missing_ok=True)


def _sweep(left: Path) -> None:
    """Removes a temporary file whose writer is gone."""
    with suppress(OSError), left.open("rb") as file:
        if OWNED and _lock(file.fileno()):
            left.unlink()


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    if not path.is_dir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        return
    with suppress(OSError):  # not every system can be asked for that
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def locked(path: Path, wait: float = WAIT) -> Iterator[None]:
    """While no other process or thread holds the lock that the file `path` stands for.

    A process that ends, however it does, gives its locks back.
    """
    until = time.monotonic() + wait
    while True:
        file = path.open("ab")
        try:
            if _lock(file.fileno()) and _is_same(file.fileno(), path):
                break
        except BaseException:
            file.close()
            raise
        file.close()
        if time.monotonic() > until:
            raise TimeoutError(
                f"another process has been writing to {path.parent} for {wait:.0f} seconds: wait "
                f"for its end, or name another place"
            )
        time.sleep(PAUSE)
    with file:
        try:
            yield
        finally:
            with suppress(OSError):  # those who wait for it see that it is another one
                path.unlink()


def _is_same(number: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(number), path.stat())
    return False


if sys.platform == "win32":
    import msvcrt

    def _lock(number: int) -> bool:
        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(number: int) -> bool:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # a disk may know no locks
            return error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
        return True
