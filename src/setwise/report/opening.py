"""What a reader of a report asks first: is it any good, for whom, and what can it not know?"""

from __future__ import annotations

from typing import Any

import numpy as np

from setwise.distributions import interval, point_estimate
from setwise.learners.inputs import n_rows
from setwise.metrics import concordance
from setwise.observations import Observations
from setwise.report.page import Section
from setwise.summary.verdict import guesses, judged, times, verdict

__all__ = ["in_short"]

Pair = tuple[Any, list[Observations]]
SURE = 0.9


def in_short(
    est: Any, fitted: Pair | None, held_out: Pair | None, truth: tuple[Any, Any] | None
) -> Section:
    """The section that answers the three questions."""
    blocks = [
        f"**Is it any good?** {' '.join(_good(est, held_out, truth))}",
        f"**For whom?** {' '.join(_whom(est, fitted or held_out))}",
        f"**What can it not know?** {' '.join(_unknown(est, fitted))}",
    ]
    return "In short", [*blocks]


def _good(est: Any, held_out: Pair | None, truth: tuple[Any, Any] | None) -> list[str]:
    best: dict[str, Any] = next(iter(getattr(est, "leaderboard_", None) or ()), {})
    if held_out is not None:
        gain, error, n = judged(est, *held_out)
        out = [f"It is {verdict(gain, error, n)}."]
        out += [f"{guess}." for guess in guesses(est, *held_out)]
        out.append(f"In all, labels of new sets are {times(gain)} times as probable.")
    elif best.get("gain_error", np.nan) > 0:
        said = verdict(best["gain"], best["gain_error"])
        out = [
            f"By the sets that the fit held out, it is {said}.",
            f"Labels of new sets are {times(best['gain'])} times as probable.",
        ]
    else:
        out = [
            "Nobody knows: no sets were held out, and a model that has learned its sets by heart "
            "would look the same. Give the report `eval=(X_val, observations_val)`."
        ]
    return out + _individuals(est, truth)


def _individuals(est: Any, truth: tuple[Any, Any] | None) -> list[str]:
    """What rows with known targets say."""
    if truth is None:
        return ["No individual label was needed for this, or shown."]
    X, z = truth
    guess = est.predict(X)
    if hasattr(est, "classes_"):
        right = float(np.mean(guess == np.asarray(z)))
        return [f"Of {len(z):,} individuals with a known class it names {right:.0%} right."]
    order = concordance(z, guess)
    return [f"Of pairs of individuals with known targets it puts {order:.0%} in the right order."]


def _whom(est: Any, some: Pair | None) -> list[str]:
    if some is None:
        return ["For rows like those of the fit, with the same features."]
    X, kinds = some
    n, used = n_rows(X), len(np.unique(np.concatenate([o.sets.indices for o in kinds])))
    out = [f"For rows like these {n:,}, {_all_but(n - used)} in the sets that it learned from."]
    d = est.predict_dist(X)
    if hasattr(est, "classes_"):
        top = np.asarray(d.probs).max(1)
        out.append(
            f"It is sure ({SURE:.0%} or more) of the class of {np.mean(top >= SURE):.0%} of them; "
            f"of the others it can only say what is more probable."
        )
        return out
    if est.identifiability_.level != "exactly" and est.alignment_ is None:
        return out  # its numbers have no unit
    low, high = np.quantile(np.asarray(point_estimate(d)), (0.05, 0.95))
    inside = interval(d, SURE)
    width = float(np.median(np.asarray(inside[1]) - np.asarray(inside[0]))) / 2
    out.append(
        f"Its predictions for nine in ten of them lie between {low:.4g} and {high:.4g}, and nine "
        f"in ten targets within about ±{width:.3g} of their prediction."
    )
    return out


def _all_but(idle: int) -> str:
    return "all of them" if not idle else f"all but {idle:,} of them"


def _unknown(est: Any, fitted: Pair | None) -> list[str]:
    found = est.identifiability_
    if found.level == "exactly":
        out = ["In principle nothing: given enough sets, these labels tell every row's target."]
    elif est.alignment_ is not None:
        out = [f"Set labels tell targets {found.level}; a few labelled rows have settled the rest."]
    else:
        out = [f"Set labels tell targets {found.level}.", found.words]
    if fitted is not None:
        out += est.diagnose(*fitted)
    out.append("Why targets are as they are it does not know: features may stand for others.")
    return out
