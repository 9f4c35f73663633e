"""Why some sets stay behind the paper's figures: `python -m benchmarks.reasons`.

text      full supervision from all terms of TF-IDF, and from 300 and 100 dimensions of them
ringnorm  full supervision of the model that the data were drawn from
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from setwise.datasets import load, text_features
from setwise.datasets.text import TERMS

TEXTS = ("ayi", "custrev", "mpqa", "rt-polarity", "subj")
TRIALS = 3
console = Console()


def split(name: str, trial: int):
    """The training and the test part of a trial, as the tables split them."""
    data = load(name)
    order = np.random.default_rng(trial).permutation(len(data.z))
    train, test = order[: int(0.6 * len(order))], order[int(0.8 * len(order)) :]
    return data.X[train], data.z[train], data.X[test], data.z[test]


def linear(known, z, new, truth) -> float:
    """The accuracy of logistic regression in %, with the best of a few penalties."""
    return 100 * max(
        LogisticRegression(C=c, max_iter=1000).fit(known, z).score(new, truth)
        for c in (0.01, 0.1, 1.0, 10.0)
    )


def text() -> None:
    out = Table(title=f"Logistic regression on texts, full supervision, {TRIALS} trials, %")
    for column in ("data set", "all terms", "300 dimensions", "100 dimensions"):
        out.add_column(column)
    for name in TEXTS:
        rows = []
        for trial in range(TRIALS):
            known, z, new, truth = split(name, trial)
            terms = TfidfVectorizer(**TERMS)
            found = [linear(terms.fit_transform(known), z, terms.transform(new), truth)]
            for n in (300, 100):
                a, b = text_features(known, new, n=n)
                found.append(linear(a / a.std(0), z, b / a.std(0), truth))
            rows.append(found)
        out.add_row(name, *(f"{value:.1f}" for value in np.mean(rows, 0)))
    console.print(out)


def ringnorm(trials: int = 10) -> None:
    found = []
    for trial in range(trials):
        known, z, new, truth = split("ringnorm", trial)
        found.append(100 * QuadraticDiscriminantAnalysis().fit(known, z).score(new, truth))
    console.print(f"ringnorm, quadratic discriminant analysis, {trials} trials: "
                  f"{np.mean(found):.2f} %")  # fmt: skip


if __name__ == "__main__":
    ringnorm()
    text()
