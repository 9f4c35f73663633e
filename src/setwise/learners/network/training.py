"""Training of a network on minibatches of sets: steps, early stopping, beginnings, checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from setwise.learners.base import Task
from setwise.learners.network.checkpoint import read_checkpoint, write_checkpoint
from setwise.learners.network.modules import RawNetwork, Rows
from setwise.learners.network.optimizer import Weights
from setwise.objective import Batch, Objective, judge, surely_worse

__all__ = ["Settings", "Training", "cosine", "held_out", "resolve_schedule", "warm_up"]

SHARED_RATE = 10.0  # shared parameters learn this much faster than the weights
PREDICT = 8192  # rows per batch where nothing is learned

Schedule = Callable[[int, int], float]


def warm_up(step: int, total: int) -> float:
    """From 0 to 1 in the first hundred steps, or in the first twentieth of a short training."""
    return min(1.0, (step + 1) / max(1, min(100, total // 20)))


def cosine(step: int, total: int) -> float:
    """After the warm-up half a wave of the cosine, down to 0 at the last step."""
    return warm_up(step, total) * 0.5 * (1 + math.cos(math.pi * min(step / total, 1.0)))


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """The function itself, or the one of that name."""
    known: dict[Any, Schedule] = {"cosine": cosine, "constant": warm_up}
    if callable(schedule):
        return schedule
    if schedule not in known:
        raise ValueError(
            f"schedule is one of {list(known)} or a function (step, total) of the step's number "
            f"and how many there are, that gives a factor of lr; got {schedule!r}"
        )
    return known[schedule]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train; `schedule(step, total)` is a factor of the learning rate."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    schedule: Schedule
    clip: float | None
    precision: str
    device: torch.device


class Training:
    """A network on its way: what changes from step to step, and how."""

    def __init__(
        self, network: RawNetwork, task: Task, rows: Rows, settings: Settings, seed: int
    ) -> None:
        self.rows, self.settings = rows, settings
        self.network = network.to(settings.device)
        self.intercept = task.intercept
        self.spread: Tensor | None = None  # its change that suits the sets held out best
        self.begin = task.shared.detach().clone().to(settings.device, network.base.dtype)
        # shared = begin + rate · change, so that the faster part needs no optimiser of its own
        self.change = nn.Parameter(torch.zeros(len(self.begin), device=settings.device))
        learned = [p for p in network.parameters() if p.requires_grad]
        if not learned:
            raise ValueError("the module has no parameters to learn: give one that has some")
        if task.free and len(self.begin):
            learned.append(self.change)
        self.weights = Weights(learned, settings.weight_decay, settings.clip)
        self.rng = np.random.default_rng(seed)
        self.step = self.epoch = self.best_epoch = self.stale = 0
        self.trace: list[float] = []
        self.best_score = -math.inf
        self.best: dict[str, Tensor] | None = None
        self.best_sets = torch.zeros(0)  # what each set held out says of it
        self.digest = ""

    # ---- steps

    @property
    def shared(self) -> Tensor:
        """The shared parameters, to look at."""
        return self.begin + SHARED_RATE * self.change.detach()

    def raw(self, x: Tensor) -> Tensor:
        """Raw parameters of these rows; only the network itself runs in the lower precision."""
        kind = self.settings.device.type
        if self.settings.precision == "float32":
            return self.network.compute(x)
        with torch.autocast(kind, torch.bfloat16):
            return self.network.compute(x)

    def run_epoch(self, objective: Objective, total: int, limit: int | None = None) -> float:
        """One pass over the sets (at most `limit` steps); their mean log-likelihood on the way."""
        self.network.train()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.settings.device)
        weight_sum = 0.0
        for done, batch in enumerate(objective.minibatches(self.settings.batch_size, self.rng)):
            if limit is not None and done >= limit:
                break
            weight = batch.objective.total_weight
            if weight <= 0:
                continue
            rate = self.settings.lr * self.settings.schedule(self.step, total)
            raw = self.raw(self.rows.take(batch.rows))
            loss = batch.objective.gradient(raw, self.shared)
            self.weights.zero()
            raw.backward(loss.gradient / weight)
            if self.change.grad is not None:
                self.change.grad += loss.shared_gradient * (SHARED_RATE / weight)
            self.weights.step(rate)
            self.step += 1
            loss_sum += loss.value
            weight_sum += weight
        mean = -float(loss_sum) / max(weight_sum, 1e-300)
        if not math.isfinite(mean):
            raise FloatingPointError(
                f"the loss became {-mean} in epoch {self.epoch + 1}: lower lr or clip, and check "
                f"that X has no missing or huge numbers"
            )
        return mean

    def predict(self, rows: Rows, numbers: NDArray[np.int64]) -> Tensor:
        """Raw parameters of these rows in float64, on the device, nothing learned."""
        self.network.eval()
        with torch.no_grad():
            parts = [
                self.raw(rows.take(part)).double()
                for part in np.array_split(numbers, max(1, math.ceil(len(numbers) / PREDICT)))
            ]
        return torch.cat(parts)

    def score(self, rows: Rows, held: Batch) -> tuple[float, Tensor]:
        """What the sets held out say of the locations, all together and each."""
        raw, shared = self.predict(rows, held.rows), self.shared.detach().double()
        found = judge(held.objective, raw, shared, self.intercept, self.spread)
        self.spread = found.change
        return found.score, found.sets

    # ---- the whole way

    def run(self, task: Task, patience: int | None, folder: Path | None) -> bool:
        """Trains to the end of the plan or of patience; says whether the likelihood has settled."""
        objective, settings = task.objective, self.settings
        total = settings.epochs * math.ceil(objective.n_sets / settings.batch_size)
        held = held_out(task, self.network)
        if folder is not None:
            self.digest = _digest(task, self.rows, settings, self.network)
            self.resume(folder, task)
        with task.progress.running("Network", total=settings.epochs):
            while self.epoch < settings.epochs and not (patience and self.stale >= patience):
                figures = {"train": self.run_epoch(objective, total)}
                self.trace.append(figures["train"])
                self.epoch += 1
                if held is not None:
                    figures["valid"], each = self.score(*held)
                    if figures["valid"] > self.best_score:
                        self.best_score, self.best_sets, self.stale = figures["valid"], each, 0
                        self.best_epoch = self.epoch
                        self.best = {k: v.clone() for k, v in self.tensors().items()}
                    else:
                        worse = surely_worse(each, self.best_sets, len(held[1].rows))
                        self.stale = self.stale + 1 if worse else 0
                task.progress.step(**figures)
                if folder is not None:
                    self.keep(folder, task)
        if self.best is not None and self.stale:
            self.put(self.best)
        self.weights.release()
        return self.settled() or bool(patience and self.stale >= patience)

    @property
    def kept(self) -> int:
        """The epochs that the weights have seen, once `run` is over."""
        return self.best_epoch if self.stale else self.epoch

    def settled(self) -> bool:
        """Whether the last tenth of the epochs brought less than a twentieth of all the gain."""
        tail = max(1, len(self.trace) // 10)
        if len(self.trace) <= tail:
            return len(self.trace) == 0
        gain, late = self.trace[-1] - self.trace[0], self.trace[-1] - self.trace[-1 - tail]
        return late <= 0.05 * abs(gain) + 1e-3

    # ---- state

    def tensors(self) -> dict[str, Tensor]:
        """Weights, buffers and shared parameters."""
        return {**self.network.state_dict(), "change": self.change.detach()}

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Puts back what `tensors` gave."""
        rest = dict(tensors)
        with torch.no_grad():
            self.change.copy_(rest.pop("change"))
        self.network.load_state_dict(rest)

    def keep(self, folder: Path, task: Task) -> None:
        """Writes a checkpoint from which `resume` goes on as if nothing had happened."""
        moments = {f"weights.{k}": v for k, v in self.weights.state().items()}
        random = {"random.cpu": torch.get_rng_state()}
        if self.settings.device.type == "cuda":
            random["random.cuda"] = torch.cuda.get_rng_state(self.settings.device)
        best = {f"best.{k}": v for k, v in (self.best or {}).items()}
        best["sets"] = self.best_sets
        now = {f"now.{k}": v for k, v in self.tensors().items()}
        facts = {
            "digest": self.digest,
            "random": self.rng.bit_generator.state,
            "history": task.progress.history,
            **{name: getattr(self, name) for name in _COUNTERS},
        }
        write_checkpoint(folder, {**now, **best, **moments, **random}, facts)

    def resume(self, folder: Path, task: Task) -> None:
        """Goes on from the checkpoint in the folder, if there is one."""
        found = read_checkpoint(folder)
        if found is None:
            return
        tensors, facts = found
        if facts["digest"] != self.digest:
            raise ValueError(
                f"the checkpoint in {folder} is of another fit (other data, parameters or "
                f"random_state): give each fit its own folder, or delete it to begin anew"
            )
        self.put(_under(tensors, "now."))
        self.best = _under(tensors, "best.") or None
        self.best_sets = tensors["sets"].to(self.settings.device)
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.settings.device)
        self.rng.bit_generator.state = facts["random"]
        task.progress.history[:] = facts["history"]
        for name in _COUNTERS:
            setattr(self, name, facts[name])
        self.weights.steps = self.step
        for name, value in self.weights.state().items():
            value.copy_(tensors[f"weights.{name}"])


_COUNTERS = ("step", "epoch", "best_epoch", "stale", "trace", "best_score")


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _digest(task: Task, rows: Rows, settings: Settings, network: RawNetwork) -> str:
    """A digest of what a fit depends on."""
    digest = hashlib.blake2b(digest_size=16)
    told = dataclasses.asdict(settings) | {"schedule": getattr(settings.schedule, "__name__", "")}
    digest.update(repr((told, network, task.seed, task.free, task.restarts, len(rows))).encode())
    arrays: list[Any] = [task.raw.numpy(), task.shared.numpy()]
    for o in task.objective.observations:
        digest.update(repr(o).encode())
        arrays += [o.sets.indices, o.sets.offsets, o.sets.weights, o.y, o.weight]
    if rows.table is not None:
        arrays.append(rows.table.cpu().contiguous().flatten().view(torch.uint8).numpy())
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def held_out(task: Task, network: RawNetwork) -> tuple[Rows, Batch] | None:
    """The rows and sets of `task.eval`, ready for the network."""
    if task.eval is None:
        return None
    X, objective = task.eval
    rows = Rows(X, network.base.device).prepared(network.prepare)
    return rows, objective.batch()
