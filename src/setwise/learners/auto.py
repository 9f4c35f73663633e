"""Auto: several kinds of learners are tried, and held-out sets choose."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from setwise.learners.base import Fitted, Learner, Task, resolve
from setwise.learners.boosting import CatBoost, LightGBM, XGBoost
from setwise.learners.inputs import as_array, n_features
from setwise.learners.linear import Linear
from setwise.learners.network import Network
from setwise.stored import Stored

__all__ = ["Auto"]

AT_LEAST, PER_MEMBER = 120.0, 0.01  # seconds that trying may take
SKEWED, EXAMINED = 2.0, 10_000  # skewness of a feature with a long tail, and rows looked at


class Auto(Learner):
    """Tries a linear model, boosted trees and a network; held-out sets choose one or an average.

    `learners` are the candidates, names or objects. The default is `Linear()`, `LightGBM()`,
    LightGBM with small trees that grow slowly, `Network()`, for features with long tails also
    `Network(inputs="ranks")`, and `XGBoost()` and `CatBoost()` where they are installed. Those that
    cannot read X are left out: only trees take missing values and columns of words, only networks
    images. What was tried is in `leaderboard_`. Without held-out sets there is nothing to choose
    by: then the first learner that can read X is fitted, trees in the default (`Linear` where there
    are few rows).

    `seconds` is the time after which no further learner is begun; the choice is then among those
    that were tried, and `leaderboard_` names the others. None is two minutes and a hundredth of a
    second for each member of the sets, many times what is usual.

    >>> Auto(["linear", "lightgbm"])
    Auto(learners=['linear', 'lightgbm'])
    """

    missing: ClassVar[bool] = True
    sparse: ClassVar[bool] = True
    stored: ClassVar[bool] = True

    def __init__(
        self, learners: Sequence[str | Learner] | None = None, *, seconds: float | None = None
    ) -> None:
        self.learners = learners
        self.seconds = seconds

    def candidates(self, task: Task) -> list[Learner]:
        """Every learner of the pool that can read the rows, with what it has to choose from."""
        able = self._able(task.X)
        return [candidate for learner in able for candidate in learner.candidates(task)]

    def patience_for(self, task: Task) -> float:
        """The time that trying may take."""
        if self.seconds is None:
            members = sum(int(o.sets.offsets[-1]) for o in task.objective.observations)
            return AT_LEAST + PER_MEMBER * members
        if not self.seconds > 0:
            raise ValueError(f"Auto: seconds must be positive, got {self.seconds!r}")
        return self.seconds

    def fit(self, task: Task) -> Fitted:
        """Fits the first learner that can read the rows and learn from so few."""
        *first, last = self._able(task.X)
        for learner in first:
            with suppress(ValueError):
                return learner.fit(task)
        return last.fit(task)

    def _able(self, X: Any) -> list[Learner]:
        usual = self.learners is None
        pool = _usual() if self.learners is None else [resolve(one) for one in self.learners]
        if sparse.issparse(X):
            able = [learner for learner in pool if learner.sparse]
        elif isinstance(X, Stored):
            able = [learner for learner in pool if learner.stored]
        elif n_features(X) is None:  # rows that are no lists of numbers
            able = [learner for learner in pool if isinstance(learner, Network)]
        else:
            try:
                table = as_array(X, missing=False, who="Auto")
                able = [*pool, Network(inputs="ranks")] if usual and _tailed(table) else pool
            except (TypeError, ValueError):
                able = [learner for learner in pool if learner.missing]
        if not able:
            raise ValueError(
                f"none of the learners {pool} can read this X: name one that can, such as "
                f"setwise.LightGBM() for missing values or setwise.Network(module) for images"
            )
        return able


def _tailed(table: NDArray[Any]) -> bool:
    """Whether a feature of more than two values is skewed like an exponential one, or more."""
    some = np.asarray(table[:: -(-len(table) // EXAMINED)], np.float64)
    z = (some - some.mean(0)) / np.maximum(some.std(0), 1e-300)
    far = np.flatnonzero(np.abs((z**3).mean(0)) > SKEWED)
    return any(len(np.unique(some[:, j])) > 2 for j in far)


def _usual() -> list[Learner]:
    """The candidates where none are given."""
    small = LightGBM(num_leaves=7, learning_rate=0.05, colsample_bytree=0.2, n_estimators=300)
    extras = {"xgboost": XGBoost(), "catboost": CatBoost()}
    installed = [learner for name, learner in extras.items() if find_spec(name)]
    return [LightGBM(), Linear(), small, *installed, Network()]
