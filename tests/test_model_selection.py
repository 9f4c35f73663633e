"""Folds without leakage, scores of held-out sets, and the search for parameters."""

from __future__ import annotations

import builtins

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import setwise as sw
from setwise.estimators import AggregateRegressor
from setwise.learners import LightGBM, Linear
from setwise.model_selection import SetKFold, cross_validate, search

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
Z = X @ [1.0, -2.0, 0.5] + RNG.normal(0, 0.3, 300)
GROUPS = sw.Mean().observe(Z, sw.Sets.from_groups(np.repeat(np.arange(75), 4)))


def regressor(learner="linear", **kwargs):
    return AggregateRegressor(learner=learner, random_state=0, validation=None, verbose=0, **kwargs)


def means(sets):
    return sw.Observations(sw.Mean(), sets, np.arange(float(len(sets))))


def rows_of(observations):
    return set(np.concatenate([o.sets.indices for o in observations]).tolist())


def check_folds(folds, X, kinds, n_splits):
    """No leakage, no set twice, and the counts are right; returns sizes (train, test)."""
    parts = list(folds.split(X, kinds))
    kinds = [kinds] if isinstance(kinds, sw.Observations) else kinds
    assert len(parts) == n_splits == len(folds.dropped_)
    n = sum(map(len, kinds))
    seen = [[] for _ in kinds]
    for (train, test), dropped in zip(parts, folds.dropped_, strict=True):
        assert len(train) == len(test) == len(kinds)
        assert sum(map(len, train)) + sum(map(len, test)) + dropped == n
        assert sum(map(len, train)) > 0
        assert sum(map(len, test)) > 0
        if folds.disjoint == "rows":
            assert not rows_of(train) & rows_of(test)
        for k, o in enumerate(test):
            seen[k].extend(o.y.tolist())
    for k, o in enumerate(kinds):
        if len(np.unique(o.y)) == len(o):
            assert len(set(seen[k])) == len(seen[k])  # each set is held out at most once
            assert set(seen[k]) <= set(o.y.tolist())
    return [(sum(map(len, train)), sum(map(len, test))) for train, test in parts]


# ---- folds


def test_sets_without_common_rows_are_simply_dealt_out():
    folds = SetKFold(4, random_state=1)
    sizes = check_folds(folds, X, GROUPS, 4)
    assert folds.dropped_ == [0] * 4
    assert sorted(test for _, test in sizes) == [18, 19, 19, 19]


def test_connected_sets_stay_together():
    within = [[10 * g, 10 * g + k] for g in range(30) for k in range(1, 9)]
    folds = SetKFold(5, random_state=0)
    sizes = check_folds(folds, X, means(within), 5)
    assert folds.dropped_ == [0] * 5
    assert all(abs(test - 48) < 16 for _, test in sizes)
    for train, test in folds.split(X, means(within)):
        queries = [{r // 10 for r in rows_of(part)} for part in (train, test)]
        assert not queries[0] & queries[1]


@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_lose_only_their_borders(shuffle):
    windows = means(sw.Sets([[i, i + 1, i + 2] for i in range(298)]))
    folds = SetKFold(5, shuffle=shuffle, random_state=0)
    sizes = check_folds(folds, X, windows, 5)
    assert folds.dropped_ == [2, 4, 4, 4, 2]
    assert sum(test for _, test in sizes) == 298
    if not shuffle:
        first = next(iter(folds.split(X, windows))).test[0]
        assert first.y.tolist() == list(range(60))


def test_groups_in_their_order():
    folds = SetKFold(5, shuffle=False)
    tests = [test[0].sets.indices for _, test in folds.split(X, GROUPS)]
    assert np.concatenate(tests).tolist() == list(range(300))


@pytest.mark.filterwarnings("ignore:sets share rows")
def test_a_grid_of_neighbours_loses_little():
    at = np.arange(400).reshape(20, 20)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], 1)
    folds = SetKFold(4, random_state=0)
    pairs = means(np.concatenate([across, down]))
    sizes = check_folds(folds, np.zeros((400, 1)), pairs, 4)
    assert sum(test for _, test in sizes) == len(pairs)
    assert max(folds.dropped_) < 0.2 * len(pairs)


@pytest.mark.filterwarnings("ignore:sets share rows")
@pytest.mark.parametrize(
    ("n", "m", "size"), [(300, 3000, 2), (2000, 2000, 4), (4000, 3000, (2, 9))]
)
def test_sets_that_overlap_at_random(n, m, size):
    folds = SetKFold(5, random_state=0)
    sizes = check_folds(folds, np.zeros((n, 1)), means(sw.Sets.random(n, m, size, seed=1)), 5)
    for train, test in sizes:
        assert train >= 0.39 * m
        assert test >= 10
    again = SetKFold(5, random_state=0)
    assert sizes == check_folds(
        again, np.zeros((n, 1)), means(sw.Sets.random(n, m, size, seed=1)), 5
    )
    other = SetKFold(5, random_state=1)
    assert sizes != check_folds(
        other, np.zeros((n, 1)), means(sw.Sets.random(n, m, size, seed=1)), 5
    )


def test_what_is_left_out_is_told():
    overlapping = means(sw.Sets.random(300, 300, 3, seed=1))
    with pytest.warns(UserWarning, match=r"on average \d\d% of the 300 sets are left out"):
        SetKFold(5, random_state=0).split(X, overlapping)


def test_large_overlapping_sets_are_refused_with_advice():
    with pytest.raises(ValueError, match="disjoint='sets'"):
        SetKFold(5).split(X, means(sw.Sets.random(300, 300, 32, seed=1)))
    with pytest.raises(ValueError, match="share so many rows"):
        SetKFold(3).split(X, means([[0, 1], [0, 2], [0, 3], [0, 4], [0, 5]]))
    folds = SetKFold(5, disjoint="auto", random_state=0)
    with pytest.warns(UserWarning, match="no fold can hold rows out"):
        found = list(folds.split(X, means(sw.Sets.random(300, 300, 32, seed=1))))
    assert folds.disjoint_ == "sets"
    assert sum(len(test[0]) for _, test in found) == 300
    assert len(list(folds.split(X, GROUPS))) == 5
    assert folds.disjoint_ == "rows"
    folds = SetKFold(5, disjoint="sets", random_state=0)
    sizes = check_folds(folds, X, means(sw.Sets.random(300, 300, 32, seed=1)), 5)
    assert sizes == [(240, 60)] * 5
    assert folds.dropped_ == [0] * 5


def test_kinds_are_split_together():
    pairs = sw.Observations(sw.Difference(), np.arange(300).reshape(150, 2), np.arange(150.0))
    some = sw.Observations(sw.Direct(), np.arange(0, 300, 30)[:, None], np.arange(10.0))
    for disjoint in ("rows", "sets"):
        folds = SetKFold(5, disjoint=disjoint, random_state=0)
        sizes = check_folds(folds, X, [GROUPS, pairs, some], 5)
        assert all(abs(test - 47) <= 5 for _, test in sizes)
    assert all(len(test[2]) == 2 for _, test in folds.split(X, [GROUPS, pairs, some]))


def test_bad_folds():
    with pytest.raises(ValueError, match="n_splits"):
        SetKFold(1).split(X, GROUPS)
    with pytest.raises(ValueError, match="n_splits"):
        SetKFold(76).split(X, GROUPS)
    with pytest.raises(ValueError, match="disjoint"):
        SetKFold(disjoint="columns").split(X, GROUPS)
    with pytest.raises(ValueError, match="names row 299"):
        SetKFold().split(X[:100], GROUPS)
    with pytest.raises(TypeError, match="Observations"):
        SetKFold().split(X, [1, 2])
    assert repr(clone(SetKFold(3, disjoint="sets"))) == "SetKFold(disjoint='sets', n_splits=3)"
    assert SetKFold(3).get_n_splits() == 3


# ---- scores


def test_held_out_sets_that_share_rows_flatter_the_learner():
    """Pure noise, each row seen twice: what was remembered of a row must not count."""
    noise = np.random.default_rng(1).normal(size=300)
    twice = sw.Direct().observe(noise, np.tile(np.arange(300), 2)[:, None])
    greedy = LightGBM(n_estimators=60, min_data_in_leaf=1, num_leaves=63, num_threads=1)
    scale = sw.Normal(scale=1.0)
    est = regressor(greedy, distribution=scale, overlap="independent")
    score = {
        how: cross_validate(est, X, twice, SetKFold(3, disjoint=how, random_state=0))["test_score"]
        for how in ("rows", "sets")
    }
    best = -0.5 * np.log(2 * np.pi * np.e)  # what the true distribution can hope for
    assert score["sets"].mean() > best + 0.1
    assert score["rows"].mean() < best - 0.1


def test_cross_validate():
    est = regressor()
    found = cross_validate(est, X, GROUPS, 4, return_train_score=True, return_estimator=True)
    assert not hasattr(est, "model_")
    names = [
        "test_score",
        "fit_time",
        "score_time",
        "n_train",
        "n_test",
        "train_score",
        "estimator",
    ]
    assert list(found) == names
    assert all(len(found[name]) == 4 for name in names)
    assert (found["n_train"] + found["n_test"] == 75).all()
    folds = list(SetKFold(4, random_state=0).split(X, GROUPS))
    for (train, test), fitted, score in zip(
        folds, found["estimator"], found["test_score"], strict=True
    ):
        again = regressor().fit(X, train)
        assert score == fitted.score(X, test, profile=True) == again.score(X, test, profile=True)
    with joblib.parallel_config(backend="threading"):
        again = cross_validate(est, X, GROUPS, folds, n_jobs=2)
    assert again["test_score"].tolist() == found["test_score"].tolist()
    assert "estimator" not in again


def test_cross_validate_takes_pipelines_and_parameters_of_fit():
    piped = make_pipeline(StandardScaler(), regressor())
    assert cross_validate(piped, X, GROUPS, 3)["test_score"].shape == (3,)
    learner = LightGBM(n_estimators=50, early_stopping_rounds=1, num_threads=1)
    found = cross_validate(
        regressor(learner), X, GROUPS, 3, fit_params={"eval": (X, GROUPS)}, return_estimator=True
    )
    assert all("valid" in e.history_[0] for e in found["estimator"])
    with pytest.raises(ValueError, match="pairs"):
        cross_validate(piped, X, GROUPS, [])


# ---- search


def test_search_finds_what_is_plain():
    space = {
        "learner__alpha": (1e-3, 1e5, "log"),
        "distribution": ["normal", sw.Normal(scale=50.0)],
    }
    est = regressor()
    result = search(est, X, GROUPS, space, n_trials=12, cv=3, random_state=0)
    assert est.learner == "linear"
    assert result.best_params_["learner__alpha"] < 300
    assert result.best_params_["distribution"] == "normal"
    assert result.best_score_ == max(t["score"] for t in result.trials_)
    assert len(result.trials_) == len(result.study_.trials) == 12
    assert {"number", "score", "std", "seconds", *space} == set(result.trials_[0])
    best = result.best_estimator_
    assert best.learner.alpha == result.best_params_["learner__alpha"]
    assert np.corrcoef(best.predict(X), Z)[0, 1] > 0.9
    assert "best of 12 trials" in repr(result)
    again = search(est, X, GROUPS, space, n_trials=12, cv=3, random_state=0, refit=False)
    assert again.best_estimator_ is None
    assert [t["score"] for t in again.trials_] == [t["score"] for t in result.trials_]


def test_search_leaves_learners_alone():
    given = LightGBM(n_estimators=2, num_threads=1)
    est = regressor(given)
    space = {"learner__num_leaves": (2, 5), "learner__learning_rate": (0.1, 0.5)}
    found = search(est, X, GROUPS, space, n_trials=2, cv=2, random_state=0)
    assert given.params == {"n_estimators": 2, "num_threads": 1}
    assert isinstance(found.best_params_["learner__num_leaves"], int)
    assert found.best_estimator_.learner.params["num_leaves"] in range(2, 6)
    choices = [Linear(), Linear(alpha=100.0)]
    found = search(est, X, GROUPS, {"learner": choices}, n_trials=4, cv=2, random_state=0)
    assert found.best_params_["learner"] in choices
    assert found.best_estimator_.learner is not found.best_params_["learner"]


def test_nested_names_reach_a_pipeline():
    piped = make_pipeline(StandardScaler(), regressor())
    space = {"aggregateregressor__learner__alpha": (0.1, 10.0)}
    found = search(piped, X, GROUPS, space, n_trials=2, cv=2, random_state=0)
    assert found.best_estimator_[-1].learner.alpha == found.best_params_[next(iter(space))]


def test_trials_that_fail():
    space = {"distribution": ["normal", "poisson"]}  # some means are negative: no counts
    with pytest.warns(UserWarning, match="of 8 trials failed"):
        found = search(regressor(), X, GROUPS, space, n_trials=8, cv=2, random_state=0)
    assert found.best_params_ == {"distribution": "normal"}
    failed = [t for t in found.trials_ if t["score"] is None]
    assert failed
    assert all("SetError" in t["error"] for t in failed)
    with pytest.raises(RuntimeError, match="all 2 trials failed"):
        search(regressor(), X, GROUPS, {"distribution": ["poisson"]}, n_trials=2, cv=2)


def test_timeout():
    found = search(regressor(), X, GROUPS, {"learner__alpha": (0.0, 1.0)}, 10**6, cv=2, timeout=0.5)
    assert 1 <= len(found.trials_) < 10**6


@pytest.mark.parametrize(
    "spec",
    [[], (1,), (2, 1), (0.0, 1.0, "log"), (1, 2, "linear"), ("a", "b"), (False, True), "abc"],
)
def test_bad_spaces(spec):
    with pytest.raises(ValueError, match=r"space\['learner__alpha'\] must be"):
        search(regressor(), X, GROUPS, {"learner__alpha": spec})


def test_unknown_parameters():
    with pytest.raises(ValueError, match="beta"):
        search(regressor(), X, GROUPS, {"learner__beta": [1]})


def test_without_optuna(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "optuna":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'setwise\[search\]'"):
        search(regressor(), X, GROUPS, {"learner__alpha": [1.0]})
