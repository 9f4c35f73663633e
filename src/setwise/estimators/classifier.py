"""AggregateClassifier: classes of individuals from labels of sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise import distributions
from setwise.distributions import Family
from setwise.estimators.base import AggregateEstimator
from setwise.identifiability import Identifiability
from setwise.learners import Learner
from setwise.likelihood.classes import class_labels
from setwise.observations import Observations
from setwise.summary import PredictsClasses

__all__ = ["AggregateClassifier"]


class AggregateClassifier(AggregateEstimator, PredictsClasses):
    """Predicts the class of each individual, from labels given to sets of them.

    `n_classes` is their number, or the class labels in order; None asks the observations: names of
    classes in y or in the columns of a frame, else the numbers that y has. In observations whose y
    holds numbers class i is the number i, in predictions it is the i-th label, see `classes_`.
    `n_restarts` is how many random starts are compared where classes can be swapped or collapse;
    None chooses a suitable number. For similarity and triplets of three classes or more, any number
    but 1 means a single start, from the clusters of an embedding.

    >>> import numpy as np, setwise as sw
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> z = np.where(X[:, 0] > 0, "red", "blue")
    >>> counts = sw.Counts().observe(z, sw.Sets.random(200, 100, 4, seed=1))
    >>> model = AggregateClassifier(learner="linear", verbose=0).fit(X, counts)
    >>> model.predict([[1.0, 0.0], [-1.0, 0.0]]).tolist()
    ['red', 'blue']
    """

    def __init__(
        self,
        n_classes: Any = None,
        learner: str | Learner = "auto",
        *,
        n_restarts: int | None = None,
        validation: str | None = "auto",
        overlap: str = "auto",
        random_state: Any = None,
        verbose: int = 1,
    ) -> None:
        self.n_classes = n_classes
        self.learner = learner
        self.n_restarts = n_restarts
        self.validation = validation
        self.overlap = overlap
        self.random_state = random_state
        self.verbose = verbose

    @property
    def classes_(self) -> NDArray[Any]:
        """The class labels in order: those of the fit, before it those that were given."""
        family = getattr(self, "family_", None)
        if family is None and self.n_classes is None:
            raise AttributeError("classes_ is known once fit has seen observations")
        if family is None:
            return class_labels(self.n_classes, [])
        return np.arange(family.n_classes) if family.labels is None else np.array(family.labels)

    def _class_labels(self, observations: Sequence[Observations]) -> NDArray[Any]:
        return class_labels(self.n_classes, observations)

    def _family(self, labels: NDArray[Any] | None = None) -> Family:
        assert labels is not None
        named = labels.dtype.kind != "i" or (labels != np.arange(len(labels))).any()
        return distributions.Categorical(len(labels), tuple(labels.tolist()) if named else None)

    def _restarts(self, identifiability: Identifiability) -> int:
        if self.n_restarts is not None and self.n_restarts < 1:
            raise ValueError(f"n_restarts must be at least 1, got {self.n_restarts}")
        if not identifiability.permutation:
            return 1
        return 5 if self.n_restarts is None else self.n_restarts

    def _targets(self, z: Any) -> NDArray[Any]:
        order = {label: i for i, label in enumerate(self.classes_.tolist())}
        try:
            return np.array([order[v] for v in np.asarray(z).tolist()])
        except KeyError as error:
            raise ValueError(f"{error} is not one of the classes {list(order)[:20]}") from None
