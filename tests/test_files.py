"""Files that appear whole or not at all, one writer at a time, and values that are checked."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import pytest

from setwise import _files
from setwise._arrays import HEADER, read_arrays, write_arrays
from setwise._facts import DEEPEST, LARGEST, PARTS, AnyFloat, checked, read_json
from setwise._files import beside, locked

posix = pytest.mark.skipif(os.name == "nt", reason="locks of POSIX")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    with beside(path) as new:
        new.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(ZeroDivisionError), beside(path) as new:
        new.write_text(str(1 / 0))
    assert path.read_text() == "one"
    assert names(tmp_path) == ["file"]


@posix
def test_what_killed_writers_have_left_is_swept(tmp_path):
    path = tmp_path / "[a]*"
    left, other = tmp_path / ".[a]*.1234.part", tmp_path / ".other.1234.part"
    left.touch()
    other.touch()
    with beside(path) as first:
        first.write_text("first")
        with beside(path) as second:  # somebody else is at it
            second.write_text("second")
        assert first.exists()
    assert path.read_text() == "first"
    assert names(tmp_path) == [other.name, path.name]


KILLED = """
import sys, time
from pathlib import Path
from setwise._files import beside, locked
with locked(Path(sys.argv[1])), beside(Path(sys.argv[2])) as new:
    new.write_text("half")
    print("here", flush=True)
    time.sleep(60)
"""


@posix
def test_a_kill_gives_locks_back(tmp_path, monkeypatch):
    lock, path = tmp_path / "lock", tmp_path / "file"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, lock, path], stdout=subprocess.PIPE, text=True
    )
    with process:
        process.stdout.readline()
        with pytest.raises(TimeoutError, match="another process has been writing"), locked(lock, 0):
            pass
        assert len(names(tmp_path)) == 2
        process.kill()
    with locked(lock, 5), beside(path) as new:
        new.write_text("whole")
    assert names(tmp_path) == ["file"]
    assert path.read_text() == "whole"


@posix
def test_one_thread_at_a_time(tmp_path):
    inside, most = [], []

    def work():
        for _ in range(20):
            with locked(tmp_path / "lock"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 80
    assert names(tmp_path) == []


@posix
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EWOULDBLOCK])
def test_disks_without_locks(number, tmp_path, monkeypatch):
    def flock(*args):
        raise OSError(number, "no")

    monkeypatch.setattr(_files.fcntl, "flock", flock)
    if number == errno.ENOLCK:
        with locked(tmp_path / "lock", 0):
            assert names(tmp_path) == ["lock"]
    else:
        with pytest.raises(TimeoutError), locked(tmp_path / "lock", 0):
            pass


# ---- values


@dataclass
class Point:
    x: float
    name: str = ""


class Pair(NamedTuple):
    first: int
    second: int | None


class Told(TypedDict):
    points: list[Point]
    kind: Literal["a", 1]


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        ({"x": 1, "name": "a"}, Point, Point(1.0, "a")),
        ({"first": 1, "second": None}, Pair, Pair(1, None)),
        ({"points": [], "kind": 1}, Told, {"points": [], "kind": 1}),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ([1, "a"], tuple[int, str], (1, "a")),
        (math.inf, AnyFloat, math.inf),
        (10**400, AnyFloat, math.inf),
        ("a", int | str, "a"),
        ([[{}]], Any, [[{}]]),
        (["a", "b"], list[str], ["a", "b"]),
    ],
)
def test_values_that_are_as_expected(value, kind, wanted):
    found = checked(value, kind, "it")
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (True, int, "it is True where a whole number is expected"),
        (1.0, int, "it is 1.0 where a whole number is expected"),
        (2**63, int, "it is 9223372036854775808 where a whole number"),
        (10**400, float, "it is a huge number where a finite number"),
        (math.nan, float, "it is nan where a finite number"),
        (True, float, "it is True where a finite number"),
        ("a" * 99, AnyFloat, "it is 'aaa.*… where a finite number"),
        ([1], dict[str, int], "it is a list of 1 where an object"),
        ({"a": "b"}, dict[str, int], "it.a is 'b' where a whole number"),
        ({"x": 1}, Point, "it has not the entries that are expected: see name"),
        ({"x": 1, "name": "", "evil": 1}, Point, "see evil"),
        ([1], Pair, "it is a list of 1 where an object"),
        ([1], tuple[int, str], "it is a list of 1 where a list"),
        ("b", Literal["a", 1], "it is 'b', not one of 'a', 1"),
        (True, Literal["a", 1], "it is True, not one of"),
        ([], Literal["a", 1], "it is a list of 0, not one of"),
        ("x", int | None, "it is 'x' where a whole number"),
        (None, int | str, "it is None where a whole number or a text"),
        ([1, [2]], list[int], r"it\[1\] is a list of 1 where a whole number"),
    ],
)
def test_values_that_are_not(value, kind, said):
    with pytest.raises(ValueError, match=said):
        checked(value, kind, "it")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, "\ud800"])
def test_damaged_json(text, tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=r"."):
        read_json(path)


def test_json_is_nested_as_deep_as_what_walks_through_it_can_go(tmp_path):
    path = tmp_path / "file.json"
    path.write_text("[" * DEEPEST + "]" * DEEPEST)
    assert read_json(path)[1]
    path.write_text('{"a":' * (DEEPEST + 1) + "3" + "}" * (DEEPEST + 1))
    with pytest.raises(ValueError, match="nested too deeply, more than 100 levels"):
        read_json(path)


def test_huge_json(tmp_path):
    path = tmp_path / "file.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(ValueError, match="it is larger than 32 MiB"):
        read_json(path)
    path.write_bytes(b"[" + b"[]," * PARTS + b"[]]")  # each takes twenty times its letters
    with pytest.raises(ValueError, match="more than 2097152 lists and objects"):
        read_json(path)


def test_arrays_come_back_or_are_refused(tmp_path):
    path = tmp_path / "file"
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.zeros(0, np.uint8)}
    write_arrays(path, arrays)
    kinds = {"a": (np.float64, 2), "b": (np.uint8, 1)}
    back = read_arrays(path, kinds)
    np.testing.assert_array_equal(back["a"], arrays["a"])
    for wrong in ({**kinds, "c": (np.int8, 1)}, {**kinds, "a": (np.float32, 2)}, {"a": kinds["a"]}):
        with pytest.raises(ValueError, match="does not hold the arrays"):
            read_arrays(path, wrong)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="is not a whole file of arrays"):
            read_arrays(path)
    path.write_bytes((HEADER + 1).to_bytes(8, "little") + b" " * 100)
    with pytest.raises(ValueError, match="names more arrays than are read"):
        read_arrays(path)
    with pytest.raises(OSError, match="could not be written"):
        write_arrays(tmp_path / "nowhere" / "file", arrays)
