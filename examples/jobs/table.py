"""Writes the table of docs/jobs.md: `python -m examples.jobs.table`.

Each job with its own learner, which for most is the default, with `Linear`, and with the default
from the true target of every row that it learns from.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import r2_score

import setwise as sw
from examples.jobs import precincts, shops, slides, towns, versions, wines, worlds

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
MARK = "<!-- What follows is written by `python -m examples.jobs.table`. -->\n"


class Job(NamedTuple):
    """A script, where its tables come from, how it is judged, and names that are no features."""

    script: Any
    world: Any
    measure: str
    score: Any
    names: tuple[str, ...] = ()


def accuracy(truth: Any, guess: Any) -> float:
    return float(np.mean(np.asarray(guess) == truth))


JOBS = {
    "towns": Job(towns, worlds.towns, "R²", r2_score, ("person", "town")),
    "versions": Job(versions, worlds.versions, "right order", sw.metrics.concordance, ("page",)),
    "slides": Job(slides, worlds.slides, "accuracy", accuracy, ("slide", "patient")),
    "precincts": Job(precincts, worlds.precincts, "accuracy", accuracy, ("precinct",)),
    "wines": Job(wines, worlds.wines, "accuracy", sw.metrics.permutation_accuracy, ("bottle",)),
    "shops": Job(shops, lambda: framed(worlds.shops()), "R²", r2_score),
}


def framed(world: Any) -> Any:
    """The baskets as data frames."""
    import pandas as pd

    some, days, takings, new, *truths = world
    return pd.DataFrame(some), days, takings, pd.DataFrame(new), *truths


def scores(name: str) -> list[float]:
    """Of the job as it is, of `Linear`, and of every label."""
    job = JOBS[name]
    *tables, new, known, truth = job.world()
    models = [job.script.fit(*tables), job.script.fit(*tables, learner="linear")]
    X = tables[0].drop(columns=list(job.names))
    alone = sw.Observations(sw.Direct(), np.arange(len(X))[:, None], np.asarray(known))
    kind: Any = type(models[0])
    models.append(kind(random_state=0, verbose=0).fit(X, alone))
    return [float(job.score(truth, model.predict(new))) for model in models]


def table() -> str:
    """The lines of the page."""
    lines = ["| job | judged by | the script | `Linear` | every label |", "|---|---|---|---|---|"]
    for name, job in JOBS.items():
        cells = " | ".join(f"{value:.2f}" for value in scores(name))
        title = str(job.script.__doc__).partition("\n")[0].rstrip(".")
        lines.append(f"| `{name}.py`: {title} | {job.measure} | {cells} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(before + MARK + "\n" + table(), encoding="utf-8")
