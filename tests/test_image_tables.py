"""The table `images` at tiny size, and the network it is made of."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from no_waiting import NoWaiting
from torch import nn
from typer.testing import CliRunner

import setwise as sw
from benchmarks import images as bench
from reproduction import images
from reproduction.batched import Perceptrons, Plan, Sample, _Training, fit, predict
from reproduction.command import app
from reproduction.images import METHODS, Convolutions, shifted
from reproduction.runner import Cell


@pytest.fixture(autouse=True)
def short(monkeypatch):
    one = {name: replace(plan, epochs=1) for name, plan in images.PLAN.items()}
    monkeypatch.setattr(images, "PLAN", one)
    monkeypatch.setattr(images, "RESTARTS", 2)
    images.prepare.cache_clear()
    whole = sw.datasets.load("digits")
    few = replace(whole, X=whole.X[:300], z=whole.z[:300])
    monkeypatch.setattr(sw.datasets, "load", lambda name: few)
    yield
    images.prepare.cache_clear()


def reference(model, r, side):
    """The paper's network in torch's own modules, with the weights of network r."""
    flat = 64 * ((side - 4) // 2) ** 2
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    with torch.no_grad():
        for p, q in zip(net.parameters(), model.layers, strict=True):
            p.copy_(q[r].T.reshape(p.shape) if q.ndim == 3 else q[r])
    return net


def test_the_network_is_the_papers():
    model = Convolutions(28, 10, [0, 1])
    assert sum(p[0].numel() for p in model.layers) == 1_199_882  # of PyTorch's MNIST example
    table = torch.randn(20, 784, generator=torch.Generator().manual_seed(0))
    rows = torch.stack([torch.arange(20), torch.arange(20).flip(0)])
    out = model.eval()(table, rows)
    for r in range(2):
        net = reference(model, r, 28).eval()
        expected = net(table[rows[r]].reshape(-1, 1, 28, 28))
        torch.testing.assert_close(out[r], expected, atol=1e-5, rtol=1e-4)
        expected.square().sum().backward()
    model(table, rows).square().sum().backward()
    last = model.layers[0].grad
    torch.testing.assert_close(last[1], net[0].weight.grad, atol=1e-3, rtol=1e-3)


def test_dropout_is_as_often_as_it_should_be():
    model = Convolutions(8, 10, [0])
    for share in (0.25, 0.5):
        kept = model._drop(torch.ones(2, 100, 1000), share)
        assert (kept == 0).float().mean().item() == pytest.approx(share, abs=0.01)
        assert kept.mean().item() == pytest.approx(1, abs=0.02)
        assert kept[0].equal(kept[1])


def test_networks_side_by_side_are_the_networks_alone():
    data = images.prepare("digits", "cpu")
    rng = np.random.default_rng(0)
    members = torch.from_numpy(rng.integers(0, 200, (2, 64, 1)))
    y = torch.from_numpy(data.z).float()[members[..., 0]]
    rows = torch.arange(50).expand(2, -1)
    plan = Plan(epochs=2, batch=32)

    def learn(which):
        model = Convolutions(8, 10, which, shift=1)
        sample = Sample(members[which], y[which])
        fit(model, METHODS["supervised"].loss, data.table, sample, plan, which)
        return predict(model, data.table, rows[which])

    together = learn([0, 1])
    for r in range(2):
        torch.testing.assert_close(learn([r])[0], together[r], atol=1e-4, rtol=1e-3)


def test_shifts():
    x = torch.arange(16.0).reshape(1, 16).repeat(200, 1) + 1
    torch.manual_seed(0)
    moved = shifted(x, 4, 1, count=100)
    assert moved[:100].equal(moved[100:])
    assert len(moved.unique(dim=0)) == 9
    assert any(row.equal(x[0]) for row in moved)
    assert (moved.amin(1) == 1).all()


def test_a_network_learns_digits(monkeypatch):
    monkeypatch.setattr(images, "PLAN", {"protocol": Plan(epochs=15, batch=32)})
    for method in ("supervised", "triplet_mle_three_way"):
        (result,) = images.work_many([Cell("digits", method, "protocol", 0)])
        assert result.value > 80, method


def test_a_collapsed_trial_begins_again(monkeypatch):
    train = images._train
    calls = []

    def collapses(data, method, setting, trials, restart, history=None):
        calls.append((list(trials), restart))
        trained = train(data, method, setting, trials, restart, history)
        if restart < 2:
            trained.losses[trials.index(1)] = torch.nan if restart == 0 else 99.0
            with torch.no_grad():
                for p in trained.model.parameters():
                    p[trials.index(1)] = torch.nan
        return trained._replace(chance=10 * trained.chance)

    monkeypatch.setattr(images, "_train", collapses)
    results = images.work_many([Cell("digits", "supervised", "protocol", t) for t in range(3)])
    assert calls == [([0, 1, 2], 0), ([1], 1), ([1], 2)]
    assert [bool(r.note) for r in results] == [False, True, False]
    assert "begun again 2 times" in results[1].note
    assert results[1].value > 15  # the weights are those of the last beginning


def test_the_command(tmp_path):
    call = ["images", "--datasets", "digits", "--trials", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert "accuracy, %" in done.output
    with (tmp_path / "images.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * len(images.methods())
    assert all(0 < float(row["value"]) <= 100 for row in rows)


def test_the_benchmark(capsys):
    bench.main(["--datasets", "digits", "--methods", "triplet_mle", "--trials", "1"])
    assert "triplet_mle" in capsys.readouterr().out


def test_half_precision_tells_the_same():
    model = Convolutions(12, 10, [0, 1], shift=1)
    table = torch.randn(30, 144, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(30).expand(2, -1)
    full, half = (predict(model, t, rows) for t in (table, table.bfloat16()))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, atol=0.02, rtol=0.05)
    model.train()
    model(table.bfloat16(), rows).square().sum().backward()
    for p in model.layers:
        assert p.grad.dtype == torch.float32
        assert p.grad.isfinite().all()
        assert (p.grad.flatten(1).abs().amax(1) > 0).all()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", [Perceptrons, Convolutions])
def test_a_step_needs_nothing_from_the_host(kind, name, monkeypatch):
    method = METHODS[name]
    head = 5 * method.head
    if kind is Perceptrons:
        model = Perceptrons([64, 8, 4], [0, 1], head, dropout=(0.1, 0.2))
    else:
        model = Convolutions(8, 4, [0, 1], head, shift=1)
    for loss in filter(None, (method.loss, method.begin)):
        members = torch.zeros(2, 6, method.size, dtype=torch.int64)
        sample = Sample(members, torch.ones(2, 6))
        plan = Plan(epochs=1, batch=3, cosine=True)
        training = _Training(model, loss, torch.randn(5, 64), sample, plan, [0, 1])
        training._lay_out()
        # the optimiser reads its own rate on the CPU; on CUDA it is told not to (capturable)
        monkeypatch.setattr(training.optimizer, "step", lambda: None)
        with NoWaiting():
            training.step()
            training.step()
        assert all(p.grad is not None for p in model.parameters() if p.numel())
