"""AggregateRegressor: numbers of individuals from labels of sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from setwise import distributions
from setwise.distributions import Family
from setwise.estimators.base import AggregateEstimator
from setwise.learners import Learner
from setwise.observations import Observations
from setwise.summary import PredictsNumbers

__all__ = ["AggregateRegressor"]


class AggregateRegressor(AggregateEstimator, PredictsNumbers):
    """Predicts a number for each individual, from labels given to sets of them.

    `distribution` is a family such as `setwise.Normal(scale="predicted")`, or the name of one;
    `learner` likewise. `overlap` says how sets that share rows are treated. With "auto" linear
    observations of normal targets have their joint likelihood where it can be computed, and all
    others count as independent; with "independent" all do; with "joint" it is an error if there is
    no joint likelihood. `overlap_` says what a fit did, and why.

    >>> import numpy as np, setwise as sw
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> z = 3 + X @ [1.0, -2.0]
    >>> means = sw.Mean().observe(z, sw.Sets.random(200, 300, 4, seed=1))
    >>> model = AggregateRegressor(learner="linear", verbose=0).fit(X, means)
    >>> model.predict([[0.0, 0.0], [1.0, 0.0]]).round(3).tolist()
    [3.0, 4.0]
    """

    def __init__(
        self,
        distribution: str | Family = "normal",
        learner: str | Learner = "auto",
        *,
        validation: str | None = "auto",
        overlap: str = "auto",
        random_state: Any = None,
        verbose: int = 1,
    ) -> None:
        self.distribution = distribution
        self.learner = learner
        self.validation = validation
        self.overlap = overlap
        self.random_state = random_state
        self.verbose = verbose

    def _family(self, labels: NDArray[Any] | None = None) -> Family:
        family = distributions.resolve(self.distribution)
        if isinstance(family, distributions.Categorical):
            raise TypeError("classes are for AggregateClassifier(n_classes), not the regressor")
        return family

    def _class_labels(self, observations: Sequence[Observations]) -> None:
        for o in observations:
            if o.classes is not None:
                raise TypeError(
                    f"y of {o.aggregate!r} names the classes {list(o.classes)[:8]}: use "
                    f"AggregateClassifier, or give numbers as y"
                )
