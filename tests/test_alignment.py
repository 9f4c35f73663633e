"""Alignment: a few labels settle what sets leave open, and change nothing that sets tell."""

import json

import numpy as np
import pytest
import torch
from cases import example, make_sets, observe, trials
from torch import distributions as td

import setwise as sw
from setwise.distributions import families
from setwise.distributions.logistic import LogisticDistribution
from setwise.identifiability import Alignment, Identifiability, identify, solve_alignment

SHIFT = Identifiability("up to a shift", shift=True)
AFFINE = Identifiability("up to an affine map", shift=True, scale=False)
FACTOR = Identifiability("up to a common factor", scale=False, centre=0.0)
LOCATED = {
    "normal": td.Normal,
    "cauchy": td.Cauchy,
    "laplace": td.Laplace,
    "logistic": LogisticDistribution,
    "gumbel": td.Gumbel,
    "studentt": lambda loc, scale: td.StudentT(4.0, loc, scale),
}


def swapped(*groups, orders=None):
    return Identifiability(
        "up to a permutation of classes", permutation=True, swaps=groups, orders=orders
    )


def rows(n=60, name="normal", scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    loc = torch.tensor(rng.normal(0, 3, n))
    return LOCATED[name](loc, torch.full((n,), float(scale), dtype=torch.float64))


OPEN = [t for t in trials() if not (isinstance(t[1], sw.Custom) and t[2] != "categorical")]


@pytest.mark.parametrize(("aggregate", "name"), [t[1:] for t in OPEN], ids=[t[0] for t in OPEN])
def test_alignment_changes_nothing_that_sets_tell(aggregate, name):
    """Every pair: the likelihood of the sets is the same after as before."""
    d, _ = example(name, 9, same=True)
    sets = make_sets(aggregate, sizes=(1, 3, 3), n_rows=9)
    o = observe(aggregate, d, sets)
    family = sw.Categorical(4) if name == "categorical" else families()[name]()
    found = identify(family, [o])
    rng = np.random.default_rng(1)
    if name == "categorical":
        z = np.resize(rng.permutation(4), 9)
    else:
        z = 3.0 + 2.0 * np.asarray(d.mean if hasattr(d, "rate") else getattr(d, "loc", d.mean))
        z = z + 0.1 * rng.normal(size=9)
    if found in ("only in part", "not at all"):
        with pytest.raises(ValueError, match="cannot repair"):
            solve_alignment(found, family, d, z)
        return
    alignment = solve_alignment(found, family, d, z)
    assert (alignment == Alignment()) == (found == "exactly")
    before = sw.log_likelihood(aggregate, d, o.sets, o.y)
    after = sw.log_likelihood(aggregate, alignment.distribution(d), o.sets, o.y)
    torch.testing.assert_close(before, after, rtol=1e-7, atol=1e-9)


# ---- numbers


@pytest.mark.parametrize("name", LOCATED)
def test_shift(name):
    d = rows(4000, name)
    torch.manual_seed(1)
    z = (d.sample() + 7.0).numpy()
    alignment = solve_alignment(SHIFT, families()[name](), d, z)
    assert alignment.slope == 1.0
    assert alignment.shift == pytest.approx(7.0, abs=0.1)
    one = solve_alignment(SHIFT, families()[name](), rows(1, name), [2.5])
    aligned = one.distribution(rows(1, name))
    centre = aligned.loc if name in ("cauchy", "studentt", "laplace") else aligned.mean
    assert float(centre) == pytest.approx(2.5)


@pytest.mark.parametrize("name", LOCATED)
@pytest.mark.parametrize("n", [8, 3000])
def test_affine(name, n):
    d = rows(n, name)
    torch.manual_seed(2)
    z = (2.0 * d.sample() - 5.0).numpy()
    alignment = solve_alignment(AFFINE, families()[name](), d, z)
    error = 0.15 if n > 100 else 1.5
    assert alignment.slope > 0
    assert abs(alignment.slope - 2.0) < error
    aligned = alignment.distribution(d)
    torch.testing.assert_close(aligned.loc, alignment.slope * d.loc + alignment.shift)
    torch.testing.assert_close(aligned.scale, alignment.slope * d.scale)


def test_two_rows_are_enough_and_never_turn_the_order_round():
    d = td.Normal(torch.tensor([-10.0, 10.0]).double(), 1.0)
    exact = solve_alignment(AFFINE, sw.Normal(), d, (3 * d.loc + 1).numpy())
    assert exact == Alignment(pytest.approx(3.0, rel=0.01), pytest.approx(1.0))
    for seed in range(50):
        z = np.random.default_rng(seed).normal(size=2)
        alignment = solve_alignment(AFFINE, sw.Normal(), rows(2, seed=seed), z)
        assert alignment.slope > 0
    # with few labels the size of the noise counts as well: better than the line through two points
    slopes, lines = [], []
    for seed in range(200):
        d = rows(2, seed=seed)
        torch.manual_seed(seed)
        z = (2.0 * d.sample()).numpy()
        slopes.append(solve_alignment(AFFINE, sw.Normal(), d, z).slope)
        lines.append((z[1] - z[0]) / float(d.loc[1] - d.loc[0]))
    errors = [np.median(np.abs(np.log(np.maximum(s, 1e-3) / 2.0))) for s in (slopes, lines)]
    assert errors[0] < errors[1]


def test_predicted_scales_weigh_the_labels():
    rng = np.random.default_rng(0)
    scale = torch.tensor(np.where(np.arange(400) % 2, 0.1, 20.0))
    d = td.Normal(torch.tensor(rng.normal(size=400)), scale)
    z = d.loc.numpy() + 4.0 + scale.numpy() * rng.normal(size=400)
    assert solve_alignment(SHIFT, sw.Normal("predicted"), d, z).shift == pytest.approx(4, abs=0.05)


def test_stretch_about_a_threshold():
    found = Identifiability("up to a stretch about 2", scale=False, centre=2.0)
    d = rows(500)
    torch.manual_seed(0)
    z = (2.0 + 3.0 * (d.sample() - 2.0)).numpy()
    alignment = solve_alignment(found, sw.Normal(), d, z)
    assert alignment.slope == pytest.approx(3.0, rel=0.1)
    assert alignment.values(2.0) == pytest.approx(2.0)
    assert solve_alignment(found, sw.Normal(), rows(1), [2.0 + 1e-3]).slope > 0


def test_a_sign_is_turned():
    d = rows(200)
    z = (5.0 - d.loc).numpy()
    turned = Identifiability("up to a shift and a sign", shift=True, sign=True)
    assert solve_alignment(turned, sw.Normal(1.0), d, z) == Alignment(-1.0, pytest.approx(5.0))
    kept = solve_alignment(turned, sw.Normal(1.0), d, d.loc.numpy() + 5)
    assert kept == Alignment(1.0, pytest.approx(5.0))
    assert Alignment(-2.0, 1.0).distribution(d).scale.min() == 2.0
    only = Identifiability("up to a sign", sign=True)
    assert solve_alignment(only, sw.Normal(), d, -d.loc.numpy()) == Alignment(-1.0)


@pytest.mark.parametrize("name", ["exponential", "gamma"])
def test_common_factor(name):
    d, _ = example(name, 5000, same=name == "gamma")
    torch.manual_seed(0)
    z = 6.0 * d.sample().numpy()
    alignment = solve_alignment(FACTOR, families()[name](), d, z)
    assert alignment.slope == pytest.approx(6.0, rel=0.05)
    torch.testing.assert_close(alignment.distribution(d).mean, alignment.slope * d.mean)
    with pytest.raises(ValueError, match="positive"):
        solve_alignment(FACTOR, families()[name](), d, -z)


def test_labels_that_run_against_the_predictions():
    d = rows(40)
    with pytest.raises(ValueError, match="fall where the predictions rise"):
        solve_alignment(AFFINE, sw.Normal(), d, -d.loc.numpy() + np.arange(40) * 1e-3)


@pytest.mark.parametrize("z", [[1.0], [2.0, 2.0], []])
def test_too_few_labels_for_a_slope(z):
    with pytest.raises(ValueError, match="needed"):
        solve_alignment(AFFINE, sw.Normal(), rows(len(z)), z)


def test_equal_predictions_tell_no_slope():
    d = td.Normal(torch.zeros(3).double(), 1.0)
    with pytest.raises(ValueError, match="different predictions"):
        solve_alignment(AFFINE, sw.Normal(), d, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("z", "message"),
    [([1.0, np.nan, 2.0], "row 1 has target nan"), ([1.0], "3 in all"), ([[1.0] * 3], "3 in all")],
)
def test_bad_labels(z, message):
    for found in (SHIFT, Identifiability("exactly")):
        with pytest.raises(ValueError, match=message):
            solve_alignment(found, sw.Normal(1.0), rows(3), z)


# ---- classes


def classes(n=60, n_classes=4, seed=0, sure=4.0):
    rng = np.random.default_rng(seed)
    labels = np.resize(np.arange(n_classes), n)
    logits = rng.normal(size=(n, n_classes)) + sure * np.eye(n_classes)[labels]
    return labels, td.Categorical(logits=torch.tensor(logits))


def test_classes_are_matched():
    labels, d = classes()
    order = np.array([2, 0, 3, 1])
    moved = td.Categorical(logits=d.logits[:, order])  # the model's class j is class order[j]
    alignment = solve_alignment(swapped((0, 1, 2, 3)), sw.Categorical(4), moved, labels)
    torch.testing.assert_close(alignment.distribution(moved).probs, d.probs)
    np.testing.assert_allclose(alignment.probs(moved.probs.numpy()), d.probs.numpy())
    assert alignment.classes == tuple(np.argsort(order).tolist())
    few = slice(0, 3)  # one row each of three classes: the fourth is what is left
    part = td.Categorical(logits=moved.logits[few])
    again = solve_alignment(swapped((0, 1, 2, 3)), sw.Categorical(4), part, labels[few])
    assert again == alignment


def test_only_classes_that_may_change_places_do():
    labels, d = classes()
    wrong = np.where(labels == 0, 1, np.where(labels == 1, 0, labels))  # 0 and 1 are exchanged
    alignment = solve_alignment(swapped((0, 2), (1, 3)), sw.Categorical(4), d, wrong)
    assert alignment.classes == (0, 1, 2, 3)
    turned = swapped((0, 3), (1, 2), orders=[(0, 1, 2, 3), (3, 2, 1, 0)])
    one = td.Categorical(logits=d.logits[:1])
    assert solve_alignment(turned, sw.Categorical(4), one, [3]).classes == (3, 2, 1, 0)
    assert solve_alignment(turned, sw.Categorical(4), one, [0]).classes == (0, 1, 2, 3)


def test_classes_without_labels():
    labels, d = classes()
    few = td.Categorical(logits=d.logits[:2])
    with pytest.raises(ValueError, match=r"at least 3 of them are needed; 2 and 3 have none"):
        solve_alignment(swapped((0, 1, 2, 3)), sw.Categorical(4), few, labels[:2])
    assert solve_alignment(swapped((0, 1)), sw.Categorical(4), few, labels[:2]).classes == (
        0,
        1,
        2,
        3,
    )


def test_classes_that_the_model_has_not_separated():
    d = td.Categorical(logits=torch.zeros(6, 3))
    with pytest.raises(ValueError, match="do not tell the classes 0 and 1 apart"):
        solve_alignment(swapped((0, 1, 2)), sw.Categorical(3), d, [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize("z", [[0, 1, 4], [0, 1, 0.5], [-1, 0, 1]])
def test_unknown_classes(z):
    _, d = classes(3)
    with pytest.raises(ValueError, match="the classes are 0 to 3"):
        solve_alignment(swapped((0, 1)), sw.Categorical(4), d, z)


def test_sure_rows_do_not_overflow():
    logits = torch.tensor([[0.0, -1e9], [-1e9, 0.0]])
    found = solve_alignment(
        swapped((0, 1)), sw.Categorical(2), td.Categorical(logits=logits), [1, 0]
    )
    assert found.classes == (1, 0)


# ---- keeping it


@pytest.mark.parametrize("made", [Alignment(), Alignment(2.0, -1.0), Alignment(classes=(2, 0, 1))])
def test_facts(made):
    assert Alignment.from_facts(json.loads(json.dumps(made.facts()))) == made


def test_moments_follow():
    made = Alignment(2.0, 1.0)
    d = rows(5)
    moved = made.distribution(d)
    np.testing.assert_allclose(made.values(d.mean.numpy()), moved.mean.numpy())
    np.testing.assert_allclose(made.spread(d.stddev.numpy()), moved.stddev.numpy())
    assert Alignment().distribution(d) is d
