"""The columns of the classification tables: what each observes, what it minimises, K-means.

A loss takes the outputs of R networks for the members of B sets each, (R, B, K, C), what was seen
of the sets, (R, B), and further parameters, (R, H); it gives the mean loss of each network, (R,).
None asks the device for a number, so that a step can be recorded as a CUDA graph.

The losses of metric learning are those of the papers cited, a few lines each. Triplets whose
members are equally far apart say nothing to them and are left out. Their outputs are embeddings,
of which K-means makes classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn import functional as F

import setwise as sw
from setwise.likelihood import evaluate

__all__ = ["METHODS", "Loss", "Method", "kmeans", "nearest"]

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


# ---- exact likelihoods


def negative_log_likelihood(
    aggregate: sw.Aggregate, out: Tensor, y: Tensor, head: Tensor
) -> Tensor:
    """−log p(y) by the library's own rule for classes; outputs are logits."""
    networks, sets, size, classes = out.shape
    members = Categorical(logits=out.reshape(-1, classes), validate_args=False)
    each = evaluate(aggregate, members, _flat(networks * sets, size), y.reshape(-1))
    return -each.reshape(networks, sets).mean(1)


@lru_cache(maxsize=16)
def _flat(sets: int, size: int) -> sw.Sets:
    """Sets over a table that lists their members one after another."""
    return sw.Sets(np.arange(sets * size).reshape(sets, size))


def cross_entropy(out: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """−log p(y) of single rows: full supervision."""
    return F.cross_entropy(out[:, :, 0].transpose(1, 2), y.long(), reduction="none").mean(1)


# ---- metric learning


def siamese(out: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """Cross-entropy of σ(b + Σ aⱼ |uⱼ − vⱼ|) with learned a and b.

    Koch, Zemel & Salakhutdinov, "Siamese neural networks for one-shot image recognition", 2015.
    """
    gap = (out[:, :, 0] - out[:, :, 1]).abs()
    logit = head[:, :1] + torch.bmm(gap, head[:, 1:, None]).squeeze(-1)
    return F.binary_cross_entropy_with_logits(logit, y, reduction="none").mean(1)


def contrastive(out: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """d² for alike, max(0, 1 − d)² for unlike pairs, with the distance d of their outputs.

    Hadsell, Chopra & LeCun, "Dimensionality reduction by learning an invariant mapping", CVPR 2006.
    """
    first, second = out.unbind(2)
    return _pull(first, second, y).mean(1)


def contrastive_triplets(three_way: bool, out: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """The contrastive loss of the pairs in a triplet, by what y makes most likely of them.

    "Not closer to the second" is taken for "unlike the second": with C classes of one size it is
    wrong once in C² − C + 1 times. It serves to begin with, not to end with.
    """
    first, second, third = out.unbind(2)
    near, far = _pull(first, second, (y == 1).float()), _pull(first, third, (y == -1).float())
    return (near + (far if three_way else far * y)).mean(1)


def _pull(u: Tensor, v: Tensor, alike: Tensor) -> Tensor:
    square = (u - v).square().sum(-1)
    distance = (square + 1e-12).sqrt()  # a root of 0 has no derivative
    return torch.lerp((1 - distance).relu().square(), square, alike)


def tuplet(out: Tensor, y: Tensor, head: Tensor) -> Tensor:
    """log(1 + exp(u·v₋ − u·v₊)), where v₊ is the member closer to u.

    Sohn, "Improved deep metric learning with multi-class N-pair loss objective", NeurIPS 2016.
    """
    first, second, third = out.unbind(2)
    return _told(F.softplus(-y * (first * (second - third)).sum(-1)), y)


def triplet(out: Tensor, y: Tensor, head: Tensor, margin: float = 0.2) -> Tensor:
    """max(0, |u − v₊|² − |u − v₋|² + margin) of outputs scaled to length 1.

    Schroff, Kalenichenko & Philbin, "FaceNet", CVPR 2015.
    """
    first, second, third = F.normalize(out, dim=-1).unbind(2)
    gap = (first - second).square().sum(-1) - (first - third).square().sum(-1)
    return _told((y * gap + margin).relu(), y)


def _told(each: Tensor, y: Tensor) -> Tensor:
    """The mean over the sets that are told apart, y = ±1."""
    told = y.abs()
    return (each * told).sum(1) / told.sum(1).clamp_min(1.0)


class Method(NamedTuple):
    """A column: what is observed of sets of `size` members, and the loss.

    There are `size` times as many sets as training rows, of single rows one for each. `embeds` says
    how K-means is to look at the outputs ("" where they are classes), `head` whether the loss
    learns one weight per output and an intercept of its own. `begin` is a loss whose embedding, cut
    into clusters, is a good beginning for classes.
    """

    aggregate: sw.Aggregate
    size: int
    loss: Loss
    embeds: str = ""
    head: bool = False
    begin: Loss | None = None


def _mle(aggregate: sw.Aggregate, size: int, begin: Loss) -> Method:
    return Method(aggregate, size, partial(negative_log_likelihood, aggregate), begin=begin)


_THREE = sw.Triplet(three_way=True)
METHODS: dict[str, Method] = {
    "siamese": Method(sw.Similarity(), 2, siamese, embeds="plain", head=True),
    "contrastive": Method(sw.Similarity(), 2, contrastive, embeds="plain"),
    "similarity_mle": _mle(sw.Similarity(), 2, contrastive),
    "tuplet": Method(_THREE, 3, tuplet, embeds="plain"),
    "triplet": Method(_THREE, 3, triplet, embeds="unit"),
    "triplet_mle": _mle(sw.Triplet(), 3, partial(contrastive_triplets, False)),
    "triplet_mle_three_way": _mle(_THREE, 3, partial(contrastive_triplets, True)),
    "supervised": Method(sw.Direct(), 1, cross_entropy),
}


# ---- K-means


def kmeans(
    x: Tensor,
    k: int,
    seed: int = 0,
    *,
    beginnings: int = 10,
    iterations: int = 300,
    narrow: int | None = None,
) -> Tensor:
    """The centres, (k, features), with the least sum of squares out of several beginnings.

    Lloyd's iterations from k-means++ seeds, all beginnings at once as two matrix products. After
    `narrow` iterations only the best of the beginnings goes on.

    >>> x = torch.tensor([0.0, 0.1, 5.0, 5.1])[:, None]
    >>> kmeans(x, 2).flatten().sort().values
    tensor([0.0500, 5.0500])
    """
    generator = torch.Generator(x.device).manual_seed(seed)
    shift = x.mean(0)
    x = x - shift
    centres = _seeds(x, k, beginnings, generator)
    for number in range(iterations):
        if number == narrow:
            centres = centres[_spread(x, centres).argmin()][None]
        label = _label(x, centres)
        member = F.one_hot(label, k).to(x.dtype).flatten(1)  # (rows, beginnings · k)
        count = member.sum(0).reshape(-1, k, 1)
        new = (member.T @ x).reshape(len(centres), k, -1) / count.clamp_min(1.0)
        new = torch.where(count > 0, new, centres)
        moved = new - centres
        centres = new
        if number % 10 == 9 and float(moved.abs().max()) <= 1e-4 * float(x.std()):
            break
    return centres[_spread(x, centres).argmin()] + shift


def _spread(x: Tensor, centres: Tensor) -> Tensor:
    """The sum of squares of each beginning."""
    return torch.stack([(x - c[nearest(x, c)]).square().sum() for c in centres])


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """The number of the nearest centre of each row.

    >>> nearest(torch.tensor([[0.0], [4.0]]), torch.tensor([[5.0], [1.0]]))
    tensor([1, 0])
    """
    return _label(x, centres[None])[:, 0]


def _label(x: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each row in each beginning, (rows, beginnings)."""
    beginnings, k, d = centres.shape
    # |x − c|² less |x|², which is the same for all centres
    gap = centres.square().sum(-1).reshape(-1) - 2 * x @ centres.reshape(-1, d).T
    return gap.reshape(len(x), beginnings, k).argmin(-1)


def _seeds(x: Tensor, k: int, beginnings: int, generator: torch.Generator) -> Tensor:
    """Rows drawn one after another, each with odds of its squared distance from those before."""
    first = torch.randint(len(x), (beginnings,), generator=generator, device=x.device)
    chosen = [x[first]]
    far = x.new_full((beginnings, len(x)), torch.inf)
    for _ in range(k - 1):
        last = chosen[-1]
        gap = x.square().sum(1) - 2 * last @ x.T + last.square().sum(1, keepdim=True)
        far = torch.minimum(far, gap.clamp_min(0.0))
        odds = far + 1e-12 * far.amax(1, keepdim=True).clamp_min(1e-30)
        chosen.append(x[torch.multinomial(odds, 1, generator=generator)[:, 0]])
    return torch.stack(chosen, 1)
