"""Parts of an objective that several processes hold are together the objective itself."""

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cases import example, make_sets, observe, trials

import setwise as sw
from setwise._peers import connect, free_port
from setwise.distributed import divide
from setwise.distributions import families
from setwise.objective import Objective

N = 60


def together(n, work):
    """What `work(peers)` gives in each of n threads that are joined as processes would be."""
    port = free_port("127.0.0.1")

    def one(rank):
        with connect(rank, n, "127.0.0.1", port, "127.0.0.1") as peers:
            return work(peers)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


def groups(size):
    return sw.Sets(np.arange(N).reshape(-1, size))


def overlapping(n_sets, size, seed=0):
    return sw.Sets.random(N, n_sets, size, seed=seed)


Z = np.random.default_rng(0).normal(size=N)
CLASSES = np.random.default_rng(1).integers(0, 3, N)
WHOLE = np.random.default_rng(2).poisson(3.0, N)
RAGGED = overlapping(30, (2, 7))

CASES = {
    "groups": (sw.Normal(), [sw.Mean().observe(Z, groups(4))]),
    "means that share rows": (sw.Normal(), [sw.Mean().observe(Z, RAGGED)]),
    "pairs": (sw.Normal(), [sw.Difference().observe(Z, overlapping(80, 2))]),
    "ranks": (sw.Normal(scale=1.0), [sw.Rank().observe(Z, overlapping(80, 2))]),
    "two kinds": (
        sw.Normal(),
        [sw.Mean().observe(Z, RAGGED), sw.Direct().observe(Z, sw.Sets(np.arange(20)[:, None]))],
    ),
    "large sets": (sw.Normal(), [sw.Mean().observe(Z, overlapping(20, 20))]),
    "noisy means": (sw.Normal(), [sw.Noisy(sw.Mean(), normal=0.5).observe(Z, RAGGED, seed=0)]),
    "largest of each": (sw.Gumbel(), [sw.Max().observe(Z, RAGGED)]),
    "a scale for each row": (sw.Normal(scale="predicted"), [sw.Mean().observe(Z, RAGGED)]),
    "counts of things": (sw.Poisson(), [sw.Sum().observe(WHOLE, RAGGED)]),
    "classes": (sw.Categorical(3), [sw.Counts().observe(CLASSES, RAGGED)]),
    "alike or not": (sw.Categorical(3), [sw.Similarity().observe(CLASSES, overlapping(80, 2))]),
}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_parts_are_the_whole(case, n, rng):
    assert_parts_are_the_whole(*CASES[case], n, rng)


CUT = trials(only_exact=True)  # a simulation draws other numbers where others are asked
EVERY = {repr(trial[1]): trial for trial in CUT}  # one family for each aggregate
EVERY |= {repr(trial[1]): trial for trial in CUT if trial[2] in ("categorical", "gumbel")}


@pytest.mark.parametrize(
    ("aggregate", "name"),
    [pytest.param(aggregate, name, id=trial) for trial, aggregate, name in EVERY.values()],
)
def test_every_aggregate_can_be_cut_apart(aggregate, name, rng):
    sets = make_sets(aggregate, sizes=(2, 3) * 6, n_rows=N)
    seen = observe(aggregate, example(name, N)[0], sets)
    family = sw.Categorical(4) if name == "categorical" else families()[name]()
    assert_parts_are_the_whole(family, [seen], 2, rng)


def assert_parts_are_the_whole(family, observations, n, rng):
    whole = Objective(family, observations, N, "independent")
    raw = torch.from_numpy(rng.normal(size=(N, whole.n_outputs)))
    shared = torch.from_numpy(rng.normal(size=whole.n_shared) * 0.1)
    along = [torch.from_numpy(rng.normal(size=x.shape)) for x in (raw, shared)]
    leaf = torch.from_numpy(rng.integers(0, 5, N).astype(np.int32))
    shares = divide(whole, n).shares
    rows = np.concatenate([share.rows for share in shares])
    assert len(rows) == len({*rows.tolist()}) == int((whole.times_named > 0).sum())

    def work(peers):
        share = shares[peers.rank]
        turned = np.random.default_rng(3).permutation(len(share.rows))
        part = share.joined(peers).over(turned)
        mine = torch.from_numpy(share.rows[turned])
        point = part.at(raw[mine], shared)
        return mine, {
            "value": point.value,
            "gradient": point.gradient,
            "curvature": point.curvature(),
            "product": point.product(along[0][mine], along[1])[0],
            "shared gradient": point.shared_gradient,
            "shared curvature": point.shared_curvature(),
            "shared product": point.product(along[0][mine], along[1])[1],
            "leaves": point.leaf_hessian(leaf[mine], 5),
            "mean": part.mean(raw[mine]),
            "times": part.times_named,
        }

    point = whole.at(raw, shared)
    named = raw[torch.from_numpy(whole.times_named > 0)]
    expected = {
        "value": point.value,
        "gradient": point.gradient,
        "curvature": point.curvature(),
        "product": point.product(*along)[0],
        "shared gradient": point.shared_gradient,
        "shared curvature": point.shared_curvature(),
        "shared product": point.product(*along)[1],
        "leaves": point.leaf_hessian(leaf, 5),
        "mean": named.mean(0),
    }
    for mine, found in together(n, work):
        assert np.array_equal(found.pop("times") > 0, np.ones(len(mine), bool))
        for name, value in found.items():
            want = expected[name]
            if value is None or want is None:
                assert value is want, name
                continue
            want = torch.as_tensor(want)
            own = want[mine] if name in ("gradient", "curvature", "product") else want
            torch.testing.assert_close(torch.as_tensor(value), own, rtol=1e-9, atol=1e-9, msg=name)


def test_processes_listen_at_their_own_address_only():
    port = free_port("127.0.0.1")
    with connect(0, 1, "127.0.0.1", port, "127.0.0.1"):
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(OSError, match=r"."):
            socket.create_connection(("127.0.0.2", port), timeout=5)


def test_connected_sets_stay_together():
    objective = Objective(sw.Normal(), [sw.Mean().observe(Z, groups(4))], N)
    division = divide(objective, 3)
    assert division.guests == 0
    assert [len(share.rows) for share in division.shares] == [20, 20, 20]


def test_near_rows_go_together():
    chain = sw.Difference().observe(Z, np.column_stack([np.arange(N - 1), np.arange(1, N)]))
    shuffled = chain.take(np.random.default_rng(0).permutation(N - 1))
    assert divide(Objective(sw.Normal(), [shuffled], N), 3).guests == 2


def test_joint_likelihoods_are_not_cut():
    means = sw.Mean().observe(Z, overlapping(40, 3))
    objective = Objective(sw.Normal(), [means], N, "joint")
    with pytest.raises(ValueError, match=r"cannot be cut apart.*overlap='independent'"):
        divide(objective, 2)


def test_fewer_sets_than_workers():
    objective = Objective(sw.Normal(), [sw.Mean().observe(Z, groups(30))], N)
    with pytest.raises(ValueError, match="2 sets are too few for 3 workers"):
        divide(objective, 3)


def test_what_is_drawn_does_not_depend_on_who_has_it(rng):
    n = 30_000
    sizes = {"pairs": 4, "shares": 12}
    leaf = torch.from_numpy(rng.integers(0, 20, n).astype(np.int32))
    for name, size in sizes.items():
        sets = sw.Sets.random(n, 60_000, (size, size + 1), seed=0)
        seen = sw.Mean().observe(rng.normal(size=n), sets)
        whole = Objective(sw.Normal(), [seen], n, "independent")
        raw, shared = torch.zeros(n, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        shares = divide(whole, 2).shares

        def work(peers, shares=shares, raw=raw, shared=shared):
            share = shares[peers.rank]
            mine = torch.from_numpy(share.rows)
            return share.joined(peers).at(raw[mine], shared).leaf_hessian(leaf[mine], 20)

        exact = whole.at(raw, shared).leaf_hessian(leaf, 20)
        for found in together(2, work):
            torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-8, msg=name)


def test_some_sets_of_classes_stand_for_all(rng):
    n = 3000
    pairs = sw.Sets.random(n, 20_000, 2, seed=0)
    seen = sw.Similarity().observe(rng.integers(0, 3, n), pairs)
    whole = Objective(sw.Categorical(3), [seen], n)
    raw = torch.from_numpy(rng.normal(size=(n, 3)))
    along, none = torch.from_numpy(rng.normal(size=(n, 3))), torch.zeros(0, dtype=torch.float64)
    shares = divide(whole, 2).shares
    point = whole.at(raw)
    assert point.part() is not point

    def work(peers):
        share = shares[peers.rank]
        mine = torch.from_numpy(share.rows)
        return mine, share.joined(peers).at(raw[mine]).part().product(along[mine], none)[0]

    exact = point.part().product(along, none)[0]
    for mine, found in together(2, work):
        torch.testing.assert_close(found, exact[mine])
