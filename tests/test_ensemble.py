"""Ensembles and blends: matched, averaged as distributions, saved and loaded."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

import setwise as sw
from setwise.learners.ensemble import average, match

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3))
Z = X @ [2.0, -1.0, 0.0] + RNG.normal(size=400)
CLASSES = np.stack([X[:, 0], X[:, 1], -X[:, 0] - X[:, 1]], 1).argmax(1)
MEANS = sw.Mean().observe(Z, sw.Sets.random(400, 600, 3, seed=1))
PAIRS = sw.Similarity().observe(CLASSES, sw.Sets.random(400, 3000, 2, replace=False, seed=2))
RANKS = sw.Rank().observe(Z, sw.Sets.random(400, 1500, 2, replace=False, seed=3))


def fit(learner, observed, **kwargs):
    return sw.AggregateRegressor(
        learner=learner, validation=None, random_state=0, verbose=0, **kwargs
    ).fit(X, observed)


def test_resampled_copies_differ_and_their_average_is_better_than_one():
    est = fit(sw.Ensemble("lightgbm", n=6), MEANS)
    each = est.model_.each(X)[:, :, 0]
    assert each.std(0).min() > 0
    assert torch.allclose(each.mean(0), torch.tensor(est.predict(X)))
    truth = X @ [2.0, -1.0, 0.0]
    errors = ((each - torch.tensor(truth)) ** 2).mean(1)
    assert np.mean((est.predict(X) - truth) ** 2) < errors.mean()


def test_without_resampling_a_deterministic_learner_gives_the_same_every_time():
    each = fit(sw.Ensemble(sw.Linear(), n=3, resample=None), MEANS).model_.each(X)
    assert torch.equal(each[0], each[1])


def test_copies_of_permuted_classes_are_matched():
    est = sw.AggregateClassifier(
        3, sw.Ensemble(sw.Network(epochs=30), n=3), validation=None, random_state=0, verbose=0
    ).fit(X, PAIRS)
    each = est.model_.each(X).softmax(2)
    for p in each[1:]:
        assert (p.argmax(1) == each[0].argmax(1)).double().mean() > 0.8
    assert sw.metrics.permutation_accuracy(CLASSES, est.predict(X)) > 0.85


def test_shifts_of_ranks_are_matched():
    each = fit(sw.Ensemble(sw.Linear(), n=4), RANKS).model_.each(X)[:, :, 0]
    assert float(each.mean(1).std()) < 1e-8


def test_average_of_classes_logarithms_and_locations():
    logits = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()
    assert torch.allclose(
        average(["logit_0", "logit_1"], logits, [0.5, 0.5]).softmax(1), torch.tensor([[0.7, 0.3]])
    )
    raws = torch.tensor([[[1.0, 0.0]], [[3.0, np.log(3.0)]]])
    loc, scale = average(["loc", "log_scale"], raws, [0.5, 0.5])[0]
    assert float(loc) == 2.0
    assert float(scale.exp()) == pytest.approx(2.0)


def test_match_respects_what_labels_leave_open():
    open_order = sw.identifiability.identify(sw.Categorical(3), [PAIRS])
    to = torch.eye(3) * 5
    assert match(open_order, to, to[:, [2, 0, 1]]).classes == (1, 2, 0)
    assert match(None, to, to[:, [2, 0, 1]]).classes is None


@pytest.mark.parametrize(
    "learner",
    [
        sw.Ensemble(sw.Linear(), n=2),
        sw.Ensemble(sw.LightGBM(n_estimators=5), n=2),
        sw.Ensemble(sw.Network(epochs=25), n=2),
        sw.Blend([sw.Linear(), sw.LightGBM(n_estimators=5)], [0.75, 0.25]),
        sw.Auto([sw.Linear(), sw.LightGBM(n_estimators=5)]),
    ],
    ids=lambda learner: f"{type(learner).__name__}",
)
def test_saved_and_loaded_it_predicts_the_same(learner, tmp_path):
    est = sw.AggregateRegressor(learner=learner, random_state=0, verbose=0).fit(X, MEANS)
    est.save(tmp_path / "model")
    same = sw.load(tmp_path / "model")
    np.testing.assert_array_equal(same.predict(X), est.predict(X))
    assert same.leaderboard_ == est.leaderboard_
    assert repr(clone(learner)) == repr(learner)


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (sw.Ensemble(n=0), "at least 1"),
        (sw.Ensemble(resample="rows"), '"sets" or None'),
        (sw.Blend([]), "one positive weight"),
        (sw.Blend(["linear"], [0.0]), "one positive weight"),
    ],
)
def test_bad_choices_are_refused(learner, said):
    with pytest.raises(ValueError, match=said):
        fit(learner, MEANS)
