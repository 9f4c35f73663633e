"""Posteriors and expected observations against enumeration, quadrature and simulation."""

import itertools

import numpy as np
import oracle
import pytest
import torch
from cases import example, make_sets, members_of, observe, trials
from scipy import stats
from torch import distributions as td

import setwise as sw
from setwise.inference import Posterior, expectation, expected_aggregate, posterior
from setwise.numerics import log1mexp

# An integral over likelihoods that are integrals themselves: right, but seconds each.
SLOW = {
    (aggregate, family)
    for aggregate in ("Mean", "Sum", "Median", "Choice", "Rank", "Ranking", "Difference", "Noisy")
    for family in ("studentt", "gumbel", "logistic")
} - {("Mean", "gumbel"), ("Rank", "logistic")} | {("Teams", "normal")}  # see test_teams.py
LEVY = ("laplace", "logistic", "gumbel", "studentt")


class Tilted:
    """A member with its density multiplied by g(z): p(y) is linear in the density of each one."""

    def __init__(self, member, g):
        self.member, self.g, self.discrete = member, g, member.discrete
        if self.discrete:
            self.table = member.table * g(np.arange(len(member.table)))

    @property
    def breaks(self):
        return self.member.breaks

    def pdf(self, x):
        return self.g(np.asarray(x)) * self.member.pdf(x)

    def _part(self, x, side):
        def one(v):
            if np.isinf(v):
                return (
                    0.0
                    if (v < 0) == (side == "high")
                    else self._part(0.0, "low") + self._part(0.0, "high")
                )
            return oracle.integrate(self.pdf, self.breaks, **{side: float(v)})

        x = np.asarray(x, float)
        return np.array([one(v) for v in x.ravel()]).reshape(x.shape)[()]

    def cdf(self, x):
        return self._part(x, "high")

    def sf(self, x):
        return self._part(x, "low")


def mean_of(aggregate, members, y, k, g):
    """E[g(Z_k) | y] by brute force."""
    members = list(members)
    if isinstance(aggregate, sw.PrimaryInstance) and not members[0].discrete:
        density = np.array([m.pdf(np.float64(y)) for m in members])
        share = density[k] / density.sum()
        tilted = Tilted(members[k], g)
        return share * g(y) + (1 - share) * oracle.integrate(tilted.pdf, tilted.breaks)
    bottom = oracle.probability(aggregate, members, y)
    members[k] = Tilted(members[k], g)
    return oracle.probability(aggregate, members, y) / bottom


def wanted(aggregate, family):
    if isinstance(aggregate, sw.Custom) and family != "categorical":
        return False  # a Monte Carlo estimate
    return family != "cauchy" and (type(aggregate).__name__, family) not in SLOW


TRIALS = [t for t in trials() if wanted(*t[1:])]


@pytest.mark.parametrize(
    ("aggregate", "family"), [t[1:] for t in TRIALS], ids=[t[0] for t in TRIALS]
)
def test_against_brute_force(aggregate, family):
    d, _ = example(family, 7)
    inner = getattr(aggregate, "aggregate", aggregate)
    sizes = (2, 3) if family == "categorical" else (2,)
    if isinstance(aggregate, sw.Noisy) and family != "categorical":
        sizes = (1,)
    if isinstance(inner, sw.Median):
        sizes = (3,) if family == "categorical" else (1,)
    sets = make_sets(aggregate, sizes=sizes)
    if family != "categorical":
        sets = sets.take([0])
    o = observe(aggregate, d, sets)
    found = posterior(o, d)
    sets = o.sets  # a ranking reorders them
    for i in range(len(o)):
        members = members_of(sets, d, i, oracle)
        y = None if o.y is None else o.y[i]
        for k in range(len(members)):
            at = sets.offsets[i] + k
            if family == "categorical":
                want = [
                    mean_of(aggregate, members, y, k, lambda z, c=c: 1.0 * (z == c))
                    for c in range(4)
                ]
                np.testing.assert_allclose(found.probs[at], want, rtol=1e-7, atol=1e-9)
                continue
            # the oracle of rankings skips what is not positive, so z is moved up
            mean = mean_of(aggregate, members, y, k, lambda z: z + 50.0) - 50.0
            tolerance = 3e-3 if family == "laplace" else 1e-4 if family in LEVY else 1e-6
            assert found.mean[at] == pytest.approx(mean, rel=tolerance, abs=tolerance)
            if family in LEVY:
                assert found.std is None
            else:
                square = mean_of(aggregate, members, y, k, lambda z, m=mean: (z - m) ** 2)
                assert found.std[at] ** 2 == pytest.approx(square, rel=1e-5, abs=1e-6)


def test_members_keep_their_places():
    """Shared rows, ragged sets, shared scales: entry i is about row sets.indices[i]."""
    sets = sw.Sets([[2, 0], [1, 2, 0], [0]])
    scale = torch.tensor(2.0).expand(3)
    d = td.Normal(torch.tensor([0.0, 1.0, 2.0]), scale)
    o = sw.Observations(sw.Sum(), sets, [5.0, 0.0, 1.0])
    found = posterior(o, d)
    assert found.sets is sets
    np.testing.assert_allclose(found.mean, [3.5, 1.5, 0, 1, -1, 1], atol=1e-6)
    np.testing.assert_allclose(
        found.std**2, [2, 2, 4 * 2 / 3, 4 * 2 / 3, 4 * 2 / 3, 0], rtol=1e-6, atol=1e-6
    )
    assert repr(found) == "Posterior(Sets(3 sets of 1 to 3 members), mean and std)"


def test_large_sets():
    """Normal targets have a standard deviation in sets of any size, others up to 64 members."""
    sets = sw.Sets([range(100)])
    rate = torch.linspace(0.5, 2.0, 100, dtype=torch.float64)
    o = sw.Observations(sw.Sum(), sets, [150.0])
    counts = posterior(o, td.Poisson(rate))
    assert counts.std is None
    np.testing.assert_allclose(counts.mean, 150 * rate / rate.sum())
    normal = posterior(o, td.Normal(rate, torch.ones(100, dtype=torch.float64)))
    np.testing.assert_allclose(normal.std**2, 0.99)


def test_alignment_is_applied():
    class Alignment:
        def probs(self, probs):
            return probs[:, ::-1]

        def values(self, mean):
            return 10 + 2 * mean

        def spread(self, std):
            return 2 * std

    o = sw.Observations(sw.Mean(), [[0, 1]], [1.0])
    d = td.Normal(torch.zeros(2), torch.ones(2))
    found = posterior(o, d, Alignment())
    np.testing.assert_allclose(found.mean, 12.0)
    np.testing.assert_allclose(found.std, 2 * 0.5**0.5)
    d = td.Categorical(logits=torch.tensor([[0.0, 1.0]]))
    found = posterior(sw.Observations(sw.Direct(), [[0]], [1]), d, Alignment())
    np.testing.assert_allclose(found.probs, [(1.0, 0.0)], atol=1e-12)
    assert "2 classes" in repr(found)


def test_refusals():
    o = sw.Observations(sw.Mean(), [[0, 1]], [1.0])
    with pytest.raises(TypeError, match=r"Cauchy targets have no mean.*Normal\(\)"):
        posterior(o, td.Cauchy(torch.zeros(2), torch.ones(2)))
    with pytest.raises(TypeError, match="no mean"):
        posterior(o, td.StudentT(torch.ones(2), torch.zeros(2), torch.ones(2)))
    with pytest.raises(ValueError, match=r"set 0 has y = -1.0, which is impossible"):
        posterior(sw.Observations(sw.Sum(), [[0, 1]], [-1.0]), td.Poisson(torch.ones(2)))


def test_expectation_is_the_mean():
    d, _ = example("gamma", 6)
    o = observe(sw.Sum(), d, sw.Sets([[0, 1, 2], [3, 4, 5]]))
    values, each = expectation(o, d)
    np.testing.assert_allclose(values, posterior(o, d).mean)
    np.testing.assert_allclose(each, sw.log_likelihood(sw.Sum(), d, o.sets, o.y))


def test_posterior_is_a_plain_record():
    record = Posterior(sw.Sets([[0, 1]]), mean=np.zeros(2))
    assert record.std is None
    assert record.probs is None
    assert "std" not in repr(record)


# ---- the observation to expect

REFUSED = (sw.Ranking, sw.Uncoupled, sw.Interval)
DRAWS = 20_000


def simulated(aggregate, d, sets, n=DRAWS):
    """y of many simulated copies of the sets, (copies, sets, …)."""
    torch.manual_seed(1)
    z = d.sample((n,)).reshape(-1)
    if isinstance(d, td.Poisson | td.NegativeBinomial | td.Categorical):
        z = z.long()
    many = sets.take(np.tile(np.arange(len(sets)), n)).over(np.arange(n * len(sets.indices)))
    y = np.asarray(aggregate.apply(z, many, np.random.default_rng(2)), float)
    return y.reshape(n, len(sets), *y.shape[1:])


@pytest.mark.parametrize(
    ("aggregate", "family"), [t[1:] for t in trials()], ids=[t[0] for t in trials()]
)
def test_expected_aggregate(aggregate, family):
    sets = make_sets(aggregate, sizes=(3, 2, 3))
    d, _ = example(family, len(sets.indices), seed=3)
    inner = getattr(aggregate, "aggregate", aggregate)
    if isinstance(inner, REFUSED):
        with pytest.raises(TypeError, match="has no single y to expect: ask for"):
            expected_aggregate(aggregate, d, sets)
        return
    found = expected_aggregate(aggregate, d, sets)
    few = 2000 if isinstance(aggregate, sw.Custom) else DRAWS
    y = simulated(aggregate, d, sets, few)
    assert found.shape == y.shape[1:]
    classes = family == "categorical"
    named = isinstance(inner, sw.Choice | sw.Coarse) or (
        classes and isinstance(inner, sw.Direct | sw.PrimaryInstance)
    )
    if isinstance(inner, sw.Fold) and max(inner.output) > 1:
        named = True
    if named:
        for i in range(len(sets)):
            values, counts = np.unique(y[:, i], return_counts=True)
            share = counts[values == found[i]].sum() / len(y)
            assert share >= counts.max() / len(y) - 0.02
    elif family == "cauchy" and not isinstance(inner, sw.Rank):
        np.testing.assert_allclose(found, np.median(y, 0), atol=0.3, rtol=0.2)
    else:
        exact = aggregate.linear(sets) is not None or classes or isinstance(inner, sw.Rank)
        draws = few if exact else 1000
        error = y.std(0) * np.sqrt(1 / few + 1 / draws) + 1e-3
        assert (np.abs(found - y.mean(0)) < 5 * error).all()


def test_expected_of_two_classes_has_two_columns():
    d = td.Categorical(probs=torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]).double())
    sets = sw.Sets([[0, 1], [2]])
    for aggregate, want in (
        (sw.Counts(), [(1.4, 0.6), (0.2, 0.8)]),
        (sw.Proportions(), [(0.7, 0.3), (0.2, 0.8)]),
        (sw.Presence(), [(0.95, 0.55), (0.2, 0.8)]),
    ):
        np.testing.assert_allclose(expected_aggregate(aggregate, d, sets), want)
    np.testing.assert_allclose(expected_aggregate(sw.AnyPositive(), d, sets), [0.55, 0.8])
    one = sw.Sets([[0], [1], [2]])
    assert expected_aggregate(sw.Direct(), d, one).tolist()[::2] == [0, 1]
    noisy = expected_aggregate(sw.Noisy(sw.Direct(), normal=0.1), d, one)
    np.testing.assert_allclose(noisy, [0.1, 0.5, 0.8])


def test_expected_is_repeatable_and_leaves_the_global_seed_alone():
    d, _ = example("gumbel", 4)
    sets = sw.Sets([[0, 1], [2, 3]])
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = expected_aggregate(sw.Max(), d, sets)
    assert torch.equal(state, torch.random.get_rng_state())
    assert (expected_aggregate(sw.Max(), d, sets) == first).all()


def test_expected_wrong_size_and_wrong_targets():
    d = td.Normal(torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"set 0 has 3 members: .* takes sets of 2 members"):
        expected_aggregate(sw.Rank(), d, sw.Sets([[0, 1, 2]]))
    with pytest.raises(TypeError, match="no likelihood rule is known"):
        expected_aggregate(sw.Similarity(), d, sw.Sets([[0, 1]]))
    assert (
        expected_aggregate(sw.Mean(), td.Normal(torch.zeros(0), torch.ones(0)), sw.Sets([])).size
        == 0
    )


# ---- observations seen through noise, by brute force and without the oracle

LAWS = {"normal": stats.norm(0, 0.7), "laplace": stats.laplace(0, 0.7)}
THREE = sw.Sets([[0, 1, 2]])
LOGITS = torch.tensor([[0.3, -0.8, 0.5], [1.0, 0.2, -0.6], [-0.5, 0.9, 0.1]]).double()


def class_posterior(likelihood, size):
    """P(class | y) of each member, from p(y | z) of every tuple of classes."""
    p = torch.softmax(LOGITS, 1).numpy()
    z = np.array(list(itertools.product(range(3), repeat=size)))
    joint = likelihood(z) * np.prod([p[k, z[:, k]] for k in range(size)], axis=0)
    found = [[joint[z[:, k] == c].sum() for c in range(3)] for k in range(size)]
    return np.array(found) / joint.sum()


@pytest.mark.parametrize("flip", [0.1, 0.6])
@pytest.mark.parametrize(
    ("aggregate", "size", "y", "clean", "n_values"),
    [
        (sw.Similarity(), 2, 1.0, lambda z: z[:, 0] == z[:, 1], 2),
        (sw.AnyPositive(2), 3, 0.0, lambda z: (z == 2).any(1), 2),
        (sw.Rank(), 2, 0.5, lambda z: 0.5 + 0.5 * np.sign(z[:, 0] - z[:, 1]), 3),
        (sw.Direct(), 1, 2.0, lambda z: z[:, 0], 3),
        (sw.Max(), 3, 1.0, lambda z: z.max(1), 3),
        (sw.Sum(), 3, 4.0, lambda z: z.sum(1), 7),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, sw.Aggregate) else None,
)
def test_flipped_labels_by_enumeration(flip, aggregate, size, y, clean, n_values):
    def likelihood(z):
        return np.where(clean(z) == y, 1 - flip, flip / (n_values - 1))

    o = sw.Observations(sw.Noisy(aggregate, flip=flip), THREE.indices[None, :size], [y])
    found = posterior(o, td.Categorical(logits=LOGITS)).probs
    np.testing.assert_allclose(found, class_posterior(likelihood, size), rtol=1e-9)


@pytest.mark.parametrize("noise", sorted(LAWS))
@pytest.mark.parametrize(
    "aggregate", [sw.Counts(), sw.Proportions(), sw.Sum(), sw.Mean()], ids=repr
)
def test_noise_added_to_classes_by_enumeration(aggregate, noise):
    law = LAWS[noise]
    shared = isinstance(aggregate, sw.Proportions | sw.Mean)
    counted = isinstance(aggregate, sw.Counts)
    y = np.array([2.1, -0.4, 1.2] if counted else [2.3]) / (3 if shared else 1)

    def likelihood(z):
        clean = np.stack([(z == c).sum(1) for c in range(3)], 1) if counted else z.sum(1)[:, None]
        return law.pdf(y - clean / (3 if shared else 1)).prod(1)

    o = sw.Observations(sw.Noisy(aggregate, **{noise: 0.7}), THREE, y[None] if counted else y)
    found = posterior(o, td.Categorical(logits=LOGITS)).probs
    np.testing.assert_allclose(found, class_posterior(likelihood, 3), rtol=1e-9)


PAIR = sw.Sets([[0, 1]], weights=[1.0, 2.0])
NUMBERS = {
    "normal": (td.Normal, [0.4, -0.9], [1.1, 0.8], stats.norm),
    "laplace": (td.Laplace, [0.4, -0.9], [1.1, 0.8], stats.laplace),
    "gumbel": (td.Gumbel, [0.4, -0.9], [1.1, 0.8], stats.gumbel_r),
    "gamma": (td.Gamma, [2.0, 3.5], [1.5, 0.9], None),
}


def on_a_grid(family, likelihood):
    """Means and standard deviations of two members given y, by a midpoint rule on a grid."""
    kind, first, second, law = NUMBERS[family]
    if law is None:
        members = [stats.gamma(a, scale=1 / b) for a, b in zip(first, second, strict=True)]
    else:
        members = [law(a, b) for a, b in zip(first, second, strict=True)]
    edges = [np.linspace(m.ppf(1e-9), m.ppf(1 - 1e-9), 4001) for m in members]
    z = [0.5 * (e[1:] + e[:-1]) for e in edges]
    p = [np.diff(m.cdf(e)) for m, e in zip(members, edges, strict=True)]
    joint = likelihood(z[0][:, None], z[1]) * p[0][:, None] * p[1]
    joint /= joint.sum()
    shares = [joint.sum(1), joint.sum(0)]
    mean = np.array([share @ at for share, at in zip(shares, z, strict=True)])
    square = np.array([share @ at**2 for share, at in zip(shares, z, strict=True)])
    rows = [torch.tensor(values, dtype=torch.float64) for values in (first, second)]
    return kind(*rows), mean, np.sqrt(square - mean**2)


@pytest.mark.parametrize("noise", sorted(LAWS))
@pytest.mark.parametrize("family", sorted(NUMBERS))
@pytest.mark.parametrize(
    ("aggregate", "factors"),
    [(sw.Sum(), (1, 2)), (sw.Mean(), (1 / 3, 2 / 3)), (sw.Difference(), (1, -1))],
    ids=["Sum", "Mean", "Difference"],
)
def test_noise_added_to_numbers_on_a_grid(aggregate, factors, family, noise):
    y = 1.7
    law, (a, b) = LAWS[noise], factors
    d, mean, std = on_a_grid(family, lambda first, second: law.pdf(y - a * first - b * second))
    found = posterior(sw.Observations(sw.Noisy(aggregate, **{noise: 0.7}), PAIR, [y]), d)
    np.testing.assert_allclose(found.mean, mean, atol=2e-3 if family in LEVY else 1e-5)
    if family not in LEVY:
        np.testing.assert_allclose(found.std, std, atol=1e-5)


@pytest.mark.parametrize("family", ["normal", "gamma"])
def test_flipped_comparisons_of_numbers_on_a_grid(family):
    d, mean, std = on_a_grid(family, lambda first, second: np.where(first > second, 0.2, 0.8))
    o = sw.Observations(sw.Noisy(sw.Rank(), flip=0.2), [[0, 1]], [0.0])
    found = posterior(o, d)
    np.testing.assert_allclose(found.mean, mean, atol=1e-3)
    np.testing.assert_allclose(found.std, std, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own hessian
@pytest.mark.parametrize("aggregate", [sw.Similarity(), sw.AnyPositive()])
def test_transforms_of_torch_find_the_same_derivatives(aggregate):
    sets, classes = sw.Sets([[0, 1], [2, 3], [1, 3]]), 2

    def value(logits):
        rows = torch.distributions.Categorical(logits=logits, validate_args=False)
        return sw.log_likelihood(aggregate, rows, sets, [1, 0, 1]).sum()

    logits = torch.randn(4, classes, dtype=torch.float64, generator=torch.manual_seed(0))
    first = torch.autograd.functional.jacobian(value, logits)
    torch.testing.assert_close(torch.func.grad(value)(logits), first)
    second = torch.autograd.functional.hessian(value, logits)
    torch.testing.assert_close(torch.func.hessian(value)(logits), second)


def test_what_is_left_of_one_keeps_its_digits_in_float32():
    x = torch.tensor([-30.0, -11.0, -1.0, -0.1, -1e-6], requires_grad=True)
    log_left = log1mexp(x)
    (slope,) = torch.autograd.grad(log_left.sum(), x)
    exact = x.detach().double()
    torch.testing.assert_close(
        log_left.double(), torch.log(-torch.expm1(exact)), rtol=1e-6, atol=1e-13
    )
    torch.testing.assert_close(slope.double(), -1 / torch.expm1(-exact), rtol=1e-6, atol=0)
