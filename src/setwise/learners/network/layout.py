"""Epochs laid out on a CUDA device: steps of one shape, recorded once and then replayed."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.learners.network.modules import Rows
from setwise.objective import Objective, Term, of_fixed_steps
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Layout", "Recorded"]

DEVICES = ("cuda",)  # where an epoch is laid out; a CPU gains more from distinct rows
EAGER = 3  # steps before one is recorded: libraries load, and choose how to compute

logger = logging.getLogger("setwise")


class Layout:
    """The batches of an epoch on the device, of one shape; a step needs nothing of the host.

    They are those of `Objective.minibatches`, with two differences: a row that is a member twice
    goes through the network twice, and batches that are one set short are filled up with a set of
    weight 0. `tell` and `told` pass the numbers that a step needs from the host. `unchecked` says
    that steps are done within `objective.unchecked`.
    """

    def __init__(self, objective: Objective, rows: Rows, size: int, unchecked: bool) -> None:
        assert rows.table is not None
        self.objective, self.table = objective, rows.table
        self.n_batches = max(1, math.ceil(objective.n_sets / size))
        makes = [of_fixed_steps(term, unchecked) for term in objective.terms]
        self.kinds = [
            _Kind(term, make, self.n_batches, rows.device)
            for term, make in zip(objective.terms, makes, strict=True)
        ]
        self.place = torch.zeros(1, dtype=torch.int64, device=rows.device)
        self.numbers = torch.zeros((self.n_batches, 3), dtype=torch.float64, device=rows.device)

    @staticmethod
    def suits(objective: Objective, rows: Rows, size: int) -> bool:
        """Whether it pays: sets of one size, rows on the device, and mostly distinct in a batch."""
        terms = objective.terms
        if rows.device.type not in DEVICES or rows.table is None:
            return False
        members = min(size, objective.n_sets) * sum(term.largest for term in terms)
        return (
            rows.table.device.type == rows.device.type
            and members <= objective.n_rows
            and all(term.adds_up and term.sets.size is not None for term in terms)
            and all(term.sets.weights is None and term.sets.counts is None for term in terms)
            and all((term.weight > 0).all() and term.slot is None for term in terms)
        )

    def shuffle(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """A new order of the sets; returns the total weight of each batch."""
        self.place.zero_()
        return np.asarray(np.sum([kind.shuffle(rng) for kind in self.kinds], 0))

    def batch(self) -> tuple[Tensor, Objective]:
        """The rows of the next batch, one for each member, and the loss over them."""
        found = [kind.batch(self.place) for kind in self.kinds]
        rows = found[0][0] if len(found) == 1 else torch.cat([rows for rows, _ in found])
        total, terms = 0, []
        for kind, (own, seen) in zip(self.kinds, found, strict=True):
            terms.append(kind.term(seen, total, len(rows)))
            total += len(own)
        return self.table.index_select(0, rows), self.objective.only(terms, len(rows))

    def tell(self, numbers: Sequence[Sequence[float]]) -> None:
        """Three numbers for each step of the epoch."""
        self.numbers[: len(numbers)].copy_(torch.tensor(numbers, dtype=torch.float64))

    def told(self) -> list[Tensor]:
        """The numbers of this step; moves on to the next one."""
        found = self.numbers.index_select(0, self.place)[0]
        self.place += 1
        return list(found)


class _Kind:
    """Observations of one kind on the device."""

    def __init__(self, term: Term, make: type[Term], n_batches: int, device: torch.device) -> None:
        o, n = term.observations, len(term.sets)
        self.like, self.make, self.n, self.n_batches = term, make, n, n_batches
        self.members = torch.from_numpy(o.sets.indices.reshape(n, -1)).to(device)
        self.y = None if o.y is None else torch.as_tensor(o.y).to(device)
        self.size = math.ceil(n / n_batches)  # sets in a batch
        begin = np.arange(n_batches)[:, None] * n // n_batches
        at = begin + np.arange(self.size)
        self.real = at < np.arange(1, n_batches + 1)[:, None] * n // n_batches
        self.at = np.minimum(at, n - 1)
        self.order = torch.zeros((n_batches, self.size), dtype=torch.int64, device=device)
        self.weight = torch.zeros((n_batches, self.size), dtype=torch.float64, device=device)
        self.sets: dict[int, Sets] = {}

    def shuffle(self, rng: np.random.Generator) -> np.ndarray:
        order = rng.permutation(self.n)[self.at]
        weight = self.like.weight[order] * self.real
        self.order.copy_(torch.from_numpy(order))
        self.weight.copy_(torch.from_numpy(weight))
        return np.asarray(weight.sum(1))

    def batch(self, place: Tensor) -> tuple[Tensor, tuple[Tensor | None, Tensor]]:
        which = self.order.index_select(0, place)[0]
        y = None if self.y is None else self.y.index_select(0, which)
        rows = self.members.index_select(0, which).reshape(-1)
        return rows, (y, self.weight.index_select(0, place)[0])

    def term(self, seen: tuple[Tensor | None, Tensor], begin: int, n_rows: int) -> Term:
        """The term of a batch whose members are listed from `begin` on."""
        if begin not in self.sets:  # kept, with the tensors that it has on the device
            numbers = begin + np.arange(self.size * self.members.shape[1])
            self.sets[begin] = Sets(numbers.reshape(self.size, -1))
        y, weight = seen
        o = Observations._trusted(self.like.observations.aggregate, self.sets[begin], y, weight)
        return self.make(self.like.family, o, n_rows)


class Recorded:
    """A step without arguments; on CUDA it is recorded as a graph after a few times, and replayed.

    What cannot be recorded is done call by call, and the log says so.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self.step, self.device = step, device
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = EAGER if device.type == "cuda" else math.inf

    def __call__(self) -> None:
        """Does the step."""
        if self.graph is None and self.eager <= 0:
            self.record()
        if self.graph is not None:
            self.graph.replay()
        elif self.eager == math.inf:
            self.step()
        else:
            self.eager -= 1
            here, side = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
            side.wait_stream(here)
            with torch.cuda.stream(side):
                self.step()
            here.wait_stream(side)

    def record(self) -> None:
        """Records the step without doing it; or gives up for good."""
        graph = torch.cuda.CUDAGraph()
        try:
            with warnings.catch_warnings(), torch.cuda.graph(graph):
                warnings.simplefilter("ignore")
                self.step()
        except Exception as error:  # whatever a user's module, or a rule, may raise
            self.eager = math.inf
            logger.info("network: steps are not recorded as a CUDA graph: %s", error)
        else:
            self.graph = graph
