"""The objective's derivatives against finite differences of the likelihood, for every pair."""

import numpy as np
import pytest
import torch
from cases import make_sets, observe, trials

import setwise as sw
from setwise.distributions import families
from setwise.objective import Objective
from setwise.objective import categorical as classes
from setwise.objective.autodiff import AutodiffPoint, AutodiffTerm

TRIALS = [t for t in trials() if not (isinstance(t[1], sw.Custom) and t[2] != "categorical")]


def family_named(name):
    return sw.Categorical(4) if name == "categorical" else families()[name]()


def parameters_for(family, n, seed=0):
    rng = np.random.default_rng(seed)
    raw = torch.tensor(rng.normal(0, 0.5, (n, len(family.outputs))))
    shared = torch.tensor(rng.normal(-0.3, 0.1, len(family.shared)))
    return raw, shared


def loss_of(objective, raw, shared):
    distribution = objective.family(raw, shared)
    total = 0.0
    for o in objective.observations:
        each = sw.log_likelihood(o.aggregate, distribution, o.sets, o.y)
        total -= float((each * (1 if o.weight is None else torch.from_numpy(o.weight))).sum())
    return total


@pytest.mark.parametrize(
    ("aggregate", "family"), [t[1:] for t in TRIALS], ids=[t[0] for t in TRIALS]
)
def test_derivatives(aggregate, family):
    """Gradient against differences of the value, products against differences of the gradient."""
    made = family_named(family)
    raw, shared = parameters_for(made, 7)
    with torch.no_grad():
        distribution = made(raw, shared)
    o = observe(aggregate, distribution, make_sets(aggregate, sizes=(1, 3, 3)))
    o.weight = np.linspace(0.5, 2.0, len(o))
    objective = Objective(made, [o], 7)
    point = objective.at(raw, shared)
    assert point.value == pytest.approx(loss_of(objective, raw, shared), rel=1e-9)
    assert objective.value(raw, shared) == pytest.approx(point.value, rel=1e-12)
    first = objective.gradient(raw, shared)
    assert float(first.value) == pytest.approx(point.value, rel=1e-9)
    torch.testing.assert_close(first.gradient, point.gradient)
    torch.testing.assert_close(first.shared_gradient, point.shared_gradient)

    rng = np.random.default_rng(1)
    direction = (
        torch.tensor(rng.normal(size=raw.shape)),
        torch.tensor(rng.normal(size=shared.shape)),
    )
    step = 1e-5
    ends = [(raw + s * direction[0], shared + s * direction[1]) for s in (step, -step)]
    up, down = (objective.value(*end) for end in ends)
    slope = float(
        (point.gradient * direction[0]).sum() + (point.shared_gradient * direction[1]).sum()
    )
    assert slope == pytest.approx((up - down) / (2 * step), rel=2e-5, abs=2e-5)

    up, down = (objective.at(*end) for end in ends)
    found = point.product(*direction)
    for got, a, b in zip(
        found, (up.gradient, up.shared_gradient), (down.gradient, down.shared_gradient), strict=True
    ):
        torch.testing.assert_close(got, (a - b) / (2 * step), rtol=2e-4, atol=2e-4)

    diagonal = point.curvature()
    where = int(o.sets.indices[0])
    if (o.sets.indices[: o.sets.sizes[0]] == where).sum() == 1 and np.all(
        [np.sum(s == where) <= 1 for s in o.sets]
    ):
        unit = torch.zeros_like(raw)
        unit[where, 0] = 1.0
        exact = point.product(unit, torch.zeros_like(shared))[0][where, 0]
        assert float(diagonal[where, 0]) == pytest.approx(float(exact), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    "aggregate",
    [sw.Mean(), sw.Sum(), sw.Difference(), sw.Direct(), sw.Noisy(sw.Mean(), normal=0.7)],
    ids=repr,
)
@pytest.mark.parametrize("scale", ["shared", 0.8])
def test_the_closed_form_is_the_general_one(aggregate, scale):
    family = sw.Normal(scale=scale)
    raw, shared = parameters_for(family, 9)
    size = aggregate.size or (2, 4)
    sets = sw.Sets.random(9, 12, size, seed=2)
    o = sw.Observations(aggregate, sets, np.linspace(-1, 1, 12), weight=np.linspace(0, 2, 12))
    closed = Objective(family, [o], 9).at(raw, shared)
    general = AutodiffTerm(family, o, 9).at(raw, shared)
    assert closed.value == pytest.approx(general.value)
    direction = torch.ones_like(raw), torch.ones_like(shared)
    for got, want in (
        (closed.gradient, general.gradient),
        (closed.shared_gradient, general.shared_gradient),
        *zip(closed.product(*direction), general.product(*direction), strict=True),
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("scale", ["shared", 0.8])
@pytest.mark.parametrize("noise", [None, 0.7])
def test_least_squares_are_the_loss_up_to_a_constant(scale, noise):
    family = sw.Normal(scale=scale)
    raw, shared = parameters_for(family, 9)
    aggregate = sw.Mean() if noise is None else sw.Noisy(sw.Mean(), normal=noise)
    sets = sw.Sets.random(9, 12, (2, 4), seed=2)
    o = sw.Observations(aggregate, sets, np.linspace(-1, 1, 12), weight=np.linspace(0, 2, 12))
    (term,) = Objective(family, [o], 9).terms
    assert term.quadratic
    assert term.separable == (noise is None)
    matrix, target, weight = term.least_squares(shared)
    unit = 0.8 if scale == 0.8 else float(shared.exp())
    rest = [matrix @ r[:, 0].numpy() - target for r in (raw, 2 * raw)]
    half = [0.5 * (weight * r**2).sum() / unit**2 for r in rest]
    values = [term.at(r, shared).value for r in (raw, 2 * raw)]
    assert half[1] - half[0] == pytest.approx(values[1] - values[0])


def test_what_terms_declare():
    pairs, three = sw.Sets([[0, 1], [2, 3]]), sw.Sets([[0, 1, 2]])
    kinds = [
        (sw.Normal(), sw.Mean(), three, [1.0], "GaussianTerm", True, False),
        (sw.Normal(scale="predicted"), sw.Mean(), three, [1.0], "AutodiffTerm", False, False),
        (sw.Cauchy(), sw.Mean(), three, [1.0], "AutodiffTerm", False, False),
        (sw.Normal(), sw.Rank(), pairs, [1, 0], "DifferenceTerm", False, False),
        (sw.Normal(scale="predicted"), sw.Rank(), pairs, [1, 0], "AutodiffTerm", False, False),
        (sw.Categorical(3), sw.Similarity(), pairs, [1, 0], "ClassTerm", False, True),
    ]
    for family, aggregate, sets, y, name, quadratic, of_classes in kinds:
        objective = Objective(family, [sw.Observations(aggregate, sets, y)], 4)
        (term,) = objective.terms
        assert type(term).__name__ == name
        assert (objective.quadratic, objective.of_classes) == (quadratic, of_classes)
        if not quadratic:
            with pytest.raises(TypeError, match="not quadratic"):
                term.least_squares(torch.zeros(objective.n_shared))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggregate", [sw.Mean(), sw.Rank(), sw.Similarity()], ids=repr)
def test_parts_of_terms_add_up_to_the_whole(aggregate, dtype):
    """Slices and masks of a term, over the table itself or over a smaller one."""
    family = sw.Categorical(3) if isinstance(aggregate, sw.Similarity) else sw.Normal()
    rng = np.random.default_rng(0)
    z = rng.integers(0, 3, 12)
    o = aggregate.observe(z + 0.0, sw.Sets.random(12, 20, aggregate.size or (1, 4), seed=1))
    o.weight = rng.uniform(size=20)
    objective = Objective(family, [o], 12)
    raw, shared = (x.to(dtype) for x in parameters_for(family, 12))
    whole = objective.gradient(raw, shared)
    (term,) = objective.terms
    parts = [term.take(slice(0, 7)), term.take(np.arange(20) >= 7), term.take(slice(20, 30))]
    values, slopes = 0.0, torch.zeros_like(raw)
    assert [len(part.sets) for part in parts] == [7, 13, 0]
    for part in parts[:2]:
        rows, own = objective.only([part]).batch()
        found = own.gradient(raw[torch.from_numpy(rows)], shared)
        assert found.gradient.dtype == dtype
        values += float(found.value)
        slopes[torch.from_numpy(rows)] += found.gradient
    assert values == pytest.approx(float(whole.value), rel=1e-5)
    torch.testing.assert_close(slopes, whole.gradient)


CLASS_AGGREGATES = [
    sw.Similarity(),
    sw.Triplet(),
    sw.Triplet(three_way=True),
    sw.AnyPositive(),
    sw.Counts(n_classes=4),
]


def classes_seen(aggregate, n_sets, n=40):
    """Observations of random classes, some of them weighted with 0, and logits that know a bit."""
    rng = np.random.default_rng(0)
    z = rng.integers(0, 4, n)
    o = aggregate.observe(z, sw.Sets.random(n, n_sets, aggregate.size or (1, 4), seed=1))
    o.weight = rng.integers(0, 3, n_sets).astype(float)
    return o, torch.tensor(rng.normal(size=(n, 4)) + 2 * np.eye(4)[z])


@pytest.mark.parametrize("aggregate", CLASS_AGGREGATES, ids=repr)
def test_posteriors_of_classes_are_the_general_derivatives(monkeypatch, aggregate):
    """In chunks or in one piece, with weights: values, gradient and diagonal of the Hessian."""
    o, raw = classes_seen(aggregate, 50)
    none = raw.new_zeros(0)
    whole = AutodiffTerm(sw.Categorical(4), o, len(raw))
    general = whole.at(raw, none)
    for cells in (1, 64, 1 << 20):
        monkeypatch.setattr(classes, "CELLS", cells)
        point = Objective(sw.Categorical(4), [o], len(raw)).at(raw)
        term = classes.ClassTerm(sw.Categorical(4), o, len(raw))
        torch.testing.assert_close(term.log_likelihood(raw, none), whole.log_likelihood(raw, none))
        assert point.value == pytest.approx(general.value)
        torch.testing.assert_close(point.gradient, general.gradient)
        torch.testing.assert_close(point.curvature(), general.curvature())
        direction = torch.ones_like(raw).cumsum(0)
        torch.testing.assert_close(
            point.product(direction, none)[0], general.product(direction, none)[0]
        )
        assert point.part() is point  # few sets stand for themselves


def test_an_impossible_observation_of_classes_has_no_slope():
    o = sw.Observations(sw.Similarity(), [[0, 1], [2, 3]], [1, 0])
    o = o.over(np.array([0, 1, 2, 2]))  # a row is not unlike itself
    raw = torch.tensor([[800.0, 0], [-800, 0], [5000, 0]], dtype=torch.float64)
    point = Objective(sw.Categorical(2), [o], 3).at(raw)
    assert point.gradient.isfinite().all()
    assert point.curvature().isfinite().all()


@pytest.mark.parametrize("aggregate", CLASS_AGGREGATES, ids=repr)
def test_a_part_of_many_sets_stands_for_all(monkeypatch, aggregate):
    monkeypatch.setattr(classes, "PART", (10_000, 10_000))
    o, raw = classes_seen(aggregate, 20_000)
    none = raw.new_zeros(0)
    point = Objective(sw.Categorical(4), [o], len(raw)).at(raw)
    part = point.part()
    assert part is not point
    for got, want in (
        (part.curvature(), point.curvature()),
        (part.product(raw, none)[0], point.product(raw, none)[0]),
    ):
        assert float((got - want).norm() / want.norm()) < 0.15


@pytest.mark.parametrize("n_classes", [3, 70])
@pytest.mark.parametrize(
    "aggregate", [sw.Triplet(), sw.Similarity()], ids=lambda a: type(a).__name__
)
def test_curvature_from_closed_posteriors_is_that_of_the_rule(aggregate, n_classes):
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 60)  # of many pairs both are of one class
    seen = aggregate.observe(z, sw.Sets.random(60, 90, aggregate.size, seed=0))
    seen.weight = rng.uniform(0.5, 2, 90)
    objective, none = Objective(sw.Categorical(n_classes), [seen], 60), torch.zeros(0).double()
    along = torch.from_numpy(rng.normal(size=(60, n_classes)))
    for size, closed in ((1, True), (100, True), (3000, False)):  # the last one underflows
        raw = torch.from_numpy(size * rng.normal(size=(60, n_classes)))
        point = objective.at(raw).points[0].graph
        usual = AutodiffPoint(objective.terms[0], raw, none)
        assert (type(point) is not AutodiffPoint) == closed
        assert point.value == pytest.approx(usual.value)
        torch.testing.assert_close(point.gradient, usual.gradient)
        torch.testing.assert_close(point.product(along, none)[0], usual.product(along, none)[0])
