"""One table of speed, each figure against another of the same run: `make bench`.

    python -m benchmarks.speed [SECTION ...] [--small] [--no-write]

The table is printed and, where all sections ran, written into `docs/speed.md`. The exit code is 1
if a figure is past its bound.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from benchmarks import fits, growth, ragged, rules
from benchmarks.table import Figure, publish, shown, written

SECTIONS = {
    section.__name__: section for section in (*fits.SECTIONS, *rules.SECTIONS, *ragged.SECTIONS)
}
GROWTH = "growth"


def main(given: Sequence[str] | None = None) -> int:
    """Runs the sections named on the command line, or all of them; 1 if one is past a bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed")
    parser.add_argument("sections", nargs="*", metavar="SECTION",
                        help=", ".join([*SECTIONS, GROWTH]))  # fmt: skip
    parser.add_argument("--small", action="store_true", help="tiny sizes without bounds")
    parser.add_argument("--no-write", action="store_true", help="leave the page on speed alone")
    options = parser.parse_args(given)
    chosen = options.sections or [*SECTIONS, GROWTH]
    if unknown := {*chosen} - {*SECTIONS, GROWTH}:
        parser.error(f"unknown sections {sorted(unknown)}; known are {[*SECTIONS, GROWTH]}")
    console, figures, begin = Console(), list[Figure](), time.perf_counter()
    for name in chosen:
        if name == GROWTH:
            continue
        try:
            for figure in SECTIONS[name](options.small):
                figure = figure._replace(bound=math.inf) if options.small else figure
                figures.append(figure)
                console.print(" · ".join(cell for cell in figure.cells if cell), highlight=False)
        except Exception as error:  # in a long run it must not cost the figures of the others
            if options.small:
                raise
            figures.append(Figure(name, "", math.inf, 0.0, note=f"failed: {error!r}"))
    console.print(shown(figures))
    text = written(figures)
    if GROWTH in chosen:
        found = growth.curves(options.small)
        text += "\n## Growth\n\n" + growth.written(found) + growth.SHOWN
        console.print(growth.written(found), highlight=False)
    console.print(f"{time.perf_counter() - begin:.0f} s")
    if not (options.sections or options.small or options.no_write):
        publish(text)
        growth.plotted(found)
    past = [figure.work for figure in figures if not figure.good]
    if past:
        console.print("past their bounds: " + "; ".join(past), style="red", highlight=False)
    return 1 if past else 0


if __name__ == "__main__":
    sys.exit(main())
