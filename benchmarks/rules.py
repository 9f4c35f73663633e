"""What likelihood rules cost, value and gradient: a part of `make bench` and `make bench-cuda`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

import setwise as sw
from benchmarks.likelihood import counting_loop
from benchmarks.table import Figure, Rows, in_turns, skipped


def backward(value: Tensor, *leaves: Tensor) -> None:
    """The gradient of the sum."""
    torch.autograd.grad(value.sum(), leaves)


def normal(n: int, device: str = "cpu", dtype: Any = torch.float64) -> tuple[Any, Tensor]:
    """Normal targets of scale 1, and the locations to differentiate in."""
    loc = torch.randn(n, dtype=dtype, device=device, requires_grad=True)
    scale = torch.ones((), dtype=dtype, device=device).expand(n)
    return td.Normal(loc, scale, validate_args=False), loc


def categorical(
    n: int, c: int, device: str = "cpu", dtype: Any = torch.float64
) -> tuple[Any, Tensor]:
    """Classes, and the logits to differentiate in."""
    logits = torch.randn(n, c, dtype=dtype, device=device, requires_grad=True)
    return td.Categorical(logits=logits, validate_args=False), logits


def cost(aggregate: Any, made: tuple[Any, Tensor], sets: sw.Sets) -> Callable[[], None]:
    """One evaluation, value and gradient, of sets over that table of rows."""
    distribution, leaf = made
    with torch.no_grad():
        z = distribution.sample()
    seen = aggregate.observe(z.cpu(), sets, seed=0)

    def run() -> None:
        again = made_again(distribution, leaf)
        backward(sw.log_likelihood(aggregate, again, seen.sets, seen.y), leaf)

    return run


def made_again(d: Any, leaf: Tensor) -> Any:
    """The distribution made anew, since it keeps what it has computed."""
    return type(d)(**_parameters(d, leaf), validate_args=False)


def _parameters(d: Any, leaf: Tensor) -> dict[str, Any]:
    if isinstance(d, td.Categorical):
        return {"logits": leaf}
    return {"loc": leaf, "scale": d.scale}


def each_once(n_sets: int, size: int) -> sw.Sets:
    """Sets of one size, in which every row is once."""
    return sw.Sets(np.arange(n_sets * size).reshape(n_sets, size))


# ---- the cheap ones


def elementwise(small: bool) -> Rows:
    """One million members against plain elementwise work on the same tensor."""
    n = 2_000 if small else 1_000_000
    for aggregate, size, c in (
        (sw.Mean(), 4, 0), (sw.Rank(), 2, 0), (sw.Similarity(), 2, 10), (sw.AnyPositive(), 16, 2),
    ):  # fmt: skip
        made = categorical(n, c) if c else normal(n)
        leaf = made[1]
        weight, one = torch.randn_like(leaf), torch.ones_like(leaf)

        def plain(
            c: int = c, leaf: Tensor = leaf, weight: Tensor = weight, one: Tensor = one
        ) -> None:
            if c:
                backward(leaf.log_softmax(-1) * weight, leaf)
            else:
                backward(td.Normal(leaf, one, validate_args=False).log_prob(weight), leaf)

        ours, other = in_turns(cost(aggregate, made, each_once(n // size, size)), plain)
        against = "log_softmax" if c else "Normal.log_prob"
        yield Figure(f"{aggregate!r}, {n:,} members", against, ours / other, 3.0)


# ---- counts, against a loop and other packages


def counts(small: bool) -> Rows:
    """Counts of two classes."""
    for size, n, bound in ((8, 4, 1.0),) if small else ((64, 1024, 1.0), (1024, 16, 0.1)):
        logits = torch.randn(n, size, 2, dtype=torch.float64, requires_grad=True)
        k = torch.randint(0, size + 1, (n,))
        sets = each_once(n, size)

        def ours(logits: Tensor = logits, sets: sw.Sets = sets, k: Tensor = k) -> None:
            rows = td.Categorical(logits=logits.reshape(-1, 2), validate_args=False)
            backward(sw.log_likelihood(sw.Counts(), rows, sets, k), logits)

        def loop(logits: Tensor = logits, k: Tensor = k) -> None:
            backward(counting_loop(logits.log_softmax(-1), k), logits)

        a, b = in_turns(ours, loop, repeat=2)
        work = f"Counts of 2 classes, {n} sets of {size}, value and gradient"
        yield Figure(work, "a loop in logs", a / b, bound)
    work = f"Counts of 2 classes, {n} sets of {size}, value only"
    try:
        import fast_poibin
    except ImportError:
        yield skipped(work, "fast-poibin", "fast-poibin")
        return
    p = logits.detach().softmax(-1)[..., 1].numpy()

    def value() -> None:
        rows = td.Categorical(logits=logits.detach().reshape(-1, 2), validate_args=False)
        sw.log_likelihood(sw.Counts(), rows, sets, k)

    def theirs() -> None:
        for i in range(n):
            float(np.asarray(fast_poibin.PoiBin(p[i].tolist()).pmf)[int(k[i])])

    a, b = in_turns(value, theirs, repeat=3)
    yield Figure(work, "fast-poibin", a / b, note="in logs and with every count's digits: 0005")


def permanents(small: bool) -> Rows:
    """Targets in unknown order: a permanent of each set."""
    size, n = (4, 4) if small else (12, 64)
    work = f"Uncoupled, {n} sets of {size}, value"
    try:
        import thewalrus
    except ImportError:
        yield skipped(work, "thewalrus", "thewalrus")
        return
    d, _ = normal(n * size)
    sets = each_once(n, size)
    seen = sw.Uncoupled().observe(d.sample(), sets, seed=0)
    loc, y = d.loc.detach().reshape(n, size), torch.from_numpy(np.asarray(seen.y))

    def ours() -> None:
        with torch.no_grad():
            sw.log_likelihood(sw.Uncoupled(), d, sets, seen.y)

    def theirs() -> None:
        table = td.Normal(loc.unsqueeze(2), 1.0).log_prob(y.unsqueeze(1)).exp().numpy()
        for one in table:
            np.log(thewalrus.perm(one))

    a, b = in_turns(ours, theirs, repeat=3)
    yield Figure(work, "thewalrus", a / b, note="thewalrus takes no logs")


SECTIONS = (elementwise, counts, permanents)
