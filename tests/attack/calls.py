"""Hostile calls in Python: one clear message each, the same whatever learns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import setwise as sw
from tests.attack.models import SMALL, TWO, frame
from tests.attack.outcome import Case
from tests.attack.sandbox import run_each

__all__ = ["ALIKE", "OWN", "calls", "learners"]

LONGEST = 600
X = np.random.default_rng(0).normal(size=(60, 3))
Z = X @ [1.0, -2.0, 0.5]
C = (Z > 0).astype(int)
SETS = sw.Sets.random(60, 50, 3, seed=1)
MEANS = sw.Mean().observe(Z, SETS)
PAIRS = sw.Sets.random(60, 50, 2, seed=2)
ALONE = sw.Sets(np.arange(60)[:, None])


def learners(classes: bool) -> dict[str, Any]:
    """A small one of every kind."""
    tree = DecisionTreeClassifier if classes else DecisionTreeRegressor
    return {
        "linear": sw.Linear(),
        "lightgbm": sw.LightGBM(**SMALL["lightgbm"]),
        "xgboost": sw.XGBoost(**SMALL["xgboost"]),
        "catboost": sw.CatBoost(**SMALL["catboost"]),
        "network": sw.Network(**SMALL["network"]),
        "em": sw.EM(tree(min_samples_leaf=10), max_iter=2, folds=2),
        "ensemble": sw.Ensemble(TWO[0], n=2),
        "blend": sw.Blend(TWO),
        "auto": sw.Auto(TWO),
    }


def number(learner: Any, validation: Any, **more: Any) -> Any:
    """A regressor."""
    given = {"learner": learner, "validation": validation, "verbose": 0, "random_state": 0}
    return sw.AggregateRegressor(**{**given, **more})


def label(learner: Any, validation: Any, n: Any = 2, **more: Any) -> Any:
    """A classifier."""
    given = {"learner": learner, "validation": validation, "verbose": 0, "random_state": 0}
    return sw.AggregateClassifier(n, **{**given, **more})


def means(y: Any = None, weight: Any = None, sets: Any = SETS) -> Any:
    """Means of sets."""
    return sw.Observations(sw.Mean(), sets, MEANS.y if y is None else y, weight=weight)


def put(value: Any, at: Any = (3, 1), table: Any = X) -> Any:
    """X with another number in one place."""
    out = table.copy()
    out[at] = value
    return out


Fit = Callable[[Any, Any], Any]

# name: whether of classes, what is called with a learner and a way of validation, what is said
ALIKE: dict[str, tuple[bool, Fit, str]] = {
    "all weights zero": (
        False,
        lambda l, v: number(l, v).fit(X, means(weight=np.zeros(50))),
        "all sets have weight 0",
    ),
    "the same y everywhere": (
        False,
        lambda l, v: number(l, v).fit(X, means(np.ones(50))),
        "other numbers",
    ),
    "y of 0 everywhere": (
        False,
        lambda l, v: number(l, v).fit(X, means(np.zeros(50))),
        "other numbers",
    ),
    "y of 1e150": (
        False,
        lambda l, v: number(l, v).fit(X, means(MEANS.y * 1e150)),
        "change their unit",
    ),
    "y of 1e-150": (
        False,
        lambda l, v: number(l, v).fit(X, means(MEANS.y * 1e-150)),
        "change their unit",
    ),
    "infinities in X": (
        False,
        lambda l, v: number(l, v).fit(put(np.inf), MEANS),
        "X has inf in row 3, column 1",
    ),
    "−infinity in X": (
        False,
        lambda l, v: number(l, v).fit(put(-np.inf), MEANS),
        "X has -inf in row 3, column 1",
    ),
    "infinity and NaN in X": (
        False,
        lambda l, v: number(l, v).fit(put(np.nan, (0, 0), put(np.inf)), MEANS),
        "X has inf in row 3",
    ),
    "infinity in a tensor": (
        False,
        lambda l, v: number(l, v).fit(torch.from_numpy(put(np.inf)), MEANS),
        "X has inf in row 3",
    ),
    "1e300 in X": (
        False,
        lambda l, v: number(l, v).fit(put(1e300), MEANS),
        "X has 1e+300 in row 3, column 1",
    ),
    "infinity in X of eval": (
        False,
        lambda l, v: number(l, v).fit(X, MEANS, eval=(put(np.inf), MEANS)),
        "X has inf in row 3",
    ),
    "infinity in X of predict": (
        False,
        lambda l, v: number(l, None).fit(X, MEANS).predict(put(np.inf)),
        "X has inf in row 3",
    ),
    "complex X": (False, lambda l, v: number(l, v).fit(X + 1j, MEANS), "complex numbers"),
    "words in X": (
        False,
        lambda l, v: number(l, v).fit(X.astype(str).astype(object) + "a", MEANS),
        "data frame",
    ),
    "a name that two columns have": (
        False,
        lambda l, v: number(l, v).fit(frame()[["x", "x", "flag"]].iloc[:60], MEANS),
        "X has more than one column 'x'",
    ),
    "no features": (False, lambda l, v: number(l, v).fit(X[:, :0], MEANS), "X has no features"),
    "no rows": (False, lambda l, v: number(l, v).fit(X[:0], MEANS), "X has only 0 rows"),
    "a vector as X": (False, lambda l, v: number(l, v).fit(X[:, 0], MEANS), "one line per row"),
    "None as X": (False, lambda l, v: number(l, v).fit(None, MEANS), "one line per row"),
    "no sets": (False, lambda l, v: number(l, v).fit(X, MEANS.take(slice(0))), "there are no sets"),
    "one set": (False, lambda l, v: number(l, v).fit(X, MEANS.take(slice(1))), "there is one set"),
    "no observations": (False, lambda l, v: number(l, v).fit(X, []), "there are no sets"),
    "None as observations": (False, lambda l, v: number(l, v).fit(X, None), "setwise.Observations"),
    "too few rows": (False, lambda l, v: number(l, v).fit(X[:10], MEANS), "X has only 10 rows"),
    "other features": (
        False,
        lambda l, v: number(l, None).fit(X, MEANS).predict(X[:, :2]),
        "X has 2 features",
    ),
    "a generator as random_state": (
        False,
        lambda l, v: number(l, v, random_state=np.random.default_rng(0)).fit(X, MEANS),
        "random_state is None, a whole number",
    ),
    "−1 as random_state": (
        False,
        lambda l, v: number(l, v, random_state=-1).fit(X, MEANS),
        "random_state is None",
    ),
    "a validation that is none": (
        False,
        lambda l, v: number(l, "yes").fit(X, MEANS),
        "validation is",
    ),
    "an overlap that is none": (
        False,
        lambda l, v: number(l, v, overlap="x").fit(X, MEANS),
        "overlap is",
    ),
    "a family that is none": (
        False,
        lambda l, v: number(l, v, distribution="x").fit(X, MEANS),
        "x",
    ),
    "an eval that is none": (
        False,
        lambda l, v: number(l, v).fit(X, MEANS, eval=X),
        "eval is a pair",
    ),
    "no features for eval": (
        False,
        lambda l, v: number(l, v).fit(X, MEANS, eval=(X[:, :0], MEANS)),
        "X has no features",
    ),
    "classes for numbers": (
        False,
        lambda l, v: number(l, v).fit(X, sw.Similarity().observe(C, PAIRS)),
        "use AggregateClassifier",
    ),
    "predict before fit": (False, lambda l, v: number(l, v).predict(X), "not fitted"),
    "one class": (
        True,
        lambda l, v: label(l, v).fit(X, sw.Direct().observe(0 * C, ALONE)),
        "other labels",
    ),
    "one class in all bags": (
        True,
        lambda l, v: label(l, v).fit(X, sw.AnyPositive().observe(0 * C + 1, SETS)),
        "other labels",
    ),
    "one class in all counts": (
        True,
        lambda l, v: label(l, v).fit(X, sw.Counts(n_classes=2).observe(0 * C, SETS)),
        "other labels",
    ),
    "a single class": (
        True,
        lambda l, v: label(l, v, 1).fit(X, sw.Counts().observe(C, SETS)),
        "at least 2",
    ),
    "a class that is none": (
        True,
        lambda l, v: label(l, v).fit(X, sw.Direct().observe(C + 1, ALONE)),
        "class",
    ),
    "counts of other classes": (
        True,
        lambda l, v: label(l, v, 3).fit(X, sw.Counts(n_classes=2).observe(C, SETS)),
        "class",
    ),
    "weights of zero for classes": (
        True,
        lambda l, v: label(l, v).fit(
            X, sw.Observations(sw.AnyPositive(), SETS, np.arange(50) % 2, weight=np.zeros(50))
        ),
        "all sets have weight 0",
    ),
}

# what has nothing to do with a learner, or with one only; what is said
OWN: dict[str, tuple[Callable[[], Any], str]] = {
    "sets of negative rows": (lambda: sw.Sets([[0, -1]]), "-1"),
    "sets of half rows": (lambda: sw.Sets([[0.5, 1.0]]), "integers"),
    "sets of words": (lambda: sw.Sets([["a", "b"]]), "integers"),
    "sets of huge rows": (
        lambda: number(TWO[0], None).fit(X, means([1.0, 2.0], sets=sw.Sets([[0, 2**62], [1, 2]]))),
        "only 60 rows",
    ),
    "y of another length": (lambda: means(MEANS.y[:-1]), "50"),
    "y with NaN": (lambda: means(put(np.nan, 3, MEANS.y)), "set 3"),
    "y with words": (lambda: means(["a"] * 50), "a"),
    "negative weights": (lambda: means(weight=-np.ones(50)), "weight"),
    "weights of NaN": (lambda: means(weight=np.full(50, np.nan)), "weight"),
    "infinite weights": (lambda: means(weight=np.full(50, np.inf)), "weight"),
    "weights of another length": (lambda: means(weight=np.ones(3)), "50 in all"),
    "infinity in sparse X": (
        lambda: number(TWO[0], None).fit(sparse.csr_matrix(put(np.inf)), MEANS),
        "X has inf in row 3, column 1",
    ),
    "no features in sparse X": (
        lambda: number(TWO[0], None).fit(sparse.csr_matrix((60, 0)), MEANS),
        "no features",
    ),
    "Network(lr=1e3)": (
        lambda: number(sw.Network(lr=1e3, device="cpu"), None).fit(X, MEANS),
        "lower lr",
    ),
    "Network(lr=1e30)": (
        lambda: number(sw.Network(lr=1e30, device="cpu"), "auto").fit(X, MEANS),
        "lower lr",
    ),
    "Network(lr=0)": (lambda: number(sw.Network(lr=0), None).fit(X, MEANS), "lr must be positive"),
    "Network(lr=nan)": (
        lambda: number(sw.Network(lr=math.nan), None).fit(X, MEANS),
        "lr must be positive",
    ),
    "Network(epochs=0)": (
        lambda: number(sw.Network(epochs=0), None).fit(X, MEANS),
        "epochs must be positive",
    ),
    "Network(batch_size=-1)": (
        lambda: number(sw.Network(batch_size=-1), None).fit(X, MEANS),
        "batch_size",
    ),
    "Network(hidden=-1)": (lambda: number(sw.Network(hidden=(-1,)), None).fit(X, MEANS), "hidden"),
    "Network(dropout=2)": (lambda: number(sw.Network(dropout=2.0), None).fit(X, MEANS), "dropout"),
    "Network(precision)": (
        lambda: number(sw.Network(precision="x"), None).fit(X, MEANS),
        "precision is",
    ),
    "Network(schedule)": (
        lambda: number(sw.Network(schedule="x"), None).fit(X, MEANS),
        "schedule is",
    ),
    "Network(3)": (lambda: number(sw.Network(3), None).fit(X, MEANS), "module is"),
    "Linear(alpha=-1)": (lambda: number(sw.Linear(alpha=-1), None).fit(X, MEANS), "alpha is"),
    "Linear(alpha=nan)": (
        lambda: number(sw.Linear(alpha=math.nan), None).fit(X, MEANS),
        "alpha is",
    ),
    "Linear(alpha=x)": (lambda: number(sw.Linear(alpha="x"), None).fit(X, MEANS), "alpha is"),
    "Ensemble(n=0)": (
        lambda: number(sw.Ensemble("linear", n=0), None).fit(X, MEANS),
        "n is the number",
    ),
    "Ensemble(resample)": (
        lambda: number(sw.Ensemble("linear", resample="x"), None).fit(X, MEANS),
        "resample is",
    ),
    "Blend without learners": (lambda: number(sw.Blend([]), None).fit(X, MEANS), "Blend"),
    "an unknown learner": (lambda: number("x", None).fit(X, MEANS), "unknown learner"),
    "a class as learner": (lambda: number(sw.Linear, None).fit(X, MEANS), "is a class"),
    "EM of nothing": (lambda: number(sw.EM(None), None).fit(X, MEANS), "None"),
    "LightGBM(n_estimators=x)": (
        lambda: number(sw.LightGBM(n_estimators="x"), None).fit(X, MEANS),
        "x",
    ),
    "LightGBM(learning_rate=-1)": (
        lambda: number(sw.LightGBM(learning_rate=-1), None).fit(X, MEANS),
        "learning_rate",
    ),
    "save into a file": (lambda: number(TWO[0], None).fit(X, MEANS).save(__file__), "is a file"),
    "load of nothing": (lambda: sw.load("/nowhere"), "is not a folder"),
}


def calls(seed: int, times: int) -> Iterator[Case]:
    """Every call with every learner; what they say is compared."""
    ways = (None, "auto") if times > 1 else (None,)
    for name, (classes, fit, words) in ALIKE.items():
        works = {
            f"{kind}, validation {way}": partial(_said, partial(fit, learner, way))
            for kind, learner in learners(classes).items()
            for way in ways
        }
        yield from _judged("calls, any learner", name, works, words)
    for name, (call, words) in OWN.items():
        yield from _judged("calls, one learner or none", name, {"": partial(_said, call)}, words)


def _judged(part: str, name: str, works: dict[str, Any], words: str) -> Iterator[Case]:
    # CatBoost waits forever for a thread that it could not start for want of addresses
    found = list(run_each(lambda key: works[key](), list(works), seconds=60, memory=1 << 36))
    first = next((said for _, said in found if said.startswith("refused")), "")
    for key, said in found:
        good = said == first and words in said and "\n" not in said and len(said) < LONGEST
        kind = said.partition(":")[0]
        outcome = "one sentence" if good else (kind if kind != "refused" else "another message")
        yield Case(part, outcome, good, f"{name} ({key}): {said} | {first}"[:700])


def _said(call: Callable[[], Any]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except (ValueError, TypeError, FloatingPointError) as error:
            return f"refused: {type(error).__name__}: {error}"
    return "accepted: without a word"
