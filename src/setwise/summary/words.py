"""A fitted estimator in a few lines: data, gain, what is determined, what was tried."""

from __future__ import annotations

import math
import textwrap
from typing import Any, TypedDict

import numpy as np

from setwise._html import facts as html_facts
from setwise._html import table as html_table
from setwise.distributions import Categorical
from setwise.learners import Blend
from setwise.learners.inputs import n_features, n_rows
from setwise.observations import Observations
from setwise.summary.verdict import verdict

__all__ = ["Data", "board", "brief", "data_of", "facts", "minus", "table"]

APART = {
    "rows": "sets of rows that were not learned from",
    "sets": "sets that were not learned from, of rows that are in other sets too",
    "given": "the sets given as eval",
    "nothing": "sets that were learned from as well",
}
WIDTH = 96
AT_ONCE = 1 << 12  # sets
TRIED = 8
Table = tuple[list[str], list[list[str]]]  # its head and its lines


class KindOfSets(TypedDict):
    """One kind of observations."""

    what: str
    sets: int
    smallest: int
    largest: int
    weighted: bool


class Data(TypedDict):
    """The data of a fit."""

    rows: int
    in_sets: int
    members: int
    features: int | None
    kinds: list[KindOfSets]


def data_of(X: Any, observations: Any) -> Data:
    """The data of a fit, ready for JSON."""
    listed = [observations] if isinstance(observations, Observations) else list(observations)
    kinds: list[KindOfSets] = [
        {
            "what": _short(repr(o.aggregate), 100),
            "sets": len(o),
            "smallest": int(o.sets.sizes.min()),
            "largest": int(o.sets.sizes.max()),
            "weighted": o.weight is not None,
        }
        for o in listed
        if len(o)
    ]
    used = np.zeros(n_rows(X), dtype=bool)
    for o in listed:  # a part at a time, since sets of stored rows list them when asked
        for begin in range(0, len(o), AT_ONCE):
            used[o.sets.take(slice(begin, begin + AT_ONCE)).indices] = True
    members = sum(int(o.sets.offsets[-1]) for o in listed)
    return {
        "rows": n_rows(X),
        "in_sets": int(used.sum()),
        "members": members,
        "features": n_features(X),
        "kinds": kinds,
    }


def facts(est: Any) -> list[tuple[str, str]]:
    """The facts of a fitted estimator: names and texts."""
    out = [("Model", _model(est))]
    data = est.data_
    if data is not None:
        words = f"{_many(data['rows'], 'row')}"
        if data["features"] is not None:
            words += f", {_many(data['features'], 'feature')}"
        idle = data["rows"] - data["in_sets"]
        words += f"; {idle:,} of them in no set" if idle else ""
        words += "; sets share rows" if data["members"] > data["in_sets"] else ""
        out.append(("Rows", words))
        kinds = data["kinds"]
        out += [("Sets" if i == 0 else "", _kind(kind)) for i, kind in enumerate(kinds)]
    out.append(("Held out", _gain(est)))
    told = f"{est.identifiability_.level}, in principle, given enough sets"
    if est.alignment_ is not None:
        told += "; align has settled the rest"
    elif est.identifiability_.words and est.identifiability_.level != "exactly":
        told += f". {est.identifiability_.words}"
    out.append(("Told", told))
    out.append(("Steps", _steps(est)))
    tried = tried_of(est)
    out += [("Tried" if i == 0 else "", line) for i, line in enumerate(tried[:TRIED])]
    if len(tried) > TRIED:
        out.append(("", f"… {len(tried) - TRIED} more in leaderboard_"))
    return out


def brief(est: Any) -> str:
    """The essential facts, in at most five lines."""
    data = est.data_
    text = [f"{type(est).__name__}: {_model(est)}"]
    if data is not None:
        kinds = data["kinds"]
        shown = [_kind(kind) for kind in kinds[:2]]
        shown += [f"{len(kinds) - 2} more kinds"] * (len(kinds) > 2)
        text.append(f"learned from {'; '.join(shown)}, over {_many(data['rows'], 'row')}")
    text.append(f"held out: {_gain(est, brief=True)}")
    told = f"in principle targets are told {est.identifiability_.level}"
    if est.alignment_ is not None:
        told += "; align has settled the rest"
    elif est.identifiability_.level != "exactly":
        told += ": see identifiability_.words"
    text.append(told)
    if est.steps_ and not isinstance(est.learner_, Blend):
        text.append(f"{est.steps_:,} steps were kept")
    return "\n  ".join(_short(line, WIDTH) for line in text)


def _steps(est: Any) -> str:
    if isinstance(est.learner_, Blend):
        return "each of the learners has its own"
    if est.steps_:
        return f"{est.steps_:,} were kept"
    if est.learner_.stops and est.history_:
        return f"{len(est.history_):,} were made"
    return "solved to convergence"


def _model(est: Any) -> str:
    family = est.family_
    what = (
        f"{family.n_classes} classes"
        if isinstance(family, Categorical)
        else f"{type(family).__name__} targets"
    )
    return f"{what}, learned by {_short(repr(est.learner_), 200)}"


def _kind(kind: KindOfSets) -> str:
    low, high = kind["smallest"], kind["largest"]
    size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    weighted = ", weighted" if kind["weighted"] else ""
    return (
        f"{_many(kind['sets'], 'set')} of {size} {'row' if high == 1 else 'rows'}: "
        f"{_short(kind['what'], 60)}{weighted}"
    )


def _gain(est: Any, brief: bool = False) -> str:
    """How much better than a constant the model does on sets that were held out."""
    score = getattr(est, "held_out_score_", None)
    constant = getattr(est, "constant_score_", None)
    if score is None or constant is None:
        return "not measured: fit with eval=(X, observations) to know"
    words = f"{minus(f'{score - constant:+.4g}')} log-likelihood per set over a constant"
    if brief:
        return words
    words += f" ({minus(f'{score:.4g}')} against {minus(f'{constant:.4g}')})"
    apart = APART.get(str(getattr(est, "validation_", None)))
    best = next(iter(_board(est)), {})
    if apart and best.get("sets"):
        apart = apart.replace("sets", _many(int(best["sets"]), "set"), 1)
    words += f", on {apart}" if apart else ""
    if not best.get("gain_error", math.nan) > 0:
        return words
    return f"{words}: {verdict(best['gain'], best['gain_error'])}"


def tried_of(est: Any) -> list[str]:
    """What was tried before this model was chosen, a line for each."""
    out = []
    for entry in _board(est):
        facts = {k: v for k, v in entry.items() if v is not None and v == v}
        facts.pop("sets", None)  # the same for all
        words = [_short(str(facts.pop("learner", "")), 50)]
        words += [
            f"{k} {minus(f'{v:.4g}') if isinstance(v, float) else v}" for k, v in facts.items()
        ]
        out.append(", ".join(words))
    return out


def board(est: Any) -> str:
    """What was tried, as a table of text, the best first."""
    lines = []
    for entry in _board(est):
        name = _short(str(entry["learner"]), 60)
        if "error" in entry:
            lines.append([name, "", "", _short(entry["error"], 60)])
            continue
        gain = f"{entry['gain']:+.4g}"
        gain += f" ± {entry['gain_error']:.2g}" if entry["gain_error"] > 0 else ""
        lines.append([name, f"{entry['score']:.4g}", gain, f"{entry['seconds']:.1f}"])
    shown = [[cells[0], *map(minus, cells[1:])] for cells in lines]
    return table(["tried, on sets held out", "score", "gain", "seconds"], shown)


def _board(est: Any) -> list[dict[str, Any]]:
    board: Any = getattr(est, "leaderboard_", None)
    found: list[dict[str, Any]] = board.to_dict("records") if hasattr(board, "to_dict") else board
    return found or []


# ---- as text and as HTML


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of text: names to the left, numbers to the right."""
    widths = [max(len(line[j]) for line in [head, *rows]) for j in range(len(head))]

    def line(cells: list[str]) -> str:
        made = [cells[0].ljust(widths[0])]
        made += [c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join(made).rstrip()

    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([line(head), rule, *map(line, rows)])


def paragraph(name: str, text: str, room: int) -> str:
    """A name and its text, wrapped beside it."""
    start = name.ljust(room)
    return textwrap.fill(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * room, break_long_words=False
    )


def page(
    title: str, rows: list[tuple[str, str]], tables: list[tuple[list[str], list[list[str]]]]
) -> str:
    """The same as HTML."""
    made = [html_table(head, lines, numbers=len(head) - 1) for head, lines in tables if lines]
    return html_facts(title, rows) + "".join(made)


def minus(text: str) -> str:
    """A number with a real minus sign."""
    return text.replace("-", "−")


def _many(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
