"""Point predictions of rows, and their standard errors."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from torch.distributions import Distribution

from setwise.distributions import point_estimate
from setwise.summary.described import Described
from setwise.summary.uncertainty import deviation, deviation_of_classes

__all__ = ["PredictsClasses", "PredictsNumbers"]

Floats = NDArray[np.float64]


class PredictsNumbers(Described):
    """What the regressor predicts."""

    @abstractmethod
    def predict_dist(self, X: Any) -> Distribution:
        """The distribution of each row's target."""

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> Floats: ...

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[Floats, Floats]: ...

    def predict(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean of each row's target (the median where there is no mean).

        With `return_std=True` also its standard error: the standard deviation of the estimate of f,
        not that of the target around it, which `predict_dist(X)` gives. It comes from the
        information in the sets for `Linear`, and from how its models differ for `Ensemble`.
        """
        mean = np.asarray(point_estimate(self.predict_dist(X)), dtype=np.float64)
        return (mean, deviation(self, X)) if return_std else mean


class PredictsClasses(Described):
    """What the classifier predicts."""

    @property
    @abstractmethod
    def classes_(self) -> NDArray[Any]:
        """The class labels in order."""

    @abstractmethod
    def predict_dist(self, X: Any) -> Distribution:
        """The distribution of each row's target."""

    @overload
    def predict_proba(self, X: Any, return_std: Literal[False] = False) -> Floats: ...

    @overload
    def predict_proba(self, X: Any, return_std: Literal[True]) -> tuple[Floats, Floats]: ...

    def predict_proba(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The probability of each class, (rows, classes).

        With `return_std=True` also the standard deviations of these estimates, which `Linear` and
        `Ensemble` provide.
        """
        d: Any = self.predict_dist(X)
        probs = np.asarray(d.probs, dtype=np.float64)
        return (probs, deviation_of_classes(self, X)) if return_std else probs

    def predict(self, X: Any, return_std: bool = False) -> NDArray[Any]:
        """The most probable class of each row, as its label."""
        if return_std:
            raise TypeError(
                "a class has no standard deviation: predict_proba(X, return_std=True) gives those "
                "of the probabilities"
            )
        best: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return best
