"""Standard errors of linear models: observed information, and a sandwich over sets.

With H the Hessian of −Σ log p(y) in the coefficients (and of a ridge penalty, if there is one),
and g_s the gradient of set s, the covariance of the estimates is

    H⁻¹                                    if every word of the model is right, and
    H⁻¹ (Σ g_s g_tᵀ over s ~ t) H⁻¹        whatever the spread of targets: the sandwich,

where s ~ t are sets that share a row (and each set with itself): given the features, targets of
different rows are independent, so other pairs add nothing. Sets whose joint likelihood is known
are first made independent. The sandwich is multiplied by
n / (n − p), with p coefficients and n sets, or n rows where there are fewer of them. Where every
row has a coefficient of its own (a column for each name), what a row's targets have in common is in
that coefficient: then s ~ t only for s = t, and n are the sets. Directions in which H is zero
change no label's probability: they are kept apart, not inverted.

White, "Maximum likelihood estimation of misspecified models", Econometrica 1982; Aronow, Samii and
Assenova, "Cluster-robust variance estimation for dyadic data", Political Analysis 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, sparse
from torch import Tensor

from setwise._facts import AnyFloat, checked
from setwise.inference.set_gradients import CHUNK, outer
from setwise.objective import Objective

__all__ = ["MOST", "StandardErrors", "standard_errors"]

Floats = NDArray[np.float64]
MOST = 2_000  # coefficients
NULL = 1e-9  # of the largest eigenvalue of H: less is no information
OPEN = 1e-6  # of a combination of coefficients: more within open directions, and it is open


class Facts(TypedDict):
    """The fields of `StandardErrors` that are not arrays."""

    n: int
    effective: float
    penalised: bool
    shares: bool
    away: AnyFloat
    saddle: bool


@dataclass(frozen=True)
class StandardErrors:
    """The covariance of the coefficients of a linear model, in coordinates that are well scaled.

    The coordinates are the coefficients of standardised features and, last, of a column of ones,
    for each output (which is the fastest to change) in its own unit; then the shared parameters.

    Attributes:
        mean: What was subtracted from each feature.
        scale: What each feature was divided by.
        units: The unit of each output.
        information: The covariance from the observed information.
        sandwich: The covariance that is robust to how targets scatter.
        null: Directions that no label depends on, as orthonormal columns.
        n: The number of sets, or of rows where there are fewer.
        effective: The number of coefficients that were estimated; a penalty makes it smaller.
        penalised: Whether there is a ridge penalty.
        shares: Whether sets share rows.
        away: How far the coefficients are from the maximum, in standard errors.
        saddle: Whether H is negative in some direction, so that there is no maximum here.
    """

    mean: Floats
    scale: Floats
    units: Floats
    information: Floats
    sandwich: Floats
    null: Floats
    n: int
    effective: float
    penalised: bool = False
    shares: bool = False
    away: float = 0.0
    saddle: bool = False

    @property
    def width(self) -> int:
        """The number of features, and one for the intercept."""
        return len(self.mean) + 1

    @property
    def n_shared(self) -> int:
        """The number of shared parameters that were estimated."""
        return len(self.information) - self.width * len(self.units)

    @property
    def factor(self) -> float:
        """n / (n − p); infinite where there are no more sets than coefficients."""
        left = self.n - self.effective
        return self.n / left if left > 0 else float("inf")

    def of(self, combinations: Floats, robust: bool = True) -> Floats:
        """Standard errors of combinations (k, d) of the coordinates; NaN where not identified."""
        covariance = self.sandwich if robust else self.information
        with np.errstate(invalid="ignore"):  # infinite where there are too few sets
            variance = np.einsum("kd,kd->k", combinations @ covariance, combinations)
        out = np.sqrt(np.maximum(variance, 0.0))
        return np.asarray(np.where(self.is_open(combinations), np.nan, out))

    def is_open(self, combinations: Floats) -> NDArray[np.bool_]:
        """Which combinations (k, d) the labels do not determine, wholly or in part."""
        lost = np.linalg.norm(combinations @ self.null, axis=1)
        return np.asarray(lost > OPEN * np.linalg.norm(combinations, axis=1))

    def coefficients(self, contrasts: Floats) -> Floats:
        """Coefficients of the features as they came, as combinations (·, d) of the coordinates.

        For each column of `contrasts` (outputs, ·): one for each feature, and last the intercept.
        """
        width, n_outputs = self.width, len(self.units)
        back = np.zeros((width, width))
        back[:-1, :-1] = np.diag(1 / self.scale)
        back[-1, :-1], back[-1, -1] = -self.mean / self.scale, 1.0
        blocks = np.einsum("jk,oc->cjko", back, contrasts * self.units[:, None])
        flat = blocks.reshape(-1, width * n_outputs)
        return np.hstack([flat, np.zeros((len(flat), self.n_shared))])

    def of_shared(self) -> Floats:
        """The shared parameters as combinations of the coordinates."""
        n = len(self.information)
        out: Floats = np.eye(n)[n - self.n_shared :]
        return out

    def table(self, X: Any) -> Any:
        """Features as arrays or sparse, standardised, with the column of ones."""
        ones = np.ones((X.shape[0], 1))
        if sparse.issparse(X):
            return sparse.hstack([X @ sparse.diags_array(1 / self.scale), ones]).tocsr()
        return np.hstack([(X - self.mean) / self.scale, ones])

    def of_rows(
        self,
        X: Any,
        slopes: Floats,
        own: Floats,
        *,
        anchor: Floats | None = None,
        robust: bool = True,
    ) -> Floats:
        """Standard errors of functions of the rows' raw parameters; infinite where not identified.

        `slopes` (rows, functions, outputs) are the functions' derivatives in raw parameters, `own`
        (rows, functions, shared) in shared ones. With an `anchor`, features (p,) of a point, it is
        the difference to that point that the first output stands for.
        """
        n_rows, n_functions, n_outputs = slopes.shape
        out = np.empty((n_rows, n_functions))
        at = None if anchor is None else self.table(anchor[None, :])[0]
        step = max(1, CHUNK // max(1, n_functions * len(self.information)))
        for begin in range(0, n_rows, step):
            part = slice(begin, min(begin + step, n_rows))
            table = self.table(X[part])
            table = table.toarray() if sparse.issparse(table) else table
            rows = np.repeat(table[:, :, None], n_outputs, 2)
            if at is not None:
                rows[:, :, 0] -= at
            made = np.einsum("rjo,rfo->rfjo", rows, slopes[part] * self.units)
            made = made.reshape(-1, self.width * n_outputs)
            at_shared = own[part, :, own.shape[2] - self.n_shared :]  # those that were estimated
            made = np.hstack([made, at_shared.reshape(len(made), -1)])
            found = self.of(made, robust).reshape(-1, n_functions)
            out[part] = np.where(np.isnan(found), np.inf, found)
        return out

    def facts(self) -> dict[str, Any]:
        """The fields that are not arrays, ready for JSON."""
        names = ("n", "effective", "penalised", "shares", "away", "saddle")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of_file(
        cls, arrays: dict[str, Floats], facts: dict[str, Any], width: int, outputs: int
    ) -> StandardErrors:
        """The errors that `arrays` and `facts` describe, if they fit a model of this shape."""
        told: dict[str, Any] = {**arrays, **checked(facts, Facts, "standard errors")}
        out = cls(**told)
        lengths = [len(out.mean), len(out.scale), len(out.units)]
        d = len(out.information)
        shapes = {out.information.shape, out.sandwich.shape, (d, d), (len(out.null), d)}
        plain = all(a.dtype == np.float64 for a in arrays.values()) and bool((out.scale > 0).all())
        if lengths != [width, width, outputs] or len(shapes) > 1 or out.n_shared < 0 or not plain:
            raise ValueError("the standard errors are not those of the coefficients")
        return out

    def arrays(self) -> dict[str, Floats]:
        """The arrays by name."""
        names = ("mean", "scale", "units", "information", "sandwich", "null")
        return {name: np.ascontiguousarray(getattr(self, name)) for name in names}


def standard_errors(
    objective: Objective,
    table: Any,
    raw: Tensor,
    shared: Tensor,
    *,
    mean: Floats,
    scale: Floats,
    units: Floats,
    free: bool = True,
    penalty: Floats | None = None,
) -> StandardErrors:
    """The standard errors of a linear model at its maximum.

    `table` (rows, features + 1) are the features less `mean` and divided by `scale`, and a column
    of ones. `raw` and `shared` are the fitted parameters. Where `free` is false the shared ones of
    the family are given, not estimated. `penalty` (features, outputs): the curvature of a ridge
    penalty in the coefficients of the features as they came.

    >>> import setwise as sw
    >>> z = np.array([1.0, 2.0, 4.0, 3.0])
    >>> o = sw.Direct().observe(z, sw.Sets(np.arange(4)[:, None]))
    >>> raw, shared = torch.full((4, 1), 2.5).double(), torch.log(torch.tensor([1.25])).double() / 2
    >>> found = standard_errors(
    ...     Objective(sw.Normal(), [o], 4),
    ...     np.ones((4, 1)),
    ...     raw,
    ...     shared,
    ...     mean=np.zeros(0),
    ...     scale=np.ones(0),
    ...     units=np.ones(1),
    ... )  # the mean of four numbers: s / √4
    >>> round(float(found.of(np.eye(2)[:1])[0]), 6), round(float(z.std(ddof=1) / 2), 6)
    (0.645497, 0.645497)
    """
    width, n_outputs = table.shape[1], objective.n_outputs
    learned = objective.learned(free)
    n_shared = learned.stop - learned.start
    n_raw = width * n_outputs
    if n_raw + n_shared > MOST:
        raise ValueError(
            f"standard errors are computed for up to {MOST} coefficients; this model has {n_raw}"
        )
    raw, shared = raw.detach().double(), shared.detach().double()
    hessian, slope = _second_order(objective, table, raw, shared, units, learned)
    bare = hessian
    penalised = penalty is not None and bool((penalty > 0).any())
    if penalised:
        assert penalty is not None
        ridge = np.zeros((width, n_outputs))
        ridge[:-1] = penalty * (units / scale[:, None]) ** 2
        coef = _coefficients(table, raw.numpy() / units)
        hessian = hessian + np.diag(np.append(ridge.ravel(), np.zeros(n_shared)))
        slope[:n_raw] += (ridge * coef).ravel()
    size, axes = linalg.eigh(hessian)
    least = NULL * max(float(np.abs(size).max(initial=0.0)), 1e-300)
    kept, null = axes[:, size > least], axes[:, size <= least]
    inverse = (kept / size[size > least]) @ kept.T
    used = [o.sets.indices for o in objective.observations]
    n_rows = len(np.unique(np.concatenate(used)))
    named = width >= n_rows  # every row has a coefficient of its own
    own = outer(objective, table, raw, shared, units, learned, alone=named)
    weighted = sum(int((term.weight > 0).sum()) for term in objective.terms)
    effective = float(np.trace(inverse[:n_raw, :] @ bare[:, :n_raw]))
    n = weighted if named else min(weighted, n_rows)
    left = n - effective
    factor = n / left if left > 0 else float("inf")
    spread = factor if free and objective.family.n_spread else 1.0
    with np.errstate(invalid="ignore"):
        sandwich = inverse @ own @ inverse
        sandwich = factor * sandwich if np.isfinite(factor) else np.full_like(sandwich, np.inf)
        information = spread * inverse if np.isfinite(spread) else np.full_like(inverse, np.inf)
    return StandardErrors(
        mean=np.asarray(mean, np.float64), scale=np.asarray(scale, np.float64),
        units=np.asarray(units, np.float64), information=information, sandwich=sandwich, null=null,
        n=n, effective=effective, penalised=penalised,
        shares=not named and sum(map(len, used)) > n_rows,
        away=float(np.sqrt(max(slope @ inverse @ slope, 0.0) / max(len(slope), 1))),
        saddle=bool((size < -least).any()),
    )  # fmt: skip


def _coefficients(table: Any, raw: Floats) -> Floats:
    """The coefficients that give these raw parameters."""
    if sparse.issparse(table):
        square, right = (table.T @ table).toarray(), table.T @ raw
        return np.asarray(linalg.lstsq(square, right, cond=1e-12)[0])
    return np.asarray(linalg.lstsq(table, raw, cond=1e-12)[0])


def _second_order(
    objective: Objective, table: Any, raw: Tensor, shared: Tensor, units: Floats, learned: slice
) -> tuple[Floats, Floats]:
    """The Hessian and the gradient in the coordinates."""
    point = objective.at(raw, shared)
    width, n_outputs = table.shape[1], len(units)

    def pack(at_rows: Tensor, at_shared: Tensor) -> Floats:
        slopes = (table.T @ at_rows.numpy()) * units
        return np.concatenate([slopes.ravel(), at_shared.numpy()[learned]])

    columns = []
    nothing, still = torch.zeros_like(raw), torch.zeros_like(shared)
    for j in range(width):
        column = table[:, [j]].toarray()[:, 0] if sparse.issparse(table) else table[:, j]
        for o in range(n_outputs):
            direction = nothing.clone()
            direction[:, o] = torch.from_numpy(np.ascontiguousarray(column * units[o]))
            columns.append(pack(*point.product(direction, still)))
    for k in range(learned.start, learned.stop):
        one = still.clone()
        one[k] = 1.0
        columns.append(pack(*point.product(nothing, one)))
    hessian = np.array(columns)
    return (hessian + hessian.T) / 2, pack(point.gradient, point.shared_gradient)
