"""Likelihood rules and a network on a CUDA device: `make bench-cuda`.

    python -m benchmarks.cuda [SECTION ...] [--small] [--device DEVICE] [--out FILE]

Sections: `rules`, the value and gradient of nine rules at 2²⁰ members with a bound for each;
`epochs`, a network that learns MNIST from triplets and pairs beside a supervised loop; `pairs`,
every rule of the registry on the CPU and on the device. The table is printed and, with `--out`,
written as a page. The exit code is 1 if a figure is past its bound. Without a device it says so and
ends well.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import setwise as sw
from benchmarks import epochs, pairs
from benchmarks.rules import backward, categorical, each_once, made_again, normal
from benchmarks.table import Figure, Rows, best, shown, written

MEMBERS = 1 << 20
# Aggregate, targets, members of a set, milliseconds at most
RULES: tuple[tuple[Any, Callable[..., Any], int, float], ...] = (
    (sw.Mean(), normal, 4, 1.0),
    (sw.Rank(), normal, 2, 1.0),
    (sw.Similarity(), lambda n, **on: categorical(n, 10, **on), 2, 1.0),
    (sw.Triplet(), lambda n, **on: categorical(n, 10, **on), 3, 1.0),
    (sw.AnyPositive(), lambda n, **on: categorical(n, 2, **on), 16, 1.0),
    (sw.Max(), normal, 64, 10.6),
    (sw.Counts(n_classes=2), lambda n, **on: categorical(n, 2, **on), 64, 10.6),
    (sw.Sum(), lambda n, **on: categorical(n, 4, **on), 16, 10.6),
    (sw.Presence(n_classes=4), lambda n, **on: categorical(n, 4, **on), 16, 10.6),
)


def rules(device: str, small: bool) -> Rows:
    """Milliseconds of each rule on the device, where y is too, and on the CPU in the note."""
    for aggregate, make, size, bound in RULES:
        n = (1 << 10 if small else MEMBERS) // size * size
        sets, times = each_once(n // size, size), []
        for where in ("cpu", device):
            distribution, leaf = make(n, device=where, dtype=torch.float32)
            seen = aggregate.observe(distribution.sample().cpu(), sets, seed=0)
            y = torch.as_tensor(seen.y, device=where)

            def run(made: Any = distribution, leaf: Any = leaf, y: Any = y) -> None:
                backward(sw.log_likelihood(aggregate, made_again(made, leaf), sets, y), leaf)

            times.append(1e3 * best(run, device, 2 if where == "cpu" else 10))
        work = f"{type(aggregate).__name__} of {size}, {n:,} members"
        note = f"CPU {times[0]:.0f} ms"
        yield Figure(work, "milliseconds", times[1], bound, "ms", note)


SECTIONS: dict[str, Callable[[str, bool], Rows]] = {
    "rules": rules,
    "epochs": epochs.measured,
    "pairs": pairs.measured,
}
PAGE = """# Speed on CUDA

`make bench-cuda` writes this page on a machine with a CUDA device, and fails where a figure is past
its bound.
"""


def main(given: Sequence[str] | None = None) -> int:
    """Runs the sections named on the command line, or all of them; 1 if one is past a bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--small", action="store_true", help="tiny sizes without bounds")
    parser.add_argument("--device", default="cuda", help='"cpu" tries the code without a device')
    parser.add_argument("--out", type=Path, help="write the page into this file")
    options = parser.parse_args(given)
    if unknown := {*options.sections} - {*SECTIONS}:
        parser.error(f"unknown sections {sorted(unknown)}; known are {[*SECTIONS]}")
    console, figures, begin = Console(), list[Figure](), time.perf_counter()
    if options.device == "cuda" and not torch.cuda.is_available():
        console.print("no CUDA device: nothing was measured")
        return 0
    for name in options.sections or SECTIONS:
        for figure in SECTIONS[name](options.device, options.small):
            figure = figure._replace(bound=math.inf) if options.small else figure
            figures.append(figure)
            print(" · ".join(cell for cell in figure.cells if cell), flush=True)
            if options.out:  # as it goes: a run that is cut short leaves what it has
                options.out.write_text(f"{PAGE}\n{_device(options.device)}{written(figures)}")
    console.print(shown(figures))
    console.print(f"{_device(options.device)}{time.perf_counter() - begin:.0f} s")
    past = [figure.work for figure in figures if not figure.good]
    if past:
        console.print("past their bounds: " + "; ".join(past), style="red", highlight=False)
    return 1 if past else 0


def _device(name: str) -> str:
    return "" if name != "cuda" else f"On one {torch.cuda.get_device_name()}. "


if __name__ == "__main__":
    sys.exit(main())
