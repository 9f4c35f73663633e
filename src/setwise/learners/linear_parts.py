"""Linear models of rows that are read in parts: the same solutions, from passes over the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, optimize
from torch import Tensor

from setwise.learners.base import Task
from setwise.objective import Objective, Point
from setwise.objective.sums import SetSums
from setwise.stored import Table, numbers

if TYPE_CHECKING:
    from setwise.learners.linear import Linear

__all__ = ["Standardized", "alternate", "least_squares", "newton"]

Array = NDArray[np.float64]
SMALL = 256  # numbers to learn up to which the Hessian is written out, in one pass for each step


class Standardized:
    """Tables of features, each with mean 0 and deviation 1, and a column of ones."""

    def __init__(self, mean: Array, scale: Array) -> None:
        self.mean, self.scale = mean, scale
        self.width = len(mean) + 1

    def __call__(self, table: Table) -> Array:
        """The columns of a part."""
        x = numbers(table)
        return np.column_stack([(x - self.mean) / self.scale, np.ones(len(x))])


def least_squares(learner: Linear, task: Task, design: Standardized) -> tuple[Array, Tensor, bool]:
    """Weighted least squares by a QR decomposition that takes in one part after another."""

    def at(coef: Array) -> tuple[Objective, Tensor]:
        sums = SetSums(task.objective)
        for table, part in task.objective.parts(task.X):
            sums.add(part, (design(table) @ coef)[:, 0])
        return sums.objective()

    return alternate(learner, task, lambda shared: _solve_once(learner, task, design, shared), at)


def alternate(
    learner: Linear,
    task: Task,
    solve: Callable[[Tensor], Array],
    at: Callable[[Array], tuple[Objective, Tensor]],
) -> tuple[Array, Tensor, bool]:
    """Coefficients and shared parameters in turn, until neither moves; whether that came about.

    `solve` finds the coefficients for given shared parameters; `at` gives an objective, and raw
    parameters in it, to which the shared ones are then fitted.
    """
    shared, converged, previous = task.shared, False, np.inf
    for _ in range(learner.max_iter):
        coef = solve(shared)
        objective, raw = at(coef)
        shared = objective.fit_shared(raw, shared, task.free)
        value = objective.value(raw, shared)
        task.progress.step(train=-value / task.objective.total_weight)
        once = task.learned.start == task.learned.stop or task.objective.separable
        converged = once or previous - value <= learner.tol**2 * max(1.0, abs(value))
        if converged:
            break
        previous = value
    return coef, shared, converged


def _solve_once(learner: Linear, task: Task, design: Standardized, shared: Tensor) -> Array:
    start, width = float(task.raw[0]), design.width
    triangle = np.zeros((0, width + 1))
    for table, part in task.objective.parts(task.X):
        x = design(table)
        for term in part.terms:
            matrix, target, weight = term.least_squares(shared)
            root = np.sqrt(weight)[:, None]
            level = target - matrix @ np.full(matrix.shape[1], start)
            block = np.hstack([root * (matrix @ x), root * level[:, None]])
            triangle = linalg.qr(np.vstack([triangle, block]), mode="r", overwrite_a=True)[0]
            triangle = triangle[: width + 1]
    if alpha := learner._penalty():
        ridge = np.eye(width - 1, width + 1) * np.sqrt(alpha * task.objective.precision(shared))
        triangle = np.vstack([triangle, ridge])
    found = linalg.lstsq(triangle[:, :width], triangle[:, width], cond=1e-10)[0]
    coef: Array = found[:, None]
    coef[-1] += start
    return coef


def newton(learner: Linear, task: Task, design: Standardized) -> tuple[Array, Tensor, bool]:
    """Trust-region Newton: one pass for a value and gradient, and one for a Hessian."""
    run = _Newton(learner, task, design)
    found = optimize.minimize(
        run.value, run.begin(), jac=True, hessp=run.product, method="trust-ncg",
        callback=lambda x: task.progress.step(train=-run.last / run.weight),
        options={"maxiter": learner.max_iter, "gtol": learner.tol, "max_trust_radius": 1e4},
    )  # fmt: skip
    coef, shared = run.split(np.asarray(found.x))
    small = float(np.abs(found.jac).max()) <= 10 * learner.tol
    return coef, shared, bool(found.success) or small


class _Newton:
    """The penalised loss per unit of weight, as a function of all numbers to learn."""

    def __init__(self, learner: Linear, task: Task, design: Standardized) -> None:
        self.task, self.design, objective = task, design, task.objective
        self.units = objective.family.units(task.raw, task.shared).numpy()
        self.weight = objective.total_weight
        self.shape = design.width, objective.n_outputs
        self.learned = task.learned
        self.size = design.width * objective.n_outputs + self.learned.stop - self.learned.start
        self.penalty = np.full(self.shape, learner._penalty() / self.weight)
        self.penalty[-1] = 0.0
        if objective.of_classes and objective.n_outputs == 2:
            self.penalty *= 2
        self.last = 0.0
        self.hessian = b"", np.zeros((0, 0))  # and where

    def begin(self) -> Array:
        """The model without features."""
        coef = np.zeros(self.shape)
        coef[-1] = self.task.raw.numpy() / self.units
        return np.concatenate([coef.ravel(), self.task.shared.numpy()[self.learned]])

    def split(self, x: Array) -> tuple[Array, Tensor]:
        """Coefficients and shared parameters."""
        k = self.penalty.size
        held = self.task.shared[: self.learned.start]
        shared = torch.cat([held, torch.from_numpy(x[k:].copy())])
        return x[:k].reshape(self.shape) * self.units, shared

    def _points(self, x: Array) -> Iterator[tuple[Array, Point]]:
        coef, shared = self.split(x)
        for table, part in self.task.objective.parts(self.task.X):
            columns = self.design(table)
            yield columns, part.at(torch.from_numpy(columns @ coef), shared)

    def _packed(self, columns: Array, rows: Tensor, shared: Tensor) -> Array:
        slopes = (columns.T @ rows.numpy()) * self.units
        return np.concatenate([slopes.ravel(), shared.numpy()[self.learned]]) / self.weight

    def _ridge(self, x: Array) -> Array:
        k = self.penalty.size
        return np.concatenate([self.penalty.ravel() * x[:k], np.zeros(len(x) - k)])

    def value(self, x: Array) -> tuple[float, Array]:
        """The loss and its gradient."""
        total, gradient = 0.0, self._ridge(x)
        for columns, point in self._points(x):
            total += point.value
            gradient += self._packed(columns, point.gradient, point.shared_gradient)
        self.last = total
        total = total / self.weight + 0.5 * float(x @ self._ridge(x))
        return (total if np.isfinite(total) else np.inf), gradient

    def _along(self, columns: Array, point: Point, v: Array) -> Array:
        k = self.penalty.size
        coef = v[:k].reshape(self.shape) * self.units
        shared = torch.zeros_like(self.task.shared)
        shared[self.learned] = torch.from_numpy(v[k:].copy())
        rows, own = point.product(torch.from_numpy(columns @ coef), shared)
        return self._packed(columns, rows, own)

    def product(self, x: Array, v: Array) -> Array:
        """The Hessian times a direction; where it is small, a pass finds all of it."""
        if self.size > SMALL:
            return sum((self._along(c, p, v) for c, p in self._points(x)), self._ridge(v))
        if self.hessian[0] != x.tobytes():
            found = np.diag(self._ridge(np.ones(len(x))))
            for columns, point in self._points(x):
                found += np.stack([self._along(columns, point, e) for e in np.eye(len(x))])
            self.hessian = x.tobytes(), found
        return self.hessian[1] @ v
