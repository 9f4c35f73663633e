"""What the pictures share: axes, colours, draws and tables."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from setwise.learners.inputs import as_table, feature_names
from setwise.observations import Observations

__all__ = [
    "BLUE", "COLOURS", "GREEN", "GREY", "GRID", "INK", "ORANGE", "PALETTE", "PAPER", "PURPLE",
    "Floats", "axes", "blank", "grid", "legend", "matplotlib_part", "one_kind", "sample", "styled",
    "table_of", "title",
]  # fmt: skip

Floats = NDArray[np.float64]
# Blue, orange, green and purple differ for every kind of colour vision (Okabe and Ito).
INK, GRID, PAPER, GREY = "#1b1f24", "#d8dde3", "#ffffff", "#8a929c"
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#aa5088"
PALETTE = {
    "ink": INK, "grid": GRID, "paper": PAPER, "grey": GREY,
    "blue": BLUE, "orange": ORANGE, "green": GREEN, "purple": PURPLE,
}  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)


def blank(width: float = 4.6, height: float = 3.3) -> Any:
    """New axes in the style of these pictures, on a figure that pyplot does not keep."""
    figure = matplotlib_part("figure").Figure(figsize=(width, height), layout="constrained")
    return styled(figure.add_subplot())


def matplotlib_part(part: str) -> Any:
    """A part of matplotlib, or an error that says how to get it."""
    try:
        return importlib.import_module(f"matplotlib.{part}")
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib, which is not installed: pip install 'setwise[plots]'"
        ) from error


def axes(ax: Any, height: float = 3.3) -> Any:
    """The axes given, or new ones that pyplot shows."""
    if ax is None:
        size = {"figsize": (4.6, height), "layout": "constrained"}
        _, ax = matplotlib_part("pyplot").subplots(**size)
    return styled(ax)


def styled(ax: Any) -> Any:
    """The axes with thin lines, and none at the top and on the right."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(colors=INK, labelsize=9, length=3, color=GREY)
    ax.set_axisbelow(True)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set(color=INK, fontsize=9.5)
    return ax


def title(ax: Any, text: str) -> None:
    """A small title, to the left."""
    ax.set_title(text, fontsize=10, color=INK, loc="left")


def legend(ax: Any, **where: Any) -> None:
    """A legend without a box."""
    ax.legend(frameon=False, fontsize=8.5, labelcolor=INK, **where)


def grid(ax: Any, axis: str = "both") -> None:
    """Faint lines behind the data."""
    ax.grid(True, axis=axis, color=GRID, linewidth=0.6)


def sample(d: Any, n: int) -> NDArray[Any]:
    """Draws from each row's distribution, (n, rows), always the same."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return np.asarray(d.sample((n,)))


def table_of(X: Any) -> tuple[Floats, list[str]]:
    """X as an array of numbers, with the names of its features."""
    table = as_table(X)
    names = feature_names(table)
    if hasattr(table, "toarray"):
        table = table.toarray()
    if names is not None:
        import narwhals as nw

        frame = nw.from_native(X, eager_only=True)
        columns = [frame.get_column(name).to_list() for name in frame.columns]
        codes = [_codes(column) for column in columns]
        return np.column_stack(codes), names
    array: Floats = np.asarray(table, dtype=np.float64)
    array = array.reshape(len(array), -1)
    return array, [f"feature {j}" for j in range(array.shape[1])]


def _codes(column: list[Any]) -> Floats:
    try:
        return np.array([np.nan if v is None else float(v) for v in column])
    except (TypeError, ValueError):
        return np.unique([str(v) for v in column], return_inverse=True)[1].astype(np.float64)


def one_kind(observations: Any) -> Observations:
    """The observations, unless they are a list of several kinds."""
    if not isinstance(observations, Observations):
        raise TypeError(
            f"expected one setwise.Observations, got {type(observations).__name__}: of several "
            f"kinds choose one"
        )
    return observations
