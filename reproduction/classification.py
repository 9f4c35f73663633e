"""Classes from pairs and triplets: the paper's tables `binary` and `multiclass`.

Each trial splits the rows into 60 % training, 20 % validation and 20 % test; features are
standardised by the training part. Two random pairs and three random triplets are seen per training
row. The paper does not name its model: here it is a perceptron with two hidden layers, and boosting
in columns of its own. Figures are accuracies on the test part in %, after the best renaming of
classes.

In "protocol" a network learns for 20 epochs with the paper's batches of 128 sets and constant
learning rate, and does not look at the validation part. In "best" several networks per trial learn
for longer along a cosine, with dropout and weight decay of their own, and one of them sees normal
scores of the ranks of each feature; of each the weights with the least loss of *sets* of the
validation part are kept, and of the networks the mean of those that together lose least. No single
label of that part is used, save by full supervision. Baselines of metric learning are one network
each. Boosting, which the paper does not have here, is run in "best" only; such sets stop it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

import setwise as sw
from reproduction.baselines import METHODS, Loss, Method, kmeans, nearest
from reproduction.batched import (
    HeldOut,
    Networks,
    Perceptrons,
    Plan,
    Sample,
    fit,
    predict,
)
from reproduction.paper import BOOSTED
from reproduction.runner import Cell, Result

__all__ = ["methods", "work_many"]

Ints = NDArray[np.int64]
HIDDEN = (128, 128)
PROTOCOL = Plan(epochs=20)
BEST = Plan(epochs=25, rate=3e-3, cosine=True)  # of two classes
SEVERAL, LONGEST = 40, 25_000  # epochs of more classes, unless they are so many steps
BEGIN = 20  # epochs that find an embedding to begin with
STEPS = 1000  # of an epoch at most in "best": batches grow with the data
NETWORKS = (  # of a trial: dropout, decay, and whether it sees ranks; see decision 16
    (0.1, 0.03, False),
    (0.2, 0.3, False),
    (0.4, 0.3, False),
    (0.6, 1.0, False),
    (0.0, 0.03, True),
    (0.6, 1.0, True),
)
BASELINE = ((0.1, 0.3, False),)
BEGINNINGS = 40  # of K-means, when it is to find classes to begin with
WATCHED = 3  # trials whose accuracy is noted along the way
BOOSTING: dict[str, Any] = {
    "n_estimators": 1000,
    "early_stopping_rounds": 50,
    "learning_rate": 0.1,
}


def methods() -> tuple[str, ...]:
    """The columns of the tables."""
    boosted = (name + BOOSTED for name in ("similarity_mle", "triplet_mle", "supervised"))
    return ("kmeans", *METHODS, *boosted)


class Trials(NamedTuple):
    """The rows of several trials one after another, each as training, validation and test part."""

    table: Tensor  # (trials · rows, features), and as many rows again as normal scores of ranks
    z: Ints  # (trials, rows)
    cuts: tuple[int, int]  # where the validation and the test part begin
    classes: int

    def rows(self, begin: int, end: int) -> Tensor:
        """The numbers in `table` of rows `begin` to `end` of each trial, (trials, end − begin)."""
        count, rows = self.z.shape
        first: Tensor = torch.arange(count, device=self.table.device)[:, None] * rows
        return first + torch.arange(begin, end, device=self.table.device)


@lru_cache(maxsize=2)
def _data(name: str) -> tuple[Any, Ints, int, bool]:
    data = sw.datasets.load(name)
    assert data.z is not None
    return data.X, data.z, len(data.classes), data.task == "text"


@lru_cache(maxsize=1)
def prepare(name: str, trials: tuple[int, ...], device: str) -> Trials:
    """The data of these trials, on the device."""
    X, z, classes, text = _data(name)
    a, b = int(0.6 * len(z)), int(0.8 * len(z))
    orders = [np.random.default_rng(trial).permutation(len(z)) for trial in trials]
    tables = []
    whole = None if text else torch.from_numpy(np.asarray(X, np.float64)).to(device)
    for order in orders:
        if whole is None:
            parts = sw.datasets.text_features(X[order[:a]], X[order[a:]])
            x = torch.from_numpy(np.concatenate(parts)).to(device)
        else:
            x = whole[torch.from_numpy(order).to(device)]
        tables.append(_standardised(x, a))
    tables += [_standardised(_ranks(x, a), a) for x in tables]
    return Trials(torch.cat(tables), z[np.stack(orders)], (a, b), classes)


def _standardised(x: Tensor, known: int) -> Tensor:
    scale = x[:known].std(0, correction=0)
    return ((x - x[:known].mean(0)) / torch.where(scale > 0, scale, 1.0)).float()


def _ranks(x: Tensor, known: int) -> Tensor:
    """The normal quantile of each value's place among the first `known` of its column."""
    columns = x.T.contiguous()
    ascending = columns[:, :known].sort().values
    below = torch.searchsorted(ascending, columns)
    upto = torch.searchsorted(ascending, columns, right=True)
    place = (below + upto).clamp(1, 2 * known - 1).double() / (2 * known)
    scores: Tensor = torch.special.ndtri(place)
    return scores.T


def observe(data: Trials, method: Method, part: tuple[int, int], seeds: Sequence[Any]) -> Sample:
    """Sets of the rows of a part, counted from its beginning, and what is seen of them."""
    begin, end = part
    size, count = method.size, end - begin
    members, seen = [], []
    for z, seed in zip(data.z[:, begin:end], seeds, strict=True):
        sets = sw.Sets(np.arange(count)[:, None])
        if size > 1:
            rng = np.random.default_rng(seed)
            sets = sw.Sets.random(count, size * count, size, replace=True, seed=rng)
        members.append(sets.indices.reshape(-1, size))
        # a row that is drawn twice shows one image, and one label, twice
        seen.append(np.asarray(method.aggregate.observe(z[sets.indices], sets.flat).y))
    device = data.table.device
    y = torch.from_numpy(np.stack(seen)).float()
    return Sample(torch.from_numpy(np.stack(members)).to(device), y.to(device))


def _seed(trial: int, method: Method, part: int) -> list[int]:
    """Methods that look at sets of one size see the same sets."""
    return [trial, method.size, part]


def work_many(cells: Sequence[Cell], device: str = "cpu") -> list[Result]:
    """The results of cells that differ in the trial only; their networks learn together."""
    begin = time.perf_counter()
    dataset, method, setting = common(cells)
    trials = tuple(cell.trial for cell in cells)
    data = prepare(dataset, trials, device)
    a, b = data.cuts
    z_test = data.z[:, b:]
    history = History(z_test, trials)
    if method == "kmeans":
        known, new = data.table[data.rows(0, a)], data.table[data.rows(b, data.z.shape[1])]
        found = cluster(known, new, data.classes, trials)
    elif method.endswith(BOOSTED):
        found = _boost(data, METHODS[method.removesuffix(BOOSTED)], trials)
    else:
        found = _learn(data, METHODS[method], setting, trials, history)
    return as_results(cells, z_test, found, time.perf_counter() - begin, history)


class Found(NamedTuple):
    """What was found in one trial."""

    guesses: Ints
    note: str = ""
    held_out: float | None = None  # the mean loss of the sets that it was chosen by


class History:
    """The accuracy of the first trials along the way, which nothing is chosen by."""

    def __init__(self, z_test: Ints, trials: Sequence[int]) -> None:
        self.of = {place: z_test[place] for place, trial in enumerate(trials) if trial < WATCHED}
        self.points: dict[int, list[tuple[int, float]]] = {place: [] for place in self.of}

    def watch(self, method: Method, outputs: Callable[[], Tensor]) -> Callable[[int], None] | None:
        """For `fit`: notes what outputs (trials, rows, classes) of the test part are worth then.

        None where no trial is watched, and where outputs are not classes.
        """

        def note(epoch: int) -> None:
            guesses = outputs().argmax(-1).cpu().numpy()
            for place, z in self.of.items():
                accuracy = 100 * sw.metrics.permutation_accuracy(z, guesses[place])
                self.points[place].append((epoch, round(accuracy, 2)))

        return note if self.of and not method.embeds else None


def as_results(
    cells: Sequence[Cell],
    z_test: Ints,
    found: Sequence[Found],
    seconds: float,
    history: History,
) -> list[Result]:
    """The results of a group that took so many seconds: accuracies in %."""
    return [
        Result(
            **asdict(cell),
            value=100 * sw.metrics.permutation_accuracy(z_test[place], one.guesses),
            seconds=seconds / len(cells),
            held_out=one.held_out,
            note=one.note,
            history=tuple(history.points.get(place, ())),
        )
        for place, (cell, one) in enumerate(zip(cells, found, strict=True))
    ]


def common(cells: Sequence[Cell]) -> tuple[str, str, str]:
    """What the cells of a group share."""
    kinds = {(cell.dataset, cell.method, cell.setting) for cell in cells}
    if len(kinds) != 1:
        raise ValueError(f"a group's cells differ in the trial only; these are of {sorted(kinds)}")
    return kinds.pop()


def cluster(known: Tensor, new: Tensor, classes: int, trials: Sequence[int]) -> list[Found]:
    """The nearest K-means centre of each new row; the centres are those of the known rows."""
    return [
        Found(nearest(x, kmeans(old, classes, seed)).cpu().numpy())
        for old, x, seed in zip(known, new, trials, strict=True)
    ]


# ---- boosting


def _boost(data: Trials, method: Method, trials: Sequence[int]) -> list[Found]:
    """The classes that boosting gives to the test part; held-out sets stop it."""
    a, b = data.cuts
    out = []
    for t, trial in enumerate(trials):
        x = data.table[data.rows(0, data.z.shape[1])[t]].double().cpu().numpy()
        one = data._replace(z=data.z[t : t + 1])
        seen = []
        for part, bounds in enumerate(((0, a), (a, b))):
            sample = observe(one, method, bounds, [_seed(trial, method, part)])
            members, y = sample.members[0].cpu().numpy(), sample.y[0].cpu().numpy()
            flat = sw.Sets(np.arange(members.size).reshape(members.shape))
            seen.append(sw.Observations(method.aggregate, flat, y).over(members.reshape(-1)))
        learner = sw.LightGBM(**BOOSTING)
        est = sw.AggregateClassifier(
            data.classes, learner, validation=None, random_state=trial, verbose=0
        )
        est.fit(x[:a], seen[0], eval=(x[a:b], seen[1]))
        valid = [entry["valid"] for entry in est.history_]
        note = f"{1 + np.argmax(valid)} rounds"
        out.append(Found(np.asarray(est.predict(x[b:]), np.int64), note, -max(valid)))
    return out


# ---- networks


def _learn(
    data: Trials, method: Method, setting: str, trials: Sequence[int], history: History
) -> list[Found]:
    """The classes that networks give to the test part of each trial."""
    best = setting == "best"
    a, b = data.cuts
    kinds = BASELINE if method.embeds else NETWORKS
    restarts = len(kinds) if best else 1
    dropout, decay, ranks = zip(*kinds, strict=True)
    seeds = [1000 * trial + r for trial in trials for r in range(restarts)]

    def rows(begin: int, end: int) -> Tensor:
        second = torch.tensor(ranks if best else False, device=data.table.device).expand(restarts)
        view = second.repeat(len(trials))[:, None] * (len(data.table) // 2)
        return data.rows(begin, end).repeat_interleave(restarts, 0) + view

    def sets(begin: int, end: int, part: int) -> Sample:
        seen = observe(data, method, (begin, end), [_seed(t, method, part) for t in trials])
        repeated = (t.repeat_interleave(restarts, 0) for t in (seen.members, seen.y))
        return Sample(*repeated)

    train = sets(0, a, 0)
    train = Sample(train.members + rows(0, 1)[:, :, None], train.y)
    held_out = HeldOut(rows(a, b), sets(a, b, 1)) if best else None
    plan = PROTOCOL
    if best:
        batch = max(BEST.batch, train.y.shape[1] // STEPS)
        longest = max(BEST.epochs, LONGEST * batch // train.y.shape[1])
        several = data.classes > 2 and not method.embeds
        epochs = min(SEVERAL, longest) if several else BEST.epochs
        plan = replace(BEST, epochs=epochs, batch=batch, decay=decay * len(trials))
    head = (data.classes + 1) * method.head
    sizes = [data.table.shape[1], *HIDDEN, data.classes]
    model = Perceptrons(sizes, seeds, head, dropout if best else ()).to(data.table.device)
    if best and method.begin is not None and data.classes > 2:
        drop = model.drop.clone()
        model.drop.zero_()
        fit(model, method.begin, data.table, train, replace(plan, epochs=BEGIN), seeds)
        model.drop.copy_(drop)
        classes_from_clusters(model, predict(model, data.table, rows(0, a)), seeds)

    def test() -> Tensor:
        return predict(model, data.table, rows(b, data.z.shape[1]))

    watch = history.watch(method, lambda: test()[::restarts])  # one network of each trial
    score = fit(model, method.loss, data.table, train, plan, seeds, held_out, watch)
    out = test()
    if method.embeds:
        known = predict(model, data.table, rows(0, a))
        if method.embeds == "unit":
            known, out = F.normalize(known, dim=-1), F.normalize(out, dim=-1)
        return cluster(known, out, data.classes, trials)
    if held_out is None:
        return [Found(guesses) for guesses in out.argmax(-1).cpu().numpy()]
    chosen = predict(model, data.table, rows(a, b)).softmax(-1)
    found = []
    for t in range(len(trials)):
        part = slice(t * restarts, (t + 1) * restarts)
        seen = Sample(held_out.sample.members[t * restarts], held_out.sample.y[t * restarts])
        found.append(average(chosen[part], out[part].softmax(-1), score[part], method.loss, seen))
    return found


def classes_from_clusters(model: Networks, out: Tensor, seeds: Sequence[int]) -> None:
    """Turns embeddings into logits −4 |u − c|², less 4 |u|², for the K-means centres c of them."""
    with torch.no_grad():
        for r, (embedded, seed) in enumerate(zip(out, seeds, strict=True)):
            centres = kmeans(embedded, out.shape[-1], seed, beginnings=BEGINNINGS, narrow=10)
            weight, bias = model.layers[-2][r], model.layers[-1][r]
            weight.copy_(8 * weight @ centres.T)
            bias.copy_(8 * bias @ centres.T - 4 * centres.square().sum(1))


def agreeing(some: Tensor, others: Tensor) -> Tensor:
    """The columns of `others`, (rows, classes), in the order that agrees with those of `some`."""
    agree = (some.T @ others).cpu().numpy()
    return torch.from_numpy(linear_sum_assignment(agree, maximize=True)[1]).to(others.device)


def average(held: Tensor, test: Tensor, score: Tensor, loss: Loss, seen: Sample) -> Found:
    """The class by the mean of the networks that together lose least of the sets `seen`.

    `held` and `test` are probabilities (networks, rows, classes) of the rows of those sets and of
    the rows to tell, `score` the loss of each network alone. They are tried from the best on, their
    classes renamed to agree with those before: no label is needed for that.
    """
    order = score.argsort().tolist()
    sums = held[order[0]].clone(), test[order[0]].clone()
    best, used = float(score[order[0]]), 1
    for r in order[1:]:
        names = agreeing(sums[0], held[r])
        new = sums[0] + held[r][:, names], sums[1] + test[r][:, names]
        logits = (new[0] / (used + 1)).clamp_min(1e-30).log()
        here = float(loss(logits[seen.members][None], seen.y[None], score))
        if here < best:
            sums, best, used = new, here, used + 1
    note = f"mean of {used} of {len(order)} networks"
    return Found(sums[1].argmax(-1).cpu().numpy(), note, best)
