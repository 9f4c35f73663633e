"""Pictures of sets: the learning curve, and the calibration of predictions for sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from setwise.distributions import Discrete, map_parameters
from setwise.inference import shuffled_pairs
from setwise.likelihood import Targets, log_likelihood
from setwise.observations import Observations
from setwise.plots.style import BLUE, GREY, Floats, axes, grid, legend, one_kind, sample, title

__all__ = ["calibration", "learning_curve"]

DRAWS = 1000
MOST_SETS = 2000  # more would not change the picture


def learning_curve(est: Any, ax: Any = None) -> Any:
    """The mean log-likelihood per set after each step of the fit, and where it was best."""
    history = [entry for entry in est.history_ if {"train", "valid"} & entry.keys()]
    if not history:
        raise ValueError(
            f"{est.learner_!r} keeps no record of its steps: there is no curve to draw (boosting "
            f"and networks have one)"
        )
    ax = axes(ax)
    for key, colour, label in (
        ("train", GREY, "sets of the fit"),
        ("valid", BLUE, "held-out sets"),
    ):
        points = [(i + 1, e[key]) for i, e in enumerate(history) if e.get(key) is not None]
        points = [(i, v) for i, v in points if np.isfinite(v)]
        if not points:
            continue
        steps, values = np.array(points).T
        ax.plot(steps, values, color=colour, linewidth=1.6, label=label)
        if key == "valid":
            best = values.argmax()
            ax.plot(steps[best], values[best], "o", color=BLUE, markersize=5)
    low, high = _middle([v for e in history for k, v in e.items() if k in ("train", "valid")])
    ax.set(xlabel="step", ylabel="log-likelihood per set", ylim=(low, high))
    grid(ax, "y")
    legend(ax, loc="best")
    return ax


def _middle(values: list[Any]) -> tuple[float, float]:
    """Limits that leave out the few worst values, which the first steps may have."""
    finite = np.array([v for v in values if v is not None and np.isfinite(v)], dtype=np.float64)
    low, high = float(np.quantile(finite, 0.02)), float(finite.max())
    room = 0.06 * (high - low) or 0.1
    return low - room, high + room


def calibration(est: Any, X: Any, observations: Observations, ax: Any = None) -> Any:
    """Whether predicted probabilities for sets are right: give sets that are not from the fit.

    For amounts: how often y lies in the central interval of each nominal coverage. For labels: how
    often they occur at each predicted probability. The grey band (the bars) is where 95 % of such
    curves (shares) lie by chance if the model is right.
    """
    (observations,) = est._told(one_kind(observations))
    observations, aggregate = shuffled_pairs(observations), observations.aggregate
    d = est._distribution(X)
    targets = Targets.of(d)
    outcome = aggregate.outcome(targets, observations.sets.size)
    if outcome.instead:
        raise TypeError(f"{aggregate!r} has no single y to compare with: {outcome.instead}")
    ax = axes(ax)
    if len(observations) > MOST_SETS:
        chosen = np.random.default_rng(0).choice(len(observations), MOST_SETS, replace=False)
        observations = observations.take(chosen)
    y: Floats = np.asarray(observations.y, dtype=np.float64)
    listed = outcome.values is not None or targets.discrete
    if y.ndim == 1 and np.isin(y, (0, 1)).all() and listed:
        each = log_likelihood(aggregate, d, observations.sets, np.ones(len(y)))
        return _reliability(ax, np.exp(each.detach().numpy()), y, "y = 1")
    draws = _drawn_labels(observations, d)
    if outcome.named or len(np.unique(y)) <= 3:
        values = np.unique(y)
        predicted = np.stack([(draws == v).mean(0) for v in values], -1)
        return _reliability(ax, predicted.ravel(), (y[..., None] == values).ravel(), "each label")
    return _coverage(ax, draws, y)


def _drawn_labels(o: Observations, d: Any) -> Floats:
    """Labels drawn from the model, (draws, sets, …)."""
    every = o.sets.expand()
    members = map_parameters(d, lambda p: every.members(p.detach()))
    rng, n_sets, sets = np.random.default_rng(0), len(o), every.flat
    step = max(1, min(DRAWS, 2_000_000 // max(len(sets.indices), 1)))
    drawn = sample(members, DRAWS)
    out = []
    for begin in range(0, DRAWS, step):
        part = torch.from_numpy(drawn[begin : begin + step])
        many, z = np.tile(np.arange(n_sets), len(part)), part.reshape(-1)
        z = z.long() if isinstance(d, Discrete) else z.double()
        seen = o.aggregate.take(many).apply(z, sets.take(many).flat, rng)
        values = np.asarray(seen, dtype=np.float64)
        out.append(values.reshape(len(part), n_sets, *values.shape[1:]))
    return np.concatenate(out)


def _coverage(ax: Any, draws: Floats, y: Floats) -> Any:
    rng = np.random.default_rng(0)
    below, equal = (draws < y).mean(0), (draws == y).mean(0)
    place = (below + rng.uniform(size=y.shape) * equal).ravel()  # uniform if the model is right
    nominal = np.linspace(0.02, 0.98, 49)
    held = np.array([np.mean(np.abs(place - 0.5) <= p / 2) for p in nominal])
    low, high = (binom.ppf(q, len(y), nominal) / len(y) for q in (0.025, 0.975))
    ax.fill_between(nominal, low, high, color=GREY, alpha=0.25, linewidth=0, label="chance, 95%")
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    ax.plot(nominal, held, color=BLUE, linewidth=1.8, label="this model")
    ax.set(
        xlabel="coverage that the model states", ylabel="share of sets inside", xlim=(0, 1),
        ylim=(0, 1),
    )  # fmt: skip
    title(ax, f"{held[nominal.searchsorted(0.9)]:.0%} of {len(y):,} sets in the 90% intervals")
    grid(ax)
    legend(ax, loc="upper left")
    return ax


def _reliability(ax: Any, predicted: Floats, y: NDArray[Any], what: str) -> Any:
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, min(10, len(y) // 8 + 2))))
    which = np.clip(np.searchsorted(edges, predicted, side="right") - 1, 0, max(len(edges) - 2, 0))
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    for b in np.unique(which):
        said, came = predicted[which == b], y[which == b]
        mean, n = float(said.mean()), len(said)
        low, high = (float(binom.ppf(q, n, mean)) / n for q in (0.025, 0.975))
        ax.plot([mean, mean], [low, high], color=GREY, alpha=0.45, linewidth=5)
        ax.plot(mean, float(came.mean()), "o", color=BLUE, markersize=5)
    ax.set(
        xlabel="probability that the model states", ylabel=f"share of sets with {what}",
        xlim=(-0.02, 1.02), ylim=(-0.02, 1.02),
    )  # fmt: skip
    title(ax, f"{len(y):,} predictions, in groups of like probability")
    grid(ax)
    return ax
