"""Kills at any moment, several writers at once: what is on the disk is old or new, and whole."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typer.testing import CliRunner

import setwise as sw
from reproduction.files import Busy
from reproduction.runner import Cell, Result, Results, describe
from reproduction.runner import run as run_cells
from setwise.cli import app
from tests.attack.forks import Child
from tests.attack.outcome import Case

__all__ = ["kills", "races"]

SHORT: dict[str, Any] = {"verbose": 0, "random_state": 0, "validation": None}


def kills(seed: int, times: int) -> Iterator[Case]:
    """Each kind of work is killed so many times."""
    for kind in (_saves, _networks, _commands, _tables):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from kind(np.random.default_rng(seed), times, Path(folder))


def races(seed: int, times: int) -> Iterator[Case]:
    """Several write to one place at the same moment, so many times."""
    for kind in (_two_saves, _two_tables):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from kind(np.random.default_rng(seed), times, Path(folder))


def killed(
    part: str, work: Callable[[], Any], rng: np.random.Generator, times: int,
    check: Callable[[], str], usual: float,
) -> Iterator[Case]:  # fmt: skip
    """Kills the work after some share of the time that it takes, and says what is left."""
    for number in range(times):
        code, said = Child(work).kill(float(rng.uniform(0, 1.1 * usual)))
        try:
            wrong = check() if code in (0, -9) else f"it ended by itself: {code} {said}"
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        outcome = "damage" if wrong else ("killed" if code else "done before the kill")
        yield Case(part, outcome, not wrong, f"kill {number}: {wrong}"[:600])


def timed(work: Callable[[], Any]) -> float:
    """Seconds that a fork needs for it."""
    begin = time.perf_counter()
    code, said = Child(work).wait()
    assert code == 0, said
    return time.perf_counter() - begin


# ---- what is killed


def data() -> tuple[Any, Any]:
    """Rows and means of sets of them."""
    X = np.random.default_rng(0).normal(size=(120, 3))
    return X, sw.Mean().observe(X @ [1.0, -2.0, 0.5], sw.Sets.random(120, 90, 3, seed=1))


def two_models() -> tuple[Any, Any, Any]:
    """Two models of different learners, and rows."""
    X, means = data()
    learners = sw.Linear(), sw.XGBoost(n_estimators=3, nthread=1)
    first, second = (sw.AggregateRegressor(learner=one, **SHORT).fit(X, means) for one in learners)
    return first, second, X


def which(folder: Path, models: tuple[Any, Any], X: Any) -> str:
    """What is wrong with a folder that ought to hold one of two models."""
    found = sw.load(folder).predict(X)
    same = [np.array_equal(found, model.predict(X)) for model in models]
    return "" if any(same) else "another model"


def _saves(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    first, second, X = two_models()
    target = folder / "model"
    first.save(target)

    def work() -> None:
        second.save(target)
        first.save(target)

    yield from killed(
        "kills of save", work, rng, times, lambda: which(target, (first, second), X), timed(work)
    )
    first.save(target)
    left = sorted(path.name for path in target.iterdir())
    yield Case("kills of save", "swept", len(left) == 2, f"left over: {left}")


def _networks(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    torch.set_num_threads(1)
    X, means = data()

    def fit(checkpoint: Path | None) -> Any:
        learner = sw.Network(
            hidden=(16,), epochs=40, dropout=0.1, checkpoint=checkpoint, device="cpu"
        )
        return sw.AggregateRegressor(learner=learner, **SHORT).fit(X, means)

    wanted, rounds, done = fit(None).predict(X), 0, 0
    usual = timed(partial(fit, folder / "first"))
    while done < times:
        rounds += 1
        place = folder / f"round{rounds}"

        def check(place: Path = place) -> str:
            left = list(place.glob("*.safetensors"))
            return "" if len(left) <= 1 else f"files: {left}"

        some = min(4, times - done)
        yield from killed(
            "kills of a network's fit", partial(fit, place), rng, some, check, usual / 3
        )
        done += some
        same = np.array_equal(fit(place).predict(X), wanted)
        yield Case("kills of a network's fit", "the same bits" if same else "other bits", same)


def _commands(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    X, _ = data()
    head = "a,b,c,bag"
    bags = np.repeat(np.arange(40), 3)
    rows = "\n".join(",".join(map(str, (*row, bag))) for row, bag in zip(X, bags, strict=True))
    (folder / "rows.csv").write_text(f"{head}\n{rows}\n")
    y = X.sum(1).reshape(40, 3).mean(1)
    (folder / "bags.csv").write_text("bag,y\n" + "\n".join(f"{i},{v}" for i, v in enumerate(y)))
    out, given = folder / "model", [str(folder / name) for name in ("rows.csv", "bags.csv")]

    def call(*words: str) -> None:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.output

    def fit(seed: int) -> None:
        options = ["--observe", "mean", "--y", "y", "--group", "bag", "--learner", "linear"]
        call("fit", given[0], "--sets", given[1], *options, "--seed", str(seed), "--out", str(out))

    predicted = folder / "p.csv"
    fit(0)
    predict = partial(call, "predict", str(out), given[0], "--out", str(predicted))
    predict()
    whole = predicted.read_bytes()

    def check() -> str:
        predict()
        left = [p.name for p in folder.iterdir() if p.name not in
                ("rows.csv", "bags.csv", "model", "p.csv")]  # fmt: skip
        return f"left over: {left}" if left else ""

    yield from killed("kills of setwise fit", lambda: fit(0), rng, times, check,
                      timed(lambda: fit(0)))  # fmt: skip

    def unharmed() -> str:
        return "" if predicted.read_bytes() == whole else "cut predictions"

    fit(0)
    predict()
    whole = predicted.read_bytes()
    yield from killed("kills of setwise predict", predict, rng, times, unharmed, timed(predict))


CELLS = [Cell("a", method, "best", trial) for method in ("x", "y") for trial in range(20)]


def _work(cells: Any) -> list[Result]:
    time.sleep(0.0005)
    history = ((1, 0.5), (2, 0.75))
    return [
        Result(c.dataset, c.method, c.setting, c.trial, c.trial, 0.5, history=history)
        for c in cells
    ]


def _tables(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    path = folder / "table.csv"

    def work() -> None:
        began = partial(describe, path, ["table"])
        run_cells(_work, CELLS, Results(path), together=True, apart=lambda c: True, began=began)

    usual, seen = timed(work), 0
    path.unlink()

    def check() -> str:
        nonlocal seen
        rows = [row.cell for row in Results(path).rows] if path.exists() else []
        if len(rows) < seen or len({*rows}) < len(rows):
            return f"{len(rows)} rows, there were {seen}"
        seen = len(rows)
        if path.with_suffix(".json").exists():
            json.loads(path.with_suffix(".json").read_text())
        if seen == len(CELLS):
            path.unlink()
            seen = 0
        return ""

    yield from killed("kills of a table's run", work, rng, times, check, usual)
    work()
    history = path.with_name("table-history.csv").read_text().splitlines()
    whole = len(Results(path).rows) == len(CELLS) and len(history) == 1 + 2 * len(CELLS)
    yield Case("kills of a table's run", "complete", whole, f"{len(history)} lines of history")


# ---- who writes at once


def _two_saves(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    first, second, X = two_models()
    target = folder / "model"
    first.save(target)

    def loads() -> None:
        for _ in range(6):
            assert not which(target, (first, second), X)

    for number in range(times):
        works = [partial(first.save, target), partial(second.save, target), loads]
        ends = [child.wait() for child in [Child(work) for work in works]]
        wrong = [said for code, said in ends if code]
        with suppress(ValueError):
            wrong += [w for w in [which(target, (first, second), X)] if w]
        left = sorted(path.name for path in target.iterdir())
        good = not wrong and len(left) == 2
        yield Case("two saves and a load", "whole" if good else "damage", good,
                   f"round {number}: {wrong} {left}"[:500])  # fmt: skip


def _two_tables(rng: np.random.Generator, times: int, folder: Path) -> Iterator[Case]:
    for number in range(times // 5):
        path = folder / f"table{number}.csv"

        def work(path: Path = path) -> None:
            with suppress(Busy):
                run_cells(_work, CELLS[:10], Results(path), together=True, apart=lambda c: True)

        ends = [child.wait() for child in [Child(work), Child(work)]]
        rows = [row.cell for row in Results(path).rows]
        good = not any(code for code, _ in ends) and sorted(rows, key=str) == CELLS[:10]
        yield Case("two runs of a table", "each row once" if good else "damage", good,
                   f"round {number}: {ends} {len(rows)} rows"[:300])  # fmt: skip
