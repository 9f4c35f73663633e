"""Rows of X as tensors, the default module, and how its outputs become raw parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from setwise.distributions import Categorical, Family
from setwise.learners.inputs import as_array, n_rows
from setwise.learners.network.scores import Scores
from setwise.stored import Stored, Table, numbers

__all__ = ["MLP", "RawNetwork", "Rows", "make_body", "predict", "units"]

Build = Callable[[int, int], nn.Module]
T = TypeVar("T")
SAMPLE = 10_000  # rows of a data set that are read to standardise its features
CHUNK = 65536  # rows that are prepared at a time
PREDICT = 8192  # rows that go through a network at a time where nothing is learned
SHARE = 0.25  # of the free memory of a device that a table of features may take


class Rows:
    """The rows of X as tensors on a device, fetched by number.

    Arrays, frames and tensors are one table, on the device itself where it is small enough;
    map-style data sets give their items one by one (of a tuple the first entry). Stored rows are
    passed in by the caller.
    """

    def __init__(self, X: Any, device: torch.device) -> None:
        self.device, self.n = device, n_rows(X)
        self.prepare: Callable[[Tensor], Tensor] = nn.Identity()
        self.stored = X if isinstance(X, Stored) else None
        self.table = None if self.stored is not None else _table(X)
        self.items = X if self.table is None else None
        if self.table is not None and device.type == "cuda":
            free = torch.cuda.mem_get_info(device)[0]
            if self.table.numel() * self.table.element_size() < SHARE * free:
                self.table = self.table.to(device)

    def __len__(self) -> int:
        return self.n

    def prepared(self, prepare: Callable[[Tensor], Tensor]) -> Rows:
        """The rows after `prepare`: a table at once, the items of a data set as they come."""
        out = copy.copy(self)
        if self.table is None:
            out.prepare = prepare
        else:
            out.table = torch.cat([prepare(part) for part in self.table.split(CHUNK)])
        return out

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """The rows of these numbers, on the device."""
        return self._moved(self._fetch(rows))

    @property
    def apart(self) -> bool:
        """Whether rows have to be brought to the device."""
        return self.table is None or self.table.device.type != self.device.type

    def _fetch(self, rows: NDArray[np.int64]) -> Tensor:
        """The rows on their own device; on the way to CUDA in memory that it can read."""
        if self.stored is not None:
            table = rows if not isinstance(rows, np.ndarray) or rows.ndim > 1 else None
            found = _tensor(self.stored.take(rows) if table is None else table)
        elif self.table is None:
            found = _stack(self.items, rows)
        else:
            found = self.table.index_select(0, torch.from_numpy(rows).to(self.table.device))
        pinned = self.device.type == "cuda" and found.device.type == "cpu"
        return found.pin_memory() if pinned else found

    def _moved(self, found: Tensor) -> Tensor:
        return self.prepare(found.to(self.device, non_blocking=True))

    def ahead(self, some: Iterator[tuple[NDArray[np.int64], T]]) -> Iterator[tuple[Tensor, T]]:
        """The rows of each batch in turn; off the device, the next ones are fetched meanwhile."""
        if not self.apart:
            yield from ((self.take(rows), what) for rows, what in some)
            return
        with ThreadPoolExecutor(1) as other:

            def fetched() -> Iterator[tuple[Future[Tensor], T]]:
                for rows, what in some:
                    yield other.submit(self._fetch, rows), what

            before: list[tuple[Future[Tensor], T]] = []
            for one in fetched():
                before.append(one)
                if len(before) > 1:
                    rows, what = before.pop(0)
                    yield self._moved(rows.result()), what
            yield from ((self._moved(rows.result()), what) for rows, what in before)

    @property
    def n_features(self) -> int:
        """Numbers per row."""
        if self.stored is not None:
            return self.stored.width
        if self.table is not None:
            return math.prod(self.table.shape[1:])
        return self.take(np.zeros(1, np.int64)).numel()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each feature, flat; 1 for what does not vary."""
        if self.stored is not None:
            mean, deviation = map(torch.from_numpy, self.stored.moments())
            return mean, deviation
        return _moments(self._flat())

    def scores(self) -> tuple[Scores, tuple[Tensor, Tensor]]:
        """Features as normal scores, and mean and standard deviation of these."""
        if self.stored is not None:
            raise ValueError(
                'Network: inputs="ranks" needs rows in memory: read them first, as in rows.read(), '
                'or use inputs="standard"'
            )
        x = self._flat()
        made = Scores.of(x)
        return made, _moments(torch.cat([made(part) for part in x.split(CHUNK)]))

    def _flat(self) -> Tensor:
        """All rows of a table, or some items of a data set, as lists of numbers."""
        rows = np.arange(self.n)
        if self.table is None and self.n > SAMPLE:
            rows = np.random.default_rng(0).choice(self.n, SAMPLE, replace=False)
        return (self.table if self.table is not None else self.take(rows)).flatten(1)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(0, dtype=torch.float64)
    square = torch.zeros_like(mean)
    for part in x.split(CHUNK):
        square += (part.double() - mean).square().sum(0)
    deviation = (square / len(x)).sqrt()
    moves = deviation > 1e-12 * mean.abs()
    return mean.cpu(), torch.where(moves, deviation, 1.0).cpu()


def _table(X: Any) -> Tensor | None:
    """X as one tensor of finite numbers; None for a data set."""
    if isinstance(X, Tensor):
        table = X.detach()
    elif isinstance(X, np.ndarray) and X.ndim >= 2 and X.dtype in (np.float32, np.float64):
        table = torch.from_numpy(np.require(X, requirements=["C", "W"]))
    elif isinstance(X, np.ndarray) and X.ndim > 2:
        table = torch.from_numpy(np.asarray(X, np.float32))
    elif hasattr(X, "shape") or sparse.issparse(X):
        array = as_array(X, missing=False, who="Network")
        table = torch.from_numpy(np.require(array, requirements="W"))
    else:
        return None
    if table.is_floating_point() and not bool(table.isfinite().all()):
        row, *where = (int(i) for i in (~table.isfinite()).nonzero()[0])
        if isinstance(X, np.ndarray) and X.ndim == 2:
            as_array(X, missing=False, who="Network")
        raise ValueError(
            f"X has {float(table[(row, *where)])} in row {row}, at {tuple(where)}: Network needs "
            f"finite numbers; impute it, or use a boosting learner, which takes NaN"
        )
    return table


def _tensor(table: Table) -> Tensor:
    return torch.from_numpy(np.require(numbers(table), requirements=["C", "W"]))


def _stack(items: Any, rows: NDArray[np.int64]) -> Tensor:
    numbers = rows.tolist()
    many = getattr(items, "__getitems__", lambda numbers: [items[i] for i in numbers])
    found = many(numbers)
    first = [x[0] if isinstance(x, tuple | list) else x for x in found]
    return torch.stack([torch.as_tensor(x) for x in first])


class MLP(nn.Module):
    """Standardised inputs (flattened), then layers of ReLU, then one number per output.

    With `scores`, features become normal scores of their ranks first.

    The last layer begins small, so that the network begins near zero. Mean and deviation are in
    float64 because a feature may vary little around a large number.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        hidden: Sequence[int],
        dropout: float,
        moments: tuple[Tensor, Tensor] | None = None,
        scores: Scores | None = None,
    ) -> None:
        super().__init__()
        self.scores = scores
        self.hidden, self.dropout = list(hidden), dropout
        mean, deviation = moments or (torch.zeros(n_features), torch.ones(n_features))
        self.register_buffer("mean", mean.double().clone())
        self.register_buffer("deviation", deviation.double().clone())
        layers: list[nn.Module] = []
        width = n_features
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
            width = size
        last = nn.Linear(width, n_outputs)
        with torch.no_grad():
            last.weight *= 0.1
            last.bias.zero_()
        self.layers = nn.Sequential(*layers, last)

    def prepare(self, x: Tensor) -> Tensor:
        """The rows of x flat and standardised."""
        x = x.flatten(1)
        x = x if self.scores is None else self.scores(x)
        out: Tensor = (x - self.mean.to(x.device)) / self.deviation.to(x.device)
        return out.float()

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of each row of x."""
        out: Tensor = self.layers(self.prepare(x))
        return out


class RawNetwork(nn.Module):
    """raw = base + unit · body(x): an output of 0 is the intercept-only maximum likelihood.

    The sum is taken in the precision of `base`, whatever that of the body.
    """

    base: Tensor
    unit: Tensor

    def __init__(self, body: nn.Module, base: Tensor, unit: Tensor) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("base", base)
        self.register_buffer("unit", unit)

    def prepare(self, x: Tensor) -> Tensor:
        """The work that is done once and not in each step: the default module's standardisation."""
        if isinstance(self.body, MLP):
            return self.body.prepare(x)
        wanted = next((p.dtype for p in self.body.parameters()), torch.float32)
        return x.to(wanted) if x.is_floating_point() else x

    def compute(self, x: Tensor) -> Tensor:
        """Raw parameters of prepared rows, (rows, outputs)."""
        out = self.body.layers(x) if isinstance(self.body, MLP) else self.body(x)
        if out.ndim == 1 and len(self.base) == 1:
            out = out.unsqueeze(1)
        if out.shape != (len(x), len(self.base)):
            raise ValueError(
                f"the module must give {len(self.base)} number(s) per row, as a tensor of shape "
                f"({len(x)}, {len(self.base)}); it gave {tuple(out.shape)}"
            )
        raw: Tensor = self.base + self.unit * out.to(self.base.dtype)
        return raw

    def forward(self, x: Tensor) -> Tensor:
        """Raw parameters, (rows, outputs)."""
        return self.compute(self.prepare(x))


def predict(network: Callable[[Tensor], Tensor], rows: Rows, numbers: NDArray[np.int64]) -> Tensor:
    """Raw parameters of these rows in float64, computed in batches without a graph."""
    parts = np.array_split(numbers, max(1, math.ceil(len(numbers) / PREDICT)))
    with torch.no_grad():
        return torch.cat([network(rows.take(part)).double() for part in parts])


def units(family: Family, raw: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """(base, unit) of each output: a location moves in units of the spread of the targets."""
    # Locations may be large numbers that differ little: float32 would lose them.
    dtype = torch.float32 if isinstance(family, Categorical) else torch.float64
    base, unit = raw.detach().clone(), family.units(raw, shared)
    return base.to("cpu", dtype), unit.to("cpu", dtype)


def make_body(module: Any, n_features: int, n_outputs: int, number: int = 0) -> nn.Module:
    """A copy of the user's module, or what the user's function builds.

    A module comes with its weights, which may have been trained; where several random starts are
    tried, all but the first draw those of its last layer anew.
    """
    if isinstance(module, nn.Module):
        made = copy.deepcopy(module)
        fresh = [m for m in made.modules() if hasattr(m, "reset_parameters")]
        if number and fresh:
            fresh[-1].reset_parameters()  # type: ignore[operator]
        return made
    if not callable(module):
        raise TypeError(
            f"module is a torch.nn.Module, or a function (n_features, n_outputs) that builds one; "
            f"got {module!r}"
        )
    made = module(n_features, n_outputs)
    if not isinstance(made, nn.Module):
        raise TypeError(f"{module!r} must build a torch.nn.Module, it gave {made!r}")
    return made
