"""Counts, proportions and noisy counts against enumeration and loops."""

import itertools
import math
import time

import numpy as np
import pytest
import torch
from scipy import stats
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Categorical, Laplace, Normal

from setwise._math.binary_counts import log_count, log_count_mixture
from setwise._math.class_counts import log_coefficient, log_compositions
from setwise._math.class_transform import log_class_counts
from setwise.aggregates.counts import Counts, Proportions, noisy_counts
from setwise.likelihood import log_likelihood
from setwise.sets import Sets

F64 = torch.float64


def logits_of(rng, *shape, scale=1.0):
    return torch.tensor(rng.normal(size=shape) * scale).log_softmax(-1)


def loop(log_a, log_b):
    """log-probabilities of all counts, member by member (numpy: no derivatives to go wrong)."""
    out = np.zeros(1)
    for a, b in zip(log_a, log_b, strict=True):
        out = np.logaddexp(np.append(out + b, -np.inf), np.append(-np.inf, out + a))
    return out


def torch_loop(log_a, log_b, k):
    """The loop that users would write, the yardstick of speed."""
    out = torch.zeros_like(log_a[:, :1])
    for i in range(log_a.shape[1]):
        stay, go = out + log_b[:, i : i + 1], out + log_a[:, i : i + 1]
        middle = torch.logaddexp(stay[:, 1:], go[:, :-1])
        out = torch.cat([stay[:, :1], middle, go[:, -1:]], 1)
    return out.gather(1, k.long()[:, None])[:, 0]


def enumerate_counts(logits):
    """P(counts) of one set, (K, C) logits, by listing all C^K outcomes."""
    size, n_classes = logits.shape
    out = {}
    for z in itertools.product(range(n_classes), repeat=size):
        key = tuple(np.bincount(z, minlength=n_classes).tolist())
        out[key] = out.get(key, 0.0) + math.exp(sum(logits[i, c] for i, c in enumerate(z)))
    return out


# ---- two classes


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e4, 1e8, "certain"])
def test_every_count_of_a_set(rng, scale):
    for size in (1, 2, 3, 7, 8, 9, 17, 40):
        if scale == "certain":
            x = rng.choice([-1e4, 1e4, 0.0, 3.0, -np.inf, np.inf], size)
        else:
            x = rng.normal(size=size) * scale
        log_a, log_b = -np.logaddexp(0, -x), -np.logaddexp(0, x)
        expected = loop(log_a, log_b)
        a = torch.tensor(log_a).repeat(size + 1, 1).requires_grad_()
        b = torch.tensor(log_b).repeat(size + 1, 1).requires_grad_()
        found = log_count(a, b, torch.arange(size + 1))
        # the inputs of size 1e8 carry only 1e-8 themselves
        np.testing.assert_allclose(found.detach(), expected, rtol=1e-11, atol=2e-12)
        grad_a, grad_b = torch.autograd.grad(found[found > -torch.inf].sum(), [a, b])
        possible = np.isfinite(expected)
        total = grad_a.sum(1)[possible]
        np.testing.assert_allclose(total, np.arange(size + 1)[possible], atol=1e-12)
        assert (grad_a[~possible] == 0).all()
        assert (grad_b[~possible] == 0).all()


@pytest.mark.parametrize(("size", "n_counts"), [(256, 9), (1024, 5), (4096, 3)])
def test_large_sets_keep_their_digits(rng, size, n_counts):
    x = rng.normal(size=size) * 3 - 1
    log_a, log_b = -np.logaddexp(0, -x), -np.logaddexp(0, x)
    expected = loop(log_a, log_b)
    k = np.linspace(0, size, n_counts).astype(int)
    tensors = [torch.tensor(v).expand(n_counts, -1) for v in (log_a, log_b)]
    found = log_count(*tensors, torch.tensor(k))
    np.testing.assert_allclose(found, expected[k], rtol=1e-12, atol=1e-10)


def test_gradient_is_the_posterior_minus_the_prior(rng):
    size, n = 300, 4
    x = torch.tensor(rng.normal(size=(n, size)) * 2, requires_grad=True)
    k = torch.tensor([0.0, 40.0, 150.0, 300.0])
    values = [
        f(torch.nn.functional.logsigmoid(x), torch.nn.functional.logsigmoid(-x), k).sum()
        for f in (log_count, torch_loop)
    ]
    ours, theirs = (torch.autograd.grad(v, x)[0] for v in values)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


def test_derivatives_of_two_class_counts(rng):
    a, b = (torch.tensor(rng.normal(size=(4, 6)), requires_grad=True) for _ in range(2))
    k = torch.tensor([0, 2, 3, 6])
    assert gradcheck(lambda a, b: log_count(a, b, k), (a, b))
    assert gradgradcheck(lambda a, b: log_count(a, b, k), (a, b))
    weight = torch.tensor(stats.norm.logpdf(np.arange(7) - rng.uniform(0, 6, (4, 1)), scale=1.3))
    assert gradcheck(lambda a, b: log_count_mixture(a, b, weight), (a, b))
    assert gradgradcheck(lambda a, b: log_count_mixture(a, b, weight), (a, b))


def test_third_derivative_exists(rng):
    x = torch.tensor(rng.normal(size=(1, 5)), requires_grad=True)
    value = log_count(x, torch.zeros_like(x), torch.tensor([2])).sum()
    for _ in range(3):
        (grad,) = torch.autograd.grad(value, x, create_graph=True)
        value = grad[0, 0]
    assert value.isfinite()


def test_counts_of_float32(rng):
    x = torch.tensor(rng.normal(size=(3, 50)), dtype=torch.float32, requires_grad=True)
    out = log_count(x, torch.zeros_like(x), torch.tensor([0.0, 20.0, 50.0]))
    assert out.dtype == torch.float32
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.dtype == torch.float32
    assert grad.isfinite().all()


def test_no_members_possible_at_all():
    nothing = torch.full((1, 3), -torch.inf, dtype=F64, requires_grad=True)
    out = log_count(nothing, nothing, torch.tensor([1]))
    assert out.item() == -torch.inf
    torch.autograd.grad(out.sum(), nothing)


def test_against_fast_poibin(rng):
    fast_poibin = pytest.importorskip("fast_poibin")
    p = rng.random(200)
    pmf = np.asarray(fast_poibin.PoiBin(p).pmf)
    k = np.flatnonzero(pmf > 1e-6)
    logs = [torch.tensor(np.log(v)).expand(len(k), -1) for v in (p, 1 - p)]
    np.testing.assert_allclose(log_count(*logs, torch.tensor(k)).exp(), pmf[k], rtol=1e-8)


@pytest.mark.parametrize("noise", ["normal", "laplace"])
def test_mixtures_of_counts(rng, noise):
    for _ in range(60):
        size, scale = int(rng.integers(1, 120)), 10 ** rng.uniform(-3, 3)
        x = rng.normal(size=(3, size)) * 10 ** rng.uniform(0, 3)
        y = rng.uniform(-5, size + 5, (3, 1)) * rng.choice([1, 1, 100])
        law = stats.norm if noise == "normal" else stats.laplace
        weight = law.logpdf(y - np.arange(size + 1), scale=scale)
        log_a, log_b = -np.logaddexp(0, -x), -np.logaddexp(0, x)
        expected = [
            np.logaddexp.reduce(loop(*row) + w)
            for *row, w in zip(log_a, log_b, weight, strict=True)
        ]
        found = log_count_mixture(*(torch.tensor(v) for v in (log_a, log_b, weight)))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10)


def test_faster_than_a_loop_over_members(rng):
    def seconds(f, x, k):
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            logs = torch.nn.functional.logsigmoid(x), torch.nn.functional.logsigmoid(-x)
            torch.autograd.grad(f(*logs, k).sum(), x)
            best = min(best, time.process_time() - start)
        return best

    x = torch.tensor(rng.normal(size=(2, 1024)), requires_grad=True)
    k = torch.tensor([300.0, 512.0])
    assert 10 * seconds(log_count, x, k) < seconds(torch_loop, x, k)


# ---- more classes


@pytest.mark.parametrize(("size", "n_classes"), [(1, 3), (3, 2), (4, 3), (5, 4), (6, 2), (4, 5)])
def test_counts_by_enumeration(rng, size, n_classes):
    logits = logits_of(rng, size, n_classes, scale=2.0)
    expected = enumerate_counts(logits.numpy())
    table = np.array(list(expected))
    sets = Sets(np.tile(np.arange(size), (len(table), 1)))
    found = log_likelihood(Counts(), Categorical(logits=logits), sets, table)
    np.testing.assert_allclose(found.exp(), list(expected.values()), rtol=1e-12)
    states, logs = log_compositions(logits[None])
    for state, value in zip(states.tolist(), logs[0].exp(), strict=True):
        np.testing.assert_allclose(value, expected[tuple(state)], rtol=1e-12)
    share = log_likelihood(Proportions(), Categorical(logits=logits), sets, table / size)
    torch.testing.assert_close(share, found)


def test_ragged_sets_and_one_column(rng):
    logits = logits_of(rng, 12, 2)
    sets = Sets([[0, 1, 2], [3], [4, 5, 6, 7, 8], [9, 10, 11]])
    k = np.array([1, 1, 4, 3])
    d = Categorical(logits=logits)
    found = log_likelihood(Counts(), d, sets, k)
    expected = [
        math.log(enumerate_counts(logits[members].numpy())[len(members) - c, c])
        for members, c in zip(sets, k, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    table = np.stack([sets.sizes - k, k], 1)
    torch.testing.assert_close(log_likelihood(Counts(), d, sets, table), found)
    torch.testing.assert_close(log_likelihood(Proportions(), d, sets, k / sets.sizes), found)


def test_ragged_sets_of_many_classes(rng):
    logits = logits_of(rng, 9, 4)
    sets = Sets([[0, 1, 2], [3, 4], [5, 6, 7, 8], [0, 5, 8]])
    table = np.array([[1, 0, 2, 0], [0, 1, 0, 1], [2, 1, 0, 1], [0, 2, 0, 1]])
    found = log_likelihood(Counts(), Categorical(logits=logits), sets, table)
    expected = [
        math.log(enumerate_counts(logits[members].numpy())[tuple(row)])
        for members, row in zip(sets, table.tolist(), strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_two_engines_agree(rng):
    logits = logits_of(rng, 2, 60, 2)
    k = torch.tensor([10, 45])
    ours = log_count(logits[..., 1], logits[..., 0], k)
    for i in range(2):
        other = log_coefficient(logits[i : i + 1], (60 - int(k[i]), int(k[i])))
        torch.testing.assert_close(ours[i : i + 1], other, rtol=1e-13, atol=1e-13)


def test_derivatives_of_many_class_counts(rng):
    raw = torch.tensor(rng.normal(size=(7, 3)), requires_grad=True)
    sets, table = Sets([[0, 1, 2, 3], [4, 5, 6]]), np.array([[2, 1, 1], [0, 3, 0]])
    for aggregate in (Counts(), Counts(method="normal")):

        def value(raw, aggregate=aggregate):
            return log_likelihood(aggregate, Categorical(logits=raw), sets, table)

        assert gradcheck(value, raw)
        assert gradgradcheck(value, raw)


def test_extreme_logits(rng):
    raw = torch.tensor(rng.choice([-1e4, 0.0, 1e4], (12, 4)), requires_grad=True)
    sets = Sets(np.arange(12).reshape(2, 6))
    for aggregate in (Counts(), Counts(method="normal")):
        d = Categorical(logits=raw)
        out = log_likelihood(aggregate, d, sets, [[6, 0, 0, 0], [2, 2, 1, 1]])
        (grad,) = torch.autograd.grad(out.sum(), raw)
        assert out.isfinite().all()
        assert grad.isfinite().all()
    assert grad.abs().sum() > 0


def test_impossible_counts_have_zero_gradient():
    never = torch.tensor([[0.0, 0.0, -torch.inf]] * 3, dtype=F64, requires_grad=True)
    logits = torch.where(never == -torch.inf, -torch.inf, never - math.log(2))
    out = log_coefficient(logits[None], (1, 1, 1))
    assert out.item() == -torch.inf
    (grad,) = torch.autograd.grad(out.sum(), never)
    assert (grad == 0).all()


def test_normal_approximation_is_near_and_auto_uses_it(rng):
    logits = logits_of(rng, 300, 3)
    d = Categorical(logits=logits)
    mean = logits.exp().reshape(3, 100, 3).sum(1).round().long()
    mean[:, 2] = 100 - mean[:, :2].sum(1)
    sets = Sets(np.arange(300).reshape(3, 100))
    exact = log_likelihood(Counts(), d, sets, mean)
    near = log_likelihood(Counts(method="normal"), d, sets, mean)
    np.testing.assert_allclose(near, exact, atol=0.03)
    torch.testing.assert_close(log_likelihood(Counts(method="auto"), d, sets, mean), exact)
    binary = Categorical(logits=logits_of(rng, 100, 2))
    k = binary.probs[:, 1].sum().round().item()
    pair = [
        log_likelihood(Counts(method=m), binary, Sets(np.arange(100)[None]), [k])
        for m in ("exact", "normal")
    ]
    np.testing.assert_allclose(*pair, atol=0.02)


def test_auto_mixes_exact_and_normal(rng):
    logits = logits_of(rng, 205, 5)
    sets = Sets([range(5), range(5, 205)])
    table = np.array([[1, 1, 1, 1, 1], [40, 40, 40, 40, 40]])
    d = Categorical(logits=logits)
    found = log_likelihood(Counts(method="auto"), d, sets, table)
    small = log_likelihood(Counts(), d, sets.take([0]), table[:1])
    large = log_likelihood(Counts(method="normal"), d, sets.take([1]), table[1:])
    torch.testing.assert_close(found, torch.cat([small, large]))
    with pytest.raises(ValueError, match=r"set 1 .*1.16e\+08 states.*method=\"normal\""):
        log_likelihood(Counts(), d, sets, table)


@pytest.mark.parametrize("n_classes", [3, 4])
def test_large_counts_of_few_classes(rng, n_classes):
    """One class after another: P(y) = Π P(y_c | the classes before), of individuals alike."""
    logits = logits_of(rng, 1, n_classes)
    table = rng.multinomial(5000, logits[0].exp().numpy())
    sets = Sets(np.zeros((1, 5000), int))
    found = log_likelihood(Counts(), Categorical(logits=logits), sets, table[None])
    wanted = stats.multinomial(5000, logits[0].exp().numpy()).logpmf(table)
    assert float(found) == pytest.approx(wanted, abs=1e-10)
    far = np.array([[4990 - 3, 10, 3, 0][:n_classes]])
    far[0, 0] = 5000 - far[0, 1:].sum()
    found = log_likelihood(Counts(), Categorical(logits=logits), sets, far)
    wanted = stats.multinomial(5000, logits[0].exp().numpy()).logpmf(far[0])
    assert float(found) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 12.0, 100.0, 1e4])
def test_the_transform_of_few_classes_by_recursion(rng, scale):
    """Values and derivatives, also where classes are all but certain; lost digits are marked."""
    lost = 0
    for _ in range(30):
        k, c = rng.integers(1, 5), rng.integers(3, 5)
        times = rng.integers(1, 5, k)
        logits = logits_of(rng, k, c, scale=scale).requires_grad_()
        y = np.bincount(rng.integers(0, c, times.sum()), minlength=c)
        listed = logits.repeat_interleave(torch.from_numpy(times), 0)
        wanted = log_coefficient(listed[None], tuple(y.tolist()))
        given = (torch.from_numpy(a)[None].double() for a in (times, y))
        found = log_class_counts(logits[None], *given)
        if found.item() == math.inf:
            lost += 1
            continue
        assert found.item() == pytest.approx(wanted.item(), rel=1e-10, abs=1e-10)
        slopes = [torch.autograd.grad(v.sum(), logits)[0] for v in (found, wanted)]
        torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-7)
    assert lost <= (0 if scale < 100 else 8)


@pytest.mark.parametrize("small", [0, 32])
def test_derivatives_of_the_transform(rng, monkeypatch, small):
    monkeypatch.setattr("setwise._math.class_transform._SMALL", small)
    times = torch.tensor([[3, 5, 2], [1, 1, 2]], dtype=F64)
    y = torch.tensor([[2, 3, 4, 1], [1, 0, 1, 2]], dtype=F64)
    x = torch.tensor(rng.normal(size=(2, 3, 4)), requires_grad=True)

    def value(x):
        return log_class_counts(x.log_softmax(2), times, y)

    assert gradcheck(value, x)
    assert gradgradcheck(value, x)


def test_the_transform_of_the_impossible():
    never = torch.tensor([[[0.0, -torch.inf, -torch.inf], [0.0, 0.0, -torch.inf]]], dtype=F64)
    logits = never.log_softmax(2).requires_grad_()
    times = torch.tensor([[1.0, 2.0]], dtype=F64)
    for y, p in [((3, 0, 0), 0.25), ((1, 2, 0), 0.25), ((0, 3, 0), 0.0), ((1, 1, 1), 0.0)]:
        found = log_class_counts(logits, times, torch.tensor([y]))
        assert found.exp().item() == pytest.approx(p)
        (slope,) = torch.autograd.grad(found.sum(), logits)
        assert slope.isfinite().all()
        assert p > 0 or (slope == 0).all()


# ---- observing and checking


def test_observe():
    z = [0, 2, 2, 1]
    assert Counts().observe(z, [[0, 1, 2]]).y.tolist() == [[1, 0, 2]]
    assert Counts(n_classes=4).observe(z, [[0, 3]]).y.tolist() == [[1, 1, 0, 0]]
    assert Counts().observe([0, 0], [[0, 1]]).y.tolist() == [[2, 0]]
    assert Proportions().observe(z, [[0, 1], [1, 2]]).y.tolist() == [[0.5, 0, 0.5], [0, 0, 1]]
    with pytest.raises(ValueError, match="set 1 has a member of class 2"):
        Counts(n_classes=2).observe(z, [[0, 3], [0, 1]])


@pytest.mark.parametrize(
    ("aggregate", "y", "message"),
    [
        (Counts(), [1.0, 0.5], "set 1 has y = 0.5"),
        (Counts(), [1.0, -1.0], "set 1 has y = -1"),
        (Counts(), [1.0, 3.0], "set 1 has 2 member"),
        (Counts(), [[1, 1], [2, 1]], "set 1 .* add up to 3"),
        (Counts(), [1.0], "shape"),
        (Counts(), None, "got None"),
        (Counts(), [[1, 1], [2]], "needs numbers"),
        (Counts(), [[1, 1], [np.inf, 1]], "set 1 has y = inf"),
        (Counts(n_classes=3), [[1, 1], [1, 1]], "3 columns"),
        (Proportions(), [0.5, 0.3], r"set 1 has y = 0.3.*nearest is 1/2 = 0.5"),
        (Proportions(), [0.5, 1.5], "set 1 has y = 1.5.*nearest is 2/2"),
        (Proportions(), [[0.5, 0.5], [0.5, 1.0]], "set 1 .*add up to 3"),
    ],
)
def test_bad_counts(aggregate, y, message):
    with pytest.raises((ValueError, TypeError), match=message):
        aggregate.check(Sets([[0, 1], [2, 3]]), y)


def test_wrong_number_of_classes(rng):
    d = Categorical(logits=logits_of(rng, 4, 3))
    sets = Sets([[0, 1], [2, 3]])
    with pytest.raises(ValueError, match=r"shape \(n_sets, 3\)"):
        log_likelihood(Counts(), d, sets, [1, 1])
    with pytest.raises(ValueError, match="2 columns, but there are 3 classes"):
        log_likelihood(Counts(), d, sets, [[1, 1], [2, 0]])
    with pytest.raises(ValueError, match="method"):
        Counts(method="fast")


def test_rounded_proportions():
    sets = Sets([[0, 1, 2]])
    for y in (0.33, 0.333, 0.3333, 1 / 3, np.float32(1 / 3)):
        assert Proportions().counts(Proportions().check(sets, [y]), sets.sizes).tolist() == [1]
    for y in (0.34, 0.3, 0.337):
        with pytest.raises(ValueError, match=r"1/3 = 0\.333333"):
            Proportions().check(sets, [y])
    with pytest.raises(ValueError, match="share of 300 member"):  # 0.34 may be 101/300 or 102/300
        Proportions().check(Sets(np.arange(300)[None]), [0.34 + 1 / 450])


# ---- with noise


@pytest.mark.parametrize("noise", [Normal(0.0, 0.8), Laplace(0.0, 0.8)], ids=["normal", "laplace"])
@pytest.mark.parametrize("aggregate", [Counts(), Proportions()], ids=["counts", "proportions"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_noisy_counts_by_enumeration(rng, noise, aggregate, n_classes):
    logits = logits_of(rng, 9, n_classes)
    sets = Sets([[0, 1, 2, 3], [4, 5, 6, 7], [0, 8]])
    y = torch.tensor(rng.normal(size=(3, n_classes)) + 1.5)
    law = stats.norm if isinstance(noise, Normal) else stats.laplace

    def expected(columns):
        out = []
        for members, row in zip(sets, y.numpy()[:, columns], strict=True):
            unit = 1 / len(members) if isinstance(aggregate, Proportions) else 1
            total = sum(
                p * law.pdf(row - unit * np.array(c)[columns], scale=0.8).prod()
                for c, p in enumerate_counts(logits[members].numpy()).items()
            )
            out.append(math.log(total))
        return out

    noise = type(noise)(torch.zeros((), dtype=F64), torch.tensor(0.8, dtype=F64))
    d = Categorical(logits=logits)
    flat = Categorical(logits=sets.members(d.logits))
    found = noisy_counts(aggregate, flat, sets.flat, y, noise)
    np.testing.assert_allclose(found, expected(list(range(n_classes))), rtol=1e-10)
    if n_classes == 2:
        found = noisy_counts(aggregate, flat, sets.flat, y[:, 1], noise)
        np.testing.assert_allclose(found, expected([1]), rtol=1e-10)


def test_noisy_counts_normal_and_errors(rng):
    logits = logits_of(rng, 60, 3)
    sets = Sets(np.arange(60)[None])
    d, y = Categorical(logits=logits), logits.exp().sum(0)[None]
    for noise in (Normal(0.0, 2.0), Laplace(0.0, 2.0)):
        exact = noisy_counts(Counts(), d, sets, y, noise)
        near = noisy_counts(Counts(method="normal"), d, sets, y, noise)
        tolerance = 0.01 if isinstance(noise, Normal) else 1.0
        np.testing.assert_allclose(near, exact, atol=tolerance)
    wide = Categorical(logits=logits_of(rng, 60, 8))
    y = torch.full((1, 8), 7.5, dtype=F64)
    with pytest.raises(ValueError, match="states"):
        noisy_counts(Counts(), wide, sets, y, noise)
    assert noisy_counts(Counts(method="auto"), wide, sets, y, noise).isfinite().all()


def test_derivatives_of_noisy_counts(rng):
    raw = torch.tensor(rng.normal(size=(5, 3)), requires_grad=True)
    sets, y = Sets([[0, 1, 2, 3, 4]]), torch.tensor(rng.normal(size=(1, 3)))

    def value(raw):
        return noisy_counts(Counts(), Categorical(logits=raw), sets, y, Laplace(0.0, 1.0))

    assert gradcheck(value, raw)
    assert gradgradcheck(value, raw)
