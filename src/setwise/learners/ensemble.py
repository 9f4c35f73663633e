"""Several models as one: resampled copies of a learner, or different learners, averaged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from setwise._facts import checked
from setwise._peers import Peers
from setwise.distributions import Family
from setwise.learners.base import Fitted, Learner, Model, Task, models, resolve
from setwise.learners.interruption import stopped
from setwise.learners.progress import Progress
from setwise.stored import Stored

if TYPE_CHECKING:
    from setwise.identifiability import Identifiability

__all__ = ["Blend", "Ensemble", "EnsembleModel", "Match", "at_shared", "joined", "match"]

FAINT = 1e-9  # probabilities below this count as this when classes are matched


class Ensemble(Learner):
    """Copies of a learner, each fitted to sets drawn with replacement, and their average.

    Averages have smaller errors than their members, and the spread of the members measures the
    uncertainty: `predict(X, return_std=True)`. With `resample=None` all copies see all sets and
    differ by their random numbers only. What set labels cannot tell (the order of classes, a shift)
    may differ from copy to copy; each is matched to the first before the average is taken.

    Copies are fitted one after another, or as `joblib.parallel_config` says: by several processes,
    or by the workers of a Dask cluster.

    Breiman, "Bagging predictors", Machine Learning 1996.

    >>> Ensemble("linear", n=5)
    Ensemble(learner='linear', n=5)
    """

    def __init__(
        self, learner: str | Learner = "lightgbm", n: int = 10, resample: str | None = "sets"
    ) -> None:
        self.learner = learner
        self.n = n
        self.resample = resample

    @property
    def missing(self) -> bool:  # type: ignore[override]
        """Whether the learner takes NaN in X."""
        return resolve(self.learner).missing

    @property
    def sparse(self) -> bool:  # type: ignore[override]
        """Whether the learner takes scipy sparse X."""
        return resolve(self.learner).sparse

    @property
    def stored(self) -> bool:  # type: ignore[override]
        """Whether the learner takes X that is not in memory."""
        return resolve(self.learner).stored

    @property
    def distributes(self) -> bool:  # type: ignore[override]
        """Whether the learner can be fitted by several processes."""
        return resolve(self.learner).distributes

    def peers(self) -> Peers:
        """The processes that the learner is fitted by."""
        return resolve(self.learner).peers()

    def fit(self, task: Task) -> Fitted:
        """Fits the copies one after another."""
        if not (isinstance(self.n, int | np.integer) and self.n >= 1):
            raise ValueError(f"Ensemble: n is the number of copies, at least 1; got {self.n!r}")
        if self.resample not in ("sets", None):
            raise ValueError(f'Ensemble: resample is "sets" or None, got {self.resample!r}')
        learner = resolve(self.learner)
        tasks = []
        seeds = np.random.SeedSequence(task.seed).generate_state(self.n)
        for i, seed in enumerate(seeds):
            objective = task.objective
            if self.resample == "sets":
                objective = objective.resampled(np.random.default_rng(seed))
            more: dict[str, Any] = {"seed": int(seed % 2**31), "stage": f"{task.stage}-copy{i}"}
            tasks.append(dataclasses.replace(task, objective=objective, **more))
        fitted = _each([learner] * self.n, tasks, f"Ensemble of {self.n} {type(learner).__name__}")
        return joined(fitted, np.full(len(fitted), 1 / len(fitted)), task)

    def for_steps(self, steps: int) -> Ensemble:
        """The same with a learner that takes so many steps."""
        return Ensemble(resolve(self.learner).for_steps(steps), self.n, self.resample)

    def for_part(self, share: float) -> Ensemble:
        """The same with a learner for a part of the sets."""
        return Ensemble(resolve(self.learner).for_part(share), self.n, self.resample)


class Blend(Learner):
    """Different learners, and the average of what they find, with a weight each.

    >>> Blend(["linear", "lightgbm"], [0.5, 0.5])
    Blend(learners=['linear', 'lightgbm'], weights=[0.5, 0.5])
    """

    def __init__(
        self,
        learners: Sequence[str | Learner] = ("linear", "lightgbm"),
        weights: Sequence[float] | None = None,
    ) -> None:
        self.learners = learners
        self.weights = weights

    @property
    def stored(self) -> bool:  # type: ignore[override]
        """Whether all learners take X that is not in memory."""
        return all(resolve(learner).stored for learner in self.learners)

    def fit(self, task: Task) -> Fitted:
        """Fits the learners one after another."""
        learners = [resolve(learner) for learner in self.learners]
        weights = np.asarray(self.weights or [1.0] * len(learners), np.float64)
        if not len(learners) or len(weights) != len(learners) or not (weights > 0).all():
            raise ValueError(
                f"Blend: one positive weight for each of {len(learners)} learners is expected, got "
                f"{self.weights!r}"
            )
        fitted = _each(learners, [task] * len(learners), "Blend")
        weights = weights[: len(fitted)]
        return joined(fitted, weights / weights.sum(), task)

    def for_part(self, share: float) -> Blend:
        """The same with learners for a part of the sets."""
        return Blend([resolve(one).for_part(share) for one in self.learners], self.weights)


def _each(learners: Sequence[Learner], tasks: Sequence[Task], what: str) -> list[Fitted]:
    progress, found = tasks[0].progress, []
    # What is fitted by other processes, or is read from files, is not for further processes.
    here = tasks[0].place is not None or isinstance(tasks[0].X, Stored)
    here = here or any(learner.peers().size > 1 for learner in learners)
    with progress.running(what, len(learners)):
        for one in joblib.Parallel(1 if here else None, return_as="generator")(
            joblib.delayed(_fitted)(
                learner, task.X, dataclasses.replace(task, X=None, progress=Progress(0))
            )
            for learner, task in zip(learners, tasks, strict=True)
        ):
            found.append(one)
            progress.advance()
            if stopped():  # a copy that is not complete is kept where it is the only one
                return found[: max(1, len(found) - 1)]
    return found


def _fitted(learner: Learner, X: Any, task: Task) -> Fitted:
    return learner.fit(dataclasses.replace(task, X=X))


def joined(fitted: Sequence[Fitted], weights: NDArray[np.float64], task: Task) -> Fitted:
    """The average of models, matched on the rows of the task."""
    family, own = task.objective.family, [one.shared.detach().double().cpu() for one in fitted]
    shared = sum((w * s for w, s in zip(weights, own, strict=True)), torch.zeros_like(own[0]))
    none = torch.zeros(1, len(family.outputs), dtype=torch.float64)
    offsets = [at_shared(family, none, numbers, shared) for numbers in own]
    X = next(task.X.batches()) if isinstance(task.X, Stored) else task.X
    raws = [torch.from_numpy(m.model.raw(X)) + o for m, o in zip(fitted, offsets, strict=True)]
    matches = [
        dataclasses.replace(match(task.identifiability, raws[0], raw), offset=tuple(o[0].tolist()))
        for raw, o in zip(raws, offsets, strict=True)
    ]
    model = EnsembleModel(
        [one.model for one in fitted], weights.tolist(), matches, task.objective.family.outputs
    )
    taken = [one.steps for one in fitted if one.steps]  # linear models take none
    steps = round(float(np.mean(taken))) if taken else 0
    return Fitted(model, shared, all(one.converged for one in fitted), steps)


def average(outputs: Sequence[str], raws: Tensor, weights: Sequence[float]) -> Tensor:
    """The average of raw parameters, (models, rows, outputs), as parameters.

    Classes are averaged as probabilities, logarithms as what they are the logarithms of.

    >>> average(["log_rate"], torch.tensor([[[0.0]], [[math.log(3.0)]]]), [0.5, 0.5]).exp().round()
    tensor([[2.]])
    """
    share = torch.tensor(weights, dtype=raws.dtype)[:, None, None]
    if outputs[0].startswith("logit_"):
        return (raws.log_softmax(2) + share.log()).logsumexp(0)
    logs = torch.tensor([name.startswith("log_") for name in outputs])
    return torch.where(logs, (raws + share.log()).logsumexp(0), (share * raws).sum(0))


# ---- what set labels cannot tell differs between copies


@dataclasses.dataclass(frozen=True)
class Match:
    """How to match one model to another: classes in another order, or another zero."""

    classes: tuple[int, ...] | None = None
    slope: float = 1.0
    shift: float = 0.0
    offset: tuple[float, ...] = ()  # of raw parameters beside other shared ones

    def __call__(self, raw: Tensor) -> Tensor:
        """Raw parameters, matched to the other model."""
        if any(self.offset):
            raw = raw + torch.tensor(self.offset, dtype=raw.dtype)
        if self.classes is not None:
            return raw[:, list(self.classes)]
        if (self.slope, self.shift) == (1.0, 0.0):
            return raw
        return torch.cat([self.slope * raw[:, :1] + self.shift, raw[:, 1:]], 1)


def at_shared(family: Family, raw: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Raw parameters of the same locations or means beside other shared parameters."""
    n = len(family.shared)
    return family.respread(raw, own[:n], (other - own)[:n])[0] if n else raw


def match(open: Identifiability | None, to: Tensor, raw: Tensor) -> Match:
    """How to match `raw` of some rows to `to`, in what the labels leave open."""
    if open is None or to is raw:
        return Match()
    if open.permutation:
        agreement = to.softmax(1).T @ raw.log_softmax(1).clamp_min(math.log(FAINT))
        return Match(classes=_order(open, agreement.numpy()))
    ours, theirs = to[:, 0], raw[:, 0]
    slope = 1.0
    if open.sign and float((ours - ours.mean()) @ (theirs - theirs.mean())) < 0:
        slope = -1.0
    if open.shift:
        return Match(slope=slope, shift=float((ours - slope * theirs).mean()))
    return Match(slope=slope, shift=(open.centre or 0.0) * (1 - slope))


def _order(open: Identifiability, agreement: NDArray[np.float64]) -> tuple[int, ...]:
    """For each class, the most similar class of the other model, among those that may match."""
    if open.orders is not None:
        total = [agreement[np.arange(len(order)), list(order)].sum() for order in open.orders]
        return tuple(open.orders[int(np.argmax(total))])
    classes = np.arange(len(agreement))
    for group in open.swaps:
        members = np.array(group)
        rows, columns = linear_sum_assignment(agreement[np.ix_(members, members)], maximize=True)
        classes[members[rows]] = members[columns]
    return tuple(int(c) for c in classes)


Part = TypedDict("Part", {"class": str, "facts": dict[str, Any]})


class Parts(TypedDict):
    """The saved form of an ensemble."""

    parts: list[Part]
    weights: list[float]
    matches: list[Match]
    outputs: list[str]


class EnsembleModel(Model):
    """Fitted models, matched to the first, with their weights in the average."""

    def __init__(
        self,
        parts: Sequence[Model],
        weights: Sequence[float],
        matches: Sequence[Match],
        outputs: Sequence[str],
    ) -> None:
        self.parts, self.weights, self.matches = list(parts), list(weights), list(matches)
        self.outputs = tuple(outputs)  # what the raw parameters are called

    def each(self, X: Any) -> Tensor:
        """Raw parameters by each model, (models, rows, outputs)."""
        found = zip(self.parts, self.matches, strict=True)
        return torch.stack([same(torch.from_numpy(part.raw(X))) for part, same in found])

    def raw(self, X: Any) -> NDArray[np.float64]:
        """Raw parameters of the average."""
        return np.asarray(average(self.outputs, self.each(X), self.weights))

    def importance(self) -> NDArray[np.float64] | None:
        """The average over the models that know."""
        found = [part.importance() for part in self.parts]
        known = [(w, i) for w, i in zip(self.weights, found, strict=True) if i is not None]
        if not known:
            return None
        total = sum(w for w, _ in known)
        share: NDArray[np.float64] = sum((w / total * i for w, i in known), np.zeros(1))
        return share

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes each model into a folder of its own."""
        parts = []
        for i, part in enumerate(self.parts):
            own = folder / f"part-{i}"
            own.mkdir()
            parts.append({"class": type(part).__name__, "facts": part.save(own)})
        return {
            "parts": parts,
            "weights": self.weights,
            "matches": [dataclasses.asdict(same) for same in self.matches],
            "outputs": list(self.outputs),
        }

    @classmethod
    def load(
        cls, folder: Path, facts: dict[str, Any], module: Any = None, trusted: bool = False
    ) -> EnsembleModel:
        """The models that `save` wrote."""
        told: Parts = checked(facts, Parts, "the ensemble")
        matches, weights, n = told["matches"], told["weights"], len(told["outputs"])
        good = len(told["parts"]) == len(matches) == len(weights) > 0 < min(weights)
        for m in matches:
            good &= m.classes is None or sorted(m.classes) == list(range(n))
            good &= len(m.offset) in (0, n)
        if not good:
            raise ValueError("the models of the ensemble do not go together")
        known = models()
        parts: list[Model] = []
        for i, part in enumerate(told["parts"]):
            if part["class"] not in known:
                raise ValueError(f"{part['class']!r} is not a known model"[:200])
            made = known[part["class"]].reopen(
                folder / f"part-{i}", part["facts"], module=module, trusted=trusted
            )
            parts.append(made)
        return cls(parts, weights, matches, told["outputs"])
