"""The drawings of the report, as matplotlib figures of a phone's width."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from reproduction.folder import SETTINGS, Measured
from reproduction.paper import Figure
from setwise.plots import PALETTE

__all__ = ["curves", "dots", "sizes"]

WIDTH = 3.15  # inches: a phone shows one without shrinking, a desktop three side by side
INK, GRID, PAPER, GREY, BLUE, ORANGE, GREEN, PURPLE = PALETTE.values()
COLOURS = {"paper": GREY, "protocol": BLUE, "best": ORANGE}
MARKS = {"paper": "s", "protocol": "o", "best": "D"}
EDGE = 4.0  # the greatest ratio that is drawn where it is


def _axes(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    axes = canvas.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8, length=3, width=0.6)
    axes.tick_params(which="minor", length=2, width=0.4)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return canvas, axes


def _legend(canvas: Any, columns: int = 4) -> None:
    canvas.legend(
        loc="outside upper left", ncols=columns, frameon=False, fontsize=8, handletextpad=0.4,
        columnspacing=1.2, labelcolor=INK,
    )  # fmt: skip


def dots(measured: Measured, method: str) -> Any | None:
    """Ours and the paper's on each data set, with a standard deviation to either side.

    Errors are divided by the paper's, since data sets differ in unit. None without any result.
    """
    sets = [d for d in measured.datasets if any(_of(measured, d, method, s) for s in SETTINGS)]
    if not sets:
        return None
    canvas, axes = _axes(0.85 + 0.27 * len(sets))
    higher = measured.table.higher
    for place, name in ((-0.24, "paper"), (0.0, "protocol"), (0.24, "best")):
        found = [(i, _of(measured, d, method, name)) for i, d in enumerate(sets)]
        xs, ys, spread = [], [], []
        for i, figure in found:
            if figure is None or figure.mean != figure.mean:
                continue
            paper = measured.theirs(sets[i], method)
            unit = 1.0 if higher or paper is None else paper.mean
            x = figure.mean / unit
            xs.append(x if higher else min(max(x, 1 / EDGE), EDGE))
            ys.append(i + place)
            spread.append(figure.std / unit if figure.std == figure.std and xs[-1] == x else 0.0)
        fill = PAPER if name == "protocol" else COLOURS[name]
        # below 0 a logarithm has no place for the end of a bar
        low = [min(s, x * 0.75) for s, x in zip(spread, xs, strict=True)]
        axes.errorbar(
            xs, ys, xerr=[low, spread], fmt=MARKS[name], color=COLOURS[name], markersize=4,
            markerfacecolor=fill, elinewidth=1, label=name,
        )  # fmt: skip
    axes.set_yticks(range(len(sets)), sets)
    axes.set_ylim(len(sets) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    if higher:
        axes.set_xlabel("accuracy, %", fontsize=8, color=INK)
    else:
        axes.set_xscale("log", base=2)
        axes.axvline(1.0, color=GREY, linewidth=0.8)
        low_end, high_end = axes.get_xlim()
        axes.set_xlim(min(low_end, 0.7), max(high_end, 1.5))
        ticks = [t for t in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4) if _inside(t, axes.get_xlim())]
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("error, the paper's = 1", fontsize=8, color=INK)
    _legend(canvas)
    return canvas


def _inside(tick: float, ends: tuple[float, float]) -> bool:
    return ends[0] <= tick <= ends[1]


def _of(measured: Measured, dataset: str, method: str, name: str) -> Figure | None:
    if name == "paper":
        return measured.theirs(dataset, method)
    return measured.ours(dataset, method, name)


def sizes(measured: Measured, dataset: str) -> Any | None:
    """The error against the size of sets: boosting in full, linear models in broken lines."""
    canvas, axes = _axes(2.2)
    drawn = False
    for model, style in (("lr", "--"), ("gbm", "-")):
        for name, colour in COLOURS.items():
            found = {
                int(m.removeprefix(f"{model}_k")): _of(measured, dataset, m, name)
                for m in measured.methods
                if m.startswith(f"{model}_k")
            }
            points = sorted((k, f) for k, f in found.items() if f is not None)
            drawn = drawn or (bool(points) and name != "paper")
            ks, means = [k for k, _ in points], [f.mean for _, f in points]
            label = name if model == "gbm" else None
            axes.plot(ks, means, style, marker=MARKS[name], color=colour, markersize=3.5,
                      linewidth=1.4, label=label)  # fmt: skip
            if name == "best" and all(f.std == f.std for _, f in points):
                low, high = ([f.mean + side * f.std for _, f in points] for side in (-1, 1))
                axes.fill_between(ks, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size of sets, K", fontsize=8, color=INK)
    axes.set_ylabel("mean squared error", fontsize=8, color=INK)
    _legend(canvas)
    return canvas if drawn else None


def curves(measured: Measured) -> Iterator[tuple[Any, str]]:
    """For each data set and setting with a history, the mean curve of each method; captions."""
    for setting in SETTINGS:
        for dataset in measured.datasets:
            found = {
                m: trials
                for (d, m, s), trials in measured.curves.items()
                if (d, s) == (dataset, setting)
            }
            if not found:
                continue
            canvas, axes = _axes(2.6)
            looks = [(c, s) for s in ("-", "--", ":") for c in (BLUE, ORANGE, GREEN, PURPLE)]
            for (method, trials), (colour, style) in zip(found.items(), looks, strict=False):
                steps = sorted(set.intersection(*(set(t) for t in trials.values())))
                rows = [[trial[step] for trial in trials.values()] for step in steps]
                mean = [statistics.fmean(row) for row in rows]
                std = [statistics.stdev(row) if len(row) > 1 else 0.0 for row in rows]
                axes.plot(steps, mean, style, color=colour, linewidth=1.4, label=method)
                low, high = (
                    [m + side * s for m, s in zip(mean, std, strict=True)] for side in (-1, 1)
                )
                axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_xlabel("epochs", fontsize=8, color=INK)
            value = "accuracy, %" if measured.table.higher else "mean squared error"
            axes.set_ylabel(value, fontsize=8, color=INK)
            _legend(canvas, columns=2)
            yield canvas, f"{dataset}, {setting}, along the way: mean of trials ± one deviation"
