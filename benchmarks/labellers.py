"""Noise that a fit learns: `python -m benchmarks.labellers [SEEDS]`.

`flips`: 3 000 pairs of 1 500 rows of three classes, alike or not, a tenth of the labels flipped:
the rate that is found, and the accuracy beside that of a fit that knows the rate.
`annotators`: 3 000 comparisons by three people who err in 5, 20 and 40 % of them.
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console
from rich.table import Table

import setwise as sw

console = Console()
ERR = (0.05, 0.2, 0.4)


def flips(seed: int) -> tuple[float, float, float]:
    """The rate that was found, and the accuracies with the rate known and learned."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1500, 2))
    c = (X @ rng.normal(size=(2, 3)) * 4 + rng.gumbel(size=(1500, 3))).argmax(1)
    pairs = sw.Sets.random(1500, 3000, 2, seed=seed)
    known = sw.Noisy(sw.Similarity(), flip=0.1).observe(c, pairs, seed=seed)
    learned = sw.Observations(sw.Noisy(sw.Similarity(), flip="learned"), pairs, known.y)
    right = []
    for o in (known, learned):
        model = sw.AggregateClassifier(3, "linear", random_state=seed, verbose=0).fit(X, o)
        right.append(sw.metrics.permutation_accuracy(c, model.predict(X)))
    return model.aggregates_[0].flip, *right


def annotators(seed: int) -> list[float]:
    """The rates that were found."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1500, 3))
    z = X @ [2.0, -1.0, 0.5] + rng.normal(size=1500)
    pairs = sw.Sets.random(1500, 3000, 2, seed=seed)
    who = rng.integers(0, 3, 3000)
    y = sw.Rank().observe(z, pairs).y
    y = np.where(rng.random(3000) < np.array(ERR)[who], 1 - y, y)
    o = sw.Observations(sw.Noisy(sw.Rank(), flip="learned"), pairs, y, by=who)
    model = sw.AggregateRegressor("normal", "linear", random_state=seed, verbose=0).fit(X, o)
    return [model.aggregates_[0][i].flip for i in range(3)]


def main(arguments: list[str]) -> None:
    """A line for each seed."""
    seeds = range(int(arguments[0]) if arguments else 10)
    shown = Table("seed", "flips of 10 %", "right, known", "right, learned", "5, 20, 40 %")
    lines = []
    for seed in seeds:
        rate, known, learned = flips(seed)
        rates = annotators(seed)
        lines.append([rate, known, learned, *rates])
        said = ", ".join(f"{r:.3f}" for r in rates)
        shown.add_row(str(seed), f"{rate:.3f}", f"{known:.3f}", f"{learned:.3f}", said)
    console.print(shown)
    found = np.array(lines)
    off = np.abs(found - [0.1, 0, 0, *ERR]).max(0)
    console.print(
        f"largest errors: rate {off[0]:.3f}, accuracy below that of knowing "
        f"{(found[:, 1] - found[:, 2]).max():.3f}, annotators {off[3:].round(3).tolist()}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
