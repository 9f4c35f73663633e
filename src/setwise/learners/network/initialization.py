"""Where training of a network begins, when classes can be swapped or collapse."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor, nn

from setwise.learners.base import Task
from setwise.learners.network.modules import RawNetwork, Rows, predict
from setwise.learners.network.training import Settings, Training, cosine, held_out, warm_up
from setwise.objective import HeldOut, Objective
from setwise.objective.autodiff import AutodiffTerm
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["begin"]

Make = Callable[[int], RawNetwork]
PILOT = (300, 1000)  # steps after which random starts are compared, at least and at most
HELD_OUT = 0.1  # share of the sets by which random starts are compared
EMPTY = 0.1  # a class is empty where it has less than this part of an equal share
EPOCHS, STEPS = 20, (1000, 3000)  # that find an embedding: by epochs, within these steps
RATE = 3.0  # how much faster an embedding is learned than classes
BEGINNINGS = 20  # of K-means
CLUSTERED = 20_000  # rows at most that are cut into clusters
SHARPNESS = 4.0  # of classes that begin as clusters: their logits are −4 |u − c|²


def begin(
    make: Make, task: Task, rows: Rows, settings: Settings, effort: float = 1.0
) -> RawNetwork:
    """An initial network; `make(i)` gives a new one, `effort` is the share of the steps to spend.

    Where labels only say which rows are alike, and there are three classes or more, every random
    start ends with some classes mixed up: there training starts from the clusters of an embedding.
    Otherwise it takes the best of several random starts.
    """
    pairs = _alike(task.objective)
    if pairs is not None:
        network = make(0)
        last = _last_layer(network, rows)
        if last is not None:
            with suppress(FloatingPointError):  # a random beginning may still do
                _embed(network, pairs, task, rows, settings, effort)
                used = np.unique(pairs[0])
                found = _classes_from_clusters(network, last, used, rows, task.seed)
                if settings.peers.any(found):
                    return network
    return _best(make, task, rows, settings)


# ---- an embedding, cut into clusters

Pairs = tuple[NDArray[np.int64], NDArray[np.bool_]]


def _alike(objective: Objective) -> Pairs | None:
    """Pairs of rows, and whether they are alike; None for other kinds of sets."""
    if not objective.of_classes or objective.n_outputs < 3:
        return None
    seen = [o if o.weight is None else o.take(o.weight > 0) for o in objective.observations]
    found = [o.aggregate.alike(o.sets, np.asarray(o.y)) for o in seen]
    known = [pairs for pairs in found if pairs is not None]
    if len(known) < len(found):
        return None
    rows, alike = (np.concatenate(parts) for parts in zip(*known, strict=True))
    return (rows, alike) if len(rows) else None


def _last_layer(network: RawNetwork, rows: Rows) -> nn.Linear | None:
    """The linear layer whose outputs are the network's; None for other modules."""
    layers = [m for m in network.body.modules() if isinstance(m, nn.Linear)]
    if not layers or layers[-1].bias is None or layers[-1].out_features != len(network.base):
        return None
    seen: list[Tensor] = []
    handle = layers[-1].register_forward_hook(lambda layer, given, out: seen.append(out))
    with torch.no_grad():
        out = network.eval().compute(rows.take(np.arange(min(len(rows), 64)))) - network.base
    handle.remove()
    same = len(seen) == 1 and seen[0].shape == out.shape
    return layers[-1] if same and torch.allclose(seen[0].to(out), out, atol=1e-4) else None


def _classes_from_clusters(
    network: RawNetwork, last: nn.Linear, used: NDArray[np.int64], rows: Rows, seed: int
) -> bool:
    """Turns the embedding of the last layer into logits; False where it has too few clusters."""
    k = len(network.base)
    used = np.random.default_rng(seed).permutation(used)[:CLUSTERED]
    out = predict(network.eval().compute, rows, used) - network.base
    table = out.cpu().numpy()
    if len(np.unique(table.round(6), axis=0)) < k:
        return False
    clusters = KMeans(k, n_init=BEGINNINGS, random_state=seed % 2**32).fit(table)
    centres = torch.from_numpy(clusters.cluster_centers_).to(last.weight)
    turn = 2 * SHARPNESS * centres
    with torch.no_grad():
        last.weight.copy_(turn @ last.weight)
        last.bias.copy_(turn @ last.bias - SHARPNESS * centres.square().sum(1))
    return True


class _Likeness(AutodiffTerm):
    """In place of a likelihood: brings rows that are alike together, and others 1 apart.

    Hadsell, Chopra & LeCun, "Dimensionality reduction by learning an invariant mapping", CVPR 2006.
    """

    def at_members(self, members: Tensor, shared: Tensor) -> Tensor:
        u, v = members.unflatten(0, (-1, 2)).unbind(1)
        square = (u - v).square().sum(1)
        apart = (1 - (square + 1e-12).sqrt()).relu().square()  # no derivative of √ at 0
        alike = torch.as_tensor(self.observations.y).to(square)
        return -torch.lerp(apart, square, alike)


def _embed(
    network: RawNetwork, pairs: Pairs, task: Task, rows: Rows, settings: Settings, effort: float
) -> None:
    """Trains the network's outputs to be an embedding of the rows."""
    members, alike = pairs
    whole = task.objective
    pretended = Observations._trusted(whole.observations[0].aggregate, Sets(members), alike, None)
    objective = whole.only([_Likeness(whole.family, pretended, whole.n_rows)])
    n_batches = math.ceil(len(members) / settings.batch_size)
    total = int(effort * np.clip(EPOCHS * n_batches, *STEPS))
    fast = dataclasses.replace(settings, lr=RATE * settings.lr, schedule=cosine)
    training = Training(network, task, rows, fast, task.seed)
    with task.progress.running("Network: embedding", math.ceil(total / n_batches)):
        while training.step < total:
            training.run_epoch(objective, total)
            task.progress.advance()
    training.weights.release()


# ---- several random starts


def _best(make: Make, task: Task, rows: Rows, settings: Settings) -> RawNetwork:
    """Of several networks, trained for a short while, the one that suits held-out sets best.

    Where classes can be swapped, training may end with two classes in one and another empty, which
    the likelihood of held-out sets shows early. If the best one leaves a class empty, as many are
    tried again.
    """
    objective, held = task.objective, held_out(task, make(0))
    if held is None:
        objective, compared = _split(objective, task.seed)
        numbers, compared = compared.batch()
        held = rows, numbers, HeldOut(compared, task.intercept)
    total = settings.epochs * math.ceil(objective.n_sets / settings.batch_size)
    steps = min(total, max(total // 10, PILOT[0]), PILOT[1])
    pilot = dataclasses.replace(settings, schedule=warm_up)
    best, full = make(0), False
    with task.progress.running("Network: beginnings", task.restarts):
        for number in range(2 * task.restarts):
            if number >= task.restarts and full:
                break
            training = Training(make(number), task, rows, pilot, task.seed + number)
            while training.step < steps:
                training.run_epoch(objective, steps)
            score, better, _ = training.judge(*held)
            if better and math.isfinite(score):
                best = training.network
                usage = predict(best.compute, held[0], held[1]).softmax(1).mean(0)
                full = not objective.of_classes or bool((usage > EMPTY / len(usage)).all())
                full = settings.peers.any(full)
            task.progress.advance()
    return best


def _split(objective: Objective, seed: int) -> tuple[Objective, Objective]:
    """Most sets to learn from, and some to compare by; all for both where there are few."""
    if HELD_OUT * objective.n_sets < 20:
        return objective, objective
    rng = np.random.default_rng(seed)
    learn, compare = [], []
    for term in objective.terms:
        order = rng.permutation(len(term.sets))
        cut = int(HELD_OUT * len(order))
        learn.append(term.take(order[cut:]))
        compare.append(term.take(order[:cut]))
    return objective.only(learn), objective.only(compare)
