"""Columns of the tables of classes by the public estimators, beside how the tables make them.

    python -m benchmarks.columns [DATASET ...] [--methods METHOD ...] [--trials N] [--best]

The rows, splits, sets and network are those of the table; what trains differs: there many networks
at once by `reproduction.batched`, here `sw.Network` in `sw.AggregateClassifier`, one after another.
In "best" it is an `sw.Ensemble` of six networks with all its defaults, which holds sets out itself.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import setwise as sw
from reproduction.baselines import METHODS
from reproduction.classification import PROTOCOL, Trials, _seed, observe, prepare, work_many
from reproduction.runner import Cell

LIKELIHOODS = ("similarity_mle", "triplet_mle", "triplet_mle_three_way", "supervised")
SMALL = ("vehicle", "cardiotocography")


def learner(setting: str) -> sw.Network | sw.Ensemble:
    """The protocol's network, or several of them with the defaults."""
    if setting == "best":
        return sw.Ensemble(sw.Network(), n=6, resample=None)
    return sw.Network(
        epochs=PROTOCOL.epochs, batch_size=PROTOCOL.batch, lr=PROTOCOL.rate, clip=None,
        weight_decay=float(np.mean(PROTOCOL.decay)), schedule=lambda step, total: 1.0,
    )  # fmt: skip


def by_estimator(data: Trials, method: str, setting: str, trial: int, place: int) -> float:
    """The accuracy in % of what the public estimator learns from the sets of a trial."""
    kind, (a, b) = METHODS[method], data.cuts
    x = data.table[data.rows(0, data.z.shape[1])[place]].cpu().numpy()
    one = data._replace(z=data.z[place : place + 1])

    def sets(begin: int, end: int, part: int) -> tuple[Any, Any]:
        sample = observe(one, kind, (begin, end), [_seed(trial, kind, part)])
        return sample.members[0].cpu().numpy() + begin, sample.y[0].cpu().numpy()

    parts = [sets(0, a, 0)] + ([sets(a, b, 1)] if setting == "best" else [])
    members, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    # A row that is drawn twice is one individual in two places, as in the table.
    flat = sw.Sets(np.arange(members.size).reshape(members.shape))
    seen = sw.Observations(kind.aggregate, flat, y).over(members.reshape(-1))
    est = sw.AggregateClassifier(
        data.classes,
        learner(setting),
        validation="auto" if setting == "best" else None,
        random_state=trial,
        verbose=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 20 epochs need not converge
        est.fit(x[: b if setting == "best" else a], seen)
    guesses = np.asarray(est.predict(x[b:]), np.int64)
    return 100 * float(sw.metrics.permutation_accuracy(data.z[place, b:], guesses))


def main(given: Sequence[str] | None = None) -> None:
    """Prints both columns and the seconds that they took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.columns")
    parser.add_argument("datasets", nargs="*", default=SMALL)
    parser.add_argument("--methods", nargs="+", default=LIKELIHOODS, choices=LIKELIHOODS)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--best", action="store_true", help="the setting best, not the protocol")
    options = parser.parse_args(given)
    setting, trials = "best" if options.best else "protocol", tuple(range(options.trials))
    heads = ("data", "method", "table's way", "s", "estimator", "s")
    table = Table(*heads, title=f"Accuracy in %, {setting}, {len(trials)} trials")
    console = Console()
    for dataset in options.datasets:
        for method in options.methods:
            cells = [Cell(dataset, method, setting, trial) for trial in trials]
            begin = time.process_time()
            theirs = [result.value for result in work_many(cells)]
            between = time.process_time()
            data = prepare(dataset, trials, "cpu")
            ours = [by_estimator(data, method, setting, t, i) for i, t in enumerate(trials)]
            end = time.process_time()
            table.add_row(dataset, method, _told(theirs), f"{between - begin:.1f}", _told(ours),
                          f"{end - between:.1f}")  # fmt: skip
            console.print(dataset, method, np.round(theirs, 1), np.round(ours, 1))
    console.print(table)


def _told(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values):.1f}"


if __name__ == "__main__":
    main()
