"""Where to begin the training of a network, where classes can be swapped or collapse."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor, nn

from setwise.learners.base import Task
from setwise.learners.network.modules import RawNetwork, Rows
from setwise.learners.network.optimizer import Weights
from setwise.learners.network.training import PREDICT, Settings, Training, cosine, held_out, warm_up
from setwise.objective import Batch, Objective

__all__ = ["begin"]

Make = Callable[[int], RawNetwork]
PILOT = (300, 1000)  # steps by which beginnings are compared, at least and at most
HELD_OUT = 0.1  # share of the sets that compares beginnings
EMPTY = 0.1  # a class is empty where it has less than this part of an equal share
EPOCHS, STEPS = 20, (1000, 3000)  # that find an embedding: by epochs, within these steps
RATE = 3.0  # how much faster an embedding is learned than classes
BEGINNINGS = 20  # of K-means
CLUSTERED = 20_000  # rows at most that are cut into clusters
SHARPNESS = 4.0  # of classes that begin as clusters: their logits are −4 |u − c|²


def begin(make: Make, task: Task, rows: Rows, settings: Settings) -> RawNetwork:
    """A network to begin with; `make` gives new ones by number.

    Two classes are soon told apart, and so are a few where y says which. Where all that is known
    is which rows are alike, random beginnings of many classes all end with some of them mixed up:
    there the clusters of an embedding are the classes to begin with.
    """
    pairs = _alike(task.objective)
    if pairs is not None:
        network = make(0)
        last = _last_layer(network, rows)
        if last is not None:
            _embed(network, pairs, task, rows, settings)
            if _classes_from_clusters(network, last, np.unique(pairs[0]), rows, task.seed):
                return network
    return _best(make, task, rows, settings)


# ---- an embedding, cut into clusters

Pairs = tuple[NDArray[np.int64], NDArray[np.bool_]]


def _alike(objective: Objective) -> Pairs | None:
    """Pairs of rows, and whether they are alike; None where the sets say something else."""
    if not objective.of_classes or objective.n_outputs < 3:
        return None
    seen = [o if o.weight is None else o.take(o.weight > 0) for o in objective.observations]
    found = [o.aggregate.alike(o.sets, np.asarray(o.y)) for o in seen]
    told = [pairs for pairs in found if pairs is not None]
    if len(told) < len(found):
        return None
    rows, alike = (np.concatenate(parts) for parts in zip(*told, strict=True))
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
    network.eval()
    with torch.no_grad():
        parts = np.array_split(used, math.ceil(len(used) / PREDICT))
        out = torch.cat([network.compute(rows.take(part)) - network.base for part in parts])
        table = out.double().cpu().numpy()
        if not np.isfinite(table).all() or len(np.unique(table.round(6), axis=0)) < k:
            return False
        clusters = KMeans(k, n_init=BEGINNINGS, random_state=seed % 2**32).fit(table)
        centres = torch.from_numpy(clusters.cluster_centers_).to(last.weight)
        turn = 2 * SHARPNESS * centres
        last.weight.copy_(turn @ last.weight)
        last.bias.copy_(turn @ last.bias - SHARPNESS * centres.square().sum(1))
    return True


def _embed(network: RawNetwork, pairs: Pairs, task: Task, rows: Rows, settings: Settings) -> None:
    """Brings the outputs of rows that are alike together, and those of others 1 apart.

    Hadsell, Chopra & LeCun, "Dimensionality reduction by learning an invariant mapping", CVPR 2006.
    """
    members, alike = pairs
    rng = np.random.default_rng(task.seed)
    size = min(settings.batch_size, len(members))
    total = int(np.clip(EPOCHS * len(members) // size, *STEPS))
    weights = Weights(
        [p for p in network.parameters() if p.requires_grad], settings.weight_decay, settings.clip
    )
    network.train()
    done = 0
    with task.progress.running("Network: embedding", total):
        while done < total:
            order = rng.permutation(len(members))
            whole = len(members) // size
            for batch in order[: whole * size].reshape(whole, size)[: total - done]:
                out = network.compute(rows.take(members[batch].reshape(-1)))
                u, v = out.reshape(size, 2, -1).unbind(1)
                square = (u - v).square().sum(1)
                apart = (1 - (square + 1e-12).sqrt()).relu().square()  # no derivative of √ at 0
                same = torch.from_numpy(alike[batch]).to(out)
                weights.zero()
                torch.lerp(apart, square, same).mean().backward()
                weights.step(RATE * settings.lr * cosine(done, total))
                done += 1
                task.progress.advance()
    weights.release()


# ---- several beginnings


def _best(make: Make, task: Task, rows: Rows, settings: Settings) -> RawNetwork:
    """Of several networks, trained for a short while, the one that says most of other sets.

    Where classes can be swapped, training may end with two classes in one and another empty. A
    beginning that got it right shows it early, in the likelihood of sets that it has not seen. If
    the best one still leaves a class empty, as many are tried again.
    """
    objective, held = task.objective, held_out(task, make(0))
    if held is None:
        objective, compared = _split(objective, task.seed)
        held = rows, compared.batch()
    total = settings.epochs * math.ceil(objective.n_sets / settings.batch_size)
    steps = min(total, max(total // 10, PILOT[0]), PILOT[1])
    pilot = dataclasses.replace(settings, schedule=warm_up)
    best, best_score, full = make(0), -math.inf, False
    with task.progress.running("Network: beginnings", task.restarts):
        for number in range(2 * task.restarts):
            if number >= task.restarts and full:
                break
            training = Training(make(number), task, rows, pilot, task.seed + number)
            while training.step < steps:
                training.run_epoch(objective, steps, limit=steps - training.step)
            score, _ = training.score(*held)
            if score > best_score:
                best, best_score, full = training.network, score, _classes_used(training, held)
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


def _classes_used(training: Training, held: tuple[Rows, Batch]) -> bool:
    """Whether every class is likely for some of the rows."""
    if not held[1].objective.of_classes:
        return True
    usage = training.predict(held[0], held[1].rows).softmax(1).mean(0)
    return bool((usage > EMPTY / len(usage)).all())
