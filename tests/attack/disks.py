"""Disks that are full or may not be written to: one sentence, and the old model stays."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import setwise as sw
from reproduction.command import app as tables
from setwise.cli import app
from tests.attack.forks import Child, limited
from tests.attack.kills import data, two_models
from tests.attack.models import save_models
from tests.attack.outcome import Case

__all__ = ["disks"]

LONGEST = 700


def disks(seed: int, times: int) -> Iterator[Case]:
    """Every command and every learner's `save`, with so many sizes of what may be written."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chmod(folder, 0o755)
        rng = np.random.default_rng(seed)
        yield from _models(rng, times, Path(folder))
        yield from _commands(rng, times, Path(folder))


def _one_sentence(said: str) -> bool:
    return 0 < len(said) <= LONGEST and "Traceback" not in said and said.count("\n") < 2


def _models(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    first, _, _ = two_models()
    target = folder / "model"
    saved = save_models(folder / "all")
    for name, path in saved.items():
        if times == 1 and not name.endswith("numbers"):  # in a hurry
            continue
        est = sw.load(path, trusted=True)
        first.save(target)
        whole = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}
        longest = max(p.stat().st_size for p in path.rglob("*") if p.is_file())
        for size in sorted({0, *rng.integers(longest, size=times).tolist()}):
            code, said = Child(lambda est=est: est.save(target), lambda s=size: limited(s)).wait()
            same = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()} == whole
            kind = said.partition(":")[0]
            good = code == 77 and kind in ("OSError", "ValueError") and same and _one_sentence(said)
            yield Case("save on a full disk", kind if good else "bad", good,
                       f"{name}, {size} bytes: {code} {said[:300]} old intact: {same}")  # fmt: skip
        _forbid(target)
        code, said = Child(lambda est=est: est.save(target), _obedient).wait()
        _allow(target)
        good = code == 77 and said.startswith("PermissionError") and _one_sentence(said)
        yield Case("save into a read-only folder", "refused" if good else "bad", good, said[:300])
    shutil.rmtree(target)


def _obedient() -> None:
    """Makes root heed what files allow: takes CAP_DAC_OVERRIDE away from this process."""
    if os.getuid():
        return
    import ctypes

    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.capget(head, data)
    data[0] &= ~(1 << 1)
    assert not libc.capset(head, data)


def _forbid(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def _allow(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _commands(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    X, _ = data()
    place = folder / "commands"
    place.mkdir()
    bags = np.repeat(np.arange(40), 3)
    lines = [",".join(map(str, (*row, bag))) for row, bag in zip(X, bags, strict=True)]
    (place / "rows.csv").write_text("\n".join(["a,b,c,bag", *lines, ""]))
    y = X.sum(1).reshape(40, 3).mean(1)
    (place / "bags.csv").write_text("bag,y\n" + "\n".join(f"{i},{v}" for i, v in enumerate(y)))
    fit = ["fit", "rows.csv", "--sets", "bags.csv", "--observe", "mean", "--y", "y", "--group",
           "bag", "--learner", "linear", "--out", "model"]  # fmt: skip
    commands: dict[str, tuple[Any, list[str]]] = {
        "fit": (app, fit),
        "fit, report": (app, [*fit, "--report", "report.html"]),
        "predict": (app, ["predict", "model", "rows.csv", "--out", "p.csv"]),
        "predict, parquet": (app, ["predict", "model", "rows.csv", "--out", "p.parquet"]),
        "predict, json": (app, ["predict", "model", "rows.csv", "--out", "p.jsonl"]),
        "demo": (app, ["demo", "--quick", "--out", "demo.html"]),
        "report of tables": (tables, ["report", "results", "--out", "report.md"]),
    }
    os.chdir(place)
    shutil.copytree(Path(__file__).parents[2] / "results", place / "results")
    for name, (which, words) in commands.items():
        if times == 1 and name not in ("fit", "predict", "report of tables"):  # in a hurry
            continue

        def work(which: Any = which, words: list[str] = words) -> None:
            result = CliRunner().invoke(which, words)
            if result.exit_code:
                error = result.exception
                if error is not None and not isinstance(error, SystemExit):
                    raise error
                raise RuntimeError(result.stderr.strip().splitlines()[-1])

        code, said = Child(work).wait()  # what is there first
        if code:
            yield Case("commands", "bad", False, f"{name} does not run at all: {said[:300]}")
            continue
        whole = _content(place)
        for size in sorted({0, *rng.integers(2000, size=max(1, times // 3)).tolist()}):
            yield _failed(
                "commands on a full disk", name, work, lambda s=size: limited(s), place, whole
            )
        _forbid(place)
        yield _failed("commands in a read-only folder", name, work, _obedient, place, whole)
        _allow(place)
    os.chdir("/")


def _content(place: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}


def _failed(
    part: str, name: str, work: Callable[[], None], before: Callable[[], None], place: Path,
    whole: dict[Path, bytes],
) -> Case:  # fmt: skip
    code, said = Child(work, before).wait()
    same = _content(place) == whole
    good = code == 77 and said.startswith("RuntimeError: ") and same and _one_sentence(said)
    return Case(part, "one sentence" if good else "bad", good,
                f"{name}: {code} {said[:300]} old intact: {same}")  # fmt: skip
