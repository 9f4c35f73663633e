"""See the package."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from tests.attack.outcome import Case, Tally

# part: its module, how many cases in all, and how many in a hurry (0: it is left out)
PARTS: dict[str, tuple[str, int, int]] = {
    "fuzz": ("fuzz", 10_000, 300),
    "kills": ("kills", 50, 4),
    "races": ("kills", 50, 5),
    "disks": ("disks", 6, 1),
    "calls": ("calls", 2, 1),
    "commands": ("commands", 1600, 60),
    "state": ("traces", 5, 1),
    "memory": ("traces", 200, 0),
    "threads": ("traces", 1, 0),
}


def main() -> int:
    """Runs the parts, prints a table of what came of them, and is 0 where all went well."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few cases of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, help="of each part")
    parser.add_argument("--case", type=int, help="only the one with this number (fuzz)")
    given = parser.parse_args()
    if unknown := {*given.parts} - PARTS.keys():
        parser.error(f"unknown parts {sorted(unknown)}")
    tally, stopped = Tally(), False
    for name in given.parts or PARTS:
        module, whole, few = PARTS[name]
        cases = given.cases or (few if given.quick else whole)
        if not cases:
            continue
        part: Callable[..., Iterator[Case]] = getattr(import_module(f"tests.attack.{module}"), name)
        more: dict[str, Any] = {} if given.case is None else {"only": given.case}
        begin = time.perf_counter()
        try:
            for case in part(given.seed, cases, **more):
                tally.add(case)
                if not case.good:
                    print(f"BAD {case.part}: {case.outcome}: {case.told}", flush=True)
        except KeyboardInterrupt:
            stopped = True
        tally.seconds[name] = time.perf_counter() - begin
        print(f"{name}: {tally.seconds[name]:.0f} s", flush=True)
        if stopped:
            break
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    print(f"\nseed {given.seed}, {system}" + (", stopped before the end" if stopped else ""))
    print(tally)
    return int(bool(tally.bad))


if __name__ == "__main__":
    sys.exit(main())
