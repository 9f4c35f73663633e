"""The joint likelihood of overlapping linear observations of normal targets."""

import numpy as np
import pytest
import torch
from scipy import stats

import setwise as sw
from setwise._math import joint_blocks, joint_normal
from setwise.objective import Intercept, Objective, judge
from setwise.objective.overlap import OVERLAP

N = 9


def observe(kind, seed=0, count=7):
    """Observations of one kind over N rows, of the same targets whatever the seed."""
    z = np.random.default_rng(99).normal(2, 1, N)
    rng = np.random.default_rng(seed)
    inner = kind.aggregate if isinstance(kind, sw.Noisy) else kind
    size = inner.size or 3
    weights = rng.uniform(0.5, 2, count * size) if isinstance(inner, sw.Mean) else None
    sets = sw.Sets(sw.Sets.random(N, count, size, replace=False, seed=rng), weights=weights)
    return kind.observe(z, sets, seed=seed)


def noisy(inner, s):
    return sw.Noisy(inner, normal=s)


MIXES = {
    "means": [sw.Mean()],
    "more means than rows": [(sw.Mean(), 25)],
    "means, sums and labels": [sw.Mean(), sw.Sum(), (sw.Direct(), 4)],
    "differences": [sw.Difference(), (sw.Mean(), 2)],
    "noisy means": [noisy(sw.Mean(), 0.5)],
    "two noises": [noisy(sw.Mean(), 0.5), (noisy(sw.Direct(), 0.2), 12)],
    "exact and noisy": [sw.Mean(), (noisy(sw.Sum(), 0.5), 20), (sw.Direct(), 2)],
    "told, and noisy": [(sw.Direct(), 30), noisy(sw.Mean(), 0.3)],
}


def mixed(name):
    found = [k if isinstance(k, tuple) else (k, 7) for k in MIXES[name]]
    return [observe(kind, seed, count) for seed, (kind, count) in enumerate(found)]


def dense(observations, n=N):
    """A, y and the variance of the noise, read from the definitions."""
    lines, y, noise = [], [], []
    for o in observations:
        inner = o.aggregate.aggregate if isinstance(o.aggregate, sw.Noisy) else o.aggregate
        begin = 0
        for members in o.sets:
            line = np.zeros(n)
            given = o.sets.weights
            w = np.ones(len(members)) if given is None else given[begin : begin + len(members)]
            begin += len(members)
            if isinstance(inner, sw.Difference):
                w = np.array([1.0, -1.0])
            line[members] = w / w.sum() if isinstance(inner, sw.Mean) else w
            lines.append(line)
        y.append(o.y)
        noise += [getattr(o.aggregate, "normal", 0.0) ** 2] * len(o)
    return np.array(lines), np.concatenate(y), np.array(noise)


def reference(observations, loc, scale, n=N):
    """−log p(y) and its derivatives in loc and in the log scale, with dense matrices."""
    A, y, noise = dense(observations, n)

    def value(at, log_scale):
        cov = np.exp(2 * log_scale) * A @ A.T + np.diag(noise)
        return -stats.multivariate_normal(A @ at, cov, allow_singular=True).logpdf(y)

    cov = scale**2 * A @ A.T + np.diag(noise)
    inverse = np.linalg.pinv(cov, rcond=1e-11, hermitian=True)
    rest = inverse @ (A @ loc - y)
    change = 2 * scale**2 * A @ A.T
    slope = 0.5 * np.trace(inverse @ change) - 0.5 * rest @ change @ rest
    return value(loc, np.log(scale)), A.T @ rest, slope, A.T @ inverse @ A


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("name", MIXES)
def test_it_is_the_normal_density(name, scale):
    observations = mixed(name)
    objective = Objective(sw.Normal(), observations, N, "joint")
    loc = np.random.default_rng(5).normal(size=N)
    raw, shared = torch.from_numpy(loc)[:, None], torch.tensor([np.log(scale)])
    value, gradient, slope, hessian = reference(observations, loc, scale)
    point = objective.at(raw, shared)
    assert point.value == pytest.approx(value, rel=1e-9, abs=1e-8)
    assert objective.value(raw, shared) == pytest.approx(value, rel=1e-9, abs=1e-8)
    size = max(1.0, np.abs(gradient).max())
    np.testing.assert_allclose(point.gradient[:, 0], gradient, atol=1e-8 * size)
    assert float(point.shared_gradient[0]) == pytest.approx(slope, rel=1e-8, abs=1e-8)
    first = objective.gradient(raw, shared)
    torch.testing.assert_close(first.gradient, point.gradient)
    torch.testing.assert_close(first.shared_gradient, point.shared_gradient)
    leaf = raw.clone().requires_grad_()
    own = shared.clone().requires_grad_()
    objective.loss(leaf, own).backward()
    torch.testing.assert_close(leaf.grad, point.gradient)
    torch.testing.assert_close(own.grad, point.shared_gradient)
    # second derivatives
    top = np.abs(hessian).max()
    none = torch.zeros(1, dtype=torch.float64)
    columns = [point.product(e[:, None], none)[0][:, 0] for e in torch.eye(N).double()]
    np.testing.assert_allclose(np.stack(columns), hessian, atol=1e-8 * top)
    np.testing.assert_allclose(point.curvature()[:, 0], np.diag(hessian), atol=1e-8 * top)
    leaves = torch.arange(N) % 4
    E = np.eye(4)[leaves]
    np.testing.assert_allclose(point.leaf_hessian(leaves, 4), E.T @ hessian @ E, atol=1e-7 * top)
    up, down = (objective.at(raw, shared + h) for h in (1e-5, -1e-5))
    mixed_product = point.product(torch.zeros_like(raw), torch.ones(1).double())
    wide = (up.gradient - down.gradient) / 2e-5
    torch.testing.assert_close(mixed_product[0], wide, rtol=1e-5, atol=1e-5 * size)
    bend = (up.shared_gradient - down.shared_gradient) / 2e-5
    torch.testing.assert_close(mixed_product[1], bend, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(point.shared_curvature(), bend, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", MIXES)
def test_what_the_sets_say_adds_up(name):
    observations = mixed(name)
    objective = Objective(sw.Normal(), observations, N, "joint")
    raw, shared = torch.ones(N, 1).double(), torch.tensor([0.1]).double()
    each = objective.per_set(raw, shared)
    assert [len(e) for e in each] == [len(o) for o in observations]
    assert objective.observations == observations
    total = -sum(float(e.sum()) for e in each)
    assert total == pytest.approx(objective.at(raw, shared).value, rel=1e-12)


def test_least_squares_are_the_loss_up_to_a_constant():
    observations = mixed("exact and noisy")
    (term,) = Objective(sw.Normal(), observations, N, "joint").terms
    shared = torch.tensor([0.2], dtype=torch.float64)
    rng = np.random.default_rng(1)
    differences = []
    for _ in range(2):
        raw = torch.from_numpy(rng.normal(size=(N, 1)))
        matrix, target, weight = term.least_squares(shared)
        rest = matrix @ raw[:, 0].numpy() - target
        square = 0.5 * float(weight @ rest**2) / np.exp(0.4)
        differences.append(term.at(raw, shared).value - square)
    assert differences[0] == pytest.approx(differences[1], rel=1e-10)


def test_without_overlap_it_is_the_product():
    sets = sw.Sets(np.arange(9).reshape(3, 3))
    o = sw.Observations(sw.Mean(), sets, [1.0, 2.0, 4.0])
    raw, shared = torch.zeros(N, 1).double(), torch.tensor([0.3]).double()
    values = [Objective(sw.Normal(), [o], N, how).value(raw, shared) for how in OVERLAP]
    assert values == pytest.approx([values[0]] * 3, rel=1e-12)


def test_in_auto_only_what_shares_rows_is_joined():
    one = sw.Observations(sw.Mean(), [[0, 1], [2, 3]], [1.0, 2.0])
    other = sw.Observations(sw.Mean(), [[1, 2]], [1.5])
    weighted = sw.Observations(sw.Mean(), [[1, 2]], [1.5], weight=[2.0])
    twice = sw.Observations(sw.Mean(), [[1, 1, 2]], [1.5])
    rank = sw.Observations(sw.Rank(), [[0, 1]], [1.0])

    def joined(*observations, family=sw.Normal()):  # noqa: B008
        objective = Objective(family, observations, 4, "auto")
        assert sorted(map(id, objective.observations)) == sorted(map(id, observations))
        return len(objective.terms) < len(observations)

    assert joined(one, other)
    assert joined(one, other, rank)
    assert not joined(one, rank)
    assert not joined(one, weighted)
    assert not joined(one, twice)
    assert not joined(one, other, family=sw.Normal(scale="predicted"))
    assert not joined(one, other, family=sw.Cauchy())
    for bad, why in (
        ([one, weighted], "weights other than 1"),
        ([one, twice], "lists row 1 twice"),
        ([one, rank], "not linear"),
    ):
        with pytest.raises(ValueError, match=why):
            Objective(sw.Normal(), bad, 4, "joint")
    with pytest.raises(ValueError, match="normal with one scale"):
        Objective(sw.Cauchy(), [one, other], 4, "joint")
    with pytest.raises(ValueError, match="overlap is one of"):
        Objective(sw.Normal(), [one], 4, "both")


def test_contradictions_are_named():
    one = sw.Observations(sw.Mean(), [[0, 1], [2, 3]], [1.0, 2.0])
    true = sw.Observations(sw.Mean(), [[0, 1, 2, 3]], [1.5])
    false = sw.Observations(sw.Mean(), [[0, 2], [0, 1, 2, 3]], [9.0, 1.75])
    raw = torch.zeros(4, 1).double()
    both = Objective(sw.Normal(scale=1.0), [one, true], 4, "joint")
    assert both.value(raw) == pytest.approx(reference([one, true], np.zeros(4), 1.0, 4)[0])
    with pytest.raises(sw.SetError, match=r"set 1 of .* differs by 0.25") as found:
        Objective(sw.Normal(scale=1.0), [one, false], 4, "joint")
    assert found.value.set == 1
    assert len(Objective(sw.Normal(scale=1.0), [one, false], 4, "auto").terms) == 2
    rounded = sw.Observations(noisy(sw.Mean(), 0.2), [[0, 1, 2, 3]], [1.75])
    assert len(Objective(sw.Normal(scale=1.0), [one, rounded], 4, "joint").terms) == 1


def test_many_observations_tell_targets(monkeypatch):
    """A system too large for one dense matrix is reduced to what it tells; it is the same one."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=60)
    sets = sw.Sets(
        np.r_[
            sw.Sets.random(56, 100, 3, replace=False, seed=1).indices.reshape(-1, 3), [[57, 58, 59]]
        ]
    )
    means = sw.Mean().observe(z, sets)
    raw, shared = torch.from_numpy(rng.normal(size=(60, 1))), torch.tensor([0.2]).double()
    whole = Objective(sw.Normal(), [means], 60, "joint").at(raw, shared)
    monkeypatch.setattr(joint_normal, "DENSE", 30)
    with pytest.raises(ValueError, match="cost too much"):
        Objective(sw.Normal(), [means.take(slice(0, 60))], 60, "joint")
    assert len(Objective(sw.Normal(), [means.take(slice(0, 90)), means], 60, "auto").terms) == 1
    small = Objective(sw.Normal(), [means], 60, "joint").at(raw, shared)
    np.testing.assert_allclose(small.gradient, whole.gradient, atol=1e-8)
    torch.testing.assert_close(small.shared_gradient, whole.shared_gradient)
    # the level of the likelihood is estimated
    assert small.value == pytest.approx(whole.value, abs=0.05 * 60)


def test_more_noisy_observations_than_can_be_joined_by_sets(monkeypatch):
    observations = mixed("exact and noisy")
    raw, shared = torch.ones(N, 1).double(), torch.tensor([0.2]).double()
    value, gradient, slope, _ = reference(observations, np.ones(N), np.exp(0.2))
    monkeypatch.setattr(joint_normal, "DENSE", 15)
    objective = Objective(sw.Normal(), observations, N, "joint")
    point = objective.at(raw, shared)
    assert point.value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(point.gradient[:, 0], gradient, atol=1e-8)
    assert float(point.shared_gradient[0]) == pytest.approx(slope)


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_parts_without_common_rows(monkeypatch, noise):
    """Where there are too many sets for one dense matrix, each part has its own."""
    rng = np.random.default_rng(0)
    parts, z = np.repeat(np.arange(12), 8), rng.normal(size=96)
    kind = noisy(sw.Mean(), noise) if noise else sw.Mean()
    tables = [
        kind.observe(z, sw.Sets.from_groups(10 * parts + rng.integers(0, 3, 96)), seed=i)
        for i in range(2)
    ]
    tables.append(sw.Direct().observe(z, np.arange(0, 96, 5)[:, None]))
    raw, shared = torch.from_numpy(rng.normal(size=(96, 1))), torch.tensor([0.3]).double()
    monkeypatch.setattr(joint_normal, "DENSE", 25)
    monkeypatch.setattr(joint_blocks, "TOGETHER", 12)
    objective = Objective(sw.Normal(), tables, 96, "joint")
    (term,) = objective.terms
    assert len(term.directions.blocks) > 2
    value, gradient, slope, hessian = reference(tables, raw[:, 0].numpy(), float(shared.exp()), 96)
    point = objective.at(raw, shared)
    assert point.value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(point.gradient[:, 0], gradient, atol=1e-8)
    assert float(point.shared_gradient[0]) == pytest.approx(slope)
    np.testing.assert_allclose(point.curvature()[:, 0], np.diag(hessian), atol=1e-8)
    leaves = torch.arange(96) % 4
    E = np.eye(4)[leaves]
    np.testing.assert_allclose(point.leaf_hessian(leaves, 4), E.T @ hessian @ E, atol=1e-7)
    bound = term.split(raw, shared).gradient(raw, shared)
    torch.testing.assert_close(bound.gradient, point.gradient, rtol=1e-7, atol=1e-7)


def test_parts_are_marginals_and_other_tables_change_nothing():
    observations = mixed("exact and noisy")
    (term,) = Objective(sw.Normal(), observations, N, "joint").terms
    raw, shared = torch.ones(N, 1).double(), torch.tensor([0.2]).double()
    part = term.take(np.array([1, 9, 3]))
    expected = [observations[0].take([1, 3]), observations[1].take([2])]
    value = reference(expected, np.ones(N), np.exp(0.2))[0]
    assert part.at(raw, shared).value == pytest.approx(value, rel=1e-9)
    assert [len(o) for o in part.parts] == [2, 1]
    loc = np.random.default_rng(0).normal(size=N)
    place = np.random.default_rng(1).permutation(N)
    moved = np.empty(N)
    moved[place] = loc
    there = term.over(place, N).at(torch.from_numpy(moved)[:, None], shared)
    here = term.at(torch.from_numpy(loc)[:, None], shared)
    assert there.value == pytest.approx(here.value, rel=1e-12)
    np.testing.assert_allclose(there.gradient[place], here.gradient)


def test_a_part_that_would_cost_too_much_is_a_product(monkeypatch):
    z = np.random.default_rng(0).normal(size=60)
    drawn = sw.Sets.random(60, 100, 3, replace=False, seed=1)
    means = noisy(sw.Mean(), 0.1).observe(z, drawn, seed=0)
    exact = sw.Mean().observe(z, drawn)
    raw, shared = torch.ones(60, 1).double(), torch.tensor([0.2]).double()
    for o in (means, exact):
        (term,) = Objective(sw.Normal(), [o], 60, "joint").terms
        with monkeypatch.context() as patch:
            patch.setattr(joint_normal, "DENSE", 20)
            part = term.take(np.arange(50))
            alone = Objective(sw.Normal(), [o.take(slice(0, 50))], 60).at(raw, shared)
            point = part.at(raw, shared)
        assert point.value == pytest.approx(alone.value)
        torch.testing.assert_close(point.gradient, alone.gradient)
        torch.testing.assert_close(point.curvature(), alone.curvature())
        torch.testing.assert_close(point.shared_gradient, alone.shared_gradient)
        bound = part.split(raw, shared).gradient(raw, shared)
        torch.testing.assert_close(bound.gradient, point.gradient)


@pytest.mark.parametrize("name", MIXES)
def test_bounds_touch_and_stay_above(name):
    objective = Objective(sw.Normal(), mixed(name), N, "joint")
    (term,) = objective.terms
    rng = np.random.default_rng(2)
    raw, shared = torch.from_numpy(rng.normal(size=(N, 1))), torch.tensor([-0.2]).double()
    bound, point = term.split(raw, shared), term.at(raw, shared)
    found = bound.gradient(raw, shared)
    assert float(found.value) == pytest.approx(point.value, rel=1e-9)
    assert bound.total_weight == pytest.approx(objective.total_weight)
    torch.testing.assert_close(found.gradient, point.gradient, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.shared_gradient, point.shared_gradient)
    for _ in range(20):
        other = raw + torch.from_numpy(rng.normal(size=(N, 1)))
        assert float(bound.gradient(other, shared).value) >= term.at(other, shared).value - 1e-9


def test_minibatches_add_up_to_the_gradient():
    objective = Objective(sw.Normal(), mixed("means, sums and labels"), N, "joint")
    raw, shared = torch.ones(N, 1).double(), torch.tensor([0.3]).double()
    total, own, weight = torch.zeros(N, 1).double(), torch.zeros(1).double(), 0.0
    for rows, part in objective.minibatches(4, np.random.default_rng(0), lambda: (raw, shared)):
        found = part.gradient(raw[torch.from_numpy(rows)], shared)
        total[torch.from_numpy(rows)] += found.gradient
        own += found.shared_gradient
        weight += part.total_weight
    whole = objective.gradient(raw, shared)
    torch.testing.assert_close(total, whole.gradient)
    torch.testing.assert_close(own, whole.shared_gradient)
    assert weight == pytest.approx(objective.total_weight)


def test_held_out_sets_are_judged_by_the_best_scale():
    objective = Objective(sw.Normal(), mixed("means, sums and labels"), N, "joint")
    raw, shared = torch.full((N, 1), 2.0).double(), torch.tensor([3.0]).double()
    found = judge(objective, raw, shared, Intercept(torch.zeros(1), torch.zeros(1)))
    scales = torch.linspace(-2, 2, 401).double()
    best = max(objective.score(raw, s[None]) for s in scales)
    assert found.score == pytest.approx(best, abs=0.05)
    assert len(found.sets) == objective.n_sets
