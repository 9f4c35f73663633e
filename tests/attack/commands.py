"""Hostile input to the command line: tables, configurations and options; no traceback."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from setwise.cli import app
from tests.attack.outcome import Case
from tests.attack.sandbox import run_each

__all__ = ["commands"]

LONGEST = 900
KINDS = ("csv", "tsv", "csv.gz", "jsonl", "parquet", "feather")
Rng = np.random.Generator
OPTIONS = {
    "observe": "mean", "y": "y", "group": "bag", "learner": "linear", "out": "model", "seed": "1",
}  # fmt: skip
WORDS = [
    "", " ", "x", "-1", "0", "1e999", "nan", "inf", "-inf", "9" * 5000, "9" * 400, "a,b,,c", ",,,",
    "é" * 300, "\udcff", "../..", "/dev/null", "/dev/full", "/", ".", "None", "[1, 2]", "{}",
    "mean:",
    "mean:x=1", "rank:tie_margin=nan", "noisy", "order-statistic:-1",
    "order-statistic:" + "9" * 5000,
    "flip=2", "normal=-1", "laplace=inf", "normal=x", "flip=0.1,normal=1", "=", "n_estimators=x",
    "n_estimators=1e400", "alpha=nan", "alpha=-1", "alpha=[[[[]]]]", "linear", "em", "blend",
    "counts",
    "proportions", "ranking", "interval", "uncoupled", "any-positive", "similarity", "coarse",
    "custom",
    "fold", "poisson", "normal", "bag", "y", "word", "a", "missing", "x" * 10_000, "\0", "a\nb",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", "x", "9" * 5000, [], [None],
    [[]], {},
    {"a": 1}, ["a", 1], "../..", "/dev/null", "rows.csv", {"file": "x"}, [{}], [{"file": None}],
]  # fmt: skip
TEXTS = [
    "rows: 2020-02-30\n", "rows: 2020-02-30T99:99:99\n", "seed: " + "9" * 5000 + "\n",
    "sets: " + "[" * 3000 + "]" * 3000, "rows: " + "{a: " * 2000 + "}" * 2000, "\xff\xfe",
    "rows: !!python/object:os.system x\n",
    "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
    "c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c]\nrows: *d\n",
    "rows: &r [*r]\n", "? [a]\n: b\n", "rows: rows.csv\nrows: rows.csv\n", "- rows\n",
    "seed: 0x1F\nrows: 1e400\n",
    "seed: .nan\n", "eval: .inf\n", "seed: 1:30\n", "\0", "%YAML 9.9\n---\nrows: x\n",
    "rows: |\n  a\n b\n",
]  # fmt: skip
TOMLS = [
    "rows = 2020-02-30\n", "seed = " + "9" * 5000 + "\n", "rows = " + "[" * 3000 + "]" * 3000,
    "rows = 1979-05-27T07:32:00Z\n", "[[sets]]\nfile = 1\n", "[sets]\n", "eval = nan\n",
    "seed = 0x" + "F" * 300 + "\n",
    "a." * 3000 + "b = 1\n",
]  # fmt: skip
CELLS = [
    "", "nan", "inf", "-inf", "1e400", "1e150", "-1e39", "9" * 400, "0x10", "2020-02-30", "yes",
    "é" * 200_000, '"', "'", "a,b",
    "\0", "\udcff", "=1+1", "1_000", "1 000", "NaN", "None", "null", "true", " 3 ", "--",
    "99999-01-01", "1e-320",
]  # fmt: skip


def commands(seed: int, cases: int, only: int | None = None) -> Iterator[Case]:
    """So many hostile calls; `only` is the number of one of them."""
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        start.mkdir()
        _prepare(start)
        work = partial(_attempt, seed=seed, start=start, place=Path(folder) / "place")
        for number, said in run_each(work, range(cases) if only is None else [only], seconds=20):
            outcome, _, told = said.partition(": ")
            good = outcome in ("accepted", "one sentence")
            yield Case("hostile commands", outcome, good, f"seed {seed} case {number}: {told}")


def _prepare(start: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(120, 2)), columns=["a", "b"])
    rows["word"] = np.array(["u", "v", "w"])[rng.integers(0, 3, 120)]
    rows["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(120), unit="D")
    rows["bag"] = np.repeat(np.arange(40), 3)
    bags = pd.DataFrame({"bag": np.arange(40), "y": rows.a.to_numpy().reshape(40, 3).mean(1)})
    for name, frame in (("rows", rows), ("bags", bags)):
        for kind in KINDS:
            _write(frame, start / f"{name}.{kind}")
    given = {**OPTIONS, "rows": "rows.csv"}
    options = {name: given.pop(name) for name in ("observe", "y", "group")}
    told = {**given, "seed": 1, "sets": [{"file": "bags.csv", **options}]}
    (start / "config.yaml").write_text(json.dumps(told, indent=1))
    lines = [f"{name} = {json.dumps(v)}" for name, v in told.items() if name != "sets"]
    lines += ["[[sets]]", *(f"{n} = {json.dumps(v)}" for n, v in told["sets"][0].items())]
    (start / "config.toml").write_text("\n".join(lines))
    with chdir(start):
        for kind in ("yaml", "toml"):
            result = CliRunner().invoke(app, ["fit", "--config", f"config.{kind}"])
            assert result.exit_code == 0, result.output


def _write(frame: Any, path: Path) -> None:
    kind = path.name.partition(".")[2]
    if kind in ("csv", "tsv", "csv.gz"):
        frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True, date_format="iso")
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_feather(path)


def _attempt(number: int, *, seed: int, start: Path, place: Path) -> str:
    rng = np.random.default_rng([seed, number])
    os.chdir("/")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(start, place)
    os.chdir(place)
    words, how = _case(place, rng)
    result = CliRunner().invoke(app, words)
    told = f"{how} | setwise {' '.join(words)[:200]}"
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        return f"traceback: {type(error).__name__}: {str(error)[:300]} | {told}"
    if result.exit_code not in (0, 1, 2):
        return f"exit {result.exit_code}: {told}"
    if result.exit_code == 0:
        return f"accepted: {told}"
    lines = [line for line in result.stderr.strip().splitlines() if line.startswith("Error: ")]
    usage = "Usage:" in result.stderr
    if not usage and (len(lines) != 1 or len(lines[0]) > LONGEST or "Error: " not in lines[0]):
        return f"not one sentence: {result.stderr[-300:]} | {told}"
    return f"one sentence: {lines[0][:200] if lines else 'usage'} | {told}"


def _case(place: Path, rng: Rng) -> tuple[list[str], str]:
    how = int(rng.integers(10))
    rows, bags = (f"{name}.{KINDS[rng.integers(len(KINDS))]}" for name in ("rows", "bags"))
    fit = ["fit", rows, "--sets", bags]
    usual = [word for name, v in OPTIONS.items() for word in (f"--{name}", v)]
    if how <= 1:  # options
        more = "noise members rows-columns weight id features drop positive categories missing"
        names = [*OPTIONS, *more.split(), "classes", "family", "set", "eval"]
        name, word = names[rng.integers(len(names))], WORDS[rng.integers(len(WORDS))]
        options = {**OPTIONS, name: word}
        return [*fit, *(w for n, v in options.items() for w in (f"--{n}", v))], f"--{name}"
    if how <= 3:  # a configuration
        return ["fit", "--config", *_config(place, rng)], "config"
    said = _table(place / (rows if rng.random() < 0.6 else bags), rng)
    if how <= 6:
        return [*fit, *usual], said
    if how == 7:
        return ["predict", "model", rows, "--out", f"p.{KINDS[rng.integers(len(KINDS))]}"], said
    if how == 8:
        return ["evaluate", "model", rows, "--truth", "a"], said
    rest = ["--observe", "mean", "--y", "y", "--group", "bag"]
    return ["evaluate", "model", rows, "--sets", bags, *rest], said


def _config(place: Path, rng: Rng) -> list[str]:
    kind = ("yaml", "toml")[rng.integers(2)]
    path, how = place / f"config.{kind}", int(rng.integers(4))
    texts = TEXTS if kind == "yaml" else TOMLS
    whole = path.read_bytes()
    if how == 0:
        path.write_bytes(texts[rng.integers(len(texts))].encode("latin-1", "replace"))
    elif how == 1:
        path.write_bytes(
            whole + b"\n" + texts[rng.integers(len(texts))].encode("latin-1", "replace")
        )
    elif how == 2:
        path.write_bytes(_flipped(whole, rng))
    else:
        told = json.loads((place / "config.yaml").read_text())
        holder = told if rng.random() < 0.6 else told["sets"][0]
        names = [*holder, "set", "classes", "features", "eval", "members", "weight"]
        holder[names[rng.integers(len(names))]] = VALUES[rng.integers(len(VALUES))]
        (place / "config.yaml").write_text(json.dumps(told))
        return ["config.yaml"]
    return [path.name]


def _table(path: Path, rng: Rng) -> str:
    """Damages a table; says how."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    binary, how = path.suffix in (".parquet", ".feather"), int(rng.integers(6))
    if binary or how == 0:
        if rng.random() < 0.3:
            changed = _other_type(path, rng)
            if changed:
                return changed
        text = _flipped(text, rng)
        said = "bytes"
    else:
        lines = text.decode().split("\n")
        at = int(rng.integers(len(lines) - 1)) if rng.random() < 0.8 else 0
        cell = CELLS[rng.integers(len(CELLS))]
        if path.suffix == ".jsonl":
            lines[at], said = _json_line(lines[at], cell, rng), f"line {at + 1}"
        elif how == 1:
            lines[at], said = lines[at] + "," + cell, f"a field too many in line {at + 1}"
        elif how == 2:
            lines[at], said = lines[at].rpartition(",")[0], f"a field too few in line {at + 1}"
        elif how == 3:
            lines, said = lines[:at], f"cut after line {at}"
        else:
            mark = "\t" if path.suffix == ".tsv" else ","
            fields = lines[at].split(mark)
            fields[rng.integers(len(fields))] = cell
            lines[at], said = mark.join(fields), f"a field of line {at + 1} is {cell[:20]!r}"
        text = "\n".join(lines).encode(errors="surrogateescape")
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" and how else text)
    return f"{path.name}, {said}"


def _json_line(line: str, cell: str, rng: Rng) -> str:
    how = int(rng.integers(5))
    if how == 0:
        return line[: int(rng.integers(1 + len(line)))]
    if how == 1:
        return '{"a": ' + "9" * 400 + ', "b": 1, "bag": 1, "y": 1e400}'
    if how == 2:
        return '{"a": ' * 3000 + "}" * 3000
    told = json.loads(line) if line else {}
    if told:
        name = list(told)[rng.integers(len(told))]
        told[name] = [cell, [cell], {"x": 1}, None, True, 10**400][rng.integers(6)]
    return json.dumps(told, ensure_ascii=bool(rng.integers(2)))


def _flipped(text: bytes, rng: Rng) -> bytes:
    out, how = bytearray(text), int(rng.integers(4))
    at = int(rng.integers(max(1, len(out))))
    if how == 0:
        return bytes(out[:at])
    if how == 1:
        out[at:at] = [b"\xff\xfe", b"\0", b"\xc3", rng.bytes(20)][rng.integers(4)]
    elif how == 2:
        return b""
    else:
        for place in rng.integers(max(1, len(out)), size=1 + int(rng.integers(20))):
            if len(out):
                out[place] ^= 1 << int(rng.integers(8))
    return bytes(out)


def _other_type(path: Path, rng: Rng) -> str:
    """A whole file of Parquet or Feather with columns of other types."""
    if path.suffix not in (".parquet", ".feather"):
        return ""
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_feather(path)
    name = frame.columns[rng.integers(frame.shape[1])]
    columns: list[Any] = [
        [[1, 2]] * len(frame), [{"a": 1}] * len(frame), [b"x"] * len(frame), [None] * len(frame),
        pd.Series([1 << 62] * len(frame)), pd.Series(np.full(len(frame), np.inf)),
        pd.Categorical(["x"] * len(frame)),
        pd.to_timedelta(np.arange(len(frame)), unit="s"), [True, None] * (len(frame) // 2),
        pd.Series([1e300] * len(frame)),
    ]  # fmt: skip
    frame[name] = columns[rng.integers(len(columns))]
    if rng.random() < 0.2:
        frame = frame.iloc[:0]
    _write(frame, path)
    return f"{path.name}, {name} is {frame[name].dtype}"
