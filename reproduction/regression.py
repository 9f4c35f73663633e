"""Regression from means and ranks: the paper's tables `uci`, `varying-k` and `regression`.

Each trial splits the rows into 60 % training, 20 % validation and 20 % test. Features are
standardised and targets centred by the training part. Observations of the training part: as many
means of four as the whole data set has rows, ten times as many ranks; of the validation part in
proportion. The validation part is used to stop boosting, by observations of the same kind. Errors
are mean squared errors on the test part; for ranks the variance of the error, since ranks leave a
shift open.

The setting "protocol" is the paper's: a likelihood that takes sets as independent, linear models by
plain gradient descent, LightGBM with 100 rounds. Ranks have no unit, so the paper learns from them
with a fixed scale of the targets, which it does not tell. Here the scale is the one of `SCALES`, in
units of the standard deviation of the targets, with the smallest error on the validation part. In
"best":

- Means of sets that share rows are not independent: a row has one target, in whichever sets it is.
  Their joint likelihood is used, as estimators do by default (`overlap="auto"`). The members of a
  set are distinct for that. Since there are more means than rows, it tells the targets of nearly
  all rows; no label is looked at for that.
- Linear models are solved. Boosting runs with more rounds and stops on held-out sets; up to 5000
  rows CatBoost and LightGBM are tried, and the one with the larger held-out likelihood is taken.
  Then the validation part's *sets* join the training part for a last fit.
- The labels of the validation part fix the unit of predictions from ranks, which ranks cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

import setwise as sw
from reproduction.runner import Cell

__all__ = ["METHODS", "SIZES", "methods", "work"]

Array = NDArray[np.float64]
TRAIN, VALID = 0.6, 0.2  # shares of the rows
SIZES = (2, 4, 8, 16)
SCALES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)  # of ranks in "protocol"
SMALL = 5000  # training rows up to which CatBoost is tried beside LightGBM
METHODS = tuple(
    f"{kind}_{model}"
    for kind in ("mean_baseline", "mean_mle", "rank_gumbel", "rank_gaussian", "supervised")
    for model in ("lr", "gbm")
)
VARYING = tuple(f"{model}_k{size}" for model in ("lr", "gbm") for size in SIZES)


def methods(table: str) -> tuple[str, ...]:
    """The columns of a table."""
    return VARYING if table == "varying-k" else METHODS


class Split(NamedTuple):
    """Standardised features and centred targets of the three parts."""

    X: Array
    z: Array
    X_valid: Array
    z_valid: Array
    X_test: Array
    z_test: Array


@lru_cache(maxsize=4)
def _data(name: str) -> tuple[Array, Array]:
    data = sw.datasets.load(name)
    return np.asarray(data.X, np.float64), np.asarray(data.z, np.float64)


def split(X: Array, z: Array, trial: int) -> Split:
    """The parts of one trial."""
    order = np.random.default_rng(trial).permutation(len(z))
    a, b = int(TRAIN * len(z)), int((TRAIN + VALID) * len(z))
    train, valid, test = order[:a], order[a:b], order[b:]
    mean, scale = X[train].mean(0), X[train].std(0)
    X = (X - mean) / np.where(scale > 0, scale, 1.0)
    z = z - z[train].mean()
    return Split(X[train], z[train], X[valid], z[valid], X[test], z[test])


def work(cell: Cell) -> tuple[float, str]:
    """The error of one cell."""
    part = split(*_data(cell.dataset), cell.trial)
    return one(part, cell.method, cell.setting, cell.trial)


def one(part: Split, method: str, setting: str, seed: int) -> tuple[float, str]:
    """The error of one method on one split, and a note."""
    kind, model = method.rsplit("_", 1)
    size = 4
    if model.startswith("k"):  # lr_k8: means of 8
        kind, model, size = "mean_mle", kind, int(model[1:])
    rng = np.random.default_rng([seed, 1])
    n = len(part.z)
    family: sw.distributions.Family = sw.Normal()
    note = ""
    joint = kind == "mean_mle" and setting == "best"

    def per_row(number: int, z: Array) -> int:  # of the whole data set
        return round(number * len(z) / TRAIN)

    def observe(z: Array, rng: np.random.Generator) -> sw.Observations:
        if kind == "supervised":
            return sw.Direct().observe(z, np.arange(len(z))[:, None])
        if kind.startswith("mean"):
            drawn = sw.Sets.random(len(z), per_row(1, z), size, replace=not joint, seed=rng)
            return sw.Mean().observe(z[drawn.indices], drawn.flat).over(drawn.indices)
        return sw.Rank().observe(z, _distinct_pairs(z, per_row(10, z), rng))

    observed, held_out = observe(part.z, rng), observe(part.z_valid, rng)
    if joint:
        seen = len(np.unique(observed.sets.indices))
        note = f"joint likelihood of means over {seen} of {n} rows"
    if kind == "mean_baseline":
        observed, held_out = (_give_to_members(o) for o in (observed, held_out))
    if not kind.startswith("rank"):
        predict = _fit(part, observed, held_out, family, model, setting, seed)
        return float(np.mean((predict(part.X_test) - part.z_test) ** 2)), note
    if kind == "rank_gumbel":
        family = sw.Gumbel()
    if setting == "protocol":
        predict, note = _best_scale(part, observed, held_out, family, model, seed)
        return float(np.var(predict(part.X_test) - part.z_test)), note
    predict = _fit(part, observed, held_out, family, model, setting, seed)
    slope = _slope(predict(part.X_valid), part.z_valid)
    error = np.var(slope * predict(part.X_test) - part.z_test)
    return float(error), f"unit {slope:.3g} from the validation part"


def _best_scale(
    part: Split,
    observed: sw.Observations,
    held_out: sw.Observations,
    family: sw.distributions.Family,
    model: str,
    seed: int,
) -> tuple[Callable[[Array], Array], str]:
    """Predictions with the scale that suits the labels of the validation part best, and a note.

    Boosting gives the same at every scale, in units of it: one fit will do. Gradient descent with a
    fixed rate does not.
    """
    deviation = float(part.z_valid.std())

    def at_scale(scale: float) -> Callable[[Array], Array]:
        if model == "lr":
            weight, bias = _sgd(part.X, observed, family, seed, scale)
            return lambda X: X @ weight + bias
        return lambda X: scale * boosted(X)

    if model == "gbm":
        boosted = _fit(part, observed, held_out, family, model, "protocol", seed)

    def error(candidate: tuple[float, Callable[[Array], Array]]) -> float:
        found = float(np.var(candidate[1](part.X_valid) - part.z_valid))
        return found if math.isfinite(found) else math.inf  # descent may diverge at a small scale

    with np.errstate(over="ignore", invalid="ignore"):
        share, predict = min(((s, at_scale(s * deviation)) for s in SCALES), key=error)
    return predict, f"scale {share * deviation:.3g} ({share:g} of the standard deviation)"


def _distinct_pairs(z: Array, number: int, rng: np.random.Generator) -> sw.Sets:
    """Random pairs of rows whose targets differ: a tie is no rank."""
    pairs: list[Array] = []
    found = 0
    while found < number:
        drawn = rng.integers(0, len(z), (number, 2))
        drawn = drawn[z[drawn[:, 0]] != z[drawn[:, 1]]]
        pairs.append(drawn)
        found += len(drawn)
    return sw.Sets(np.concatenate(pairs)[:number])


def _averages(sets: sw.Sets, rows: int) -> sparse.csr_array:
    """The matrix that maps the targets of the rows to the mean of each set."""
    share = np.repeat(1 / sets.sizes, sets.sizes)
    return sparse.csr_array((share, sets.indices, sets.offsets), (len(sets), rows))


def _give_to_members(o: sw.Observations) -> sw.Observations:
    """The naive baseline: every member gets its set's label as if it were its own."""
    assert o.y is not None
    labels = np.repeat(o.y, o.sets.sizes)
    return sw.Observations(sw.Direct(), o.sets.indices[:, None], labels)


def _slope(guess: Array, z: Array) -> float:
    """The unit in which the guess comes closest to the targets, shift aside; not negative."""
    guess = guess - guess.mean()
    size = float(guess @ guess)
    return max(float(guess @ (z - z.mean())) / size, 0.0) if size > 0 else 0.0


def _fit(
    part: Split,
    observed: sw.Observations,
    held_out: sw.Observations,
    family: sw.distributions.Family,
    model: str,
    setting: str,
    seed: int,
) -> Any:
    if model == "lr" and setting == "protocol":
        weight, bias = _sgd(part.X, observed, family, seed, 1.0)
        return lambda X: X @ weight + bias
    if model == "lr":
        return _train(part, [observed], family, sw.Linear(alpha=1e-3), seed).predict
    if setting == "protocol":
        learner: Any = sw.LightGBM(n_estimators=100, early_stopping_rounds=20)
        return _train(
            part, [observed], family, learner, seed, held_out, overlap="independent"
        ).predict
    found = []
    direct = not isinstance(observed.aggregate, sw.Rank)  # overlapping means tell targets
    small = direct and len(part.X) <= SMALL
    rate = 0.05 if small else 0.1 if direct else 0.2
    for make in (sw.CatBoost, sw.LightGBM) if small else (sw.LightGBM,):
        learner = make(n_estimators=2000, learning_rate=rate, early_stopping_rounds=50)
        est = _train(part, [observed], family, learner, seed, held_out)
        best = int(np.argmax([entry["valid"] for entry in est.history_]))
        found.append((est.history_[best]["valid"], make, best + 1))
    # The number of rounds is known now: the validation part joins the training part.
    _, make, rounds = max(found, key=lambda f: f[0])
    both = part._replace(X=np.vstack([part.X, part.X_valid]))
    members = held_out.sets.indices.reshape(len(held_out), -1) + len(part.X)
    moved = sw.Observations(held_out.aggregate, members, held_out.y)
    learner = make(n_estimators=rounds, learning_rate=rate)
    return _train(both, [observed, moved], family, learner, seed).predict


def _train(
    part: Split,
    observed: list[sw.Observations],
    family: sw.distributions.Family,
    learner: Any,
    seed: int,
    held_out: sw.Observations | None = None,
    overlap: str = "auto",
) -> sw.AggregateRegressor:
    est = sw.AggregateRegressor(
        family, learner, overlap=overlap, validation=None, random_state=seed, verbose=0
    )
    est.fit(part.X, observed, eval=None if held_out is None else (part.X_valid, held_out))
    return est


def _sgd(
    X: Array, observed: sw.Observations, family: sw.distributions.Family, seed: int, scale: float
) -> tuple[Array, float]:
    """The paper's schedule: plain gradient descent, rate 0.1, 256 sets a batch, 20 epochs.

    Each observation depends on one number s = Σ aₖ f(xₖ) of its set, so that a linear f makes it a
    generalised linear model of u = Σ aₖxₖ. The loss is the mean over a batch.
    """
    sets, y = observed.sets, observed.y
    assert y is not None
    if isinstance(observed.aggregate, sw.Rank):
        signs = np.tile([1.0, -1.0], len(sets))
        A = sparse.csr_array((signs, sets.indices, sets.offsets), (len(sets), len(X)))
    else:
        A = _averages(sets, len(X))
    U, c, squares = A @ X, A @ np.ones(len(X)), (A * A) @ np.ones(len(X))
    weight, bias = np.zeros(X.shape[1]), 0.0
    rng = np.random.default_rng(seed)
    for _ in range(20):
        order = rng.permutation(len(y))
        for batch in np.array_split(order, math.ceil(len(y) / 256)):
            u, seen = U[batch], y[batch]
            s = u @ weight + c[batch] * bias
            if isinstance(observed.aggregate, sw.Rank):
                g = _rank_slope(family, s / scale, seen) / scale
            else:
                g = (s - seen) / squares[batch] / scale**2
            weight = weight - 0.1 / len(batch) * (g @ u)
            bias = bias - 0.1 / len(batch) * float(g @ c[batch])
    return weight, bias


def _rank_slope(family: sw.distributions.Family, s: Array, y: Array) -> Array:
    """The derivative of −log p(y) in s = loc₁ − loc₂ at a scale of 1.

    p is Φ(±s/√2) for Normal and 1/(1 + exp(∓s)) for Gumbel targets.
    """
    sign = 2 * y - 1
    if isinstance(family, sw.Gumbel):
        slope: Array = -sign * special.expit(-sign * s)
        return slope
    at = sign * s / math.sqrt(2)
    slope = -sign * np.exp(-0.5 * at**2 - special.log_ndtr(at)) / math.sqrt(4 * math.pi)
    return slope
