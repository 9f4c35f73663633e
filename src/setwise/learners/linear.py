"""Linear models: raw parameters that are affine in the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse
from scipy.sparse.linalg import lsmr
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from setwise._arrays import read_arrays, write_arrays
from setwise.learners import linear_parts
from setwise.learners.base import Fitted, Learner, Model, Task
from setwise.learners.inputs import as_array
from setwise.learners.interruption import stopped
from setwise.objective import Objective, Point
from setwise.stored import Stored

__all__ = ["Linear"]

Array = NDArray[np.float64]
ALPHAS = (0.0, 1.0, 10.0, 100.0, 1000.0)  # that held-out sets choose from
FILE = "linear.safetensors"
KINDS = {"coef": (np.float64, 2), "intercept": (np.float64, 1), "penalty": (np.float64, 2)}
DENSE = 5 * 10**7  # numbers in a design matrix up to which least squares is solved directly


class Linear(Learner):
    """raw = X·coef + intercept, for each output, by maximum likelihood to convergence.

    Least squares problems (means, sums, differences and direct observations of normal targets) are
    solved exactly; others by a trust-region Newton method with exact Hessian products. Features are
    standardised inside, X may be sparse.

    `alpha` is a ridge penalty on the coefficients of the standardised features, as scikit-learn
    has it: with a label for each row `Linear(alpha)` is `Ridge(alpha)`, or of classes
    `LogisticRegression(C=1/alpha)`. Means and sums are penalised as `Ridge` on the table of sets
    would be. "auto" lets held-out sets choose from a few; without any there is no penalty.

    >>> Linear(alpha=1.0)
    Linear(alpha=1.0)
    """

    sparse: ClassVar[bool] = True
    stored: ClassVar[bool] = True
    stops: ClassVar[bool] = False

    def __init__(
        self, alpha: float | str = "auto", *, max_iter: int = 200, tol: float = 1e-6
    ) -> None:
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, task: Task) -> Fitted:
        """The coefficients, and shared parameters, of largest penalised likelihood."""
        self._penalty()
        quadratic = task.objective.quadratic
        with task.progress.running("Linear", None):
            if isinstance(task.X, Stored):
                design = linear_parts.Standardized(*task.X.moments())
                mean, scale = design.mean, design.scale
                in_parts = linear_parts.least_squares if quadratic else linear_parts.newton
                coef, shared, converged = in_parts(self, task, design)
            else:
                table, mean, scale = _design(task.X)
                solve = _least_squares if quadratic else _newton
                coef, shared, converged = solve(self, task, table)
        slopes = coef[:-1] / scale[:, None]
        penalty = self._curvature(task, shared) * scale[:, None] ** 2
        return Fitted(LinearModel(slopes, coef[-1] - mean @ slopes, penalty), shared, converged)

    def _penalty(self) -> float:
        """alpha as a number."""
        if self.alpha == "auto":
            return 0.0
        if isinstance(self.alpha, str) or not self.alpha >= 0:
            raise ValueError(
                f'Linear: alpha is a penalty of at least 0, or "auto"; got {self.alpha!r}'
            )
        return self.alpha

    def _curvature(self, task: Task, shared: Tensor) -> Array:
        """The second derivative of the penalty in each output's coefficients."""
        objective, alpha = task.objective, self._penalty()
        if alpha and objective.quadratic:
            alpha *= objective.precision(shared)
        elif objective.of_classes and objective.n_outputs == 2:
            alpha *= 2
        at = shared if objective.quadratic else task.shared
        return np.asarray(alpha / objective.family.units(task.raw, at).numpy() ** 2)

    def for_part(self, share: float) -> Linear:
        """With as much less of a penalty: a part then leaves as large coefficients as all sets."""
        alpha = self._penalty() * share
        return Linear(alpha, max_iter=self.max_iter, tol=self.tol)

    def candidates(self, task: Task) -> list[Learner]:
        """One for each penalty that held-out sets may choose from."""
        if self.alpha != "auto":
            return [self]
        return [Linear(alpha, max_iter=self.max_iter, tol=self.tol) for alpha in ALPHAS]


def _design(X: Any) -> tuple[Any, Array, Array]:
    """Standardised features and a column of ones, and the means and scales of the features.

    Sparse features are scaled, not centred: their means count as 0.
    """
    ones = np.ones((X.shape[0], 1))
    if sparse.issparse(X):
        scaler = StandardScaler(with_mean=False)
        table = sparse.hstack([scaler.fit_transform(X), ones], format="csr")
        return table, np.zeros(X.shape[1]), scaler.scale_
    scaler = StandardScaler()
    scaled = scaler.fit_transform(as_array(X, missing=False, who="Linear"))
    return np.hstack([scaled, ones]), scaler.mean_, scaler.scale_


def _least_squares(learner: Linear, task: Task, table: Any) -> tuple[Array, Tensor, bool]:
    """Weighted least squares; repeated where the weights depend on the shared scale."""
    objective, start = task.objective, task.raw.numpy()
    return linear_parts.alternate(
        learner,
        task,
        lambda shared: _solve_once(learner, objective, shared, table, start),
        lambda coef: (objective, torch.from_numpy(table @ coef)),
    )


def _solve_once(
    learner: Linear, objective: Objective, shared: Tensor, table: Any, start: Array
) -> Array:
    blocks, targets, weights = [], [], []
    for term in objective.terms:
        matrix, target, weight = term.least_squares(shared)
        root = np.sqrt(weight)
        weights.append(weight)
        rows = matrix @ table
        level = matrix @ np.full(matrix.shape[1], start[0])
        blocks.append(sparse.diags_array(root) @ rows)
        targets.append((target - level) * root)
    width = table.shape[1]
    if alpha := learner._penalty():  # in units of the precision of a set's label
        blocks.append(np.sqrt(alpha * np.concatenate(weights).mean()) * np.eye(width - 1, width))
        targets.append(np.zeros(width - 1))
    target = np.concatenate(targets)
    if any(sparse.issparse(b) for b in blocks) or len(target) * width > DENSE:
        stacked = sparse.vstack([sparse.csr_array(b) for b in blocks])
        found = lsmr(stacked, target, atol=1e-12, btol=1e-12, maxiter=20 * width)[0]
    else:
        found = linalg.lstsq(np.vstack(blocks), target, cond=1e-10, overwrite_a=True)[0]
    coef: Array = found[:, None]
    coef[-1] += start[0]
    return coef


def _newton(learner: Linear, task: Task, table: Any) -> tuple[Array, Tensor, bool]:
    """Trust-region Newton with conjugate gradients."""
    objective = task.objective
    units = objective.family.units(task.raw, task.shared).numpy()
    shape = table.shape[1], objective.n_outputs
    learned = task.learned
    weight = objective.total_weight
    penalty = np.full(shape, learner._penalty() / weight)
    penalty[-1] = 0.0
    if objective.of_classes and objective.n_outputs == 2:
        penalty *= 2  # two opposite logits have one coefficient of twice the size in scikit-learn
    last: dict[bytes, Point] = {}

    def unpack(x: Array, fixed: Tensor) -> tuple[Array, Tensor, Tensor]:
        coef = x[: penalty.size].reshape(shape)
        shared = torch.cat([fixed[: learned.start], torch.from_numpy(x[penalty.size :].copy())])
        return coef, torch.from_numpy(table @ (coef * units)), shared

    def pack(raw: Tensor, shared: Tensor, coef: Array) -> Array:
        slopes = (table.T @ raw.numpy()) * units / weight + penalty * coef
        return np.concatenate([slopes.ravel(), shared.numpy()[learned] / weight])

    def point(x: Array) -> Point:
        key = x.tobytes()
        if key not in last:
            last.clear()
            last[key] = objective.at(*unpack(x, task.shared)[1:])
        return last[key]

    def value(x: Array) -> tuple[float, Array]:
        here, coef = point(x), x[: penalty.size].reshape(shape)
        total = here.value / weight + 0.5 * float((penalty * coef**2).sum())
        gradient = pack(here.gradient, here.shared_gradient, coef)
        return (total if np.isfinite(total) else np.inf), gradient

    def product(x: Array, v: Array) -> Array:
        coef, raw, shared = unpack(v, torch.zeros_like(task.shared))
        return pack(*point(x).product(raw, shared), coef)

    def step(x: Array) -> None:
        task.progress.step(train=-point(x).value / weight)
        if stopped():
            raise StopIteration

    coef = np.zeros(shape)
    if task.guide is not None:
        dense = table.toarray() if sparse.issparse(table) else table
        coef = linalg.lstsq(dense, (task.guide.numpy() - task.raw.numpy()) / units, cond=1e-6)[0]
    coef[-1] += task.raw.numpy() / units
    begin = np.concatenate([coef.ravel(), task.shared.numpy()[learned]])
    found = optimize.minimize(
        value, begin, jac=True, hessp=product, method="trust-ncg",
        callback=step,
        options={"maxiter": learner.max_iter, "gtol": learner.tol, "max_trust_radius": 1e4},
    )  # fmt: skip
    coef, _, shared = unpack(np.asarray(found.x), task.shared)
    small = float(np.abs(found.jac).max()) <= 10 * learner.tol
    return coef * units, shared, bool(found.success) or small


class LinearModel(Model):
    """Coefficients (features, outputs), intercepts (outputs), the curvature of the penalty."""

    def __init__(self, coef: Array, intercept: Array, penalty: Array | None = None) -> None:
        self.coef, self.intercept = coef, intercept
        self.penalty = np.zeros_like(coef) if penalty is None else penalty

    def raw(self, X: Any) -> Array:
        if not sparse.issparse(X):
            X = as_array(X, missing=False, who="Linear")
        out: Array = X @ self.coef + self.intercept
        return out

    def save(self, folder: Path) -> dict[str, Any]:
        write_arrays(folder / FILE, vars(self))
        return {}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> LinearModel:
        parts = read_arrays(folder / FILE, KINDS)
        coef, intercept, penalty = (parts[name] for name in KINDS)
        finite = all(np.isfinite(array).all() for array in parts.values())
        if not (coef.shape == penalty.shape == (len(coef), len(intercept)) and finite):
            raise ValueError(f"the coefficients of {FILE} are no numbers for features and outputs")
        return cls(**parts)
