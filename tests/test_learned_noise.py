"""Noise that is not known: its rules by enumeration, what fits learn of it, and for whom."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from cases import example, make_sets, observe
from small_learners import small_learners
from torch.autograd import gradcheck, gradgradcheck

import setwise as sw
from setwise.distributions import map_parameters, resolve
from setwise.likelihood import Targets
from setwise.objective import Objective, Unknowns

F64 = torch.float64
CONFUSED = [[0.9, 0.1], [0.3, 0.7]]
THREE = [[0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.2, 0.2, 0.6]]


def classes(n, n_classes, seed=0, slope=2.0):
    """Features and classes that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    turns = rng.normal(size=(2, n_classes)) * slope
    return X, (X @ turns + rng.gumbel(size=(n, n_classes))).argmax(1)


# ---- rules


@pytest.mark.parametrize(
    ("aggregate", "matrix"),
    [
        (sw.Similarity(), CONFUSED), (sw.AnyPositive(), CONFUSED), (sw.Direct(), None),
        (sw.Triplet(three_way=True), THREE), (sw.Rank(), THREE),
    ],
    ids=repr,
)  # fmt: skip
def test_matrices_of_flips_by_enumeration(aggregate, matrix):
    d, (logits,) = example("categorical", 7, n_classes=4, grad=True)
    if matrix is None:
        matrix = np.random.default_rng(0).dirichlet(np.ones(4), 4)
    noisy = sw.Noisy(aggregate, flip=matrix)
    sets = make_sets(aggregate)
    for i in range(len(sets)):
        members = [oracle.member_of(d, int(row)) for row in sets[i]]
        values = sorted(aggregate.outcome(Targets(4, True), len(members)).values)
        clean = [oracle.probability(aggregate, members, v) for v in values]
        one = sets.take([i])
        for j, seen in enumerate(values):
            wanted = sum(clean[k] * matrix[k][j] for k in range(len(values)))
            found = sw.log_likelihood(noisy, d, one, [seen])
            assert found.exp().item() == pytest.approx(wanted, rel=1e-9)
            (slope,) = torch.autograd.grad(found.sum(), logits, retain_graph=True)
            assert slope.isfinite().all()


def test_a_matrix_of_equal_flips_is_that_flip():
    d, _ = example("categorical", 6)
    sets = sw.Sets([[0, 1, 2], [3, 4, 5]])
    equal = np.full((3, 3), 0.1) + 0.7 * np.eye(3)
    plain, matrix = (sw.Noisy(sw.Triplet(three_way=True), flip=f) for f in (0.2, equal))
    for y in ([0, 1], [-1, 0]):
        found = [sw.log_likelihood(a, d, sets, y) for a in (plain, matrix)]
        torch.testing.assert_close(*found)


def test_flips_by_a_matrix_are_simulated():
    z = np.zeros(40_000, int)
    pairs = np.arange(40_000).reshape(-1, 2)  # all of one class: y = 1
    y = sw.Noisy(sw.Similarity(), flip=CONFUSED).observe(z, pairs, seed=0).y
    assert y.mean() == pytest.approx(0.7, abs=0.02)
    with pytest.raises(ValueError, match="has something to learn"):
        sw.Noisy(sw.Similarity(), flip="learned").observe(z, pairs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sw.Noisy(sw.Rank(), flip="known"), 'a number or "learned"'),
        (lambda: sw.Noisy(sw.Rank(), flip=[[0.5, 0.6], [0, 1]]), "add up to 1"),
        (lambda: sw.Noisy(sw.Rank(), flip=[[1.0, 0.0]]), "square"),
        (lambda: sw.Noisy(sw.Counts(), normal="learned"), "is not learned: give it"),
        (lambda: sw.Noisy(sw.Rank(), normal="learned"), "if its y has a fixed list"),
        (lambda: sw.Noisy(sw.Mean()), "exactly one of"),
    ],
)
def test_refusals(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_matrix_of_another_size_than_y():
    d, _ = example("categorical", 4)
    with pytest.raises(ValueError, match=r"3×3 matrix, but y .* has 2 values"):
        sw.log_likelihood(sw.Noisy(sw.Similarity(), flip=THREE), d, [[0, 1]], [1])


SCALED = [
    (sw.Mean(), "normal"), (sw.Sum(), "laplace"), (sw.Mean(), "gumbel"), (sw.Sum(), "gamma"),
    (sw.Sum(), "studentt"), (sw.Mean(), "cauchy"), (sw.Sum(), "poisson"),
    (sw.Sum(), "negativebinomial"), (sw.Sum(), "categorical"), (sw.Difference(), "normal"),
]  # fmt: skip


@pytest.mark.parametrize("noise", ["normal", "laplace"])
@pytest.mark.parametrize(("aggregate", "family"), SCALED, ids=[f"{a!r}-{f}" for a, f in SCALED])
def test_a_scale_for_each_set_and_its_derivatives(aggregate, family, noise):
    """Per set the same as with a number, and derivatives to the second order."""
    d, _ = example(family, 6, n_classes=3)
    sets = sw.Sets([[0, 1], [2, 3], [4, 5]])
    y = observe(sw.Noisy(aggregate, **{noise: 0.7}), d, sets).y
    scales = torch.tensor([0.5, 1.1, 0.8], dtype=F64)
    unknown = sw.Noisy(aggregate, **{noise: "learned"})

    def value(scales):
        each = unknown.with_values([scales])
        return sw.log_likelihood(each, d, sets, y)

    alone = [
        sw.log_likelihood(
            sw.Noisy(aggregate, **{noise: float(s)}),
            map_parameters(d, lambda p, i=i: p[sets[i]]),
            [[0, 1]],
            y[i : i + 1],
        )
        for i, s in enumerate(scales)
    ]
    torch.testing.assert_close(value(scales), torch.cat(alone), rtol=1e-9, atol=1e-9)
    leaf = scales.clone().requires_grad_()
    assert gradcheck(value, leaf, atol=1e-6)
    assert gradgradcheck(value, leaf, atol=1e-5)


def test_flips_for_each_set_and_their_derivatives():
    d, _ = example("categorical", 6)
    sets = sw.Sets([[0, 1], [2, 3], [4, 5]])
    unknown, flips = sw.Noisy(sw.Similarity(), flip="learned"), torch.tensor([0.0, 0.1, 0.4])
    y = [1, 0, 1]
    found = sw.log_likelihood(unknown.with_values([flips]), d, sets, y)
    for i, flip in enumerate(flips.tolist()):
        one = sw.log_likelihood(sw.Noisy(sw.Similarity(), flip=flip), d, sets.take([i]), [y[i]])
        assert found[i].item() == pytest.approx(one.item())
    leaf = torch.tensor([0.05, 0.1, 0.4], dtype=F64, requires_grad=True)

    def value(flips):
        return sw.log_likelihood(unknown.with_values([flips]), d, sets, y)

    assert gradcheck(value, leaf)
    assert gradgradcheck(value, leaf)


# ---- the objective


def test_unknowns_are_shared_parameters():
    d, _ = example("categorical", 8)
    noisy = sw.Noisy(sw.Similarity(), flip="learned")
    pairs = sw.Sets(np.arange(8).reshape(4, 2))
    o = sw.Observations(noisy, pairs, [1, 0, 0, 1], by=["a", "b", "a", "b"])
    objective = Objective(sw.distributions.Categorical(4), [o], 8, "independent")
    assert objective.n_shared == 3  # a centre, and two deviations
    shared = torch.tensor([-1.0, 0.3, -0.2], dtype=F64)
    rates = 0.5 * torch.sigmoid(shared[0] + shared[1:])
    plain = [
        sw.log_likelihood(sw.Noisy(sw.Similarity(), flip=float(r)), d, pairs.take(part), y)
        for r, part, y in zip(rates, ([0, 2], [1, 3]), ([1, 0], [0, 1]), strict=True)
    ]
    prior = -0.5 * float(shared[1:].square().sum())
    raw = d.logits
    assert objective.value(raw, shared) == pytest.approx(
        -float(sum(p.sum() for p in plain)) - prior
    )
    point = objective.at(raw, shared)
    leaves = raw.clone().requires_grad_(), shared.clone().requires_grad_()
    loss = objective.loss(*leaves)
    slopes = torch.autograd.grad(loss, leaves, create_graph=True)
    for mine, theirs in zip((point.gradient, point.shared_gradient), slopes, strict=True):
        torch.testing.assert_close(mine, theirs.detach())
    first = objective.gradient(raw, shared)
    torch.testing.assert_close(first.shared_gradient, slopes[1].detach())
    ways = [torch.randn(leaf.shape, dtype=F64) for leaf in leaves]
    along = sum((s * w).sum() for s, w in zip(slopes, ways, strict=True))
    wanted = torch.autograd.grad(along, leaves)
    for mine, theirs in zip(point.product(*ways), wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
    hessian = torch.autograd.functional.hessian(lambda s: objective.loss(raw, s), shared)
    torch.testing.assert_close(point.shared_curvature(), hessian.diagonal())


def test_parts_of_an_objective_know_its_unknowns():
    rng = np.random.default_rng(0)
    noisy = sw.Noisy(sw.Rank(), flip="learned")
    sets = sw.Sets.random(20, 40, 2, seed=0)
    o = sw.Observations(noisy, sets, rng.integers(0, 2, 40), by=rng.choice(list("xyz"), 40))
    objective = Objective(sw.Normal(), [o], 20, "independent")
    raw, shared = torch.randn(20, 1, dtype=F64), torch.randn(objective.n_shared, dtype=F64)
    whole = objective.value(raw, shared)
    batches = list(objective.minibatches(7, rng))
    parts = sum(b.objective.value(raw[torch.from_numpy(b.rows)], shared) for b in batches)
    assert parts == pytest.approx(whole)
    assert {b.objective.n_shared for b in batches} == {objective.n_shared}


def test_who_is_not_known_has_the_typical_rate():
    noisy = sw.Noisy(sw.Similarity(), flip="learned")
    family = sw.distributions.Categorical(3)
    o = sw.Observations(noisy, [[0, 1], [2, 3]], [1, 0], by=["a", "b"])
    unknowns = Unknowns.of(family, [o])
    shared = torch.tensor([0.0, 1.0, -1.0], dtype=F64)
    other = sw.Observations(noisy, [[0, 1], [2, 3]], [1, 0], by=["b", "someone"])
    settled = unknowns.settled(other, shared).aggregate
    assert settled.flip.tolist() == pytest.approx([0.5 / (1 + math.e), 0.25])
    assert unknowns.filled(noisy, shared).flip == 0.25
    with pytest.raises(ValueError, match="was no part of the fit"):
        unknowns.slot(sw.Observations(sw.Noisy(sw.Rank(), flip="learned"), [[0, 1]], [1]))


def test_by_needs_something_to_learn():
    with pytest.raises(ValueError, match="has nothing to learn"):
        sw.Observations(sw.Rank(), [[0, 1]], [1], by=["a"])
    noisy = sw.Noisy(sw.Rank(), flip="learned")
    with pytest.raises(ValueError, match="one labeller per set, 1 in all"):
        sw.Observations(noisy, [[0, 1]], [1], by=["a", "b"])
    kept = sw.Observations(noisy, [[0, 1], [2, 3], [4, 5]], [1, 0, 1], by=["a", "b", "c"])
    assert kept.take([2, 0]).by.tolist() == ["c", "a"]
    assert "by 3 labellers" in repr(kept)


# ---- fits


@pytest.mark.parametrize("name", sorted(small_learners()))
@pytest.mark.parametrize("kind", ["numbers", "classes", "comparisons"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_learner_learns_the_noise(name, kind):
    """From where they begin, the numbers move towards the truth."""
    rng = np.random.default_rng(0)
    learner = small_learners(kind == "classes")[name]
    settings = {"validation": None, "random_state": 0, "verbose": 0}
    if kind == "classes":
        X, c = classes(600, 2)
        sets = sw.Sets(np.arange(600)[:, None])
        y = np.where(rng.random(600) < 0.3, 1 - c, c)
        o = sw.Observations(sw.Noisy(sw.Direct(), flip="learned"), sets, y)
        est = sw.AggregateClassifier(2, learner, n_restarts=1, **settings)
        begin, truth = 0.1, 0.3
    elif kind == "comparisons":  # whose unit is not told: only the flips are learned
        X = rng.normal(size=(400, 2))
        z = X @ [3.0, -2.0] + rng.normal(size=400)
        o = sw.Noisy(sw.Rank(), flip=0.35).observe(z, sw.Sets.random(400, 1500, 2, seed=0), seed=0)
        o = sw.Observations(sw.Noisy(sw.Rank(), flip="learned"), o.sets, o.y)
        est = sw.AggregateRegressor("normal", learner, **settings)
        begin, truth = 0.1, 0.35
    else:
        X = rng.normal(size=(2000, 2))
        z = X @ [1.0, -1.0] + rng.normal(size=2000)
        sets = sw.Sets(np.split(np.arange(2000), np.cumsum([1, 9] * 200)[:-1]))
        o = sw.Noisy(sw.Mean(), normal=0.4).observe(z, sets, seed=0)
        o = sw.Observations(sw.Noisy(sw.Mean(), normal="learned"), o.sets, o.y)
        est = sw.AggregateRegressor("normal", learner, **settings)
        begin, truth = 0.5 * np.std(o.y), 0.4
    est.fit(X, o)
    (found,) = est.aggregates_
    got = found.flip if kind != "numbers" else found.normal
    assert got != pytest.approx(begin, rel=1e-6)
    if name == "linear":
        assert abs(got - truth) < 0.08
    assert np.isfinite(est.score(X, o))


def test_flipped_similarities_are_recovered():
    X, c = classes(1500, 3, slope=4.0)
    pairs = sw.Sets.random(1500, 3000, 2, seed=1)
    known = sw.Noisy(sw.Similarity(), flip=0.1).observe(c, pairs, seed=2)
    learned = sw.Observations(sw.Noisy(sw.Similarity(), flip="learned"), pairs, known.y)
    right = []
    for o in (known, learned):
        model = sw.AggregateClassifier(3, "linear", random_state=0, verbose=0).fit(X, o)
        right.append(sw.metrics.permutation_accuracy(c, model.predict(X)))
    assert model.aggregates_[0].flip == pytest.approx(0.1, abs=0.02)
    assert right[1] == pytest.approx(right[0], abs=0.01)


@pytest.fixture(scope="module")
def annotated():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 3))
    z = X @ [2.0, -1.0, 0.5] + rng.normal(size=1500)
    pairs = sw.Sets.random(1500, 3000, 2, seed=3)
    who = rng.integers(0, 3, 3000)
    y = sw.Rank().observe(z, pairs).y
    y = np.where(rng.random(3000) < np.array([0.05, 0.2, 0.4])[who], 1 - y, y)
    by = np.array(["Ann", "Bob", "Cem"])[who]
    o = sw.Observations(sw.Noisy(sw.Rank(), flip="learned"), pairs, y, by=by)
    model = sw.AggregateRegressor("normal", "linear", random_state=0, verbose=0).fit(X, o)
    return model, X, o, z


def test_annotators_are_told_apart(annotated):
    model, X, o, _ = annotated
    (each,) = model.aggregates_
    rates = [each[name].flip for name in ("Ann", "Bob", "Cem")]
    np.testing.assert_allclose(rates, [0.05, 0.2, 0.4], atol=0.06)
    # a label of the careful one says more
    pair = sw.Observations(o.aggregate, [[0, 1]] * 3, [1, 1, 1], by=["Ann", "Bob", "Cem"])
    after = model.posterior(X, pair).mean.reshape(3, 2)
    gap = np.diff(after, axis=1)[:, 0]
    assert gap[0] < gap[1] < gap[2]
    guess = model.predict_aggregate(X, [[0, 1]], o.aggregate)
    known = model.predict_aggregate(X, [[0, 1]], sw.Rank())
    assert abs(guess[0] - 0.5) < abs(known[0] - 0.5)
    assert model.check(X, o) is not None
    assert isinstance(model.diagnose(X, o), list)


def test_a_penalty_does_not_hide_who_errs(annotated):
    """Small coefficients make good labels look doubtful, which a fit must not take for care."""
    _, X, o, _ = annotated
    model = sw.AggregateRegressor("normal", sw.Linear(alpha=1000.0), random_state=0, verbose=0)
    (each,) = model.fit(X, o).aggregates_
    rates = [each[name].flip for name in ("Ann", "Bob", "Cem")]
    np.testing.assert_allclose(rates, [0.05, 0.2, 0.4], atol=0.06)


def test_what_was_learned_is_in_the_summary(annotated):
    model, _, _, _ = annotated
    table = model.summary().table
    lines = table.loc[["flip by Ann", "flip by Bob", "flip by Cem"]]
    assert (lines["low"] > 0).all()
    assert (lines["high"] < 0.5).all()
    assert (lines["low"] < lines["estimate"]).all()
    assert lines["std_error"].between(0.002, 0.05).all()
    assert "flip by Cem" in str(model.summary())


def test_what_was_learned_is_saved(annotated, tmp_path):
    model, X, o, _ = annotated
    model.save(tmp_path / "model")
    again = sw.load(tmp_path / "model")
    assert again.aggregates_ == model.aggregates_
    assert again.score(X, o) == model.score(X, o)
    np.testing.assert_array_equal(
        again.posterior(X, o.take(slice(9))).mean, model.posterior(X, o.take(slice(9))).mean
    )


def test_refit_keeps_the_scale_and_learns_the_noise_again(annotated):
    model, X, o, _ = annotated
    copy = sw.AggregateRegressor("normal", "linear", random_state=0, verbose=0).fit(X, o)
    some = o.take(o.by != "Cem")
    copy.refit(X, some)
    assert set(copy.aggregates_[0]) == {"Ann", "Bob"}
    assert float(copy.shared_[0]) == float(model.shared_[0])


def test_labellers_with_few_sets_are_drawn_to_the_others():
    rng = np.random.default_rng(0)
    X, c = classes(2000, 2, slope=6.0)
    who = np.repeat(np.arange(50), 40)
    seen = np.where(rng.random(2000) < 0.2, 1 - c, c)
    seen[who == 0] = 1 - c[who == 0]  # one who is always wrong
    few = np.concatenate([np.flatnonzero(who == 0)[:3], np.flatnonzero(who > 0)])
    o = sw.Observations(sw.Noisy(sw.Direct(), flip="learned"), few[:, None], seen[few], by=who[few])
    model = sw.AggregateClassifier(2, "linear", validation=None, verbose=0).fit(X, o)
    rates = [one.flip for one in model.aggregates_[0].values()]
    assert 0.2 < rates[0] < 0.4  # three wrong labels do not make a rate of one half
    assert np.mean(rates[1:]) == pytest.approx(0.2, abs=0.03)


def test_what_labels_tell_does_not_depend_on_learned_noise():
    pairs = sw.Sets.random(20, 30, 2, seed=0)
    y = np.arange(30) % 2
    for aggregate in (sw.Noisy(sw.Rank(), flip="learned"), sw.Noisy(sw.Rank(), flip=0.1)):
        o = sw.Observations(aggregate, pairs, y)
        assert sw.identifiability.identify(sw.Normal(), [o]) == "up to an affine map"


@pytest.mark.parametrize("family", ["laplace", "studentt", "poisson"])
def test_a_learned_scale_of_other_families(family):
    """The likelihood of a fit is that of the noise it has found, and largest there."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(240, 1))
    sets = sw.Sets(np.split(np.arange(240), np.cumsum([1, 5] * 39 + [1, 2, 2])))
    made = resolve(family)
    d = made(torch.from_numpy(0.5 * X + 1), torch.zeros(len(made.shared), dtype=F64))
    torch.manual_seed(0)
    z = d.sample()
    z = z.long() if family == "poisson" else z
    o = sw.Noisy(sw.Sum(), normal=1.5).observe(z, sets, seed=3)
    learned = sw.Observations(sw.Noisy(sw.Sum(), normal="learned"), sets, o.y)
    settings = {"validation": None, "verbose": 0}
    model = sw.AggregateRegressor(family, sw.Linear(alpha=0.0), **settings).fit(X, learned)
    found = model.aggregates_[0].normal
    values = []
    for scale in (0.8 * found, found, 1.25 * found):
        known = sw.Observations(sw.Noisy(sw.Sum(), normal=scale), sets, o.y)
        again = sw.AggregateRegressor(family, sw.Linear(alpha=0.0), **settings).fit(X, known)
        values.append(again.score(X, known))
    assert values[1] >= max(values) - 1e-9
    assert values[1] == pytest.approx(model.score(X, learned), abs=1e-6)
