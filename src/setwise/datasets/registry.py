"""The one table of data sets: what each is, where it comes from and under which licence."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["Catalogue", "File", "Info", "info", "names", "registry"]

TABLES = ("images", "uci", "varying-k", "binary", "multiclass", "regression")


@dataclass(frozen=True)
class File:
    """A file of a data folder: its path there, its size and its SHA-256 ("" where unknown)."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Info:
    """What is known of a data set without loading it.

    `rows` and `features` are those of `X` (categorical features one-hot encoded; None for raw
    text), `classes` the number of classes. `tables` names the tables of the paper that use the set
    and `paper` the statistics printed there (d features, n rows, c classes); `paper_name` is its
    name there. `partial` says that the known file holds only some of the `full_rows` rows.
    `where` is filled by `available`: local folder, cache, embedded, download or missing.
    """

    name: str
    task: str
    rows: int
    licence: str
    source: str
    citation: str
    features: int | None = None
    classes: int | None = None
    class_counts: Mapping[str, int] = field(default_factory=dict)
    test_rows: int | None = None
    tables: tuple[str, ...] = ()
    paper_name: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    categorical: tuple[str, ...] = ()
    target_range: tuple[float, ...] = ()
    target_scale: float = 1.0
    partial: bool = False
    full_rows: int | None = None
    sets: int | None = None
    aggregate: str = ""
    note: str = ""
    openml: str = ""
    download: Mapping[str, Any] = field(default_factory=dict)
    embedded: str = ""
    where: str = ""

    @property
    def size(self) -> int:
        """Bytes on disk; 0 for what scikit-learn holds and for what is not known."""
        return sum(file.bytes for file in self.files)


class Catalogue(list[Info]):
    """A list of `Info` that prints as a table."""

    def __repr__(self) -> str:
        head = ("name", "task", "rows", "features", "classes", "size", "where", "licence")
        table = [(*head, "citation"), *map(_line, self)]
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        lines = (zip(row, widths, strict=True) for row in table)
        return "\n".join("  ".join(v.ljust(w) for v, w in line).rstrip() for line in lines)


def _line(one: Info) -> tuple[str, ...]:
    return (
        one.name,
        one.task + (", partial" if one.partial else ""),
        str(one.rows),
        "text" if one.features is None else str(one.features),
        str(one.classes or ""),
        f"{one.size / 1e6:.2f} MB" if one.size else "",
        one.where,
        one.licence,
        one.citation,
    )


@cache
def registry() -> dict[str, Info]:
    """Every data set by its name, in the order of the paper's tables."""
    text = files(__package__).joinpath("registry.json").read_text(encoding="utf-8")
    return {entry["name"]: _info(entry) for entry in json.loads(text)}


def _info(entry: dict[str, Any]) -> Info:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    fields["files"] = tuple(File(**file) for file in entry.get("files", ()))
    fields.setdefault("paper_name", entry["name"])
    return Info(**fields)


def info(name: str) -> Info:
    """The entry of a data set, by its name here or in the paper; case, space and _ do not matter.

    >>> info("fmnist").name, info("Breast_Cancer").rows
    ('fashion-mnist', 569)
    """
    entries = registry()
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    if plain in entries:
        return entries[plain]
    by_paper = {one.paper_name: one for one in entries.values()}
    if plain in by_paper:
        return by_paper[plain]
    close = difflib.get_close_matches(plain, [*entries, *by_paper], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(dict.fromkeys(close))}? " if close else ""
    raise ValueError(
        f"no data set is called {name!r}: {hint}sw.datasets.available() lists all of them"
    )


def names(table: str | None = None) -> tuple[str, ...]:
    """The names of all data sets, or of those in one table of the paper, in its order.

    >>> names("uci")
    ('abalone', 'airfoil', 'auto-mpg', 'concrete', 'housing', 'power-plant')
    """
    if table is not None and table not in TABLES:
        raise ValueError(f"no table is called {table!r}: expected one of {', '.join(TABLES)}")
    return tuple(n for n, one in registry().items() if table is None or table in one.tables)
