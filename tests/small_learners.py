"""Every learner that there is, with settings that make its fits quick."""

from __future__ import annotations

from typing import Any

from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from setwise.learners import Learner, LightGBM, Linear, learners

SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"max_iter": 10, "alpha": 0.0},
    "lightgbm": {"n_estimators": 2, "num_leaves": 4, "min_data_in_leaf": 5, "num_threads": 1},
    "xgboost": {"n_estimators": 2, "max_depth": 2, "nthread": 1},
    "catboost": {"n_estimators": 2, "max_depth": 2, "thread_count": 1},
    "network": {"hidden": (8,), "epochs": 30, "lr": 0.03, "device": "cpu"},
}
TWO = [Linear(alpha=1.0, max_iter=10), LightGBM(**SETTINGS["lightgbm"])]
SETTINGS |= {
    "ensemble": {"learner": TWO[1], "n": 2},
    "blend": {"learners": TWO},
    "auto": {"learners": TWO},
}


def small_learners(classes: bool = False) -> dict[str, Learner]:
    """A learner of each class by its name; with `classes`, one that predicts them."""
    out = {}
    for name, cls in learners().items():
        if not cls.__module__.startswith("setwise."):
            continue  # learners that other tests define
        if name == "em":
            tree = DecisionTreeClassifier if classes else DecisionTreeRegressor
            out[name] = cls(tree(min_samples_leaf=10), max_iter=5, folds=2)
        else:
            out[name] = cls(**SETTINGS.get(name, {}))
    return out
