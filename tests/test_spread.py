"""Held-out sets judge locations: the profile likelihood, and what it is used for."""

import copy
import math
import os
import warnings

import numpy as np
import pytest
import torch
from scipy import optimize

import setwise as sw
from benchmarks import held_out as benchmark
from setwise.checks.examples import example_raw
from setwise.distributions import Family, families, interval
from setwise.learners import learners
from setwise.objective import Intercept, Objective, judge, respread, surely_worse

CHOICES = ("shared", "predicted")


def kinds() -> list[Family]:
    """Every family, with each choice for the parameter that says how far targets scatter."""
    found: list[Family] = []
    for name, cls in families().items():
        if name == "categorical":
            found.append(cls(3))
            continue
        options = [f.name for f in cls.__dataclass_fields__.values() if f.default == "shared"]
        found += [cls(**{o: c}) for o in options for c in CHOICES] or [cls()]
    return found


def location(family: Family, raw, shared):
    d = family(raw, shared)
    if isinstance(family, sw.Categorical):  # how close each class is to the likeliest
        low, high = d.logits.amin(-1, keepdim=True), d.logits.amax(-1, keepdim=True)
        return (d.logits - low) / (high - low)
    return d.loc if hasattr(d, "loc") else d.mean


@pytest.mark.parametrize("family", kinds(), ids=repr)
def test_another_spread_keeps_every_location(family):
    raw, shared = example_raw(family, 7, 0)
    n = family.n_spread
    assert n == 0 if not family.shared and len(family.outputs) == 1 else True
    moved, own = family.respread(raw, shared, torch.zeros(n, dtype=raw.dtype))
    assert torch.equal(moved, raw)
    assert torch.equal(own, shared)
    for i in range(n):
        change = torch.zeros(n, dtype=raw.dtype)
        change[i] = 0.3
        moved, own = family.respread(raw, shared, change)
        before, after = location(family, raw, shared), location(family, moved, own)
        assert torch.allclose(before, after, rtol=1e-12)
        assert not torch.equal(torch.cat([moved.ravel(), own]), torch.cat([raw.ravel(), shared]))


@pytest.mark.parametrize("family", [f for f in kinds() if f.n_spread], ids=repr)
def test_the_best_spread_is_found(family):
    """Against a general optimiser that sees nothing but values."""
    rng = np.random.default_rng(0)
    n = 40
    raw, shared = example_raw(family, n, 1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        z = family(raw, shared).sample()
    observed = [sw.Direct().observe(z, np.arange(n)[:, None])]
    objective = Objective(family, observed, n)
    intercept = Intercept(raw.mean(0) + 0.4, shared - 0.2)
    start = torch.from_numpy(rng.normal(size=family.n_spread))
    wrong, far = respread(family, raw, shared, start, intercept)

    def loss(change):
        moved, own = respread(family, wrong, far, torch.from_numpy(change), intercept)
        away = [*(moved[:, 1:].mean(0) - intercept.raw[1:]), *(own - intercept.shared)]
        away += [2 * c for c in change[1:]]
        if isinstance(family, sw.Categorical):  # how sure classes are, as the model was
            away = [*change]
        return objective.value(moved, own) + 0.5 * sum(float(a) ** 2 for a in away)

    best = optimize.minimize(
        loss,
        np.zeros(family.n_spread),
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-9},
    )
    found = judge(objective, wrong, far, intercept)
    assert found.score == pytest.approx(-best.fun / n, abs=2e-5)
    np.testing.assert_allclose(found.change, best.x, atol=5e-3)
    warm = judge(objective, wrong, far, intercept, found.change)
    assert warm.score == pytest.approx(found.score, abs=2e-5)


def test_one_set_that_fits_by_chance_is_no_proof():
    """Without a guard a residual of zero would be infinitely good."""
    o = sw.Observations(sw.Mean(), [[0, 1]], [1.0])
    objective = Objective(sw.Normal(), [o], 2)
    intercept = Intercept(torch.zeros(1).double(), torch.zeros(1).double())
    raw = torch.ones(2, 1, dtype=torch.float64)
    found = judge(objective, raw, torch.tensor([-8.0]).double(), intercept)
    assert float(found.change) == pytest.approx(8 - 1, abs=0.02)  # log σ − ½ log σ² at σ = e⁻¹
    assert found.score < 1.5


def test_the_unit_of_weights_does_not_matter():
    rng = np.random.default_rng(0)
    sets, y = sw.Sets.random(30, 12, 3, seed=0), rng.normal(size=12)
    weight = rng.uniform(0.5, 2, 12)
    intercept = Intercept(torch.zeros(1).double(), torch.zeros(1).double())
    raw, shared = torch.zeros(30, 1).double(), torch.zeros(1).double()
    one, other = (
        judge(
            Objective(sw.Normal(), [sw.Observations(sw.Mean(), sets, y, w)], 30),
            raw, shared, intercept,
        )
        for w in (weight, 1e-6 * weight)
    )  # fmt: skip
    assert one.score == pytest.approx(other.score, rel=1e-9)
    torch.testing.assert_close(one.change, other.change)


def test_worse_by_more_than_chance():
    rng = np.random.default_rng(0)
    old = torch.from_numpy(rng.normal(size=400))
    noise = torch.from_numpy(rng.normal(size=400))
    assert not surely_worse(old + 0.01 * noise - noise.mean() * 0.01, old, 400)
    assert surely_worse(old - 0.1 + 0.01 * noise, old, 400)
    assert not surely_worse(old + 0.1, old, 400)
    assert surely_worse(old - 0.08 + noise, old, 400)
    assert not surely_worse(old - 0.08 + noise, old, 40)  # the same rows ten times over
    impossible = torch.where(torch.arange(400) == 3, -math.inf, old)
    assert surely_worse(impossible, old, 400)
    assert not surely_worse(old, impossible, 400)


def heard(n=1500, seed=0):
    """Rows of which the first third is learned from and the second held out."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    z = 20 + 5 * (np.sin(2 * X[:, 0]) + X[:, 1]) + 3 * rng.normal(size=n)
    a = n // 3
    seen = sw.Mean().observe(z[:a], sw.Sets.random(a, a, 4, seed=1))
    held_out = sw.Mean().observe(z[a : 2 * a], sw.Sets.random(a, a, 4, seed=2))
    return X, z, a, seen, held_out


@pytest.mark.parametrize("family", [sw.Normal(), sw.Normal("predicted"), sw.Gamma()], ids=repr)
def test_score_of_a_profile_forgets_the_scale_of_the_fit(family):
    X, z, a, seen, held_out = heard()
    learner = sw.LightGBM(n_estimators=60, num_threads=1)
    est = sw.AggregateRegressor(family, learner, random_state=0, validation=None, verbose=0).fit(
        X[:a], seen
    )
    as_fitted = est.score(X[a : 2 * a], held_out)
    profile = est.score(X[a : 2 * a], held_out, profile=True)
    assert profile > as_fitted + 0.1
    assert profile > est.score_constant(X[a : 2 * a], held_out)
    assert est.spread_.tolist() == [0.0] * family.n_spread

    stopped = sw.AggregateRegressor(family, learner, random_state=0, validation=None, verbose=0)
    stopped.fit(X[:a], seen, eval=(X[a : 2 * a], held_out))
    again = stopped.score(X[a : 2 * a], held_out, profile=True)
    assert stopped.score(X[a : 2 * a], held_out) == pytest.approx(again, abs=5e-3)
    if isinstance(family, sw.Normal):
        low, high = interval(stopped.predict_dist(X[2 * a :]), 0.9)
        assert 0.84 < np.mean((low < z[2 * a :]) & (z[2 * a :] < high)) < 0.95


def test_ranks_are_stopped_by_their_order():
    """A scale held at 1 makes a model of ranks overconfident: held-out sets judge it apart."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 5))
    z = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=900)
    seen, held_out = (
        sw.Rank().observe(z[i : i + 300], sw.Sets.random(300, 1500, 2, replace=False, seed=i))
        for i in (0, 300)
    )
    est = sw.AggregateRegressor(
        learner=sw.LightGBM(num_threads=1), random_state=0, validation=None, verbose=0
    ).fit(X[:300], seen, eval=(X[300:600], held_out))
    assert "shift" in est.identifiability_.level or "affine" in est.identifiability_.level
    assert float(est.shared_) > 0.2
    new = sw.Rank().observe(z[600:], sw.Sets.random(300, 1500, 2, replace=False, seed=9))
    told = est.predict_aggregate(X[600:], new.sets, sw.Rank())
    sure = told > 0.8
    assert new.y[sure].mean() == pytest.approx(told[sure].mean(), abs=0.05)


# ---- with held-out sets never much worse than without


@pytest.mark.slow
@pytest.mark.skipif(
    "SETWISE_DATA" not in os.environ, reason="SETWISE_DATA names no folder of data sets"
)
@pytest.mark.parametrize("learner", ["LightGBM", "XGBoost", "CatBoost", "Network"])
@pytest.mark.parametrize("name", ["auto-mpg", "housing"])
def test_held_out_sets_do_not_make_models_worse(name, learner):
    """`python -m benchmarks.held_out` on six sets; here two, with half the rounds or epochs."""
    made = benchmark.learners(1)[learner]
    small = {"epochs": 40} if learner == "Network" else {benchmark.ROUNDS[learner]: 60}
    made.set_params(**small)
    for kind in benchmark.KINDS[:2]:
        splits = 3 if learner == "Network" else 5
        found = np.array([benchmark.errors(name, kind, made, seed)[:2] for seed in range(splits)])
        assert np.mean(found[:, 1] / found[:, 0]) <= benchmark.BOUND, (kind, found)


# ---- and then all sets


@pytest.mark.parametrize(
    "learner",
    [
        sw.LightGBM(num_boost_round=200, learning_rate=0.3, early_stopping_rounds=5, num_threads=1),
        sw.XGBoost(n_estimators=200, eta=0.5, early_stopping_rounds=5, n_jobs=1),
        sw.CatBoost(iterations=60, learning_rate=0.5, early_stopping_rounds=5, thread_count=1),
        sw.Network(epochs=15),
        sw.Linear(),
    ],
    ids=lambda learner: type(learner).__name__,
)
@pytest.mark.parametrize("family", [sw.Normal(), sw.Normal("predicted"), sw.Gamma()], ids=repr)
def test_refit_learns_from_all_sets_with_what_held_out_sets_chose(learner, family, tmp_path):
    X, z, a, seen, held_out = heard(900)
    est = sw.AggregateRegressor(family, learner, random_state=0, validation=None, verbose=0)
    both = [seen, held_out.over(held_out.sets.indices + a)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a few epochs are too few
        est.fit(X[:a], seen, eval=(X[a : 2 * a], held_out))
        first = copy.copy(est)
        est.refit(X[: 2 * a], both)
    scored = [e.score(X[: 2 * a], both, profile=True) for e in (est, first)]
    assert scored[0] > scored[1] - 0.02
    assert est.history_ == first.history_
    if not isinstance(learner, sw.Linear):
        assert est.shared_.tolist() == first.shared_.tolist()
        assert 0 < est.steps_ <= len(first.history_)
    mean = est.predict(X)
    est.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), mean)
    assert (again.steps_, again.spread_.tolist()) == (est.steps_, est.spread_.tolist())
    assert again.score_constant(X[:a], seen) == est.score_constant(X[:a], seen)
    low, high = interval(est.predict_dist(X[2 * a :]), 0.9)
    assert 0.8 < np.mean((low < z[2 * a :]) & (z[2 * a :] < high)) <= 0.99


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost", "network"])
def test_every_learner_that_steps_takes_a_number_of_steps(name):
    learner = learners()[name]()
    assert repr(learner.for_steps(7)) != repr(learner)
    assert isinstance(learner.for_steps(7), type(learner))


@pytest.mark.skipif(
    "SETWISE_DATA" not in os.environ, reason="SETWISE_DATA names no folder of data sets"
)
@pytest.mark.slow
def test_the_command_line_loses_nothing_by_holding_sets_out():
    found = np.array([benchmark.from_command_line("auto-mpg", seed) for seed in range(3)])
    assert np.mean(found[:, 1] / found[:, 0]) <= benchmark.BOUND


@pytest.mark.parametrize("overlap", ["independent", "joint"])
def test_a_spread_that_shrinks_to_nothing_stays_a_number(overlap):
    X = np.random.default_rng(0).normal(size=(12, 2))
    means = sw.Mean().observe(X[:, 0], [[0, 1], [1, 2], [3, 4]])
    objective = Objective(sw.Normal(), [means], 12, overlap)
    for log_scale in (-400.0, -1e5):
        point = objective.at(torch.from_numpy(X[:, :1]), torch.tensor([log_scale]).double())
        assert np.isfinite(point.value)
        assert point.gradient.isfinite().all()
        assert point.shared_gradient.isfinite().all()
