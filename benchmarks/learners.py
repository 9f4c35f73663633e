"""What the learners reach, on data generated here: `python -m benchmarks.learners [SECTION ...]`.

friedman   LightGBM from means of 4 to 1024 members, and from ranks, beside full supervision
libraries  XGBoost, CatBoost, Network and Linear beside LightGBM, means of 4
scale      a predicted standard deviation on heteroscedastic data
mixed      fifty labels beside ten thousand ranks: shift and scale recovered
time       seconds of a fit beside native supervised LightGBM, and beside a loop by hand
"""

from __future__ import annotations

import platform
import sys
import time
from timeit import timeit

import lightgbm
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.datasets import make_friedman1

import setwise as sw

console = Console()


def table(title: str, *columns: str) -> Table:
    made = Table(title=title)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left")
    return made


def friedman_data(n: int = 20_000):
    train = make_friedman1(n, noise=1.0, random_state=0)
    return *train, *make_friedman1(20_000, noise=1.0, random_state=1)


def supervised(X, z, rounds: int = 100) -> lightgbm.Booster:
    data = lightgbm.Dataset(X, label=z)
    return lightgbm.train({"verbosity": -1, "objective": "l2"}, data, rounds)


def error(model, X, z) -> float:
    return float(np.mean((model.predict(X) - z) ** 2))


def fit(X, observations, learner=None, distribution="normal", seed=0, **more):
    model = sw.AggregateRegressor(
        distribution, learner or sw.LightGBM(), random_state=seed, verbose=0
    )
    return model.fit(X, observations, **more)


def friedman() -> None:
    X, z, X_test, z_test = friedman_data()
    out = table("LightGBM, 100 rounds, Friedman-1: test MSE", "labels", "error", "bar", "seconds")
    out.add_row("every row", f"{error(supervised(X, z), X_test, z_test):.3f}", "about 1.20", "")
    bars = {4: 1.35, 16: 1.40, 64: 1.45, 256: 1.45, 1024: None}
    for size, bar in bars.items():
        means = sw.Mean().observe(z, sw.Sets.random(len(X), 20_000, size, seed=size))
        start = time.perf_counter()
        found = error(fit(X, means), X_test, z_test)
        seconds = time.perf_counter() - start
        out.add_row(
            f"means of {size}", f"{found:.3f}", f"≤ {bar}" if bar else "finite", f"{seconds:.1f}"
        )
    ranks = sw.Rank().observe(z, sw.Sets.random(len(X), 10 * len(X), 2, replace=False, seed=5))
    start = time.perf_counter()
    model = fit(X, ranks, distribution=sw.Normal(scale=1.0))
    seconds = time.perf_counter() - start
    found = sw.metrics.error_variance(z_test, model.predict(X_test))
    out.add_row("10 ranks per row (error variance)", f"{found:.3f}", "≤ 1.6", f"{seconds:.1f}")
    console.print(out)


def libraries() -> None:
    X, z, X_test, z_test = friedman_data()
    means = sw.Mean().observe(z, sw.Sets.random(len(X), 20_000, 4, seed=4))
    out = table(
        "Means of 4, Friedman-1, default settings", "learner", "test MSE", "ratio", "seconds"
    )
    first = None
    for learner in (sw.LightGBM(), sw.XGBoost(), sw.CatBoost(), sw.Network(), sw.Linear()):
        start = time.perf_counter()
        found = error(fit(X, means, learner), X_test, z_test)
        seconds = time.perf_counter() - start
        first = first or found
        out.add_row(repr(learner), f"{found:.3f}", f"{found / first:.2f}", f"{seconds:.1f}")
    console.print(out)


def scale() -> None:
    rng = np.random.default_rng(0)
    out = table("m(x) = cos x + x/2, s(x) = exp(0.3x)/2, 5 000 means of 2 to 4",
                "learner", "mean: RMSE", "deviation: mean relative error", "bar")  # fmt: skip

    def draw(n):
        x = rng.uniform(-4, 4, n)
        return x[:, None], np.cos(x) + x / 2 + np.exp(0.3 * x) / 2 * rng.normal(size=n)

    X, z = draw(10_000)
    X_eval, z_eval = draw(2_000)
    means = sw.Mean().observe(z, sw.Sets.random(10_000, 5_000, (2, 4), seed=1))
    held_out = sw.Mean().observe(z_eval, sw.Sets.random(2_000, 1_000, (2, 4), seed=2))
    grid = np.linspace(-4, 4, 400)
    for learner in (sw.LightGBM(), sw.LightGBM(num_leaves=8), sw.Network()):
        model = fit(X, means, learner, sw.Normal(scale="predicted"), eval=(X_eval, held_out))
        d = model.predict_dist(grid[:, None])
        miss = np.sqrt(np.mean((d.loc.numpy() - np.cos(grid) - grid / 2) ** 2))
        off = np.mean(np.abs(d.scale.numpy() / (np.exp(0.3 * grid) / 2) - 1))
        out.add_row(repr(learner), f"{miss:.3f}", f"{off:.1%}", "≤ 20 %")
    console.print(out)


def mixed(seeds: int = 10) -> None:
    out = table("50 labels and 10 000 ranks, one fit", "seed", "slope", "shift / sd", "scale", "ok")
    good = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(5_000, 5))
        f = 40 + 10 * (X @ [1.0, -0.5, 0.3, 0.0, 0.2])
        z = f + 5 * rng.normal(size=len(f))
        ranks = sw.Rank().observe(z, sw.Sets.random(5_000, 10_000, 2, replace=False, seed=seed))
        few = sw.Direct().observe(z, rng.choice(5_000, 50, replace=False)[:, None])
        model = fit(X, [few, ranks], sw.Linear(), seed=seed)
        slope, _ = np.polyfit(f, model.predict(X), 1)
        shift = float(np.mean(model.predict(X) - f)) / f.std()
        noise = float(model.shared_.exp()) / 5
        ok = max(abs(slope - 1), abs(shift), abs(noise - 1)) <= 0.15
        good += ok
        out.add_row(
            str(seed), f"{slope:.3f}", f"{shift:+.3f}", f"{noise:.3f}", "yes" if ok else "no"
        )
    out.caption = f"{good} of {seeds} within 15 % (bar: 9 of 10)"
    console.print(out)


def by_hand(X, means) -> lightgbm.Booster:
    """What one would write: LightGBM with a gradient of two sparse products and nothing else."""
    sets = means.sets
    a = np.repeat(1 / sets.sizes, sets.sizes)
    A = sparse.csr_array(
        (a, sets.indices.astype(np.int32), sets.offsets.astype(np.int32)), (len(sets), len(X))
    )
    back = A.T.tocsr()
    y = means.y - means.y.mean()
    hessian = np.ones(len(X), np.float32)

    def gradient(scores, data):
        return (back @ (A @ scores - y)).astype(np.float32), hessian

    params = {"verbosity": -1, "objective": "none", "force_row_wise": True}
    booster = lightgbm.Booster(params, lightgbm.Dataset(X, params=params))
    for _ in range(100):
        booster.update(fobj=gradient)
    return booster


def timing() -> None:
    out = table("Seconds of a fit from means of 4, 100 rounds, and ratio to native LightGBM "
                "(medians of runs in turn)",
                "rows", "native", "by hand", "ratio", "plain leaves", "ratio", "coupled leaves",
                "ratio")  # fmt: skip
    for n, repeat in ((20_000, 21), (200_000, 5)):
        X, z = make_friedman1(n, noise=1.0, random_state=0)
        means = sw.Mean().observe(z, sw.Sets.random(n, n, 4, seed=4))
        runs = (
            lambda X=X, z=z: supervised(X, z),
            lambda X=X, means=means: by_hand(X, means),
            lambda X=X, means=means: fit(X, means, sw.LightGBM(coupled=False)),
            lambda X=X, means=means: fit(X, means),
        )
        seconds = np.array([[timeit(run, number=1) for run in runs] for _ in range(repeat)])
        native, *others = np.median(seconds, 0)
        ratios = np.median(seconds[:, 1:] / seconds[:, :1], 0)
        cells = [f"{native:.2f}"]
        for took, ratio, bar in zip(others, ratios, ("", " (≤ 1.3)", " (≤ 2.5)"), strict=True):
            cells += [f"{took:.2f}", f"{ratio:.2f}{bar}"]
        out.add_row(f"{n:,}", *cells)
    console.print(out)


def main() -> None:
    console.print(
        f"torch {torch.__version__}, lightgbm {lightgbm.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}, "
        f"Python {platform.python_version()}"
    )
    sections = {
        "friedman": friedman,
        "libraries": libraries,
        "scale": scale,
        "mixed": mixed,
        "time": timing,
    }
    for name in sys.argv[1:] or sections:
        sections[name]()


if __name__ == "__main__":
    main()
