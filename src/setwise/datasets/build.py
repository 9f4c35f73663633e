"""From columns to a `Dataset`: features, targets in the paper's units, sets where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.datasets.folders import DatasetError
from setwise.datasets.registry import Info
from setwise.datasets.tables import Columns, encode, labels_of, read_idx, read_table
from setwise.sets import Sets

__all__ = ["Dataset", "build", "build_images", "check", "embedded"]


@dataclass(frozen=True, repr=False)
class Dataset:
    """A data set in memory.

    | task | X | z | besides |
    |---|---|---|---|
    | regression | (rows, features) float | (rows,) float, in the paper's units | |
    | binary, multiclass | (rows, features) float | (rows,) class numbers from 0 | `classes` |
    | images | (rows, 28, 28) uint8 | (rows,) class numbers | `classes`, `X_test`, `z_test` |
    | text | (rows,) sentences | (rows,) class numbers | `classes`; see `text_features` |
    | aggregate | (rows, features) float | None, or counts to score by | `sets`, `y`, `aggregate` |

    `classes` are the labels of the classes, `origin` is the folder or service the data came from,
    `info` what the registry says of the data set, and `frame` the raw table as a pandas DataFrame,
    with `load(name, frame=True)`.
    """

    info: Info
    X: NDArray[Any]
    z: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    X_test: NDArray[Any] | None = None
    z_test: NDArray[Any] | None = None
    sets: Sets | None = None
    y: NDArray[Any] | None = None
    origin: str = ""
    frame: Any = None

    name = property(attrgetter("info.name"))
    task = property(attrgetter("info.task"))
    aggregate = property(attrgetter("info.aggregate"))

    @property
    def partial(self) -> bool:
        """Whether rows of the full set are missing here: not to be compared with the paper."""
        return self.info.full_rows is not None and len(self.X) < self.info.full_rows

    @property
    def note(self) -> str:
        """What to know before use."""
        return "" if self.info.partial and not self.partial else self.info.note

    def __repr__(self) -> str:
        parts = [repr(self.name), self.task + (", partial" if self.partial else "")]
        parts.append("X " + " × ".join(map(str, self.X.shape)))
        if self.classes:
            parts.append(f"{len(self.classes)} classes")
        if self.sets is not None:
            parts.append(f"{self.aggregate} of {len(self.sets)} sets")
        return f"Dataset({', '.join(parts)})"


def build(info: Info, table: Columns, *, origin: str = "", frame: bool = False) -> Dataset:
    """The data set in a table of columns whose last one is the target."""
    makers: dict[str, Any] = {"AnyPositive": _bags, "Counts": _voters, "Rank": _matches}
    parts = makers.get(info.aggregate, _labelled)(info, table)
    return Dataset(info, origin=origin, frame=_frame(table) if frame else None, **parts)


def build_images(info: Info, paths: Sequence[Path], *, origin: str = "") -> Dataset:
    """The data set in four idx files: images and labels of the test part, then of the training."""
    X_test, z_test, X, z = (read_idx(path) for path in paths)
    classes = tuple(map(str, range(int(z.max()) + 1)))
    return Dataset(
        info, X, z.astype(np.int64), classes=classes, X_test=X_test,
        z_test=z_test.astype(np.int64), origin=origin,
    )  # fmt: skip


def embedded(info: Info, *, frame: bool = False) -> Dataset:
    """A data set of scikit-learn, or from the files of this package."""
    if info.embedded.endswith(".csv.gz"):
        with as_file(files(__package__) / "files" / info.embedded) as path:
            return build(info, read_table(path), origin="setwise", frame=frame)
    import sklearn.datasets

    options = {"scaled": False} if info.embedded == "load_diabetes" else {}
    bunch = getattr(sklearn.datasets, info.embedded)(**options)
    table: Columns = {str(n): bunch.data[:, c] for c, n in enumerate(bunch.feature_names)}
    table["target"] = bunch.target.astype(np.float64)
    if info.classes:
        table["target"] = np.array([str(bunch.target_names[t]) for t in bunch.target], object)
    return build(info, table, origin="scikit-learn", frame=frame)


def check(data: Dataset) -> None:
    """Raises unless the download agrees with the registry."""
    info, rows = data.info, len(data.X)
    expected = {info.rows, info.full_rows or info.rows, info.download.get("rows", info.rows)}
    wrong = []
    if rows not in expected:
        wrong.append(f"{' or '.join(map(str, sorted(expected)))} rows expected, {rows} came")
    if info.features is not None and data.X.shape[1] != info.features:
        wrong.append(f"{info.features} features expected, {data.X.shape[1]} came")
    if info.features is not None and not np.isfinite(data.X).all():
        wrong.append("no missing values expected, some came")
    if info.classes is None and data.z is not None:
        came = np.array([data.z.min(), data.z.max()]) / info.target_scale
        if not np.allclose(came, info.target_range, rtol=1e-4):
            wrong.append(f"targets within {info.target_range} expected, within {came} came")
    elif data.z is not None:
        counts = sorted(np.bincount(data.z).tolist())
        known = sorted(info.class_counts.values())
        if len(counts) != info.classes or (known and rows == info.rows and counts != known):
            wrong.append(f"class counts {dict(info.class_counts)} expected, {counts} came")
        printed = sorted(info.paper[side] for side in ("neg", "pos") if side in info.paper)
        if rows == info.full_rows and printed and np.abs(np.subtract(counts, printed)).max() > 3:
            wrong.append(f"about {printed} rows of each class expected, {counts} came")
    if wrong:
        raise DatasetError(
            f"{data.origin} no longer gives the data set {info.name!r}: {'; '.join(wrong)}; get "
            f"the file by other means and put it in the folder named by SETWISE_DATA"
        )


def _frame(table: Columns) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("frame=True needs pandas: pip install 'setwise[frames]'") from error
    return pandas.DataFrame(table)


def _labelled(info: Info, table: Columns) -> dict[str, Any]:
    """One line per row, with its target."""
    features = {name: values for name, values in table.items() if name != "target"}
    if info.classes:
        levels, codes = np.unique(table["target"], return_inverse=True)
        found = {"z": codes.astype(np.int64), "classes": tuple(labels_of(levels))}
    else:
        found = {"z": table["target"] * info.target_scale}
    if info.task == "text":
        return found | {"X": table["text"].astype(object)}
    return found | _encoded(features, info.categorical)


def _encoded(features: Columns, categorical: Sequence[str] = ()) -> dict[str, Any]:
    X, names = encode(features, categorical)
    return {"X": X, "feature_names": tuple(names)}


def _bags(info: Info, table: Columns) -> dict[str, Any]:
    """Instances in bags; a bag is positive if one of its instances is."""
    features = {n: v for n, v in table.items() if n not in ("bag", "target")}
    sets = Sets.from_groups(labels_of(table["bag"]))
    y = table["target"][sets.indices[sets.offsets[:-1]]].astype(np.int64)
    return _encoded(features) | {"classes": ("0", "1"), "sets": sets, "y": y}


def _voters(info: Info, table: Columns) -> dict[str, Any]:
    """Voters of one race in one precinct share a row, which counts as often as there are voters.

    `y` counts the voters of each party in the precinct; `z` counts those of each row, for scores.
    """
    races, parties = ("white", "black", "natam"), ("dem", "rep", "non")
    counts = np.stack([table[r] for r in races], 1).astype(np.int64)
    precinct, race = np.nonzero(counts)
    rows = np.split(np.arange(len(race)), np.cumsum((counts > 0).sum(1))[:-1])
    sets = Sets(rows, counts=counts[precinct, race], names=table["precinct"])
    cross = [[table[short + p] for p in parties] for short in ("wh", "bl", "natam")]
    z = np.array(cross).transpose(2, 0, 1)[precinct, race].astype(np.int64)
    y = np.stack([table[p] for p in parties], 1).astype(np.int64)
    features = {"race": np.array(races, object)[race], "county": table["county"][precinct]}
    return _encoded(features) | {"z": z, "classes": parties, "sets": sets, "y": y}


def _matches(info: Info, table: Columns) -> dict[str, Any]:
    """Two rows per match, the winner's before the loser's, with the players as they were that day.

    Unknown facts of a player are NaN.
    """
    count = len(table["surface"])
    features: Columns = {}
    for name in ("ht", "age", "rank", "rank_points", "hand"):
        sides = np.stack([table[f"winner_{name}"], table[f"loser_{name}"]], 1).reshape(-1)
        features[name] = np.where(sides == "", "U", sides) if name == "hand" else sides
    features["surface"] = np.repeat(table["surface"], 2)
    X, names = encode(features)
    known = [not name.endswith("=") for name in names]  # no column for a blank surface
    return {
        "X": X[:, known],
        "feature_names": tuple(compress(names, known)),
        "sets": Sets(np.arange(2 * count).reshape(count, 2)),
        "y": np.ones(count),
    }
