"""How long fits take, beside native libraries and loops by hand: a part of `make bench`."""

from __future__ import annotations

import sys
import warnings
from itertools import pairwise
from typing import Any

import lightgbm
import numpy as np
import torch
from scipy import sparse
from sklearn.datasets import make_blobs, make_friedman1
from torch import nn

import setwise as sw
from benchmarks.table import Figure, Rows, busy, in_turns, skipped, told_by

MEMORY = """
import resource, threading, time
import setwise as sw
from benchmarks.fits import fit, friedman
few, _, small = friedman(2000, 2000, 8)
fit(few, small, sw.LightGBM(n_estimators=2))  # what is loaded at first use
X, z, means = friedman({n}, {n}, 8)
data = X.nbytes + means.sets.indices.nbytes
now = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, most, over = now(), 0, threading.Event()
def watch():
    global most
    while not over.wait(0.002):
        most = max(most, now())
thread = threading.Thread(target=watch)
thread.start()
fit(X, means, sw.LightGBM(n_estimators=5))
over.set()
thread.join()
print((most - before) / data)
"""


def fit(X: Any, observations: Any, learner: Any, **more: Any) -> Any:
    """A fit to all sets: the same work as a library's own rounds."""
    plain = {"validation": None, "overlap": "independent", "random_state": 0, "verbose": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few steps are not to converge
        return sw.AggregateRegressor(learner=learner, **plain | more).fit(X, observations)


def native(X: Any, z: Any, rounds: int) -> lightgbm.Booster:
    """LightGBM with every target known."""
    data = lightgbm.Dataset(X, label=z)
    return lightgbm.train({"verbosity": -1, "objective": "l2"}, data, rounds)


def by_hand(X: Any, means: sw.Observations, rounds: int) -> lightgbm.Booster:
    """What one would write: a gradient of two sparse products, and trees on it."""
    sets = means.sets
    a = np.repeat(1 / sets.sizes, sets.sizes)
    A = sparse.csr_array((a, sets.indices, sets.offsets), (len(sets), len(X)))
    back, ones, y = A.T.tocsr(), np.ones(len(X)), means.y - means.y.mean()
    return _boosted(X, rounds, lambda scores, data: (back @ (A @ scores - y), ones))


def as_published(X: Any, means: sw.Observations, rounds: int) -> lightgbm.Booster:
    """The recipe of the paper's code: rows repeated, a loop over sets, curvature 1/K²."""
    repeated, y = X[means.sets.indices], means.y - means.y.mean()
    begins = means.sets.offsets

    def gradient(scores: Any, data: Any) -> Any:
        g, h = np.empty(len(scores)), np.empty(len(scores))
        for i, (a, b) in enumerate(pairwise(begins)):
            g[a:b] = (scores[a:b].mean() - y[i]) / (b - a)
            h[a:b] = 1 / (b - a) ** 2
        return g, h

    return _boosted(repeated, rounds, gradient)


def _boosted(X: Any, rounds: int, gradient: Any) -> lightgbm.Booster:
    params = {"verbosity": -1, "objective": "none", "force_row_wise": True}
    booster = lightgbm.Booster(params, lightgbm.Dataset(X, params=params))
    for _ in range(rounds):
        booster.update(fobj=gradient)
    return booster


def friedman(n: int, n_sets: int, size: int) -> tuple[Any, Any, sw.Observations]:
    """Features, targets, and means of random sets."""
    X, z = make_friedman1(n, noise=1.0, random_state=0)
    drawn = np.random.default_rng(1).integers(0, n, (n_sets, size))
    return X, z, sw.Observations(sw.Mean(), drawn, z[drawn].mean(1))


# ---- trees


def trees(small: bool) -> Rows:
    """LightGBM from means."""
    n, rounds = (500, 3) if small else (20_000, 100)
    X, z, means = friedman(n, n, 4)
    ours, plain, hand = in_turns(
        lambda: fit(X, means, sw.LightGBM(n_estimators=rounds)),
        lambda: native(X, z, rounds),
        lambda: by_hand(X, means, rounds),
    )
    work = f"LightGBM, {n:,} means of 4, {rounds} rounds"
    yield Figure(work, "LightGBM supervised", ours / plain, 2.5, note=f"{ours:.2f} s")
    note = "each leaf on its own, too far where sets are large"
    yield Figure(work, "a loop by hand", ours / hand, 2.0, note=note)
    few = 2 if small else 5
    ours, theirs = in_turns(
        lambda: fit(X, means, sw.LightGBM(n_estimators=few)),
        lambda: as_published(X, means, few),
        repeat=2,
    )
    yield Figure(f"the same, {few} rounds", "the published recipe", ours / theirs, 0.2)

    n, size = (300, 16) if small else (20_000, 256)
    X, _, means = friedman(n, n, size)
    (ours,) = in_turns(lambda: fit(X, means, sw.LightGBM(n_estimators=50)), repeat=3)
    each = 1e9 * ours / (50 * n * size)
    work = f"LightGBM, {n:,} means of {size}, 50 rounds"
    yield Figure(work, "a member and round", each, 8.0, "ns", f"{ours:.2f} s")


def large(small: bool) -> Rows:
    """As many means as rows, a million of them."""
    n, rounds = (2_000, 3) if small else (1_000_000, 50)
    X, z, means = friedman(n, n, 8)
    learner = sw.LightGBM(n_estimators=rounds)
    work = f"LightGBM, {n:,} rows, as many means of 8, {rounds} rounds"
    ours, plain = in_turns(
        lambda: fit(X, means, learner), lambda: native(X, z, rounds), repeat=2, warm=small
    )
    yield Figure(work, "LightGBM supervised", ours / plain, 2.5, note=f"{ours:.2f} s")
    few = min(rounds, 10)
    with busy():
        ours, plain = in_turns(
            lambda: fit(X, means, sw.LightGBM(n_estimators=few)),
            lambda: native(X, z, few),
            repeat=1,
            warm=False,
        )
    own = f"the same, {few} rounds, busy cores"
    yield Figure(own, "LightGBM supervised, busy", ours / plain, 5.0, note=f"{ours:.2f} s")
    if not sys.platform.startswith("linux"):
        yield Figure(f"memory of {work}", "the data", float("nan"), note="needs Linux")
        return
    (share,) = told_by(MEMORY.format(n=n))
    bound = float("inf") if small else 4.0
    yield Figure("memory beyond the data, the same", "the data (X and sets)", share, bound)


# ---- on a busy machine


def beside_others(small: bool) -> Rows:
    """Small fits beside as many spinning processes as there are cores."""
    n = 200 if small else 3_000
    X, _, means = friedman(n, n, 4)
    epochs = 2 if small else 20
    for learner in (sw.LightGBM(n_estimators=10 if small else 100), sw.Network(epochs=epochs)):
        (idle,) = in_turns(lambda learner=learner: fit(X, means, learner), repeat=3)
        with busy():
            (ours,) = in_turns(lambda learner=learner: fit(X, means, learner), repeat=3)
        name = f"{type(learner).__name__} from {n:,} means of 4, busy cores"
        yield Figure(name, "the same, idle", ours / idle, 3.0, note=f"{ours:.2f} s")


# ---- classes that can be swapped


def classes(small: bool) -> Rows:
    """A classifier from triplets, with a pilot network before the trees."""
    n, n_sets = (200, 300) if small else (3_200, 9_500)
    X, z = make_blobs(n, 16, centers=10, cluster_std=4.0, random_state=0)
    seen = sw.Triplet().observe(z, sw.Sets.random(n, n_sets, 3, replace=False, seed=0))
    rounds = 3 if small else 100

    def ours() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sw.AggregateClassifier(
                10, sw.LightGBM(n_estimators=rounds), validation=None, random_state=0, verbose=0
            ).fit(X, seen)

    (seconds,) = in_turns(ours, repeat=1 if small else 3, warm=False)
    work = f"10 classes of {n:,} rows from {n_sets:,} triplets, LightGBM with its pilot"
    yield Figure(work, "seconds", seconds, 5.0, "s")


# ---- networks


def networks(small: bool) -> Rows:
    """An epoch of `Network` beside a loop written by hand on the same module and sets."""
    n, epochs = (256, 2) if small else (20_000, 3)
    X, _, means = friedman(n, n, 4)
    size = 128

    def loop() -> None:
        torch.manual_seed(0)
        table = torch.from_numpy(X).float()
        module = nn.Sequential(
            nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
        members = torch.from_numpy(means.sets.indices.reshape(-1, 4))
        y = torch.from_numpy(means.y).float()
        for _ in range(epochs):
            for batch in torch.randperm(n).split(size):
                out = module(table[members[batch]])[..., 0].mean(1)
                optimizer.zero_grad()
                (out - y[batch]).square().mean().backward()
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours, hand = in_turns(
            lambda: fit(X, means, sw.Network(epochs=epochs, batch_size=size)), loop, repeat=3
        )
    finally:
        torch.set_num_threads(threads)
    work = f"Network, {n:,} means of 4, {epochs} epochs of batches of {size}"
    yield Figure(work, "a loop by hand in torch", ours / hand, 1.5, note=f"{ours:.2f} s")


# ---- preferences


def preferences(small: bool) -> Rows:
    """Bradley and Terry's model of comparisons."""
    items, n = (10, 200) if small else (300, 20_000)
    rng = np.random.default_rng(0)
    strength = rng.normal(size=items)
    pairs = np.array([rng.choice(items, 2, replace=False) for _ in range(n)])
    noise = rng.gumbel(size=(n, 2))
    order = np.argsort(-(strength[pairs] + noise), axis=1)
    pairs = np.take_along_axis(pairs, order, 1)
    work = f"Bradley–Terry: {items} items, {n:,} comparisons"
    try:
        import choix
    except ImportError:
        yield skipped(work, "choix", "choix")
        return
    seen, X = sw.Observations(sw.Rank(), pairs, np.ones(n)), sparse.identity(items, format="csr")
    learner, family = sw.Linear(alpha=0.1), sw.Gumbel(scale=1.0)
    ours, theirs = in_turns(
        lambda: fit(X, seen, learner, distribution=family),
        lambda: choix.opt_pairwise(items, pairs, alpha=0.1),
        repeat=2,
    )
    yield Figure(work, "choix", ours / theirs, 1.0, note=f"{ours:.2f} s")


# ---- what the defaults cost


def defaults(small: bool) -> Rows:
    """Validation, and a choice among learners, beside a fit to all sets."""
    n = 400 if small else 5_000
    X, _, means = friedman(n, n // 2, 4)
    trees = sw.LightGBM(n_estimators=3) if small else sw.LightGBM()
    held = {"validation": "auto"}
    plain, once, auto = in_turns(
        lambda: fit(X, means, trees),
        lambda: fit(X, means, trees, **held),
        lambda: fit(X, means, sw.Auto([sw.Linear(), trees]) if small else "auto", **held),
        repeat=1,
    )
    work = f"{n // 2:,} means of 4, with sets held out"
    alone = "LightGBM from all sets"
    yield Figure(f"LightGBM, {work}", alone, once / plain, 3.5, note=f"{once:.2f} s")
    yield Figure(f'learner="auto", {work}', alone, auto / plain, note=f"{auto:.2f} s")


SECTIONS = (trees, large, beside_others, classes, networks, preferences, defaults)
