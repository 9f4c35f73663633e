"""Writes docs/defaults.md from what was measured: `python -m benchmarks.defaults_page`.

It reads the files that `python -m benchmarks.defaults` leaves, `--out FOLDER` says where, and says
of each bar whether it is met.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import coverage, defaults, resume

PAGE = Path(__file__).parents[1] / "docs" / "defaults.md"
MARK = "<!-- What follows is written by `python -m benchmarks.defaults_page`. -->\n"
BEHIND, NOISE = 0.03, 2.0  # of the best single learner's error; standard errors that are noise

Found = dict[defaults.Fit, defaults.Found]
Cells = dict[tuple[str, str], dict[str, np.ndarray]]


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table; the first two columns are words."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines)) + "\n\n"


def short(values: np.ndarray | None, digits: int = 3) -> str:
    """The mean of trials, with its standard error where there are several."""
    if values is None or not len(values):
        return ""
    if len(values) < 2:
        return f"{values[0]:.{digits}g}"
    return f"{values.mean():.{digits}g} ± {values.std(ddof=1) / len(values) ** 0.5:.2g}"


def met(good: bool, whole: bool = True) -> str:
    return ("met" if good else "**not met**") + ("" if whole else " so far")


def common(cells: Cells, learners: Sequence[str]) -> Cells:
    """The cells where all learners have the same trials."""
    return {
        cell: by
        for cell, by in sorted(cells.items())
        if set(by) >= set(learners) and len({len(by[k]) for k in learners}) == 1
    }


def intervals(found: Found) -> Iterator[str]:
    """How many targets the 90 % intervals hold."""
    cells = defaults.means(found)
    kinds = list(dict.fromkeys(kind for _, kind in cells))
    names = sorted({name for name, _ in cells})
    lines, inside, n = [], 0, 0
    for name in names:
        shares = [cells.get((name, kind), {}).get("auto", np.array([])) for kind in kinds]
        lines.append([name, *(f"{100 * v.mean():.1f}" if len(v) else "" for v in shares)])
        inside += sum(0.86 <= v.mean() <= 0.94 for v in shares if len(v))
        n += sum(len(v) > 0 for v in shares)
    yield markdown(["% of new targets in 90 % intervals", *kinds], lines)
    worst = [v for by in cells.values() for v in by.get("auto", [])]
    yield (
        f"The bar is 86 to 94 %: {inside} of {n} cells are inside "
        f"({met(inside == n, len(found) == len(defaults.plan('intervals').tasks))}); "
        f"single fits reach from {100 * min(worst):.1f} to {100 * max(worst):.1f} %.\n"
    )


def auto(found: Found) -> Iterator[str]:
    """`learner="auto"` beside every single learner."""
    singles = [k for k in defaults.POOL[1:] if any(one.learner == k for one in found)]
    every = ["auto", *singles]
    cells = defaults.means(found)
    whole = common(cells, every)
    lines = [[f"{d}, {k}", *(short(by.get(one)) for one in every)] for (d, k), by in cells.items()]
    yield markdown(["error on new rows", *every], sorted(lines))
    if not whole:
        return
    places: dict[str, list[float]] = defaultdict(list)
    for by in whole.values():
        order = sorted(every, key=lambda k: by[k].mean())
        for place, learner in enumerate(order, 1):
            places[learner].append(place)
    rank = {k: float(np.mean(v)) for k, v in places.items()}
    yield "Mean rank: " + ", ".join(
        f"{k} {v:.2f}" for k, v in sorted(rank.items(), key=lambda p: p[1])
    )
    first = min(rank, key=lambda k: rank[k])
    yield f". Better than every single learner: {met(first == 'auto')}.\n"
    behind, linear = [], []
    for (data, kind), by in whole.items():
        best = min(singles, key=lambda k: by[k].mean())
        share = by["auto"].mean() / max(by[best].mean(), 1e-12) - 1
        gap = by["auto"] - by["linear"]
        noise = NOISE * gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else np.inf
        if share > BEHIND:
            behind.append(f"{data} {kind} ({100 * share:+.1f} % of {best})")
        if gap.mean() > noise:
            linear.append(f"{data} {kind} ({by['auto'].mean():.3g} to {by['linear'].mean():.3g})")
    yield f"\nOf {len(whole)} cells more than 3 % behind the best single learner: "
    yield f"{len(behind)} ({met(not behind)})" + "".join(f"; {w}" for w in behind) + ".\n"
    yield f"\nBehind `Linear` by more than {NOISE:g} standard errors: "
    yield f"{len(linear)} ({met(not linear)})" + "".join(f"; {w}" for w in linear) + ".\n"
    pairs = {(o.data, o.kind, o.trial, o.learner): f.seconds for o, f in found.items()}
    ratio = np.array(
        [
            pairs[*one[:3], "auto"] / pairs[*one[:3], "lightgbm"]
            for one in pairs
            if one[3] == "auto" and (*one[:3], "lightgbm") in pairs
        ]
    )
    if len(ratio):
        low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
        yield (
            f"\nTime of `auto` beside that of `LightGBM()` alone (both with held-out sets, one "
            f"thread): {middle:.0f} times, from {low:.0f} to {high:.0f} in eight of ten fits.\n"
        )


BAGS = {"musk1": 0.85, "musk2": 0.80, "fox": 0.63, "tiger": 0.86}


def bags(found: Found) -> Iterator[str]:
    """Ten folds of bags."""
    cells = defaults.means(found)
    lines = []
    for name, bar in BAGS.items():
        by = cells.get((name, "bags"), {})
        whole = {k: v if len(v) == 10 else None for k, v in by.items()}
        own = whole.get("auto")
        said = "" if own is None else met(own.mean() >= bar)
        figures = [short(whole.get(k)) for k in defaults.POOL]
        lines.append([name, *figures, f"≥ {bar:g}", said])
    yield markdown(["share of bags told right", *defaults.POOL, "bar for auto", ""], lines)


def proportions(found: Found) -> Iterator[str]:
    """Shares of classes in bags, beside a mean-proportion loss."""
    every = ("auto", "network", "dllp")
    cells = defaults.means(found)
    lines, good = [], True
    for (data, kind), by in sorted(
        cells.items(), key=lambda c: (c[0][0], int(c[0][1].split()[-1]))
    ):
        said = ""
        if {len(by.get(k, ())) for k in every} == {5}:
            gap = by["auto"] - by["dllp"]
            noise = NOISE * gap.std(ddof=1) / len(gap) ** 0.5
            fine = gap.mean() > -noise
            good, said = good and fine, f"{gap.mean():+.3f} ± {noise / NOISE:.3f}, {met(fine)}"
        lines.append([f"{data}, {kind}", *(short(by.get(k)) for k in every), said])
    yield markdown(["area under the curve", *every, "auto − dllp"], lines)


def simulations(found: dict[coverage.Part, coverage.Tally]) -> Iterator[str]:
    """Coverage of intervals."""
    every = coverage.added(found)
    yield (
        "Not the defaults: these are fits of `Linear(alpha=0)`, or of `Ensemble`s of it, with "
        "`validation=None`, since intervals are about coefficients that no penalty draws to "
        "zero.\n\n"
    )
    yield markdown(coverage.HEADS[:-1], [coverage.cells(k, t)[:-1] for k, t in every.items()])
    shares = [
        of[1 + i] / of.n
        for name, of in every.items()
        if of.told
        for i in range(4)[coverage.CASES[name].told]
    ]
    rows = [of.rows / of.n for of in every.values()]
    whole = len(found) == len(coverage.plan().tasks)
    if shares:
        yield (
            f"95 % intervals of coefficients hold {100 * min(shares):.1f} to "
            f"{100 * max(shares):.1f} % (bar 92 to 97: "
            f"{met(min(shares) >= 0.92 and max(shares) <= 0.97, whole)}), 90 % intervals of new "
            f"rows {100 * min(rows):.1f} to {100 * max(rows):.1f} % (bar 80 to 97: "
            f"{met(min(rows) >= 0.8 and max(rows) <= 0.97, whole)}).\n"
        )


TITLES = {
    "intervals": ("90 % intervals of single rows", intervals),
    "auto": ('`learner="auto"` beside each single learner', auto),
    "bags": ("Bags", bags),
    "proportions": ("Shares of classes in bags", proportions),
}


def ran(found: dict[Any, Any], plan: resume.Plan) -> str:
    """The command, and how much of what it measures has been measured."""
    n, every = sum(task in found for task in plan.tasks), len(plan.tasks)
    much = f"all of {every:,}" if n == every else f"**{n:,} of {every:,}**"
    what = "fits" if plan.name.startswith("defaults-") else f"times {coverage.AT_ONCE} simulations"
    command = plan.name.replace("defaults-", "defaults ")
    return f"`python -m benchmarks.{command}`; {much} {what} have been run.\n\n"


def text(folder: Path) -> str:
    """The measured part of the page."""
    out = []
    for name, (title, shown) in TITLES.items():
        found = defaults.read(folder / f"defaults-{name}.csv")
        if not found:
            n = len(defaults.plan(name).tasks)
            words = f"`python -m benchmarks.defaults {name}`, {n:,} fits: **not run yet**."
            out += [f"## {title}\n", f"{words}\n"]
        else:
            out += [f"## {title}\n", "".join([ran(found, defaults.plan(name)), *shown(found)])]
    found = resume.read(folder / "coverage.csv", coverage.Part, coverage.Tally)
    if found:
        title = "Intervals of coefficients and of predictions"
        out += [f"## {title}\n", "".join([ran(found, coverage.plan()), *simulations(found)])]
    return "\n".join(out)


def main() -> None:
    """Reads the folder of results and writes the page below its mark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults_page")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of results")
    before = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{before}{MARK}\n{text(parser.parse_args().out)}", encoding="utf-8")


if __name__ == "__main__":
    main()
