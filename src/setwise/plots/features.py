"""The picture of the features that matter."""

from __future__ import annotations

from typing import Any

import numpy as np

from setwise.plots.style import BLUE, Floats, axes, grid, table_of

__all__ = ["importance", "shares"]

MOST_LETTERS = 24  # of a feature's name


def importance(est: Any, X: Any = None, *, most: int = 15, ax: Any = None) -> Any:
    """The features that matter most, as shares; linear models need X for the spread of features."""
    found = shares(est, X)
    if found is None:
        raise ValueError(
            f"{est.learner_!r} does not tell which features matter (boosting does, and linear "
            f"models where X is given)"
        )
    names = [f"feature {j}" for j in range(len(found))]
    if est.encoder_ is not None:
        names = est.encoder_.names(one_hot=len(found) != est.n_features_in_)
    order = np.argsort(-found, kind="stable")[:most]
    order = order[found[order] > 0]
    ax = axes(ax, 0.7 + 0.24 * max(len(order), 2))
    ax.barh(range(len(order)), 100 * found[order], color=BLUE, height=0.65)
    ax.set_yticks(range(len(order)), [_short(str(names[j])) for j in order])
    ax.set(ylim=(max(len(order), 1) - 0.4, -0.6), xlabel="share of the effect, %")
    grid(ax, "x")
    return ax


def _short(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 1] + "…"


def shares(est: Any, X: Any = None) -> Floats | None:
    """The importance of each feature, adding up to 1; None if the model cannot tell."""
    found = est.model_.importance()
    if found is None and hasattr(est.model_, "coef") and X is not None:
        table, _ = table_of(X if est.encoder_ is None else est._table(X).dense())
        effect = np.abs(np.asarray(est.model_.coef)).sum(1) * np.nan_to_num(table).std(0)
        found = effect / max(float(effect.sum()), 1e-300)
    return None if found is None else np.asarray(found, dtype=np.float64)
