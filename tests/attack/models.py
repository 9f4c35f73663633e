"""Models of every kind, saved in folders: what is damaged later."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR, LinearSVC

import setwise as sw

__all__ = ["N_ROWS", "frame", "save_models", "table"]

N_ROWS = 80
SMALL: dict[str, dict[str, Any]] = {
    "lightgbm": {"n_estimators": 3, "num_leaves": 4, "min_data_in_leaf": 5, "num_threads": 1},
    "xgboost": {"n_estimators": 3, "max_depth": 2, "nthread": 1},
    "catboost": {"n_estimators": 3, "max_depth": 2, "thread_count": 1},
    "network": {"hidden": (8,), "epochs": 3, "device": "cpu"},
}
TWO = [sw.Linear(alpha=1.0), sw.LightGBM(**SMALL["lightgbm"])]


def table() -> Any:
    """Rows of numbers."""
    return np.random.default_rng(0).normal(size=(N_ROWS, 3))


def frame() -> Any:
    """The same with a column of words and one of dates."""
    import pandas as pd

    X = table()
    words = pd.Categorical(np.where(X[:, 1] > 0, "u", "v"))
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(N_ROWS), unit="D")
    return pd.DataFrame({"x": X[:, 0], "word": words, "day": days, "flag": X[:, 2] > 0})


def fits() -> Iterator[tuple[str, Any, Any, Any, dict[str, Any]]]:
    """(name, estimator, X, observations, arguments of align)."""
    X = table()
    z = X @ [1.0, -2.0, 0.5]
    classes = (z > -1).astype(int) + (z > 1)
    sets = sw.Sets.random(N_ROWS, 60, 3, seed=1)
    pairs = sw.Sets.random(N_ROWS, 90, 2, seed=2)
    means, counts = sw.Mean().observe(z, sets), sw.Counts(n_classes=3).observe(classes, sets)
    ranks, alike = sw.Rank().observe(z, pairs), sw.Similarity().observe(classes > 0, pairs)
    totals = sw.Sum().observe(np.random.default_rng(3).poisson(np.exp(X[:, 0])), sets)
    short: dict[str, Any] = {"verbose": 0, "random_state": 0, "validation": None}

    def number(learner: Any, family: Any = "normal", **more: Any) -> Any:
        return sw.AggregateRegressor(family, learner, **{**short, **more})

    def label(learner: Any, **more: Any) -> Any:
        return sw.AggregateClassifier(3, learner, n_restarts=1, **{**short, **more})

    learners: dict[str, tuple[Any, Any]] = {
        "linear": (sw.Linear(), sw.Linear(alpha=1.0)),
        "lightgbm": (sw.LightGBM(**SMALL["lightgbm"]),) * 2,
        "xgboost": (sw.XGBoost(**SMALL["xgboost"]),) * 2,
        "catboost": (sw.CatBoost(**SMALL["catboost"]),) * 2,
        "network": (sw.Network(**SMALL["network"]),) * 2,
        "ensemble": (sw.Ensemble(TWO[1], n=2), sw.Ensemble(TWO[0], n=2)),
        "blend": (sw.Blend(TWO), sw.Blend(TWO, [1.0, 3.0])),
        "auto": (sw.Auto(TWO), sw.Auto(TWO)),
    }
    for name, (one, two) in learners.items():
        validation = "auto" if name == "auto" else None
        yield f"{name}, numbers", number(one, validation=validation), X, means, {}
        yield f"{name}, classes", label(two, validation=validation), X, counts, {}
    for name in ("linear", "lightgbm", "xgboost", "catboost", "network"):
        learner = learners[name][0]
        yield f"{name}, frame", number(learner, sw.Normal("predicted")), frame(), means, {}
        yield f"{name}, pairs", label(learner), X, alike, {}
    few = {"X_few": X[:20], "z_few": z[:20]}
    yield "linear, aligned", number("linear", sw.StudentT(df=3.0)), X, ranks, few
    yield "linear, sparse", number("linear"), sparse.csr_matrix(X), means, {}
    yield "lightgbm, poisson", number(TWO[1], "poisson"), X, totals, {}
    yield "linear, words", sw.AggregateClassifier(["a", "b", "c"], "linear", **short), X, counts, {}
    yield from learned_besides(X, z, classes)
    estimators = [
        (number, RandomForestRegressor(3, random_state=0), means),
        (number, GradientBoostingRegressor(n_estimators=3), means),
        (number, HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5), means),
        (number, make_pipeline(StandardScaler(), SVR()), means),
        (number, KNeighborsRegressor(), means),
        (number, MLPRegressor(hidden_layer_sizes=(4,), max_iter=20, random_state=0), means),
        (number, AdaBoostRegressor(n_estimators=3, random_state=0), means),
        (label, RandomForestClassifier(3, random_state=0), counts),
        (label, GradientBoostingClassifier(n_estimators=2), counts),
        (label, HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=5), counts),
        (label, make_pipeline(StandardScaler(), LogisticRegression()), counts),
        (label, CalibratedClassifierCV(LinearSVC(), cv=2), counts),
        (label, BaggingClassifier(GaussianNB(), n_estimators=2, random_state=0), counts),
    ]
    for made, estimator, observations in estimators:
        learner = sw.EM(estimator, max_iter=2, folds=2)
        yield f"em, {type(estimator).__name__}", made(learner), X, observations, {}
    glm = sw.EM(PoissonRegressor(), max_iter=2, folds=2)
    yield "em, PoissonRegressor", number(glm, "poisson"), X, totals, {}


def learned_besides(X: Any, z: Any, classes: Any) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Fits that learn noise, effects of sets or ranks of features beside the rows."""
    pairs, sets = sw.Sets.random(N_ROWS, 90, 2, seed=2), sw.Sets.random(N_ROWS, 60, 3, seed=1)
    means, same = sw.Mean().observe(z, sets).y, sw.Similarity().observe(classes, pairs).y
    above = sw.Rank().observe(z, pairs).y
    who = np.array(["ann", "bob", "cy"])[np.arange(90) % 3]
    flips = sw.Noisy(sw.Similarity(), flip="learned"), sw.Noisy(sw.Rank(), flip="learned")
    noise, effect = sw.Noisy(sw.Mean(), normal="learned"), sw.RandomEffect(sw.Mean())
    short: dict[str, Any] = {"verbose": 0, "random_state": 0, "validation": None}
    label = sw.AggregateClassifier(3, "linear", n_restarts=1, **short)
    linear, trees = (sw.AggregateRegressor(learner=one, **short) for one in TWO)
    ranks = sw.AggregateRegressor(learner=sw.Network(**SMALL["network"], inputs="ranks"), **short)
    seen = sw.Observations
    yield "flips, classes", label, X, seen(flips[0], pairs, same), {}
    yield "flips by, classes", label, X, seen(flips[0], pairs, same, by=who), {}
    yield "flips, pairs", linear, X, seen(flips[1], pairs, above), {}
    yield "noise by, means", linear, X, seen(noise, sets, means, by=who[:60]), {}
    yield "effect, means", linear, X, seen(effect, sets, means), {}
    yield "effect by, means", trees, X, seen(effect, sets, means, by=np.arange(60) % 2), {}
    yield "network of ranks, numbers", ranks, X, sw.Mean().observe(z, sets), {}
    yield "network of ranks, frame", ranks, frame(), sw.Mean().observe(z, sets), {}


def save_models(folder: Path, every: int = 1) -> dict[str, Path]:
    """Fits and saves them, all or one of so many; the folders by name."""
    out = {}
    for name, est, X, observations, few in islice(fits(), 0, None, every):
        out[name] = folder / name.replace(", ", "-")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of short fits
            est.fit(X, observations)
            if few:
                est.align(**few)
            est.save(out[name])
    return out
