"""The report: our figures beside the paper's, as a page that needs no network, or as Markdown.

Both are made from one list of parts, so that they say the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from reproduction.aims import aims
from reproduction.blocks import (
    Aims,
    Block,
    Cell,
    Drawing,
    Fold,
    Grid,
    Section,
    Tiles,
    as_html,
    as_markdown,
)
from reproduction.drawings import curves, dots, sizes
from reproduction.folder import SETTINGS, Folder, Measured, read
from reproduction.paper import (
    TABLES,
    TRIALS,
    Figure,
    bold,
    gain,
    is_likelihood,
    number,
    seen,
    twin,
    verdict,
)
from reproduction.terms import terms
from setwise.datasets import info

__all__ = ["html", "markdown"]

TITLE = "The paper's experiments, reproduced"
STANDINGS = ("ahead", "level", "behind")
SIGNS = {"ahead": ("▲", "good"), "level": ("=", ""), "behind": ("▼", "bad")}


def html(results: str | Path) -> str:
    """The page for a folder of results.

    Raises:
        ResultsError: the folder or a file is not as expected; the message has file and line.
    """
    lead, parts = _document(read(Path(results)), drawings=True)
    return as_html(TITLE, lead, parts)


def markdown(results: str | Path) -> str:
    """The same as Markdown, without the drawings.

    Raises:
        ResultsError: the folder or a file is not as expected; the message has file and line.
    """
    lead, parts = _document(read(Path(results)), drawings=False)
    pieces = [f"# {TITLE}", lead]
    for title, blocks in parts:
        pieces += [f"## {title}", *(text for block in blocks for text in as_markdown(block))]
    return "\n\n".join(pieces) + "\n"


# ---- parts


def _document(folder: Folder, drawings: bool) -> tuple[str, list[Section]]:
    absent = [name for name in TABLES if name not in folder.tables]
    lead = (
        'Our figures beside those of "Learning from Aggregate Observations" (Zhang, '
        "Charoenphakdee, Wu and Sugiyama, NeurIPS 2020). `protocol` has the paper's model and "
        "budget with our likelihoods, `best` what we know how to do, some of it by code of "
        "`reproduction/`."
    )
    parts: list[Section] = [
        terms(method for measured in folder.tables.values() for method in measured.methods),
        _summary(folder, absent),
        ("What was to be shown", [Aims(aims(folder))]),
    ]
    parts += [_table(folder, measured, drawings) for measured in folder.tables.values()]
    return lead, [*parts, _making(folder)]


def _summary(folder: Folder, absent: list[str]) -> Section:
    every = aims(folder)
    told = [aim.met for aim in every if aim.met is not None]
    total: Counter[str] = Counter()
    sentences: list[Block] = []
    others: list[Block] = []
    for name, measured in folder.tables.items():
        texts = []
        for setting in SETTINGS:
            count = _standings(measured, filter(is_likelihood, measured.methods), setting)
            if setting == "best":
                total += Counter({word: len(where) for word, where in count.items()})
            cells = sum(map(len, count.values()))
            if cells:
                behind = [f"{d} {m}" for d, m in count["behind"]]
                more = f" and {len(behind) - 5} more" if len(behind) > 5 else ""
                named = f" ({', '.join(behind[:5])}{more})" if behind and setting == "best" else ""
                texts.append(
                    f"in `{setting}` ahead in {len(count['ahead'])} of {cells} cells, level in "
                    f"{len(count['level'])}, behind in {len(count['behind'])}{named}"
                )
        sentences.append(f"**{name}**: {'; '.join(texts) or 'no likelihood method yet'}.")
        rows: dict[bool, list[list[str | Cell]]] = {True: [], False: []}
        for method in measured.methods:
            counts = [_standings(measured, [method], setting) for setting in SETTINGS]
            if any(any(count.values()) for count in counts):
                numbers = ([len(count[w]) for w in STANDINGS] for count in counts)
                shown = (", ".join(map(str, n)) if any(n) else "–" for n in numbers)
                rows[is_likelihood(method)].append([f"`{method}`", *shown])
        if rows[True]:
            sentences.append(Grid(["method", *SETTINGS], rows[True]))
        if rows[False]:
            others.append(Grid(["method", *SETTINGS], rows[False], f"**{name}**"))
    tiles = Tiles(
        [
            (f"{sum(told)} of {len(told)}", f"aims met; {len(every) - len(told)} more are open"),
            *((str(total[word]), f"cells {word}, likelihood methods, best") for word in STANDINGS),
        ]
    )
    blocks: list[Block] = [tiles]
    blocks.append(
        "Ahead and behind mean by more than one standard error of the difference of the two means, "
        "level means within it. Counted here are the estimators by likelihood that the paper "
        "proposes, each on each data set; the small tables count data sets ahead, level, behind."
    )
    blocks += sentences
    if absent:
        blocks.append(f"**No results yet** for {', '.join(absent)}.")
    if others:
        blocks.append(
            Fold("Baselines and full supervision: data sets ahead, level, behind", others)
        )
    return "Where we stand", blocks


def _table(folder: Folder, measured: Measured, drawings: bool) -> Section:
    table = measured.table
    found = [m for m in measured.methods if any(key[1] == m for key in measured.values)]
    main = [m for m in found if is_likelihood(m)]
    trials = "1 trial" if measured.trials == 1 else f"{measured.trials} trials"
    few = "" if measured.trials >= TRIALS else f", of which the paper has {TRIALS}"
    blocks: list[Block] = [
        f"Figures are the {table.metric}. {trials} a cell{few}; "
        f"{_time(measured.seconds)} of computing in all."
    ]
    if drawings:
        blocks += _drawings(measured, main)
    marks = _marks(measured)
    blocks += [_grid(folder, measured, method, marks) for method in main]
    rest = [_grid(folder, measured, method, marks) for method in found if method not in main]
    if rest:
        blocks.append(Fold(f"{table.name}: baselines and full supervision", list(rest)))
    partial = [info(d) for d in measured.datasets if info(d).partial]
    if partial:
        some = (f"{one.name} ({one.rows} of {one.full_rows} rows)" for one in partial)
        blocks.append(
            f"**Partial data sets**, of which not all rows were to be had: {', '.join(some)}."
        )
    missing = measured.missing()
    if missing:
        blocks.append(Grid(["not measured"], [[line] for line in missing]))
    else:
        blocks.append("No cell is missing.")
    blocks.append(_runs(measured))
    return f"{table.name}: {table.about}", blocks


def _drawings(measured: Measured, main: list[str]) -> Iterator[Drawing]:
    if measured.table.name == "varying-k":
        for dataset in measured.datasets:
            drawn = sizes(measured, dataset)
            if drawn is not None:
                lines = "boosting in full, linear in broken lines; band: one standard deviation"
                yield Drawing(drawn, f"{dataset}: {lines}")
    else:
        for method in main:
            drawn = dots(measured, method)
            if drawn is not None:
                beyond = "" if measured.table.higher else "; what is off the scale is at its edge"
                yield Drawing(drawn, f"`{method}` ± one standard deviation{beyond}")
    for drawn, caption in curves(measured):
        yield Drawing(drawn, caption)


def _marks(measured: Measured) -> set[tuple[str, str, str]]:
    """The cells to set in bold."""
    if measured.table.name == "varying-k":
        return set()  # sizes do not compete
    out = set()
    for setting in SETTINGS:
        for dataset in measured.datasets:
            row = {m: f for m in measured.methods if (f := measured.ours(dataset, m, setting))}
            out |= {(dataset, m, setting) for m in bold(row, measured.table.sign)}
    return out


def _grid(
    folder: Folder, measured: Measured, method: str, marks: set[tuple[str, str, str]]
) -> Grid:
    """One method: the paper's figure, ours in both settings, and by how much ours is better."""
    sign = measured.table.sign
    rows: list[list[str | Cell]] = []
    reasons = False
    explained = is_likelihood(method) or seen(method) == "single labels"
    for dataset in measured.datasets:
        theirs = measured.theirs(dataset, method)
        name = f"{dataset} (partial)" if info(dataset).partial else dataset
        row: list[str | Cell] = [name, Cell(_figure(theirs), bool(theirs and theirs.bold))]
        standing = {}
        for setting in reversed(SETTINGS):  # best first: a phone shows the columns on the left
            ours = measured.ours(dataset, method, setting)
            few = f" ({ours.trials} tr.)" if ours and ours.trials < measured.trials else ""
            row.append(Cell(_figure(ours) + few, (dataset, method, setting) in marks))
            if ours is None or theirs is None:
                row.append("—")
                continue
            standing[setting] = verdict(ours, theirs, sign)
            mark, tone = SIGNS[standing[setting]]
            row.append(Cell(f"{_signed(gain(ours, theirs, sign))} {mark}", tone=tone))
        reason = folder.reasons.get((dataset, method), "")
        if not any((dataset, method, setting) in measured.values for setting in SETTINGS):
            reason = reason or folder.reasons.get((dataset, ""), "")  # why there is no figure
        if explained and standing.get("best") == "behind":
            reason = folder.why(measured.table.name, dataset, method) or "no reason noted yet"
        reasons = reasons or bool(reason)
        rows.append([*row, Cell(reason, tone="muted")])
    columns = ["data set", "paper"]
    for setting in reversed(SETTINGS):
        columns += [setting, "better\nby, s.d."]
    columns.append("why")
    if not reasons:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    column = twin(measured.table.name, method)
    beside = f", beside the paper's `{column}`" if column and column != method else ""
    return Grid(columns, rows, f"**{method}**, from {seen(method)}{beside}")


def _runs(measured: Measured) -> Block:
    """The commands that made the figures, by machine and versions."""
    if not measured.facts:
        return f"No {measured.table.name}.json says which versions, machine and command were used."
    commands: dict[str, list[list[str | Cell]]] = {}
    for run in measured.facts:
        facts = {k: v for k, v in run.items() if v is not None}
        command, machine = facts.pop("command", "?"), facts.pop("machine", "?")
        device = f", {facts.pop('device')}" if "device" in facts else ""
        versions = ", ".join(f"{name} {value}" for name, value in facts.items())
        commands.setdefault(f"{machine}{device}; {versions}", []).append([f"`{command}`"])
    made = [Grid(["command"], rows, f"On {where}.") for where, rows in commands.items()]
    return Fold(f"{measured.table.name}: how it was run", list(made))


def _making(folder: Folder) -> Section:
    found: Counter[str] = Counter()
    for measured in folder.tables.values():
        for note in measured.notes:
            found[re.sub(r"\d[\d.]*(e[+-]?\d+)?", "…", note)] += 1
    blocks: list[Block] = [
        "**Trials.** Rows are split into 60 % training, 20 % validation and 20 % test part, anew "
        "in each trial, images excepted, which come with a test part; the number of the trial is "
        "its seed. Features are standardised and targets centred by the training part. Targets are "
        "in the unit of the paper's table.",
        "**Better by, s.d.** (m − m′) / √((s² + s′²)/2), with m and s the mean and the standard "
        "deviation of our trials, m′ and s′ the paper's, and the sign such that + is better for "
        "us: the difference in standard deviations of a single trial. ▲ ahead, ▼ behind by more "
        f"than one standard error √(s²/n + s′²/{TRIALS}), = level within it. Where we have one "
        "trial only, s′ stands for s.",
        "**Bold.** The best of a data set's methods that see the same (pairs, triplets, means or "
        "ranks) in one setting, and those that a one-sided t-test (Welch's) does not find worse at "
        "5 %. Applied to the paper's figures it gives the paper's bold print in every cell. "
        "Methods that nothing competes with are not bold.",
        "**Models of classes.** The paper does not name its model for `binary` and `multiclass`. "
        "Ours are a small perceptron, LightGBM (columns `_gbm`), and in `_either` for each trial "
        "the one of the two that says more of the sets of the validation part, among the trials "
        "that both were run on: no single label is needed to choose.",
        "**Text.** The paper does not say how its 100-dimensional vectors were made. Ours are "
        "TF-IDF of strings of three to five characters, then truncated SVD to 100 dimensions, "
        "both fitted on the training part only.",
        "**Scale of ranks.** Ranks tell neither the level nor the unit of a prediction. The level "
        "does not matter, for the error is a variance. In `protocol` the scale of the "
        "targets is one of nine, from 0.05 to 1.2 of their standard deviation, chosen by the error "
        "on the labels of the validation part. In `best` the model is fitted with scale 1 and its "
        "predictions are multiplied by the slope, not below 0, of the targets on the predictions "
        "over the validation part; no other single label is used.",
    ]
    if found:
        rows: list[list[str | Cell]] = [[note, str(count)] for note, count in found.most_common()]
        blocks.append(Grid(["note kept with trials", "trials"], rows))
    return "How the figures were made", blocks


# ---- small things


def _standings(
    measured: Measured, methods: Iterable[str], setting: str
) -> dict[str, list[tuple[str, str]]]:
    """The (data set, method) that are ahead, level and behind."""
    out: dict[str, list[tuple[str, str]]] = {word: [] for word in STANDINGS}
    for method in methods:
        for dataset in measured.datasets:
            ours, theirs = measured.ours(dataset, method, setting), measured.theirs(dataset, method)
            if ours and theirs:
                out[verdict(ours, theirs, measured.table.sign)].append((dataset, method))
    return out


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "—"
    if math.isnan(figure.mean):
        return "not finite"
    spread = "" if math.isnan(figure.std) else f" ± {number(figure.std, like=figure.mean)}"
    return number(figure.mean) + spread


def _signed(value: float) -> str:
    if abs(value) > 99:
        return f"{'>+' if value > 0 else '<−'}99"
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
