"""A folder of results as the report sees it: trials, facts of the run, curves and reasons.

`TABLE.csv` has one line per trial, `TABLE.json` beside it the versions, the machine and the
command, `TABLE-history.csv`, where there is one, a line per step of a trial. `notes.toml` may give
reasons beyond what full supervision tells, or why there is no figure: `"DATASET/METHOD" = "text"`,
or `DATASET = "text"` for each method. Nothing is written.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from reproduction.paper import (
    BOOSTED,
    EITHER,
    TABLES,
    Figure,
    Table,
    columns,
    exists,
    figures,
    number,
    supervision,
    twin,
)
from setwise.datasets import info, names

__all__ = ["SETTINGS", "Folder", "Measured", "ResultsError", "read"]

SETTINGS = ("protocol", "best")
Key = tuple[str, str, str]  # data set, method, setting


class ResultsError(ValueError):
    """A folder of results that cannot be read; the message is one line."""


@dataclass(frozen=True)
class Measured:
    """The trials of one table."""

    table: Table
    values: dict[Key, dict[int, float]]
    seconds: float
    notes: list[str]
    facts: list[dict[str, Any]]  # of each run
    curves: dict[Key, dict[int, dict[float, float]]] = field(default_factory=dict)

    @cached_property
    def datasets(self) -> list[str]:
        """The data sets of the table, measured or not, then others that were measured."""
        return list(dict.fromkeys([*names(self.table.name), *(d for d, _, _ in self.values)]))

    @cached_property
    def methods(self) -> list[str]:
        """The paper's columns, measured or not, then those of ours that it has not."""
        return list(dict.fromkeys([*columns(self.table.name), *(m for _, m, _ in self.values)]))

    @property
    def trials(self) -> int:
        """The greatest number of trials of a cell."""
        return max((len(v) for v in self.values.values()), default=0)

    def ours(self, dataset: str, method: str, setting: str) -> Figure | None:
        """What we measured, None where nothing was; the deviation of one trial is NaN."""
        values = list(self.values.get((dataset, method, setting), {}).values())
        if not values:
            return None
        if not all(map(math.isfinite, values)):
            return Figure(math.nan, math.nan, len(values))
        std = statistics.stdev(values) if len(values) > 1 else math.nan
        return Figure(statistics.fmean(values), std, len(values))

    def theirs(self, dataset: str, method: str) -> Figure | None:
        """The paper's figure beside it, None where it has none."""
        return figures(self.table.name).get((dataset, twin(self.table.name, method) or ""))

    def cost(self, dataset: str, method: str) -> str:
        """What full supervision of the same model tells of "best", in words."""
        same = supervision(method)
        own, full = (self.values.get((dataset, m, "best"), {}) for m in (method, same))
        both, paper = own.keys() & full.keys(), self.theirs(dataset, same)
        if not both or paper is None:
            return ""
        if method == same:
            low, high = (number(end(own.values()), paper.mean) for end in (min, max))
            return f"Single trials have {low} to {high}; the paper's splits are not published."
        mine, most = (statistics.fmean(trials[t] for t in both) for trials in (own, full))
        if not (math.isfinite(mine) and math.isfinite(most)):
            return ""
        lost = most - mine if self.table.higher else 100 * (mine / most - 1)
        unit, least = (" points", 0.05) if self.table.higher else (" %", 0.5)
        cost = f"{lost:.1f}{unit}" if lost >= least else "nothing"
        return (
            f"Full supervision of the model in these trials has {number(most, paper.mean)} "
            f"(paper {number(paper.mean)}), so set labels cost {cost}."
        )

    def missing(self) -> list[str]:
        """What was not measured, one line for the data sets that lack the same."""
        out = []
        for setting in SETTINGS:
            gaps: dict[str, list[str]] = defaultdict(list)
            for dataset in self.datasets:
                counts = {
                    m: len(self.values.get((dataset, m, setting), ()))
                    for m in self.methods
                    if exists(self.table.name, m, setting)
                }
                lacks: dict[int, list[str]] = defaultdict(list)
                for method, count in counts.items():
                    if count < self.trials:
                        lacks[count].append(method)
                parts = []
                for count, methods in sorted(lacks.items()):
                    what = "every method" if len(methods) == len(counts) else ", ".join(methods)
                    parts.append(f"{what} ({count} of {self.trials} trials)" if count else what)
                if parts:
                    gaps["; ".join(parts)].append(dataset)
            for what, where in gaps.items():
                sets = "every data set" if len(where) == len(self.datasets) else ", ".join(where)
                out.append(f"`{setting}`, {sets}: {what}")
        return out


@dataclass(frozen=True)
class Folder:
    """The tables of a folder by name, in the paper's order, and reasons by data set and method."""

    path: Path
    tables: dict[str, Measured]
    reasons: dict[tuple[str, str], str]

    def why(self, table: str, dataset: str, method: str) -> str:
        """Why a row of "best" stays behind: what was measured and noted, "" where nothing was."""
        noted = self.reasons.get((dataset, method)) or self.reasons.get((dataset, ""), "")
        return f"{self.tables[table].cost(dataset, method)} {noted}".strip()


def read(path: Path) -> Folder:
    """Reads a folder of results.

    Raises:
        ResultsError: the folder or a file is not as expected; the message has file and line.
    """
    if not path.is_dir():
        raise ResultsError(
            f"{path} is no folder: name the one that `python -m reproduction` wrote to"
        )
    tables = {}
    for name, table in TABLES.items():
        file = path / f"{name}.csv"
        if file.exists():
            measured = _table(file, table)
            if measured.values:
                tables[name] = measured
    if not tables:
        wanted = ", ".join(f"{name}.csv" for name in TABLES)
        raise ResultsError(
            f"{path} holds no results: expected one or more of {wanted}; "
            f"`python -m reproduction TABLE --out {path}` makes them"
        )
    return Folder(path, tables, _reasons(path / "notes.toml"))


def _table(file: Path, table: Table) -> Measured:
    values: dict[Key, dict[int, float]] = defaultdict(dict)
    losses: dict[Key, dict[int, float]] = defaultdict(dict)  # of held-out sets
    seconds, notes = 0.0, []
    names = ("dataset", "method", "setting", "trial", "value", "seconds", "held_out", "note")
    for where, row in _lines(file, names):
        key, trial, value = _cell(where, row)
        if trial in values[key]:
            raise ResultsError(
                f"{where}: a second result of {', '.join(key)}, trial {trial}; remove one of them"
            )
        values[key][trial] = value
        seconds += _number(where, row, "seconds")
        if row["held_out"]:
            losses[key][trial] = _number(where, row, "held_out", finite=False)
        if row["note"]:
            notes.append(row["note"])
    values |= _either(values, losses)
    return Measured(
        table,
        dict(values),
        seconds,
        notes,
        _facts(file.with_suffix(".json")),
        _curves(file.with_name(f"{file.stem}-history.csv")),
    )


def _either(
    values: dict[Key, dict[int, float]], losses: dict[Key, dict[int, float]]
) -> dict[Key, dict[int, float]]:
    """Of a network and a boosted model the one that loses less of the held-out sets, by trial."""
    out: dict[Key, dict[int, float]] = {}
    for network, chosen in losses.items():
        dataset, method, setting = network
        boosted = dataset, method + BOOSTED, setting
        for trial in sorted(chosen.keys() & losses.get(boosted, {}).keys()):
            better = network if chosen[trial] <= losses[boosted][trial] else boosted
            either = dataset, method + EITHER, setting
            out.setdefault(either, {})[trial] = values[better][trial]
    return out


def _curves(file: Path) -> dict[Key, dict[int, dict[float, float]]]:
    curves: dict[Key, dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    if file.exists():
        for where, row in _lines(file, ("dataset", "method", "setting", "trial", "step", "value")):
            key, trial, value = _cell(where, row)
            curves[key][trial][_number(where, row, "step")] = value
    return {key: dict(trials) for key, trials in curves.items()}


def _lines(file: Path, names: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a file with their places; a last line without its end is still being written."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{file}: cannot be read ({error})") from error
    reader = csv.reader(text[: text.rfind("\n") + 1].splitlines())
    out = []
    try:
        head = next(reader, [])
        if tuple(head) != names:
            raise ResultsError(
                f"{file}, line 1: the columns should be {','.join(names)}, got {','.join(head)}"
            )
        for row in reader:
            where = f"{file}, line {reader.line_num}"
            if len(row) != len(names):
                raise ResultsError(f"{where}: expected {len(names)} fields, got {len(row)}")
            out.append((where, dict(zip(names, row, strict=True))))
    except csv.Error as error:
        raise ResultsError(f"{file}, line {reader.line_num}: {error}") from error
    return out


def _cell(where: str, row: dict[str, str]) -> tuple[Key, int, float]:
    try:
        dataset = info(row["dataset"]).name
    except ValueError as error:
        raise ResultsError(f"{where}: {error}") from error
    if row["setting"] not in SETTINGS:
        raise ResultsError(
            f"{where}: the setting should be {' or '.join(SETTINGS)}, got {row['setting']!r}"
        )
    key = dataset, row["method"], row["setting"]
    trial = _number(where, row, "trial")
    if trial != int(trial):
        raise ResultsError(f"{where}: trial should be a whole number, got {row['trial']!r}")
    return key, int(trial), _number(where, row, "value", finite=False)


def _number(where: str, row: dict[str, str], name: str, finite: bool = True) -> float:
    try:
        value = float(row[name])
        if finite and not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise ResultsError(f"{where}: {name} should be a number, got {row[name]!r}") from None
    return value


def _facts(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{file}: not JSON: {error}") from error
    if not (isinstance(facts, list) and all(isinstance(run, dict) for run in facts)):
        raise ResultsError(f"{file}: expected a list of runs, each an object of facts")
    return facts


def _reasons(file: Path) -> dict[tuple[str, str], str]:
    if not file.exists():
        return {}
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{file}: not TOML: {error}") from error
    flat: dict[str, Any] = {}
    for key, value in entries.items():
        if isinstance(value, dict):  # a table [DATASET] of METHOD = text does as well
            flat.update({f"{key}/{method}": text for method, text in value.items()})
        else:
            flat[key] = value
    out = {}
    for key, text in flat.items():
        dataset, _, method = key.partition("/")
        try:
            name = info(dataset).name
        except ValueError as error:
            raise ResultsError(f"{file}: {key}: {error}") from error
        if method and not any(twin(table, method) for table in TABLES):
            raise ResultsError(f"{file}: {key}: no table has a method {method}")
        if not isinstance(text, str):
            raise ResultsError(f"{file}: {key}: expected a text, got {text!r}")
        out[name, method] = text
    return out
