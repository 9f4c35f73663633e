"""Work in child processes that may not take more than some time and memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.attack.forks import one_thread

__all__ = ["run_each"]

SECONDS = 5  # of work; where others keep the machine busy that takes longer by the clock
ASLEEP = 60  # by the clock
MEMORY = 1 << 30
PAGE = resource.getpagesize()


def run_each(
    work: Callable[[Any], str],
    items: Sequence[Any],
    batch: int = 100,
    seconds: int = SECONDS,
    memory: int = MEMORY,
) -> Iterator[tuple[Any, str]]:
    """(item, what `work` returns or how the process died), in forks of this process."""
    at = 0
    while at < len(items):
        found = _batch(work, items[at : at + batch], seconds, memory)
        yield from zip(items[at:], found, strict=False)
        at += len(found)


def _batch(
    work: Callable[[Any], str], items: Sequence[Any], seconds: int, memory: int
) -> list[str]:
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            _child(work, items, seconds, memory, writer)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as pipe:
            found = [json.loads(line) for line in pipe.read().splitlines()]
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if len(found) < len(items):
        how = signal.Signals(-status).name if status < 0 else f"exit {status}"
        hung = -status in (signal.SIGALRM, signal.SIGPROF)
        found.append(f"hang: over {seconds} s" if hung else f"abort: {how}")
    return found


def _child(
    work: Callable[[Any], str], items: Sequence[Any], seconds: int, memory: int, writer: int
) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    one_thread()
    for kind in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(kind, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    for item in items:
        resource.setrlimit(resource.RLIMIT_AS, (_size() + memory, hard))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(ASLEEP)
        try:
            said = work(item)
        except MemoryError:
            said = "allocation: over 1 GB"
        except BaseException as error:
            said = f"error: {type(error).__name__}: {error}"[:400]
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        os.write(writer, json.dumps(said).encode() + b"\n")


def _size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
