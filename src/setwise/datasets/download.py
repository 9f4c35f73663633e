"""Downloads: plain files, tables to convert, OpenML."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import tempfile
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from setwise._files import beside
from setwise.datasets.build import build, check
from setwise.datasets.folders import ChecksumError, DatasetError, cache_folder, data_folder, verify
from setwise.datasets.registry import Info
from setwise.datasets.tables import Columns, column, columns, write_table

__all__ = ["DownloadError", "fetch", "not_had"]

TIMEOUT = 60.0  # seconds without an answer
FAILURES = (OSError, HTTPException, EOFError, zlib.error, zipfile.BadZipFile, ValueError)


class DownloadError(DatasetError):
    """A data set is not in any folder and could not be downloaded."""


def fetch(info: Info) -> None:
    """Puts the files of a set into the cache: each appears whole and checked, or not at all."""
    tried: list[str] = []
    try:
        if not info.download:
            raise DatasetError("no place to download it from is known")
        if "bases" in info.download:
            for file in info.files:
                target = cache_folder() / file.path
                urls = [base + target.name for base in info.download["bases"]]
                if not target.is_file():
                    _first(urls, partial(_save, target=target, sha256=file.sha256), tried)
            return
        table = _openml(info) if "openml" in info.download else _url(info, tried)
        table = _prepare(table, info.download)
        origin = info.download.get("url") or f"OpenML {info.download['openml']}"
        check(build(info, table, origin=origin))
    except FAILURES as error:
        raise not_had(info, tried or [str(error)]) from error
    with _cached(cache_folder() / info.files[0].path) as part, part.open("wb") as stream:
        write_table(stream, table)


def not_had(info: Info, tried: list[str]) -> DownloadError:
    """The error that lists what was tried and what to do."""
    folder = data_folder()
    local = "SETWISE_DATA is not set" if folder is None else f"SETWISE_DATA={folder} lacks it"
    if folder is not None and not folder.is_dir():
        local = f"SETWISE_DATA={folder} is not a folder"
    lines = [local, f"not in the cache {cache_folder()}", *tried]
    return DownloadError(
        f"the data set {info.name!r} could not be loaded:\n"
        + "".join(f"  - {line}\n" for line in lines)
        + "Set the environment variable SETWISE_DATA to a folder that holds "
        + " and ".join(file.path for file in info.files)
        + (", or try again with a network connection." if info.download else ".")
    )


# ---- plain files


def _first(urls: list[str], fetch: Callable[[str], Any], tried: list[str]) -> Any:
    """The result of the first place that works; errors of the others are added to `tried`."""
    for url in urls:
        try:
            return fetch(url)
        except FAILURES as error:
            tried.append(f"{url}: {getattr(error, 'reason', None) or error}")
            last = error
            if isinstance(error, HTTPError):
                error.close()
    raise last


def _opened(url: str) -> Any:
    """The answer of a server, which reads like a file."""
    request = urllib.request.Request(url, headers={"User-Agent": "setwise"})
    return urllib.request.urlopen(request, timeout=TIMEOUT)


def _chunks(url: str) -> Generator[bytes]:
    """The bytes at an address, with a progress bar; raises if the connection ends early."""
    console = Console(stderr=True)
    shown = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    with (
        _opened(url) as answer,
        Progress(*shown, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        as progress,
    ):  # fmt: skip
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        task = progress.add_task(url.rsplit("/", 1)[-1], total=total)
        came = 0
        while chunk := answer.read(1 << 16):
            came += len(chunk)
            progress.update(task, completed=came)
            yield chunk
        if total is not None and came < total:
            raise DatasetError(f"the connection ended after {came} of {total} bytes")


def _save(url: str, target: Path, sha256: str) -> None:
    """Puts what is at an address into a file, if it is the file expected."""
    with _cached(target) as part:
        with part.open("wb") as stream:
            stream.writelines(_chunks(url))
        try:
            verify(part, sha256)
        except ChecksumError as error:
            raise ChecksumError(f"what came is not the expected file (SHA-256 {sha256})") from error


@contextmanager
def _cached(target: Path) -> Iterator[Path]:
    """A name to write a file of the cache under."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with beside(target) as part:
            yield part
    except PermissionError:  # Windows: another process has just put it there and reads it
        if not target.is_file():
            raise


# ---- tables


def _url(info: Info, tried: list[str]) -> Columns:
    """The table at an address: CSV, or lines of a label and a sentence, packed or not."""
    how = info.download
    if "head" in how:
        texts = [_first([how["url"]], partial(_head, lines=how["head"]), tried)]
    else:
        raw = _first([how["url"]], lambda url: b"".join(_chunks(url)), tried)
        packed = [raw]
        if "members" in how:
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                packed = [archive.read(member) for member in how["members"]]
        texts = [_decode(part) for part in packed]
    if "lines" in how:
        return _lines(texts, label_first=how["lines"] == "label text")
    rows = csv.reader(texts[0].splitlines(), delimiter=how.get("delimiter", ","),
                      skipinitialspace=True)  # fmt: skip
    filled = (row for row in rows if row)
    header = how.get("columns") or next(filled)
    return columns(list(header), filled)


def _head(url: str, lines: int) -> str:
    """The first lines of a compressed file, read no further than needed."""
    with _opened(url) as answer, gzip.open(answer, "rt", encoding="utf-8") as text:
        return "".join(itertools.islice(text, lines))


def _decode(raw: bytes) -> str:
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _lines(texts: list[str], *, label_first: bool) -> Columns:
    pairs = []
    for line in itertools.chain.from_iterable(text.split("\n") for text in texts):
        a, _, b = line.strip().partition(" ") if label_first else line.strip().rpartition("\t")
        label, sentence = (a, b) if label_first else (b, a)
        if sentence.strip():
            pairs.append((sentence.strip(), label))
    return columns(["text", "target"], pairs)


def _openml(info: Info) -> Columns:
    """A table of OpenML by its number; scikit-learn checks the MD5 that OpenML gives.

    The target is fetched as one more feature, because a sparse table leaves out the first class,
    which scikit-learn reads as arbitrary values in a target.
    """
    from sklearn.datasets import fetch_openml

    number = info.download["openml"]
    try:
        with (
            Console(stderr=True).status(f"{info.name}: OpenML data set {number}"),
            tempfile.TemporaryDirectory() as home,  # without one the data are fetched twice
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "A network error|Invalid cache")  # it tries again
            bunch = fetch_openml(
                data_id=number, target_column=None, data_home=home, as_frame=False,
                parser="liac-arff",
            )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DatasetError(f"OpenML data set {number}: {reason}") from error
    values = bunch.data.toarray() if hasattr(bunch.data, "toarray") else bunch.data
    table = {
        name: _words(values[:, c], bunch.categories[name])
        if name in bunch.categories
        else values[:, c]
        for c, name in enumerate(bunch.feature_names)
    }
    target = info.download.get("target") or bunch.details["default_target_attribute"]
    if target not in table:
        raise DatasetError(f"OpenML data set {number} has no column {target!r}")
    return {n: v for n, v in table.items() if n != target} | {"target": table[target]}


def _words(codes: NDArray[np.float64], labels: list[str]) -> NDArray[Any]:
    """The labels of these codes; blank for NaN."""
    return column("" if np.isnan(code) else labels[int(code)] for code in codes)


def _prepare(table: Columns, how: Any) -> Columns:
    """The table without dropped columns, rows with missing values and (if asked) repeated rows."""
    names = list(table)
    target = how["target"] if how.get("target") in names else names[-1]
    kept = [n for i, n in enumerate(names) if i not in how.get("drop", ()) and n != target]
    missing = [*how.get("missing", ()), "", "?"]
    whole = np.ones(len(table[target]), dtype=bool)
    for name in kept:
        v = table[name]
        whole &= ~np.isnan(v) if v.dtype.kind == "f" else ~np.isin(v.astype(str), missing)
    out = {name: table[name][whole] for name in kept}
    out = {n: column(v) if v.dtype.kind == "O" else v for n, v in out.items()}  # now numbers?
    out["target"] = table[target][whole]
    if how.get("unique"):
        rows = list(zip(*(v.tolist() for v in out.values()), strict=True))
        first = {row: i for i, row in reversed(list(enumerate(rows)))}
        at = sorted(first.values())
        out = {name: v[at] for name, v in out.items()}
    if "merge" in how:
        out["target"] = column(how["merge"][str(label)] for label in out["target"])
    return out
