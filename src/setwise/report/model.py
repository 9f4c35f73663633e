"""The report of a fitted model: one HTML page that needs nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise import plots
from setwise.learners.inputs import as_table, n_features, n_rows
from setwise.likelihood import Targets
from setwise.observations import Observations
from setwise.plots.features import shares
from setwise.plots.rows import MOST_POINTS
from setwise.plots.told import told
from setwise.report.opening import in_short
from setwise.report.page import Block, Cell, Section, Table, Tiles, figure, render, versions, write

__all__ = ["report"]

Pair = tuple[Any, list[Observations]]
MOST_KINDS = 6  # of which there is a calibration figure


def report(
    est: Any,
    path: str | os.PathLike[str],
    X: Any = None,
    observations: Observations | Sequence[Observations] | None = None,
    *,
    eval: tuple[Any, Any] | None = None,
    truth: tuple[Any, Any] | None = None,
    title: str = "",
) -> Path:
    """Writes the page of a fitted estimator; see `AggregateRegressor.report`."""
    if not hasattr(est, "model_"):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError("a report is about a fitted model: call fit(X, observations) first")
    if (X is None) != (observations is None):
        raise ValueError("X and observations go together: give both, or neither")
    fitted = None if X is None else _pair(X, observations, "X, observations")
    held_out = None
    if eval is not None:
        if not isinstance(eval, tuple | list) or len(eval) != 2:
            raise TypeError(f"eval is a pair (X, observations), got {type(eval).__name__}")
        held_out = _pair(*eval, "eval")
    sections = [
        _summary(est, fitted, held_out),
        in_short(est, fitted, held_out, truth),
        _data(est, fitted, held_out),
        _likelihood(est, fitted, held_out),
        _calibration(est, fitted, held_out),
        _told(est, fitted),
        _rows(est, truth),
        _features(est, fitted or held_out),
        _checks(est, held_out),
        _versions(est),
    ]
    name = type(est.family_).__name__
    family = f"{len(est.classes_)} classes as" if hasattr(est, "classes_") else name
    lead = f"{family} targets, learned by {_short(repr(est.learner_), 90)} from labels of sets."
    title = title or f"Model report: {type(est).__name__}"
    return write(path, render(title, lead, [section for section in sections if section[1]]))


def _pair(X: Any, observations: Any, what: str) -> Pair:
    listed = [observations] if isinstance(observations, Observations) else list(observations)
    if not all(isinstance(o, Observations) for o in listed):
        raise TypeError(f"{what}: setwise.Observations, or a list of them, are expected")
    return as_table(X), [o for o in listed if len(o)]


# ---- sections


def _summary(est: Any, fitted: Pair | None, held_out: Pair | None) -> Section:
    tiles = []
    if held_out is not None:
        gain = est.score(*held_out, profile=True) - est.score_constant(*held_out)
        tiles.append((_signed(gain), "log-likelihood per held-out set, above a constant model"))
    if fitted is not None:
        tiles.append((f"{sum(map(len, fitted[1])):,}", "sets in the fit"))
        tiles.append((f"{n_rows(fitted[0]):,}", "rows"))
    if est.n_features_in_ is not None:
        tiles.append((f"{est.n_features_in_:,}", "features"))
    words = "how far labels of this kind determine the targets in principle, given enough sets"
    words += "" if est.alignment_ is None else "; align has determined the rest"
    return "", [Tiles([*tiles, (est.identifiability_.level, words)])]


def _data(est: Any, fitted: Pair | None, held_out: Pair | None) -> Section:
    rows: list[list[str | Cell]] = []
    for name, (_, kinds) in _parts(fitted, held_out):
        for o in kinds:
            low, high = o.sets.sizes.min(), o.sets.sizes.max()
            size = f"{low}" if low == high else f"{low} to {high}"
            distinct = f"{len(np.unique(o.sets.indices)):,}"
            kind = _short(repr(o.aggregate), 60)
            rows.append([kind, name, f"{len(o):,}", size, distinct, _labels(o)])
    some = fitted or held_out
    if some is None or not rows:
        words = (
            "The data were not given to the report: `est.report(path, X, observations, "
            "eval=(X_val, observations_val))` shows them, and the predictions for them."
        )
        return "Data", [words]
    head = ["what was observed", "part", "sets", "members", "distinct rows", "labels y"]
    parts: list[Block] = [Table(head, rows)]
    if fitted is not None:
        used = np.unique(np.concatenate([o.sets.indices for o in fitted[1]]))
        idle = n_rows(fitted[0]) - len(used)
        if idle:
            parts.append(f"{idle:,} of the {n_rows(fitted[0]):,} rows are in no set.")
    width = n_features(some[0])
    if width is not None:
        names = getattr(est, "feature_names_in_", None)
        listed = "" if names is None else f": {_short(', '.join(map(str, names)), 300)}"
        parts.append(f"{width:,} features{listed}.")
    return "Data", parts


def _parts(fitted: Pair | None, held_out: Pair | None) -> list[tuple[str, Pair]]:
    """The sets of the fit and those held out, where they were given, by name."""
    named = (("sets of the fit", fitted), ("held-out sets", held_out))
    return [(name, pair) for name, pair in named if pair is not None]


def _labels(o: Observations) -> str:
    """The values of y, in a few words."""
    outcome = o.aggregate.outcome(Targets(), o.sets.size)
    if o.y is None or outcome.holds_targets:
        return outcome.words
    y: NDArray[Any] = np.asarray(o.y)
    if y.ndim == 2:
        shown = [f"{v:,.4g}" for v in y.sum(0)[:8]] + ["…"] * (y.shape[1] > 8)
        return f"totals {', '.join(shown)}"
    values, counts = np.unique(y, return_counts=True)
    if len(values) <= 4:
        return ", ".join(f"{v:g} ({c / len(y):.0%})" for v, c in zip(values, counts, strict=True))
    return f"{y.min():.4g} to {y.max():.4g}, mean {y.mean():.4g}"


def _likelihood(est: Any, fitted: Pair | None, held_out: Pair | None) -> Section:
    rows: list[list[str | Cell]] = []
    for name, (X, kinds) in _parts(fitted, held_out):
        parts = [(f"{name}: {type(o.aggregate).__name__}", [o]) for o in kinds]
        for label, some in [(name, kinds), *(parts if len(parts) > 1 else [])]:
            model, constant = est.score(X, some, profile=True), est.score_constant(X, some)
            gain = Cell(_signed(model - constant), True, "good" if model > constant else "bad")
            rows.append([label, _minus(f"{model:.4f}"), _minus(f"{constant:.4f}"), gain])
    blocks: list[Block] = []
    if rows:
        head = ["mean log-likelihood per set", "this model", "constant model", "gain"]
        blocks.append(Table(head, rows))
        words = (
            "The constant model gives every row the same distribution, fitted to the same sets. A "
            "gain of g means that labels are exp(g) times as probable under the model, set by set."
        )
        if est.family_.n_spread:
            spread = "sureness of classes" if hasattr(est, "classes_") else "spread of targets"
            words += (
                f" Both use the {spread} that fits these sets best, so that only their "
                "predictions are compared."
            )
        blocks.append(words)
    if held_out is None:
        best = [e["valid"] for e in est.history_ if np.isfinite(e.get("valid", np.nan))]
        blocks.append(
            "During the fit the best mean log-likelihood of held-out sets was "
            f"{_minus(f'{max(best):.4f}')}."
            if best
            else "No sets were held out here, so these figures do not tell how well the model "
            "does on new ones: give the report `eval=(X_val, observations_val)`."
        )
    if any({"train", "valid"} & entry.keys() for entry in est.history_):
        ax = plots.learning_curve(est, ax=plots.blank())
        caption = "The likelihood during the fit"
        if any(np.isfinite(e.get("valid", np.nan)) for e in est.history_):
            caption += "; the held-out sets are those that it set aside, the dot is their best step"
        blocks.append(figure(ax.figure, f"{caption}."))
    return "Likelihood", blocks


def _calibration(est: Any, fitted: Pair | None, held_out: Pair | None) -> Section:
    X, kinds = held_out or fitted or (None, [])
    figures: list[Block] = []
    for o in kinds[:MOST_KINDS]:
        try:
            ax = plots.calibration(est, X, o, ax=plots.blank())
        except TypeError:  # what has no single y, or too few classes of it, has no such figure
            continue
        figures.append(figure(ax.figure, f"{_short(repr(o.aggregate), 60)}, {len(o):,} sets."))
    if not figures:
        return "", []
    words = "Do the labels come as often as the model says? These are the "
    words += "held-out sets. " if held_out is not None else "sets of the fit. "
    if held_out is None:
        words += "A model that learned them by heart would look good too. "
    words += "A right model lies on the diagonal, up to chance, which is grey."
    return "Calibration", [words, *figures]


def _told(est: Any, fitted: Pair | None) -> Section:
    shown = {
        "told": Cell("determined", tone="good"),
        "open": Cell("left open", tone="bad"),
        "settled": Cell("settled by align", tone="good"),
    }
    rows: list[list[str | Cell]] = [[question, shown[mark]] for mark, question in told(est)]
    blocks: list[Block] = [Table(["in principle, given enough sets", ""], rows)]
    words = est.identifiability_.words
    if words and len(rows) > 1:
        blocks.append(words)
    if fitted is not None:
        found = " ".join(est.diagnose(*fitted))
        nothing = "Beyond that, nothing was found that these sets leave open."
        blocks.append(f"**What these very sets leave open:** {found}" if found else nothing)
    return "What the labels tell", blocks


def _rows(est: Any, truth: tuple[Any, Any] | None) -> Section:
    if truth is None:
        return "", []
    X, z = truth
    classes = hasattr(est, "classes_")
    if classes:
        size = float(np.clip(1.6 + 0.32 * len(est.classes_), 3.2, 6.0))
        ax = plots.confusion(est, X, z, ax=plots.blank(size, size))
        caption = f"Rows of each true class by predicted class, in percent; {len(z):,} rows."
    else:
        ax = plots.fit(est, X, z, ax=plots.blank())
        drawn = f", of which {MOST_POINTS} are drawn" if len(z) > MOST_POINTS else ""
        caption = f"Predictions and true targets of {len(z):,} rows{drawn}."
    return "Rows whose targets are known", [figure(ax.figure, caption)]


def _features(est: Any, some: Pair | None) -> Section:
    X = None if some is None else some[0]
    try:
        found = shares(est, X)
    except (TypeError, ValueError):  # features that are not numbers have no spread
        found = None
    if found is None or not (found > 0).any():
        return "", []
    height = 0.7 + 0.24 * max(2, min(15, int((found > 0).sum())))
    ax = plots.importance(est, X, ax=plots.blank(4.6, height))
    how = "the gain of the splits on it"
    if hasattr(est.model_, "coef"):
        how = "its coefficient times its standard deviation"
    return "Features", [figure(ax.figure, f"How much each feature contributes: {how}, as a share.")]


def _checks(est: Any, held_out: Pair | None) -> Section:
    """What held-out sets show to be wrong, each in a sentence with its remedy."""
    if held_out is None:
        return "", []
    words = "Sets like the held-out ones, simulated from the model, are compared with these."
    found = [line.removesuffix(".") + "." for line in str(est.check(*held_out)).split("\n")]
    return "What held-out sets say against it", [words, *found]


def _versions(est: Any) -> Section:
    library = type(est.learner_).__name__.lower()
    packages = ["numpy", "scipy", "scikit-learn", "torch"]
    packages += [library] if library in ("lightgbm", "xgboost", "catboost") else []
    facts = {
        "estimator": type(est).__name__,
        "targets": repr(est.family_),
        "learner": _short(repr(est.learner_), 400),
        "random_state": str(est.random_state),
        "steps": f"{len(est.history_):,}" if est.history_ else "solved at once",
        "versions": versions(*packages),
    }
    return "How it was made", [Table(["", ""], [[name, text] for name, text in facts.items()])]


# ---- small things


def _signed(value: float) -> str:
    return _minus(f"{value:+.3f}")


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
