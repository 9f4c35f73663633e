"""What `Network` does for a device: epochs laid out, steps that wait for nothing, rows ahead."""

import logging

import numpy as np
import pytest
import torch
from no_waiting import NoWaiting
from torch import nn

import setwise as sw
from setwise.learners.base import Task
from setwise.learners.network import Network, layout, training
from setwise.learners.network.layout import Layout, Recorded
from setwise.learners.network.modules import RawNetwork, Rows, units
from setwise.learners.network.training import Training
from setwise.objective import Objective

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
Z = X @ [1.0, -2.0, 0.5] + RNG.normal(size=300)
CLASSES = np.stack([X[:, 0], X[:, 1], -X[:, 0]], 1).argmax(1)
PAIRS = sw.Sets.random(300, 100, 2, replace=False, seed=0)
KINDS = {
    "means": (sw.Normal(), [sw.Mean().observe(Z, sw.Sets.random(300, 90, 3, seed=1))]),
    "ranks": (sw.Gumbel(), [sw.Rank().observe(Z, PAIRS)]),
    "pairs": (sw.Categorical(3), [sw.Similarity().observe(CLASSES, PAIRS)]),
    "triplets": (
        sw.Categorical(3),
        [sw.Triplet().observe(CLASSES, sw.Sets.random(300, 100, 3, replace=False, seed=0))],
    ),
    "three ways": (
        sw.Categorical(3),
        [
            sw.Triplet(three_way=True).observe(
                CLASSES, sw.Sets.random(300, 100, 3, replace=False, seed=0)
            )
        ],
    ),
    "labels": (sw.Categorical(3), [sw.Direct().observe(CLASSES, np.arange(300)[:, None])]),
    "two kinds": (
        sw.Normal(),
        [
            sw.Mean().observe(Z, sw.Sets.random(300, 70, 3, seed=1)),
            sw.Difference().observe(Z, PAIRS),
        ],
    ),
}


def task(kind, **more):
    family, observations = KINDS[kind]
    objective = Objective(family, observations, len(X))
    return Task(X, objective, *objective.start(), **more)


def learned(kind, **more):
    own = task(kind)
    fitted = Network(hidden=(8,), epochs=4, batch_size=32, **more).fit(own)
    raw = fitted.model.raw(X)
    if kind == "ranks":  # tell nothing of a shift, which rounding then decides
        raw = raw - raw.mean()
    return raw, fitted.shared, [entry["train"] for entry in own.progress.history]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_laid_out_learns_what_minibatches_do(kind, monkeypatch):
    usual = learned(kind)
    monkeypatch.setattr(layout, "DEVICES", ("cpu",))
    made = []
    monkeypatch.setattr(training, "Layout", Spy := type("Spy", (Layout,), {}))
    Spy.__init__ = lambda self, *args: made.append(self) or Layout.__init__(self, *args)
    laid = learned(kind)
    assert len(made) == 1
    for a, b in zip(usual, laid, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_weights_of_sets_are_laid_out_too(monkeypatch):
    seen = KINDS["means"][1][0]
    seen.weight = RNG.uniform(0.5, 2, len(seen))
    try:
        usual = learned("means")
        monkeypatch.setattr(layout, "DEVICES", ("cpu",))
        np.testing.assert_allclose(learned("means")[0], usual[0], rtol=1e-4, atol=1e-5)
    finally:
        seen.weight = None


def test_when_an_epoch_is_laid_out(monkeypatch):
    rows = Rows(X, CPU).prepared(nn.Identity())
    whole = task("pairs").objective
    assert not Layout.suits(whole, rows, 32)  # a CPU
    monkeypatch.setattr(layout, "DEVICES", ("cpu",))
    assert Layout.suits(whole, rows, 32)
    ragged = sw.Mean().observe(Z, sw.Sets.random(300, 50, (2, 4), seed=0))
    large = sw.Mean().observe(Z, sw.Sets.random(300, 50, 100, seed=0))  # rows again and again
    for seen in (ragged, large):
        assert not Layout.suits(Objective(sw.Normal(), [seen], 300), rows, 32)
    items = Rows([torch.ones(3)] * 300, CPU)
    assert not Layout.suits(whole, items, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_needs_nothing_from_the_host(kind, monkeypatch):
    monkeypatch.setattr(layout, "DEVICES", ("cpu",))
    own = task(kind)
    base, unit = units(own.objective.family, own.raw, own.shared)
    body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, len(base)))
    learner = Network(batch_size=32, augment=lambda x: x + 0.1 * torch.randn_like(x))
    rows = Rows(X.astype(np.float32), CPU)
    learning = Training(
        RawNetwork(body, base, unit), own, rows, learner._settings(own.objective), 0
    )
    learning.run_epoch(own.objective, 2)  # what is found out once
    assert learning.laid is not None
    learning.laid[1].shuffle(learning.rng)
    matrices = [p for p in body.parameters() if p.ndim > 1]
    before = [p.detach().clone() for p in matrices]
    with NoWaiting():
        learning.laid[2]()
    assert all((p != q).any() for p, q in zip(matrices, before, strict=True))


class NoGraph:
    """In place of `torch.cuda.graph`, for a module that cannot be recorded."""

    def __init__(self, graph):
        pass

    def __enter__(self):
        raise RuntimeError("operation not permitted when stream is capturing")

    def __exit__(self, *error):
        pass


def test_what_cannot_be_recorded_is_called_and_logged(monkeypatch, caplog):
    calls = []
    recorded = Recorded(lambda: calls.append(1), CPU)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", NoGraph)
    recorded.eager = 0
    with caplog.at_level(logging.INFO, "setwise"):
        for _ in range(3):
            recorded()
    assert len(calls) == 3
    assert caplog.text.count("not recorded as a CUDA graph") == 1
    assert "not permitted" in caplog.text


def test_what_was_recorded_is_replayed(monkeypatch):
    class Graph:
        replays = 0

        def replay(self):
            Graph.replays += 1

    class Graphing(NoGraph):
        def __enter__(self):
            pass

    calls = []
    recorded = Recorded(lambda: calls.append(1), CPU)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Graphing)
    recorded.eager = 0
    for _ in range(5):
        recorded()
    assert (len(calls), Graph.replays) == (1, 5)  # recording does nothing yet


@pytest.mark.parametrize("items", [False, True])
def test_rows_that_are_elsewhere_come_in_order(items, monkeypatch):
    monkeypatch.setattr(Rows, "apart", True)
    table = torch.arange(20.0)[:, None].repeat(1, 3)
    rows = Rows(list(table) if items else table, CPU)
    some = [(RNG.integers(0, 20, 5), number) for number in range(7)]
    found = list(rows.ahead(iter(some)))
    assert [what for _, what in found] == list(range(7))
    for (x, _), (numbers, _) in zip(found, some, strict=True):
        assert x.equal(table[numbers])
    assert list(rows.ahead(iter([]))) == []
    only = rows.ahead(iter(some))
    next(only)
    only.close()  # leaves no thread behind


def test_augment_is_for_learning_only():
    calls = []

    def noisy(x):
        calls.append(len(x))
        return x + 0.1 * torch.randn_like(x)

    plain, noised = learned("means"), learned("means", augment=noisy)
    assert len(calls) == 4 * 3
    assert not np.allclose(plain[0], noised[0])
    with pytest.raises(TypeError, match="augment is a function"):
        learned("means", augment=0.1)


def test_compiled_is_the_same(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f: compiled.append(f) or f)
    usual = learned("pairs")
    assert not compiled
    np.testing.assert_array_equal(learned("pairs", compile=True)[0], usual[0])
    assert compiled


@pytest.mark.parametrize("broken", [False, True])
def test_precision_is_put_back(broken):
    cuda = Network(precision="tf32", device="cuda")._settings(task("pairs").objective)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        with cuda.arithmetic(True):
            assert torch.get_float32_matmul_precision() == "high"
            assert torch.backends.cudnn.benchmark
            if broken:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before
    cpu = Network(precision="tf32", device="cpu")._settings(task("pairs").objective)
    with cpu.arithmetic(False):
        assert torch.get_float32_matmul_precision() == before[0]


class Sure(nn.Module):
    """Far too sure of its classes: pairs that are not alike get probabilities below 1e-308."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return 1000 * self.inner(x)


def test_an_epoch_in_which_a_probability_underflows_is_done_again_in_logarithms(monkeypatch):
    def run():
        torch.manual_seed(0)
        own = task("pairs")
        rows = Rows(X.astype(np.float32), CPU)
        base, unit = units(own.objective.family, own.raw, own.shared)
        network = RawNetwork(Sure(), base, unit)
        learning = Training(network, own, rows, Network(batch_size=32)._settings(own.objective), 0)
        mean = learning.run_epoch(own.objective, 10)
        return mean, network.body.inner.weight.detach().clone(), learning

    usual, weights, _ = run()
    monkeypatch.setattr(layout, "DEVICES", ("cpu",))
    mean, laid, learning = run()
    assert usual < -100
    assert not learning.unchecked
    assert learning.step == 4
    assert mean == pytest.approx(usual, rel=1e-4)
    torch.testing.assert_close(laid, weights, rtol=1e-4, atol=1e-5)
