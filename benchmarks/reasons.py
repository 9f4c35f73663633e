"""Why some sets stay behind the paper's figures: `python -m benchmarks.reasons`.

text      full supervision from all terms of TF-IDF, and from 300 and 100 dimensions of them
ringnorm  full supervision of the model that the data were drawn from
trees     full supervision by LightGBM itself, 100 rounds, on the splits of the regression tables
"""

from __future__ import annotations

import lightgbm
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from setwise.datasets import load, text_features
from setwise.datasets.text import TERMS

TEXTS = ("ayi", "custrev", "mpqa", "rt-polarity", "subj")
TREES = (
    "auto-mpg", "bank-8fm", "bike-sharing", "insurance-charge", "real-estate", "space-ga",
    "wine-red", "wine-white",
)  # fmt: skip
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


def trees(trials: int = 10) -> None:
    out = Table(title=f"LightGBM's own squared loss, every row labelled, {trials} trials")
    for column in (
        "data set",
        "100 rounds",
        "stopped by 20 % of the rows",
        "best round for the test",
    ):
        out.add_column(column)
    for name in TREES:
        data, found = load(name), []
        for trial in range(trials):
            order = np.random.default_rng(trial).permutation(len(data.z))
            a, b = int(0.6 * len(order)), int(0.8 * len(order))
            X, z = np.asarray(data.X, float), np.asarray(data.z, float)
            (X1, z1), (X2, z2), (X3, z3) = ((X[part], z[part]) for part in np.split(order, [a, b]))
            model = lightgbm.LGBMRegressor(n_estimators=100, n_jobs=1, verbose=-1).fit(X1, z1)
            steps = np.arange(1, 101)
            valid = [np.mean((model.predict(X2, num_iteration=s) - z2) ** 2) for s in steps]
            test = [np.mean((model.predict(X3, num_iteration=s) - z3) ** 2) for s in steps]
            found.append((test[-1], test[int(np.argmin(valid))], min(test)))
        means = np.mean(found, 0)
        error = np.std(found, 0, ddof=1) / np.sqrt(trials)
        out.add_row(name, *(f"{m:.4g} ± {e:.2g}" for m, e in zip(means, error, strict=True)))
    console.print(out)


if __name__ == "__main__":
    trees()
    ringnorm()
    text()
