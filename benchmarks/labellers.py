"""Noise that a fit learns: `python -m benchmarks.labellers [SEEDS]`.

`flips`: 3 000 and 12 000 pairs of 1 500 rows of three classes, alike or not, a tenth of the labels
flipped: the rate that is found, and the accuracy beside that of a fit that knows the rate.
`annotators`: 3 000 comparisons by three people who err in 5, 20 and 40 % of them.
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console

import setwise as sw

console = Console()
ERR = (0.05, 0.2, 0.4)


def flips(seed: int, n: int) -> tuple[float, float, float]:
    """The rate that was found, and the accuracies with the rate known and learned."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1500, 2))
    c = (X @ rng.normal(size=(2, 3)) * 4 + rng.gumbel(size=(1500, 3))).argmax(1)
    pairs = sw.Sets.random(1500, n, 2, seed=seed)
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
    for n in (3000, 12_000):
        found = np.array([flips(seed, n) for seed in seeds])
        console.print(
            f"{n} pairs, flips of 10 %: found {found[:, 0].round(3).tolist()}; right when known "
            f"{found[:, 1].round(3).tolist()}, when learned {found[:, 2].round(3).tolist()}"
        )
    rates = np.array([annotators(seed) for seed in seeds])
    console.print(f"annotators of 5, 20, 40 %: {rates.round(3).tolist()}")


if __name__ == "__main__":
    main(sys.argv[1:])
