"""Pictures of rows: the fit, the confusion of classes, the members of one set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from setwise.distributions import interval, map_parameters
from setwise.observations import Observations
from setwise.plots.style import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    ORANGE,
    Floats,
    axes,
    grid,
    legend,
    matplotlib_part,
    one_kind,
    table_of,
    title,
)  # fmt: skip

__all__ = ["confusion", "fit", "posterior"]

MOST_POINTS = 300  # more of them, with their intervals, run together


def fit(
    est: Any, X: Any, z: Any = None, *, feature: int | str | None = None, coverage: float = 0.9,
    ax: Any = None,
) -> Any:  # fmt: skip
    """The fit with its uncertainty: along one feature, or predictions against the truth.

    The x-axis is the only feature or `feature`; otherwise the true targets `z` are drawn over the
    predictions. Bands and bars hold `coverage` of the targets, according to the model. A classifier
    shows the probability of each class along the feature; see also `confusion`.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is a share between 0 and 1, got {coverage}")
    table, names = table_of(X)
    ax = axes(ax)
    number = _feature(feature, table, names)
    true = None if z is None else np.asarray(z)
    if number is None and (true is None or hasattr(est, "classes_")):
        raise ValueError(
            f"X has {table.shape[1]} features: give z, the true targets of its rows, or the "
            f"feature to draw along (for classes and their truth there is plots.confusion)"
        )
    if hasattr(est, "classes_"):
        assert number is not None
        return _class_curves(ax, est, X, true, table[:, number], names[number])
    middle, (low, high) = est.predict(X), interval(est.predict_dist(X), coverage)
    some = _some(len(middle))
    x = middle if number is None else table[:, number]
    if true is not None:
        colour = BLUE if number is None else GREY
        ax.plot(x[some], true[some], ".", color=colour, markersize=4, label="true targets")
    if table.shape[1] == 1:
        order = np.argsort(x, kind="stable")
        band = {"color": BLUE, "alpha": 0.18, "label": f"{coverage:.0%} of the targets"}
        ax.fill_between(x[order], low[order], high[order], linewidth=0, **band)
        ax.plot(x[order], middle[order], color=BLUE, linewidth=1.8, label="prediction")
    else:
        ax.vlines(x[some], low[some], high[some], color=BLUE, alpha=0.13, linewidth=1.2)
    grid(ax)
    if number is None:
        assert true is not None
        ends = [float(min(middle.min(), true.min())), float(max(middle.max(), true.max()))]
        ax.plot(ends, ends, color=GREY, linewidth=1, zorder=1)
        held = float(np.mean((true >= low) & (true <= high)))
        ax.set(xlabel="predicted", ylabel="true target, and the interval predicted")
        title(ax, f"{held:.0%} of the targets are in the {coverage:.0%} intervals")
        return ax
    if table.shape[1] > 1:
        ax.plot(x[some], middle[some], ".", color=BLUE, markersize=4, label="predictions")
    ax.set(xlabel=names[number], ylabel="target")
    legend(ax)
    return ax


def _class_curves(ax: Any, est: Any, X: Any, z: Any, x: Floats, name: str) -> Any:
    order = np.argsort(x, kind="stable")
    probs, classes = est.predict_proba(X)[order], est.classes_
    for c, label in enumerate(classes[: len(COLOURS)]):
        ax.plot(x[order], probs[:, c], color=COLOURS[c], linewidth=1.8, label=str(label))
        if z is not None:
            here = x[z == label]
            ax.plot(here, np.full(len(here), -0.04), "|", color=COLOURS[c], alpha=0.4)
    ax.set(xlabel=name, ylabel="probability of the class")
    grid(ax)
    legend(ax)
    return ax


def _feature(feature: int | str | None, table: Floats, names: list[str]) -> int | None:
    if feature is None:
        return 0 if table.shape[1] == 1 else None
    if isinstance(feature, str):
        if feature not in names:
            raise ValueError(f"no feature is called {feature!r}; there are {names[:10]}")
        return names.index(feature)
    if not 0 <= feature < table.shape[1]:
        raise ValueError(f"feature {feature} of {table.shape[1]}: they count from 0")
    return feature


def _some(n: int) -> NDArray[np.int64]:
    """Row numbers to draw: all, or a random sample."""
    if n <= MOST_POINTS:
        return np.arange(n)
    return np.random.default_rng(0).choice(n, MOST_POINTS, replace=False)


def confusion(est: Any, X: Any, z: Any, ax: Any = None) -> Any:
    """How the rows of each true class are predicted, in percent.

    Where the labels of sets cannot tell the names of classes, and `align` was not called, the
    predicted classes are renamed so that most rows are right, and the title says so.
    """
    if not hasattr(est, "classes_"):
        raise TypeError("a confusion matrix is for classes; for numbers there is plots.fit")
    ax = axes(ax)
    labels = est.classes_
    true, guess = est._targets(z), est.predict_proba(X).argmax(1)
    counts = np.zeros((len(labels), len(labels)))
    np.add.at(counts, (true, guess), 1)
    note = ""
    if est.identifiability_.permutation and est.alignment_ is None:
        counts = counts[:, linear_sum_assignment(counts, maximize=True)[1]]
        note = ", names of classes matched"
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ticks = range(len(labels)) if len(labels) <= 30 else []
    names = [str(labels[i]) for i in ticks]
    _shaded(ax, share, 1)
    for i, j in np.argwhere(share >= 0.005) if len(labels) <= 12 else ():
        text = f"{100 * share[i, j]:.0f}"
        ax.text(j, i, text, ha="center", va="center", fontsize=8, color=INK)
    ax.set_xticks(ticks, names, rotation=90 if max(map(len, names), default=0) > 4 else 0)
    ax.set_yticks(ticks, names)
    ax.set(xlabel="predicted class", ylabel="true class", aspect="equal")
    title(ax, f"{counts.trace() / counts.sum():.1%} right{note}")
    return ax


def posterior(
    est: Any, X: Any, observations: Observations, which: int = 0, *, z: Any = None, ax: Any = None
) -> Any:
    """The members of set number `which`: what the model expects before and after y is seen.

    Bars reach two standard deviations to either side. `z`, where given, holds the true targets of
    the rows of X.
    """
    one = one_kind(observations).take([which])
    after = est.posterior(X, one)
    rows = one.sets.indices
    d: Any = map_parameters(est.predict_dist(X), lambda p: p[torch.from_numpy(rows)])
    true = None if z is None else np.asarray(z)[rows]
    ax = axes(ax)
    place = np.arange(len(rows))
    if after.probs is not None and after.probs.shape[1] > 2:
        return _cells(ax, est, after.probs, rows, true, one)
    if after.probs is not None:
        before, wide, middle, spread = np.asarray(d.probs)[:, 1], None, after.probs[:, 1], None
        true = None if true is None else est._targets(true)
        ax.set(xlabel=f"probability of class {est.classes_[1]}", xlim=(-0.03, 1.03))
    else:
        before, middle, spread = np.asarray(est.predict(X))[rows], after.mean, after.std
        variance = np.asarray(d.variance)
        wide = np.sqrt(variance) if np.isfinite(variance).all() else None
        ax.set(xlabel="target")
    for centre, deviation, up, colour, label in (
        (before, wide, -0.14, GREY, "before y is seen"),
        (middle, spread, 0.14, BLUE, "after y is seen"),
    ):
        if deviation is not None:
            low, high = centre - 2 * deviation, centre + 2 * deviation
            ax.hlines(place + up, low, high, color=colour, alpha=0.45, linewidth=3)
        ax.plot(centre, place + up, "o", color=colour, markersize=5, label=label)
    if true is not None:
        ax.plot(true, place, "D", color=ORANGE, markersize=4.5, label="truth")
    ax.set_yticks(place, [f"row {r}" for r in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    title(ax, _seen(one))
    grid(ax, "x")
    legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=3, columnspacing=1)
    return ax


def _cells(ax: Any, est: Any, probs: Floats, rows: Any, true: Any, one: Observations) -> Any:
    _shaded(ax, probs, 0.84)
    if true is not None:
        mark = {"color": ORANGE, "markersize": 4.5, "label": "truth"}
        ax.plot(est._targets(true), np.arange(len(rows)), "D", **mark)
        legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    ax.set_xticks(range(len(est.classes_)), [str(label) for label in est.classes_])
    ax.set_yticks(range(len(rows)), [f"row {r}" for r in rows])
    ax.set(xlabel="class")
    title(ax, _seen(one))
    return ax


def _shaded(ax: Any, shares: Floats, height: float) -> None:
    """A cell for each share, the darker the larger it is, with the first line on top."""
    rectangle = matplotlib_part("patches").Rectangle
    for i, j in np.ndindex(*shares.shape):
        corner, alpha = (j - 0.5, i - height / 2), 0.75 * shares[i, j]
        ax.add_patch(rectangle(corner, 1, height, color=BLUE, alpha=alpha, linewidth=0))
    lines, columns = shares.shape
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(lines - 0.5, -0.5))


def _seen(one: Observations) -> str:
    if one.y is None:
        return f"{one.aggregate!r} of {len(one.sets.indices)} members"
    value = np.asarray(one.y[0], dtype=np.float64)
    shown = f"{value:.4g}" if value.ndim == 0 else f"({', '.join(f'{v:.3g}' for v in value)})"
    return f"{type(one.aggregate).__name__}: y = {shown}"
