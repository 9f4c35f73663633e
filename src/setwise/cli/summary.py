"""What `setwise fit` prints about its data and its outcome, as JSON or as text."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from setwise.cli.common import number
from setwise.cli.files import some
from setwise.cli.fitting import Fitting
from setwise.cli.membership import Block
from setwise.likelihood import Targets
from setwise.summary.words import data_of

__all__ = ["facts", "outcome", "words"]


def facts(fitting: Fitting) -> dict[str, Any]:
    """The data of the fit, for JSON."""
    kinds = {column.name: column.kind for column in fitting.X.encoder.columns}
    in_sets = data_of(fitting.X, fitting.observations)["in_sets"]
    return {
        "rows": {
            "file": str(fitting.spec.rows),
            "n": len(fitting.rows),
            "in_no_set": len(fitting.rows) - in_sets,
            "features": kinds,
            "kinds": dict(Counter(kinds.values())),
            "left_out": fitting.left_out,
            "missing_values": fitting.missing_values,
        },
        "sets": [_block_facts(b) for b in fitting.blocks],
        "classes": fitting.labels,
        "family": None if fitting.family is None else repr(fitting.family),
        "learner": repr(fitting.learner),
        "seed": fitting.spec.seed,
        "n_train": sum(map(len, fitting.train_sets)),
        "n_held_out": sum(map(len, fitting.held_out)),
        "n_dropped": fitting.dropped,
        "apart": fitting.apart,
    }


def words(fitting: Fitting) -> list[tuple[str, str, str]]:
    """The data of the fit, as text."""
    told = facts(fitting)
    rows = told["rows"]
    kinds = ", ".join(f"{n} {_plural(kind, n)}" for kind, n in rows["kinds"].items())
    details = some(list(rows["features"]))
    for remark in fitting.left_out:
        details += f"\nleft out {remark}"
    if rows["missing_values"]:
        details += f"\n{rows['missing_values']:,} missing values"
    if rows["in_no_set"]:
        details += f"\n{rows['in_no_set']:,} rows are in no set"
    n = len(rows["features"])
    text = f"{rows['n']:,} rows of {rows['file']}, {n} {_plural('feature', n)} ({kinds})"
    out = [("Rows", text, details)]
    for i, block in enumerate(fitting.blocks):
        out.append(("Sets" if i == 0 else "", *_block_words(block)))
    classes = fitting.labels
    target = f"{len(classes)} classes" if classes else f"{type(fitting.family).__name__} targets"
    details = f"{told['n_train']:,} sets to learn from, {told['n_held_out']:,} held out"
    if told["n_held_out"]:
        details += " to judge by; a last fit learns from all"
    if fitting.stored:
        details = f"{told['n_train']:,} sets, some of which are held out at first"
    if fitting.apart == "rows":
        details += "\nno row of a held-out set is in a set to learn from"
    elif fitting.apart == "sets":
        details += "\nheld-out sets share rows with others, as most sets do"
    if fitting.dropped:
        details += (
            f"\n{fitting.dropped:,} share rows with those held out: only the last fit has them"
        )
    if classes and classes != [*range(len(classes))]:
        details = f"classes {some([str(name) for name in classes])}\n{details}"
    return [*out, ("Model", f"{told['learner']} of {target}", details)]


def _block_facts(block: Block) -> dict[str, Any]:
    o = block.observations
    facts = {
        "file": str(block.spec.file),
        "observe": repr(o.aggregate),
        "y": block.spec.y,
        "n": len(o),
        "sizes": [int(o.sets.sizes.min()), int(o.sets.sizes.max())],
        "remarks": block.remarks,
    }
    if o.y is not None:
        finite = o.y[np.isfinite(o.y)]
        facts["range"] = [float(finite.min()), float(finite.max())] if len(finite) else None
        facts["mean"] = float(finite.mean()) if len(finite) else None
    return facts


def _block_words(block: Block) -> tuple[str, str]:
    facts = _block_facts(block)
    low, high = facts["sizes"]
    sizes = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    rows = _plural("row", high)
    text = f"{facts['n']:,} sets of {facts['file']}, of {sizes} {rows} each: {facts['observe']}"
    details = []
    if facts.get("range") and not block.spec.y:
        told: Any = block.observations.aggregate.outcome(Targets(), None)
        details.append(f"without a column of labels: in each set {told.meanings[told.unsaid]}")
    elif facts.get("range"):
        label = ", ".join(block.spec.y)
        ends = " to ".join(number(x) for x in facts["range"])
        details.append(f"{label}: {ends}, on average {number(facts['mean'])}")
    return text, "\n".join([*details, *block.remarks])


def outcome(result: dict[str, Any], fitting: Fitting) -> list[tuple[str, str, str]]:
    """The outcome of the fit, as text."""
    from setwise.summary.verdict import Guess, times

    scores = result["log_likelihood"]
    which = "held_out" if "held_out" in scores else "train"
    name = "held-out" if which == "held_out" else "training"
    constant = scores.get(f"{which}_constant", 0.0)
    text = result["verdict"] or "no sets were held out, so nobody knows how good it is"
    details = "\n".join(
        [
            *(str(Guess(**one)) for one in result["guesses"]),
            f"log-likelihood {scores[which]:.4g} per {name} set, {constant:.4g} without features: "
            f"each is {times(scores[which] - constant)} times as probable",
        ]
        if scores
        else []
    )
    found = result["identifiability"]
    saved = f"{result['model']} ({result['seconds']:.1f} s)"
    new = f"new{fitting.rows.path.suffix or '.parquet'}"
    return [
        ("Fit", text, details),
        ("Identified", found["level"], found["words"]),
        *(("Left open", remark, "") for remark in result["open"]),
        *(("Check", sentence, "") for sentence in result["checks"]),
        ("Saved", saved, f"next: setwise predict {result['model']} {new} --out predictions.csv"),
        *([("Report", result["report"], "")] if result["report"] else []),
    ]


def _plural(word: str, n: int) -> str:
    return word if n == 1 else {"category": "categories"}.get(word, word + "s")
