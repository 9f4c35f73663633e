"""What orders cost of which a part is known: `python -m benchmarks.orders`.

Sets of nine, value and gradient, microseconds of a processor for each: whole orders, the first
three, one tie of two and one of three between others, and any ties.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import distributions as td

import setwise as sw

SIZE = 9
FAMILIES: dict[str, tuple[Any, int]] = {
    "normal": (td.Normal, 512), "Gumbel": (td.Gumbel, 512), "Cauchy": (td.Cauchy, 48),
    "Laplace": (td.Laplace, 48),
}  # fmt: skip


def levels(name: str, n: int) -> Any:
    """Levels with ties; None for members in their order."""
    if name == "two ties":
        return np.tile([1, 2, 2, 4, 4, 4, 7, 8, 9], (n, 1))
    if name == "any ties":
        return np.cumsum(np.random.default_rng(0).random((n, SIZE)) < 0.7, 1)
    return None


def main() -> None:
    """A line for each family."""
    torch.set_num_threads(1)
    kinds = ("whole", "first three", "two ties", "any ties")
    shown = Table("targets", "sets", *kinds)
    for name, (family, n) in FAMILIES.items():
        loc = torch.randn(n * SIZE, dtype=torch.float64, generator=torch.manual_seed(0))
        loc.requires_grad_()
        d = family(loc, torch.ones((), dtype=torch.float64).expand(len(loc)))
        cells = []
        for kind in kinds:
            aggregate = sw.Ranking(top=3 if kind == "first three" else None)
            seen = aggregate.observe(d.sample(), np.arange(n * SIZE).reshape(n, SIZE))
            best = np.inf
            for _ in range(3):
                begin = time.process_time()
                sw.log_likelihood(aggregate, d, seen.sets, levels(kind, n)).sum().backward()
                best = min(best, time.process_time() - begin)
            cells.append(f"{1e6 * best / n:.0f}")
        shown.add_row(name, str(n), *cells)
    Console().print(shown)


if __name__ == "__main__":
    main()
