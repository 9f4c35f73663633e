"""Standard errors against statsmodels, choix, brute force and simulation."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from tasks import make_task

import setwise as sw
from benchmarks import coverage
from setwise.inference.set_gradients import set_gradients
from setwise.inference.standard_errors import standard_errors
from setwise.learners.ensemble import Ensemble
from setwise.learners.linear import Linear
from setwise.objective import Objective


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3)) * [1.0, 100.0, 0.01] + [5.0, -300.0, 0.2]
    eta = 0.3 * (X[:, 0] - 5) - 0.004 * (X[:, 1] + 300) + 20 * (X[:, 2] - 0.2)
    groups = sw.Sets(rng.permutation(900).reshape(225, 4))
    return X, eta, groups, rng


def regressor(distribution="normal", **options):
    learner = sw.Linear(**{"alpha": 0.0, **options})
    return sw.AggregateRegressor(distribution, learner, validation=None, verbose=0)


def classifier(alpha=0.0):
    return sw.AggregateClassifier(2, sw.Linear(alpha=alpha), validation=None, verbose=0)


def design(X, groups):
    means = np.array([X[s].mean(0) for s in groups])
    return np.column_stack([means, np.ones(len(means))])


def std_error(est, **options):
    return np.array([line.std_error for line in est.summary(**options).lines])


@pytest.mark.parametrize("robust", [True, False])
def test_means_are_ordinary_least_squares(data, robust):
    api = pytest.importorskip("statsmodels.api")
    X, eta, groups, rng = data
    o = sw.Mean().observe(eta + rng.normal(size=900) * (1 + (eta > 0)), groups)
    est = regressor().fit(X, o)
    theirs = api.OLS(o.y, design(X, groups)).fit(cov_type="HC1" if robust else "nonrobust")
    np.testing.assert_allclose(est.coef_, theirs.params[:3], rtol=1e-8)
    assert est.intercept_ == pytest.approx(theirs.params[3], rel=1e-8)
    np.testing.assert_allclose(std_error(est, robust=robust), theirs.bse, rtol=1e-6)
    lines = est.summary(robust=robust).lines
    np.testing.assert_allclose([(x.low, x.high) for x in lines], theirs_normal(theirs), rtol=1e-6)


def theirs_normal(found):
    reach = 1.959963984540054 * found.bse
    return np.column_stack([found.params - reach, found.params + reach])


@pytest.mark.parametrize("robust", [True, False])
def test_poisson_is_their_glm(data, robust):
    api = pytest.importorskip("statsmodels.api")
    X, eta, _, rng = data
    X = X[:, :1]
    # sets of rows with the same features: their sum is Poisson with 3 times the rate
    X3 = np.repeat(X[:300], 3, axis=0)
    z = rng.poisson(np.exp(np.repeat(eta[:300], 3)))
    o = sw.Sum().observe(z, sw.Sets(np.arange(900).reshape(300, 3)))
    est = regressor("poisson", tol=1e-9).fit(X3, o)
    family = api.families.Poisson()
    table = api.add_constant(X[:300], prepend=False)
    theirs = api.GLM(o.y, table, family=family, exposure=np.full(300, 3.0)).fit(
        tol=1e-14, cov_type="HC1" if robust else "nonrobust"
    )
    np.testing.assert_allclose([*est.coef_, est.intercept_], theirs.params, rtol=1e-6)
    mine = std_error(est, robust=robust)
    # theirs has no factor n / (n − p) for HC1 of a GLM in some versions
    ratio = mine / theirs.bse
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    allowed = [1.0, np.sqrt(300 / 298)] if robust else [1.0]
    assert min(abs(ratio[0] - a) for a in allowed) < 1e-5


def test_groups_of_sets_that_are_one_set_are_clusters(data):
    api = pytest.importorskip("statsmodels.api")
    X, eta, groups, rng = data
    z = eta + rng.normal(size=900)
    o = sw.Mean().observe(z, groups)
    twice = sw.Observations(sw.Mean(), [s.tolist() for s in [*groups, *groups]], np.tile(o.y, 2))
    once = regressor().fit(X, o)
    doubled = regressor().set_params(overlap="independent").fit(X, twice)
    # what is said twice is known no better
    n, p = 225, 4
    np.testing.assert_allclose(std_error(doubled), std_error(once) * 1.0, rtol=0.02)
    naive = std_error(doubled, robust=False) / std_error(once, robust=False)
    assert (naive < 0.75).all()
    theirs = api.OLS(twice.y, np.tile(design(X, groups), (2, 1))).fit(
        cov_type="cluster", cov_kwds={"groups": np.tile(np.arange(n), 2)}
    )
    plain = theirs.bse / np.sqrt(n / (n - 1) * (2 * n - 1) / (2 * n - p))
    errors = doubled._errors
    np.testing.assert_allclose(std_error(doubled), plain * np.sqrt(errors.factor), rtol=1e-6)


def test_choices_of_the_better_agree_with_choix():
    choix = pytest.importorskip("choix")
    rng = np.random.default_rng(1)
    n, skill = 6, np.array([0.0, 0.4, -0.3, 1.0, 0.2, -0.8])
    pairs = [rng.choice(n, 2, replace=False) for _ in range(600)]
    gumbel = skill + rng.gumbel(size=(600, n))
    y = np.array([float(g[a] > g[b]) for g, (a, b) in zip(gumbel, pairs, strict=True)])
    data = [(a, b) if won else (b, a) for (a, b), won in zip(pairs, y, strict=True)]
    theirs = choix.ilsr_pairwise(n, data)
    # each meeting has rows of its own, so that nothing but the skills is shared
    rows = np.concatenate(pairs)
    X = np.eye(n)[rows]
    o = sw.Observations(sw.Rank(), np.arange(1200).reshape(600, 2), y)
    est = regressor(sw.Gumbel(scale=1.0), tol=1e-9).fit(X, o)
    mine = est.coef_ - est.coef_.mean()
    np.testing.assert_allclose(mine, theirs - theirs.mean(), atol=1e-4)
    table = est.summary().table
    assert not table.identified.loc[:"intercept"].any()  # one skill is free
    # differences of skills are told: against logistic regression by hand
    p = 1 / (1 + np.exp(-(theirs[rows[::2]] - theirs[rows[1::2]])))
    gaps = X[::2] - X[1::2]
    covariance = np.linalg.pinv(gaps.T @ ((p * (1 - p))[:, None] * gaps))
    errors = est._errors
    units = errors.coefficients(np.ones((1, 1)))
    difference = units[0] - units[3]
    want = covariance[0, 0] + covariance[3, 3] - 2 * covariance[0, 3]
    assert errors.of(difference[None], robust=False)[0] ** 2 == pytest.approx(want, rel=1e-3)


def errors_by_hand(objective, X, coef, shared):
    """H⁻¹ and the gradient of every set, by autograd through the coefficients."""
    table = torch.from_numpy(np.column_stack([X, np.ones(len(X))]))
    shape, n = coef.shape, coef.size

    def each(x):
        raw = table @ x[:n].reshape(shape)
        return torch.cat(objective.weighted(raw, x[n:]))

    x = torch.from_numpy(np.concatenate([coef.ravel(), shared]))
    hessian = -torch.autograd.functional.hessian(lambda x: each(x).sum(), x)
    return hessian.numpy(), torch.autograd.functional.jacobian(each, x).numpy()


@pytest.mark.parametrize("scale", ["shared", "predicted"])
def test_against_autograd(scale, data):
    X, eta, groups, rng = data
    X = (X - X.mean(0)) / X.std(0)
    family = sw.Normal(scale=scale)
    z = eta + rng.normal(size=900)
    weight = rng.uniform(0.5, 2.0, len(groups))
    o = sw.Max().observe(z, groups)
    o = sw.Observations(o.aggregate, o.sets, o.y, weight)
    objective = Objective(family, [o], 900)
    fitted = Linear(tol=1e-8).fit(make_task(X, o, family))
    raw = torch.from_numpy(fitted.model.raw(X))
    coef = np.vstack([fitted.model.coef, fitted.model.intercept])
    hessian, gradients = errors_by_hand(objective, X, coef, fitted.shared.numpy())
    n_outputs = coef.shape[1]
    found = standard_errors(
        objective, np.column_stack([X, np.ones(900)]), raw, fitted.shared,
        mean=np.zeros(3), scale=np.ones(3), units=np.full(n_outputs, 2.0),
    )  # fmt: skip
    unit = np.append(np.full(coef.size, 2.0), np.ones(len(fitted.shared)))
    inverse = np.linalg.inv(hessian)
    np.testing.assert_allclose(
        found.information / found.factor * np.outer(unit, unit), inverse, rtol=1e-5, atol=1e-9
    )
    own = inverse @ gradients.T @ gradients @ inverse
    np.testing.assert_allclose(
        found.sandwich / found.factor * np.outer(unit, unit), own, rtol=1e-5, atol=1e-9
    )
    assert found.away < 1e-3
    assert not found.saddle


def test_gradients_of_sets_add_up(data):
    _, eta, _, rng = data
    z = eta + rng.normal(size=900)
    o = sw.Rank().observe(z, sw.Sets.random(900, 50, 2, replace=False, seed=0))
    objective = Objective(sw.Normal(), [o], 900)
    raw, shared = torch.from_numpy(eta)[:, None], torch.tensor([0.2]).double()
    at_members, at_sets = set_gradients(objective.terms[0], raw, shared)
    point = objective.at(raw, shared)
    total = np.bincount(o.sets.indices, at_members[:, 0], 900)
    np.testing.assert_allclose(total, -point.gradient[:, 0].numpy(), atol=1e-12)
    np.testing.assert_allclose(at_sets.sum(0), -point.shared_gradient.numpy(), atol=1e-10)


def test_sets_that_share_rows_are_neighbours(data):
    """Σ over pairs of sets that share a row, by a double loop."""
    X, eta, _, rng = data
    X = (X - X.mean(0)) / X.std(0)
    z = eta + rng.normal(size=900)
    sets = sw.Sets.random(60, 120, 3, replace=False, seed=2)
    o = sw.Mean().observe(z, sets)
    objective = Objective(sw.Normal(1.0), [o], 60)
    X = X[:60]
    found = standard_errors(
        objective, np.column_stack([X, np.ones(60)]), torch.zeros(60, 1).double(),
        torch.zeros(0).double(), mean=np.zeros(3), scale=np.ones(3), units=np.ones(1),
    )  # fmt: skip
    hessian, g = errors_by_hand(objective, X, np.zeros((4, 1)), np.zeros(0))
    near = np.array([[bool(set(a.tolist()) & set(b.tolist())) for b in sets] for a in sets])
    want = np.linalg.solve(hessian, np.linalg.solve(hessian, g.T @ near @ g).T)
    np.testing.assert_allclose(found.sandwich, found.factor * want, rtol=1e-8)
    assert found.shares
    assert found.n == 60


def test_a_joint_likelihood_is_generalised_least_squares(data):
    api = pytest.importorskip("statsmodels.api")
    X, eta, groups, rng = data
    others = sw.Sets(rng.permutation(900).reshape(60, 15))
    z = eta + rng.normal(size=900)
    both = [sw.Mean().observe(z, groups), sw.Mean().observe(z, others)]
    est = regressor().set_params(overlap="joint").fit(X, both)
    A = np.zeros((285, 900))
    for i, s in enumerate([*groups, *others]):
        A[i, s] = 1 / len(s)
    y = np.concatenate([o.y for o in both])
    covariance = A @ A.T
    keep = np.arange(284)  # the means of all rows are the same: one of the sets tells nothing new
    table = A @ np.column_stack([X, np.ones(900)])
    theirs = api.GLS(y[keep], table[keep], covariance[np.ix_(keep, keep)]).fit()
    np.testing.assert_allclose(est.coef_, theirs.params[:3], rtol=1e-5)
    mine = std_error(est, robust=False) / np.sqrt(est._errors.factor)
    np.testing.assert_allclose(mine, theirs.bse * np.sqrt(280 / 284), rtol=0.01)
    np.testing.assert_allclose(std_error(est), std_error(est, robust=False), rtol=0.3)
    assert "joint likelihood" in str(est.summary())


def test_crowded_sets_do_not_cancel(data):
    """Where every set shares rows with many others the sum of all gradients, zero, says nothing."""
    X, _, _, rng = data
    X = (X - X.mean(0)) / X.std(0)
    towns, ages = rng.integers(0, 60, 900), rng.integers(0, 6, 900)
    ratio = []
    for seed in range(5):
        z = np.random.default_rng(seed).poisson(np.exp(0.3 * X[:, 0] + 0.5))
        both = [sw.Sum().observe(z, sw.Sets.from_groups(g)) for g in (towns, ages)]
        est = regressor("poisson").fit(X, both)
        ratio.append(std_error(est) / std_error(est, robust=False))
    assert 0.7 < np.median(ratio) < 1.5


def test_what_is_not_told_is_marked(data):
    X, eta, groups, rng = data
    z = eta + rng.normal(size=900)
    table = np.column_stack([X, X[:, 0] + X[:, 1], np.ones(900)])  # collinear, and constant
    est = regressor().fit(table, sw.Mean().observe(z, groups))
    marked = [line.identified for line in est.summary().lines]
    assert marked == [False, False, True, False, False, False]  # the constant is an intercept too
    ranks = sw.Rank().observe(z, sw.Sets.random(900, 900, 2, replace=False, seed=0))
    est = regressor().fit(X, ranks)
    assert [line.identified for line in est.summary().lines] == [True, True, True, False]
    assert [line.identified for line in est.summary().shared] == [False]
    with pytest.warns(UserWarning, match="align"):
        assert np.isinf(est.predict(X[:5], return_std=True)[1]).all()


def test_few_sets_say_so(data):
    X, eta, groups, _ = data
    o = sw.Mean().observe(eta, groups).take(np.arange(3))
    est = regressor(alpha=1.0).fit(X, o)
    text = " ".join(str(est.summary()).split())
    assert "conditional on" in text
    bare = regressor().fit(X, o)
    with pytest.warns(UserWarning, match="more sets"):
        _, std = bare.predict(X[:3], return_std=True)
    assert np.isinf(std).all()
    assert not any(np.isfinite(std_error(bare)))


def test_a_penalty_is_part_of_the_curvature(data):
    X, eta, groups, rng = data
    z = eta + rng.normal(size=900)
    o = sw.Mean().observe(z, groups)
    free, drawn = regressor().fit(X, o), regressor(alpha=100.0).fit(X, o)
    assert (std_error(drawn)[:3] < std_error(free)[:3]).all()
    assert drawn._errors.effective < free._errors.effective == pytest.approx(4)
    assert drawn._errors.away < 1e-3  # at the maximum of the penalised likelihood
    b = (sw.Counts().observe((z > 0).astype(int), groups),)
    both = [classifier(alpha).fit(X, b) for alpha in (0.0, 30.0)]
    first, second = (std_error(est)[:3] for est in both)
    assert (second < first).all()
    assert both[1]._errors.away < 0.01


def test_features_in_other_units_and_sparse(data):
    X, eta, groups, rng = data
    z = eta + rng.normal(size=900)
    o = sw.Mean().observe(z, groups)
    first = regressor().fit(X, o)
    second = regressor().fit(X * [1e6, 1.0, 1e-6], o)
    third = regressor().fit(sparse.csr_array(X), o)
    np.testing.assert_allclose(std_error(second), std_error(first) / [1e6, 1, 1e-6, 1], rtol=1e-6)
    np.testing.assert_allclose(std_error(third), std_error(first), rtol=1e-4)
    stds = [
        est.predict(x, return_std=True)[1]
        for est, x in ((first, X), (second, X * [1e6, 1.0, 1e-6]), (third, sparse.csr_array(X)))
    ]
    np.testing.assert_allclose(stds[1], stds[0], rtol=1e-6)
    np.testing.assert_allclose(stds[2], stds[0], rtol=1e-4)


def test_the_std_of_a_mean_is_that_of_least_squares(data):
    api = pytest.importorskip("statsmodels.api")
    X, eta, groups, rng = data
    o = sw.Mean().observe(eta + rng.normal(size=900), groups)
    est = regressor().fit(X, o)
    theirs = api.OLS(o.y, design(X, groups)).fit(cov_type="HC1")
    found = theirs.get_prediction(np.column_stack([X[:20], np.ones(20)]))
    np.testing.assert_allclose(est.predict(X[:20], return_std=True)[1], found.se_mean, rtol=1e-6)


def test_std_of_rates_and_probabilities_by_the_delta_method(data):
    X, eta, groups, rng = data
    est = regressor("poisson").fit(X, sw.Sum().observe(rng.poisson(np.exp(eta)), groups))
    mean, std = est.predict(X[:7], return_std=True)
    raw = est._errors.of_rows(X[:7], np.ones((7, 1, 1)), np.zeros((7, 1, 0)))[:, 0]
    np.testing.assert_allclose(std, mean * raw, rtol=1e-6)
    y = (eta + rng.logistic(size=900) > 0).astype(int)
    est = classifier().fit(X, sw.Counts().observe(y, groups))
    p, std = est.predict_proba(X[:7], return_std=True)
    assert p.shape == std.shape == (7, 2)
    slopes = np.tile([[[-1.0, 1.0]]], (7, 1, 1))
    logit = est._errors.of_rows(X[:7], slopes, np.zeros((7, 1, 0)))[:, 0]
    np.testing.assert_allclose(std[:, 1], p[:, 0] * p[:, 1] * logit, rtol=1e-6)
    with pytest.raises(TypeError, match="predict_proba"):
        est.predict(X, return_std=True)


def test_other_learners_say_what_to_use(data):
    X, eta, groups, _ = data
    est = sw.AggregateRegressor(learner=sw.LightGBM(n_estimators=3), validation=None, verbose=0)
    est.fit(X, sw.Mean().observe(eta, groups))
    with pytest.raises(TypeError, match=r"setwise\.Ensemble"):
        est.predict(X, return_std=True)
    with pytest.raises(AttributeError, match=r"setwise\.Linear"):
        est.coef_  # noqa: B018


class Many:
    """A model that is many: what `Ensemble` makes."""

    def __init__(self, models):
        self.models = models

    def each(self, X):
        return torch.stack([torch.from_numpy(m.raw(X)) for m in self.models])

    def raw(self, X):
        return self.each(X).mean(0).numpy()


def test_many_models_differ_as_their_sets_do(data):
    X, eta, groups, rng = data
    z = eta + rng.normal(size=900)
    o = sw.Mean().observe(z, groups)
    est = regressor().fit(X, o)
    _, want = est.predict(X[:50], return_std=True)
    parts = [o.take(rng.integers(0, 225, 225)) for _ in range(60)]
    est.model_ = Many([Linear().fit(make_task(X, part)).model for part in parts])
    est.learner_ = Ensemble("linear")
    _, std = est.predict(X[:50], return_std=True)
    assert np.median(std / want) == pytest.approx(1.0, abs=0.2)
    y = (z > 0).astype(int)
    est = classifier().fit(X, sw.Counts().observe(y, groups))
    _, want = est.predict_proba(X[:50], return_std=True)
    counts = sw.Counts().observe(y, groups)
    parts = [counts.take(rng.integers(0, 225, 225)) for _ in range(30)]
    tasks = [make_task(X, part, sw.Categorical(2)) for part in parts]
    est.model_ = Many([Linear().fit(task).model for task in tasks])
    est.learner_ = Ensemble("linear")
    _, std = est.predict_proba(X[:50], return_std=True)
    assert np.median(std / want) == pytest.approx(1.0, abs=0.35)


def test_an_alignment_adds_its_own_doubt(data):
    X, eta, _, rng = data
    z = 7 + eta + rng.normal(size=900)
    ranks = sw.Rank().observe(z, sw.Sets.random(900, 2000, 2, replace=False, seed=0))
    est = regressor().fit(X, ranks)
    doubt = []
    for n in (5, 300):
        est.align(X[:n], z[:n])
        doubt.append(np.median(est.predict(X[300:], return_std=True)[1]))
    assert doubt[0] > 2 * doubt[1]
    assert np.isfinite(doubt).all()


def test_saved_with_the_model(tmp_path, data):
    X, eta, _, rng = data
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    z = 3 + eta + rng.normal(size=900)
    ranks = sw.Rank().observe(z, sw.Sets.random(900, 2000, 2, replace=False, seed=0))
    est = regressor().fit(frame, ranks).align(frame[:50], z[:50])
    est.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    assert str(again.summary()) == str(est.summary())
    for a, b in zip(
        again.predict(frame, return_std=True), est.predict(frame, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", coverage.CASES)
def test_coverage(name):
    """A few simulations of the benchmark, which makes hundreds."""
    copies = coverage.CASES[name].copies
    found = coverage.simulate(name, range(1000, 1004 if copies else 1020))
    assert 0.7 * found.n < found.rows <= found.n
    if not copies:
        held = np.array(found[1:5])[coverage.CASES[name].told]
        assert held.mean() > 0.8 * found.n
        assert 0.6 < (found.squares / found.told) ** 0.5 < 1.7


def test_strengths_have_the_errors_of_their_information(rng):
    """A row for each item, a column for each name: sets are independent given the strengths."""
    strength, n = np.linspace(-1, 1, 8), 3000
    pairs = np.array([rng.choice(8, 2, replace=False) for _ in range(n)])
    form = strength[pairs] + rng.gumbel(size=pairs.shape)
    seen = sw.Observations(sw.Rank(), pairs, (form[:, 0] > form[:, 1]).astype(float))
    for X in (np.eye(8)[:, 1:], np.eye(8)):
        alpha = 0.0 if X.shape[1] == 7 else 1.0  # without a zero, the penalty tells the level
        learner = sw.Linear(alpha=alpha)
        model = sw.AggregateRegressor(sw.Gumbel(scale=1.0), learner, validation=None, verbose=0)
        table = model.fit(X, seen).summary().table
        names = [f"x{k}" for k in range(X.shape[1])]
        p = 1 / (1 + np.exp(strength[pairs[:, 1]] - strength[pairs[:, 0]]))
        turned = X[pairs[:, 0]] - X[pairs[:, 1]]
        information = (turned * (p * (1 - p))[:, None]).T @ turned
        want = np.sqrt(np.diag(np.linalg.pinv(information)))
        np.testing.assert_allclose(table["std_error"].loc[names], want, rtol=0.1)
