"""Members that are alike: the rule by quadrature, what is known of each set, and fits."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from cases import example, observe
from small_learners import small_learners

import setwise as sw
from setwise.distributions import map_parameters, shifted
from setwise.identifiability.effects import untold_effects
from setwise.inference import posterior
from setwise.likelihood import evaluate
from setwise.objective import Objective

F64 = torch.float64
SETS = sw.Sets([[0], [1, 2], [3, 4, 5]])
PAIRS = sw.Sets([[0, 1], [2, 3], [4, 5]])
ALONE = sw.Sets([[0], [1], [2]])

CASES = [
    (sw.Counts(n_classes=2), "categorical", 2, SETS),
    (sw.Counts(n_classes=3), "categorical", 3, PAIRS),
    (sw.AnyPositive(), "categorical", 2, SETS), (sw.Direct(), "categorical", 2, ALONE),
    (sw.Similarity(), "categorical", 2, PAIRS), (sw.Sum(), "categorical", 2, SETS),
    (sw.Noisy(sw.AnyPositive(), flip=0.1), "categorical", 2, SETS),
    (sw.Sum(), "poisson", None, SETS), (sw.Max(), "poisson", None, SETS),
    (sw.Direct(), "negativebinomial", None, ALONE), (sw.Direct(), "gamma", None, ALONE),
    (sw.Direct(), "exponential", None, ALONE), (sw.Max(), "exponential", None, PAIRS),
    (sw.Mean(), "normal", None, PAIRS), (sw.Sum(), "normal", None, PAIRS),
    (sw.Difference(), "normal", None, PAIRS),
    (sw.Noisy(sw.Direct(), normal=0.5), "normal", None, ALONE),
    (sw.Noisy(sw.Direct(), laplace=0.5), "normal", None, ALONE),
    (sw.Max(), "normal", None, SETS), (sw.Rank(), "normal", None, PAIRS),
    (sw.Interval((-1.0, 0.5)), "normal", None, ALONE), (sw.Uncoupled(), "normal", None, PAIRS),
    (sw.Direct(), "studentt", None, ALONE), (sw.Direct(), "laplace", None, ALONE),
    (sw.Mean(), "gumbel", None, PAIRS), (sw.Min(), "logistic", None, PAIRS),
]  # fmt: skip
NAMES = [f"{a!r}-{f}{n or ''}" for a, f, n, _ in CASES]
EXACT = ("Mean", "Sum", "Difference")
ROUGH = {"laplace": 0.1, "studentt": 0.02}  # a kink, and tails as heavy as the law is light


def seen(inner, family, n_classes, sets, **more):
    d, leaves = example(family, 6, n_classes=n_classes or 4, **more)
    return d, leaves, observe(inner, d, sets).y


@pytest.mark.parametrize("scale", [0.6, 1.5])
@pytest.mark.parametrize(("inner", "family", "n_classes", "sets"), CASES, ids=NAMES)
def test_likelihoods_by_quadrature(inner, family, n_classes, sets, scale):
    d, _, y = seen(inner, family, n_classes, sets)
    alike = sw.RandomEffect(inner, scale=scale)
    found = sw.log_likelihood(alike, d, sets, y)
    error = ROUGH.get(family, 1e-3 if scale < 1 else 2e-2)
    if family == "normal" and type(inner.bare).__name__ in EXACT:
        error = 1e-6
    for i in range(len(sets) if family != "gumbel" else 1):
        members = [oracle.member_of(d, int(row)) for row in sets[i]]
        wanted = math.log(oracle.probability(alike, members, y[i]))
        assert found[i].item() == pytest.approx(wanted, abs=error)
    single = map_parameters(d, torch.Tensor.float)
    close = sw.log_likelihood(alike, single, sets, y)
    assert close.dtype == torch.float32
    torch.testing.assert_close(close.double(), found, rtol=1e-4, atol=1e-4)


def dense(inner, d, sets, y, scale):
    """The integral by 400 equal steps."""
    total = []
    x = torch.linspace(-9, 9, 400, dtype=F64)
    for at in x:
        u = scale.expand(len(sets))[:, None] * at
        each = evaluate(inner, shifted(d, u, sets.repeat), sets, y)
        total.append(each - 0.5 * at * at + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi)))
    return torch.stack(total, 1).logsumexp(1)


@pytest.mark.parametrize(
    ("inner", "family", "n_classes", "sets"), [CASES[i] for i in (0, 2, 7, 13, 18)],
    ids=[NAMES[i] for i in (0, 2, 7, 13, 18)],
)  # fmt: skip
def test_derivatives_are_those_of_the_integral(inner, family, n_classes, sets):
    """First and second ones, in the members' parameters and in the scale."""
    d, leaves, y = seen(inner, family, n_classes, sets, grad=True)
    d, y = map_parameters(d, sets.members), torch.as_tensor(y)
    scale = torch.tensor([0.5, 0.8, 1.1], dtype=F64, requires_grad=True)
    alike = sw.RandomEffect(inner).with_values([scale])
    both = evaluate(alike, d, sets.flat, y), dense(inner, d, sets.flat, y, scale)
    every = [*leaves, scale]
    rng = np.random.default_rng(0)
    ways = [torch.from_numpy(rng.normal(size=tuple(leaf.shape))) for leaf in every]
    slopes, bends = [], []
    for value in both:
        first = torch.autograd.grad(value.sum(), every, create_graph=True)
        along = sum((s * w).sum() for s, w in zip(first, ways, strict=True))
        slopes.append(torch.cat([s.reshape(-1) for s in first]).detach())
        second = torch.autograd.grad(along, every, retain_graph=True)
        bends.append(torch.cat([s.reshape(-1) for s in second]))
    skewed = isinstance(inner, sw.Max) or family == "poisson"
    error = 1e-2 if skewed else 5e-4
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=error)
    torch.testing.assert_close(*bends, rtol=1e-3, atol=5 * error)


def test_large_and_improbable_sets():
    """A narrow integrand far from where the law has its mass; and one that is zero everywhere."""
    sets = sw.Sets(np.arange(4000).reshape(2, 2000))
    d, (logits,) = example("categorical", 4000, n_classes=2, grad=True)
    alike = sw.RandomEffect(sw.Counts(), scale=0.6)
    found = sw.log_likelihood(alike, d, sets, [1995.0, 1000.0])
    wanted = dense(sw.Counts(), d, sets, torch.tensor([1995.0, 1000.0]), torch.tensor(0.6).double())
    assert found[1].item() == pytest.approx(wanted[1].item(), abs=2e-3)  # steps too long for it
    assert -60 < found[0].item() < -20
    (slope,) = torch.autograd.grad(found.sum(), logits)
    assert slope.isfinite().all()
    rates = torch.ones(3, dtype=F64, requires_grad=True)
    rows = torch.distributions.Poisson(rates)
    found = sw.log_likelihood(sw.RandomEffect(sw.Sum(), 0.5), rows, [[0, 1, 2]] * 3, [3, 0.5, 900])
    assert found[1] == -math.inf
    assert found[[0, 2]].isfinite().all()
    (slope,) = torch.autograd.grad(found[[0, 1]].sum(), rates)
    assert slope.isfinite().all()


@pytest.mark.parametrize("case", [0, 7, 13, 18], ids=[NAMES[i] for i in (0, 7, 13, 18)])
def test_without_an_effect_members_are_independent(case):
    inner, family, n_classes, sets = CASES[case]
    d, _, y = seen(inner, family, n_classes, sets)
    alike = sw.log_likelihood(sw.RandomEffect(inner, scale=1e-7), d, sets, y)
    torch.testing.assert_close(alike, sw.log_likelihood(inner, d, sets, y), rtol=1e-6, atol=1e-6)


def test_members_in_numbers_and_weights():
    d, _ = example("categorical", 4, n_classes=2)
    sets = sw.Sets([[0, 1], [2, 3]], counts=[[7, 3], [1, 9]])
    alike = sw.RandomEffect(sw.Counts(), scale=0.7)
    y = [4, 6]
    torch.testing.assert_close(
        sw.log_likelihood(alike, d, sets, y), sw.log_likelihood(alike, d, sets.expand(), y)
    )
    rows, _ = example("normal", 4)
    uneven = sw.Sets(sets, weights=[1.0, 0.5, 2.0, 1.0])
    for inner in (sw.Mean(), sw.Sum()):
        alike = sw.RandomEffect(inner, scale=0.7)
        torch.testing.assert_close(
            sw.log_likelihood(alike, rows, uneven, [0.3, -1.0]),
            sw.log_likelihood(alike, rows, uneven.expand(), [0.3, -1.0]),
        )
    with pytest.raises(ValueError, match="reads members one by one"):
        sw.log_likelihood(sw.RandomEffect(sw.Fold.examples(2)[0], 1.0), d, sets, [1, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sw.RandomEffect(sw.Mean(), scale="known"), 'positive number or "learned"'),
        (lambda: sw.RandomEffect(sw.Mean(), scale=0.0), "positive number"),
        (lambda: sw.RandomEffect(sw.RandomEffect(sw.Mean())), "has one already"),
        (lambda: sw.Noisy(sw.RandomEffect(sw.Mean()), normal=1.0), "the noise of y comes first"),
    ],
)
def test_refusals(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_refusals_of_what_is_not_known():
    d, _ = example("categorical", 6, n_classes=4)
    with pytest.raises(TypeError, match="for numbers and for up to 3 classes"):
        sw.log_likelihood(sw.RandomEffect(sw.Direct(), 1.0), d, ALONE, [0, 1, 2])
    with pytest.raises(ValueError, match="has something to learn"):
        sw.log_likelihood(sw.RandomEffect(sw.Mean()), example("normal", 6)[0], SETS, [0, 1, 2])


@pytest.mark.parametrize(
    ("inner", "families"),
    [(sw.Counts(n_classes=2), ["two"]), (sw.Sum(), ["poisson"]), (sw.Mean(), ["normal"])],
)
def test_simulations_agree_with_the_likelihood(inner, families):
    families = [sw.distributions.Categorical(2)] if families == ["two"] else families
    sw.checks.check_aggregate(sw.RandomEffect(inner, scale=0.8), families, sizes=[1, 3])


# ---- what is known of members and sets


@pytest.mark.parametrize("case", [0, 1, 7, 13, 18], ids=[NAMES[i] for i in (0, 1, 7, 13, 18)])
def test_posteriors_by_simulation(case):
    """Of members, and of what they share: draws of the model whose y is about the observed one."""
    inner, family, n_classes, _ = CASES[case]
    d, _ = example(family, 2, n_classes=n_classes or 4)
    pair, n = sw.Sets([[0, 1]]), 200_000
    alike = sw.RandomEffect(inner, scale=0.8)
    u = np.random.default_rng(0).normal(size=(n, 2 if n_classes == 3 else 1)) * 0.8
    many = sw.Sets(np.arange(2 * n).reshape(n, 2))
    torch.manual_seed(0)
    rows = map_parameters(d, lambda p: p.repeat(n, *[1] * (p.ndim - 1)))
    z = shifted(rows, torch.from_numpy(u), many.repeat).sample()
    z = z.long() if family in ("categorical", "poisson") else z
    drawn = inner.observe(z, many).y
    y = observe(inner, d, pair).y
    near = np.abs(drawn - y).reshape(n, -1).max(1) < (0.05 if family == "normal" else 1e-9)
    assert near.sum() > 1500
    found = posterior(sw.Observations(alike, pair, y), d)
    kept = z.reshape(n, 2).numpy()[near]
    close = {"abs": 0.03}
    if family == "categorical":
        for c in range(n_classes):
            assert found.probs[:, c] == pytest.approx((kept == c).mean(0), **close)
    else:
        assert found.mean == pytest.approx(kept.mean(0), **close)
        assert found.std is None or found.std == pytest.approx(kept.std(0), **close)
    if n_classes == 3:
        assert found.effect.shape == (1, 3)
        assert found.effect.sum() == pytest.approx(0, abs=1e-9)
    else:
        assert found.effect == pytest.approx(u[near].mean(0), **close)
        assert found.effect_std == pytest.approx(u[near].std(0), **close)


def test_what_to_expect_of_new_sets():
    rows = torch.distributions.Poisson(torch.tensor([1.0, 2.0], dtype=F64))
    from setwise.inference import expected_aggregate

    alike = sw.RandomEffect(sw.Sum(), scale=0.5)
    found = expected_aggregate(alike, rows, sw.Sets([[0, 1]]))
    assert found == pytest.approx([3 * math.exp(0.125)], rel=1e-6)
    d, _ = example("categorical", 3, n_classes=2)
    alike = sw.RandomEffect(sw.AnyPositive(), scale=2.0)
    found = expected_aggregate(alike, d, sw.Sets([[0, 1, 2]]))
    wanted = sw.log_likelihood(alike, d, [[0, 1, 2]], [1]).exp()
    assert found == pytest.approx(wanted.tolist(), rel=1e-9)
    normal, _ = example("normal", 3)
    alone = expected_aggregate(sw.Max(), normal, sw.Sets([[0, 1, 2]]))
    alike = expected_aggregate(sw.RandomEffect(sw.Max(), 1.0), normal, sw.Sets([[0, 1, 2]]))
    assert alike == pytest.approx(alone, abs=0.15)  # a shift moves the largest as much


# ---- fits


def groups(n_sets=150, scale=0.6, seed=0, low=10, high=40):
    """Features, of members and of sets, and what members share."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(low, high + 1, n_sets)
    of = np.repeat(np.arange(n_sets), sizes)
    X = rng.normal(size=(len(of), 2))
    X[:, 1] = rng.normal(size=n_sets)[of]
    return X, of, scale * rng.normal(size=n_sets), rng


@pytest.fixture(scope="module")
def counted():
    X, of, u, rng = groups()
    p = 1 / (1 + np.exp(-(X @ [1.0, 0.7] - 0.3 + u[of])))
    z = (rng.random(len(X)) < p).astype(int)
    o = sw.RandomEffect(sw.Counts()).observe(z, sw.Sets.from_groups(of))
    o.classes = None
    model = sw.AggregateClassifier(2, sw.Linear(), validation=None, random_state=0, verbose=0)
    return model.fit(X, o), X, o, u


def test_the_scale_is_learned_and_told(counted):
    model, X, o, u = counted
    assert model.aggregates_[0].scale == pytest.approx(0.6, abs=0.15)
    table = model.summary().table
    assert table.loc["scale of effect", "std_error"] > 0
    assert table.loc["scale of effect", "low"] < 0.6 < table.loc["scale of effect", "high"]
    assert "members of a set" not in str(model.check(X, o))
    after = model.posterior(X, o)
    assert np.corrcoef(after.effect, u)[0, 1] > 0.6
    assert 0.1 < after.effect_std.mean() < 0.5
    assert (
        np.abs(model.predict_aggregate(X, o.sets, o.aggregate).sum(1) - o.sets.sizes).max() < 1e-6
    )


def test_what_was_learned_is_saved(counted, tmp_path):
    model, X, o, _ = counted
    model.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    assert again.aggregates_ == model.aggregates_
    assert again.score(X, o) == model.score(X, o)
    np.testing.assert_array_equal(again.posterior(X, o).effect, model.posterior(X, o).effect)


def test_independent_counts_are_said_to_be_alike(counted):
    _, X, o, _ = counted
    plain = sw.Observations(sw.Counts(), o.sets, o.y)
    model = sw.AggregateClassifier(2, sw.Linear(), validation=None, random_state=0, verbose=0)
    said = str(model.fit(X, plain).check(X, plain))
    assert "members of a set are alike" in said
    assert "RandomEffect(Counts(" in said


# The others take a minute together.
QUICK = [("lightgbm", "classes"), ("linear", "classes"), ("linear", "counts"), ("linear", "means")]
LEARNERS = [(name, "classes") for name in sorted(small_learners())]
LEARNERS += [(name, "counts") for name in ("em", "linear", "network")]
LEARNERS += [(name, "means") for name in ("lightgbm", "linear", "network")]
LEARNERS = [one if one in QUICK else pytest.param(*one, marks=pytest.mark.slow) for one in LEARNERS]


@pytest.mark.parametrize(("name", "kind"), LEARNERS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_learner_learns_the_scale(name, kind):
    X, of, u, rng = groups(80, 0.7, low=3, high=20)
    learner = small_learners(kind == "classes")[name]
    settings = {"validation": None, "random_state": 0, "verbose": 0}
    eta, sets = X @ [0.6, 0.4] + u[of], sw.Sets.from_groups(of)
    if kind == "classes":
        inner, z = sw.Counts(), (rng.random(len(X)) < 1 / (1 + np.exp(-eta))).astype(int)
        est = sw.AggregateClassifier(2, learner, n_restarts=1, **settings)
    elif kind == "means":
        inner, z = sw.Mean(), eta + rng.normal(size=len(X))
        est = sw.AggregateRegressor("normal", learner, **settings)
    else:
        inner, z = sw.Sum(), rng.poisson(np.exp(eta))
        est = sw.AggregateRegressor("poisson", learner, **settings)
    o = sw.Observations(sw.RandomEffect(inner), sets, inner.observe(z, sets).y)
    est.fit(X, o)
    assert np.isfinite(est.score(X, o))
    got = est.aggregates_[0].scale
    assert 0.05 < got < (3.0 if name == "em" else 1.5)  # trees leave the rest to the effect
    if name == "linear":
        assert abs(got - 0.7) < 0.25


def test_terms_of_the_objective():
    """Gradients and products with the Hessian are those of the loss."""
    X, of, _, rng = groups(6, low=2, high=5)
    sets = sw.Sets.from_groups(of)
    y = sw.Counts().observe(rng.integers(0, 2, len(X)), sets).y
    o = sw.Observations(sw.RandomEffect(sw.Counts()), sets, y)
    objective = Objective(sw.distributions.Categorical(2), [o], len(X), "independent")
    raw = torch.from_numpy(rng.normal(size=(len(X), 2)))
    shared = torch.tensor([-0.4], dtype=F64)
    point, first = objective.at(raw, shared), objective.gradient(raw, shared)
    leaves = raw.clone().requires_grad_(), shared.clone().requires_grad_()
    loss = objective.loss(*leaves)
    slopes = torch.autograd.grad(loss, leaves, create_graph=True)
    for found in (point, first):
        assert float(found.value) == pytest.approx(float(loss.detach()))
        torch.testing.assert_close(found.gradient, slopes[0].detach())
        torch.testing.assert_close(found.shared_gradient, slopes[1].detach())
    ways = [torch.randn(leaf.shape, dtype=F64) for leaf in leaves]
    along = sum((s * w).sum() for s, w in zip(slopes, ways, strict=True))
    for mine, theirs in zip(point.product(*ways), torch.autograd.grad(along, leaves), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_scale_for_each_kind_of_group():
    X, of, u, rng = groups(400, 1.0, low=5, high=20)
    wide = np.arange(400) % 2
    u = u * np.array([0.2, 1.5])[wide]
    sets = sw.Sets.from_groups(of)
    y = sw.Mean().observe(X @ [1.0, -1.0] + u[of] + rng.normal(size=len(X)), sets).y
    by = np.array(["town", "country"])[wide]
    o = sw.Observations(sw.RandomEffect(sw.Mean()), sets, y, by=by)
    model = sw.AggregateRegressor("normal", sw.Linear(), validation=None, verbose=0).fit(X, o)
    (each,) = model.aggregates_
    assert each["town"].scale < 0.5
    assert each["country"].scale == pytest.approx(1.5, abs=0.3)


@pytest.mark.parametrize(
    ("inner", "sets", "words"),
    [
        (sw.Mean(), PAIRS, "only their sum is told"),
        (sw.Mean(), SETS, ""),
        (sw.Sum(), PAIRS, "only their sum is told"),
        (sw.Difference(), PAIRS, "cancels out"),
        (sw.Direct(), ALONE, "has one member"),
        (sw.Max(), PAIRS, ""),
        (sw.Rank(), PAIRS, "cancels out"),
        (sw.Choice(), PAIRS, "cancels out"),
        (sw.Ranking(), PAIRS, "cancels out"),
    ],
)
def test_what_sets_say_of_the_scale(inner, sets, words):
    y = inner.observe(np.array([0.1, 0.5, -0.3, 0.2, 1.0, 0.4]), sets).y
    o = sw.Observations(sw.RandomEffect(inner), sets, y)
    found = untold_effects(sw.Normal(), [o])
    assert bool(found) == bool(words)
    assert words in "".join(found)
    assert bool(untold_effects(sw.Normal(scale=1.0), [o])) == (words == "cancels out")
    known = sw.Observations(sw.RandomEffect(inner, scale=1.0), sets, y)
    assert not untold_effects(sw.Normal(), [known])
    direct = sw.Observations(sw.Direct(), [[0], [1]], [0.0, 1.0])
    assert bool(untold_effects(sw.Normal(), [o, direct])) == (words == "cancels out")
