"""What a learner is: it sees a task, never an aggregate, and gives back a model of raw parameters.

A *learner* holds a user's choices (`Linear(alpha=1.0)`) and is never changed by a fit. Its `fit`
takes a `Task` (features and an objective over the rows' raw parameters) and returns a `Fitted`: a
*model* that maps features to raw parameters, the shared parameters, and what happened on the way.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from setwise.learners.progress import Progress
from setwise.objective import Intercept, Objective

__all__ = ["Fitted", "Learner", "Model", "Task", "learners", "models", "resolve"]


@dataclasses.dataclass
class Task:
    """What there is to learn.

    `raw` and `shared` are the intercept-only maximum likelihood, where every learner begins.
    Where `free` is false the observations cannot tell the shared parameters, which stay as given.
    `restarts` is how many beginnings are worth trying: more than one where classes can be swapped
    or collapse. `guide`, where given, is a first guess of the raw parameters of every row that
    breaks that symmetry: a learner that begins at a constant should be led there first.
    """

    X: Any
    objective: Objective
    raw: Tensor  # (outputs,)
    shared: Tensor  # (number of shared parameters,)
    free: bool = True
    eval: tuple[Any, Objective] | None = None
    restarts: int = 1
    guide: Tensor | None = None  # (rows, outputs)
    seed: int = 0
    progress: Progress = dataclasses.field(default_factory=Progress)

    @property
    def intercept(self) -> Intercept:
        """`raw` and `shared` as what they are."""
        return Intercept(self.raw, self.shared)


class Model(ABC):
    """A fitted map from features to raw parameters."""

    @abstractmethod
    def raw(self, X: Any) -> NDArray[np.float64]:
        """Raw parameters of each row, (rows, outputs)."""

    @abstractmethod
    def save(self, folder: Path) -> dict[str, Any]:
        """Writes its files into the folder; returns what else `load` needs, fit for JSON."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> Model:
        """The model that `save` wrote; runs no code from the files."""

    def importance(self) -> NDArray[np.float64] | None:
        """How much each feature matters, where the learner knows; adds up to 1."""
        return None


class Fitted(NamedTuple):
    """What a fit gives back."""

    model: Model
    shared: Tensor
    converged: bool = True
    steps: int = 0  # rounds or epochs that the model took, where the learner counts them


class Learner(BaseEstimator, ABC):  # type: ignore[misc]
    """A way to turn features into raw parameters; parameters are stored as given."""

    missing: ClassVar[bool] = False  # takes NaN in X
    sparse: ClassVar[bool] = False  # takes scipy sparse X
    stops: ClassVar[bool] = True  # learns step by step, until held-out sets say stop

    @abstractmethod
    def fit(self, task: Task) -> Fitted:
        """Fits a model to the task."""

    def for_steps(self, steps: int) -> Learner:
        """The learner that takes so many steps, where it takes any."""
        return self


def _concrete(root: type) -> list[type]:
    found, todo = [], [root]
    while todo:
        cls = todo.pop()
        todo.extend(cls.__subclasses__())
        if not getattr(cls, "__abstractmethods__", None):
            found.append(cls)
    return sorted(set(found), key=lambda cls: cls.__name__)


def learners() -> dict[str, type[Learner]]:
    """Every learner by its lower-case name."""
    return {cls.__name__.lower(): cls for cls in _concrete(Learner)}


def models() -> dict[str, type[Model]]:
    """Every kind of model by its class name: what a saved file may name."""
    return {cls.__name__: cls for cls in _concrete(Model)}


def resolve(learner: str | Learner) -> Learner:
    """The learner itself, or the default one of that name."""
    if isinstance(learner, Learner):
        return learner
    known = learners()
    if isinstance(learner, type) and issubclass(learner, Learner):
        raise TypeError(f"{learner.__name__} is a class: call it, as in {learner.__name__}()")
    names = ", ".join(sorted(known))
    if not isinstance(learner, str):
        raise TypeError(
            f"a learner is a name or an object such as setwise.Linear(), got {learner!r}; known "
            f"names are {names}. Wrap a scikit-learn estimator: setwise.EM({learner!r}); a torch "
            f"module: setwise.Network(module)"
        )
    name = learner.lower().replace("_", "").replace("-", "").replace(" ", "")
    if name not in known:
        raise ValueError(f"unknown learner {learner!r}; known are {names}")
    if name == "em":
        raise ValueError(
            "EM needs a scikit-learn estimator: use setwise.EM(RandomForestRegressor())"
        )
    return known[name]()
