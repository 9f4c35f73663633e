"""`setwise demo`."""

from __future__ import annotations

import time

import numpy as np
import torch
from rich.console import Console
from torch.distributions import Categorical, Normal

import setwise as sw
from setwise.cli.common import table as new_table

__all__ = ["demo"]


def demo() -> None:
    """Simulate set labels of two embedded data sets and show what they can tell."""
    from sklearn.datasets import load_diabetes, load_digits
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.preprocessing import scale

    console = Console()
    start = time.perf_counter()
    console.print(
        "\nThree models of each data set, from poor to good, judged twice: by the labels of\n"
        "[bold]sets[/], which is all that setwise sees, and by the hidden labels of [bold]"
        "individuals[/].\nThe two agree, so a model can be chosen, or learned, from set labels "
        "alone.\n"
    )

    X, z = load_diabetes(return_X_y=True)
    pairs, fours = sw.Sets.random(len(z), 4420, 2, seed=1), sw.Sets.random(len(z), 442, 4, seed=2)
    # the targets are whole numbers, so some pairs tie
    ranks, means = sw.Rank(tie_margin=0.5).observe(z, pairs), sw.Mean().observe(z, fours)
    table = new_table(
        "Diabetes: 442 patients, progression of the disease",
        ("model", "means of 4", "ranks of 2", "R²"),
        ("", "log-lik. per set", "log-lik. per set", "per patient"),
    )
    for name, columns in (
        ("constant", []),
        ("body mass only", [2]),
        ("all 10 features", range(10)),
    ):
        guess = np.full(len(z), z.mean())
        if len(columns):
            guess = LinearRegression().fit(X[:, columns], z).predict(X[:, columns])
        rows = Normal(torch.tensor(guess), torch.tensor(float(np.std(z - guess))))
        scores = [_score(observed, rows) for observed in (means, ranks)]
        r2 = 1 - np.var(z - guess) / np.var(z)
        table.add_row(name, *(f"{s:.3f}" for s in scores), f"{r2:.2f}")
    console.print(table)

    X, z = load_digits(return_X_y=True)
    X = scale(X)
    triples, bags = sw.Sets.random(len(z), 5391, 3, seed=3), sw.Sets.random(len(z), 500, 8, seed=4)
    triplets = sw.Triplet().observe(z, triples)
    counts = sw.Counts(n_classes=10).observe(z, bags)
    table = new_table(
        "Digits: 1797 images, 10 classes",
        ("model", "triplets", "counts of 8", "accuracy"),
        ("", "log-lik. per set", "log-lik. per set", "per image"),
    )
    for name, n_features in (("uniform", 0), ("top half only", 32), ("whole image", 64)):
        logits = np.zeros((len(z), 10))
        if n_features:
            features = X[:, :n_features]
            model = LogisticRegression(C=0.01, max_iter=500).fit(features, z)
            logits = model.decision_function(features)
        classes = Categorical(logits=torch.tensor(logits))
        scores = [_score(observed, classes) for observed in (triplets, counts)]
        accuracy = float(np.mean(logits.argmax(1) == z)) if n_features else 0.1
        table.add_row(name, *(f"{s:.3f}" for s in scores), f"{accuracy:.0%}")
    console.print(table)
    n_sets = sum(len(observed) for observed in (means, ranks, triplets, counts))
    console.print(
        f"{n_sets:,} set labels, every likelihood exact, {time.perf_counter() - start:.1f} s in "
        f"all.\n[dim]setwise kinds[/] lists what can be observed of a set.\n"
    )


def _score(observed: sw.Observations, rows: torch.distributions.Distribution) -> float:
    value = sw.log_likelihood(observed.aggregate, rows, observed.sets, observed.y)
    return float(value.mean())
