"""What a fit of trees by many workers takes: predicted from one worker, measured on two.

    unshare --net sh -c 'ip link set lo up; python -m benchmarks.scale'

One worker of a Dask cluster is measured at two sizes, which gives what a row costs in seconds and
bytes, and two processes exchange sums of two sizes, which gives what a message and a byte cost.
The formulas of docs/scale.md make of this a prediction for two workers, which are then measured;
the command fails where they are further apart than 25 %, and prints what a hundred workers would
take. Seconds are those that a processor works on a round, in the fastest of some fits, so that what
else the machine does counts little. Traffic is that of the loopback device: `unshare` (as root,
Linux) keeps that of others out.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

FEATURES, SIZE, DEPTH, BINS = 20, 100, 6, 256
ROUNDS = 5, 25
REPEATS = 4  # of each measurement: the least counts, since what else a machine does only adds
ONE, TWO = (100_000, 400_000), 250_000  # rows of a worker, alone and with another
PAIRED = 50_000  # of these where sets are pairs of any two rows
GUEST = 8 + 4 + 8 + 8  # bytes: a row's parameter and leaf go out, gradient and curvature come home
BOUND = 0.25


class Constants(NamedTuple):
    """What one worker was measured to take."""

    round: float  # seconds of a round without rows
    row: float  # more for each row
    base: float  # bytes of a worker without rows
    row_bytes: float  # more for each row
    member_bytes: float  # of the client, for each member of a set
    hop: float  # seconds from one worker to the next
    byte: float  # seconds to send one

    def predicted(self, rows: float, workers: int, cores: int = 1, guests: float = 0) -> Predicted:
        """For so many rows on each of so many workers, some of them guests of others."""
        traffic = self.traffic(workers) + GUEST * guests
        wire = (2 * workers - 1) * (DEPTH + 8) * self.hop + traffic * self.byte
        work = self.round + self.row * rows / cores
        return Predicted(work + wire, wire, traffic, self.base + self.row_bytes * rows)

    @staticmethod
    def traffic(workers: int) -> float:
        """Bytes that a worker sends in a round where no row is a guest.

        XGBoost adds up histograms, of the root and of the smaller child of each split, once for
        each level, and two numbers at the root; its sum over n workers sends 2 − 1/n times what is
        added up. We add up the leaf system in seven sums, by Gloo, which sends 2 − 2/n times that.
        """
        leaves = 2**DEPTH
        histograms = 16 * FEATURES * BINS * (leaves // 2)
        system = 8 * (leaves**2 + 2 * leaves + 6)
        return (2 - 1 / workers) * histograms + (2 - 2 / workers) * system


class Predicted(NamedTuple):
    """What a round takes of each worker."""

    seconds: float
    wire: float  # of these to exchange sums
    traffic: float
    bytes: float


class Measured(NamedTuple):
    """What a round took of a worker, and the peaks of a fit."""

    seconds: float  # of a processor
    clock: float
    traffic: float
    bytes: float
    client: float  # bytes
    guests: float = 0.0


def _part(begin: int, end: int) -> np.ndarray:
    return np.random.default_rng(begin).normal(size=(end - begin, FEATURES)).astype(np.float32)


def _targets(X: np.ndarray) -> np.ndarray:
    z = X[:, 0] - 2 * X[:, 1] + np.maximum(X[:, 2], 0) * X[:, 3]
    return z + np.random.default_rng(len(X)).normal(size=len(X))


def _sent() -> float:
    """Bytes that have gone through the loopback device."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return float(next(line for line in lines if line.strip().startswith("lo:")).split()[9])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


class _Highest:
    """The largest memory of this process while something runs, above what it was before."""

    def __enter__(self) -> _Highest:
        self.value, self.going, self.before = 0.0, True, self.now()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    @staticmethod
    def now() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * float(os.sysconf("SC_PAGE_SIZE"))

    def watch(self) -> None:
        while self.going:
            self.value = max(self.value, self.now() - self.before)
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.going = False
        self.thread.join()


def measure(workers: int, rows: int, pairs: bool = False) -> Measured:
    """A fit by so many workers with so many rows each, from means of groups or from pairs."""
    import distributed

    import setwise as sw
    from setwise.distributed import divide
    from setwise.objective import Objective

    n = workers * rows
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        places = sorted(client.nthreads())
        parts = [
            client.submit(_part, k * rows, (k + 1) * rows, workers=[places[k]], pure=False)
            for k in range(workers)
        ]
        z = np.concatenate(client.gather(client.map(_targets, parts)))
        if pairs:
            seen = sw.Difference().observe(z, sw.Sets.random(n, n, 2, seed=0))
            guests = divide(Objective(sw.Normal(), [seen], n, "independent"), workers).guests
        else:
            seen = sw.Observations(
                sw.Mean(), sw.Sets(np.arange(n).reshape(-1, SIZE)), z.reshape(-1, SIZE).mean(1)
            )
            guests = 0
        took: dict[int, list[tuple[float, float, float]]] = {}
        for rounds in (1, *ROUNDS * REPEATS):  # the first one imports what is needed
            learner = sw.XGBoost(n_estimators=rounds, max_depth=DEPTH, max_bin=BINS)
            before = client.run(time.process_time), time.perf_counter(), _sent()
            with _Highest() as here:
                sw.AggregateRegressor(
                    learner=learner, validation=None, overlap="independent", verbose=0
                ).fit(parts, seen, client=client)
            clock, sent = time.perf_counter() - before[1], _sent() - before[2]
            after = client.run(time.process_time)
            work = float(np.mean([after[place] - before[0][place] for place in places]))
            took.setdefault(rounds, []).append((work, clock, sent / workers))
        first, last = (np.min(took[rounds], axis=0) for rounds in ROUNDS)
        each, peak = (last - first) / (ROUNDS[1] - ROUNDS[0]), max(client.run(_peak).values())
        return Measured(*each.tolist(), peak, here.value, guests / workers)


def _exchange(rank: int, port: int, count: int, n: int) -> float:
    import torch

    from setwise._peers import connect

    with connect(rank, 2, "127.0.0.1", port, "127.0.0.1") as peers:
        numbers = torch.zeros(n, dtype=torch.float64)
        peers.sum(numbers)
        took = []
        for _ in range(REPEATS):
            begin = time.process_time()
            for _ in range(count):
                peers.sum(numbers)
            took.append(time.process_time() - begin)
        return min(took) / count


def wire() -> tuple[float, float]:
    """Seconds of a processor for each message, and for each byte that is sent."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from setwise._peers import free_port

    found = []
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for count, n in ((2000, 1), (50, 500_000)):
            port = free_port("127.0.0.1")
            both = [pool.submit(_exchange, rank, port, count, n) for rank in range(2)]
            found.append(float(np.mean([one.result() for one in both])))
    small, large = found
    return small / 2, (large - small) / (8 * 500_000)


def constants() -> Constants:
    """From one worker at two sizes, and two processes that exchange sums."""
    few, many = (measure(1, rows) for rows in ONE)
    more = ONE[1] - ONE[0]
    row, row_bytes = (many.seconds - few.seconds) / more, (many.bytes - few.bytes) / more
    return Constants(
        few.seconds - row * ONE[0],
        row,
        few.bytes - row_bytes * ONE[0],
        row_bytes,
        (many.client - few.client) / more,
        *wire(),
    )


def main() -> None:
    """Prints constants, the prediction beside the measurement, and the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--cores", type=int, default=16, help="of each worker")
    parser.add_argument("--gigabits", type=float, default=10.0, help="per second, of the network")
    parser.add_argument("--microseconds", type=float, default=100.0, help="from host to host")
    given = parser.parse_args()
    found = constants()
    print(f"a row:     {found.row * 1e6:.3f} µs a round, {found.row_bytes:.0f} bytes")
    print(f"a worker:  {found.round * 1e3:.1f} ms a round, {found.base / 2**20:.0f} MiB")
    print(f"a message: {found.hop * 1e6:.0f} µs, {found.byte * 1e9:.2f} ns a byte")
    print(f"a member:  {found.member_bytes:.0f} bytes of the client")
    off = []
    for what, pairs, rows in (("means of 100", False, TWO), ("pairs", True, PAIRED)):
        there = measure(2, rows, pairs)
        formula = found.predicted(rows, 2, guests=there.guests)
        print(f"\n2 workers of {rows:,} rows, {there.guests:,.0f} of them guests; {what}")
        print(f"{'':16} {'predicted':>10} {'measured':>10}")
        table = {
            "seconds a round": (formula.seconds, there.seconds, 1.0),
            "MB sent a round": (formula.traffic, there.traffic, 1e-6),
            "MiB a worker": (formula.bytes, there.bytes, 2.0**-20),
        }
        for name, (one, two, unit) in table.items():
            print(f"{name:16} {one * unit:10.3f} {two * unit:10.3f} {one / two - 1:+6.0%}")
            if not abs(math.log(one / two)) <= math.log1p(BOUND):
                off.append(f"{name}, {what}")
        print(f"{'by the clock':16} {'':10} {there.clock:10.3f}")
    planned = found._replace(hop=given.microseconds * 1e-6, byte=8e-9 / given.gigabits)
    rows = given.rows / given.workers
    plan = planned.predicted(rows, given.workers, given.cores)
    print(
        f"\n{given.workers} workers of {rows:,.0f} rows and {given.cores} cores: "
        f"{plan.bytes / 2**30:.1f} GiB each, {plan.traffic / 1e6:.1f} MB sent and "
        f"{plan.seconds:.2f} s a round, {plan.wire:.2f} s of it on the wire; the client needs "
        f"{given.rows * found.member_bytes / 2**30:.0f} GiB for the sets"
    )
    if off:
        raise SystemExit(f"further apart than {BOUND:.0%}: {', '.join(off)}")


if __name__ == "__main__":
    main()
