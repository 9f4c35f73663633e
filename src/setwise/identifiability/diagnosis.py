"""What the given sets leave open, beyond what labels of their kind leave open anyway."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from setwise.distributions import Categorical, Family
from setwise.identifiability.effects import untold_effects
from setwise.identifiability.facts import NOTHING, PARTLY, listed
from setwise.identifiability.information import Coefficients, within
from setwise.identifiability.principle import identify
from setwise.identifiability.seen import left_open_by_y
from setwise.objective import Objective
from setwise.observations import Observations

__all__ = ["diagnose"]

Floats = NDArray[np.float64]
MOST = 1_500  # coefficients: with more, features are not examined
FEW = 0.01  # of the rows: fewer that are joined to no others are not mentioned


def diagnose(
    objective: Objective,
    X: Any,
    raw: Tensor,
    shared: Tensor,
    given: Sequence[Observations] = (),
) -> list[str]:
    """What these sets leave open, in plain sentences; an empty list if nothing is.

    `raw` and `shared` are the fitted parameters of the rows of X; `given` are the observations as
    they were before what was learned of their aggregates was filled in. The result mentions scales
    of effects that are not told, groups of rows that no set joins, classes that are ruled out by
    the labels, changes of all targets that the y seen do not tell, features that do not vary, and
    effects of features that cancel out of every label (from the null space of the information
    matrix of a linear model at these parameters). Features that are not numbers are ignored.

    >>> import setwise as sw
    >>> X = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 2.0], [1.0, 2.0], [3.0, 2.0]])
    >>> gaps = sw.Observations(sw.Difference(), [[0, 1], [2, 3], [2, 4]], [1.0, 1.2, 2.9])
    >>> objective = Objective(sw.Normal(1.0), [gaps], 5)
    >>> for line in diagnose(objective, X, torch.zeros(5, 1).double(), torch.zeros(0)):
    ...     print(line)
    The sets join the rows into 2 groups (of 3 and 2 rows) that no label compares: how far one group
    lies from another is known from the features alone.
    The labels of these sets say nothing about the effect of feature 1: it cancels out of every one.
    """
    family, observations, shared = objective.family, objective.observations, objective.own(shared)
    whole = identify(family, observations)
    if whole == NOTHING:
        return [whole.words]
    out = untold_effects(family, given) + _groups(family, observations)
    if isinstance(family, Categorical):
        out += _unseen(objective, family.n_classes)
    out += left_open_by_y(objective, whole)
    rows = np.unique(np.concatenate([o.sets.indices for o in observations]))
    table = _numbers(X, rows)
    if table is None:
        return out
    values, names = table
    deviation = values.std(0)
    flat = deviation <= 1e-12 * np.abs(values).max(0, initial=0.0)
    if flat.any():
        some = [name for name, same in zip(names, flat, strict=True) if same]
        who = _plural(some, "Feature {} is", "The features {} are")
        out.append(f"{who} the same in every row of these sets, so no effect can be learned.")
    if whole == PARTLY or (len(names) + 1) * objective.n_outputs > MOST:
        return out
    scaled = (values - values.mean(0))[:, ~flat] / deviation[~flat]
    names = [name for name, same in zip(names, flat, strict=True) if not same]
    coefficients = Coefficients(objective, rows, scaled)
    basis = coefficients.complement(whole)
    null = coefficients.null(basis, raw.detach().double(), shared.detach().double())
    if null.shape[1] == basis.shape[1] > 0:
        return [*out, "The labels of these sets carry no information at the fitted model."]
    return out + (_directions(coefficients, null, names) if null.shape[1] else [])


def _groups(family: Family, observations: Sequence[Observations]) -> list[str]:
    """Groups of rows that are compared with each other, but with nothing else."""
    n = 1 + max(o.sets.n_rows for o in observations)  # node 0: what is known without comparison
    used = np.zeros(n, dtype=bool)
    edges = []
    compared = False
    for o in observations:
        own = identify(family, [o])
        if own == NOTHING:
            continue
        members = o.sets.indices + 1
        used[members] = True
        compares = own.shift or own.permutation or (family.positive and not own.scale)
        compared |= compares
        first = np.repeat(members[o.sets.offsets[:-1]], o.sets.sizes)
        edges.append(np.stack([first if compares else np.zeros_like(members), members]))
    if not compared:
        return []
    begin, end = np.concatenate(edges, axis=1)
    graph = sparse.coo_array((np.ones(len(begin)), (begin, end)), (n, n))
    count, label = connected_components(graph, directed=False)
    sizes = np.bincount(label[used], minlength=count)
    known, sizes[label[0]] = sizes[label[0]], 0
    sizes = np.sort(sizes[sizes > 0])[::-1]
    apart = sizes.sum() if known else sizes[1:].sum()
    if apart < FEW * used.sum():
        return []
    what = "how far one group lies from another"
    if isinstance(family, Categorical):
        what = "which class of one group is which of another"
    shown = listed([*sizes[:4], "fewer"] if len(sizes) > 5 else sizes)
    if not known:
        return [
            f"The sets join the rows into {len(sizes)} groups (of {shown} rows) that no label "
            f"compares: {what} is known from the features alone."
        ]
    which, are = ("A group", "is") if len(sizes) == 1 else (f"{len(sizes)} groups", "are")
    return [
        f"{which} (of {shown} rows) {are} compared only within, and no set joins them to the "
        f"{known} rows whose labels tell more: {what} is known from the features alone."
    ]


def _unseen(objective: Objective, n_classes: int) -> list[str]:
    """Classes that have probability 0 given the labels, if all were equally likely before."""
    raw = torch.zeros(objective.n_rows, n_classes, dtype=torch.float64, requires_grad=True)
    seen = np.zeros(n_classes, dtype=bool)
    named = False
    for term in objective.terms:
        each = term.log_likelihood(raw, raw.new_zeros(0))
        (gradient,) = torch.autograd.grad(each.sum(), raw)  # posterior less prior, by member
        share = 1 / n_classes + gradient.sum(0).numpy() / len(term.sets.indices)
        if np.ptp(share) > 1e-6:  # otherwise the labels do not name classes
            named = True
            seen |= share > 1e-9
    missing = np.flatnonzero(~seen)
    if not named or not len(missing):
        return []
    who = _plural(missing.tolist(), "Class {} is", "The classes {} are")
    return [f"{who} never seen: the labels rule out every member of such a class."]


def _numbers(X: Any, rows: NDArray[np.int64]) -> tuple[Floats, list[str]] | None:
    """These rows of the features that are numbers, and their names; None where X is no table."""
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        import narwhals as nw
        import narwhals.selectors as columns

        numeric = columns.numeric() | columns.boolean()
        frame = nw.from_native(X, eager_only=True).select(numeric.cast(nw.Float64))
        values = frame.to_numpy()[rows] if frame.columns else np.zeros((len(rows), 0))
        names = [repr(name) for name in frame.columns]
    else:
        X = np.asarray(X) if isinstance(X, list | tuple) else X
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if len(shape) != 2 or shape[1] > MOST:
            return None
        if sparse.issparse(X):
            X = X.tocsr()[rows].toarray()
        X = np.asarray(X.detach().cpu() if isinstance(X, Tensor) else X)
        if X.dtype.kind not in "biuf":
            return None
        values = (X if len(X) == len(rows) else X[rows]).astype(np.float64)
        names = [str(j) for j in range(shape[1])]
    some = np.isfinite(values)
    level = np.where(some, values, 0.0).sum(0) / np.maximum(some.sum(0), 1)
    return np.where(some, values, level), names


def _plural(items: Sequence[Any], one: str, many: str) -> str:
    return (one if len(items) == 1 else many).format(listed(items))


def _directions(coefficients: Coefficients, null: Floats, names: Sequence[str]) -> list[str]:
    """What no label depends on, in words: features first, then levels, then the rest."""
    family = coefficients.objective.family
    outputs = range(coefficients.n_outputs)

    def on(lost: Sequence[int]) -> str:
        if len(lost) == len(outputs):
            return ""
        if isinstance(family, Categorical):
            return " on some of the classes"
        return f" on {listed([family.outputs[o] for o in lost])}"

    named: list[Floats] = []

    def lost(feature: int | None) -> list[int]:
        every = [coefficients.direction(o, feature) for o in outputs]
        found = [o for o in outputs if within(null, every[o])]
        named.extend(every[o] for o in found)
        return found

    gone: dict[str, list[str]] = {}
    for j, name in enumerate(names):
        if found := lost(j):
            gone.setdefault(on(found), []).append(name)
    out = [
        f"The labels of these sets say nothing about the effect of "
        f"{_plural(some, 'feature {}', 'the features {}')}{where}: "
        f"{'it cancels' if len(some) == 1 else 'they cancel'} out of every one."
        for where, some in gone.items()
    ]
    if found := lost(None):
        out.append(f"The labels of these sets do not tell the common level{on(found)}.")
    for name, unit in zip(
        family.shared, np.eye(len(coefficients))[coefficients.n_raw :], strict=True
    ):
        if within(null, unit):
            named.append(unit)
            out.append(f"The labels of these sets do not tell the shared {name}.")
    rest = null @ linalg.null_space(np.array(named) @ null, rcond=1e-6) if named else null
    return [*out, _mixture(coefficients, rest, names)] if rest.shape[1] else out


def _mixture(coefficients: Coefficients, null: Floats, names: Sequence[str]) -> str:
    """Directions that combine several effects."""
    family, width = coefficients.objective.family, coefficients.width
    parts = null[: coefficients.n_raw].reshape(coefficients.n_outputs, width, -1)
    effects = np.einsum("fm,omk->fok", coefficients.mix, parts[:, 1:])
    size = np.sqrt((effects**2).sum((1, 2)))
    weight = {f"feature {name}": float(v) for name, v in zip(names, size, strict=True)}
    weight["the common level"] = math.sqrt(float((parts[:, 0] ** 2).sum()))
    own = np.linalg.norm(null[coefficients.n_raw :], axis=1)
    weight.update((f"the shared {n}", v) for n, v in zip(family.shared, own, strict=True))
    top = max(weight.values())
    strong = sorted((k for k, v in weight.items() if v > 0.1 * top), key=lambda k: -weight[k])
    n_sets, n = coefficients.objective.n_sets, len(coefficients)
    few = f" ({n_sets} sets for {n} coefficients)" if n_sets < n else ""
    many = "a combination" if null.shape[1] == 1 else f"{null.shape[1]} combinations"
    made = f"made mostly of {listed(strong)}" if len(strong) <= 8 else "made of many features"
    return f"The labels of these sets leave {many} of effects open{few}, {made}."
