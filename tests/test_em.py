"""EM: any scikit-learn estimator as a learner, and what it gains over naive labels."""

import pickle

import numpy as np
import pytest
import torch
from cases import instances, known_pairs, make_sets, noisy
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, make_friedman1
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeRegressor

import setwise as sw
from setwise.distributions import families
from setwise.inference import posterior
from setwise.learners.base import Task
from setwise.learners.em.learner import EM, EMModel
from setwise.learners.em.targets import targets_for
from setwise.learners.em.trainer import Trainer, predict
from setwise.objective import Objective


def task_of(X, family, *observations, n_rows=None, **choices):
    objective = Objective(family, list(observations), n_rows or len(X))
    raw, shared = objective.start()
    return Task(X, objective, raw, shared, **choices)


def numbers(n=300, size=3, seed=0):
    """Targets linear in the features, and the means of sets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    truth = 3 + X @ [2.0, -1.0, 0.0]
    z = truth + 0.1 * rng.normal(size=n)
    return X, truth, sw.Mean().observe(z, sw.Sets.random(n, 2 * n, size, replace=False, seed=seed))


def classes(n=300, size=4, n_classes=3, seed=0):
    """Three clouds of points, and their counts in bags."""
    rng = np.random.default_rng(seed)
    z = rng.integers(0, n_classes, n)
    X = rng.normal(size=(n, 3)) + 3 * np.eye(3)[z % 3]
    sets = sw.Sets.random(n, n, size, replace=False, seed=seed)
    return X, z, sw.Counts(n_classes=n_classes).observe(z, sets)


REGRESSORS = [
    LinearRegression(),
    RandomForestRegressor(40),
    RandomForestRegressor(8),  # too few trees to be left out by some: cross-fitted
    ExtraTreesRegressor(20),
    HistGradientBoostingRegressor(max_iter=30),
    make_pipeline(StandardScaler(), Ridge(0.1)),
    KNeighborsRegressor(7),  # takes no weights
]


@pytest.mark.parametrize("estimator", REGRESSORS, ids=repr)
def test_regressors(estimator):
    X, truth, o = numbers()
    fitted = EM(estimator, max_iter=4).fit(task_of(X, sw.Normal(), o))
    error = np.mean((fitted.model.raw(X)[:, 0] - truth) ** 2)
    assert error < 0.35 * truth.var()  # naive labels: about (1 − 1/3)² = 0.44
    assert not hasattr(estimator, "n_features_in_")  # the user's own is left alone


CLASSIFIERS = [
    LogisticRegression(),
    RandomForestClassifier(20),
    HistGradientBoostingClassifier(max_iter=10, min_samples_leaf=10),
    make_pipeline(StandardScaler(), LogisticRegression()),
    CalibratedClassifierCV(LinearSVC(), cv=2),
    GaussianNB(),
    KNeighborsClassifier(9),
]


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=repr)
def test_classifiers(estimator):
    X, z, o = classes()
    fitted = EM(estimator, max_iter=3).fit(task_of(X, sw.Categorical(3), o))
    raw = fitted.model.raw(X)
    np.testing.assert_allclose(np.exp(raw).sum(1), 1.0)
    assert np.mean(raw.argmax(1) != z) < 0.1


@pytest.mark.filterwarnings("ignore:The `probability` parameter:FutureWarning")
def test_support_vector_machine():
    X, z, o = classes(150)
    fitted = EM(SVC(probability=True), max_iter=3).fit(task_of(X, sw.Categorical(3), o))
    assert np.mean(fitted.model.raw(X).argmax(1) != z) < 0.1


# ---- what must be shown; `benchmarks/em.py` has it at full size


def naive_labels(o, n):
    total, times = np.zeros((n, o.y.reshape(len(o), -1).shape[1])), np.zeros(n)
    np.add.at(total, o.sets.indices, np.repeat(o.y.reshape(len(o), -1), o.sets.sizes, axis=0))
    np.add.at(times, o.sets.indices, 1.0)
    return total / np.maximum(times, 1)[:, None], times


@pytest.mark.parametrize("size", [4, 8])
def test_forest_on_means_beats_naive_labels(size):
    n = 1000
    X, truth = make_friedman1(n + 1000, noise=0.0, random_state=0)
    z = truth + np.random.default_rng(0).normal(size=len(truth))
    o = sw.Mean().observe(z[:n], sw.Sets.random(n, 2 * n, size, replace=False, seed=0))
    label, times = naive_labels(o, n)
    naive = RandomForestRegressor(40, random_state=0)
    naive.fit(X[:n], label[:, 0], sample_weight=times)
    model = EM(RandomForestRegressor(40), max_iter=4).fit(task_of(X[:n], sw.Normal(), o)).model
    errors = [np.mean((p - truth[n:]) ** 2) for p in (naive.predict(X[n:]), model.raw(X[n:])[:, 0])]
    assert errors[0] > 4 * errors[1]


@pytest.mark.slow
def test_forest_on_counts_beats_naive_labels():
    X, z = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, z, n = X[order], z[order], 900
    sets = sw.Sets.random(n, 450, 8, replace=False, seed=0)
    o = sw.Counts(n_classes=10).observe(z[:n], sets)
    label, times = naive_labels(o, n)
    row, label_class = np.nonzero(label > 0)
    naive = RandomForestClassifier(30, random_state=0)
    naive.fit(X[row], label_class, sample_weight=(label * times[:, None])[row, label_class])
    task = task_of(X[:n], sw.Categorical(10), o)
    model = EM(RandomForestClassifier(30), max_iter=4).fit(task).model
    errors = [np.mean(p != z[n:]) for p in (naive.predict(X[n:]), model.raw(X[n:]).argmax(1))]
    assert errors[0] > 2 * errors[1]


# ---- the E-step


def test_completed_targets_are_posterior_means():
    """One per membership, weighted by its set; rows of several kinds of observations."""
    X, _, o = numbers(40)
    o.weight = np.linspace(0.5, 2.0, len(o))
    ranks = sw.Rank().observe(np.arange(40.0), sw.Sets.random(40, 30, 2, replace=False, seed=1))
    family = sw.Normal(scale=1.5)
    task = task_of(X, family, o, ranks)
    targets = targets_for(task.objective, task.raw, task.shared, 0)
    loc = np.linspace(2, 4, 40)
    found = targets.expected(loc, task.shared)
    d = family(torch.from_numpy(loc)[:, None], task.shared)
    total, weight = np.zeros(40), np.zeros(40)
    for each in (o, ranks):
        w = np.repeat(np.ones(len(each)) if each.weight is None else each.weight, each.sets.sizes)
        np.add.at(total, each.sets.indices, w * posterior(each, d).mean)
        np.add.at(weight, each.sets.indices, w)
    # the information of a normal target is taken from draws: 1 % or so
    np.testing.assert_allclose(found - loc, total / weight - loc, rtol=0.1, atol=1e-6)
    np.testing.assert_allclose(targets.weight, weight)


def test_step_is_longer_by_the_missing_information_but_not_for_all_rows_alike():
    X, _, o = numbers(200, size=5)
    task = task_of(X, sw.Normal(scale=1.0), o)
    targets = targets_for(task.objective, task.raw, task.shared, 0)
    loc = np.full(200, 10.0)
    change = targets.expected(loc, task.shared) - loc
    step = targets.step(loc, task.shared, 1.0) - loc
    common = np.average(change, weights=targets.weight)
    assert np.average(step, weights=targets.weight) == pytest.approx(common)
    assert np.std(step) / np.std(change) == pytest.approx(5, rel=0.1)
    short = targets.step(loc, task.shared, 1e-9) - loc
    np.testing.assert_allclose(short, change)


@pytest.mark.parametrize("name", sorted(set(families()) - {"categorical"}))
def test_every_family(name):
    """Sums or unordered pairs, the nuisance parameter shared: locations or means are found."""
    family = families()[name]()
    rng = np.random.default_rng(0)
    n = 240
    X = rng.uniform(-1, 1, size=(n, 2))
    shared = torch.full((len(family.shared),), -1.0, dtype=torch.float64)
    raw = torch.from_numpy(2.0 + X[:, :1])
    d = family(raw, shared)
    z = d.sample().numpy()
    z = z.astype(int) if (z == z.round()).all() else z
    # sums of these are slow integrals
    aggregate = (
        sw.Uncoupled() if name in ("laplace", "logistic", "gumbel", "studentt") else sw.Sum()
    )
    o = aggregate.observe(z, sw.Sets.random(n, 2 * n, 2, replace=False, seed=1))
    fitted = EM(LinearRegression(), max_iter=3, patience=3).fit(task_of(X, family, o))
    found = family(torch.from_numpy(fitted.model.raw(X)), fitted.shared)
    centre = [x.loc if hasattr(x, "loc") else x.mean for x in (found, d)]
    assert np.corrcoef(*centre)[0, 1] > 0.9
    assert float((centre[0] - centre[1]).abs().mean()) < 0.3 * float(centre[1].mean())


def test_a_loss_for_positive_targets():
    """PoissonRegressor refuses negative targets: they are cut off for it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 2))
    rate = np.exp(2 * X[:, 0])
    o = sw.Sum().observe(rng.poisson(rate), sw.Sets.random(400, 600, 4, seed=0))
    task = task_of(X, sw.Poisson(), o)
    model = EM(PoissonRegressor(alpha=0.0), max_iter=6).fit(task).model
    assert np.mean((np.exp(model.raw(X)[:, 0]) - rate) ** 2) < 0.1 * rate.var()


PAIRS = [
    (f"{type(a).__name__}{i}-{family}", a, family)
    for cls, family in known_pairs()
    if family in ("categorical", "normal") and not (cls is sw.Custom and family == "normal")
    for i, a in enumerate(noisy(family) if cls is sw.Noisy else instances(cls))
]


@pytest.mark.filterwarnings("ignore:.*explains the sets less well")  # there are a few only
@pytest.mark.parametrize(("aggregate", "family"), [p[1:] for p in PAIRS], ids=[p[0] for p in PAIRS])
def test_every_aggregate(aggregate, family):
    rng = np.random.default_rng(0)
    n = 40
    X = rng.normal(size=(n, 2))
    if family == "categorical":
        made, estimator = sw.Categorical(4), GaussianNB()
        z = rng.integers(0, 4, n)
    else:
        made, estimator = sw.Normal(scale=1.0), LinearRegression()
        z = X[:, 0] + rng.normal(size=n)
    odd = isinstance(getattr(aggregate, "aggregate", aggregate), sw.Median)
    sizes = (3,) * 10 if odd and family == "categorical" else (2, 3) * 5
    o = aggregate.observe(z, make_sets(aggregate, sizes, n_rows=n), seed=0)
    task = task_of(X, made, o)
    if family == "categorical":  # symmetric observations need a beginning that is not
        task.guide = torch.from_numpy(rng.normal(size=(n, 4)))
    fitted = EM(estimator, max_iter=1).fit(task)
    raw = fitted.model.raw(X)
    assert raw.shape == (n, len(made.outputs))
    assert np.isfinite(raw).all()


def test_a_guide_tells_classes_apart():
    X, z, _ = classes(n_classes=2)
    o = sw.Similarity().observe(z, sw.Sets.random(300, 1500, 2, seed=1))
    task = task_of(X, sw.Categorical(2), o)
    task.guide = torch.from_numpy(np.stack([X[:, 0] - X[:, 1], X[:, 1] - X[:, 0]], 1))
    model = EM(LogisticRegression(), max_iter=6).fit(task).model
    assert np.mean(model.raw(X).argmax(1) != z) < 0.08


# ---- which rows, which weights, when to stop


def test_only_rows_of_sets_with_weight_are_fitted():
    X, _, o = numbers(60)
    o = o.take(np.arange(12))
    o.weight = np.r_[np.ones(10), np.zeros(2)]
    rows = np.unique(o.sets.indices[:30])
    seen = []

    class Spy(LinearRegression):
        def fit(self, X, y, sample_weight=None):
            seen.append(len(X))
            assert np.isin(X[:, 0], table[rows, 0]).all()
            return super().fit(X, y, sample_weight)

    table = X
    EM(Spy(), max_iter=1, folds=0).fit(task_of(X, sw.Normal(), o))
    assert seen == [len(rows)]
    o.weight[:] = 0
    with pytest.raises(ValueError, match="all sets have weight 0"):
        EM(Spy()).fit(
            Task(
                X, Objective(sw.Normal(), [o], 60), torch.zeros(1).double(), torch.zeros(1).double()
            )
        )


def test_held_out_sets_and_patience():
    X, _, o = numbers(200)
    X_eval, _, o_eval = numbers(100, seed=1)
    held_out = X_eval, Objective(sw.Normal(), [o_eval], 100)
    task = task_of(X, sw.Normal(), o, eval=held_out)
    fitted = EM(LinearRegression()).fit(task)
    assert fitted.converged
    best = max(entry["valid"] for entry in task.progress.history)
    score = held_out[1].score(torch.from_numpy(fitted.model.raw(X_eval)), fitted.shared)
    assert score == pytest.approx(best, abs=0.02)
    assert not EM(LinearRegression(), max_iter=1).fit(task_of(X, sw.Normal(), o)).converged
    with pytest.raises(ValueError, match="allow at least one"):
        EM(LinearRegression(), max_iter=0).fit(task_of(X, sw.Normal(), o))


def test_the_seed_decides():
    X, _, o = numbers(80)
    em = EM(RandomForestRegressor(10), max_iter=2)
    a, b, c = (em.fit(task_of(X, sw.Normal(), o, seed=s)).model.raw(X) for s in (1, 1, 2))
    assert (a == b).all()
    assert (a != c).any()


def test_given_scale_is_kept():
    X, _, o = numbers(80)
    task = task_of(X, sw.Normal(), o, free=False)
    task.shared = torch.zeros(1, dtype=torch.float64)
    assert EM(LinearRegression(), max_iter=2).fit(task).shared.tolist() == [0.0]


def test_classes_that_are_never_seen():
    probs = predict(
        GaussianNB().fit([[0.0], [0.1], [5.0], [5.1]], [0, 0, 2, 2]), [[0.0], [5.0]], n_classes=4
    )
    assert probs.shape == (2, 4)
    assert (probs[:, [1, 3]] == 0).all()
    X, z, _ = classes()
    o = sw.Counts(n_classes=4).observe(z, sw.Sets.random(300, 100, 3, seed=0))
    model = EM(RandomForestClassifier(10), max_iter=3).fit(task_of(X, sw.Categorical(4), o)).model
    raw = model.raw(X)
    assert np.isfinite(raw).all()
    assert np.exp(raw[:, 3]).max() < 0.05


@pytest.mark.parametrize("by_weight", [True, False])
def test_forests_that_draw_any_copy_of_a_row_get_rows_drawn_by_weight(by_weight, monkeypatch):
    """So do those of scikit-learn before 1.9."""
    monkeypatch.setattr("setwise.learners.em.trainer.DRAWS_BY_WEIGHT", by_weight)
    given = []

    class Forest(RandomForestClassifier):
        def fit(self, X, y, sample_weight=None):
            given.append(sample_weight)
            return super().fit(X, y, sample_weight)

    X, z, _ = classes()
    o = sw.Counts(n_classes=4).observe(z, sw.Sets.random(300, 100, 3, seed=0))
    EM(Forest(10), max_iter=2).fit(task_of(X, sw.Categorical(4), o))
    assert given
    assert all((weight is not None) == by_weight for weight in given)


def test_tables_of_every_kind():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, _, o = numbers(60)
    names = ["a", "b", "c"]
    em = EM(LinearRegression(), max_iter=2)
    want = em.fit(task_of(X, sw.Normal(), o)).model.raw(X)
    frame = polars.DataFrame(X, schema=names)
    for table in (
        pandas.DataFrame(X, columns=names), frame, frame.to_arrow(), torch.from_numpy(X),
        sparse.csr_array(X),
    ):  # fmt: skip
        found = em.fit(task_of(table, sw.Normal(), o, n_rows=60)).model.raw(table)
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_missing_values_are_for_the_estimator():
    X, _, o = numbers(200)
    X = X.copy()
    X[::9, 2] = np.nan
    model = EM(HistGradientBoostingRegressor(max_iter=10), max_iter=2).fit(
        task_of(X, sw.Normal(), o)
    ).model  # fmt: skip
    assert np.isfinite(model.raw(X)).all()


# ---- refusals


@pytest.mark.parametrize(
    ("estimator", "family", "message"),
    [
        (RandomForestRegressor, sw.Normal(), r"a class: call it"),
        ("forest", sw.Normal(), r"wraps a scikit-learn estimator"),
        (LogisticRegression(), sw.Normal(), r"need a regressor"),
        (LinearRegression(), sw.Categorical(3), r"need a classifier"),
        (RidgeClassifier(), sw.Categorical(3), r"CalibratedClassifierCV\(RidgeClassifier\(\)\)"),
        (LinearRegression(), sw.Normal(scale="predicted"), r"shared or fixed.*LightGBM"),
        (LinearRegression(), sw.Gamma(rate="predicted"), r"log_concentration and log_rate"),
    ],
)
def test_refusals(estimator, family, message):
    X, z, o = classes(30) if isinstance(family, sw.Categorical) else numbers(30)
    o = o if isinstance(family, sw.Categorical) else sw.Mean().observe(z**2 + 1, o.sets)
    with pytest.raises(TypeError, match=message):
        EM(estimator).fit(task_of(X, family, o))


def test_errors_of_the_estimator_are_shown():
    X, _, o = numbers(40)
    X = X.copy()
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        EM(LinearRegression()).fit(task_of(X, sw.Normal(), o))


def test_parameters_are_scikit_learns():
    em = EM(LinearRegression(), max_iter=5)
    assert em.get_params()["estimator__fit_intercept"] is True
    assert repr(em) == "EM(estimator=LinearRegression(), max_iter=5)"


def test_weights_reach_the_last_step():
    X, _, o = numbers(30)
    task = task_of(X, sw.Normal(), o)
    targets = targets_for(task.objective, task.raw, task.shared, 0)
    nested = make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), Ridge()))
    for estimator, name in (
        (Ridge(), "sample_weight"),
        (nested, "pipeline__ridge__sample_weight"),
        (KNeighborsRegressor(), None),
    ):
        assert Trainer(estimator, targets, 3, 0).weight_name == name


# ---- keeping models


def test_pickle_and_importance():
    X, _, o = numbers(60)
    model = EM(RandomForestRegressor(5), max_iter=1).fit(task_of(X, sw.Normal(), o)).model
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).raw(X), model.raw(X))
    assert model.importance().sum() == pytest.approx(1.0)
    assert EMModel(LinearRegression()).importance() is None


def test_labels_without_any_bearing_on_the_features_warn():
    rng = np.random.default_rng(0)
    X, z = rng.normal(size=(200, 3)), rng.normal(size=200)
    means = sw.Mean().observe(z, sw.Sets.random(200, 100, 2, seed=1))
    em = EM(DecisionTreeRegressor(random_state=0), max_iter=5)
    with pytest.warns(ConvergenceWarning, match="less well than a model without features"):
        sw.AggregateRegressor("normal", em, random_state=0, validation=None, verbose=0).fit(
            X, means
        )
    with pytest.warns(ConvergenceWarning) as found:
        sw.AggregateRegressor("normal", em, random_state=0, verbose=0).fit(X, means)
    assert len(found) == 1  # of ten fits to parts of the sets
    assert "no better than a constant" in str(found[0].message)


def test_folds_do_not_depend_on_the_order_of_the_sets():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    z = X[:, 0] + rng.normal(size=200)
    means = sw.Mean().observe(z, sw.Sets.random(200, 150, 3, seed=1))
    found = []
    for order in (np.arange(150), np.arange(150)[::-1], rng.permutation(150)):
        est = sw.AggregateRegressor(
            sw.Normal(), sw.EM(DecisionTreeRegressor(max_depth=2), folds=3), validation=None,
            random_state=0, verbose=0,
        )  # fmt: skip
        found.append(est.fit(X, means.take(order)).predict(X))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-6)
