"""Many networks trained side by side as one: stacked parameters and no Python per set.

A model holds R networks and maps row numbers (R, N) of one table to outputs (R, N, C). Each network
has sets of its own; the sum of their losses is one loss, of which each network sees its part. An
epoch's batches are laid out on the device beforehand, so that a step needs nothing from the host;
on CUDA it is recorded once and replayed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from reproduction.baselines import Loss

SETS = 1 << 18  # over all networks, whose loss is found at a time
COMPILED = 5  # networks from which on compilation pays

__all__ = ["HeldOut", "Networks", "Perceptrons", "Plan", "Sample", "fit", "predict", "score"]


@dataclass(frozen=True)
class Plan:
    """How long and how fast to learn.

    `batch` sets a step and network, the last batch of an epoch filled up from its first sets. AdamW
    with learning rate `rate`, constant or falling to 0 along half a cosine. `decay` is the same for
    all networks, or one for each.
    """

    epochs: int
    batch: int = 128
    rate: float = 1e-3
    decay: float | tuple[float, ...] = 0.01
    cosine: bool = False


@dataclass(frozen=True)
class Sample:
    """The sets of each network: row numbers (R, S, K) and what was seen of them (R, S)."""

    members: Tensor
    y: Tensor


@dataclass(frozen=True)
class HeldOut:
    """Sets to choose by: rows of the table (R, N), and sets of them whose members count in N."""

    rows: Tensor
    sample: Sample


class Networks(nn.Module):
    """R networks: `forward(table, rows)` gives (R, N, C); `head` are parameters of the loss."""

    chunk = 1 << 18  # rows, over all networks, that are predicted at a time
    compiled = False  # whether many of them are worth compiling for a CUDA device
    layers: nn.ParameterList  # weights and biases in turn, each (R, …)

    def __init__(self, networks: int, head: int) -> None:
        super().__init__()
        begin = -torch.ones(networks, head)  # a weight of −1 each: what is near is alike
        begin[:, :1] = 1.0
        self.head = nn.Parameter(begin)


class Perceptrons(Networks):
    """R perceptrons with ReLU, begun as torch begins linear layers, each from its own seed.

    `dropout` has probabilities for them in turn, over again if there are fewer; the random numbers
    are the same for all of them.

    >>> model = Perceptrons([4, 8, 3], seeds=[0, 1])
    >>> model(torch.randn(10, 4), torch.arange(6).reshape(2, 3)).shape
    torch.Size([2, 3, 3])
    """

    drop: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        seeds: Sequence[int],
        head: int = 0,
        dropout: Sequence[float] = (),
    ) -> None:
        super().__init__(len(seeds), head)
        self.register_buffer("drop", torch.tensor(dropout)[:, None, None])
        drawn = [_draw(sizes, seed) for seed in seeds]
        self.layers = nn.ParameterList(
            nn.Parameter(torch.stack(same)) for same in zip(*drawn, strict=True)
        )

    def forward(self, table: Tensor, rows: Tensor) -> Tensor:
        """Outputs of the rows, by the network each is listed for."""
        x = table.index_select(0, rows.reshape(-1)).reshape(*rows.shape, -1)
        *inner, last = zip(self.layers[::2], self.layers[1::2], strict=True)
        for weight, bias in inner:
            x = torch.baddbmm(bias, x, weight).relu_()
            if self.training and self.drop.numel():
                kept = (torch.rand_like(x[:1]) >= self.drop) / (1 - self.drop)
                x = (x.unflatten(0, (-1, len(kept))) * kept).flatten(0, 1)
        return torch.baddbmm(last[1], x, last[0])


def _draw(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Weights and biases of one perceptron, uniform within ±1/√inputs."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for inputs, outputs in pairwise(sizes):
        for shape in ((inputs, outputs), (1, outputs)):
            drawn = torch.rand(shape, generator=generator) * 2 - 1
            out.append(drawn / math.sqrt(inputs))
    return out


def fit(
    model: Networks,
    loss: Loss,
    table: Tensor,
    sample: Sample,
    plan: Plan,
    seeds: Sequence[int],
    held_out: HeldOut | None = None,
    watch: Callable[[int], None] | None = None,
) -> Tensor:
    """Trains the networks; gives the least held-out loss of each, whose weights are kept.

    Without `held_out` the last weights stay, and the figures are NaN. `seeds` shuffle the sets.
    `watch` is called about ten times, with the number of epochs that are over.
    """
    torch.manual_seed(0)  # for dropout: whoever learns beside a network, it sees the same numbers
    training = _Training(model, loss, table, sample, plan, seeds)
    best = torch.full((len(seeds),), math.nan, device=table.device)
    if held_out:
        best = score(model, loss, table, held_out).nan_to_num(math.inf)
    kept = [p.detach().clone() for p in model.parameters()] if held_out else []
    for epoch in range(1, plan.epochs + 1):
        training.epoch()
        if watch is not None and epoch % math.ceil(plan.epochs / 10) == 0:
            watch(epoch)
        if held_out is None:
            continue
        found = score(model, loss, table, held_out)
        better = found < best
        best = torch.where(better, found, best)
        for old, new in zip(kept, model.parameters(), strict=True):
            which = better.reshape(-1, *[1] * (new.ndim - 1))
            old.copy_(torch.where(which, new.detach(), old))
    with torch.no_grad():
        for old, new in zip(kept, model.parameters() if kept else (), strict=True):
            new.copy_(old)
    return best


class _Training:
    """The state of a training: the batches of the epoch, the place in it, the optimiser."""

    def __init__(
        self,
        model: Networks,
        loss: Loss,
        table: Tensor,
        sample: Sample,
        plan: Plan,
        seeds: Sequence[int],
    ) -> None:
        self.model, self.loss, self.table, self.sample, self.plan = model, loss, table, sample, plan
        device = table.device
        networks, sets, size = sample.members.shape
        batch = min(plan.batch, sets)
        self.steps = math.ceil(sets / batch)
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.members = sample.members.new_zeros((self.steps, networks, batch, size))
        self.y = sample.y.new_zeros((self.steps, networks, batch))
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.done = torch.zeros((), device=device)
        self.rate = torch.full((), plan.rate, device=device)
        self.optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.numel()],
            lr=self.rate,
            weight_decay=plan.decay if isinstance(plan.decay, float) else 0.0,
            fused=True,
            capturable=device.type == "cuda",
        )
        self.decay = None  # that of each network, where they differ, is done in the step
        if not isinstance(plan.decay, float):
            self.decay = torch.tensor(plan.decay, device=device)
        pays = model.compiled and networks >= COMPILED and device.type == "cuda"
        self.forward = torch.compile(model, dynamic=False) if pays else model
        self.step = _replayed(self._step, device)

    def epoch(self) -> None:
        """Every set once, in a new order for each network."""
        self._lay_out()
        self.model.train()
        for _ in range(self.steps):
            self.step()

    def _lay_out(self) -> None:
        sets, filled = self.sample.y.shape[1], self.members.shape[0] * self.members.shape[2]
        for r, generator in enumerate(self.generators):
            order = torch.randperm(sets, generator=generator, device=self.place.device)
            order = torch.cat([order, order[: filled - sets]])
            self.members[:, r] = self.sample.members[r, order].reshape(self.members[:, r].shape)
            self.y[:, r] = self.sample.y[r, order].reshape(self.y[:, r].shape)
        self.place.zero_()

    def _step(self) -> None:
        if self.plan.cosine:
            total = self.steps * self.plan.epochs
            wave = 0.5 * self.plan.rate * (1 + torch.cos(self.done * (math.pi / total)))
            self.rate.copy_(wave)
        rows = self.members.index_select(0, self.place).squeeze(0)
        y = self.y.index_select(0, self.place).squeeze(0)
        out = self.forward(self.table, rows.flatten(1)).float()
        losses = self.loss(out.reshape(*rows.shape, -1), y, self.model.head)
        self.optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        if self.decay is not None:
            with torch.no_grad():
                for p in self.model.parameters():
                    p.mul_((1 - self.rate * self.decay).reshape(-1, *[1] * (p.ndim - 1)))
        self.optimizer.step()
        self.place += 1
        self.done += 1


def _replayed(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step itself; on CUDA its recording, made after a few steps that warm the device up."""
    if device.type != "cuda":
        return step
    side = torch.cuda.Stream(device)
    graph: list[torch.cuda.CUDAGraph] = []
    warm = iter(range(3))

    def replay() -> None:
        if not graph and next(warm, None) is not None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*capturable=True")  # it will be, in a moment
                step()
            torch.cuda.current_stream().wait_stream(side)
            return
        if not graph:
            graph.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graph[0]):
                step()  # recorded, not done
        graph[0].replay()

    return replay


@torch.no_grad()
def predict(model: Networks, table: Tensor, rows: Tensor) -> Tensor:
    """Outputs (R, N, C) of rows (R, N), nothing learned."""
    model.eval()
    parts = rows.split(max(1, model.chunk // len(rows)), 1)
    return torch.cat([model(table, part).float() for part in parts], 1)


@torch.no_grad()
def score(model: Networks, loss: Loss, table: Tensor, held_out: HeldOut) -> Tensor:
    """The mean held-out loss of each network."""
    out = predict(model, table, held_out.rows)
    networks, rows, classes = out.shape
    begin = torch.arange(networks, device=out.device)[:, None, None] * rows
    total = out.new_zeros(networks)
    members, y = held_out.sample.members, held_out.sample.y
    step = max(1, SETS // networks)
    for part, seen in zip(members.split(step, 1), y.split(step, 1), strict=True):
        at = out.reshape(-1, classes)[(part + begin).reshape(-1)]
        total += loss(at.reshape(*part.shape, classes), seen, model.head) * part.shape[1]
    return total / y.shape[1]
