"""Held-out sets choose, by default: learner, penalty, steps and spread."""

import warnings

import numpy as np
import pytest

import setwise as sw
from setwise.distributions.base import interval
from setwise.objective import Objective
from setwise.validation import hold_out

TREES = sw.LightGBM(num_threads=1)


def towns(seed=0, n=3000, groups=300, noise=5.0):
    """Rows in towns, of which only the mean is known; E[z|x] has a bend."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2 * n, 6))
    z = 3 * X[:, 0] + 4 * np.sin(2 * X[:, 1]) + noise * rng.normal(size=2 * n)
    means = sw.Mean().observe(z[:n], sw.Sets.from_groups(rng.integers(0, groups, n)))
    return X[:n], means, X[n:], z[n:]


def covered(est, X, z):
    low, high = interval(est.predict_dist(X), 0.9)
    return float(np.mean((low <= z) & (z <= high)))


@pytest.mark.parametrize("learner", ["linear", TREES, sw.Network(epochs=30)], ids=str)
def test_intervals_of_single_rows_hold_what_they_say(learner):
    X, means, new, z = towns()
    est = sw.AggregateRegressor(learner=learner, random_state=0, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # thirty epochs may be few
        est.fit(X, means)
    assert 0.84 < covered(est, new, z) < 0.96
    assert est.validation_ == "rows"
    assert est.held_out_score_ > est.constant_score_


def test_without_validation_residuals_of_what_was_learned_are_too_small():
    X, means, new, z = towns()
    est = sw.AggregateRegressor(learner=TREES, validation=None, verbose=0).fit(X, means)
    assert covered(est, new, z) < 0.8
    assert est.validation_ is None
    assert est.leaderboard_ == []


def test_labels_of_single_rows_and_sums_are_covered_too():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2000, 4))
    z = 5 + X[:, 0] + np.abs(X[:, 1]) + 0.8 * rng.normal(size=2000)
    for observed in (
        sw.Direct().observe(z[:1000], np.arange(1000)[:, None]),
        sw.Sum().observe(z[:1000], sw.Sets.from_groups(rng.integers(0, 250, 1000))),
        sw.Difference().observe(z[:1000], sw.Sets.random(1000, 1500, 2, replace=False, seed=1)),
    ):
        est = sw.AggregateRegressor(learner=TREES, random_state=0, verbose=0).fit(
            X[:1000], observed
        )
        if isinstance(observed.aggregate, sw.Difference):
            est.align(X[:200], z[:200])
        assert 0.84 < covered(est, X[1000:], z[1000:]) < 0.96, observed


def test_auto_takes_a_line_where_there_is_one_and_trees_where_not():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 4))
    sets = sw.Sets.from_groups(rng.integers(0, 500, 1500))
    pool = sw.Auto([sw.Linear(), TREES])
    for truth, wanted in (
        (X @ [1.0, 2.0, 0.0, 0.0], "Linear"),
        (np.sign(X[:, 0] * X[:, 1]), "LightGBM"),
    ):
        z = truth + 0.3 * rng.normal(size=1500)
        est = sw.AggregateRegressor(learner=pool, random_state=0, verbose=0)
        est.fit(X, sw.Mean().observe(z, sets))
        names = [row["learner"] for row in est.leaderboard_]
        assert wanted in names[0]
        assert len([name for name in names if name.startswith("Linear")]) == 5  # penalties
        assert any(name.startswith("Blend") for name in names)
        scores = [row["score"] for row in est.leaderboard_]
        assert scores == sorted(scores, reverse=True)
        assert est.held_out_score_ == scores[0]


def test_a_learner_that_cannot_learn_from_so_few_rows_is_left_out():
    X = np.arange(24.0).reshape(12, 2)
    means = sw.Mean().observe(X[:, 0], np.arange(12).reshape(12, 1))
    est = sw.AggregateRegressor(learner=sw.Auto([TREES, sw.Linear()]), verbose=0).fit(X, means)
    assert "Linear" in est.leaderboard_[0]["learner"]
    assert "can split none" in est.leaderboard_[-1]["error"]


def test_known_rows_are_held_out_where_all_share_them():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 3))
    sets = sw.Sets.random(40, 300, 8, replace=False, seed=0)
    est = sw.AggregateRegressor(learner="linear", overlap="independent", verbose=0)
    est.fit(X, sw.Mean().observe(X[:, 0] + rng.normal(size=40), sets))
    assert est.validation_ == "sets"


def test_too_few_sets_are_all_learned_from():
    X = np.random.default_rng(0).normal(size=(20, 2))
    est = sw.AggregateRegressor(learner="linear", verbose=0)
    est.fit(X, sw.Mean().observe(X[:, 0], np.arange(8).reshape(4, 2)))
    assert est.validation_ == "nothing"


def test_a_model_no_better_than_a_constant_says_so():
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(400, 3)), rng.normal(size=200)
    noise = sw.Observations(sw.Mean(), np.arange(400).reshape(200, 2), y)
    est = sw.AggregateRegressor(learner=sw.Linear(alpha=0.0), verbose=0)
    with pytest.warns(UserWarning, match="no better than a constant: their mean log-likelihood"):
        est.fit(X, noise)


def test_probabilities_are_as_sure_as_held_out_sets_say():
    """Trees that learn a few bags by heart are too sure; held-out bags are not deceived."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(2400, 6))
    z = (rng.random(2400) < 1 / (1 + np.exp(3 - 2 * X[:, 0]))).astype(int)
    bags = sw.AnyPositive().observe(z, np.arange(2400).reshape(600, 4))
    learn, new = bags.take(slice(200)), bags.take(slice(200, 600))
    scores = {}
    for validation in ("auto", None):
        est = sw.AggregateClassifier(2, TREES, validation=validation, random_state=0, verbose=0)
        scores[validation] = est.fit(X, learn).score(X, new)
    assert scores["auto"] > scores[None] + 0.02


def test_bad_choices_are_refused():
    X, means, *_ = towns(n=100, groups=20)
    with pytest.raises(ValueError, match='validation is "auto" or None'):
        sw.AggregateRegressor(validation=0.2, verbose=0).fit(X, means)
    with pytest.raises(ValueError, match='at least 0, or "auto"'):
        sw.AggregateRegressor(learner=sw.Linear(alpha="much"), verbose=0).fit(X, means)


def test_features_that_only_name_rows_are_judged_by_sets_of_known_rows():
    """Players with a column each: of a player that was never seen nothing can be said."""
    rng = np.random.default_rng(6)
    strength = rng.normal(size=60)
    games = sw.Sets(np.stack([rng.permutation(60)[:2] for _ in range(3000)]))
    first, second = strength[games.indices.reshape(-1, 2)].T
    won = rng.random(3000) < 1 / (1 + np.exp(second - first))
    ranks = sw.Observations(sw.Rank(), games, won)
    est = sw.AggregateRegressor("gumbel", "linear", verbose=0).fit(np.eye(60), ranks)
    assert est.validation_ == "sets"
    assert np.corrcoef(est.predict(np.eye(60)), strength)[0, 1] > 0.97


def test_averages_of_models_are_not_said_to_be_worse_than_a_constant():
    """Each of them has a spread of its own that is far too small; warnings are errors here."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 6))
    z = X[:, 0] + np.sin(3 * X[:, 1]) + 0.5 * rng.normal(size=800)
    tables = [
        sw.Mean().observe(z, sw.Sets.from_groups(rng.integers(0, groups, 800)))
        for groups in (8, 40, 12, 20)
    ]
    trees = sw.AggregateRegressor(learner="lightgbm", random_state=0, verbose=0)
    assert np.corrcoef(trees.fit(X, tables).predict(X), z)[0, 1] > 0.6


def test_a_table_shows_what_was_tried_and_what_there_was_no_time_for(monkeypatch, capsys):
    X, means, _, _ = towns(n=600, groups=60)
    pool = [sw.Linear(alpha=1.0), sw.LightGBM(num_leaves=3, num_threads=1), sw.Linear(alpha=10.0)]
    every = sw.AggregateRegressor(learner=sw.Auto(pool), random_state=0).fit(X, means)
    assert capsys.readouterr().err == ""  # a quick fit whose output is no terminal
    monkeypatch.setattr("setwise.learners.progress.FIRST", 0.0)
    one = sw.AggregateRegressor(learner=sw.Auto(pool, seconds=1e-9), random_state=0)
    one.fit(X, means)
    shown = capsys.readouterr().err
    assert "not tried" in shown
    assert "tried, on sets held out" in shown
    assert len(every.leaderboard_) > 3 == len(one.leaderboard_)
    assert repr(one.learner_) == repr(pool[0])
    for row in one.leaderboard_[1:]:
        assert row["error"].startswith("not tried: ")
    one.set_params(verbose=0).fit(X, means)
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="seconds must be positive"):
        sw.AggregateRegressor(learner=sw.Auto(pool, seconds=0), verbose=0).fit(X, means)


def ranked(seed, n=1500):
    """Rows of which pairs were compared, and forty labels that settle shift and unit."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2 * n, 4))
    z = 10 + 3 * np.abs(X[:, 0]) + 2 * X[:, 1] + 2 * rng.normal(size=2 * n)
    ranks = sw.Rank().observe(z[:n], sw.Sets.random(n, 4 * n, 2, seed=seed))
    return X[:n], [ranks, sw.Direct().observe(z[:n], np.arange(40)[:, None])], X[n:], z[n:]


def test_a_few_labels_settle_the_unit_of_ranks_and_are_not_known_by_heart(tmp_path):
    shares, slopes = [], []
    for seed in range(3):
        X, observed, new, z = ranked(seed)
        est = sw.AggregateRegressor(learner=TREES, random_state=0, verbose=0).fit(X, observed)
        shares.append(covered(est, new, z))
        slopes.append(np.polyfit(est.predict(new), z, 1)[0])
        assert np.mean((est.predict(new) - z) ** 2) < 5.6
    assert est.identifiability_ == "exactly"
    assert 0.86 < np.mean(shares) < 0.94  # 0.78 where trees learned from the labels, too
    assert 0.8 < np.mean(slopes) < 1.15  # 1.34
    est.save(tmp_path / "model")
    assert np.array_equal(sw.load(tmp_path / "model").predict(new), est.predict(new))
    assert covered(sw.load(tmp_path / "model"), new, z) == covered(est, new, z)
    est.set_params(validation=None).fit(X, observed)
    assert 0.84 < covered(est, new, z) < 0.96  # labels of rows not learned from tell the spread


def test_predicted_scales_keep_to_the_unit_of_the_labels():
    X, observed, new, z = ranked(0)
    family = sw.Normal(scale="predicted")
    est = sw.AggregateRegressor(family, TREES, random_state=0, verbose=0).fit(X, observed)
    assert 0.84 < covered(est, new, z) < 0.96


def test_many_labels_beside_ranks_are_learned_from():
    from setwise.learners import Task
    from setwise.objective import Objective
    from setwise.validation.unit import _labels_apart

    X, (ranks, _), _, z = ranked(0)

    def apart(observed, scale="shared"):
        objective = Objective(sw.Normal(scale=scale), observed, len(X))
        return _labels_apart(Task(X, objective, *objective.start()))

    left = apart([ranks, sw.Direct().observe(z, np.arange(40)[:, None])])
    assert not set(left.task.objective.observations[0].sets.indices) & set(range(40))
    assert left.task.objective.n_sets > 0.9 * len(ranks)
    some = apart([ranks, sw.Direct().observe(z, np.arange(500)[:, None])])  # not all are kept apart
    assert 40 < len(some.rows) < 100
    assert some.task.objective.n_sets >= 0.9 * len(ranks)
    crowded = apart([sw.Rank().observe(z, sw.Sets.random(30, 400, 2, seed=0)),
                     sw.Direct().observe(z, np.arange(20)[:, None])])  # fmt: skip
    assert (len(crowded.rows), crowded.task.objective.n_sets) == (20, 400)
    few, many = (sw.Direct().observe(z, np.arange(n)[:, None]) for n in (40, 900))
    assert apart([ranks, few]) is not None
    assert apart([ranks, many]) is None
    assert apart([few]) is None
    assert apart([ranks, few], 1.0) is None  # ranks tell this unit
    differences = sw.Difference().observe(z, ranks.sets)
    assert apart([differences, few]) is None


@pytest.mark.parametrize("alpha", ["auto", 1000.0])
def test_a_penalty_holds_a_part_of_the_sets_as_all_of_them(alpha):
    """The spread that suits sets held out is that of coefficients as small as those of the fit."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(1600, 3))
    z = X @ [1, -0.5, 0.3] + 0.5 * rng.normal(size=1600)
    halves = z[:800], z[800:]
    pairs, new = (sw.Rank().observe(h, sw.Sets.random(800, 2000, 2, seed=3)) for h in halves)
    est = sw.AggregateRegressor(learner=sw.Linear(alpha), random_state=0, verbose=0)
    est.fit(X[:800], pairs)
    assert est.score(X[800:], new) > est.score(X[800:], new, profile=True) - 0.01


def test_parts_take_turns_where_few_sets_keep_all_their_rows():
    """A third of the rows holds an 80th of random sets of four: too few to tell a spread."""
    few, many = (sw.Sets.random(800, 2000, size, seed=0) for size in (4, 2))
    X, z = np.arange(800.0)[:, None], np.arange(800.0)
    turns = []
    for sets in (few, many):
        objective = Objective(sw.Normal(), [sw.Max().observe(z, sets)], 800)
        turns.append(len(hold_out(X, objective, 0)[0]))
    assert turns == [5, 1]


def test_predicted_scales_hold_what_they_say():
    """The spread of one model does not suit another: those that were judged are averaged."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 3))
    z = X[:, 0] + np.exp(0.5 * X[:, 1]) * rng.normal(size=4000)
    means = sw.Mean().observe(z[:2000], np.arange(1998).reshape(-1, 3))
    est = sw.AggregateRegressor(sw.Normal(scale="predicted"), TREES, random_state=0, verbose=0)
    est.fit(X[:2000], means)
    assert 0.86 < covered(est, X[2000:], z[2000:]) < 0.96
