"""Where files are: the folder named by SETWISE_DATA, then the cache of the user."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from setwise.datasets.registry import Info

__all__ = ["ChecksumError", "DatasetError", "cache_folder", "data_folder", "find", "present"]


class DatasetError(OSError):
    """A data set could not be loaded."""


class ChecksumError(DatasetError):
    """A file is not the expected one."""


def data_folder() -> Path | None:
    """The folder named by the environment variable SETWISE_DATA, if it is set."""
    value = os.environ.get("SETWISE_DATA", "")
    return Path(value).expanduser() if value else None


def cache_folder() -> Path:
    """The cache of the user: XDG_CACHE_HOME/setwise, LOCALAPPDATA on Windows, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or (
        os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else ""
    )
    return (Path(base) if base else Path.home() / ".cache") / "setwise"


def present(info: Info) -> tuple[str, Path] | None:
    """("local folder" or "cache", its path) of the first folder that has every file of the set."""
    for kind, folder in (("local folder", data_folder()), ("cache", cache_folder())):
        if folder and info.files and all((folder / f.path).is_file() for f in info.files):
            return kind, folder
    return None


def find(info: Info) -> list[Path] | None:
    """The files of a set in the first folder that has them, checked; None where there is none."""
    found = present(info)
    if found is None:
        return None
    kind, folder = found
    paths = [folder / file.path for file in info.files]
    if kind == "cache" and {"openml", "url"} & info.download.keys():
        return paths  # converted by us from another format: gzip's own checksum guards these
    listed = _manifest(folder)
    for file, path in zip(info.files, paths, strict=True):
        verify(path, listed.get(file.path, file.sha256))
    return paths


def verify(path: Path, sha256: str) -> None:
    """Raises unless the file has this SHA-256; "" stands for any."""
    if not sha256:
        return
    with path.open("rb") as stream:
        came = hashlib.file_digest(stream, "sha256").hexdigest()
    if came != sha256:
        raise ChecksumError(
            f"{path} has been altered or is incomplete: expected SHA-256 {sha256}, got {came}; "
            f"replace it by the original file, or remove it so that the next place is tried"
        )


def _manifest(folder: Path) -> dict[str, str]:
    """SHA-256 by path from the folder's own MANIFEST.json, which may list newer files."""
    path = folder / "MANIFEST.json"
    if not path.is_file():
        return {}
    try:
        entries = [e for part in json.loads(path.read_text("utf-8")).values() for e in part]
        entries = [e for e in entries if isinstance(e, dict)]
        entries += [file for e in entries for file in e.get("files", ())]
        return {e["file"]: e["sha256"] for e in entries if "file" in e and "sha256" in e}
    except (ValueError, AttributeError, TypeError) as error:
        raise DatasetError(f"{path} cannot be read ({error}): restore or remove it") from error
