"""Boosting from set labels, whichever library grows the trees.

Each round grows a tree (one per output) on the gradient and the diagonal curvature of the rows and
then solves its leaf values jointly; see `leaves`. Rows are never repeated: a row that is in many
sets has one line in the library's table, on which its derivatives add up.
"""

from __future__ import annotations

import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from setwise._peers import ALONE, Peers
from setwise._threads import torch_at_most
from setwise.learners.base import Fitted, Learner, Model, Task
from setwise.learners.boosting.leaves import Leaves, positive, solve_leaves
from setwise.learners.boosting.trees import Trees
from setwise.learners.inputs import take_rows
from setwise.learners.interruption import stopped
from setwise.objective import HeldOut, Objective, Point
from setwise.stored import Stored

__all__ = ["Boosting", "Chosen", "Forest", "library"]

REFUSED = {
    "objective loss_function": "the objective is the likelihood of the observations",
    "monotone_constraints": "leaf values are solved jointly and would not respect them",
}
LIBRARIES = ("lightgbm", "xgboost", "catboost", "_catboost")
GUIDED_ROUNDS = 30  # rounds that lead to the guide before the likelihood takes over
GUIDED_RATE = 0.3
FARTHEST = 4.0  # a leaf's largest change of logits, before the rate: Newton steps can be huge


class Chosen(NamedTuple):
    """Parameters that all three libraries have, by other names."""

    rate: float
    penalty: float
    seed: int
    threads: int
    peers: Peers = ALONE  # whose rows the trees grow on


class Forest(Model):
    """Trees that grow, as a library offers them.

    `start` is added to the trees' sums. `values` are the leaf values of each round, one array per
    output: those of the library until they are replaced, which the library learns in `finish`.
    """

    grown_on: Callable[[], Any]  # the rows, which are not kept
    mean: Callable[[Tensor], Tensor] = staticmethod(lambda rows: rows.mean(0))  # over all rows
    reads_float32: ClassVar[bool] = False  # features, before it compares them
    placeholder: float = math.nan  # a number that stands for missing values

    def __init__(self, start: NDArray[np.float64]) -> None:
        self.start = start
        self.values: list[list[NDArray[np.float64]]] = []

    @abstractmethod
    def grow(self, gradient: Tensor, curvature: Tensor) -> Leaves | None:
        """One more tree per output, from (rows, outputs) derivatives; None where none can grow."""

    @abstractmethod
    def leaves(self, X: Any) -> Leaves:
        """The leaves of the newest trees for other rows than those they grew on."""

    @abstractmethod
    def arrays(self) -> Trees:
        """The trees as arrays."""

    @abstractmethod
    def finish(self, rounds: int) -> Forest:
        """The fitted model: the first rounds only, with the leaf values in `values`."""

    def close(self) -> None:
        """Leaves the other processes, if there were any."""
        return

    def newest(self, X: Any) -> Tensor:
        """The current contribution of the newest trees to other rows."""
        return self.leaves(X).expand(torch.from_numpy(np.concatenate(self.values[-1])))


def library(name: str, learner: str) -> Any:
    """An optional package, imported when it is first used."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the learner {learner} needs the package {name}: pip install setwise[{name}]"
        ) from error


@contextmanager
def _in_our_words(learner: Learner) -> Iterator[None]:
    """Errors of a library as one sentence, without places in its own code."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in LIBRARIES:
            raise
        said = str(error).partition("\n")[0].removesuffix(" .")
        said = re.sub(r"^\[\d\d:\d\d:\d\d\] |\S+\.(cc|cpp|h):\d+: | at /\S+, line \d+", "", said)
        raise ValueError(f"{type(learner).__name__} says: {said}") from error


class Boosting(Learner):
    """The common part of the three libraries; `params` are the library's own."""

    missing: ClassVar[bool] = True
    default_penalty: ClassVar[float] = 0.0
    names_rounds: ClassVar[tuple[str, ...]]
    names_rate: ClassVar[tuple[str, ...]]
    names_patience: ClassVar[tuple[str, ...]]
    names_penalty: ClassVar[tuple[str, ...]]
    names_seed: ClassVar[tuple[str, ...]]
    names_threads: ClassVar[tuple[str, ...]]
    refused: ClassVar[dict[str, str]]  # names of parameters that cannot be passed on, and why

    def __init__(self, *, coupled: bool = True, **params: Any) -> None:
        self.coupled = coupled
        self.params = params

    # scikit-learn's interface, with the library's parameters as if they were the constructor's

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
    def _plant(self, X: Any, start: NDArray[np.float64], chosen: Chosen, params: Any) -> Forest:
        """An empty forest over these rows; `params` is a dict of its own that may be changed."""

    @contextmanager
    def together(self, peers: Peers) -> Iterator[None]:
        """While trees grow on the rows of several processes."""
        yield

    def fit(self, task: Task) -> Fitted:
        """Boosts until the rounds are over, or held-out likelihood stops improving."""
        if task.place is not None:
            return task.place.fit(self, task)
        with _in_our_words(self):
            return self._boost(task)

    def _boost(self, task: Task) -> Fitted:
        params = dict(self.params)
        for names, why in {**REFUSED, **self.refused}.items():
            for name in {*names.split()} & {*params}:
                raise ValueError(f"{type(self).__name__}({name}=…): {why}")
        rounds = int(self._take(params, self.names_rounds, 100))
        # Newton steps on a likelihood that flattens out are short: a larger rate makes up for it.
        usual = 0.1 if task.objective.quadratic else 0.3
        patience = self._take(params, self.names_patience, 50)
        chosen = Chosen(
            rate=float(self._take(params, self.names_rate, usual)),
            penalty=float(self._take(params, self.names_penalty, self.default_penalty)),
            seed=int(self._take(params, self.names_seed, task.seed % (2**31 - 1))),
            threads=int(self._take(params, self.names_threads, torch.get_num_threads())),
            peers=task.objective.peers,
        )
        objective, guide = task.objective.whole(), task.guide
        table = partial(_rows, task.X, rows := _order(objective, task.X))
        forest = self._plant(table(), task.raw.numpy(), chosen, params)
        forest.grown_on = table
        if rows is not None:
            objective = objective.over(rows)
            guide = None if guide is None else guide[torch.from_numpy(rows)]
        forest.mean = objective.mean
        run = _Run(forest, objective, task, chosen, self.coupled)
        held = None if task.eval is None else HeldOut(task.eval[1], task.intercept)
        best_round, begin = 0, run.point.value
        kept = 0, task.shared
        bar = task.progress.running(type(self).__name__, rounds)
        with _few_threads(objective), closing(forest), bar:
            if guide is not None:
                run.follow(guide)
            led = run.rounds
            while run.rounds < rounds + led and run.step():
                figures = {"train": -run.point.value / objective.total_weight}
                worse = False
                if held is not None:
                    judged = held.judge(run.eval_raw, run.shared)
                    figures["valid"], *others = objective.peers.first(*judged)
                    better, worse = map(bool, others)
                    best_round = run.rounds if better else best_round
                task.progress.step(**figures)
                if not worse:
                    kept = run.rounds, run.shared
                if held and patience and run.rounds - best_round >= int(patience):
                    break
                if stopped():
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
        value = run.point.value if held is None else None
        return Fitted(forest.finish(rounds), shared, steps=rounds - led, value=value)

    def threads(self, task: Task) -> int | None:
        """As many as the user gave the library, else as many as the table is worth."""
        given = [self.params[name] for name in self.names_threads if name in self.params]
        if not given:
            return super().threads(task)
        return int(given[0]) if int(given[0]) > 0 else None

    def for_steps(self, steps: int) -> Boosting:
        """The same learner with this number of rounds."""
        others = {k: v for k, v in self.params.items() if k not in self.names_rounds}
        return type(self)(coupled=self.coupled, **{self.names_rounds[0]: steps, **others})


def _order(objective: Objective, X: Any) -> NDArray[np.int64] | None:
    """The rows that sets name, None for all rows: trees must not be grown on the others.

    Rows that are in equally many sets follow one another, which makes sums over a row's sets fast;
    but those that are read from files come as they are there.
    """
    times = objective.times_named
    if times.min() == times.max():
        return None
    used = np.flatnonzero(times)
    if isinstance(X, Stored):
        return None if len(used) == len(times) else used
    order: NDArray[np.int64] = used[np.argsort(times[used], kind="stable")]
    return order


def _rows(X: Any, rows: NDArray[np.int64] | None) -> Any:
    if rows is None:
        return X
    return X.only(rows) if isinstance(X, Stored) else take_rows(X, rows)


def _few_threads(objective: Objective) -> AbstractContextManager[None]:
    """One thread for torch where it has little to do: idle threads slow down the library's."""
    return torch_at_most(1) if objective.quadratic else nullcontext()


class _Run:
    """The state of one fit: raw parameters of all rows, and the objective's derivatives there."""

    def __init__(
        self, forest: Forest, objective: Objective, task: Task, chosen: Chosen, coupled: bool
    ) -> None:
        self.forest, self.objective = forest, objective
        self.chosen, self.coupled = chosen, coupled
        self.learned = task.learned
        self.raw = task.raw.expand(objective.n_rows, -1).clone()
        self.shared = task.shared
        self.eval_X = None
        if task.eval is not None:
            self.eval_X = task.eval[0]
            self.eval_raw = task.raw.expand(task.eval[1].n_rows, -1)
        self.rounds = 0
        self.weighed: tuple[Tensor, Tensor] | None = None  # unit, and the shared numbers there
        self.point: Point = objective.at(self.raw, self.shared)

    def step(self) -> bool:
        """One round; False where nothing can be gained any more."""
        unit = self._weigh()
        leaves = self.forest.grow(self.point.gradient / unit, self.weights)
        if leaves is None:
            return False
        turn = self._shared_step()
        if self.coupled:
            farthest = FARTHEST if self.objective.of_classes else math.inf
            penalty = self.chosen.penalty * unit
            values = solve_leaves(self.point, leaves, self.weights, penalty, farthest, unit)
            values = self.chosen.rate * values
        else:
            values = torch.from_numpy(np.concatenate(self.forest.values[-1]))
        for _ in range(8):
            raw = self.raw + leaves.expand(values)
            shared = self.shared + turn
            point = self.objective.at(raw, shared)
            limit = self.point.value + 1e-9 * abs(self.point.value)
            if point.value <= limit or not self.coupled:
                self.raw, self.shared, self.point = raw, shared, point
                self._commit(leaves, values)
                return True
            values, turn = 0.25 * values, 0.25 * turn
        self._commit(leaves, torch.zeros_like(values))  # no step helps: the tree has no effect
        return False

    def _weigh(self) -> Tensor:
        """Sets `weights`, the curvature of the rows in units of its mean, and returns that mean.

        In these units the library's own parameters keep their meaning. Where the curvature depends
        on the shared scale only, the weights never change.
        """
        if self.weighed is not None and self.objective.separable:
            unit, shared = self.weighed
            return torch.mul(unit, (2 * (shared - self.shared)).sum().exp())
        curvature = positive(self.point.curvature(), self.objective)
        unit = self.objective.mean(curvature)
        self.weighed, self.weights = (unit, self.shared), curvature / unit
        return unit

    def _shared_step(self) -> Tensor:
        """A Newton step of the shared parameters, each on its own and not too far."""
        out, which = torch.zeros_like(self.shared), self.learned
        if which.start == which.stop:
            return out
        turn = -self.point.shared_gradient / self.point.shared_curvature().abs().clamp_min(1e-12)
        out[which] = turn[which].clamp(-0.3, 0.3)
        return out

    def _commit(self, leaves: Leaves, values: Tensor) -> None:
        self.forest.values[-1] = [v.numpy() for v in values.split(leaves.counts)]
        self.rounds += 1
        if self.eval_X is not None:
            peers, n = self.objective.peers, len(self.eval_raw)
            self.eval_raw = self.eval_raw + peers.gather(self.forest.newest(self.eval_X), n)

    def follow(self, guide: Tensor) -> None:
        """Leads the first trees to the guide, by least squares."""
        ones, add = torch.ones_like(self.raw), self.objective.peers.sum
        for _ in range(GUIDED_ROUNDS):
            gradient = self.raw - guide
            leaves = self.forest.grow(gradient, ones)
            if leaves is None:
                break
            size = add(leaves.reduce(ones)).clamp_min(1)
            values = -GUIDED_RATE * add(leaves.reduce(gradient)) / size
            self.raw = self.raw + leaves.expand(values)
            self._commit(leaves, values)
        self.point = self.objective.at(self.raw, self.shared)
