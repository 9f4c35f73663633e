"""What labels tell: against brute force over permutations, and the rank of the information."""

import itertools
import json
import pickle
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from cases import known_pairs, make_sets, observe, trials

import setwise as sw
from setwise.distributions import families
from setwise.identifiability import Identifiability, diagnose, identify
from setwise.identifiability.information import Coefficients, _drawn, _slopes, within
from setwise.objective import Objective

PERMUTED = "up to a permutation of classes"


def family_named(name):
    return sw.Categorical(4) if name == "categorical" else families()[name]()


def observations(aggregate, n_rows=12, n_sets=40, size=None, seed=0, classes=None):
    """Random sets with labels from random targets (numbers, or classes where these are given)."""
    rng = np.random.default_rng(seed)
    sets = sw.Sets.random(n_rows, n_sets, aggregate.size or size or 3, replace=False, seed=seed)
    z = rng.normal(size=n_rows) if classes is None else rng.integers(0, classes, n_rows)
    return aggregate.observe(z, sets, seed=seed)


# ---- numbers


def variants(name):
    """The family with its nuisance parameter shared, predicted and fixed."""
    family = family_named(name)
    field = next((f for f in ("scale", "rate", "logits") if hasattr(family, f)), None)
    if field is None:
        return [family]
    fixed = -1.0 if field == "logits" else 1.3
    return [replace(family, **{field: value}) for value in ("shared", "predicted", fixed)]


NUMBERS = [
    (tid, aggregate, name)
    for tid, aggregate, name in trials()
    if name != "categorical" and not isinstance(aggregate, sw.Custom)
]
SLOW = {("Choice", "gamma"), ("Choice", "studentt"), ("Rank", "studentt"), ("Rank", "gamma")}


@pytest.mark.parametrize(
    ("aggregate", "name"), [t[1:] for t in NUMBERS], ids=[t[0] for t in NUMBERS]
)
def test_the_rank_of_the_information_agrees(aggregate, name):
    """Every pair: the labels of all pairs or triples of six rows leave open what is said."""
    inner = getattr(aggregate, "aggregate", aggregate)
    slow = (type(inner).__name__, name) in SLOW
    wanted = variants(name)[:1] if slow or isinstance(aggregate, sw.Noisy) else variants(name)
    n, rng = 6, np.random.default_rng(3)
    size = aggregate.size or {sw.Median: 3}.get(type(inner), getattr(inner, "k", 1) + 1)
    index = np.array(list(itertools.permutations(range(n), size)))
    index = np.repeat(index, 40, 0) if size == 1 else index[rng.permutation(len(index))[:45]]
    for family in wanted:
        raw = torch.tensor(rng.normal(0, 0.6, (n, len(family.outputs))))
        shared = torch.tensor(rng.normal(-0.2, 0.1, len(family.shared)))
        flat = sw.Sets(np.arange(index.size).reshape(index.shape))
        o = observe(aggregate, family(raw[index.reshape(-1)], shared), flat)
        o = o.over(index.reshape(-1)[o.sets.indices])
        sets, rows, y = _drawn(family, o, raw, shared, 0)
        member, own = _slopes(family, aggregate, sets, y, raw[torch.from_numpy(rows)], shared)
        k = raw.shape[1]
        table = np.zeros((len(o), raw.numel()))
        for j in range(k):
            np.add.at(table, (sets.set_ids, rows * k + j), member[:, j])
        table = np.column_stack([table, own])
        size_of = np.linalg.eigvalsh(table.T @ table)
        found = identify(family, [o])
        assert found.level in (
            "exactly", "up to a shift", "up to an affine map", "up to a common factor",
            "up to a stretch about 0",
        )  # fmt: skip
        open_ = int(found.shift) + int(not found.scale)
        assert int((size_of < 1e-11 * size_of[-1]).sum()) == open_, (family, found)


def test_slopes_are_gradients():
    family, o = sw.Gumbel(), observations(sw.Rank(), n_sets=5)
    raw, shared = torch.randn(12, 1).double(), torch.tensor([0.3]).double()
    member, own = _slopes(family, sw.Rank(), o.sets.flat, o.y, raw[o.sets.indices], shared)
    for i in range(5):
        point = Objective(family, [o.take([i])], 12).at(raw, shared)
        rows = (
            torch.zeros(12)
            .double()
            .index_add_(
                0, torch.from_numpy(o.sets[i]), torch.from_numpy(member[2 * i : 2 * i + 2, 0])
            )
        )
        torch.testing.assert_close(-point.gradient[:, 0], rows)
        torch.testing.assert_close(-point.shared_gradient, torch.from_numpy(own[i]))


@pytest.mark.parametrize(
    ("family", "aggregate", "level"),
    [
        (sw.Normal(1.0), sw.Rank(), "up to a shift"),
        (sw.Normal(), sw.Rank(), "up to an affine map"),
        (sw.Normal("predicted"), sw.Choice(), "up to an affine map"),
        (sw.Normal(), sw.Rank(tie_margin=0.5), "up to a shift"),
        (sw.Normal(), sw.Rank(tie_margin=2e3), "up to a shift"),
        (sw.Cauchy(), sw.Ranking(), "up to an affine map"),
        (sw.Normal(), sw.Difference(), "up to a shift"),
        (sw.Normal(), sw.Mean(), "exactly"),
        (sw.Normal(), sw.Noisy(sw.Rank(), flip=0.2), "up to an affine map"),
        (sw.Normal(), sw.Noisy(sw.Rank(), flip=0.5), "not at all"),
        (sw.Normal(), sw.Noisy(sw.Mean(), normal=1.0), "exactly"),
        (sw.Exponential(), sw.Rank(), "up to a common factor"),
        (sw.Exponential(), sw.Rank(tie_margin=0.3), "exactly"),
        (sw.Exponential(), sw.Difference(), "exactly"),
        (sw.Gamma(), sw.Rank(), "up to a common factor"),
        (sw.Gamma(rate=1.0), sw.Rank(), "exactly"),
        (sw.Poisson(), sw.Rank(), "exactly"),
        (sw.Normal(), sw.Custom(lambda z: z.max() - z.min()), "up to a shift and a sign"),
        (sw.Gumbel(), sw.Custom(lambda z: z.max() - z.min()), "up to a shift"),
        (sw.Normal(), sw.Custom(lambda z: (z**2).sum()), "up to a sign"),
        (sw.Normal(), sw.Custom(lambda z: z.sum() * 0), "not at all"),
    ],
)  # fmt: skip
def test_numbers(family, aggregate, level):
    counts = isinstance(family, sw.Poisson)
    o = observations(aggregate, classes=5 if counts else None)
    found = identify(family, [o])
    assert found == level
    assert str(found) == found.level == level
    assert found.scale == (level not in (
        "up to an affine map", "up to a common factor", "not at all"
    ))  # fmt: skip
    assert found.shift == level.startswith(("up to a shift", "up to an affine"))
    assert not found.permutation
    assert found.words.count(".") >= 2


def test_sums_with_weights_that_cancel_leave_a_shift():
    gaps = sw.Sets([[0, 1, 2], [1, 2, 3]], weights=[1, 1, -2, 0.5, 0.5, -1])
    level = sw.Sets([[0, 1, 2], [1, 2, 3]], weights=[1, 1, -2, 0.5, 0.5, -0.9])
    assert identify(sw.Normal(), [sw.Observations(sw.Sum(), gaps, [0.0, 1.0])]) == "up to a shift"
    assert identify(sw.Normal(), [sw.Observations(sw.Sum(), level, [0.0, 1.0])]) == "exactly"
    assert identify(sw.Gamma(), [sw.Observations(sw.Sum(), gaps, [0.0, 1.0])]) == "exactly"


def test_intervals_tell_what_their_ends_tell():
    def ends(*pairs):
        return sw.Observations(sw.Interval(), [[i] for i in range(len(pairs))], pairs)

    inf = np.inf
    one, two = ends((-inf, 2.0), (2.0, inf)), ends((-inf, 2.0), (2.0, 3.0), (3.0, inf))
    other, none = ends((-inf, 0.0), (0.0, inf)), ends((-inf, inf))
    assert identify(sw.Normal(), [one]) == "up to a stretch about 2"
    assert identify(sw.Normal(), [one]).centre == 2.0
    assert not identify(sw.Normal(), [one]).scale
    assert identify(sw.Normal(1.0), [one]) == "exactly"
    assert identify(sw.Normal("predicted"), [one]) == "only in part"
    assert identify(sw.Gamma(), [one]) == "only in part"
    assert not identify(sw.Gamma(), [one]).scale
    assert identify(sw.Exponential(), [one]) == "exactly"
    assert identify(sw.Normal(), [two]) == "exactly"
    assert identify(sw.Normal(), [one, other]) == "exactly"
    assert identify(sw.Normal(), [none]) == "not at all"
    assert identify(sw.Poisson(), [ends((0, 2), (3, inf))]) == "exactly"
    assert identify(sw.NegativeBinomial(), [ends((0, 2), (3, inf))]) == "only in part"
    ranks = observations(sw.Rank())
    assert identify(sw.Normal(), [ranks, one]) == "up to a stretch about 2"
    assert identify(sw.Normal("predicted"), [ranks, one]) == "up to a stretch about 2"


def test_several_kinds_leave_open_what_none_of_them_tells():
    ranks, gaps, means = (observations(a) for a in (sw.Rank(), sw.Difference(), sw.Mean()))
    direct, blank = observations(sw.Direct()), observations(sw.Noisy(sw.Rank(), flip=0.5))
    for kinds, level in (
        ([ranks, direct], "exactly"),
        ([gaps, means], "exactly"),
        ([ranks, gaps], "up to a shift"),
        ([ranks, blank], "up to an affine map"),
        ([ranks, ranks.take(np.zeros(0, int))], "up to an affine map"),
    ):
        assert identify(sw.Normal(), kinds) == level
    assert identify(sw.Normal(), [ranks, gaps]).scale
    with pytest.raises(ValueError, match="no sets"):
        identify(sw.Normal(), [ranks.take(np.zeros(0, int))])


# ---- classes


CLASSES = [(tid, a) for tid, a, name in trials() if name == "categorical"]


@pytest.mark.parametrize("aggregate", [t[1] for t in CLASSES], ids=[t[0] for t in CLASSES])
def test_permutations_against_brute_force(aggregate):
    """Every aggregate of classes: the rearrangements that leave all likelihoods as they were."""
    rng = np.random.default_rng(5)
    logits = torch.tensor(rng.normal(0, 1.5, (30, 4)))
    d = torch.distributions.Categorical(logits=logits)
    sizes = (aggregate.size,) if aggregate.size else (2, 3)
    sets = sw.Sets(
        [rng.choice(30, s, replace=False) for s in np.resize(sizes, 24)]
        if not isinstance(aggregate, sw.Median)
        else rng.random((24, 30)).argsort(1)[:, :3]
    )
    o = observe(aggregate, d, sets)
    found = identify(sw.Categorical(4), [o])
    before = sw.log_likelihood(aggregate, d, sets, o.y)
    same = set()
    for order in itertools.permutations(range(4)):
        moved = torch.distributions.Categorical(logits=logits[:, list(order)])
        after = sw.log_likelihood(aggregate, moved, sets, o.y)
        if torch.allclose(before, after, atol=1e-9):
            same.add(order)
    if found == "only in part":  # classes that are alike may of course change places
        assert len(same) > 1 or "numbers open" in found.words
        assert not found.permutation
        return
    allowed = found.orders
    if allowed is None:
        group = {c: next((s for s in found.swaps if c in s), (c,)) for c in range(4)}
        allowed = [
            o
            for o in itertools.permutations(range(4))
            if all(b in group[a] for a, b in enumerate(o))
        ]
    assert same == set(allowed)
    assert found.permutation == (len(same) > 1)
    assert (found == "exactly") == (len(same) == 1)


@pytest.mark.parametrize(
    ("aggregate", "n_classes", "level"),
    [
        (sw.Similarity(), 2, PERMUTED),
        (sw.Similarity(), 10, PERMUTED),
        (sw.Triplet(), 3, PERMUTED),
        (sw.Triplet(three_way=True), 10, PERMUTED),
        (sw.AnyPositive(), 2, "exactly"),
        (sw.AnyPositive(), 3, "only in part"),
        (sw.Counts(n_classes=10), 10, "exactly"),
        (sw.Proportions(n_classes=2), 2, "exactly"),
        (sw.Presence(n_classes=5), 5, "exactly"),
        (sw.Direct(), 100, "exactly"),
        (sw.Rank(), 4, "exactly"),
        (sw.Rank(tie_margin=1.0), 3, "only in part"),
        (sw.Rank(tie_margin=1.0), 4, "only in part"),
        (sw.Rank(tie_margin=1.0), 5, "only in part"),
        (sw.Rank(tie_margin=2.0), 4, "only in part"),
        (sw.Rank(tie_margin=3.0), 4, "not at all"),
        (sw.Noisy(sw.Similarity(), flip=0.1), 3, PERMUTED),
        (sw.Noisy(sw.Similarity(), flip=0.5), 3, "not at all"),
        (sw.Noisy(sw.Direct(), flip=0.75), 4, "not at all"),
        (sw.Noisy(sw.Direct(), flip=0.5), 4, "exactly"),
        (sw.Fold([[0, 1], [1, 0]], [0, 1]), 2, "exactly"),  # the parity of three
        (sw.Coarse([(0, 1), (2,)]), 3, "only in part"),
        (sw.Coarse([(0, 1), (1, 2), (0, 2)]), 3, "exactly"),
        (sw.Coarse([(0, 1), (1, 2), (2, 3), (3, 0)]), 4, "only in part"),
        (sw.Custom(lambda z: z.sum() % 4), 4, "exactly"),
    ],
)  # fmt: skip
def test_classes(aggregate, n_classes, level):
    found = identify(sw.Categorical(n_classes), [observations(aggregate, classes=n_classes)])
    assert found == level
    assert found.permutation == (level == PERMUTED)
    assert not found.shift
    assert found.words


def outcome_probabilities(probs, margin):
    """P(first greater) and P(second greater) of every pair of rows, by plain sums."""
    n = probs.shape[-1]
    c = np.arange(n)
    greater = (c[:, None] - c[None, :] > margin).astype(float)
    win = np.einsum("ia,ab,jb->ij", probs, greater, probs)
    pairs = ~np.eye(len(probs), dtype=bool)
    return np.concatenate([win[pairs], win.T[pairs]])


@pytest.mark.parametrize(("n", "margin"), [(3, 0), (3, 1), (4, 0), (4, 1), (4, 2), (5, 1), (5, 2)])
def test_ranks_with_margins_against_the_jacobian_of_outcome_probabilities(n, margin):
    """Said to be exact: rows with any probabilities can be told from their neighbours."""
    rng = np.random.default_rng(n)
    probs = rng.dirichlet(np.full(n, 3.0), 6)
    columns = []
    for i in range(6):
        for c in range(n - 1):  # mass moves from the last class to class c
            ahead, behind = probs.copy(), probs.copy()
            for moved, step in ((ahead, 1e-5), (behind, -1e-5)):
                moved[i, c] += step
                moved[i, -1] -= step
            gap = outcome_probabilities(ahead, margin) - outcome_probabilities(behind, margin)
            columns.append(gap / 2e-5)
    size = np.linalg.svd(np.array(columns), compute_uv=False)
    full = int((size > 1e-7 * size[0]).sum()) == 6 * (n - 1)
    found = identify(sw.Categorical(n), [observations(sw.Rank(float(margin)), classes=n)])
    assert (found == "exactly") == full
    assert found in ("exactly", "only in part")


def test_what_ranks_with_a_margin_leave_open_is_a_family_of_one_number():
    """Of three classes only P(2) of one row times P(0) of the other counts: c and 1/c cancel."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(3, 5.0), 8)
    q = np.column_stack([p[:, 0] / 1.2, 1 - p[:, 0] / 1.2 - 1.2 * p[:, 2], 1.2 * p[:, 2]])
    assert (q > 0).all()
    np.testing.assert_allclose(outcome_probabilities(p, 1), outcome_probabilities(q, 1))
    found = identify(sw.Categorical(3), [observations(sw.Rank(1.0), classes=3)])
    assert "1 of the numbers open" in found.words
    with_labels = [observations(sw.Rank(1.0), classes=3), observations(sw.Direct(), classes=3)]
    assert identify(sw.Categorical(3), with_labels) == "exactly"


@pytest.mark.parametrize("aggregate", [t[1] for t in CLASSES], ids=[t[0] for t in CLASSES])
def test_exactly_means_a_jacobian_of_full_rank(aggregate):
    """Every aggregate of classes, at random probabilities of five rows."""
    rng = np.random.default_rng(1)
    index = np.array([rng.choice(5, aggregate.size or 3, replace=False) for _ in range(900)])
    flat = sw.Sets(np.arange(index.size).reshape(index.shape))
    drawn = torch.distributions.Categorical(logits=torch.zeros(index.size, 4))
    o = observe(aggregate, drawn, flat)
    o = o.over(index.reshape(-1)[o.sets.indices])
    logits = torch.tensor(rng.normal(size=(5, 4)))

    def told(logits):
        return sw.log_likelihood(
            aggregate, torch.distributions.Categorical(logits=logits), o.sets, o.y
        )

    table = torch.autograd.functional.jacobian(told, logits).reshape(len(o), -1).numpy()
    size = np.linalg.svd(table, compute_uv=False)
    full = int((size > 1e-8 * size[0]).sum()) == 5 * 3
    found = identify(sw.Categorical(4), [o])
    assert full == (found == "exactly") or found == PERMUTED


def test_noise_around_noise():
    for inner in (sw.Similarity(), sw.AnyPositive(), sw.Direct()):
        once = sw.Noisy(inner, flip=0.1)
        for both, blank in (
            (sw.Noisy(once, flip=0.5), True),
            (sw.Noisy(sw.Noisy(inner, flip=0.5), flip=0.1), True),
            (sw.Noisy(sw.Noisy(sw.Noisy(inner, flip=0.5), flip=0.1), flip=0.2), True),
            (sw.Noisy(once, flip=0.4), False),
        ):
            o = observations(both, classes=2)
            assert (identify(sw.Categorical(2), [o]) == "not at all") == blank
    o = observations(sw.Noisy(sw.Noisy(sw.Rank(), flip=0.1), flip=0.5))
    assert identify(sw.Normal(), [o]) == "not at all"


@pytest.mark.parametrize("margin", [1e-12, 3e-5, 0.3, 3e5, 3e7, 1e12])
def test_tie_margins_in_any_unit(margin):
    """Ranks with ties in metres say what they say in nanometres."""
    ranks = observations(sw.Rank(tie_margin=margin))
    assert identify(sw.Normal(), [ranks]) == "up to a shift"
    assert identify(sw.Exponential(), [ranks]) == "exactly"
    d = torch.distributions.Normal(torch.randn(12).double() * margin, torch.full((12,), margin))
    other = torch.distributions.Normal(2 * d.loc, 2 * d.scale)
    one, two = (sw.log_likelihood(sw.Rank(margin), x, ranks.sets, ranks.y) for x in (d, other))
    assert not torch.allclose(one, two)


def test_one_odd_set_among_many_sizes_tells():
    parity = sw.Fold([[0, 1], [1, 0]], [0, 1])
    z = np.random.default_rng(0).integers(0, 2, 60)
    for sizes, level in (
        ([2, 4, 6, 8, 10, 12], PERMUTED),
        ([2, 4, 6, 7, 8, 10, 12], "exactly"),
        ([2, 4, 6, 8, 10, 12, 14, 16, 40, 60, 59], "exactly"),
    ):
        sets = sw.Sets([list(range(k)) for k in sizes])
        assert identify(sw.Categorical(2), [parity.observe(z, sets)]) == level


def test_what_is_told_in_part_is_named():
    found = identify(sw.Categorical(4), [observations(sw.AnyPositive(), classes=4)])
    assert "the probability of class 1" in found.words
    assert "the total of the classes 0, 2 and 3" in found.words
    d = torch.distributions.Categorical(torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.5, 0.2, 0.2, 0.1]]))
    e = torch.distributions.Categorical(torch.tensor([[0.3, 0.4, 0.1, 0.2], [0.0, 0.2, 0.1, 0.7]]))
    for y in ([0], [1]):
        one, two = (sw.log_likelihood(sw.AnyPositive(), x, [[0, 1]], y) for x in (d, e))
        torch.testing.assert_close(one, two)


def test_parity_depends_on_the_number_of_members():
    parity = sw.Fold([[0, 1], [1, 0]], [0, 1])
    pairs, triples = (observations(parity, size=k, classes=2) for k in (2, 3))
    assert identify(sw.Categorical(2), [pairs]) == PERMUTED
    assert identify(sw.Categorical(2), [triples]) == "exactly"
    assert identify(sw.Categorical(2), [pairs, triples]) == "exactly"
    large = observations(parity, size=10, classes=2)
    assert identify(sw.Categorical(2), [large]) == PERMUTED


def test_distances_may_leave_only_some_orders():
    ordinal = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    found = identify(sw.Categorical(5), [observations(sw.Triplet(ordinal), classes=5)])
    assert found == PERMUTED
    assert found.orders == ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0))
    blocks = 1 + np.kron(1 - np.eye(2), np.ones((2, 2))) - np.eye(4)  # {0, 1} and {2, 3}
    found = identify(sw.Categorical(4), [observations(sw.Triplet(blocks), classes=4)])
    assert found.swaps == ((0, 1, 2, 3),)
    assert len(found.orders) == 8


def test_several_kinds_of_classes():
    def kind(aggregate, n=3):
        return observations(aggregate, classes=n)

    similar = kind(sw.Similarity())
    for others, level, swaps in (
        ([kind(sw.Counts(n_classes=3))], "exactly", ()),
        ([kind(sw.Direct())], "exactly", ()),
        ([kind(sw.AnyPositive())], PERMUTED, ((0, 2),)),
        ([kind(sw.Coarse([(0, 1), (2,)]))], PERMUTED, ((0, 1),)),
        ([kind(sw.AnyPositive()), kind(sw.AnyPositive(0))], "exactly", ()),
        ([kind(sw.Triplet())], PERMUTED, ((0, 1, 2),)),
    ):
        found = identify(sw.Categorical(3), [similar, *others])
        assert (found, found.swaps) == (level, swaps)
    only = [kind(sw.AnyPositive(c)) for c in (0, 1)]
    assert identify(sw.Categorical(3), only) == "exactly"


def test_large_sets_and_many_classes_are_quick():
    start = time.perf_counter()
    for aggregate, size, n in (
        (sw.Counts(n_classes=10, method="auto"), 64, 10),
        (sw.AnyPositive(), 1000, 3),
        (sw.Max(), 1000, 10),
        (sw.Similarity(), 2, 100),
        (sw.Presence(n_classes=3), 100, 3),
    ):
        sets = sw.Sets.random(2000, 50, size, seed=0)
        z = np.random.default_rng(0).integers(0, n, 2000)
        found = identify(sw.Categorical(n), [aggregate.observe(z, sets)])
        assert found == {"Similarity": PERMUTED, "AnyPositive": "only in part"}.get(
            type(aggregate).__name__, "exactly"
        )
    assert time.perf_counter() - start < 10


def test_every_aggregate_is_covered():
    tried = {type(a) for _, a, _ in NUMBERS} | {type(a) for _, a in CLASSES} | {sw.Custom}
    assert {cls for cls, _ in known_pairs()} <= tried


def test_an_aggregate_of_ones_own_is_asked_too():
    @dataclass(frozen=True)
    class Range(sw.Aggregate):
        def apply(self, z, sets, rng):
            return sets.max(z.double()) - sets.min(z.double())

    assert identify(sw.Gumbel(), [observations(Range())]) == "up to a shift"


def test_errors_of_the_rule_come_through():
    o = observations(sw.Triplet(np.ones((3, 3))), classes=3)
    with pytest.raises(ValueError, match="4 classes"):
        identify(sw.Categorical(4), [o])


def test_facts_survive_json_and_pickle():
    ordinal = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    for found in (
        identify(sw.Categorical(4), [observations(sw.Triplet(ordinal), classes=4)]),
        identify(sw.Normal(), [observations(sw.Rank())]),
    ):
        for again in (
            Identifiability.from_facts(json.loads(json.dumps(found.facts()))),
            pickle.loads(pickle.dumps(found)),
        ):
            assert again == found
            assert again.facts() == found.facts()


# ---- the paper (Zhang et al., 2020)


def log_likelihood(aggregate, probs, sets, y):
    return sw.log_likelihood(aggregate, torch.distributions.Categorical(probs), sets, y)


@pytest.mark.parametrize("aggregate", [sw.Triplet(), sw.Triplet(three_way=True), sw.Similarity()])
def test_proposition_6_permutations_go_unnoticed(aggregate):
    probs = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(4), 12))
    o = observations(aggregate, classes=4)
    before = log_likelihood(aggregate, probs, o.sets, o.y)
    for order in itertools.permutations(range(4)):
        torch.testing.assert_close(log_likelihood(aggregate, probs[:, order], o.sets, o.y), before)


def test_proposition_6_the_counterexample():
    """p = (1/3 − w, 1/3, 1/3 + w) for every row: triplets have probability 2/9 whatever w."""

    def rows(w):
        return torch.tensor([[1 / 3 - w, 1 / 3, 1 / 3 + w]] * 3, dtype=torch.float64)

    three, two = [[0, 1, 2]], [[0, 1]]
    for w in (0.0, 0.05, 0.1, 0.2, 1 / 3):
        assert float(log_likelihood(sw.Triplet(), rows(w), three, [1]).exp()) == pytest.approx(
            2 / 9
        )
        assert float(log_likelihood(sw.Triplet(), rows(w), three, [0]).exp()) == pytest.approx(
            7 / 9
        )
        three_way = sw.Triplet(three_way=True)
        for y, p in ((1, 2 / 9), (-1, 2 / 9), (0, 5 / 9)):
            assert float(log_likelihood(three_way, rows(w), three, [y]).exp()) == pytest.approx(p)
        similar = float(log_likelihood(sw.Similarity(), rows(w), two, [1]).exp())
        assert similar == pytest.approx(1 / 3 + 2 * w**2)  # which tells w up to its sign
    # no permutation turns w = 0.1 into w = 0.2
    orders = itertools.permutations(range(3))
    assert not any(torch.allclose(rows(0.1)[:, o], rows(0.2)) for o in orders)
    assert torch.allclose(rows(0.1).flip(1), rows(-0.1))


@pytest.mark.parametrize("three_way", [False, True])
def test_the_counterexample_shows_in_the_information(three_way):
    """With a level for each class and nothing else, triplets do not see w move; similarity does."""
    w, n = 0.1, 40
    p = np.array([1 / 3 - w, 1 / 3, 1 / 3 + w])
    raw = torch.tensor(np.tile(np.log(p), (n, 1)))
    along = np.array([-1.0, 0.0, 1.0]) / p  # of the logits as w moves
    lines = {}
    for aggregate in (sw.Triplet(three_way=three_way), sw.Similarity()):
        o = observations(aggregate, n_rows=n, n_sets=60, classes=3)
        objective = Objective(sw.Categorical(3), [o], n)
        c = Coefficients(objective, np.arange(n), np.zeros((n, 0)))
        null = c.null(np.eye(2), raw, torch.zeros(0))
        assert null.shape == (2, 1)
        lines[type(aggregate)] = within(null, c.contrasts.T @ along)
        found = diagnose(objective, np.ones((n, 1)), raw, torch.zeros(0))
        assert "common level" in found[-1]
    assert lines == {sw.Triplet: True, sw.Similarity: False}


def test_similarity_is_blind_to_rotations_where_all_rows_are_doubtful():
    """Appendix A: an orthogonal Q that keeps all rows on the simplex, and is no permutation."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(3, 30.0), 12)
    axis = np.ones(3) / np.sqrt(3)
    cross = np.cross(np.eye(3), axis)
    turn = np.eye(3) + np.sin(0.4) * cross + (1 - np.cos(0.4)) * cross @ cross
    q = p @ turn.T
    assert (q > 0).all()
    assert not any(np.allclose(p[:, o], q, atol=1e-3) for o in itertools.permutations(range(3)))
    o = observations(sw.Similarity(), classes=3)
    one, two = (log_likelihood(sw.Similarity(), torch.tensor(x), o.sets, o.y) for x in (p, q))
    torch.testing.assert_close(one, two)
    sure = np.concatenate([p, np.eye(3) * 0.94 + 0.02])  # one sure row of each class forbids it
    assert (sure @ turn.T).min() < 0


def test_proposition_7_means_tell_everything():
    """Any change of f, a shift included, is noticed by some set."""
    rng = np.random.default_rng(0)
    o = observations(sw.Mean(), size=4)
    assert identify(sw.Normal(1.0), [o]) == "exactly"
    f = torch.tensor(rng.normal(size=12))
    before = sw.log_likelihood(sw.Mean(), torch.distributions.Normal(f, 1.0), o.sets, o.y)
    for change in (torch.ones(12), torch.eye(12)[3], torch.tensor(rng.normal(size=12))):
        d = torch.distributions.Normal(f + 0.1 * change, 1.0)
        after = sw.log_likelihood(sw.Mean(), d, o.sets, o.y)
        assert not torch.allclose(before, after)
    sets = np.zeros((len(o), 12))
    np.add.at(sets, (o.sets.set_ids, o.sets.indices), 0.25)
    assert np.linalg.matrix_rank(sets) == 12


def test_proposition_8_ranks_tell_all_but_a_constant():
    o = observations(sw.Rank())
    assert identify(sw.Normal(1.0), [o]) == "up to a shift"
    f = torch.tensor(np.random.default_rng(0).normal(size=12))
    d, e, g = (torch.distributions.Normal(x, 1.0) for x in (f, f + 7.0, f + 0.1 * f**2))
    before, after, bent = (sw.log_likelihood(sw.Rank(), x, o.sets, o.y) for x in (d, e, g))
    torch.testing.assert_close(before, after)
    assert not torch.allclose(before, bent)
    wide = torch.distributions.Normal(3 * f + 7, 3.0)  # with a learned scale: an affine map
    torch.testing.assert_close(before, sw.log_likelihood(sw.Rank(), wide, o.sets, o.y))


# ---- diagnosis


def design(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, X @ [1.0, -1.0, 0.5, 0.2]


def told(family, kinds, X, z, raw=None):
    raw = torch.tensor(np.tile(z[:, None], (1, len(family.outputs)))) if raw is None else raw
    return diagnose(Objective(family, kinds, len(X)), X, raw, torch.zeros(len(family.shared)))


@pytest.mark.parametrize("aggregate", [sw.Rank(), sw.Difference()])
@pytest.mark.parametrize("family", [sw.Normal(), sw.Normal(1.0), sw.Normal("predicted")])
def test_a_feature_that_is_constant_within_pairs_is_named(aggregate, family):
    X, z = design()
    X[:, 2] = np.repeat(np.random.default_rng(1).normal(size=20), 10)
    pairs = np.array([rng.permutation(10)[:2] + 10 * (i % 20) for i in range(400) if (
        rng := np.random.default_rng(i))])  # fmt: skip
    raw = torch.tensor(np.column_stack([z, 0 * z])[:, : len(family.outputs)])
    lines = told(family, [aggregate.observe(z, pairs)], X, z, raw)
    assert "20 groups (of 10, 10, 10, 10 and fewer rows)" in lines[0]
    assert "the effect of feature 2" in lines[1]
    assert len(lines) == 2
    assert ("on loc" in lines[1]) == (len(family.outputs) == 2)
    everywhere = [aggregate.observe(z, sw.Sets.random(200, 400, 2, seed=1))]
    assert told(family, everywhere, X, z, raw) == []


def test_names_of_columns_are_used():
    pd = pytest.importorskip("pandas")
    X, z = design()
    X[:, 2], X[:, 3] = X[:, 2].round() * 0 + np.arange(200) // 10, 5.0
    pairs = [(10 * (i % 20) + i % 7, 10 * (i % 20) + 7 + i % 3) for i in range(300)]
    frame = pd.DataFrame(X, columns=["age", "dose", "site", "year"]).assign(name="x")
    lines = told(sw.Normal(), [sw.Difference().observe(z, pairs)], frame, z)
    assert any("effect of feature 'site'" in line for line in lines)
    assert any(line.startswith("Feature 'year' is the same in every row") for line in lines)


def test_groups_that_no_set_joins():
    X, z = design()
    low, high = sw.Sets.random(120, 500, 2, seed=0), sw.Sets.random(80, 500, 2, seed=1)
    halves = np.concatenate([low.indices, 120 + high.indices]).reshape(-1, 2)
    ranks = sw.Rank().observe(z, halves)
    assert "2 groups (of 120 and 80 rows)" in told(sw.Normal(), [ranks], X, z)[0]
    direct = sw.Direct().observe(z, [[0], [1]])
    lines = told(sw.Normal(), [ranks, direct], X, z)
    assert "A group (of 80 rows) is compared only within" in lines[0]
    assert "the 120 rows whose labels tell more" in lines[0]
    both = [ranks, sw.Direct().observe(z, [[0], [150]])]
    assert told(sw.Normal(), both, X, z) == []
    assert told(sw.Normal(), [sw.Mean().observe(z, halves)], X, z) == []
    classes = (z > 0).astype(int)
    logits = torch.tensor(np.column_stack([z, -z]))
    similar = sw.Similarity().observe(classes, halves)
    assert "which class" in told(sw.Categorical(2), [similar], X, z, logits)[0]
    ratio = sw.Rank().observe(np.exp(z), halves)
    assert "2 groups" in told(sw.Exponential(), [ratio], X, z)[0]


def test_classes_that_never_occur():
    X, z = design()
    logits = torch.tensor(np.column_stack([z, -z, 0 * z, 0.5 * z]))
    classes = (z > 0).astype(int) * 2  # 0 and 2
    sets = sw.Sets.random(200, 300, 3, seed=0)
    alone = np.arange(200)[:, None]
    for o, missing in (
        (sw.Counts(n_classes=4).observe(classes, sets), "classes 1 and 3 are never seen"),
        (sw.Presence(n_classes=4).observe(classes, sets), "classes 1 and 3 are never seen"),
        (sw.Direct().observe(classes, alone), "classes 1 and 3 are never seen"),
        (sw.Coarse([(0, 1), (2,), (3,)]).observe(classes, alone), "Class 3 is never seen"),
        (sw.AnyPositive(1).observe(classes, sets), "Class 1 is never seen"),
    ):
        similar = sw.Similarity().observe(classes, sw.Sets.random(200, 300, 2, seed=2))
        for kinds in ([o], [similar, o]):
            lines = told(sw.Categorical(4), kinds, X, z, logits)
            assert any(missing in line for line in lines), (o, lines)
    assert not any("seen" in line for line in told(sw.Categorical(4), [similar], X, z, logits))


def test_too_few_sets_and_what_is_no_table():
    X, z = design()
    X = np.column_stack([X, X[:, 0]])  # a copy changes no prediction: nothing is said of it
    few = sw.Mean().observe(z, sw.Sets.random(200, 3, 4, seed=0))
    lines = told(sw.Normal(1.0), [few], X, z)
    assert len(lines) == 1
    assert "2 combinations of effects open (3 sets for 5 coefficients)" in lines[0]
    many = sw.Mean().observe(z, sw.Sets.random(200, 300, 4, seed=0))
    assert told(sw.Normal(1.0), [many], X, z) == []
    X[::7, 1] = np.nan
    assert told(sw.Normal(1.0), [many], X, z) == []
    for other in (torch.zeros(200, 3, 8, 8), np.array([["a"]] * 200), [object()] * 200):
        assert told(sw.Normal(1.0), [many], other, z) == []


def test_a_scale_that_is_not_told_is_named():
    """One direct label settles level and unit in principle, but one is not enough for both."""
    X, z = design()
    ranks = sw.Rank().observe(z, sw.Sets.random(200, 500, 2, seed=0))
    objective = Objective(sw.Normal(), [ranks, sw.Direct().observe(z, [[0]])], 200)
    exact = diagnose(objective, X, torch.tensor(z[:, None]), torch.zeros(1))
    assert identify(sw.Normal(), objective.observations) == "exactly"
    assert len(exact) == 1
    assert "combination of effects" in exact[0]
    assert "the common level" in exact[0]


def test_nothing_told_at_all():
    X, z = design()
    blank = sw.Noisy(sw.Rank(), flip=0.5).observe(z, sw.Sets.random(200, 300, 2, seed=0), seed=0)
    assert "nothing can be learned" in told(sw.Normal(), [blank], X, z)[0]


@pytest.mark.parametrize("aggregate", [a for _, a in CLASSES], ids=[t for t, _ in CLASSES])
def test_every_aggregate_of_classes_can_be_diagnosed(aggregate):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    logits = torch.tensor(X @ rng.normal(size=(2, 4)))
    sets = make_sets(aggregate, sizes=(1, 3, 3))
    o = observe(aggregate, torch.distributions.Categorical(logits=logits), sets)
    assert isinstance(told(sw.Categorical(4), [o], X, X[:, 0], logits), list)


def test_diagnosis_is_fast():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 50))
    z = X @ rng.normal(size=50) / 7
    X[:, 3] = np.repeat(rng.normal(size=200), 100)
    pairs = np.column_stack([np.arange(20_000), np.arange(20_000) // 100 * 100])[
        np.arange(20_000) % 100 > 0
    ]
    start = time.perf_counter()
    lines = told(sw.Normal(), [sw.Rank().observe(z, pairs)], X, z)
    assert time.perf_counter() - start < 6  # 0.5 s on a quiet core
    assert "effect of feature 3" in lines[-1]


# ---- the y that were seen


def of_classes(aggregate, sets, y, n=2, n_rows=40):
    X = np.random.default_rng(0).normal(size=(n_rows, 2))
    raw = torch.tensor(np.random.default_rng(1).normal(size=(n_rows, n)))
    o = sw.Observations(aggregate, sets, y)
    return diagnose(Objective(sw.Categorical(n), [o], n_rows), X, raw, torch.zeros(0))


def test_two_of_four_in_every_set_leaves_a_swap():
    sets = sw.Sets.random(40, 60, 4, replace=False, seed=0)
    half = of_classes(sw.Counts(), sets, np.full(60, 2))
    assert any("the classes 0 and 1 can change places" in line for line in half)
    one = np.full(60, 2)
    one[7] = 1
    for y in (one, np.full(60, 1)):
        assert not any("change places" in line for line in of_classes(sw.Counts(), sets, y))
    each = of_classes(sw.Counts(n_classes=3), sets, np.tile([1, 2, 1], (60, 1)), n=3)
    assert any("the classes 0 and 2 can change places" in line for line in each)
    probs = torch.rand(40).double()
    for swapped in (probs, 1 - probs):  # the same thing by hand
        d = torch.distributions.Categorical(torch.stack([1 - swapped, swapped], 1))
        by_hand = [
            sum(
                np.prod([swapped[r] if r in pair else 1 - swapped[r] for r in rows])
                for pair in itertools.combinations(rows, 2)
            )
            for rows in sets
        ]
        found = sw.log_likelihood(sw.Counts(), d, sets, np.full(60, 2)).exp()
        np.testing.assert_allclose(found, by_hand)


def test_bags_that_are_all_positive_are_named():
    sets = sw.Sets.random(40, 60, 4, replace=False, seed=0)
    lines = of_classes(sw.AnyPositive(), sets, np.ones(60))
    assert any("if all rows were of class 1" in line for line in lines)
    noisy = of_classes(sw.Noisy(sw.AnyPositive(), flip=0.1), sets, np.ones(60))
    assert any("if all rows were of class 1" in line for line in noisy)
    some = np.ones(60)
    some[3] = 0
    assert not any("all rows" in x for x in of_classes(sw.AnyPositive(), sets, some))
    alike = of_classes(
        sw.Similarity(), sw.Sets.random(40, 60, 2, replace=False, seed=0), np.ones(60)
    )
    assert any("if all rows were of class 0" in line for line in alike)


def test_differences_of_size_zero_leave_the_sign_open():
    pairs = sw.Sets.random(200, 300, 2, replace=False, seed=0)
    X, z = design()
    zero = sw.Observations(sw.Difference(), pairs, np.zeros(300))
    assert any("change of sign" in line for line in told(sw.Normal(1.0), [zero], X, z))
    assert told(sw.Normal(1.0), [sw.Difference().observe(z, pairs)], X, z) == []


def test_words_say_in_principle():
    assert identify(sw.Normal(), [observations(sw.Mean())]).words.startswith("In principle, given")
    counts = observations(sw.Counts(n_classes=3), classes=3)
    assert identify(sw.Categorical(3), [counts]).words.startswith("In principle, given")
