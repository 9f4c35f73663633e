"""Linear models: raw parameters that are affine in the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse
from scipy.sparse.linalg import lsmr
from torch import Tensor

from setwise.learners.base import Fitted, Learner, Model, Task
from setwise.learners.inputs import as_array
from setwise.objective import Objective, Point

__all__ = ["Linear"]

Array = NDArray[np.float64]
DENSE = 5 * 10**7  # numbers in a design matrix up to which least squares is solved directly


class Linear(Learner):
    """raw = X·coef + intercept, for each output, by maximum likelihood to convergence.

    Least squares problems (means, sums, differences and direct observations of normal targets) are
    solved exactly; others by a trust-region Newton method with exact Hessian products. Features are
    standardised inside; `alpha` is a ridge penalty, alpha/2 · Σ (coef/unit)², on the standardised
    coefficients, where a location is measured in units of the targets' scale (so that alpha means
    what it does in scikit-learn's `Ridge`). X may be sparse.

    >>> Linear(alpha=1.0)
    Linear(alpha=1.0)
    """

    sparse: ClassVar[bool] = True
    stops: ClassVar[bool] = False

    def __init__(self, alpha: float = 0.0, *, max_iter: int = 200, tol: float = 1e-6) -> None:
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, task: Task) -> Fitted:
        """The coefficients, and shared parameters, of largest penalised likelihood."""
        if not self.alpha >= 0:
            raise ValueError(f"Linear: alpha is a penalty of at least 0, got {self.alpha}")
        design = _Design(task.X)
        solve = _least_squares if task.objective.quadratic else _newton
        with task.progress.running("Linear", None):
            coef, shared, converged = solve(self, task, design)
        return Fitted(LinearModel(*design.original(coef)), shared, converged)


class _Design:
    """Standardised features and a column of ones; sparse features are scaled, not centred."""

    def __init__(self, X: Any) -> None:
        if sparse.issparse(X):
            self.mean = np.zeros(X.shape[1])
            square = np.asarray(X.multiply(X).mean(0)).ravel()
            mean = np.asarray(X.mean(0)).ravel()
            self.scale = np.sqrt(np.maximum(square - mean**2, 0.0))
        else:
            X = as_array(X, missing=False, who="Linear")
            self.mean, self.scale = X.mean(0), X.std(0)
        tiny = self.scale <= 1e-12 * np.maximum(np.abs(self.mean), 1e-300)
        self.scale = np.where(tiny, 1.0, self.scale)
        ones = np.ones((X.shape[0], 1))
        if sparse.issparse(X):
            scaled = X @ sparse.diags_array(1 / self.scale)
            self.table: Any = sparse.hstack([scaled, ones]).tocsr()
        else:
            self.table = np.hstack([(X - self.mean) / self.scale, ones])

    def original(self, coef: Array) -> tuple[Array, Array]:
        """Coefficients and intercepts for the features as they came."""
        slopes = coef[:-1] / self.scale[:, None]
        return slopes, coef[-1] - self.mean @ slopes


def _least_squares(learner: Linear, task: Task, design: _Design) -> tuple[Array, Tensor, bool]:
    """Weighted least squares; repeated where the weights depend on the shared scale."""
    objective, shared = task.objective, task.shared
    start = task.raw.numpy()
    converged, previous = False, np.inf
    for _ in range(learner.max_iter):
        coef = _solve_once(learner, objective, shared, design, start)
        raw = torch.from_numpy(design.table @ coef)
        if task.free:
            shared = objective.fit_shared(raw, shared)
        value = objective.value(raw, shared)
        task.progress.step(train=-value / objective.total_weight)
        if not (task.free and objective.n_shared) or objective.separable:
            converged = True
            break
        if previous - value <= learner.tol * learner.tol * max(1.0, abs(value)):
            converged = True
            break
        previous = value
    return coef, shared, converged


def _solve_once(
    learner: Linear, objective: Objective, shared: Tensor, design: _Design, start: Array
) -> Array:
    blocks, targets = [], []
    for term in objective.terms:
        matrix, target, weight = term.least_squares(shared)
        root = np.sqrt(weight)
        rows = matrix @ design.table
        level = matrix @ np.full(matrix.shape[1], start[0])
        blocks.append(
            rows.multiply(root[:, None]) if sparse.issparse(rows) else rows * root[:, None]
        )
        targets.append((target - level) * root)
    width = design.table.shape[1]
    if learner.alpha:
        blocks.append(np.sqrt(learner.alpha) * np.eye(width - 1, width))
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


def _newton(learner: Linear, task: Task, design: _Design) -> tuple[Array, Tensor, bool]:
    """Trust-region Newton with conjugate gradients."""
    objective, table = task.objective, design.table
    units = objective.family.units(task.raw, task.shared).numpy()
    width, n_outputs = table.shape[1], objective.n_outputs
    n_shared = objective.n_shared if task.free else 0
    weight = objective.total_weight
    penalty = np.full((width, n_outputs), learner.alpha / weight)
    penalty[-1] = 0.0
    last: dict[bytes, Point] = {}

    def unpack(x: Array) -> tuple[Array, Tensor]:
        coef = x[: width * n_outputs].reshape(width, n_outputs)
        shared = torch.from_numpy(x[width * n_outputs :].copy()) if n_shared else task.shared
        return coef, shared

    def point(x: Array) -> Point:
        key = x.tobytes()
        if key not in last:
            last.clear()
            coef, shared = unpack(x)
            last[key] = objective.at(torch.from_numpy(table @ (coef * units)), shared)
        return last[key]

    def value(x: Array) -> float:
        coef, _ = unpack(x)
        found = point(x).value / weight + 0.5 * float((penalty * coef**2).sum())
        return found if np.isfinite(found) else np.inf

    def pack(raw: Tensor, shared: Tensor, coef: Array) -> Array:
        slopes = (table.T @ raw.numpy()) * units / weight + penalty * coef
        return np.concatenate([slopes.ravel(), shared.numpy()[:n_shared] / weight])

    def gradient(x: Array) -> Array:
        return pack(point(x).gradient, point(x).shared_gradient, unpack(x)[0])

    def product(x: Array, v: Array) -> Array:
        coef = v[: width * n_outputs].reshape(width, n_outputs)
        shared = torch.zeros_like(task.shared)
        if n_shared:
            shared = torch.from_numpy(v[width * n_outputs :].copy())
        raw = torch.from_numpy(table @ (coef * units))
        return pack(*point(x).product(raw, shared), coef)

    coef = np.zeros((width, n_outputs))
    if task.guide is not None:
        guide = (task.guide.numpy() - task.raw.numpy()) / units
        coef = linalg.lstsq(_dense(table), guide, cond=1e-6)[0]
    coef[-1] += task.raw.numpy() / units
    begin = np.concatenate([coef.ravel(), task.shared.numpy()[:n_shared]])
    found = optimize.minimize(
        value, begin, jac=gradient, hessp=product, method="trust-ncg",
        callback=lambda x: task.progress.step(train=-point(x).value / weight),
        options={"maxiter": learner.max_iter, "gtol": learner.tol, "max_trust_radius": 1e4},
    )  # fmt: skip
    coef, shared = unpack(np.asarray(found.x))
    small = float(np.abs(gradient(found.x)).max()) <= 10 * learner.tol
    return coef * units, shared, bool(found.success) or small


def _dense(table: Any) -> Array:
    dense: Array = table.toarray() if sparse.issparse(table) else table
    return dense


class LinearModel(Model):
    """Coefficients (features, outputs) and intercepts (outputs)."""

    def __init__(self, coef: Array, intercept: Array) -> None:
        self.coef, self.intercept = coef, intercept

    def raw(self, X: Any) -> Array:
        if not sparse.issparse(X):
            X = as_array(X, missing=False, who="Linear")
        out: Array = X @ self.coef + self.intercept
        return out

    def save(self, folder: Path) -> dict[str, Any]:
        parts = {"coef": np.ascontiguousarray(self.coef), "intercept": self.intercept.copy()}
        safetensors.numpy.save_file(parts, folder / "linear.safetensors")
        return {}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> LinearModel:
        parts = safetensors.numpy.load_file(folder / "linear.safetensors")
        return cls(parts["coef"], parts["intercept"])
