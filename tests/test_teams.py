"""Teams: comparisons and orders of the sums of their members."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import example
from torch import distributions as td

import setwise as sw
from setwise.inference import expected_aggregate, posterior

F64 = torch.float64


def sums(d, teams):
    """The distribution of the sum of each team."""
    loc = torch.stack([d.loc[t].sum() for t in teams])
    if isinstance(d, td.Normal):
        return td.Normal(loc, torch.stack([d.scale[t].square().sum().sqrt() for t in teams]))
    return td.Cauchy(loc, torch.stack([d.scale[t].sum() for t in teams]))


INNER = [
    (sw.Rank(), (2, 3), 1.0), (sw.Rank(tie_margin=0.5), (3, 2), 0.5), (sw.Rank(), (1, 4), 0.0),
    (sw.Choice(), (1, 2, 2), 2), (sw.Ranking(), (2, 1, 2), [2, 1, 3]),
    (sw.Ranking(), (1, 2, 2), [2, 2, 1]), (sw.Ranking(top=1), (1, 1, 2, 1), [2, 1, 3, 4]),
    (sw.Difference(), (2, 3), 0.7), (sw.Noisy(sw.Rank(), flip=0.1), (2, 3), 1.0),
]  # fmt: skip


@pytest.mark.parametrize("family", ["normal", "cauchy"])
@pytest.mark.parametrize(("inner", "sizes", "y"), INNER, ids=lambda v: str(v))
def test_teams_are_their_sums(family, inner, sizes, y):
    d, _ = example(family, 5)
    rows = [4, 0, 2, 1, 3]
    teams = np.split(rows, np.cumsum(sizes)[:-1])
    got = sw.log_likelihood(sw.Teams(inner, sizes), d, [rows], [y])
    want = sw.log_likelihood(inner, sums(d, teams), [range(len(sizes))], [y])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", ["normal", "cauchy"])
def test_signs_of_weights_tell_two_teams_apart(family):
    d, _ = example(family, 5)
    rows, sides = [[0, 1, 2, 3], [4, 0], [1, 2, 4]], [[1, 1, -1, -1], [-1, 1], [1, -1, -1]]
    sets = sw.Sets(rows, weights=sides)
    got = sw.log_likelihood(sw.Teams(sw.Rank()), d, sets, [1, 0, 1])
    want = [
        sw.log_likelihood(sw.Teams(sw.Rank(), sizes), d, [listed], [y])
        for sizes, listed, y in (((2, 2), rows[0], 1), ((1, 1), [0, 4], 0), ((1, 2), rows[2], 1))
    ]
    torch.testing.assert_close(got, torch.cat(want))
    # by their means, and the same from a sparse matrix of a line per game
    halves = sw.Sets(rows[:1], weights=[[0.5, 0.5, -0.5, -0.5]])
    margins = [sw.Teams(sw.Rank(m)) for m in (0.3, 0.6)]
    one, two = (sw.log_likelihood(a, d, s, [0.5]) for a, s in zip(margins, (halves, sets.take([0])),
                                                                  strict=True))  # fmt: skip
    torch.testing.assert_close(one, two)


def test_gradients_and_single_precision():
    loc = torch.linspace(-1, 1, 6, dtype=F64).requires_grad_()
    scale = torch.linspace(0.5, 1.5, 6, dtype=F64).requires_grad_()
    sets = sw.Sets([[0, 1, 2], [3, 4, 5, 0]], weights=[[1, 2, -1], [1, -1, -0.5, 1]])

    def value(loc, scale):
        normal = sw.log_likelihood(sw.Teams(sw.Rank(0.2)), td.Normal(loc, scale), sets, [1, 0.5])
        order = sw.log_likelihood(sw.Teams(sw.Ranking(), (1, 2, 1)), td.Normal(loc, scale),
                                  [[5, 0, 1, 2]], [[1, 2, 2]])  # fmt: skip
        return torch.cat([normal, order])

    assert torch.autograd.gradcheck(value, (loc, scale), fast_mode=True)
    assert torch.autograd.gradgradcheck(value, (loc, scale), rtol=1e-4, fast_mode=True)
    single = value(loc.detach().float(), scale.detach().float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), value(loc, scale), rtol=1e-5, atol=1e-5)


def test_observe_and_expect():
    z = [1.0, 2.0, 5.0, 0.5]
    ranked = sw.Teams(sw.Ranking(), (1, 2, 1)).observe(z, [[0, 1, 3, 2], [2, 0, 3, 1]])
    assert ranked.y.tolist() == [[3, 2, 1], [1, 3, 2]]
    assert ranked.sets[0].tolist() == [0, 1, 3, 2]
    first = sw.Teams(sw.Ranking(top=1), (1, 1, 2)).observe(z, [[0, 1, 3, 2]])
    assert first.y.tolist() == [[2, 2, 1]]
    assert sw.Teams(sw.Choice(), (1, 1, 2)).observe(z, [[0, 1, 3, 2]]).y.tolist() == [2]
    assert sw.Observations(sw.Teams(sw.Rank(), (1, 2)), [[0, 1, 2]], ["second"]).y.tolist() == [0]
    d = td.Normal(torch.tensor(z).double(), torch.ones(4).double())
    found = expected_aggregate(sw.Teams(sw.Rank(), (1, 2)), d, sw.Sets([[0, 1, 2]]))
    assert found[0] == pytest.approx(
        td.Normal(0.0, 1.0).cdf(torch.tensor(-6 / 3**0.5)).item(), rel=1e-4
    )


def test_posterior_of_members(rng):
    """Against simulation: who has won was better on the day, and so were those beside them."""
    loc = torch.tensor([0.5, -0.5, 0.3], dtype=F64)
    d = td.Normal(loc, torch.tensor([1.0, 0.7, 1.3], dtype=F64))
    torch.manual_seed(0)
    z = d.sample((400_000,)).numpy()
    won = z[:, 0] > z[:, 1] + z[:, 2]
    found = posterior(sw.Observations(sw.Teams(sw.Rank(), (1, 2)), [[0, 1, 2]], [1]), d)
    np.testing.assert_allclose(found.mean, z[won].mean(0), atol=0.01)
    np.testing.assert_allclose(found.std, z[won].std(0), atol=0.01)


def test_strengths_of_players_are_found_from_games_of_teams(rng):
    """Ten players in games of two against two, three against two, and one against three."""
    strength = np.linspace(-1.5, 1.5, 10)
    sizes = rng.choice([2, 3, 1], 1500)
    rows = [rng.choice(10, n + m, replace=False) for n, m in zip(sizes, 4 - sizes % 3, strict=True)]
    sides = [np.where(np.arange(len(r)) < n, 1.0, -1.0) for r, n in zip(rows, sizes, strict=True)]
    sets = sw.Sets(rows, weights=sides)
    form = strength[sets.indices] + rng.normal(size=len(sets.indices))
    gap = np.add.reduceat(sets.weights * form, sets.offsets[:-1])
    seen = sw.Observations(sw.Teams(sw.Rank()), sets, (gap > 0).astype(float))
    who = np.eye(10)[:, 1:]  # the first is what is left: the intercept
    model = sw.AggregateRegressor(sw.Normal(scale=1.0), sw.Linear(alpha=0.0), validation=None,
                                  verbose=0).fit(who, seen)  # fmt: skip
    assert model.identifiability_ == "exactly"  # sides of unequal size tell the level
    found, wide = model.predict(who, return_std=True)
    assert (np.abs(found - strength) < 4 * wide).all()
    assert wide.max() < 0.3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sw.Teams(sw.Rank(), (1, 2, 3)), "there are 3 teams"),
        (lambda: sw.Teams(sw.Rank(), (0, 2)), "two teams or more"),
        (lambda: sw.Observations(sw.Teams(sw.Rank()), [[0, 1]], [1]), "has only one team"),
        (lambda: sw.Observations(sw.Teams(sw.Rank(), (1, 2)), [[0, 1]], [1]), "3 members"),
        (
            lambda: sw.Observations(
                sw.Teams(sw.Rank()), sw.Sets([[0, 1, 2]], weights=[[1, -1, 0]]), [1]
            ),
            "member of weight 0",
        ),
        (
            lambda: sw.log_likelihood(
                sw.Teams(sw.Rank(), (1, 1)), td.Gumbel(torch.zeros(2), 1.0), [[0, 1]], [1]
            ),
            "Teams is known for: Cauchy, Normal",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
