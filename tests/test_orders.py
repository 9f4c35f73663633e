"""Orders of which only a part is known: the first k, or levels with ties of any number."""

from __future__ import annotations

import itertools
import math

import numpy as np
import oracle
import pytest
import torch
from cases import example, instances, observe
from torch import distributions as td

import setwise as sw
from setwise.distributions import map_parameters

F64 = torch.float64
CONTINUOUS = (
    "normal", "cauchy", "laplace", "logistic", "gumbel", "studentt", "exponential", "gamma",
)  # fmt: skip
QUICK = tuple(family for family in CONTINUOUS if family != "studentt")
LEVELS = ([1, 2, 2, 4], [1, 1, 3, 4], [1, 2, 3, 3], [2, 2, 1, 1], [1, 1, 1, 4], [5, 5, 5, 5])


def orders(levels, top=None):
    """Every order of the members, best first, that agrees with the levels."""
    rank = [min(sum(other < own for other in levels), top or len(levels)) for own in levels]
    groups = [[k for k, r in enumerate(rank) if r == value] for value in sorted({*rank})]
    for parts in itertools.product(*map(itertools.permutations, groups)):
        yield [k for part in parts for k in part]


def summed(d, levels, top=None):
    """log P as a sum over full orders."""
    return torch.logsumexp(sw.log_likelihood(sw.Ranking(), d, [*orders(levels, top)], None), 0)


def ranked(d, levels, top=None):
    rows = [[*range(len(own))] for own in levels]
    return sw.log_likelihood(sw.Ranking(top=top), d, rows, levels)


@pytest.mark.parametrize("same", [False, True], ids=["own", "same"])
@pytest.mark.parametrize("family", CONTINUOUS)
def test_ties_are_sums_over_orders(family, same):
    d, _ = example(family, 4, same=same, seed=3)
    some = LEVELS[:2] if family == "studentt" else LEVELS
    want = torch.stack([summed(d, levels) for levels in some])
    torch.testing.assert_close(ranked(d, some), want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["normal", "laplace", "gamma"])
def test_ties_against_the_oracle(family):
    d, _ = example(family, 3)
    members = [oracle.member_of(d, k) for k in range(3)]
    for levels in ([1, 2, 2], [1, 1, 3], [2, 1, 2]):
        want = oracle.probability(sw.Ranking(), members, levels)
        assert ranked(d, [levels]).exp().item() == pytest.approx(want, rel=1e-8)
        with_top = oracle.probability(sw.Ranking(top=1), members, levels)
        assert ranked(d, [levels], top=1).exp().item() == pytest.approx(with_top, rel=1e-8)


@pytest.mark.parametrize("family", QUICK)
def test_the_first_k(family):
    """Of five listed members, in sets of several sizes; the first alone is a choice."""
    d, _ = example(family, 5, seed=1)
    rows = [[4, 1, 0, 2, 3], [2, 0, 1], [3, 4]]
    for top in (1, 2, 4, 7):
        found = sw.log_likelihood(sw.Ranking(top=top), d, rows, None)
        for i, listed in enumerate(rows):
            own = map_parameters(d, lambda p, listed=listed: p[listed])
            want = summed(own, [*range(len(listed))], top)
            assert found[i].item() == pytest.approx(want.item(), abs=1e-9)
        choice = sw.log_likelihood(sw.Choice(), d, rows, [0, 0, 0])
        if top == 1:
            torch.testing.assert_close(found, choice, rtol=0, atol=1e-9)


def compositions(n):
    for cuts in itertools.product((False, True), repeat=n - 1):
        yield np.concatenate([[1], 1 + np.cumsum(cuts)])


@pytest.mark.parametrize("family", ["normal", "gumbel", "cauchy"])
def test_orders_with_the_same_ties_have_probability_one(family):
    d, _ = example(family, 4, same=True)
    for levels in compositions(4):
        every = [list(p) for p in {*itertools.permutations(levels.tolist())}]
        assert ranked(d, every).exp().sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("size", [7, 9])
def test_many_tied_members(size, rng):
    """Plackett–Luce by subsets, by integrals, and by running integrals, which share no code."""
    u = torch.tensor(rng.normal(size=size + 4))
    levels = [1, 2, *[3] * size, size + 3, size + 4]
    one = td.Gumbel(u, torch.ones_like(u[0]).expand(len(u)))
    own = td.Gumbel(u, torch.ones_like(u) * (1 + 1e-13 * torch.arange(len(u))))
    got, want = (ranked(d, [levels]).item() for d in (one, own))
    assert got == pytest.approx(want, abs=1e-8)
    from setwise.aggregates.ranking import _first_by_integral, _first_by_subsets

    group, rest = torch.tensor(rng.normal(0, 3, (20, 6))), torch.tensor(rng.normal(size=20))
    torch.testing.assert_close(_first_by_integral(group, rest), _first_by_subsets(group, rest))


def test_equal_members_are_counted():
    """With one distribution every order is as likely: P is one over a multinomial coefficient."""
    for d in (td.Normal(0.0, 1.0), td.StudentT(3.0), td.Gumbel(0.0, 1.0)):
        d = map_parameters(d, lambda p: p.double().expand(40))
        levels = [1] * 20 + [2] * 3 + [3] * 17
        ways = math.lgamma(41) - math.lgamma(21) - math.lgamma(4) - math.lgamma(18)
        if isinstance(d, td.StudentT):
            levels, ways = [1, *[2] * 39], math.log(40)
        assert ranked(d, [levels]).item() == pytest.approx(-ways, rel=1e-9)


@pytest.mark.parametrize("family", [f for f in QUICK if f != "exponential"])
def test_derivatives(family):
    d, _ = example(family, 6, seed=2)
    names = [*d.arg_constraints]
    leaves = [getattr(d, name).detach().requires_grad_() for name in names]

    def value(*leaves):
        own = type(d)(**dict(zip(names, leaves, strict=True)))
        first = sw.log_likelihood(sw.Ranking(top=1), own, [[0, 1, 2]], None)
        ties = sw.log_likelihood(sw.Ranking(), own, [[0, 1, 2, 4], [5, 3, 0, 1]],
                                 [[1, 2, 2, 4], [1, 1, 3, 3]])  # fmt: skip
        return torch.cat([first, ties]).sum()

    assert torch.autograd.gradcheck(value, leaves, rtol=1e-5, fast_mode=True)
    assert torch.autograd.gradgradcheck(value, leaves, rtol=1e-4, fast_mode=True)


def test_derivatives_with_one_scale():
    u = torch.linspace(-1, 1, 9, dtype=F64).requires_grad_()

    def value(u):
        d = td.Gumbel(u, torch.ones((), dtype=F64).expand(9))
        return ranked(d, [[1, 2, 2, 4, 5, 5, 5, 5, 9], [1, *[2] * 7, 9]]).sum()

    assert torch.autograd.gradcheck(value, u, fast_mode=True)
    assert torch.autograd.gradgradcheck(value, u, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("family", ["normal", "cauchy", "laplace", "logistic", "gumbel"])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_ties_far_out_of_order(family, dtype):
    d, _ = example(family, 5, dtype=dtype)
    loc = torch.tensor([-2e6, -1e6, -1e6, 0.0, 1e6], dtype=dtype, requires_grad=True)
    d = type(d)(loc, torch.ones(5, dtype=dtype))
    for levels in ([1, 2, 2, 4, 5], [1, 1, 3, 4, 4]):
        value = ranked(d, [levels])
        assert value.isfinite().all()
        assert value.dtype == dtype
        (grad,) = torch.autograd.grad(value.sum(), loc)
        assert grad.isfinite().all()
        assert grad[0] > 0
        assert grad[4] < 0


def test_single_precision():
    for family in ("normal", "gumbel", "cauchy"):
        d, _ = example(family, 4, same=True)
        single, _ = example(family, 4, same=True, dtype=torch.float32)
        want, got = (ranked(each, LEVELS) for each in (d, single))
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


# ---- levels as they are given


def test_levels_become_ranks():
    seen = sw.Observations(sw.Ranking(), [[0, 1, 2, 3], [4, 5]], [[2.5, 1, 2.5, -1], [7, 7]])
    assert seen.y[0].tolist() == [3, 2, 3, 1]
    assert seen.y[1, :2].tolist() == [1, 1]
    assert np.isnan(seen.y[1, 2:]).all()
    top = sw.Ranking(top=2)
    for given, known in (
        ([1, 2, 3, 4], [1, 2, 3, 3]), ([1, 2, 2, 4], [1, 2, 2, 4]), ([1, 1, 1, 4], [1, 1, 1, 4]),
        ([4, 3, 1, 2], [3, 3, 1, 2]), ([1, 1, 3, 4], [1, 1, 3, 3]),
    ):  # fmt: skip
        assert sw.Observations(top, [[0, 1, 2, 3]], [given]).y[0].tolist() == known
    assert sw.Observations(top, [[0, 1]] * 2, [[1, 2], [2, 1]]).take([1]).y.tolist() == [[2, 1]]
    with pytest.raises(ValueError, match="top is how many of the first"):
        sw.Ranking(top=0)
    with pytest.raises(sw.SetError, match="up to 10 can be"):
        ranked(example("normal", 13)[0], [[1, *[2] * 11, 13]])


def test_levels_by_name():
    """Lists for named groups, and columns beside those of the members."""
    cup = ["u", "u", "v", "v", "v", "w"]
    levels = {"v": [5, 5, 9], "u": [2, 1], "w": None}
    seen = sw.Observations.from_groups(sw.Ranking(), cup, levels)
    known = {
        name: [v for v in row if v == v] for name, row in zip(seen.sets.names, seen.y, strict=True)
    }
    assert known == {"u": [2, 1], "v": [1, 1, 3]}
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": ["x", "y"], "b": ["y", "z"], "ra": [2, 1], "rb": [1, 1]})
    seen = sw.Observations.from_ids(
        sw.Ranking(), frame[["a", "b"]], ["x", "y", "z"], frame[["ra", "rb"]]
    )
    assert seen.y.tolist() == [[2, 1], [1, 1]]


def test_a_set_that_is_at_fault_is_named():
    d, _ = example("normal", 13)
    rows = [[0, 1], [*range(13)]]
    with pytest.raises(sw.SetError, match=r"^set 1 has 11 members tied"):
        sw.log_likelihood(sw.Ranking(), d, rows, [[1, 2], [1, *[2] * 11, 13]])


def test_the_first_k_are_observed():
    z = np.array([3.0, 5.0, 4.0, 6.0])
    seen = sw.Ranking(top=2).observe(z, [[0, 1, 2, 3], [2, 0]])
    assert [rows.tolist() for rows in seen.sets] == [[3, 1, 0, 2], [2, 0]]
    assert seen.y is None


@pytest.mark.parametrize("family", ["normal", "gumbel"])
def test_strengths_are_found_from_parts_of_orders(family, rng):
    """Fits to the first two of six, and to levels with ties, agree with fits to whole orders."""
    X = rng.normal(size=(40, 2))
    sets = sw.Sets.random(40, 400, 6, seed=0)
    table = np.arange(2400).reshape(400, 6)
    noise = rng.gumbel(size=2400) if family == "gumbel" else rng.normal(size=2400)
    z = (X @ [1.0, -0.5])[sets.indices] + noise
    whole = sw.Ranking().observe(z, table)
    place = np.empty(2400, int)
    place[whole.sets.indices] = np.tile(np.arange(6), 400)
    levels = np.maximum(place.reshape(400, 6), 2)  # three tied at the head
    levels[levels == 4] = 3
    rows = {
        "top": (sw.Ranking(top=2), sets.indices[sw.Ranking(top=2).observe(z, table).sets.indices]),
        "ties": (sw.Ranking(), sets.indices),
    }
    for name, (aggregate, listed) in rows.items():
        y = levels if name == "ties" else None
        seen = sw.Observations(aggregate, listed.reshape(400, 6), y)
        unit = sw.Normal(scale=1.0) if family == "normal" else sw.Gumbel(scale=1.0)
        model = sw.AggregateRegressor(unit, sw.Linear(alpha=0.0), validation=None, verbose=0)
        model.fit(X, seen)
        wide = model.summary().table["std_error"].to_numpy()[:2]
        assert (np.abs(model.coef_.ravel() - [1.0, -0.5]) < 4 * wide).all(), (name, model.coef_)


def test_posterior_of_tied_members(rng):
    """The mean of each member given levels, against simulation."""
    d = td.Normal(torch.tensor([0.0, 0.5, 1.0, -1.0], dtype=F64), torch.ones(4, dtype=F64))
    z = d.sample((200_000,)).numpy()
    agrees = (z[:, 0] > z[:, 1:3].max(1)) & (z[:, 1:3].min(1) > z[:, 3])
    seen = sw.Observations(sw.Ranking(), [[0, 1, 2, 3]], [[1, 2, 2, 4]])
    from setwise.inference import posterior

    found = posterior(seen, d)
    np.testing.assert_allclose(found.mean, z[agrees].mean(0), atol=0.02)
    np.testing.assert_allclose(found.std, z[agrees].std(0), atol=0.02)


def test_choix_ranks_the_first_k_alike(rng):
    choix = pytest.importorskip("choix")
    strength = rng.normal(size=6)
    d = td.Gumbel(torch.tensor(strength), torch.ones((), dtype=F64).expand(6))
    got = sw.log_likelihood(sw.Ranking(top=2), d, [[3, 0, 1, 5, 2, 4]], None).item()
    tops = [(3, (0, 1, 5, 2, 4)), (0, (1, 5, 2, 4))]
    assert got == pytest.approx(choix.log_likelihood_top1(tops, strength), rel=1e-12)


def test_examples_are_tried():
    assert [aggregate.top for aggregate in instances(sw.Ranking)] == [None, 1]
    d, _ = example("normal", 3)
    assert observe(sw.Ranking(top=1), d, sw.Sets([[0, 1, 2]])).y is None
