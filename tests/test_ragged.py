"""Sets of many sizes: the same numbers as set by set, in few problems."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from cases import example, observe
from torch import distributions as td
from torch.autograd import gradcheck, gradgradcheck

import setwise as sw
from setwise._math import automaton, padding
from setwise._math.automaton import log_reach
from setwise._math.class_counts import log_coefficient, log_coefficient_of_few
from setwise._math.graded import graded
from setwise._math.integer_sums import _log_pmf, log_probability_of_class_sum
from setwise._math.padding import Packed, Padded, batches, partition, pieces
from setwise._math.polynomials import (
    coefficient_of_product,
    convolve,
    correlate,
    mixture_of_product,
)
from setwise.distributions import map_parameters

F64 = torch.float64


def ragged_sets(sizes, n_rows=12, seed=0):
    rng = np.random.default_rng(seed)
    return sw.Sets([rng.choice(n_rows, k, replace=False).tolist() for k in sizes])


def lengths(low, high, n=9, seed=0):
    return np.random.default_rng(seed).integers(low, high + 1, n)


AGGREGATES = [
    (sw.Counts(n_classes=2), "categorical", 2),
    (sw.Counts(n_classes=4), "categorical", 4),
    (sw.Proportions(n_classes=3), "categorical", 3),
    (sw.Counts(n_classes=3, method="normal"), "categorical", 3),
    (sw.Fold([[0, 1, 2], [1, 2, 0], [2, 0, 1]], [0, 1, 1], start=1), "categorical", 3),
    (sw.Presence(n_classes=4), "categorical", 4),
    (sw.Max(), "normal", 0),
    (sw.Min(), "categorical", 4),
    (sw.Max(), "poisson", 0),
    (sw.OrderStatistic(2), "logistic", 0),
    (sw.OrderStatistic(2), "categorical", 4),
    (sw.Median(), "gumbel", 0),
    (sw.Sum(), "categorical", 4),
    (sw.Mean(), "categorical", 3),
    (sw.Sum(), "gamma", 0),
    (sw.Mean(), "logistic", 0),
    (sw.Sum(), "negativebinomial", 0),
    (sw.Mean(), "studentt", 0),
    (sw.Noisy(sw.Counts(n_classes=2), laplace=0.8), "categorical", 2),
    (sw.Noisy(sw.Proportions(n_classes=2), normal=0.1), "categorical", 2),
    (sw.Noisy(sw.Counts(n_classes=3), laplace=0.8), "categorical", 3),
    (sw.Noisy(sw.Proportions(n_classes=3), normal=0.2), "categorical", 3),
    (sw.Noisy(sw.Sum(), laplace=0.7), "categorical", 4),
    (sw.Noisy(sw.Mean(), normal=0.3), "categorical", 4),
    (sw.Noisy(sw.Mean(), laplace=0.4), "normal", 0),
    (sw.Noisy(sw.Mean(), laplace=0.4), "exponential", 0),
]


@pytest.mark.parametrize(
    ("aggregate", "family", "n_classes"), AGGREGATES, ids=[repr(a[0])[:40] for a in AGGREGATES]
)
def test_ragged_sets_are_those_sets_one_by_one(aggregate, family, n_classes):
    d, leaves = example(family, 12, n_classes=n_classes or 4, seed=3, grad=True)
    if isinstance(aggregate, sw.Median):
        sizes = np.array([1, 5, 7, 3, 9, 5])
    else:
        sizes = np.append(2 if isinstance(aggregate, sw.OrderStatistic) else 1, lengths(2, 9))
    seen = observe(aggregate, d, ragged_sets(sizes))
    y = np.asarray(seen.y)

    def derivatives(value):
        first = torch.autograd.grad(value, leaves, create_graph=True)
        weighted = sum((g * torch.linspace(-1, 1, len(g)).reshape(-1, *[1] * (g.ndim - 1))).sum()
                       for g in first)  # fmt: skip
        return [
            *first,
            *torch.autograd.grad(weighted, leaves, allow_unused=True, retain_graph=True),
        ]

    together = sw.log_likelihood(aggregate, d, seen.sets, y)
    alone = torch.cat(
        [sw.log_likelihood(aggregate, d, seen.sets.take([i]), y[[i]]) for i in range(len(y))]
    )
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
    weight = torch.linspace(0.5, 1.5, len(y)).double()
    found, wanted = (derivatives((weight * v).sum()) for v in (together, alone))
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    again = sw.log_likelihood(aggregate, d, seen.sets, y)
    plain = torch.autograd.grad((weight * again).sum(), leaves, retain_graph=True)
    for a, b in zip(plain, wanted, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


# ---- how sets are put together


def test_partition_is_the_cheapest():
    rng = np.random.default_rng(0)
    for overhead in (0.0, 5.0, 200.0):
        numbers = rng.integers(1, 8, 20)

        def cost(parts, overhead=overhead, numbers=numbers):
            return sum(overhead + len(p) * numbers[p].max() ** 2.0 for p in parts)

        parts = partition(numbers, lambda n: n**2.0, overhead=overhead)
        assert sorted(np.concatenate(parts).tolist()) == list(range(20))
        values = np.unique(numbers)
        best = math.inf
        for cuts in itertools.product([0, 1], repeat=len(values) - 1):
            group = np.concatenate([[0], np.cumsum(cuts)])[np.searchsorted(values, numbers)]
            best = min(best, cost([np.flatnonzero(group == g) for g in np.unique(group)]))
        assert cost(parts) == pytest.approx(best)
    assert partition([], lambda n: n) == []
    many = partition(np.arange(1, 5000), lambda n: 1.0 * n, overhead=10.0)
    assert 10 < len(many) <= 48
    assert sum(map(len, many)) == 4999


def test_batches_hold_every_set_once():
    sets = ragged_sets(lengths(1, 12, 40))
    parts = batches(sets, unit=1e5, apart=1)
    assert sorted(np.concatenate([which for which, _ in parts]).tolist()) == list(range(40))
    for which, part in parts:
        assert part.sizes.tolist() == sets.sizes[which].tolist()
        assert (part.sizes == 1).all() or part.sizes.min() > 1
    assert batches(sets, unit=1e5, apart=1) is parts  # made once
    found = pieces(sets.flat, 20)
    assert [b for _, b, _ in found][-1] == 40
    assert all(len(part.indices) <= 20 or len(part) == 1 for _, _, part in found)


def test_padded_and_packed_members_are_the_members():
    sets = ragged_sets([3, 1, 4, 1]).flat
    values = torch.arange(1.0, 10.0, requires_grad=True)
    one = Padded.of(sets)
    filled, repeated = one.fill(values, -1.0), one.repeat_last(values)
    assert filled.tolist() == [[1, 2, 3, -1], [4, -1, -1, -1], [5, 6, 7, 8], [9, -1, -1, -1]]
    assert repeated.tolist() == [[1, 2, 3, 3], [4, 4, 4, 4], [5, 6, 7, 8], [9, 9, 9, 9]]
    assert one.inside(values).sum(1).tolist() == [3, 1, 4, 1]
    assert torch.autograd.grad(filled.sum(), values)[0].tolist() == [1.0] * 9
    packed = Packed.of(sets, values)
    assert packed.runs == [[0, 4], [4, 6], [6, 8], [8, 9]]
    assert values[packed.member].tolist() == [5, 1, 4, 9, 6, 2, 7, 3, 8]
    assert values[packed.member][packed.packed].tolist() == values.tolist()
    assert torch.ones(1).expand(9).stride(0) == 0
    assert one.repeat_last(torch.ones(1).expand(9)).stride() == (0, 0)


def test_one_walk_serves_all_sizes(monkeypatch):
    """Without this, ragged sets cost as many walks as there are sizes."""
    walks = []
    original = automaton._Words.posterior
    monkeypatch.setattr(
        automaton._Words, "posterior", lambda *given: walks.append(1) or original(*given)
    )
    sets = ragged_sets(range(2, 12))
    for aggregate, n_classes in ((sw.Fold([[0, 1], [1, 0]], [0, 1]), 2), (sw.OrderStatistic(2), 3)):
        d, _ = example("categorical", 12, n_classes=n_classes, grad=True)
        seen = observe(aggregate, d, sets)
        walks.clear()
        sw.log_likelihood(aggregate, d, sets, seen.y)
        assert len(walks) == 1


# ---- the engines


def by_enumeration(logp, step, start, wanted):
    total = []
    for word in itertools.product(range(logp.shape[1]), repeat=len(logp)):
        state = start
        for letter in word:
            state = step[state, letter] if state >= 0 else -1
        if state >= 0 and wanted[state]:
            total.append(sum(logp[k, c] for k, c in enumerate(word)))
    return torch.logsumexp(torch.stack(total), 0)


@pytest.mark.parametrize("kind", ["dense", "absorbing", "lost letters", "many letters"])
def test_words_by_enumeration(kind):
    rng = np.random.default_rng(1)
    step = {
        "dense": np.array([[0, 1], [2, 0], [1, 2]]),
        "absorbing": np.stack([np.zeros(12, int), (np.arange(12) + 1) % 12], 1),
        "lost letters": np.array([[0, 1], [1, 2], [2, -1]]),
        "many letters": rng.integers(0, 2, (2, 5)),
    }[kind]
    sets = sw.Sets([[0, 1, 2], [3], [4, 5]])
    n_letters = step.shape[1]
    logp = torch.tensor(rng.normal(size=(6, n_letters)), requires_grad=True)  # not normalised
    wanted = torch.ones(3, len(step), dtype=torch.bool)
    wanted[:, 2:] = False

    def value(logp):
        return log_reach(logp, sets, step, torch.tensor([0, 1, 0]), wanted)

    alone = [
        by_enumeration(logp[sets[i]], step, start, wanted[i]) for i, start in enumerate([0, 1, 0])
    ]
    torch.testing.assert_close(value(logp), torch.stack(alone))
    assert gradcheck(value, logp)
    assert gradgradcheck(value, logp)


def test_improbable_words_are_read_in_logs():
    """Two ways, both far below the smallest number: the better one is found, and followed."""
    logp = torch.tensor([[-900.0, 0.0], [-901.0, 0.0], [0.0, -2000.0]], dtype=F64)
    logp.requires_grad_()
    step = np.array([[1, 0], [1, 1]])
    wanted = torch.tensor([[False, True], [True, False]])
    found = log_reach(logp, sw.Sets([[0, 1], [2]]), step, 0, wanted)
    exact = torch.tensor([math.log1p(math.exp(-1)) - 900, -2000.0], dtype=F64)
    torch.testing.assert_close(found, exact)
    grad = torch.autograd.grad(found.sum(), logp, create_graph=True)[0]
    first = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(grad[:2, 0], torch.tensor([first, 1 - first], dtype=F64))
    assert torch.autograd.grad(grad.square().sum(), logp)[0].isfinite().all()


def test_impossible_words_have_gradient_zero():
    logp = torch.tensor([[-math.inf, 0.0], [-0.5, -1.0]], dtype=F64, requires_grad=True)
    step, wanted = np.array([[1, 0], [1, 1]]), torch.tensor([[False, True]] * 2)
    found = log_reach(logp, sw.Sets([[0], [1]]), step, 0, wanted)
    assert found[0] == -math.inf
    grad = torch.autograd.grad(found[1] + torch.where(found[0] == -math.inf, 0.0, found[0]), logp)
    assert grad[0].isfinite().all()


def test_weights_of_states_are_differentiated():
    logp = torch.randn(5, 2, dtype=F64, requires_grad=True)
    weight = torch.randn(2, 2, dtype=F64, requires_grad=True)
    sets, step = sw.Sets([[0, 1, 2], [3, 4]]), np.array([[0, 1], [1, 0]])

    def value(logp, weight):
        return log_reach(logp, sets, step, 0, weight)

    assert gradcheck(value, (logp, weight))
    assert gradgradcheck(value, (logp, weight))


def test_pieces_change_nothing(monkeypatch):
    d, leaves = example("categorical", 12, n_classes=3, grad=True)
    sets = ragged_sets(lengths(2, 9, 12))
    for aggregate in (
        sw.Presence(n_classes=3),
        sw.Counts(n_classes=3),
        sw.Noisy(sw.Counts(n_classes=3), normal=0.5),
    ):
        seen = observe(aggregate, d, sets)
        whole = sw.log_likelihood(aggregate, d, sets, seen.y)
        with monkeypatch.context() as patch:
            patch.setattr(automaton, "at_once", lambda like: 100)
            patch.setattr("setwise._math.class_counts.at_once", lambda like: 500)
            small = sw.log_likelihood(aggregate, d, sets, seen.y)
        torch.testing.assert_close(small, whole)
        found, wanted = (
            torch.autograd.grad(v.sum(), leaves, retain_graph=True)[0] for v in (small, whole)
        )
        torch.testing.assert_close(found, wanted)


def test_counts_by_automaton_and_by_levels():
    rng = np.random.default_rng(0)
    counts = np.array([[3, 2, 1], [4, 0, 0], [2, 2, 1]])
    sets = sw.Sets(np.split(np.arange(counts.sum()), counts.sum(1).cumsum()[:-1]))
    logp = torch.tensor(rng.normal(size=(counts.sum(), 3)))
    found = log_coefficient_of_few(logp, sets, counts)
    for i in range(3):
        exact = log_coefficient(logp[sets[i]][None], tuple(counts[i].tolist()))
        torch.testing.assert_close(found[i : i + 1], exact)


def test_graded_is_the_function():
    x, y = torch.rand(7, 3, dtype=F64, requires_grad=True), torch.arange(7.0, dtype=F64)

    def fn(x, y):
        return (x.sum(1) * y).sin()

    def value(x):
        return graded(fn, x, y, cost=3, budget=6)

    torch.testing.assert_close(value(x), fn(x, y))
    assert gradcheck(value, x)
    assert gradgradcheck(value, x)
    assert not value(x.detach()).requires_grad


def test_products_of_polynomials():
    rng = np.random.default_rng(0)
    a, b = torch.tensor(rng.random((4, 2))), torch.tensor(rng.random((6, 2)))
    expected = np.stack([np.convolve(a[:, i], b[:, i]) for i in range(2)], 1)
    torch.testing.assert_close(convolve(a, b), torch.from_numpy(expected))
    a.requires_grad_()
    b.requires_grad_()
    for short, long in ((a, b), (b, a)):
        assert gradcheck(convolve, (short, long))
        assert gradgradcheck(convolve, (short, long))
    for n in (4, 1, 6):
        c = torch.rand(n + 5, 2, dtype=F64, requires_grad=True)
        assert gradcheck(correlate, (c, b))
        assert gradgradcheck(correlate, (c, b))
    for size in range(1, 10):
        p = torch.tensor(rng.random((3, size, 2)))
        whole = p[:, 0]
        for k in range(1, size):
            whole = convolve(whole, p[:, k])
        weight = torch.tensor(rng.random((len(whole), 2)))
        torch.testing.assert_close(mixture_of_product(p, weight), (whole * weight).sum(0))
        for power in range(len(whole)):
            got = coefficient_of_product(p, torch.tensor([power, 0]))
            torch.testing.assert_close(got, torch.stack([whole[power, 0], whole[0, 1]]))


@pytest.mark.parametrize("spread", [1.0, 30.0, 1000.0])
def test_improbable_sums_of_classes_of_ragged_sets(spread):
    """Where products underflow, a tilted sum or logs take over, also for padded sets."""
    generator = torch.Generator().manual_seed(0)
    logits = (spread * torch.randn(40, 9, 4, generator=generator, dtype=F64)).log_softmax(2)
    sizes = torch.randint(1, 10, (40,), generator=generator)
    past = torch.arange(9) >= sizes[:, None]
    nothing = torch.tensor([0.0, -math.inf, -math.inf, -math.inf], dtype=F64)
    logits = torch.where(past[:, :, None], nothing, logits).requires_grad_()
    y = (torch.rand(40, generator=generator, dtype=F64) * (3 * sizes + 1)).floor()
    y[:10] = 3 * sizes[:10]
    found = log_probability_of_class_sum(logits, y, sizes)
    exact = _log_pmf(logits).gather(1, y.long()[:, None])[:, 0]
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    (grad,) = torch.autograd.grad(found.sum(), logits)
    (wanted,) = torch.autograd.grad(exact.sum(), logits)
    inside = ~past[:, :, None].expand_as(grad)
    torch.testing.assert_close(grad[inside], wanted[inside], rtol=1e-7, atol=1e-7)


def test_set_errors_count_the_sets_of_the_whole():
    """Sets are put together by size, but an error names the set that the user knows."""
    d = td.Poisson(torch.ones(6))
    sets = sw.Sets([[0, 1], [2, 3, 4], [5, 0]], weights=[1, 1, 1, 2, 1, 1, 1])
    with pytest.raises(sw.SetError, match="set 1 "):
        sw.log_likelihood(sw.Noisy(sw.Sum(), normal=1.0), d, sets, [1.0, 1.0, 1.0])


def test_float32_members_give_float32():
    for aggregate, family, n_classes in AGGREGATES:
        sizes = [3, 5] if isinstance(aggregate, sw.Median) else [2, 4, 3]
        d, _ = example(family, 12, n_classes=n_classes or 4, dtype=torch.float32)
        seen = observe(aggregate, d, ragged_sets(sizes))
        value = sw.log_likelihood(aggregate, d, seen.sets, seen.y)
        assert value.dtype == torch.float32
        double = sw.log_likelihood(
            aggregate, map_parameters(d, lambda t: t.double()), seen.sets, seen.y
        )
        torch.testing.assert_close(value.double(), double, rtol=2e-5, atol=2e-5)


def test_what_is_kept_goes_with_the_sets():
    sets = ragged_sets([2, 3, 4])
    batches(sets, unit=1.0)
    before = len(padding._known)
    del sets
    assert len(padding._known) == before - 1


@pytest.mark.parametrize("gap", [150.0, 220.0, 235.0, 300.0, 400.0, 455.0, 470.0, 800.0])
def test_second_derivatives_where_one_way_of_computing_gives_way_to_another(gap):
    """P is about exp(−gap): neither it nor its square or cube may underflow."""
    logits = torch.tensor([[0.0, -gap], [0.2, 0.4 - gap]], dtype=F64)

    def second(value):
        leaf = logits.clone().requires_grad_()
        rows = td.Categorical(logits=torch.cat([leaf, leaf], 1)[:, [0, 1, 3]], validate_args=False)
        out = value(rows)
        assert out.isfinite().all()
        (grad,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
        weight = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=F64)
        return torch.autograd.grad((grad * weight).sum(), leaf)[0]

    for aggregate, y in (
        (sw.Presence(n_classes=3), [[1.0, 1.0, 0.0]]),
        (sw.Counts(n_classes=3), [[1, 1, 0]]),
        (sw.Sum(), [1.0]),
        (sw.Noisy(sw.Sum(), normal=0.02), [1.0]),
    ):
        one = second(lambda d, a=aggregate, y=y: sw.log_likelihood(a, d, [[0, 1]], y))

        def exact(d):
            a, b = d.logits[0], d.logits[1]
            return torch.logaddexp(a[0] + b[1], a[1] + b[0]).reshape(1)

        torch.testing.assert_close(one, second(exact), rtol=1e-6, atol=1e-7)
