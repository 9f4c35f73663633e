"""The coefficients of a linear model as a user reads them: aligned, named, with their errors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from setwise.distributions import Categorical
from setwise.inference.standard_errors import StandardErrors

__all__ = ["Line", "aligned", "feature_names", "lines"]

Floats = NDArray[np.float64]


class Line(NamedTuple):
    """A coefficient: its estimate and its errors; NaN where it is not identified."""

    name: str
    estimate: float
    std_error: float = math.nan
    z: float = math.nan
    p: float = math.nan
    low: float = math.nan
    high: float = math.nan
    identified: bool = True


def aligned(est: Any) -> tuple[Floats, Floats]:
    """Coefficients (features, outputs) and intercepts (outputs,) of what is predicted.

    Logits of classes are measured from their mean, as a common number changes nothing.
    """
    if not hasattr(est.model_, "coef"):
        raise AttributeError(
            f"{est.learner_!r} has no coefficients: coef_, intercept_ are those of setwise.Linear()"
        )
    coef, intercept = np.array(est.model_.coef, float), np.array(est.model_.intercept, float)
    alignment = est.alignment_
    if isinstance(est.family_, Categorical):
        order = list(range(len(intercept)))
        if alignment is not None and alignment.classes is not None:
            order = list(alignment.classes)
        coef, intercept = coef[:, order], intercept[order]
        return coef - coef.mean(1, keepdims=True), intercept - intercept.mean()
    if alignment is not None:
        for o, name in enumerate(est.family_.outputs):
            if name == "loc":
                coef[:, o] *= alignment.slope
                intercept[o] = alignment.slope * intercept[o] + alignment.shift
            elif name == "log_scale":
                intercept[o] += math.log(abs(alignment.slope))
            elif name == "log_rate":
                intercept[o] -= math.log(alignment.slope)
    return coef, intercept


def feature_names(est: Any, width: int) -> list[str]:
    """The names of the `width` columns that the model reads, or x0, x1, …"""
    if est.encoder_ is None:
        return [f"x{j}" for j in range(width)]
    names: list[str] = est.encoder_.names(one_hot=width != est.n_features_in_)
    return names


def lines(
    est: Any, errors: StandardErrors | None, level: float, robust: bool
) -> tuple[list[Line], list[Line]]:
    """The coefficients, and the shared parameters; without errors where none are known.

    Classes have contrasts to the first class.
    """
    coef, intercept = aligned(est)
    family = est.family_
    whole = np.vstack([coef, intercept])
    names = [*feature_names(est, len(coef)), "intercept"]
    if isinstance(family, Categorical):
        contrasts = np.delete(np.eye(len(intercept)), 0, axis=1)
        contrasts[0] = -1.0
        labels = [str(label) for label in est.classes_]
        groups = labels[1:] if len(labels) > 2 else [""]
        within = contrasts
        if est.alignment_ is not None and est.alignment_.classes is not None:
            within = np.zeros_like(contrasts)
            within[list(est.alignment_.classes)] = contrasts
    else:
        within = contrasts = np.eye(len(intercept))
        groups = list(family.outputs) if len(family.outputs) > 1 else [""]
        if est.alignment_ is not None:
            factors = [est.alignment_.slope if n == "loc" else 1.0 for n in family.outputs]
            within = contrasts * np.array(factors)
    titles = [f"{group}: {name}" if group else name for group in groups for name in names]
    estimates = (whole @ contrasts).T.ravel()
    n = len(family.shared)
    shared = list(zip(family.shared, est.shared_.tolist()[:n], strict=True))
    told = list(est.unknowns_.told(est.shared_))
    if errors is None:
        first = [Line(t, float(b)) for t, b in zip(titles, estimates, strict=True)]
        learned = [Line(one.name, one.value()) for one in told]
        return first, [*(Line(name, value) for name, value in shared), *learned]
    found = errors.of(errors.coefficients(within), robust)
    first = [
        _line(t, float(b), float(e), level)
        for t, b, e in zip(titles, estimates, found, strict=True)
    ]
    own = errors.of_shared()
    free = n if len(own) == len(est.shared_) else 0
    second = (
        [  # what is not told stays as it is
            _line(name, value, float(error), level)._replace(z=math.nan, p=math.nan)
            for (name, value), error in zip(
                shared, errors.of(own[:free], robust), strict=bool(free)
            )
        ]
        or [Line(name, value, identified=False) for name, value in shared]
    )
    return first, second + [_learned(one, errors, own, level, robust) for one in told]


def _learned(one: Any, errors: StandardErrors, own: Floats, level: float, robust: bool) -> Line:
    """A learned parameter of an aggregate; its interval comes from the raw number behind it."""
    along = one.along.numpy()[-len(own) :]
    error = float(errors.of((along @ own)[None], robust)[0])
    if math.isnan(error):
        return Line(one.name, one.value(), identified=False)
    reach = float(stats.norm.ppf((1 + level) / 2)) * error
    ends = (one.value(sign * reach) for sign in (-1, 1))
    return Line(one.name, one.value(), one.slope * error, math.nan, math.nan, *ends)


def _line(name: str, estimate: float, error: float, level: float) -> Line:
    if math.isnan(error):
        return Line(name, estimate, identified=False)
    reach = float(stats.norm.ppf((1 + level) / 2)) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        z = float(np.float64(estimate) / error)
    return Line(
        name, estimate, error, z, float(2 * stats.norm.sf(abs(z))), estimate - reach,
        estimate + reach,
    )  # fmt: skip
