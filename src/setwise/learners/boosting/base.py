"""Boosting from set labels, whichever library grows the trees.

Each round grows a tree (one per output) on the gradient and the diagonal curvature of the rows and
then solves its leaf values jointly; see `leaves`. Rows are never repeated: a row that is in many
sets has one line in the library's table, on which its derivatives add up.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from setwise.learners.base import Fitted, Learner, Model, Task
from setwise.learners.boosting.leaves import Leaves, positive, solve_leaves
from setwise.learners.inputs import take_rows
from setwise.objective import Objective, Point, judge, surely_worse

__all__ = ["Boosting", "Forest"]

GUIDED_ROUNDS = 30  # rounds that lead to the guide before the likelihood takes over
GUIDED_RATE = 0.3
FARTHEST = 4.0  # that a leaf moves logits, before the rate: where sets say little, Newton goes far


class Forest(Model):
    """Trees that grow: what a library has to offer. In the end it is the fitted model."""

    start: NDArray[np.float64]

    @abstractmethod
    def grow(self, gradient: Tensor, curvature: Tensor) -> bool:
        """One more tree per output, from (rows, outputs) derivatives; False where none can grow."""

    @abstractmethod
    def scores(self) -> Tensor:
        """What the trees as the library itself values them add up to, for the rows they grew on."""

    @abstractmethod
    def leaves(self, X: Any = None) -> Leaves:
        """The leaves of the newest trees, for the rows they grew on or for other rows."""

    @abstractmethod
    def newest(self, X: Any) -> NDArray[np.float64]:
        """What the newest trees, as they are now, add to other rows."""

    @abstractmethod
    def write(self, values: list[NDArray[np.float64]]) -> None:
        """Gives the newest trees these leaf values."""

    @abstractmethod
    def finish(self, rounds: int) -> None:
        """Keeps the first rounds only; no tree is grown after this."""


class Boosting(Learner):
    """What the three libraries share; `params` are the library's own."""

    missing: ClassVar[bool] = True
    names_rounds: ClassVar[tuple[str, ...]]
    names_rate: ClassVar[tuple[str, ...]]
    names_patience: ClassVar[tuple[str, ...]]
    names_penalty: ClassVar[tuple[str, ...]]
    refused: ClassVar[dict[str, str]]  # parameters that cannot be passed on, and why

    def __init__(self, *, coupled: bool = True, **params: Any) -> None:
        self.coupled = coupled
        self.params = params

    # scikit-learn's manners, with the library's parameters as if they were the constructor's

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """`coupled`, and the library's parameters as they were given."""
        return {"coupled": self.coupled, **self.params}

    def set_params(self, **params: Any) -> Boosting:
        """Changes `coupled` or any of the library's parameters."""
        self.coupled = params.pop("coupled", self.coupled)
        self.params = {**self.params, **params}
        return self

    def __repr__(self) -> str:
        given = {**({} if self.coupled else {"coupled": False}), **self.params}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"

    def _take(self, params: dict[str, Any], names: tuple[str, ...], default: Any) -> Any:
        """Removes a parameter that may go by several names."""
        found = [name for name in names if name in params]
        if len(found) > 1:
            raise ValueError(f"{self!r}: {found[0]} and {found[1]} are the same parameter")
        return params.pop(found[0]) if found else default

    @abstractmethod
    def _plant(self, X: Any, task: Task, rate: float, penalty: float, params: Any) -> Forest:
        """An empty forest over these rows."""

    def fit(self, task: Task) -> Fitted:
        """Boosts until the rounds are over, or held-out likelihood stops improving."""
        params = dict(self.params)
        for name, why in self.refused.items():
            if name in params:
                raise ValueError(f"{type(self).__name__}({name}=…): {why}")
        rounds = int(self._take(params, self.names_rounds, 100))
        # Newton steps on a likelihood that flattens out are short: a larger rate makes up for it.
        usual = 0.1 if task.objective.quadratic else 0.3
        rate = float(self._take(params, self.names_rate, usual))
        patience = self._take(params, self.names_patience, 50)
        penalty = float(self._take(params, self.names_penalty, self.default_penalty))
        X, objective, guide = task.X, task.objective, task.guide
        if (rows := _order(objective)) is not None:
            X, objective = take_rows(X, rows), objective.over(rows)
            guide = None if guide is None else guide[torch.from_numpy(rows)]
        forest = self._plant(X, task, rate, penalty, params)
        run = _Run(forest, objective, task, rate, penalty, self.coupled)
        best, best_round, begin = -np.inf, 0, run.point.value
        best_sets: Tensor | None = None
        kept = 0, task.shared
        with _few_threads(objective), task.progress.running(type(self).__name__, rounds):
            if guide is not None:
                run.follow(guide)
            led = run.rounds
            while run.rounds < rounds + led and run.step():
                figures = {"train": -run.point.value / objective.total_weight}
                if run.eval is None:
                    task.progress.step(**figures)
                    kept = run.rounds, run.shared
                    continue
                figures["valid"], each = run.judge()
                task.progress.step(**figures)
                if best_sets is None or figures["valid"] > best:
                    best, best_round, best_sets = figures["valid"], run.rounds, each
                if not surely_worse(each, best_sets, run.eval_rows):
                    kept = run.rounds, run.shared
                if patience and run.rounds - best_round >= int(patience):
                    break
        if not self.coupled and not run.point.value <= begin:
            warnings.warn(
                f"{self!r} made the likelihood of the sets it learned from worse: without coupled "
                f"leaves a step is too long where sets are large. Leave coupled=False out, or give "
                f"a smaller {self.names_rate[0]}",
                ConvergenceWarning,
                stacklevel=3,
            )
        rounds, shared = kept if kept[0] else (run.rounds, run.shared)
        forest.finish(rounds)
        return Fitted(forest, shared, steps=rounds - led)

    def for_steps(self, steps: int) -> Boosting:
        """The same with so many rounds."""
        others = {k: v for k, v in self.params.items() if k not in self.names_rounds}
        return type(self)(coupled=self.coupled, **{self.names_rounds[0]: steps, **others})

    default_penalty: ClassVar[float] = 0.0


def _order(objective: Objective) -> NDArray[np.int64] | None:
    """The rows to grow trees on, None for all as they are: rows in no set would blur the trees.

    Rows that are in equally many sets follow one another, which makes sums over a row's sets fast.
    """
    times = np.zeros(objective.n_rows, np.int64)
    for o in objective.observations:
        times += np.bincount(o.sets.indices, minlength=objective.n_rows)
    if times.min() == times.max():
        return None
    used = np.flatnonzero(times)
    order: NDArray[np.int64] = used[np.argsort(times[used], kind="stable")]
    return order


@contextmanager
def _few_threads(objective: Objective) -> Iterator[None]:
    """Torch keeps to one thread beside a library that has threads of its own.

    Where the objective is quadratic torch has little to do, and its idle threads would slow down
    the library's by a third.
    """
    threads = torch.get_num_threads()
    if objective.quadratic:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Run:
    """The state of one fit: raw parameters of all rows, and what the objective says there."""

    def __init__(
        self,
        forest: Forest,
        objective: Objective,
        task: Task,
        rate: float,
        penalty: float,
        coupled: bool,
    ) -> None:
        self.forest, self.objective = forest, objective
        self.rate, self.penalty, self.coupled = rate, penalty, coupled
        self.free = task.free and objective.n_shared > 0
        self.start = task.raw
        self.raw = task.raw.expand(objective.n_rows, -1).clone()
        self.shared = task.shared
        self.intercept = task.intercept
        self.change: Tensor | None = None  # of the spread, that suits the held-out sets best
        self.eval = None if task.eval is None else task.eval[1]
        if task.eval is not None:
            self.eval_X = task.eval[0]
            named = [o.sets.indices for o in task.eval[1].observations]
            self.eval_rows = len(np.unique(np.concatenate(named)))
            self.eval_raw = task.raw.expand(task.eval[1].n_rows, -1).clone()
        self.rounds = 0
        self.weighed: tuple[Tensor, Tensor] | None = None  # unit, and the shared numbers there
        self.point: Point = objective.at(self.raw, self.shared)

    def judge(self) -> tuple[float, Tensor]:
        """What the held-out sets say of the locations as they are now, all together and each."""
        assert self.eval is not None
        found = judge(self.eval, self.eval_raw, self.shared, self.intercept, self.change)
        self.change = found.change
        return found.score, found.sets

    def step(self) -> bool:
        """One round; False where nothing can be gained any more."""
        unit = self._weigh()
        if not self.forest.grow(self.point.gradient / unit, self.weights):
            return False
        turn = self._shared_step()
        if not self.coupled:
            self.rounds += 1
            self.raw, self.shared = self.start + self.forest.scores(), self.shared + turn
            self.point = self.objective.at(self.raw, self.shared)
            if self.eval is not None:
                self.eval_raw = self.eval_raw + torch.from_numpy(self.forest.newest(self.eval_X))
            return True
        leaves = self.forest.leaves()
        farthest = FARTHEST if self.objective.of_classes else math.inf
        curvature, penalty = unit * self.weights, self.penalty * unit
        values = solve_leaves(self.point, leaves, curvature, penalty, farthest)
        length = self.rate
        for _ in range(8):
            raw = self.raw + leaves.expand(length * values)
            shared = self.shared + turn
            point = self.objective.at(raw, shared)
            if point.value <= self.point.value + 1e-9 * abs(self.point.value):
                break
            length, turn = 0.25 * length, 0.25 * turn
        else:  # no step helps: leave the tree without effect
            self._commit(leaves, torch.zeros_like(values))
            return False
        self.raw, self.shared, self.point = raw, shared, point
        self._commit(leaves, length * values)
        return True

    def _weigh(self) -> Tensor:
        """Sets `weights`, the curvature of the rows in units of its mean, and gives that mean.

        In these units the library's own parameters keep their meaning. Where the shared scale is
        all that the curvature depends on, the weights never change.
        """
        if self.weighed is not None and self.objective.separable:
            unit, shared = self.weighed
            return torch.mul(unit, (2 * (shared - self.shared)).sum().exp())
        curvature = positive(self.point.curvature())
        unit = curvature.mean(0)
        self.weighed, self.weights = (unit, self.shared), curvature / unit
        return unit

    def _shared_step(self) -> Tensor:
        """A Newton step of the shared parameters, each on its own and not too far."""
        if not self.free:
            return torch.zeros_like(self.shared)
        turn = -self.point.shared_gradient / self.point.shared_curvature().abs().clamp_min(1e-12)
        return turn.clamp(-0.3, 0.3)

    def _commit(self, leaves: Leaves, values: Tensor) -> None:
        self.forest.write([v.numpy() for v in values.split(leaves.counts)])
        self.rounds += 1
        if self.eval is not None:
            self.eval_raw = self.eval_raw + torch.from_numpy(self.forest.newest(self.eval_X))

    def follow(self, guide: Tensor) -> None:
        """Leads the first trees to the guide, by least squares."""
        for _ in range(GUIDED_ROUNDS):
            gradient = self.raw - guide
            ones = torch.ones_like(gradient)
            if not self.forest.grow(gradient, ones):
                break
            leaves = self.forest.leaves()
            values = -GUIDED_RATE * leaves.reduce(gradient) / leaves.reduce(ones).clamp_min(1)
            self.raw = self.raw + leaves.expand(values)
            self._commit(leaves, values)
        if not self.coupled:  # from here on the library's own values are added to these
            self.start = self.raw - self.forest.scores()
        self.point = self.objective.at(self.raw, self.shared)
