"""Classes of images from pairs and triplets: the paper's table `images`.

The network is the paper's, layer by layer: 32 and 64 convolutions of 3 × 3, ReLU after the first
(the paper names none after the second, nor had PyTorch's MNIST example of the time), the largest of
2 × 2, dropout ¼, 128 units with ReLU, dropout ½, one output per class. 60 000 images, 120 000 pairs
or 180 000 triplets drawn with replacement from the training part; AdamW with learning rate 1e-3,
batches of 128, 10 epochs. Pixels are standardised by the mean and the deviation of all of them.
Figures are accuracies on the 10 000 test images in %, after the best renaming of classes.

In "best" the learning rate falls along a cosine, images are shifted by up to two pixels, there are
twice as many epochs, and the probabilities of several networks are averaged, their classes renamed
to agree; those that stay are the ones that together say most of the training sets.

The trials of a cell learn together: their losses are one batched loss, their convolutions follow
each other in one step, which on CUDA is compiled, recorded as a graph and replayed, in bfloat16 up
to the last layer. A trial whose likelihood of its own training sets is far from that of the best
one has collapsed: it begins again from another seed, and the better of the two by that measure
stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import setwise as sw
from reproduction.baselines import METHODS, Method
from reproduction.batched import HeldOut, Networks, Plan, Sample, fit, predict, score
from reproduction.classification import (
    Found,
    History,
    Trials,
    as_results,
    average,
    cluster,
    common,
    observe,
)
from reproduction.runner import Cell, Result

__all__ = ["Convolutions", "methods", "work_many"]

Ints = NDArray[np.int64]
PLAN = {"protocol": Plan(epochs=10), "best": Plan(epochs=20, cosine=True)}
SHIFT = {"protocol": 0.0, "best": 2 / 28}  # of the side, at most
LOOKED_AT = 20_000  # training sets by which a collapse is told
RESTARTS = 3
WHOLE = {("similarity_mle", "protocol")}  # not in bfloat16
NETWORKS = {"protocol": 1, "best": 3}  # whose mean is taken


def methods() -> tuple[str, ...]:
    """The columns of the table."""
    return ("kmeans", *METHODS)


class Convolutions(Networks):
    """R of the paper's convolutional networks, each begun from its own seed.

    The table holds one square image per row; its type is that of the convolutions. Random numbers,
    of dropout and of shifts, are the same for all networks.

    >>> model = Convolutions(side=8, classes=3, seeds=[0, 1])
    >>> model(torch.randn(10, 64), torch.arange(6).reshape(2, 3)).shape
    torch.Size([2, 3, 3])
    """

    chunk = 1 << 14
    compiled = True

    def __init__(
        self, side: int, classes: int, seeds: Sequence[int], head: int = 0, shift: int = 0
    ) -> None:
        super().__init__(len(seeds), head)
        self.side, self.shift = side, shift
        flat = 64 * ((side - 4) // 2) ** 2
        shapes = ((32, 1, 3, 3), (64, 32, 3, 3), (flat, 128), (128, classes))
        inputs = (9, 32 * 9, flat, 128)
        drawn = [_draw(shapes, inputs, seed) for seed in seeds]
        self.layers = nn.ParameterList(
            nn.Parameter(torch.stack(same)) for same in zip(*drawn, strict=True)
        )

    def forward(self, table: Tensor, rows: Tensor) -> Tensor:
        """Outputs of the rows, by the network each is listed for."""
        networks, count = rows.shape
        x = table.index_select(0, rows.reshape(-1))
        if self.training and self.shift:
            x = shifted(x, self.side, self.shift, count)
        *inner, weight, bias = self.layers
        first, first_bias, second, second_bias, middle, middle_bias = (p.to(x.dtype) for p in inner)
        # The first convolution and its bias as a product of patches, channels last as the second
        # wants them; 16 entries a patch, since tensor cores count in eights. In several parts, or
        # the derivative, 16 × 32 numbers that are sums over all patches, keeps few cores busy.
        inside = self.side - 2
        maps = _patches(x.reshape(-1, self.side, self.side), 16).reshape(networks * inside, -1, 16)
        kernel = F.pad(torch.cat([first.flatten(2), first_bias[:, :, None]], 2), (0, 6)).mT
        maps = torch.bmm(maps, kernel[:, None].expand(-1, inside, -1, -1).flatten(0, 1))
        maps = maps.reshape(networks, count, inside, inside, 32).permute(0, 1, 4, 2, 3)
        last = torch.channels_last
        pooled = [
            largest(F.conv2d(x.relu(), k.contiguous(memory_format=last)).permute(0, 2, 3, 1))
            for x, k in zip(maps.unbind(0), second.unbind(0), strict=True)
        ]
        # A bias is the same before and after the largest is taken. Both flat with channels last.
        h = torch.stack(pooled)
        h = self._drop((h + second_bias[:, None, None, None]).flatten(2), 0.25)
        middle = middle.unflatten(1, (64, -1)).transpose(1, 2).flatten(1, 2)
        h = self._drop(torch.baddbmm(middle_bias, h, middle).relu(), 0.5)
        return torch.baddbmm(bias, h.float(), weight)

    def _drop(self, x: Tensor, share: float) -> Tensor:
        return x * F.dropout(torch.ones_like(x[:1]), share) if self.training else x


def largest(x: Tensor) -> Tensor:
    """The largest of each 2 × 2 of maps (N, H, W, C).

    Which it is is found first, so that the derivative is a choice by one small number: compiled,
    less than half the time of `max_pool2d`, which looks for the place of every derivative.

    >>> largest(torch.arange(16.0).reshape(1, 4, 4, 1)).flatten()
    tensor([ 5.,  7., 13., 15.])
    """
    high, wide = x.shape[1] // 2, x.shape[2] // 2
    x = x[:, : 2 * high, : 2 * wide].unflatten(2, (wide, 2)).unflatten(1, (high, 2))
    four = x.movedim(4, 3).flatten(2, 3)
    which = four.detach().argmax(2, keepdim=True).to(torch.uint8)
    place = torch.arange(4, dtype=torch.uint8, device=x.device)[:, None, None]
    return torch.where(which == place, four, 0.0).sum(2)


def _patches(x: Tensor, length: int) -> Tensor:
    """The 3 × 3 patches of images (N, side, side), each followed by a one and zeros.

    >>> _patches(torch.ones(1, 3, 3), 12)
    tensor([[1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 0., 0.]])
    """
    found = x.unfold(1, 3, 1).unfold(2, 3, 1).reshape(-1, 9)
    out = x.new_zeros((len(found), length))
    out[:, :9] = found
    out[:, 9] = 1
    return out


def _draw(shapes: Sequence[tuple[int, ...]], inputs: Sequence[int], seed: int) -> list[Tensor]:
    """Weights and biases as torch begins them, uniform within ±1/√inputs."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for shape, number in zip(shapes, inputs, strict=True):
        bias = (shape[0],) if len(shape) == 4 else (1, shape[1])
        for size in (shape, bias):
            drawn = torch.rand(size, generator=generator) * 2 - 1
            out.append(drawn / math.sqrt(number))
    return out


def shifted(x: Tensor, side: int, most: int, count: int) -> Tensor:
    """Images moved by up to `most` pixels either way; every `count` of them are moved alike.

    What comes in at the border is the least value of the image: its background.

    >>> shifted(torch.ones(4, 9), 3, 1, count=2).equal(torch.ones(4, 9))
    True
    """
    wide = side + 2 * most
    ground = x.amin(1, keepdim=True)
    image = (x - ground).reshape(-1, side, side)
    padded = F.pad(image, (most, most, most, most)).flatten(1) + ground
    line = torch.arange(side, device=x.device)
    home = (line[:, None] * wide + line).flatten()
    down, right = torch.randint(2 * most + 1, (2, count, 1), device=x.device).unbind(0)
    moved = (home + down * wide + right).repeat(len(x) // count, 1)
    return padded.gather(1, moved)


class Images(NamedTuple):
    """Standardised images, those of the training part first, and their classes."""

    table: Tensor
    z: Ints
    train: int
    side: int
    classes: int


@lru_cache(maxsize=1)
def prepare(name: str, device: str, half: bool = True) -> Images:
    """The images on the device; small ones without a test part are split.

    On CUDA they are in bfloat16 if `half`, else products are rounded to TF32.
    """
    data = sw.datasets.load(name)
    assert data.z is not None
    if data.X_test is None or data.z_test is None:
        order = np.random.default_rng(0).permutation(len(data.X))
        X, z, train = data.X[order], data.z[order], int(0.8 * len(order))
    else:
        X, z = np.concatenate([data.X, data.X_test]), np.concatenate([data.z, data.z_test])
        train = len(data.X)
    table = torch.from_numpy(X.reshape(len(X), -1)).to(device).float()
    table = (table - table[:train].mean()) / table[:train].std()
    if device == "cuda":
        table = table.bfloat16() if half else table
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True  # every step has the same shapes
    return Images(table, z, train, math.isqrt(table.shape[1]), len(data.classes))


def work_many(cells: Sequence[Cell], device: str = "cpu") -> list[Result]:
    """The results of cells that differ in the trial only; their networks learn together."""
    begin = time.perf_counter()
    dataset, name, setting = common(cells)
    trials = [cell.trial for cell in cells]
    data = prepare(dataset, device, (name, setting) not in WHOLE)
    z_test = np.repeat(data.z[None, data.train :], len(trials), 0)
    history = History(z_test, trials)
    if name == "kmeans":
        known, new = (part.float()[None] for part in _parts(data))
        found = [cluster(known, new, data.classes, [trial])[0] for trial in trials]
    else:
        found = learn(data, METHODS[name], setting, trials, history)
    return as_results(cells, z_test, found, time.perf_counter() - begin, history)


def _parts(data: Images) -> tuple[Tensor, Tensor]:
    return data.table[: data.train], data.table[data.train :]


def learn(
    data: Images,
    method: Method,
    setting: str,
    trials: Sequence[int],
    history: History | None = None,
) -> list[Found]:
    """The classes that networks give to the test part in each trial."""
    if method.embeds:
        model = _train(data, method, setting, trials, 0, history).model
        known, out = (predict(model, data.table, rows) for rows in _rows(data, len(trials)))
        if method.embeds == "unit":
            known, out = F.normalize(known, dim=-1), F.normalize(out, dim=-1)
        return cluster(known, out, data.classes, trials)
    one = _train(data, method, setting, trials, 0, history)
    notes = _restart(data, method, setting, trials, one)
    more = range(RESTARTS + 1, RESTARTS + NETWORKS[setting])
    found = _average([one, *(_train(data, method, setting, trials, r) for r in more)], data, method)
    return [f._replace(note=note or f.note) for f, note in zip(found, notes, strict=True)]


def _restart(
    data: Images, method: Method, setting: str, trials: Sequence[int], trained: Trained
) -> list[str]:
    """Puts better networks in the place of those that collapsed; says so for each trial."""
    notes = [""] * len(trials)
    for restart in range(1, RESTARTS + 1):
        bad = collapsed(trained.losses, trained.chance)
        if not bad:
            break
        again = _train(data, method, setting, [trials[t] for t in bad], restart)
        for place, t in enumerate(bad):
            loss = float(trained.losses[t])
            notes[t] = f"collapsed (loss {loss:.3g}), begun again {restart} times"
            if not again.losses[place] >= loss:
                trained.losses[t] = again.losses[place]
                with torch.no_grad():
                    pairs = zip(trained.model.parameters(), again.model.parameters(), strict=True)
                    for p, q in pairs:
                        p[t] = q[place]
    return notes


def _average(trained: Sequence[Trained], data: Images, method: Method) -> list[Found]:
    """The classes of the test part by the networks of each trial together."""
    some = trained[0].some
    known, new = _rows(data, len(some.y))
    test = [predict(one.model, data.table, new).softmax(-1) for one in trained]
    if len(trained) == 1:
        return [Found(guesses) for guesses in test[0].argmax(-1).cpu().numpy()]
    held = [predict(one.model, data.table, known).softmax(-1) for one in trained]
    return [
        average(
            torch.stack([h[t] for h in held]),
            torch.stack([x[t] for x in test]),
            torch.stack([one.losses[t] for one in trained]),
            method.loss,
            Sample(some.members[t], some.y[t]),
        )
        for t in range(len(some.y))
    ]


def collapsed(losses: Tensor, chance: Tensor) -> list[int]:
    """The trials whose loss of training sets is far above the best one's, or that learned nothing.

    `chance` is what is lost by one who knows only how often each y is seen. Two of ten classes that
    are taken for one add about a tenth of it: a quarter of the best loss and 2 % of chance are
    more than trials differ otherwise.

    >>> collapsed(torch.tensor([0.020, 0.022, 0.050, torch.nan]), torch.tensor(0.3))
    [2, 3]
    """
    limit = 1.25 * losses.nan_to_num(torch.inf).min() + 0.02 * chance
    good = losses < torch.minimum(limit, 0.8 * chance)
    return (~good).nonzero()[:, 0].tolist()


def _rows(data: Images, count: int) -> tuple[Tensor, Tensor]:
    """The numbers of the images for training and of those for testing, once for each network."""
    every = torch.arange(len(data.z), device=data.table.device).expand(count, -1)
    return every[:, : data.train], every[:, data.train :]


class Trained(NamedTuple):
    """Networks, one per trial, and how well they did."""

    model: Convolutions
    losses: Tensor  # the mean loss of each on some of its training sets
    chance: Tensor  # that of one who knows only how often each y is seen
    some: Sample


def _train(
    data: Images,
    method: Method,
    setting: str,
    trials: Sequence[int],
    restart: int,
    history: History | None = None,
) -> Trained:
    """Networks that have learned, a beginning of their own for each `restart`."""
    seeds = [1000 * trial + restart for trial in trials]
    z = np.repeat(data.z[None], len(trials), 0)
    whole = Trials(data.table, z, (data.train, data.train), data.classes)
    drawn = [[trial, method.size] for trial in trials]
    sample = observe(whole, method, (0, data.train), drawn)
    head = (data.classes + 1) * method.head
    shift = int(SHIFT[setting] * data.side)
    model = Convolutions(data.side, data.classes, seeds, head, shift)
    model.to(data.table.device)
    known, new = _rows(data, len(trials))
    watch = None
    if history is not None:  # a first beginning
        watch = history.watch(method, lambda: predict(model, data.table, new))
    fit(model, method.loss, data.table, sample, PLAN[setting], seeds, watch=watch)
    some = Sample(sample.members[:, :LOOKED_AT], sample.y[:, :LOOKED_AT])
    losses = score(model, method.loss, data.table, HeldOut(known, some))
    share = some.y.unique(return_counts=True)[1] / some.y.numel()
    return Trained(model, losses, -(share * share.log()).sum(), some)
