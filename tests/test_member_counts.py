"""Members that stand for several individuals say what every individual listed says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from cases import example, trials
from small_learners import small_learners

import setwise as sw
from setwise.distributions import Discrete, families, map_parameters, resolve
from setwise.inference import expected_aggregate, posterior
from setwise.likelihood import Targets, find_rule
from setwise.objective import Objective


def heeds(aggregate, family):
    """Whether the rules of the pair say that they heed counts."""
    kinds = (type(aggregate), type(aggregate.bare))
    return all(find_rule(kind, families()[family].distribution).counts for kind in kinds)


COUNTED = [t for t in trials() if heeds(*t[1:]) and t[1].set_sizes(Targets()).most is None]
each = pytest.mark.parametrize(
    ("aggregate", "family"), [t[1:] for t in COUNTED], ids=[t[0] for t in COUNTED]
)
ROWS = [[0], [1, 2], [3, 1, 4], [5, 0, 6], [2, 4], [6]]
COUNTS = [[1], [2, 1], [3, 1, 1], [1, 4, 2], [4, 3], [5]]
EVEN = [[2], [3, 1], [3, 1, 2], [1, 4, 3], [1, 1], [4]]


def counted_sets(aggregate, discrete, even=False, weighted=False):
    """Sets of several sizes over seven rows, in which some members count several times."""
    takes = aggregate.set_sizes(Targets(discrete=discrete)).takes
    counts = EVEN if even and takes(2) else COUNTS
    kept = [i for i, c in enumerate(counts) if takes(sum(c))]
    weights = [[0.5 + 0.25 * r * (-1) ** r for r in ROWS[i]] for i in kept] if weighted else None
    return sw.Sets([ROWS[i] for i in kept], counts=[counts[i] for i in kept], weights=weights)


def seen(aggregate, distribution, sets):
    """A simulated y, with a target for each individual."""
    torch.manual_seed(1)
    z = map_parameters(distribution, sets.expand().members).sample().detach()
    z = z.long() if isinstance(distribution, Discrete) else z
    return aggregate.observe(z, sets, seed=2).y


def both_ways(aggregate, family, same=False, **kind):
    """log p and its derivatives, with counts and with every individual listed."""
    out = []
    for expand in (False, True):
        d, leaves = example(family, 7, seed=2, grad=True, same=same)
        sets = counted_sets(aggregate, isinstance(d, Discrete), **kind)
        y = seen(aggregate, d, sets)
        value = sw.log_likelihood(aggregate, d, sets.expand() if expand else sets, y)
        slopes = derivatives(value.sum(), leaves, create_graph=True)
        rng = np.random.default_rng(1)
        ways = [torch.from_numpy(rng.normal(size=tuple(leaf.shape))) for leaf in leaves]
        along = sum((slope * way).sum() for slope, way in zip(slopes, ways, strict=True))
        bends = derivatives(along, leaves)
        out.append([flat([value]), flat(slopes), flat(bends)])
    return zip(*out, strict=True)


def derivatives(value, leaves, create_graph=False):
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(
        value, leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy()


def weighs(aggregate, family):
    """Whether members may have weights: in sums of numbers."""
    linear = aggregate.linear(sw.Sets([[0, 1]], weights=[[1.0, 2.0]]))
    return linear is not None and not issubclass(families()[family].kind, Discrete)


@pytest.mark.parametrize(
    ("aggregate", "family", "kind"),
    [
        pytest.param(*t[1:], kind, id=f"{t[0]}-{kind}")
        for kind in ("own", "shared", "even", "weighted")
        for t in COUNTED
        if kind != "weighted" or weighs(*t[1:])
    ],
)
def test_as_expanded(aggregate, family, kind):
    given = {"same": kind == "shared"} if kind in ("own", "shared") else {kind: True}
    found = list(both_ways(aggregate, family, **given))
    for (one, other), error in zip(found, (1e-10, 1e-8, 1e-6), strict=True):
        assert np.isfinite(other).all()
        np.testing.assert_allclose(one, other, rtol=error, atol=error)


def test_median_of_six_gumbels_is_no_larger_than_its_members():
    """Far from all members, tilts are so large that nothing of order 1 is left."""
    loc = torch.tensor([0.3, 0.3, 0.3, -1.0, 1.2, 1.2], dtype=torch.float64)
    d = torch.distributions.Gumbel(loc, torch.full_like(loc, 0.9))
    y = torch.linspace(-3, 6, 181, dtype=torch.float64)
    sets = sw.Sets(np.tile(np.arange(6), (len(y), 1)))
    density = sw.log_likelihood(sw.Median(), d, sets, y).exp()
    assert float(torch.trapezoid(density, y)) == pytest.approx(1, abs=1e-4)


# ---- what a member says is made of


def test_counts_are_checked():
    with pytest.raises(ValueError, match="set 1 has a member that counts 0 times"):
        sw.Sets([[0], [1, 2]], counts=[[1], [2, 0]])
    with pytest.raises(ValueError, match=r"whole numbers of individuals, got 1\.5"):
        sw.Sets([[0]], counts=[[1.5]])
    with pytest.raises(ValueError, match="2 counts given for 3 members"):
        sw.Sets([[0, 1, 2]], counts=[[1, 2]])
    rows = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"Choice.*one by one.*sets\.expand"):
        sw.log_likelihood(sw.Choice(), rows, sw.Sets([[0, 1]], counts=[[1, 2]]), [0])
    alone = sw.Sets([[0, 1]], counts=[[1, 1]])  # a count of one says nothing
    found = sw.log_likelihood(sw.Choice(), rows, alone, [0])
    assert float(found) == pytest.approx(float(sw.log_likelihood(sw.Choice(), rows, [[0, 1]], [0])))


def test_sizes_of_sets_are_those_of_individuals():
    sets = sw.Sets([[0, 1]], counts=[[3, 2]])
    assert sw.Counts().check(sets, [5]).tolist() == [5]
    with pytest.raises(ValueError, match="5 member"):
        sw.Counts().check(sets, [6])
    assert sw.Proportions().check(sets, [0.4]).tolist() == [0.4]
    with pytest.raises(ValueError, match="set 0 has 5 members"):
        sw.Direct().check(sets, [1.0])


def test_ways_to_give_counts():
    frame = pd.DataFrame({"town": list("aabb"), "kind": [0, 1, 1, 2], "n": [600, 400, 10, 5]})
    sets = sw.Sets.from_frame(frame, set="town", row="kind", count="n")
    assert sets.individuals.tolist() == [1000, 15]
    assert sets.take([1]).counts.tolist() == [10, 5]
    assert sets.reorder([1, 0, 2, 3]).counts.tolist() == [400, 600, 10, 5]
    grouped = sw.Sets.from_groups(["b", "a", "b"], counts=[1, 2, 3])
    assert grouped.counts.tolist() == [1, 3, 2]
    assert grouped.expand()[0].tolist() == [0, 2, 2, 2]
    assert "15 to 1000 individuals" in repr(sets)


# ---- around the likelihood


def test_observe_takes_a_target_for_each_individual():
    sets = sw.Sets([[0, 1], [2]], counts=[[2, 1], [3]])
    z = [1.0, 2.0, 6.0, 4.0, 5.0, 9.0]
    assert sw.Mean().observe(z, sets).y.tolist() == [3.0, 6.0]
    assert sw.Max().observe(z, sets).y.tolist() == [6.0, 9.0]
    assert sw.Counts().observe([0, 1, 1, 1, 1, 0], sets).y.tolist() == [[1, 2], [1, 2]]
    with pytest.raises(ValueError, match=r"stand for 6 individuals in all.*got 3"):
        sw.Mean().observe([1.0, 2.0, 3.0], sets)
    with pytest.raises(ValueError, match="use sets without counts"):
        sw.Ranking().observe(z, sets)


AROUND = [
    (sw.Mean(), "normal"), (sw.Max(), "laplace"), (sw.Sum(), "gamma"), (sw.Sum(), "poisson"),
    (sw.Min(), "exponential"), (sw.Counts(n_classes=4), "categorical"),
    (sw.AnyPositive(), "categorical"), (sw.PrimaryInstance(), "normal"),
]  # fmt: skip


@pytest.mark.parametrize(("aggregate", "family"), AROUND, ids=[f"{a!r}-{f}" for a, f in AROUND])
def test_posteriors_and_expectations_as_expanded(aggregate, family):
    d, _ = example(family, 7, seed=2)
    sets = counted_sets(aggregate, isinstance(d, Discrete))
    o = sw.Observations(aggregate, sets, seen(aggregate, d, sets))
    listed = sw.Observations(aggregate, sets.expand(), o.y)
    one, other = posterior(o, d), posterior(listed, d)
    first = np.cumsum(sets.counts) - sets.counts
    for name in ("mean", "std", "probs"):
        found, wanted = getattr(one, name), getattr(other, name)
        assert (found is None) == (wanted is None)
        if found is not None:
            np.testing.assert_allclose(found, wanted[first], rtol=1e-6, atol=1e-8)
    expected = [
        expected_aggregate(aggregate, map_parameters(d, s.members), s)
        for s in (sets, sets.expand())
    ]
    np.testing.assert_allclose(*expected, rtol=1e-9)


def _objectives(aggregate, family, n=30):
    """The same objective with counts and with individuals listed, and features."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 2))
    sets = sw.Sets([rng.choice(n, k, replace=False).tolist() for k in rng.integers(1, 4, 40)])
    sets = sw.Sets(sets, counts=rng.integers(1, 5, len(sets.indices)))
    family = resolve(family)
    raw = X @ rng.normal(size=(2, len(family.outputs))) * 0.5
    shared = torch.zeros(len(family.shared), dtype=torch.float64)
    torch.manual_seed(0)
    d = family(torch.from_numpy(raw)[torch.from_numpy(sets.expand().indices)], shared)
    z = d.sample()
    z = z.long() if isinstance(d, Discrete) else z
    o = aggregate.observe(z, sets, seed=1)
    listed = sw.Observations(aggregate, sets.expand(), o.y)
    return X, family, o, listed, torch.from_numpy(raw), shared


FITTED = [
    (sw.Mean(), "normal"), (sw.Sum(), "cauchy"), (sw.Max(), "gumbel"), (sw.Sum(), "poisson"),
    (sw.Noisy(sw.Mean(), normal=0.5), "normal"), (sw.Sum(), sw.Normal(scale="predicted")),
    (sw.Counts(n_classes=2), sw.distributions.Categorical(2)),
    (sw.Counts(n_classes=3), sw.distributions.Categorical(3)),
    (sw.Counts(n_classes=3, method="normal"), sw.distributions.Categorical(3)),
    (sw.Noisy(sw.AnyPositive(), flip=0.1), sw.distributions.Categorical(2)),
]  # fmt: skip


@pytest.mark.parametrize(("aggregate", "family"), FITTED, ids=[f"{a!r}-{f}" for a, f in FITTED])
def test_the_objective_as_expanded(aggregate, family):
    _, family, o, listed, raw, shared = _objectives(aggregate, family)
    one, other = (Objective(family, [x], len(raw), "independent") for x in (o, listed))
    a, b = one.at(raw, shared), other.at(raw, shared)
    assert a.value == pytest.approx(b.value, rel=1e-9)
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(a.shared_gradient, b.shared_gradient, rtol=1e-8, atol=1e-8)
    way = torch.randn(raw.shape, dtype=raw.dtype, generator=torch.Generator().manual_seed(0))
    for x, y in zip(a.product(way, shared + 1), b.product(way, shared + 1), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-7)
    first = one.gradient(raw, shared), other.gradient(raw, shared)
    np.testing.assert_allclose(first[0].gradient, first[1].gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(one.terms[0].times_seen(), other.terms[0].times_seen())
    start = [objective.start() for objective in (one, other)]
    np.testing.assert_allclose(start[0][0], start[1][0], rtol=1e-4, atol=1e-4)


LEARNERS = sorted(small_learners())


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_learners_as_expanded(name, kind):
    classes = kind == "classes"
    aggregate, family = (sw.Counts(n_classes=3), "3") if classes else (sw.Mean(), "normal")
    family = sw.distributions.Categorical(3) if classes else family
    X, _, o, listed, _, _ = _objectives(aggregate, family)
    scores, raws = [], []
    for some in (o, listed):
        learner = small_learners(classes)[name]
        settings = {"validation": None, "random_state": 0, "verbose": 0}
        if classes:
            est = sw.AggregateClassifier(3, learner, n_restarts=1, **settings)
        else:
            est = sw.AggregateRegressor("normal", learner, overlap="independent", **settings)
        est.fit(X, some)
        scores.append(est.score(X, o))
        raws.append(est.predict_proba(X) if classes else est.predict(X))
    assert scores[0] == pytest.approx(scores[1], abs=0.1)
    if name in ("linear", "network"):
        np.testing.assert_allclose(raws[0], raws[1], rtol=1e-4, atol=1e-4)


def test_what_held_out_sets_say_against_the_model_is_about_individuals():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    sets = sw.Sets(np.arange(600).reshape(200, 3), counts=rng.integers(1, 30, 600))
    z = (X @ [1.0, -1.0])[sets.expand().indices] + rng.normal(size=sets.individuals.sum())
    o = sw.Mean().observe(z, sets)
    model = sw.AggregateRegressor("normal", "linear", verbose=0).fit(X, o.take(slice(100)))
    assert not model.check(X, o.take(slice(100, 200))).findings
    assert model.identifiability_ == "exactly"
    assert model.coef_ == pytest.approx([1, -1], abs=0.2)
    assert float(model.shared_.exp()) == pytest.approx(1, abs=0.2)
