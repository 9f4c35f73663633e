"""What a learner is: it sees a task, never an aggregate, and gives back a model of raw parameters.

A *learner* holds a user's choices (`Linear(alpha=1.0)`) and is never changed by a fit. Its `fit`
takes a `Task` (features and an objective over the rows' raw parameters) and returns a `Fitted`: a
*model* that maps features to raw parameters, the shared parameters, and what happened on the way.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from setwise._peers import ALONE, Peers
from setwise._subclasses import concrete_subclasses, spelled
from setwise._threads import worth
from setwise.learners.inputs import n_features, n_rows
from setwise.learners.progress import Progress
from setwise.objective import Intercept, Objective, Stream

if TYPE_CHECKING:
    from setwise.identifiability import Identifiability

__all__ = ["Fitted", "Learner", "Model", "Place", "Task", "learners", "models", "resolve", "shares"]


@dataclasses.dataclass
class Task:
    """What there is to learn.

    `raw` and `shared` are the intercept-only maximum likelihood, where every learner begins. Where
    `free` is false the observations do not determine the shared parameters of the family, which
    stay as given: `learned` are the others. `restarts` is how many random starts are worth trying:
    more than one where classes can be swapped or collapse. `guide`, where given, is a first guess
    of the raw parameters of every row that breaks that symmetry: a learner that begins at a
    constant should go there first.
    """

    X: Any
    objective: Objective
    raw: Tensor  # (outputs,)
    shared: Tensor  # (number of shared parameters,)
    free: bool = True
    identifiability: Identifiability | None = None  # what the labels leave open
    eval: tuple[Any, Objective] | None = None
    restarts: int = 1
    guide: Tensor | None = None  # (rows, outputs)
    seed: int = 0
    progress: Progress = dataclasses.field(default_factory=Progress)
    place: Place | None = None  # where to fit, if not here
    stage: str = ""  # which of several fits to parts of the sets this is

    def in_memory(self) -> Task:
        """The task itself, or one of some sets whose rows are in memory, drawn at random."""
        if not isinstance(self.objective, Stream):
            return self
        X, part = self.objective.some(np.random.default_rng(self.seed))
        return dataclasses.replace(self, X=X, objective=part)

    @property
    def learned(self) -> slice:
        """Which of the shared parameters are learned; empty where none are."""
        return self.objective.learned(self.free)

    @property
    def on_trial(self) -> bool:
        """Whether held-out sets judge what comes of this fit, and say so where it is no good."""
        return "-part" in self.stage

    @property
    def intercept(self) -> Intercept:
        """`raw` and `shared` as the model without features."""
        return Intercept(self.raw, self.shared)


class Place(Protocol):
    """Other processes, where a learner that `distributes` is fitted."""

    def table(self, X: Any) -> Any:
        """X as learners read it, also if it is held by the other processes."""
        ...

    def fit(self, learner: Any, task: Task) -> Fitted:
        """The result of `learner.fit(task)`, computed by those processes."""
        ...


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
        """The model that `save` wrote; runs no code from the files.

        It may take `module` (a torch module of the user's own) and `trusted` by name; see
        `setwise.load`.
        """

    @classmethod
    def reopen(cls, folder: Path, facts: dict[str, Any], **options: Any) -> Model:
        """`load`, given only the options that it takes."""
        taken = inspect.signature(cls.load).parameters
        return cls.load(folder, facts, **{k: v for k, v in options.items() if k in taken})

    def importance(self) -> NDArray[np.float64] | None:
        """How much each feature matters, where the learner knows; adds up to 1."""
        return None


def shares(gains: Any) -> NDArray[np.float64]:
    """What each feature has gained as a share of the sum."""
    found = np.asarray(gains, np.float64)
    return np.asarray(found / max(found.sum(), 1e-300))


class Fitted(NamedTuple):
    """What a fit gives back."""

    model: Model
    shared: Tensor
    converged: bool = True
    steps: int = 0  # rounds or epochs that the model took, where the learner counts them
    value: float | None = None  # of the objective, where the learner knows it


class Learner(BaseEstimator, ABC):  # type: ignore[misc]
    """A way to turn features into raw parameters; parameters are stored as given."""

    missing: ClassVar[bool] = False  # takes NaN in X
    sparse: ClassVar[bool] = False  # takes scipy sparse X
    stored: ClassVar[bool] = False  # takes X that is not in memory, see `Stored`
    stops: ClassVar[bool] = True  # learns step by step and is stopped by held-out sets
    distributes: ClassVar[bool] = False  # can be fitted at a `place`

    @abstractmethod
    def fit(self, task: Task) -> Fitted:
        """Fits a model to the task."""

    def peers(self) -> Peers:
        """The processes that call `fit` together, each with the same task."""
        return ALONE

    def for_steps(self, steps: int) -> Learner:
        """The same learner with this number of steps, if it takes steps."""
        return self

    def for_part(self, share: float) -> Learner:
        """The same learner for sets with this share of all weight, as held as by all sets."""
        return self

    def candidates(self, task: Task) -> list[Learner]:
        """The learners among which held-out sets choose: itself, where nothing was left open."""
        return [self]

    def patience_for(self, task: Task) -> float:
        """Seconds after which no further candidate is begun."""
        return math.inf

    def threads(self, task: Task) -> int | None:
        """The number of threads worth using for this fit; None where the user has chosen."""
        features = n_features(task.X)
        return worth(math.inf if features is None else n_rows(task.X) * features)


def learners() -> dict[str, type[Learner]]:
    """Every learner by its lower-case name."""
    return {cls.__name__.lower(): cls for cls in concrete_subclasses(Learner)}


def models() -> dict[str, type[Model]]:
    """Every kind of model by its class name: what a saved file may name."""
    return {cls.__name__: cls for cls in concrete_subclasses(Model)}


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
    name = spelled(learner)
    if name not in known:
        raise ValueError(f"unknown learner {learner!r}; known are {names}")
    if name == "em":
        raise ValueError(
            "EM needs a scikit-learn estimator: use setwise.EM(RandomForestRegressor())"
        )
    return known[name]()
