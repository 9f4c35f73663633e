"""The E-step of EM: what each row's target is expected to be once the y of its sets are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from setwise.distributions import Categorical, map_parameters
from setwise.inference import expectation
from setwise.objective import Objective

__all__ = ["Targets", "log_probabilities", "targets_for"]

Floats = NDArray[np.float64]
FLOOR = 1e-3  # share of a uniform distribution in the predicted probabilities: forests give zeros


class Targets(ABC):
    """Between the raw parameters of an objective and what an estimator is fitted to and predicts.

    `values` are one number per row, or (rows, C) probabilities.
    """

    classes: ClassVar[bool] = False

    def __init__(self, objective: Objective, raw: Tensor, shared: Tensor, seed: int) -> None:
        self.objective, self.family, self.seed = objective, objective.family, seed
        self.weight = np.zeros(objective.n_rows)
        for o in objective.observations:
            each = np.ones(len(o)) if o.weight is None else o.weight
            np.add.at(self.weight, o.sets.indices, np.repeat(each, o.sets.sizes))

    @abstractmethod
    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        """What an estimator should predict to give these raw parameters."""

    @abstractmethod
    def raw(self, values: Floats, shared: Tensor) -> Tensor:
        """The raw parameters, (rows, outputs), that predicted values stand for."""

    @abstractmethod
    def expected(self, values: Floats, shared: Tensor) -> Floats:
        """The completed targets: what each row's is expected to be, on average over its sets."""

    def information(self, raw: Tensor, shared: Tensor) -> Tensor:
        """What a row's own target would tell about its raw parameters, (rows, outputs)."""
        return self.family.information(raw, shared, self.seed)

    def facts(self, shared: Tensor) -> dict[str, Any]:
        """What a model needs to know to turn predictions into raw parameters."""
        return {}

    def step(self, values: Floats, shared: Tensor, damp: float) -> Floats:
        """The completed targets, moved on by the ratio of complete to observed information.

        What changes for all rows alike is told by the sets as well as by complete data: it is not
        lengthened.
        """
        raw = self.raw(values, shared)
        weight = torch.from_numpy(self.weight).unsqueeze(1)
        complete = float((weight * self.information(raw, shared)).sum())
        observed = float(self.objective.at(raw, shared).curvature().sum())
        longer = max(1.0, damp * complete / observed) if observed > 1e-9 * complete else 1.0
        change = self.expected(values, shared) - values
        common = np.average(change, 0, weights=self.weight)
        return self.inside(values + common + longer * (change - common))

    def inside(self, values: Floats) -> Floats:
        """Values that the estimator can be fitted to."""
        return values

    def members(self, raw: Tensor, shared: Tensor) -> Floats:
        """E[Z | y] of each row, on average over its sets; rows of impossible sets stay put."""
        with torch.no_grad():
            rows = self.family(raw, shared)
        total = np.zeros((len(raw), raw.shape[1]))
        for o in self.objective.observations:
            d = map_parameters(rows, o.sets.members)
            prior = d.probs if self.classes else d.mean  # type: ignore[attr-defined]
            found, _ = expectation(o, d)
            found = torch.where(found.isfinite(), found, prior).reshape(-1, total.shape[1])
            each = np.ones(len(o)) if o.weight is None else o.weight
            np.add.at(total, o.sets.indices, found.numpy() * np.repeat(each, o.sets.sizes)[:, None])
        return total / self.weight[:, None]

    def fit_shared(self, values: Floats, shared: Tensor) -> Tensor:
        """The shared parameters of largest likelihood where these values are predicted."""
        if not len(shared):
            return shared
        size = self.objective.total_weight

        def loss(x: Floats) -> tuple[float, Floats]:
            leaf = torch.from_numpy(x).requires_grad_()
            value = self.objective.loss(self.raw(values, leaf), leaf) / size
            (gradient,) = torch.autograd.grad(value, leaf)
            return float(value.detach()), gradient.numpy()

        found = optimize.minimize(loss, shared.numpy(), jac=True, method="L-BFGS-B")
        return torch.from_numpy(np.asarray(found.x, np.float64))


class _Classes(Targets):
    classes = True

    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        return np.asarray(raw.softmax(-1))

    def raw(self, values: Floats, shared: Tensor) -> Tensor:
        return torch.from_numpy(log_probabilities(values))

    def expected(self, values: Floats, shared: Tensor) -> Floats:
        return self.members(self.raw(values, shared), shared)

    def inside(self, values: Floats) -> Floats:
        positive = values.clip(min=0.0)
        return np.asarray(positive / positive.sum(1, keepdims=True))

    def facts(self, shared: Tensor) -> dict[str, Any]:
        return {"n_classes": len(self.family.outputs)}


class _Raw(Targets):
    """Families with one raw number, such as a location: the estimator predicts it.

    The completed target is raw + (∂ log p(y)/∂raw) / information: E[Z | y] for normal targets, a
    scoring step of the M-step for others (K. Lange, "A gradient algorithm locally equivalent to
    the EM algorithm", 1995).
    """

    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        return raw[:, 0].numpy().copy()

    def raw(self, values: Floats, shared: Tensor) -> Tensor:
        return torch.from_numpy(values).unsqueeze(1)

    def expected(self, values: Floats, shared: Tensor) -> Floats:
        raw = self.raw(values, shared)
        information = float(self.information(raw, shared).mean())  # of a location: the same for all
        slope = self.objective.at(raw, shared).gradient[:, 0].numpy()
        return np.asarray(values - slope / (self.weight * information))


class _Means(Targets):
    """Families whose mean is proportional to exp(raw): the estimator predicts the mean.

    Predictions below a thousandth of the overall mean count as that much.
    """

    def __init__(self, objective: Objective, raw: Tensor, shared: Tensor, seed: int) -> None:
        super().__init__(objective, raw, shared, seed)
        self.floor = FLOOR * float(self.values(raw.unsqueeze(0), shared)[0])

    def values(self, raw: Tensor, shared: Tensor) -> Floats:
        return np.asarray(self.family(raw, shared).mean)

    def offset(self, shared: Tensor) -> Tensor:
        """The log mean at raw = 0."""
        zero = torch.zeros(1, 1, dtype=torch.float64)
        return self.family(zero, shared).mean.log()

    def raw(self, values: Floats, shared: Tensor) -> Tensor:
        return torch.from_numpy(np.log(np.maximum(values, self.floor))).unsqueeze(1) - self.offset(
            shared
        )

    def expected(self, values: Floats, shared: Tensor) -> Floats:
        return self.members(self.raw(values, shared), shared)[:, 0]

    def facts(self, shared: Tensor) -> dict[str, Any]:
        return {"offset": float(self.offset(shared)), "floor": self.floor}


def log_probabilities(probs: Floats) -> Floats:
    """log of probabilities that are kept away from 0 by mixing in a little of a uniform one."""
    return np.asarray(np.log((1 - FLOOR) * probs + FLOOR / probs.shape[1]))


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
