"""The network learner: what it learns, how it stops, resumes and is kept."""

import copy
import dataclasses
import functools
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from torch import nn

import setwise as sw
from setwise.learners.base import Task
from setwise.learners.network import Network, NetworkModel
from setwise.learners.network import encoding as network_numbers
from setwise.learners.network import initialization as network_beginning
from setwise.learners.network.encoding import as_numbers
from setwise.learners.network.optimizer import Weights
from setwise.learners.progress import Progress
from setwise.likelihood import find_rule
from setwise.objective import Objective, categorical, judge

SMALL = {"hidden": (16,), "epochs": 5, "batch_size": 32}


@pytest.fixture(autouse=True)
def _on_the_device_under_test(device, monkeypatch):
    """Fits run where the tests are told to, not wherever there is a GPU."""
    if device.type == "cpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def make_task(X, family, observations, free=True, n_rows=None, **kwargs):
    n = len(X) if n_rows is None else n_rows
    objective = Objective(family, observations, n)
    return Task(X, objective, *objective.start(free), free=free, **kwargs)


def linear_task(n=200, n_sets=300, seed=0, X=None, **kwargs):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    z = 2 + x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=n)
    means = sw.Mean().observe(z, sw.Sets.random(n, n_sets, (2, 4), seed=seed))
    return make_task(x if X is None else X(x), sw.Normal(), [means], n_rows=n, **kwargs)


def digits(kind, n_sets, seed=0):
    X, z = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    X, z = X[order], z[order]
    observations = kind.observe(
        z[:1347], sw.Sets.random(1347, n_sets, kind.size or 16, replace=False, seed=seed)
    )
    return X[:1347], observations, X[1347:], z[1347:]


def aligned_accuracy(raw, z):
    table = np.zeros((raw.shape[1], raw.shape[1]))
    np.add.at(table, (raw.argmax(1), z), 1)
    return table[linear_sum_assignment(-table)].sum() / len(z)


# ---- the pieces


def kinds(n=40, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    means = sw.Mean().observe(z, sw.Sets.random(n, 30, (1, 4), seed=1))
    means.weight = rng.uniform(0, 2, 30)
    ranks = sw.Rank().observe(z, sw.Sets.random(n, 50, 2, replace=False, seed=2))
    return [means, ranks]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_minibatches_hold_every_set_once_and_rows_once(size, rng):
    objective = Objective(sw.Normal(), kinds(), 40)
    raw, shared = torch.randn(40, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    total, n_sets = 0.0, 0
    for rows, part in objective.minibatches(size, rng):
        assert len(np.unique(rows)) == len(rows) == part.n_rows
        assert {int(i) for o in part.observations for i in o.sets.indices} == set(range(len(rows)))
        total += part.value(raw[rows], shared)
        n_sets += part.n_sets
    assert n_sets == objective.n_sets
    assert total == pytest.approx(objective.value(raw, shared))


@pytest.mark.parametrize(
    ("family", "observations"),
    [
        (sw.Normal(), kinds()),
        (sw.Normal(scale="predicted"), kinds()),
        (sw.StudentT(df=3.0), kinds()[:1]),
        (
            sw.Categorical(3),
            [sw.Similarity().observe(np.arange(40) % 3, sw.Sets.random(40, 60, 2, seed=3))],
        ),
    ],
    ids=repr,
)
def test_gradient_is_that_of_the_loss(family, observations):
    objective = Objective(family, observations, 40)
    torch.manual_seed(1)
    raw = torch.randn(40, len(family.outputs), dtype=torch.float64, requires_grad=True)
    shared = torch.full((len(family.shared),), 0.3, dtype=torch.float64, requires_grad=True)
    loss = objective.loss(raw, shared)
    wanted = torch.autograd.grad(loss, (raw, shared), allow_unused=True)
    value, at_rows, at_shared = objective.gradient(raw, shared)
    torch.testing.assert_close(value.double(), loss.detach())
    torch.testing.assert_close(at_rows, wanted[0])
    if len(shared):
        torch.testing.assert_close(at_shared, wanted[1])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("aggregate", [sw.Similarity(), sw.Triplet()], ids=repr)
def test_gradient_with_and_without_posteriors_in_closed_form(aggregate, weighted, monkeypatch, rng):
    """A rule that knows the posterior of its members' classes spares the differentiation."""
    sets = sw.Sets.random(40, 60, aggregate.size, seed=3)
    observed = aggregate.observe(np.arange(40) % 3, sets)
    observed.weight = rng.uniform(size=60) if weighted else None
    objective = Objective(sw.Categorical(3), [observed], 40)
    raw = torch.from_numpy(rng.normal(size=(40, 3)))
    found = objective.gradient(raw)
    rule = find_rule(type(aggregate), torch.distributions.Categorical)
    assert rule.class_posterior is not None
    monkeypatch.setattr(
        categorical, "find_rule", lambda *pair: dataclasses.replace(rule, class_posterior=None)
    )
    for a, b in zip(found, objective.gradient(raw), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_weights_move_as_those_of_torch_do(clip):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1).double())
    theirs = copy.deepcopy(ours)
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": 0.2},
        {"params": [p for p in theirs.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    weights = Weights(list(ours.parameters()), decay=0.2, clip=clip)
    for step in range(20):
        x = torch.randn(8, 4)
        for net, zero in ((ours, weights.zero), (theirs, optimizer.zero_grad)):
            zero()
            out = net[2](net[1](net[0](x)).double())
            (out - 1).square().mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        weights.step(0.01, step + 1)
        optimizer.step()
    weights.release()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_the_step_on_a_device_is_that_of_a_cpu(clip, monkeypatch):
    torch.manual_seed(0)
    usual = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    fused = copy.deepcopy(usual)
    here = Weights(list(usual.parameters()), decay=0.2, clip=clip)
    there = Weights(list(fused.parameters()), decay=0.2, clip=clip)
    monkeypatch.setattr(there, "_called", there._fused)  # torch's own kernel has a CPU version
    for step in range(20):
        x = torch.randn(8, 4)
        for net, weights in ((usual, here), (fused, there)):
            weights.zero()
            (net(x) - 1).square().mean().backward()
            numbers = 0.01, step + 1
            if step % 2:  # as in a step that is recorded
                numbers = [torch.tensor(n, dtype=torch.float64) for n in numbers]
            weights.step(*numbers)
    for a, b in zip(usual.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_every_distinct_row_of_a_batch_goes_through_once():
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            if self.training:
                seen.append(x.detach().clone())
            return self.layer(x)

    Network(Spy(), epochs=1, batch_size=50).fit(linear_task())
    assert len(seen) == 6
    for x in seen:
        assert len(torch.unique(x, dim=0)) == len(x) > 50


# ---- what it learns


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e6, 1e5), (1e-3, 1e-5)])
def test_targets_of_any_size_are_learned_alike(shift, scale):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(600, 2)) * [1.0, 1e-3] + [0.0, 1e6]
    z = shift + scale * (np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=600))
    means = sw.Mean().observe(z, sw.Sets.random(600, 1200, 3, seed=0))
    fitted = Network(hidden=(64, 64), epochs=60).fit(make_task(X, sw.Normal(), [means]))
    error = (fitted.model.raw(X)[:, 0] - shift) / scale - np.sin(2 * X[:, 0])
    assert np.sqrt((error**2).mean()) < 0.12
    assert float(fitted.shared.exp()) / scale == pytest.approx(0.1, rel=0.5)
    assert fitted.converged


def test_a_shared_parameter_that_is_not_free_stays():
    task = linear_task()
    task = dataclasses.replace(task, free=False, shared=torch.tensor([0.7], dtype=torch.float64))
    assert Network(**SMALL).fit(task).shared.tolist() == [0.7]


def test_predicted_scale():
    rng = np.random.default_rng(0)
    x = rng.uniform(-4, 4, 5000)
    z = rng.normal(np.cos(x) + x / 2, np.exp(0.3 * x) / 2)
    means = sw.Mean().observe(z, sw.Sets.random(5000, 5000, (2, 4), seed=0))
    task = make_task(x[:, None], sw.Normal(scale="predicted"), [means])
    raw = Network(hidden=(64, 64), epochs=25).fit(task).model.raw(np.linspace(-4, 4, 200)[:, None])
    truth = np.exp(0.3 * np.linspace(-4, 4, 200)) / 2
    assert np.mean(np.abs(np.exp(raw[:, 1]) - truth) / truth) < 0.2


@pytest.mark.parametrize("kind", [sw.Similarity(), sw.Triplet()], ids=repr)
def test_digits_from_comparisons(kind):
    """A reduced form of benchmarks/network.py."""
    X, observations, X_test, z_test = digits(kind, 8000)
    task = make_task(X, sw.Categorical(10), [observations], restarts=2)
    model = Network(epochs=20, hidden=(64, 64)).fit(task).model
    assert aligned_accuracy(model.raw(X_test), z_test) > 0.93


def test_digits_from_counts():
    X, observations, X_test, z_test = digits(sw.Counts(n_classes=10, method="normal"), 1500)
    task = make_task(X, sw.Categorical(10), [observations])
    raw = Network(epochs=12).fit(task).model.raw(X_test)
    assert (raw.argmax(1) == z_test).mean() > 0.93


# ---- how it trains


def test_the_same_seed_gives_the_same_network_and_leaves_the_global_one_alone():
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    a, b, c = (
        Network(dropout=0.2, **SMALL).fit(linear_task(seed=0) if i < 2 else linear_task(seed=1))
        for i in range(3)
    )
    assert torch.equal(torch.rand(1), wanted)
    X = np.ones((2, 3))
    assert np.array_equal(a.model.raw(X), b.model.raw(X))
    assert not np.array_equal(a.model.raw(X), c.model.raw(X))


def test_early_stopping_keeps_the_best_weights():
    task, held = linear_task(n=40, n_sets=30), linear_task(n=60, n_sets=60, seed=1)
    task.eval = held.X, held.objective
    network = Network(epochs=300, patience=10, lr=1e-2, schedule="constant", weight_decay=0.0)
    fitted = network.fit(task)
    valid = [entry["valid"] for entry in task.progress.history]
    assert len(valid) < 300  # ten epochs in a row were surely worse than the best
    assert int(np.argmax(valid)) <= len(valid) - 11
    raw = torch.from_numpy(fitted.model.raw(held.X))
    found = judge(held.objective, raw, fitted.shared, task.intercept)
    assert found.score == pytest.approx(max(valid), abs=1e-4)


def test_a_plateau_is_followed_to_the_end_of_the_schedule():
    task, held = linear_task(n=200, n_sets=400), linear_task(n=60, n_sets=60, seed=1)
    task.eval = held.X, held.objective
    network = Network(hidden=(16,), epochs=30, patience=3)
    fitted = network.fit(task)
    valid = [entry["valid"] for entry in task.progress.history]
    assert len(valid) == 30
    raw = torch.from_numpy(fitted.model.raw(held.X))
    found = judge(held.objective, raw, fitted.shared, task.intercept)
    assert found.score == pytest.approx(valid[-1], abs=1e-4)


def test_running_out_of_epochs_is_told():
    task = linear_task(n_sets=2000)
    assert not Network(hidden=(16,), epochs=2, lr=1e-4, schedule="constant").fit(task).converged


@pytest.mark.parametrize("schedule", ["cosine", "constant", lambda step, total: 1 - step / total])
def test_schedules(schedule):
    task = linear_task()
    Network(schedule=schedule, **SMALL).fit(task)
    history = [entry["train"] for entry in task.progress.history]
    assert len(history) == 5
    assert history[-1] > history[0]


def test_mixed_precision_is_for_the_module_alone():
    kinds = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            out = self.layer(x)
            kinds.append(out.dtype)
            return out

    fitted = Network(Spy(), precision="bf16", epochs=5).fit(linear_task())
    assert torch.bfloat16 in kinds
    assert fitted.model.network.body.layer.weight.dtype == torch.float32
    assert np.isfinite(fitted.model.raw(np.ones((1, 3)))).all()


class Interrupted(Progress):
    def step(self, **figures):
        super().step(**figures)
        if len(self.history) == 4:
            raise KeyboardInterrupt


@pytest.mark.parametrize("classes", [False, True])
def test_an_interrupted_fit_goes_on_to_the_same_bits(tmp_path, classes):
    def task(progress):
        if not classes:
            held = linear_task(seed=3)
            return linear_task(eval=(held.X, held.objective), progress=progress, seed=7)
        rng = np.random.default_rng(0)
        X = rng.normal(size=(90, 4)) + np.repeat(np.eye(3, 4) * 4, 30, 0)
        pairs = sw.Similarity().observe(np.repeat(range(3), 30), sw.Sets.random(90, 300, 2, seed=0))
        return make_task(X, sw.Categorical(3), [pairs], restarts=2, progress=progress)

    network = Network(hidden=(16,), dropout=0.1, epochs=8, batch_size=64)
    whole = network.fit(task(Progress()))
    network.checkpoint = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        network.fit(task(Interrupted()))
    progress = Progress()
    resumed = network.fit(task(progress))
    assert len(progress.history) == 8
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(value, resumed.model.network.state_dict()[name]), name
    assert torch.equal(whole.shared, resumed.shared)

    with pytest.raises(ValueError, match="of another fit"):
        network.fit(dataclasses.replace(task(Progress()), seed=99))
    file = tmp_path / "checkpoint" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"cut short or altered .*; delete it to begin anew"):
        network.fit(task(Progress()))


def halved(step, total):
    return 0.5


def scheduled(factor):
    def schedule(step, total):
        return factor

    return schedule


def noisy(x):
    return x + 0.1


def weights(value):
    module = nn.Linear(3, 1)
    with torch.no_grad():
        module.weight.fill_(value)
        module.bias.fill_(0.0)
    return module


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.01},
        {"epochs": 4},
        {"patience": 5},
        {"schedule": "constant"},
        {"schedule": halved},
        {"schedule": scheduled(0.25)},
        {"schedule": functools.partial(halved, total=1)},
        {"augment": None},
        {"module": weights(0.5)},
        {"module": nn.Sequential(weights(0.25))},
        {"X": 1e-9},
        {"eval": 3},
        {"eval": None},
        {"sets": 1},
        {"y": 1e-9},
    ],
    ids=lambda change: "-".join(change),
)
def test_a_checkpoint_is_for_one_fit(change, tmp_path):
    def fit(X=0.0, eval=2, sets=0, y=0.0, **more):
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(40, 3))
        truth, rows[0, 0] = rows[:, 0] + y, rows[0, 0] + X
        o = sw.Mean().observe(truth, sw.Sets.random(40, 30, 2, seed=sets))
        given = {} if eval is None else {"eval": (rows, Objective(sw.Normal(), [sw.Mean().observe(
            truth, sw.Sets.random(40, 30, 2, seed=eval))], 40))}  # fmt: skip
        usual = {"module": weights(0.25), "epochs": 3, "lr": 0.02, "augment": noisy}
        usual |= {"schedule": scheduled(0.5), "checkpoint": tmp_path}
        return Network(**{**usual, **more}).fit(make_task(rows, sw.Normal(), [o], **given))

    fit()
    fit()  # has nothing left to do
    with pytest.raises(ValueError, match="of another fit"):
        fit(**change)


@pytest.mark.parametrize("name", ["schedule", "augment"])
def test_functions_without_a_name_need_a_fit_without_checkpoint(name, tmp_path):
    for function in (lambda *given: given[0], scheduled(object()), Items([1.0]).__getitem__):
        with pytest.raises(ValueError, match=f"has to know {name} again, but .* has no name"):
            Network(**{name: function}, **SMALL, checkpoint=tmp_path).fit(linear_task())


def test_a_damaged_checkpoint_is_refused(tmp_path):
    network = Network(hidden=(4,), epochs=2, checkpoint=tmp_path)
    network.fit(linear_task())
    file, rng = tmp_path / "checkpoint.safetensors", np.random.default_rng(0)
    whole = file.read_bytes()
    for i in range(60):
        text, at = bytearray(whole), int(rng.integers(len(whole)))
        if i % 3:
            text[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(bytes(text if i % 3 else text[:at]))
        with pytest.raises(ValueError, match="cut short or altered"):
            network.fit(linear_task())
    file.write_bytes(whole)
    network.fit(linear_task())


@pytest.mark.parametrize("learner", ["network", "ensemble"])
def test_checkpoints_of_all_fits_that_held_out_sets_need(learner, tmp_path):
    made = Network(hidden=(4,), epochs=2, device="cpu", checkpoint=tmp_path)
    made = sw.Ensemble(made, n=2) if learner == "ensemble" else made
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    means = sw.Mean().observe(X[:, 0], sw.Sets.random(60, 40, 2, seed=0))
    est = sw.AggregateRegressor(learner=made, random_state=0, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first = est.fit(X, means).predict(X)
        assert len(list(tmp_path.iterdir())) >= 6
        np.testing.assert_array_equal(est.fit(X, means).predict(X), first)


# ---- what it takes


class Items(torch.utils.data.Dataset):
    def __init__(self, x):
        self.x = torch.as_tensor(x, dtype=torch.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], "a label of no use here"


def to_frame(kind):
    return lambda x: kind({name: x[:, i] for i, name in enumerate("abc")})


@pytest.mark.parametrize(
    "convert",
    [
        to_frame(pd.DataFrame),
        to_frame(pl.DataFrame),
        to_frame(pa.table),
        lambda x: torch.as_tensor(x),
        lambda x: torch.as_tensor(x).reshape(-1, 3, 1),
        Items,
        lambda x: torch.utils.data.Subset(Items(x), range(len(x))),
    ],
    ids=["pandas", "polars", "pyarrow", "tensor", "images", "dataset", "subset"],
)
def test_tables_of_many_kinds(convert):
    wanted = Network(**SMALL).fit(linear_task()).model.raw(linear_task().X)
    task = linear_task(X=convert)
    found = Network(**SMALL).fit(task).model.raw(task.X)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_read_only_and_integer_arrays():
    x = linear_task().X
    fixed = np.array(x)
    fixed.setflags(write=False)
    task = linear_task(X=lambda x: fixed)
    assert Network(**SMALL).fit(task).model.raw(fixed[::-1]).shape == (200, 1)
    task = linear_task(X=lambda x: np.rint(x).astype(np.int64))
    assert Network(nn.Linear(3, 1), epochs=2).fit(task).model.raw(task.X).shape == (200, 1)


def test_a_module_of_the_user():
    class Picture(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
            )

        def forward(self, x):
            return self.layers(x)

    X, observations, X_test, z_test = digits(sw.Direct(), 4000)
    images = torch.as_tensor(X, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    module = Picture()
    fitted = Network(module, epochs=5, lr=5e-3).fit(
        make_task(images, sw.Categorical(10), [observations])
    )
    raw = fitted.model.raw(torch.as_tensor(X_test).reshape(-1, 1, 8, 8) / 16)
    assert (raw.argmax(1) == z_test).mean() > 0.9
    assert isinstance(module.layers[-1], nn.LazyLinear)  # the user's own stays as it was


def test_a_function_that_builds_the_module():
    network = Network(lambda n, k: nn.Sequential(nn.Linear(n, 8), nn.Tanh(), nn.Linear(8, k)))
    network.set_params(epochs=3)
    assert network.fit(linear_task()).model.raw(np.ones((4, 3))).shape == (4, 1)


@pytest.mark.parametrize(
    ("X", "error", "match"),
    [
        (lambda x: np.where(np.arange(200)[:, None] == 7, np.nan, x), ValueError, "row 7"),
        (
            lambda x: torch.as_tensor(np.where(np.arange(200)[:, None] == 7, np.nan, x)),
            ValueError,
            "row 7",
        ),
        (lambda x: sparse.csr_matrix(x), TypeError, "sparse"),
        (lambda x: pd.DataFrame({"a": ["x"] * 200}), TypeError, "'a'"),
    ],
)
def test_bad_tables(X, error, match):
    with pytest.raises(error, match=match):
        Network(**SMALL).fit(linear_task(X=X))


@pytest.mark.parametrize(
    ("parameters", "error", "match"),
    [
        ({"schedule": "linear"}, ValueError, "cosine"),
        ({"precision": "float16"}, ValueError, "bf16"),
        ({"epochs": 0}, ValueError, "epochs"),
        ({"patience": 0}, ValueError, "patience"),
        ({"module": 3}, TypeError, "function"),
        ({"module": lambda n, k: 3}, TypeError, "must build"),
        ({"module": nn.Linear(3, 2)}, ValueError, "1 number"),
        ({"module": nn.Softplus()}, ValueError, "1 number"),
        ({"module": nn.Sequential(nn.Flatten(), nn.AvgPool1d(3))}, ValueError, "no parameters"),
    ],
)
def test_bad_parameters(parameters, error, match):
    with pytest.raises(error, match=match):
        Network(**parameters).fit(linear_task())


def test_a_loss_that_is_no_number_is_an_error():
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x) * torch.nan

    with pytest.raises(FloatingPointError, match="lower lr"):
        Network(Broken(3, 1), epochs=1).fit(linear_task())


def test_scikit_learn_manners():
    network = Network(nn.Linear(3, 1), epochs=7, checkpoint="x")
    assert network.get_params()["module"] is network.module
    copied = clone(network)
    assert copied.get_params()["epochs"] == 7
    assert copied.module is not network.module


# ---- how it is kept


def test_save_and_load(tmp_path):
    task = linear_task()
    model = Network(hidden=(16, 8), dropout=0.1, epochs=2).fit(task).model
    facts = model.save(tmp_path)
    assert facts == {"module": "mlp", "n_features": 3, "hidden": [16, 8], "dropout": 0.1}
    assert np.array_equal(NetworkModel.load(tmp_path, facts).raw(task.X), model.raw(task.X))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).raw(task.X), model.raw(task.X))
    with pytest.raises(ValueError, match="3"):
        model.raw(task.X[:, :2])
    file = tmp_path / "network.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match="cut short or altered"):
        NetworkModel.load(tmp_path, facts)


def test_save_and_load_of_a_module_of_the_user(tmp_path):
    task, module = linear_task(), nn.Linear(3, 1)
    model = Network(module, epochs=2).fit(task).model
    facts = model.save(tmp_path)
    with pytest.raises(ValueError, match=r"load\(folder, module="):
        NetworkModel.load(tmp_path, facts)
    with pytest.raises(ValueError, match="do not fit"):
        NetworkModel.load(tmp_path, facts, module=nn.Linear(2, 1))
    for given in (module, nn.Linear):
        loaded = NetworkModel.load(tmp_path, facts, module=given)
        assert np.array_equal(loaded.raw(task.X), model.raw(task.X))
    assert copy.deepcopy(module).weight.shape == (1, 3)


# ---- the guide of other learners


def test_pilot_takes_gaps_and_categories_and_tells_classes_apart():
    rng = np.random.default_rng(0)
    z = rng.integers(0, 3, 300)
    frame = pd.DataFrame({"a": rng.normal(4 * z), "b": pd.Categorical(list("xyz"))[z], "c": "k"})
    frame.loc[::10, "a"] = np.nan
    pairs = sw.Similarity().observe(z, sw.Sets.random(300, 800, 2, seed=0))
    task = make_task(frame, sw.Categorical(3), [pairs], restarts=2)
    raw = Network.pilot(task)
    assert raw.shape == (300, 3)
    assert raw.dtype == torch.float64
    assert aligned_accuracy(raw.numpy(), z) > 0.98
    assert task.progress.history == []


def test_any_table_as_numbers(monkeypatch):
    X = np.array([[1.0, np.nan], [3.0, 2.0]])
    np.testing.assert_array_equal(as_numbers(X), [[1.0, 2.0], [3.0, 2.0]])
    frame = pl.DataFrame({"a": [1.0, None], "b": ["x", "y"], "c": [True, False]})
    np.testing.assert_array_equal(as_numbers(frame), [[1.0, 1, 0, 1], [1.0, 0, 1, 0]])
    wide = sparse.random(100, 200, 0.1, "csr", random_state=0)
    np.testing.assert_array_equal(as_numbers(wide), wide.toarray())
    monkeypatch.setattr(network_numbers, "DENSE", 100)
    assert as_numbers(wide).shape == (100, network_numbers.COMPONENTS)
    tensor = torch.zeros(2, 3, 3)
    assert as_numbers(tensor) is tensor


# ---- beginnings


class Wrapped(nn.Module):
    """A network whose outputs are those of a linear layer, or not quite."""

    def __init__(self, n_features, n_outputs, scale):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_features, 64), nn.ReLU(), nn.Linear(64, n_outputs))
        self.scale = scale

    def forward(self, x):
        return self.layers(x / 8 - 1) * self.scale


@pytest.mark.parametrize("scale", [None, 1.0, 3.0])
@pytest.mark.parametrize(
    "aggregate", [sw.Similarity(), sw.Triplet(), sw.Triplet(three_way=True)], ids=repr
)
def test_many_classes_begin_as_clusters(monkeypatch, aggregate, scale):
    """Ten digits, of which only is known which are alike, after a few epochs."""
    X, z = load_digits(return_X_y=True)
    observed = aggregate.observe(z[:1300], sw.Sets.random(1300, 2600, aggregate.size, seed=0))
    module = None if scale is None else lambda n, k: Wrapped(n, k, scale)
    tried = []
    random = network_beginning._best

    def best(*args):
        tried.append(args)
        return random(*args)

    monkeypatch.setattr(network_beginning, "_best", best)
    monkeypatch.setattr(network_beginning, "STEPS", (500, 1000))
    learner = Network(module, epochs=8)
    est = sw.AggregateClassifier(
        10, learner, n_restarts=2, random_state=0, validation=None, verbose=0
    )
    est.fit(X[:1300], observed)
    assert bool(tried) == (scale == 3.0)  # a factor behind the last layer is noticed
    if not tried:
        assert sw.metrics.permutation_accuracy(z[1300:], est.predict(X[1300:])) > 0.85


def test_what_begins_at_random():
    z = load_digits().target
    sets = sw.Sets.random(len(z), 50, 2, seed=0)
    pairs = sw.Similarity().observe(z, sets)
    found = network_beginning._alike(Objective(sw.Categorical(10), [pairs], len(z)))
    np.testing.assert_array_equal(found[0], sets.indices.reshape(-1, 2))
    np.testing.assert_array_equal(found[1], pairs.y == 1)
    weight = (np.arange(50) % 2).astype(float)
    some = sw.Observations(sw.Similarity(), sets, pairs.y, weight=weight)
    found = network_beginning._alike(Objective(sw.Categorical(10), [some], len(z)))
    np.testing.assert_array_equal(found[0], sets.indices.reshape(-1, 2)[1::2])
    two = Objective(sw.Categorical(2), [sw.Similarity().observe(z % 2, sets)], len(z))
    assert network_beginning._alike(two) is None
    named = sw.Direct().observe(z, [[0], [1]])
    assert network_beginning._alike(Objective(sw.Categorical(10), [pairs, named], len(z))) is None
    far = sw.Triplet(distance=np.abs(np.subtract.outer(range(10), range(10))))
    seen = far.observe(z, sw.Sets.random(len(z), 50, 3, seed=0))
    assert network_beginning._alike(Objective(sw.Categorical(10), [seen], len(z))) is None
    for flip, told in ((0.2, True), (0.6, False)):
        noisy = sw.Observations(sw.Noisy(sw.Similarity(), flip=flip), sets, pairs.y)
        found = network_beginning._alike(Objective(sw.Categorical(10), [noisy], len(z)))
        assert (found is not None) == told


@pytest.mark.parametrize("three_way", [False, True])
def test_what_triplets_say_of_pairs(three_way):
    """Whatever is called alike is; what is called unlike may be the rare exception."""
    z = np.random.default_rng(0).integers(0, 8, 300)
    aggregate = sw.Triplet(three_way=three_way)
    seen = aggregate.observe(z, sw.Sets.random(300, 2000, 3, seed=1))
    pairs, alike = aggregate.alike(seen.sets, seen.y)
    same = z[pairs[:, 0]] == z[pairs[:, 1]]
    assert same[alike].all()
    assert same[~alike].mean() < 3 / 57  # about once in 8² − 8 + 1 times
    assert len(pairs) == (4000 if three_way else 2000 + int(seen.y.sum()))
