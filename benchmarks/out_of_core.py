"""Peak memory and time of fits to rows in files, up to 40 million of them.

    python -m benchmarks.out_of_core [--members 2000000 40000000] [--learners linear network]

Each fit is a process of its own. Rows are generated to disk, in groups of 50 that follow one
another, with one mean each. The peak is that of the process, the libraries it imports included;
`linear` and `network` may use 20 % more from the largest table than from the smallest: the command
fails where they use more. Trees keep some bytes of each row in memory, which are shown; without
--members they are fitted to smaller tables.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SIZE, FEATURES, CHUNK = 50, 8, 1_000_000
MEMORY = "150MB"
BOUND = 1.2
SIZES = {True: [2_000_000, 40_000_000], False: [1_000_000, 4_000_000]}  # by whether it is flat
FLAT = {"linear": True, "network": True, "xgboost": False, "lightgbm": False}
LEARNERS = {
    "linear": "Linear(0.0)",
    "network": "Network(epochs=1, hidden=[16], batch_size=1024)",
    "xgboost": "XGBoost(n_estimators=10, max_depth=4)",
    "lightgbm": "LightGBM(n_estimators=10, num_leaves=15)",
}


def generate(folder: Path, members: int) -> None:
    """Rows in Parquet files, and the means of their groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    means = []
    for begin in range(0, members, CHUNK):
        rng = np.random.default_rng(begin)
        n = min(CHUNK, members - begin)
        X = rng.normal(size=(n, FEATURES)).astype(np.float32)
        z = X[:, 0] - 2 * X[:, 1] + np.maximum(X[:, 2], 0) + rng.normal(size=n)
        area = (begin + np.arange(n)) // SIZE
        columns = {f"x{j}": X[:, j] for j in range(FEATURES)}
        table = pa.table({"area": area.astype(np.int32), **columns})
        pq.write_table(table, folder / f"{begin:012d}.parquet", row_group_size=CHUNK // 8)
        means.append(z.reshape(-1, SIZE).mean(1))
    np.save(folder / "means.npy", np.concatenate(means))


def fit(folder: Path, learner: str) -> dict[str, float]:
    """One fit, in this process."""
    import torch

    import setwise as sw

    torch.set_num_threads(1)
    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begin = time.perf_counter()
    rows = sw.Files(folder / "*.parquet", memory=MEMORY, scratch=folder)
    sets = sw.Sets.from_groups(rows["area"])
    means = sw.Observations(sw.Mean(), sets, np.load(folder / "means.npy"))
    options = {"validation": None, "random_state": 0, "verbose": 0}
    made = eval(f"sw.{LEARNERS[learner]}", {"sw": sw})
    model = sw.AggregateRegressor(learner=made, **options).fit(rows.drop("area"), means)
    seconds = time.perf_counter() - begin
    few = rows.drop("area")
    first = next(few.tables())
    X = np.column_stack([first.column(name).to_numpy() for name in few.names])
    truth = X[:, 0] - 2 * X[:, 1] + np.maximum(X[:, 2], 0)
    error = float(np.abs(model.predict(first) - truth).mean())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak": peak, "imported": imported, "error": error}


def main() -> None:
    """Prints a table, and fails where memory grows that must not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, nargs="+")
    parser.add_argument("--learners", nargs="+", default=[*LEARNERS], choices=[*LEARNERS])
    parser.add_argument("--folder", help="where data and copies go, by default a temporary one")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(fit(Path(given.one[0]), given.one[1])))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in given.learners}
    print(
        f"{'learner':10} {'members':>12} {'on disk':>9} {'peak MB':>9} {'seconds':>8} {'error':>6}"
    )
    sizes = {name: given.members or SIZES[FLAT[name]] for name in given.learners}
    for members in sorted({n for some in sizes.values() for n in some}):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            generate(Path(folder), members)
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 2**20
            for name in (name for name, some in sizes.items() if members in some):
                run = subprocess.run(
                    [sys.executable, "-m", "benchmarks.out_of_core", "--one", folder, name],
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                if run.returncode:
                    raise SystemExit(run.stderr)
                one = json.loads(run.stdout.splitlines()[-1]) | {"members": members}
                found[name].append(one)
                print(
                    f"{name:10} {members:12,} {size:6,.0f} MB {one['peak']:9,.0f} "
                    f"{one['seconds']:8.1f} {one['error']:6.3f}",
                    flush=True,
                )
    failed = []
    for name, (first, *_, last) in found.items():
        ratio = last["peak"] / first["peak"]
        more = (last["peak"] - first["peak"]) * 2**20 / (last["members"] - first["members"])
        flat = ratio <= BOUND
        print(f"{name:10} {ratio:5.2f} times the peak, {more:5.1f} bytes for each more member")
        if FLAT[name] and not flat:
            failed.append(name)
    if failed:
        raise SystemExit(f"memory grows by more than {BOUND - 1:.0%}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
