"""The tables `binary` and `multiclass` at tiny size, and what they are made of."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.cluster import KMeans
from torch.nn import functional as F
from typer.testing import CliRunner

from reproduction import baselines, batched, classification
from reproduction.baselines import METHODS, kmeans, nearest
from reproduction.batched import HeldOut, Perceptrons, Plan, Sample, fit, predict
from reproduction.command import app
from reproduction.runner import Cell
from setwise.metrics import permutation_accuracy


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(classification, "PROTOCOL", Plan(epochs=2))
    monkeypatch.setattr(classification, "BEST", replace(classification.BEST, epochs=2))
    monkeypatch.setattr(classification, "BEGIN", 1)
    monkeypatch.setattr(classification, "HIDDEN", (16, 16))
    rounds = {"n_estimators": 3, "early_stopping_rounds": 2}
    monkeypatch.setattr(classification, "BOOSTING", rounds)
    monkeypatch.setattr(classification, "SEVERAL", 2)


# ---- the tables


def call(table, datasets, out, *options):
    chosen = [table, "--datasets", datasets, "--out", str(out), *options]
    done = CliRunner().invoke(app, chosen)
    assert done.exit_code == 0, done.output
    with (out / f"{table}.csv").open(encoding="utf-8") as file:
        return done.output, list(csv.DictReader(file))


def test_every_column(tmp_path):
    networks = [name for name in classification.methods() if not name.endswith("_gbm")]
    plain = ("--trials", "2", "--methods", ",".join(networks))
    shown, rows = call("multiclass", "wine", tmp_path, *plain)
    assert "accuracy, %" in shown
    kinds = {(row["method"], row["setting"], row["trial"]) for row in rows}
    assert len(rows) == len(kinds) == len(networks) * 2 * 2
    assert all(0 < float(row["value"]) <= 100 for row in rows)
    with (tmp_path / "multiclass-history.csv").open(encoding="utf-8") as file:
        history = list(csv.DictReader(file))
    assert {r["method"] for r in history} == {n for n, m in METHODS.items() if not m.embeds}
    last = {(r["method"], r["trial"]): r["value"] for r in history if r["setting"] == "protocol"}
    for row in rows:
        if row["setting"] == "protocol" and not getattr(METHODS.get(row["method"]), "embeds", "-"):
            noted = float(last[row["method"], row["trial"]])
            assert noted == pytest.approx(float(row["value"]), abs=0.01)
    again = call("multiclass", "wine", tmp_path, *plain)[1]
    assert again == rows  # nothing is done twice


@pytest.mark.parametrize("kind", ["supervised", "similarity_mle"])
def test_boosting(tmp_path, kind):
    alone = ("--trials", "1", "--methods", f"{kind}_gbm")
    (row,) = call("binary", "breast-cancer", tmp_path, *alone)[1]
    assert float(row["value"]) > 85
    assert "rounds" in row["note"]
    assert row["setting"] == "best"  # the paper has no boosting here
    wrong = CliRunner().invoke(app, ["binary", *alone, "--setting", "protocol"])
    assert wrong.exit_code == 2
    assert "no protocol" in wrong.output


def test_missing_trials_are_done_alone(tmp_path):
    some = ("--methods", "similarity_mle,kmeans", "--setting", "best")
    whole = call("binary", "breast-cancer", tmp_path / "whole", "--trials", "3", *some)[1]
    path = tmp_path / "part" / "binary.csv"
    path.parent.mkdir()
    lines = (tmp_path / "whole" / "binary.csv").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[3][:9])  # killed while writing the third line
    part = call("binary", "breast-cancer", path.parent, "--trials", "3", *some)[1]

    def figures(rows):
        return {(r["method"], r["trial"]): (float(r["value"]), r["note"]) for r in rows}

    assert len(part) == 6
    assert figures(part) == figures(whole)  # a trial does not depend on those beside it


def test_unknown_names(tmp_path):
    for option, value in (("--methods", "kmean"), ("--device", "gpu"), ("--datasets", "diabetes")):
        wrong = CliRunner().invoke(app, ["binary", option, value])
        assert wrong.exit_code == 2, wrong.output
    if not torch.cuda.is_available():
        wrong = CliRunner().invoke(app, ["binary", "--device", "cuda"])
        assert wrong.exit_code == 2
        assert "CUDA" in wrong.output
    wrong = CliRunner().invoke(app, ["uci", "--device", "cuda"])
    assert wrong.exit_code == 2


def test_cells_of_a_group_differ_in_the_trial_only():
    with pytest.raises(ValueError, match="trial only"):
        classification.work_many([Cell("wine", m, "best", 0) for m in ("kmeans", "triplet")])


@pytest.mark.parametrize("method", ["similarity_mle", "triplet_mle", "triplet_mle_three_way"])
def test_sets_teach_classes(method, monkeypatch):
    monkeypatch.setattr(classification, "PROTOCOL", Plan(epochs=30, rate=3e-3))
    monkeypatch.setattr(classification, "HIDDEN", (32, 32))
    results = classification.work_many([Cell("breast-cancer", method, "protocol", 0)])
    assert results[0].value > 93


def test_trials_are_split_and_standardised_by_the_training_part():
    data = classification.prepare("wine", (0, 1), "cpu")
    a, b = data.cuts
    assert (a, b) == (106, 142)
    for rows, z in zip(data.rows(0, 178), data.z, strict=True):
        x = data.table[rows]
        torch.testing.assert_close(x[:a].mean(0), torch.zeros(13), atol=1e-5, rtol=0)
        torch.testing.assert_close(x[:a].std(0, correction=0), torch.ones(13))
        assert np.bincount(z).tolist() == [59, 71, 48]
    seen = classification.observe(data, METHODS["triplet"], (a, b), [0, 1])
    assert seen.members.shape == (2, 3 * (b - a), 3)
    first, second, third = data.z[0, a:b][seen.members[0]].T
    told = (first == second).astype(int) - (first == third)
    assert told.tolist() == seen.y[0].tolist()


# ---- networks side by side


@pytest.mark.parametrize("dropout", [(), (0.2, 0.5, 0.0)])
def test_a_batched_network_is_the_network_alone(dropout):
    rng = np.random.default_rng(0)
    table = torch.from_numpy(rng.normal(size=(40, 5))).float()
    members = torch.from_numpy(rng.integers(0, 40, (3, 50, 2)))
    y = torch.from_numpy(rng.integers(0, 2, (3, 50))).float()
    rows = torch.arange(40).expand(3, -1)
    plan = Plan(epochs=3, batch=16, cosine=True)
    loss = METHODS["similarity_mle"].loss

    def learn(which):
        model = Perceptrons([5, 8, 3], which, dropout=[dropout[r] for r in which if dropout])
        sample = Sample(members[which], y[which])
        best = fit(model, loss, table, sample, plan, which, HeldOut(rows[which], sample))
        return predict(model, table, rows[which]), best

    together, best = learn([0, 1, 2])
    for r in range(3):
        alone, own = learn([r])
        torch.testing.assert_close(alone[0], together[r], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(own[0], best[r], atol=1e-5, rtol=1e-4)


def test_a_perceptron_is_torchs():
    model = Perceptrons([4, 6, 3], [0, 1])
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    w1, b1, w2, b2 = (p[1] for p in model.layers)
    expected = F.linear(F.linear(x, w1.T, b1[0]).relu(), w2.T, b2[0])
    torch.testing.assert_close(model(x, torch.arange(7).expand(2, -1))[1], expected)


def test_the_best_weights_are_kept():
    table = torch.eye(6)
    sample = Sample(torch.arange(6).reshape(1, 6, 1), torch.tensor([[0.0, 1, 0, 1, 0, 1]]))
    wrong = Sample(sample.members, 1 - sample.y)  # learning only makes it worse
    model = Perceptrons([6, 4, 2], [0])
    loss = METHODS["supervised"].loss
    held_out = HeldOut(torch.arange(6)[None], wrong)
    best = fit(model, loss, table, sample, Plan(epochs=9, rate=0.05), [0], held_out)
    torch.testing.assert_close(batched.score(model, loss, table, held_out), best)


# ---- K-means and losses


@pytest.mark.parametrize("narrow", [None, 2])
def test_kmeans_against_sklearn(narrow):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(c, 1, (100, 3)) for c in (0, 4, 8, 12)]) + 50
    theirs = KMeans(4, n_init=10, random_state=0).fit(x)
    table = torch.from_numpy(x)
    centres = kmeans(table, 4, seed=1, narrow=narrow)
    label = nearest(table, centres)
    spread = float((table - centres[label]).square().sum())
    assert spread == pytest.approx(theirs.inertia_, rel=1e-6)
    assert permutation_accuracy(theirs.labels_, label.numpy()) == 1


def test_ranks_are_normal_scores_of_the_training_part():
    x = torch.tensor([[1.0, 5.0], [100.0, 5.0], [2.0, 5.0], [1.5, 4.0], [1e6, 6.0]])
    known = 3
    found = classification._ranks(x, known)
    want = norm.ppf(np.array([[1, 3], [5, 3], [3, 3], [2, 1], [5, 5]]) / 6)
    np.testing.assert_allclose(found, want, atol=1e-12)


def outputs(members, networks=1, sets=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(networks, sets, members, 4, generator=generator)


def test_losses_against_pytorch_metric_learning():
    from pytorch_metric_learning import distances, losses, reducers

    out, y = outputs(2), (torch.arange(32) % 2)[None].float()
    flat = out[0].flatten(0, 1)
    first, second = 2 * torch.arange(32), 2 * torch.arange(32) + 1
    same, other = y[0] == 1, y[0] == 0
    pairs = (first[same], second[same], first[other], second[other])
    theirs = losses.ContrastiveLoss(
        neg_margin=1.0,
        distance=distances.LpDistance(normalize_embeddings=False),
        reducer=reducers.DoNothingReducer(),
    )(flat, indices_tuple=pairs)
    # theirs are the distances, the paper's their squares
    total = sum(theirs[part]["losses"].square().sum() for part in ("pos_loss", "neg_loss"))
    torch.testing.assert_close(baselines.contrastive(out, y, y)[0], total / 32)

    out, y = outputs(3), torch.tensor([1.0, -1.0, 0.0, 1.0] * 8)[None]
    flat = F.normalize(out[0], dim=-1).flatten(0, 1)
    anchor = 3 * torch.arange(32)
    closer = torch.where(y[0] == 1, anchor + 1, anchor + 2)
    farther = torch.where(y[0] == 1, anchor + 2, anchor + 1)
    told = y[0] != 0
    triplets = tuple(t[told] for t in (anchor, closer, farther))
    theirs = losses.TripletMarginLoss(
        margin=0.2, distance=distances.LpDistance(power=2), reducer=reducers.MeanReducer()
    )(flat, indices_tuple=triplets)
    torch.testing.assert_close(baselines.triplet(out, y, y)[0], theirs)

    # a (2+1)-tuplet is an N-pair loss of one negative
    flat = out[0].flatten(0, 1)
    theirs = losses.NTXentLoss(
        temperature=1.0,
        distance=distances.DotProductSimilarity(normalize_embeddings=False),
        reducer=reducers.MeanReducer(),
    )(flat, indices_tuple=(triplets[0], triplets[1], triplets[0], triplets[2]))
    torch.testing.assert_close(baselines.tuplet(out, y, y)[0], theirs)


def test_siamese_is_a_logistic_regression_of_gaps():
    out, y = outputs(2, networks=2), torch.ones(2, 32)
    head = torch.tensor([[0.5, 1, 2, 3, 4], [0.0, 0, 0, 0, 0]])
    gap = (out[0, :, 0] - out[0, :, 1]).abs()
    expected = -F.logsigmoid(0.5 + gap @ torch.tensor([1.0, 2, 3, 4])).mean()
    found = baselines.siamese(out, y, head)
    torch.testing.assert_close(found, torch.stack([expected, torch.tensor(2.0).log()]))


@pytest.mark.parametrize("name", METHODS)
def test_losses_keep_networks_apart(name):
    method = METHODS[name]
    out = outputs(method.size, networks=2)
    y = torch.ones(2, 32)
    head = torch.full((2, 5), 0.1)
    each = [method.loss(out[r : r + 1], y[r : r + 1], head[r : r + 1]) for r in range(2)]
    torch.testing.assert_close(method.loss(out, y, head), torch.cat(each))
