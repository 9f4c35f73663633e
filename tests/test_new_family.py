"""The promise of docs/extending/distribution.md: one file makes a family that does everything."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

import setwise as sw
from setwise import plots
from setwise.distributions import base, interval, log_cdf
from setwise.inference import posterior

ROOT = Path(__file__).parent.parent
FILE = ROOT / "examples" / "distributions" / "log_normal.py"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 2))
LOC = X @ [0.6, -0.3] + 0.5
Z = np.exp(LOC + 0.4 * RNG.normal(size=300))
LEARNERS = {
    "linear": sw.Linear(),
    "lightgbm": sw.LightGBM(n_estimators=30, min_child_samples=10),
    "network": sw.Network(hidden=(8,), epochs=30),
    "em": sw.EM(LinearRegression()),
}


@pytest.fixture
def family(monkeypatch):
    """The example's class, known for as long as a test runs."""
    monkeypatch.setattr(base, "_FAMILIES", dict(base._FAMILIES))
    spec = importlib.util.spec_from_file_location("log_normal_example", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module.LogNormal()


def observed(aggregate):
    if isinstance(aggregate, sw.Interval):
        return sw.Observations(aggregate, np.arange(300)[:, None], np.stack([0.8 * Z, 1.2 * Z], 1))
    size = {sw.Direct: 1, sw.Rank: 2}.get(type(aggregate), 3)
    return aggregate.observe(Z, sw.Sets.random(300, 250, size, replace=False, seed=1), seed=2)


def fitted(family, learner, observations):
    est = sw.AggregateRegressor(family, learner, random_state=0, validation=None, verbose=0)
    return est.fit(X, observations)


def test_the_page_shows_this_file():
    code = FILE.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 72
    assert code in (ROOT / "docs" / "extending" / "distribution.md").read_text(encoding="utf-8")


def test_it_agrees_with_itself(family):
    sw.checks.check_distribution(family)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(
    "aggregate",
    [sw.Direct(), sw.Max(), sw.Rank(), sw.Interval(), sw.PrimaryInstance()],
    ids=lambda aggregate: type(aggregate).__name__,
)
def test_every_learner_learns_it(family, aggregate, learner):
    est = fitted(family, LEARNERS[learner], observed(aggregate))
    assert np.corrcoef(np.log(est.predict(X)), LOC)[0, 1] > 0.7


def test_a_fitted_model_does_everything(family, tmp_path):
    o = observed(sw.Max())
    est = fitted(family, sw.Linear(), o)
    d = est.predict_dist(X)
    np.testing.assert_allclose(est.model_.coef.ravel(), [0.6, -0.3], atol=0.1)
    np.testing.assert_allclose(est.predict(X), d.mean)
    low, high = interval(d, 0.9)
    assert np.mean((low < Z) & (high > Z)) == pytest.approx(0.9, abs=0.1)
    plots.fit(est, X, Z, ax=plots.blank())
    plots.calibration(est, X, o, ax=plots.blank())
    largest = est.predict_aggregate(X, o.sets, sw.Max())
    assert np.corrcoef(largest, o.y)[0, 1] > 0.7
    est.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), est.predict(X))


def test_quantiles_without_a_formula(family):
    d = family(torch.tensor([[-2.0], [0.0], [30.0]]).double(), torch.tensor([0.3]).double())
    for p in (1e-6, 0.05, 0.5, 0.95):
        found = base.quantile_by_bisection(type(family), d, p)
        torch.testing.assert_close(log_cdf(d, found).exp(), torch.full((3,), p).double())
        torch.testing.assert_close(found, type(family).quantile(d, p), rtol=1e-10, atol=0)


def test_posteriors_are_exact(family):
    """Against a sum over a fine grid: the larger of two is y, and one of the two is y."""
    loc, scale = torch.tensor([0.3, 1.0]).double(), torch.tensor([0.8, 0.5]).double()
    d = torch.distributions.LogNormal(loc, scale)
    for y in (0.5, 3.0, 40.0):
        at = torch.tensor(y).double()
        below = torch.linspace(0, y, 400_001).double()[1:] - y / 800_000
        mass = d.log_prob(below[:, None]).exp()
        share, total = mass.sum(0), (mass * below[:, None]).sum(0)
        density = d.log_prob(at).exp()
        first = density[0] * share[1] / (density * share.flip(0)).sum()  # it is the larger one
        means = total / share
        wanted = [first * y + (1 - first) * means[0], (1 - first) * y + first * means[1]]
        found = posterior(sw.Observations(sw.Max(), [[0, 1]], [y]), d)
        np.testing.assert_allclose(found.mean, wanted, rtol=1e-5)
        assert found.std is None
        chosen = density / density.sum()
        found = posterior(sw.Observations(sw.PrimaryInstance(), [[0, 1]], [y]), d)
        np.testing.assert_allclose(found.mean, chosen * y + (1 - chosen) * d.mean)
