"""How long imports and help take, each in a new interpreter: `python -m benchmarks.startup`.

A line per round; ratios of one round compare what ran within the same seconds.
"""

from __future__ import annotations

import subprocess
import sys
import time

LIBRARIES = "import torch, sklearn, lightgbm"
PARTS = {
    "libraries": ["-c", LIBRARIES],
    "import setwise": ["-c", "import setwise"],
    "every name": ["-c", f"{LIBRARIES}\nfrom setwise import *"],
    "--help": ["-m", "setwise.cli", "--help"],
    "--version": ["-m", "setwise.cli", "--version"],
    "fit --help": ["-m", "setwise.cli", "fit", "--help"],
}


def seconds(words: list[str]) -> float:
    """The time of a new interpreter, from start to end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main(rounds: int = 5) -> None:
    for _ in range(rounds):
        found = {name: seconds(words) for name, words in PARTS.items()}
        shown = ", ".join(f"{name} {s:.2f} s" for name, s in found.items())
        share = found["import setwise"] / found["libraries"]
        print(f"{shown}; import setwise / libraries {share:.3f}", flush=True)


if __name__ == "__main__":
    main()
