"""Every pair that the registry knows, against an oracle that shares no code with it."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from cases import example, instances, known_pairs, make_sets, members_of, observe, trials

import setwise as sw
from setwise.distributions import map_parameters
from setwise.likelihood import Targets

TRIALS = trials(only_exact=True)


def each_that(applies):
    """The test for every pair of which applies(aggregate, family) is true."""
    found = [t for t in TRIALS if applies(*t[1:])]
    return pytest.mark.parametrize(
        ("aggregate", "family"), [t[1:] for t in found], ids=[t[0] for t in found]
    )


each = each_that(lambda aggregate, family: True)


def is_discrete(family):
    return family in ("poisson", "negativebinomial", "categorical")


def sizes_for(aggregate, family):
    inner = getattr(aggregate, "aggregate", aggregate)
    if isinstance(inner, sw.Median) and is_discrete(family):
        return (1, 3)
    if isinstance(aggregate, sw.Noisy) and aggregate.flip is None and not is_discrete(family):
        return (1, 2)  # the noise is one more convolution
    if isinstance(inner, sw.Ranking | sw.Custom) or family == "studentt":
        return (2, 3) if isinstance(inner, sw.Ranking | sw.Custom) else (1, 2, 3)
    return (1, 2, 3)


def setup(aggregate, family, seed=0, **kwargs):
    distribution, leaves = example(family, 7, seed=seed, **kwargs)
    sets = make_sets(aggregate, sizes_for(aggregate, family), seed=seed + 1)
    observed = observe(aggregate, distribution, sets, seed=seed)
    return distribution, leaves, observed.sets, observed.y


def test_every_pair_is_tried():
    tried = {(type(a), f) for _, a, f in trials()}
    assert tried == set(known_pairs())
    assert len(tried) > 100


@each
def test_agrees_with_the_oracle(aggregate, family):
    for same in (False, True):
        if same and family in ("categorical", "poisson", "studentt"):
            continue
        distribution, _, sets, y = setup(aggregate, family, same=same)
        got = sw.log_likelihood(aggregate, distribution, sets, y).detach().exp().numpy()
        for i in range(len(sets)):
            members = members_of(sets, distribution, i, oracle)
            want = oracle.probability(aggregate, members, None if y is None else y[i])
            assert got[i] == pytest.approx(want, rel=1e-8), (same, i)


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize(
    "cls", [c for c, f in known_pairs() if f == "categorical"], ids=lambda c: c.__name__
)
def test_classes_by_enumeration(cls, n_classes):
    """All sizes to 6 and every class count to 5, every outcome that occurs."""
    for aggregate in instances(cls, n_classes):
        distribution, _ = example("categorical", 9, n_classes=n_classes, seed=n_classes)
        sizes = (1, 2, 3, 4, 5, 6) if n_classes < 5 else (1, 3, 5, 6)
        if isinstance(aggregate, sw.Median):
            sizes = (1, 3, 5)
        if isinstance(aggregate, sw.Uncoupled):
            sizes = (1, 2, 3, 4)
        sets = make_sets(aggregate, sizes, n_rows=9)
        for seed in range(3):
            y = observe(aggregate, distribution, sets, seed=seed).y
            got = sw.log_likelihood(aggregate, distribution, sets, y).exp()
            for i in range(len(sets)):
                want = oracle.probability(
                    aggregate, members_of(sets, distribution, i, oracle), y[i]
                )
                assert float(got[i]) == pytest.approx(want, rel=1e-8)


def keep_of(sets, keep):
    return np.arange(len(sets))[keep]


@each
def test_first_and_second_derivatives(aggregate, family):
    for same in (False, True):
        noisy = isinstance(aggregate, sw.Noisy)
        if same and (noisy or family in ("categorical", "poisson", "studentt")):
            continue
        distribution, leaves, sets, y = setup(aggregate, family, grad=True, same=same)
        keep = slice(1, 3) if len(sets) > 2 else slice(None)  # two sets, the larger ones
        sets, y = sets.take(keep_of(sets, keep)), None if y is None else y[keep]

        def value(*leaves, distribution=distribution, same=same, sets=sets, y=y):
            if family == "categorical":
                d = torch.distributions.Categorical(logits=leaves[0])
            else:
                names = [n for n in distribution.arg_constraints if n != "probs"]
                values = dict(zip(names, leaves, strict=True))
                if same:
                    values[names[-1]] = values[names[-1]].expand(7)
                d = type(distribution)(**values)
            return sw.log_likelihood(aggregate, d, sets, y).sum()

        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        assert torch.autograd.gradcheck(value, leaves, rtol=2e-4, atol=2e-6, fast_mode=True)
        assert torch.autograd.gradgradcheck(value, leaves, rtol=2e-3, atol=2e-5, fast_mode=True)


def outcomes_of(aggregate, family, sets, i):
    """Every y of set i for discrete targets (with finite support), as rows."""
    distribution, _ = example(family, 7)
    members = members_of(sets, distribution, i, oracle)
    z, _ = oracle.tuples(members)
    rows = sw.Sets(np.arange(z.size).reshape(z.shape))
    if isinstance(aggregate, sw.PrimaryInstance | sw.Coarse | sw.Uncoupled):
        if isinstance(aggregate, sw.Coarse):
            return np.arange(len(aggregate.cells))
        return (
            np.unique(z.ravel())
            if isinstance(aggregate, sw.PrimaryInstance)
            else np.unique(z, axis=0)
        )
    return np.unique(aggregate.observe(z.ravel(), rows).y, axis=0)


def partitions(aggregate, family):
    """Whether a sum over all y is feasible here; the tests of the others are elsewhere.

    Added noise needs an integral over several columns (the oracle covers it), and the y of
    intervals and rankings are no partition of the outcomes.
    """
    noisy = isinstance(aggregate, sw.Noisy) and aggregate.flip is None
    return not (noisy or isinstance(aggregate, sw.Interval | sw.Ranking))


@each_that(partitions)
def test_total_probability_is_one(aggregate, family):
    distribution, _, sets, y = setup(aggregate, family)
    i = len(sets) - 1
    if isinstance(aggregate, sw.Uncoupled) and not is_discrete(family):
        i = 0
    size = int(sets.sizes[i])
    inner = getattr(aggregate, "aggregate", aggregate)
    if is_discrete(family):
        if (
            family == "negativebinomial"
            and size > 2
            and not isinstance(aggregate, sw.PrimaryInstance)
        ):
            i, size = int(sets.sizes.argmin()), int(sets.sizes.min())
        values = outcomes_of(inner, family, sets, i)
        if isinstance(inner, sw.Uncoupled):
            values = values.reshape(len(values), -1)
    else:
        values = inner.outcome(Targets(None, False), size).values
        if values is None:
            members = members_of(sets, distribution, i, oracle)
            points = sorted({b for m in members for b in m.breaks})
            if isinstance(inner, sw.Sum | sw.Difference):
                points = [2 * p for p in points] + [0.0, *(-2 * p for p in points)]
            values, w = oracle.nodes(points)
            keep = (w > 1e-12) & (np.abs(values) < 1e7)
            values, w = values[keep], w[keep]
            one = sw.Sets(np.tile(sets[i], (len(values), 1)))
            y = values[:, None] if isinstance(inner, sw.Uncoupled) else values
            total = (sw.log_likelihood(aggregate, distribution, one, y).exp().numpy() * w).sum()
            assert total == pytest.approx(1, abs=2e-4 if family in ("cauchy", "studentt") else 1e-5)
            return
    one = sw.Sets(np.tile(sets[i], (len(values), 1)))
    total = sw.log_likelihood(aggregate, distribution, one, values).exp().sum()
    assert float(total) == pytest.approx(1, abs=1e-7)


# all orders of a ranking are tried in test_quadrature.py
@each_that(lambda aggregate, family: not isinstance(aggregate, sw.Ranking))
def test_agrees_with_simulation(aggregate, family):
    """Observations simulated under two parameters p and q: E_p[q/(p+q)] = E_q[p/(p+q)]."""
    costly = family in ("studentt", "gamma", "negativebinomial")
    n = 100 if costly else 1500
    sets = make_sets(aggregate, sizes_for(aggregate, family)[-1:], seed=4)
    pair = [map_parameters(example(family, 7, seed=s)[0], sets.members) for s in (3, 4)]
    size = len(sets[0])
    table = sw.Sets(np.arange(n * size).reshape(n, size))
    rows = np.tile(np.arange(size), (n, 1))
    means, variance = [], 0.0
    for i, own in enumerate(pair):
        torch.manual_seed(5 + i)
        z = own.sample((n,))[:, :size].reshape(-1)
        y = aggregate.observe(z.long() if is_discrete(family) else z, table, seed=i).y
        mine, other = (sw.log_likelihood(aggregate, d, rows, y) for d in (own, pair[1 - i]))
        share = torch.sigmoid(other - mine)
        means.append(float(share.mean()))
        variance += float(share.var()) / n
    assert abs(means[0] - means[1]) < 5 * math.sqrt(variance) + 1e-9


@each
def test_single_precision_is_close(aggregate, family):
    double, _, sets, y = setup(aggregate, family, seed=2)
    single, _ = example(family, 7, seed=2, dtype=torch.float32)
    a = sw.log_likelihood(aggregate, double, sets, y)
    b = sw.log_likelihood(aggregate, single, sets, y)
    assert b.dtype == torch.float32
    torch.testing.assert_close(b.double(), a, rtol=3e-4, atol=3e-4)


@each_that(lambda aggregate, family: aggregate.symmetric)
def test_order_of_members(aggregate, family):
    distribution, _, sets, y = setup(aggregate, family)
    turned = sw.Sets([members[::-1].tolist() for members in sets])
    a = sw.log_likelihood(aggregate, distribution, sets, y)
    b = sw.log_likelihood(aggregate, distribution, turned, y)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@each_that(lambda aggregate, _: aggregate.identity_at_one and getattr(aggregate, "k", 1) == 1)
def test_a_set_of_one(aggregate, family):
    distribution, _ = example(family, 7)
    torch.manual_seed(0)
    z = distribution.sample()
    got = sw.log_likelihood(aggregate, distribution, sw.Sets(np.arange(7)[:, None]), z)
    torch.testing.assert_close(got, distribution.log_prob(z), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "aggregate",
    [a for _, a, f in TRIALS if f == "categorical"],
    ids=[t[0] for t in TRIALS if t[2] == "categorical"],
)
def test_one_backward_pass_gives_the_posterior(aggregate):
    """∂ log p(y)/∂ logit + p = P(member's class | y), for every rule on classes."""
    logits = example("categorical", 7)[1][0].requires_grad_()
    distribution = torch.distributions.Categorical(logits=logits)
    sets = make_sets(aggregate, (2, 3), n_rows=7, seed=1)
    if isinstance(getattr(aggregate, "aggregate", aggregate), sw.Median):
        sets = make_sets(aggregate, (1, 3), n_rows=7, seed=1)
    sets = sw.Sets([rows.tolist() for rows in sets.flat])  # distinct rows
    wide = example("categorical", len(sets.indices), seed=5)[1][0].requires_grad_()
    distribution = torch.distributions.Categorical(logits=wide)
    y = observe(aggregate, distribution, sets, seed=2).y
    sw.log_likelihood(aggregate, distribution, sets, y).sum().backward()
    got = wide.grad + wide.detach().softmax(-1)
    if isinstance(aggregate, sw.Noisy):
        torch.testing.assert_close(got.sum(-1), torch.ones(len(got), dtype=got.dtype))
        return
    for i in range(len(sets)):
        z, p = oracle.tuples(members_of(sets, distribution, i, oracle))
        p = p * oracle.given(aggregate, z, y[i], 4)
        for k, row in enumerate(sets[i]):
            want = [p[z[:, k] == c].sum() / p.sum() for c in range(4)]
            np.testing.assert_allclose(got[row].numpy(), want, rtol=1e-7, atol=1e-9)


def test_y_on_a_device_is_checked_once_and_again_when_it_changes(monkeypatch):
    from setwise.likelihood import registry

    monkeypatch.setattr(registry, "HOSTS", ())  # as if the CPU were a device
    d, sets = torch.distributions.Normal(torch.zeros(4), 1.0), sw.Sets([[0, 1], [2, 3]])
    y, seen, rank = torch.tensor([1.0, 0.0]), [], sw.Rank()
    check = sw.Rank.check

    def counted(self, sets, y):
        seen.append(y)
        return check(self, sets, y)

    monkeypatch.setattr(sw.Rank, "check", counted)
    for _ in range(3):
        value = sw.log_likelihood(rank, d, sets, y)
    assert len(seen) == 1
    torch.testing.assert_close(value, sw.log_likelihood(rank, d, sets, [1.0, 0.0]))
    sw.log_likelihood(sw.Rank(tie_margin=0.1), d, sets, y)  # another aggregate has other rules
    y[0] = 7.0
    with pytest.raises(sw.SetError, match="y = 7"):
        sw.log_likelihood(rank, d, sets, y)
