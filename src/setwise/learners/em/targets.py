"""The E-step of EM: the expected target of each row, given the y of its sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.distributions import Categorical, map_parameters
from setwise.inference import expectation
from setwise.objective import Objective

__all__ = ["Targets", "targets_for", "to_raw"]

Floats = NDArray[np.float64]
FLOOR = 1e-3  # share of a uniform distribution in the predicted probabilities: forests give zeros


def to_raw(values: Floats, n_classes: int = 0, offset: Any = None, floor: float = 0.0) -> Tensor:
    """The raw parameters, (rows, outputs), of predicted values.

    Probabilities are mixed with a little of a uniform distribution (0.1 %), as forests give zeros;
    the raw parameters are their logarithms. A mean, not less than `floor`, is exp(raw + offset).
    Without an offset a value is the raw parameter itself.
    """
    if n_classes:
        return torch.from_numpy(np.log((1 - FLOOR) * values + FLOOR / n_classes))
    if offset is None:
        return torch.from_numpy(values).unsqueeze(1)
    raw: Tensor = torch.from_numpy(np.log(np.maximum(values, floor))).unsqueeze(1) - offset
    return raw


class Targets(ABC):
    """Between the raw parameters of an objective and what an estimator is fitted to and predicts.

    `values` are one number per row, or (rows, C) probabilities.
    """

    n_classes = 0  # of a classifier

    def __init__(self, objective: Objective, raw: Tensor, shared: Tensor, seed: int) -> None:
        self.objective, self.family, self.seed = objective, objective.family, seed
        self.weight = np.zeros(objective.n_rows)
        for term in objective.terms:
            self.weight += term.times_seen()

    @abstractmethod
    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        """The predictions of an estimator that stand for these raw parameters."""

    def link(self, shared: Tensor) -> dict[str, Any]:
        """How `to_raw` turns predictions into raw parameters."""
        return {}

    def raw(self, values: Floats, shared: Tensor) -> Tensor:
        """The raw parameters that predicted values stand for."""
        return to_raw(values, **self.link(shared))

    def expected(self, values: Floats, shared: Tensor) -> Floats:
        """The completed targets: E[Z | y] of each row, on average over its sets.

        Sets whose y is impossible leave their rows where they are.
        """
        with torch.no_grad():
            rows = self.family(self.raw(values, shared), shared)
        total = np.zeros((len(values), max(self.n_classes, 1)))
        for term in self.objective.terms:
            d = map_parameters(rows, term.sets.members)
            prior = d.probs if self.n_classes else d.mean  # type: ignore[attr-defined]
            found, _ = expectation(term.told(shared), d)
            found = torch.where(found.isfinite(), found, prior).reshape(-1, total.shape[1])
            np.add.at(total, term.sets.indices, found.numpy() * term.member_weight[:, None])
        return np.reshape(total / self.weight[:, None], values.shape)

    def step(self, values: Floats, shared: Tensor, damp: float) -> Floats:
        """The completed targets, moved on by the ratio of complete to observed information.

        A change that is common to all rows is known from the sets as well as from complete data,
        so it is not lengthened.
        """
        raw = self.raw(values, shared)
        weight = torch.from_numpy(self.weight).unsqueeze(1)
        complete = float((weight * self.family.information(raw, shared, self.seed)).sum())
        observed = float(self.objective.at(raw, shared).curvature().sum())
        longer = max(1.0, damp * complete / observed) if observed > 1e-9 * complete else 1.0
        change = self.expected(values, shared) - values
        common = np.average(change, 0, weights=self.weight)
        return self.inside(values + common + longer * (change - common))

    def inside(self, values: Floats) -> Floats:
        """Values that the estimator can be fitted to."""
        return values


class _Classes(Targets):
    def __init__(self, objective: Objective, raw: Tensor, shared: Tensor, seed: int) -> None:
        super().__init__(objective, raw, shared, seed)
        self.n_classes = objective.n_outputs

    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        return np.asarray(raw.softmax(-1))

    def inside(self, values: Floats) -> Floats:
        positive = values.clip(min=0.0)
        return np.asarray(positive / positive.sum(1, keepdims=True))

    def link(self, shared: Tensor) -> dict[str, Any]:
        return {"n_classes": self.n_classes}


class _Raw(Targets):
    """Families with one raw number, such as a location: the estimator predicts it.

    The completed target is raw + (∂ log p(y)/∂raw) / information: E[Z | y] for normal targets, a
    scoring step of the M-step for others (K. Lange, "A gradient algorithm locally equivalent to
    the EM algorithm", 1995).
    """

    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        return raw[:, 0].numpy().copy()

    def expected(self, values: Floats, shared: Tensor) -> Floats:
        raw = self.raw(values, shared)
        each = self.family.information(raw, shared, self.seed)  # of a location: the same for all
        if not each.any():  # draws that rounding makes alike: the model fits exactly
            return values
        slope = self.objective.at(raw, shared).gradient[:, 0].numpy()
        return np.asarray(values - slope / (self.weight * float(each.mean())))


class _Means(Targets):
    """Families whose mean is proportional to exp(raw): the estimator predicts the mean.

    Predictions below a thousandth of the overall mean count as that much.
    """

    def __init__(self, objective: Objective, raw: Tensor, shared: Tensor, seed: int) -> None:
        super().__init__(objective, raw, shared, seed)
        self.floor = FLOOR * float(self.values(raw.unsqueeze(0), shared)[0])

    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        return np.asarray(self.family(raw, shared).mean)

    def link(self, shared: Tensor) -> dict[str, Any]:
        mean_at_zero = self.family(torch.zeros(1, 1, dtype=torch.float64), shared).mean
        return {"offset": mean_at_zero.log(), "floor": self.floor}


def targets_for(objective: Objective, raw: Tensor, shared: Tensor, seed: int) -> Targets:
    """The E-step for this family; `raw` and `shared` are the intercept-only parameters."""
    family = objective.family
    if isinstance(family, Categorical):
        return _Classes(objective, raw, shared, seed)
    if len(family.outputs) == 1:
        return (_Means if family.log_mean else _Raw)(objective, raw, shared, seed)
    raise TypeError(
        f"EM fits one estimator, which gives one number per row, but {family!r} needs "
        f"{' and '.join(family.outputs)}: use a shared or fixed scale, or another learner "
        f"(Linear, LightGBM, XGBoost, CatBoost and Network predict them all)"
    )
