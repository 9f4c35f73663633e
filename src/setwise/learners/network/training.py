"""Training of a network on minibatches of sets: steps, early stopping, checkpoints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from setwise._peers import ALONE, Peers
from setwise.learners.base import Task
from setwise.learners.interruption import stop, stopped
from setwise.learners.network.checkpoint import read_tensors, write_tensors
from setwise.learners.network.layout import Layout, Recorded
from setwise.learners.network.modules import RawNetwork, Rows, predict
from setwise.learners.network.optimizer import Number, Weights
from setwise.objective import HeldOut, Objective, unchecked

__all__ = ["Settings", "Training", "cosine", "held_out", "resolve_schedule", "warm_up"]

SHARED_RATE = 10.0  # shared parameters learn this much faster than the weights

LOST = (np.linalg.LinAlgError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
FARTHEST = 300.0  # from 0 that the logarithm of a scale may be
COUNTERS = ("step", "epoch", "best_epoch", "stale", "trace")

Schedule = Callable[[int, int], float]
Augment = Callable[[Tensor], Tensor]


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
    augment: Augment | None = None
    compiled: bool = False
    peers: Peers = ALONE  # who train the same network, each on its share of every batch

    @contextmanager
    def arithmetic(self, one_shape: bool) -> Iterator[None]:
        """While steps are done on CUDA: TF32 if asked for, and the fastest convolutions."""
        cudnn: Any = torch.backends.cudnn
        before = torch.get_float32_matmul_precision(), cudnn.benchmark
        if self.device.type == "cuda":
            cudnn.benchmark = one_shape
            if self.precision == "tf32":
                torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            cudnn.benchmark = before[1]


class Training:
    """A network while it is trained: what changes from step to step, and how."""

    def __init__(
        self, network: RawNetwork, task: Task, rows: Rows, settings: Settings, seed: int
    ) -> None:
        self.rows, self.settings, self.peers = rows, settings, settings.peers
        self.network = network.to(settings.device)
        self.begin = task.shared.detach().clone().to(settings.device, network.base.dtype)
        # shared = begin + rate · change, so that the faster part needs no optimiser of its own
        zeros, which = torch.zeros(len(self.begin), device=settings.device), task.learned
        self.change = nn.Parameter(zeros, requires_grad=which.start < which.stop)
        self.rate = torch.zeros_like(zeros)
        self.rate[which] = SHARED_RATE
        if not any(p.requires_grad for p in network.parameters()):
            raise ValueError("the module has no parameters to learn: give one that has some")
        self.state = nn.Module()  # everything that is learned
        self.state.network, self.state.change = self.network, self.change
        learned = [p for p in self.state.parameters() if p.requires_grad]
        self.weights = Weights(learned, settings.weight_decay, settings.clip)
        self.rng, self.seed = np.random.default_rng(seed), seed
        self.step = self.epoch = self.best_epoch = self.stale = 0
        self.trace: list[float] = []
        self.best: dict[str, Tensor] | None = None
        self.loss = torch.zeros((), dtype=torch.float64, device=settings.device)  # of an epoch
        compute = self.network.compute
        self.compute = torch.compile(compute) if settings.compiled else compute
        self.laid: tuple[Objective, Layout, Recorded] | None = None
        self.unchecked = task.objective.of_classes  # until a probability underflows

    # ---- steps

    @property
    def shared(self) -> Tensor:
        """The shared parameters, detached."""
        return self.begin + self.rate * self.change.detach()

    def raw(self, x: Tensor) -> Tensor:
        """Raw parameters of these rows; only the network itself runs in the lower precision."""
        low = self.settings.precision == "bf16"
        with torch.autocast(self.settings.device.type, torch.bfloat16, enabled=low):
            return self.compute(x)

    def run_epoch(self, objective: Objective, total: int) -> float:
        """One pass over the sets, up to step `total`; their mean log-likelihood on the way."""
        alone = self.peers.size == 1
        laid = alone and Layout.suits(objective, self.rows, self.settings.batch_size)
        if not (laid and self.unchecked):
            return self._epoch(objective, total, laid)
        tensors, facts = self._here_and_now()
        before = {name: t.clone() for name, t in tensors.items()}
        try:
            return self._epoch(objective, total, laid)
        except FloatingPointError:  # perhaps a probability underflowed: again, in logarithms
            self.unchecked, self.laid = False, None
            self._go_back(before, facts)
            return self._epoch(objective, total, laid)

    def _epoch(self, objective: Objective, total: int, laid: bool) -> float:
        self.network.train()
        self.loss.zero_()
        alone = self.peers.size == 1
        if not alone:  # what a module draws is another in each process, and known after a restart
            torch.manual_seed(hash((self.seed, self.step, self.peers.rank)))
        with self.settings.arithmetic(laid), self._in_range():
            steps = self._recorded(objective, total) if laid else self._called(objective, total)
            weight = float(sum(steps))
        self._same_buffers()
        mean = -float(self.peers.sum(self.loss)) / max(weight, 1e-300)
        if not math.isfinite(mean):
            raise self._lost(-mean)
        return mean

    @contextmanager
    def _in_range(self) -> Iterator[None]:
        """Raises an error that says what to do if numbers have grown out of range."""
        try:
            yield
        except (ArithmeticError, *LOST) as error:
            raise self._lost(math.nan) from error

    def _lost(self, loss: float) -> FloatingPointError:
        return FloatingPointError(
            f"the loss became {loss} in epoch {self.epoch + 1}: lower lr or clip, and check that X "
            f"has no missing or huge numbers"
        )

    def _same_buffers(self) -> None:
        """Sets the module's buffers, such as running means, to their mean over all processes."""
        if self.peers.size > 1:
            for buffer in self.network.body.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.peers.sum(buffer) / self.peers.size)

    def _called(self, objective: Objective, total: int) -> Iterator[Number]:
        """Steps call by call; each gives the weight of its sets."""
        peers, size = self.peers, self.settings.batch_size
        batches = objective.minibatches(size, self.rng, self.here, peers)
        all_of_them = peers.size > 1  # others may have some sets where this one has none
        some = ((b.rows, b.objective) for b in batches if all_of_them or b.objective.total_weight)
        for x, part in self.rows.ahead(some):
            if self.step >= total:
                break
            own = part.total_weight
            weight = peers.sum(self.loss.new_tensor(own)).clamp_min(1e-300) if all_of_them else own
            self._learn(x, part, weight, self._rate(self.step, total), self.step + 1)
            self.step += 1
            yield weight

    def _recorded(self, objective: Objective, total: int) -> Iterator[Number]:
        """Steps that the host only starts; each gives the weight of its sets."""
        if self.laid is None or self.laid[0] is not objective:
            trusted = self.unchecked
            layout = Layout(objective, self.rows, self.settings.batch_size, trusted)

            def step() -> None:
                with unchecked() if trusted else nullcontext():
                    self._learn(*layout.batch(), *layout.told())

            self.laid = objective, layout, Recorded(step, self.settings.device)
        _, layout, recorded = self.laid
        weights = layout.shuffle(self.rng)
        steps = range(self.step, min(self.step + len(weights), total))
        told = zip(weights, steps, strict=False)
        layout.tell([(w, self._rate(i, total), i + 1) for w, i in told])
        for weight, _ in zip(weights, steps, strict=False):
            recorded()
            self.step += 1
            yield weight

    def _rate(self, step: int, total: int) -> float:
        return self.settings.lr * self.settings.schedule(step, total)

    def _learn(
        self, x: Tensor, sets: Objective, weight: Number, rate: Number, number: Number
    ) -> None:
        """A step, from rows and the loss of the sets that they are in, which is all there is.

        Where others have sets of the same batch too, `weight` is that of all, and the gradient
        becomes that of the sum over all: not its mean over processes, whose shares may be uneven.
        """
        self.weights.zero()
        if sets.terms:
            augment = self.settings.augment
            raw = self.raw(x if augment is None else augment(x))
            loss = sets.gradient(raw, self.shared)
            raw.backward(loss.gradient / weight)
            if self.change.grad is not None:
                self.change.grad += loss.shared_gradient * (self.rate / weight)
            self.loss += loss.value
        self.weights.add(self.peers)
        self.weights.step(rate, number)

    def judge(
        self, rows: Rows, numbers: NDArray[np.int64], sets: HeldOut
    ) -> tuple[float, bool, bool]:
        """Compares the network as it is now with earlier steps, by held-out sets."""
        self.network.eval()
        raw = self._predicted(rows, numbers)
        with self._in_range():
            judged = sets.judge(raw, self.shared.double())
        score, better, worse = self.peers.first(*judged)
        return score, bool(better), bool(worse)

    def _predicted(self, rows: Rows, numbers: NDArray[np.int64]) -> Tensor:
        """Raw parameters of these rows, of which each process computes its share."""
        own = predict(self.raw, rows, numbers[self.peers.share(len(numbers))])
        return self.peers.gather(own, len(numbers))

    def here(self) -> tuple[Tensor, Tensor]:
        """Raw parameters of all rows, and the shared ones."""
        self.network.eval()
        raw = self._predicted(self.rows, np.arange(len(self.rows)))
        self.network.train()
        if not bool(raw.isfinite().all()) or bool((self.shared.abs() > FARTHEST).any()):
            raise FloatingPointError
        return raw, self.shared

    # ---- the whole way

    def run(
        self, task: Task, patience: int | None, path: Path | None = None, digest: str = ""
    ) -> bool:
        """Trains until all epochs are over or patience ends; returns whether that is convergence.

        `path` is that of the checkpoint, `digest` says of which fit it has to be.
        """
        objective, settings = task.objective, self.settings
        total = settings.epochs * math.ceil(objective.n_sets / settings.batch_size)
        held = held_out(task, self.network)
        sets = None if held is None else held[2]
        if path is not None and self.peers.first(path.exists())[0]:
            self.resume(path, digest, task, sets)
        with task.progress.running("Network", total=settings.epochs):
            while self.epoch < settings.epochs and not (patience and self.stale >= patience):
                figures = {"train": self.run_epoch(objective, total)}
                self.trace.append(figures["train"])
                self.epoch += 1
                if held is not None:
                    figures["valid"], better, worse = self.judge(*held)
                    if better:
                        self.best_epoch = self.epoch
                        self.best = {k: v.clone() for k, v in self.state.state_dict().items()}
                    self.stale = self.stale + 1 if worse else 0
                task.progress.step(**figures)
                if path is not None and self.peers.rank == 0:
                    self.keep(path, digest, task, sets)
                if self.peers.any(stopped()):
                    stop()
                    break
        if self.best is not None and self.stale:
            self.state.load_state_dict(self.best)
        self.weights.release()
        return self.settled() or bool(patience and self.stale >= patience)

    @property
    def kept(self) -> int:
        """The epochs that the weights have seen, once `run` is over."""
        return self.best_epoch if self.stale else self.epoch

    def settled(self) -> bool:
        """Whether less than a twentieth of the gain is due to the last tenth of the epochs."""
        tail = max(1, len(self.trace) // 10)
        if len(self.trace) <= tail:
            return len(self.trace) == 0
        gain, late = self.trace[-1] - self.trace[0], self.trace[-1] - self.trace[-1 - tail]
        return late <= 0.05 * abs(gain) + 1e-3

    # ---- checkpoints

    def _here_and_now(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that changes from step to step, uncopied, and what else `_go_back` needs."""
        random = {"cpu": torch.get_rng_state()}
        if self.settings.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.settings.device)
        parts = {
            "now": self.state.state_dict(),
            "weights": self.weights.state(),
            "random": random,
        }
        counters = {name: getattr(self, name) for name in COUNTERS}
        return _named(parts), {"random": self.rng.bit_generator.state, **counters}

    def _go_back(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Restores what `_here_and_now` gave."""
        self.state.load_state_dict(_under(tensors, "now."))
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.settings.device)
        self.rng.bit_generator.state = facts["random"]
        for name in COUNTERS:
            setattr(self, name, facts[name])
        for name, value in self.weights.state().items():
            value.copy_(tensors[f"weights.{name}"])

    def keep(self, path: Path, digest: str, task: Task, sets: HeldOut | None) -> None:
        """Writes a checkpoint from which `resume` continues exactly."""
        tensors, facts = self._here_and_now()
        facts |= {"digest": digest, "history": task.progress.history}
        tensors |= _named({"best": self.best or {}})
        if sets is not None and sets.best_sets is not None:
            tensors["held.sets"] = sets.best_sets
            facts["best_score"] = sets.best
        write_tensors(path, tensors, facts)

    def resume(self, path: Path, digest: str, task: Task, sets: HeldOut | None) -> None:
        """Goes on from a checkpoint."""
        try:
            tensors, facts = read_tensors(path)
        except ValueError as error:
            raise ValueError(f"{error}; delete it to begin anew") from None
        if facts.get("digest") != digest:
            raise ValueError(
                f"the checkpoint in {path.parent} is of another fit (other data, parameters or "
                f"random_state): give each fit its own folder, or delete it to begin anew"
            )
        self._go_back(tensors, facts)
        self.best = _under(tensors, "best.") or None
        if sets is not None and "held.sets" in tensors:
            sets.best_sets = tensors["held.sets"].to(self.settings.device)
            sets.best = facts["best_score"]
        task.progress.history[:] = facts["history"]


def _named(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{part}.{k}": v for part, values in parts.items() for k, v in values.items()}


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def held_out(task: Task, network: RawNetwork) -> tuple[Rows, NDArray[np.int64], HeldOut] | None:
    """The rows of `task.eval`, ready for the network, which of them sets name, and the sets."""
    if task.eval is None:
        return None
    rows = Rows(task.eval[0], network.base.device).prepared(network.prepare)
    numbers, objective = task.eval[1].batch()
    return rows, numbers, HeldOut(objective, task.intercept)
