"""The figures printed in the paper, and what its six tables measure.

Zhang, Charoenphakdee, Wu & Sugiyama, "Learning from aggregate observations", NeurIPS 2020. Each
figure is the mean and the standard deviation of ten trials.

>>> figures("uci")["abalone", "mean_mle_gbm"]
Figure(mean=4.8, std=0.3, trials=10, bold=True)
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from setwise.datasets import info

__all__ = [
    "BOOSTED",
    "EITHER",
    "TABLES",
    "Figure",
    "Table",
    "bold",
    "columns",
    "exists",
    "figures",
    "gain",
    "is_likelihood",
    "number",
    "probability",
    "seen",
    "supervision",
    "twin",
    "verdict",
]

TRIALS = 10
BOOSTED, EITHER = "_gbm", "_either"  # ends of our columns: boosting, and the better of two models


@dataclass(frozen=True)
class Figure:
    """The mean and the standard deviation of a cell's trials; `bold` as the table prints it."""

    mean: float
    std: float
    trials: int
    bold: bool = False

    @property
    def variance(self) -> float:
        """That of the mean: the square of its standard error."""
        return self.std**2 / self.trials


@dataclass(frozen=True)
class Table:
    """A table of the paper: its name here, what it is about and what its figures are."""

    name: str
    about: str
    metric: str
    higher: bool  # whether more is better

    @property
    def sign(self) -> int:
        """+1 where more is better, −1 where less is."""
        return 1 if self.higher else -1


_ACCURACY = "accuracy on the test part in %, after the best renaming of classes; higher is better"
_ERROR = "mean squared error on the test part; lower is better"
_ERRORS = _ERROR.replace(";", ", for ranks the variance of the error;")
TABLES = {
    table.name: table
    for table in (
        Table("images", "ten classes from pairs and triplets", _ACCURACY, True),
        Table("uci", "UCI regression from means of four and from ranks", _ERRORS, False),
        Table("varying-k", "regression from means of 2, 4, 8 and 16", _ERROR, False),
        Table("binary", "two classes from pairs and triplets", _ACCURACY, True),
        Table("multiclass", "several classes from pairs and triplets", _ACCURACY, True),
        Table("regression", "more regression from means of four and from ranks", _ERRORS, False),
    )
}


@cache
def figures(table: str) -> dict[tuple[str, str], Figure]:
    """The figures of a table by data set, as it is called here, and method."""
    text = files(__package__).joinpath("paper", f"{table}.csv").read_text(encoding="utf-8")
    return {
        (info(row["dataset"]).name, row["method"]): Figure(
            float(row["mean"]), float(row["std"]), TRIALS, row["best"] == "1"
        )
        for row in csv.DictReader(text.splitlines())
    }


def columns(table: str) -> list[str]:
    """The methods of a table, in its order.

    >>> columns("varying-k")[:3]
    ['lr_k2', 'lr_k4', 'lr_k8']
    """
    return list(dict.fromkeys(method for _, method in figures(table)))


def exists(table: str, method: str, setting: str) -> bool:
    """Whether a column is run in a setting: models that the paper does not have have no protocol.

    >>> exists("uci", "mean_mle_gbm", "protocol"), exists("binary", "supervised_gbm", "protocol")
    (True, False)
    """
    ours = method.endswith((BOOSTED, EITHER)) and method not in columns(table)
    return setting == "best" or not ours


def twin(table: str, method: str) -> str | None:
    """The paper's column that one of ours is set beside; None where it has none like it.

    The paper has one model per classification table and one column for both kinds of triplets.

    >>> twin("binary", "triplet_mle_three_way"), twin("binary", "similarity_mle_gbm")
    ('triplet_mle', 'similarity_mle')
    """
    plain = method.removesuffix(BOOSTED).removesuffix(EITHER).removesuffix("_three_way")
    return next((name for name in (method, plain) if name in columns(table)), None)


def seen(method: str) -> str:
    """What a method learns from: methods that see the same compete for the bold print.

    >>> seen("siamese"), seen("rank_gumbel_lr"), seen("gbm_k8")
    ('pairs', 'ranks', 'means')
    """
    begins = {
        "pairs": ("siamese", "contrastive", "similarity"),
        "triplets": ("tuplet", "triplet"),
        "ranks": ("rank",),
        "means": ("mean", "lr_k", "gbm_k"),
        "single labels": ("supervised",),
    }
    return next((what for what, names in begins.items() if method.startswith(names)), "no labels")


def is_likelihood(method: str) -> bool:
    """Whether this is one of the estimators that the paper proposes, rather than a baseline.

    >>> [is_likelihood(m) for m in ("mean_mle_lr", "rank_gaussian_gbm", "lr_k2", "siamese")]
    [True, True, True, False]
    """
    return "_mle" in method or "_k" in method or method.startswith("rank_gaussian")


def supervision(method: str) -> str:
    """The column of the same model under full supervision.

    >>> supervision("rank_gaussian_gbm"), supervision("triplet_mle_three_way")
    ('supervised_gbm', 'supervised')
    """
    return "supervised" + next((e for e in (BOOSTED, EITHER, "_lr") if method.endswith(e)), "")


def number(value: float, like: float | None = None) -> str:
    r"""A figure as the report prints it, with as many decimals as `like` would have.

    >>> number(4.8), number(0.061, like=98.8), number(0.01234), number(1462200.27)
    ('4.80', '0.06', '0.012', '1\u202f462\u202f200')
    """
    size = abs(value if like is None else like)
    if size >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f")
    decimals = 2 if size >= 0.1 or size == 0 else 1 - math.floor(math.log10(size))
    return f"{value:.{decimals}f}"


# ---- statistics of two figures


def gain(ours: Figure, theirs: Figure, sign: int) -> float:
    """How much better ours is, in standard deviations of a single trial; positive is better.

    (m − m′) / √((s² + s′²)/2) with the sign of the metric. Where we have a single trial, s is not
    known and s′ stands for it.

    >>> gain(Figure(4.5, 0.3, 10), Figure(4.8, 0.3, 10), -1)
    1.0
    """
    gap = sign * (ours.mean - theirs.mean)
    both = [theirs.std if math.isnan(ours.std) else ours.std, theirs.std]
    spread = math.sqrt((both[0] ** 2 + both[1] ** 2) / 2)
    return round(gap / spread, 12) if spread else math.copysign(math.inf, gap) if gap else 0.0


def verdict(ours: Figure, theirs: Figure, sign: int) -> str:
    """How ours stands: "ahead", "behind", or "level" within one standard error of the difference.

    The standard error is Welch's, √(s²/n + s′²/n′); s′ stands for an s that one trial cannot tell.

    >>> verdict(Figure(4.5, 0.3, 10), Figure(4.8, 0.3, 10), -1)
    'ahead'
    """
    gap = sign * (ours.mean - theirs.mean)
    if not math.isfinite(gap):
        return "behind"
    own = theirs.std**2 / ours.trials if math.isnan(ours.std) else ours.variance
    if abs(gap) <= math.sqrt(own + theirs.variance):
        return "level"
    return "ahead" if gap > 0 else "behind"


def probability(worse: Figure, better: Figure, sign: int) -> float:
    """The one-sided p-value of Welch's t-test for `worse` being as good as `better`.

    At 5 % it reproduces each of the paper's bold figures.

    >>> round(probability(Figure(85.82, 24.86, 10), Figure(98.84, 0.1, 10), 1), 3)
    0.066
    """
    from scipy.stats import t

    gap = sign * (better.mean - worse.mean)
    if not math.isfinite(gap) or min(worse.trials, better.trials) < 2:
        return 0.0
    parts = [(f.variance, f.trials - 1) for f in (worse, better)]
    total = sum(v for v, _ in parts)
    if total == 0:
        return 1.0 if gap <= 0 else 0.0
    freedom = total**2 / sum(v**2 / n for v, n in parts)
    return float(t.sf(gap / math.sqrt(total), freedom))


def bold(cells: dict[str, Figure], sign: int, level: float = 0.05) -> set[str]:
    """The methods of a row that are not worse, at this level, than the best that sees the same.

    A method that none competes with is not bold.
    """
    out = set()
    for what in {seen(method) for method in cells}:
        rivals = {m: f for m, f in cells.items() if seen(m) == what and math.isfinite(f.mean)}
        if len(rivals) < 2:
            continue
        best = max(rivals, key=lambda m: sign * rivals[m].mean)
        for method, figure in rivals.items():
            if method == best or probability(figure, rivals[best], sign) >= level:
                out.add(method)
    return out
