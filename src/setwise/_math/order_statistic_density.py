"""One or two members at given places, a given number of the others below: order statistics.

The density of the k-th smallest at y is Σ_j f_j [x^{k−1}] Π_{i≠j} (S_i + F_i x): member j is marked
as the one at y, the others are below it (x) or above. Coefficients are found as in `counts`: tilted
so that the wanted power is the mean, then by a few roots of unity. Marks are carried through the
product, so nothing is ever subtracted, and the tilted sum is never small: without ties it is a
Poisson-binomial probability at its mean, because the polynomial has only real roots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from setwise._math.automaton import log_reach
from setwise._math.binary_counts import TILT_ERROR, Roots, reach_of, solve_tilt
from setwise._math.polynomials import tree_product
from setwise.numerics import chunked, logaddexp, logsumexp
from setwise.sets import Sets

Parts = tuple[Tensor, ...]
Ints = NDArray[np.int64]


class Sides(NamedTuple):
    """log P(below) and log P(above) of each member, (n, K)."""

    below: Tensor
    above: Tensor

    @property
    def odds(self) -> Tensor:
        """log-odds of being below, ±inf where that is certain."""
        return self.below - self.above

    def tilted(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """p = P(below) under tilt s, and log(above + below e^s)."""
        add = logaddexp if torch.is_grad_enabled() else torch.logaddexp  # the fast one has no safe
        return (self.odds + s).sigmoid(), add(self.above, self.below + s)  # second derivative

    def take(self, rows: Any) -> Sides:
        """The sides of these rows."""
        return Sides(self.below[rows], self.above[rows])


def before(x: Tensor) -> Tensor:
    """Sum of the entries left of each one.

    >>> before(torch.tensor([[1.0, 2.0, 4.0]]))
    tensor([[0., 1., 3.]])
    """
    return pad(x[:, :-1].cumsum(1), (1, 0))


def after(x: Tensor) -> Tensor:
    """Sum of the entries right of each one."""
    return before(x.flip(1)).flip(1)


def log_one_mark(at: Tensor, first: Sides, then: Sides, rank: int) -> Tensor:
    """log Σ_j at_j [x^rank] Π_{i<j} (above_i + below_i x) Π_{i>j} (above'_i + below'_i x).

    `first` holds the members left of the marked one, `then` those right of it: they differ where
    ties are broken by position, and are the same otherwise. All are (n, K) logarithms in float64;
    −inf with gradient zero where the sum is zero.
    """
    size = at.shape[1]
    possible = (at > -math.inf).any(1)
    at = torch.where(possible[:, None], at, 0.0)

    def weights(s: Tensor, rows: Any = slice(None)) -> Parts:
        """Tilted P(below) on either side; per mark, the others' mean count − rank and log-weight.

        Sums run over deviations from a typical value, and s·p is taken off each factor rather than
        s·rank off the whole: both keep digits in large sets.
        """
        p, scale = first.take(rows).tilted(s)
        q, scale_then = (p, scale) if then is first else then.take(rows).tilted(s)
        over = (before(p - rank / (size - 1)) + after(q - rank / (size - 1))).detach()
        scale, scale_then = scale - s * p.detach(), scale_then - s * q.detach()
        typical = scale.detach().mean(1, keepdim=True)
        others = before(scale - typical) + after(scale_then - typical) + (size - 1) * typical
        return p, q, over, at[rows] + others + s * over

    def excess(s: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
        p, q, over, weight = weights(s[:, None], rows)
        share = weight.softmax(1)
        mean = (share * over).sum(1)
        spread = before(p * (1 - p)) + after(q * (1 - q)) + (over - mean[:, None]).square()
        return mean, (share * spread).sum(1)

    with torch.no_grad():
        start = at.new_full(at.shape[:1], math.log((rank + 0.5) / (size - rank - 0.5)))
        s, gap, variance = solve_tilt(excess, torch.cat([first.odds, then.odds], 1), start)
        possible = possible & (gap.abs() < 0.5 + TILT_ERROR * variance.sqrt())
        s = torch.where(possible, s, 0.0)[:, None]
        p, q, _, _ = weights(s)
        decay = torch.minimum(p * (1 - p), q * (1 - q)).sum(1) - 0.25
        # with ties the tilted count is only log-concave, its tails may be exponential
        reach = reach_of(variance) if then is first else 40 * variance.sqrt() + 12
        roots = Roots.of(reach, decay, size - 1)
        weight = torch.where(possible[:, None], roots.weight * roots.turn(-rank), 0.0)
    p, q, _, share = weights(s)
    top = logsumexp(share, 1)
    share = (share - top[:, None]).exp()
    total = torch.where(possible, 1 / roots.period[:, 0], 1.0)
    total = total + _over_nodes(_one_mark, (p, q, share), roots.turn(), weight, arrays=8)
    return torch.where(possible, top + total.log(), -math.inf)


def _one_mark(p: Tensor, q: Tensor, share: Tensor, z: Tensor) -> Tensor:
    """Σ_j share_j Π_{i<j} φ_i(z) Π_{i>j} ψ_i(z), a product of triangular matrices."""
    turn = z[:, None, :] - 1
    left, right = 1 + p[:, :, None] * turn, 1 + q[:, :, None] * turn
    mark = share[:, :, None].expand_as(left).to(left.dtype)

    def multiply(x: Parts, y: Parts) -> Parts:
        return x[0] * y[0], x[0] * y[1] + x[1] * y[2], x[2] * y[2]

    return tree_product((left, mark, right), multiply)[1]


def log_one_mark_of_many(at: Tensor, sides: Sides, times: Tensor, rank: Tensor) -> Tensor:
    """`log_one_mark` where member i stands for times_i individuals without ties, some for none.

    log Σ_j n_j at_j [xʳ] Π_i g_i^{n_i} / g_j, g_i = above_i + below_i x; `rank` is one per set.
    """
    at = torch.where(times > 0, at + times.clamp_min(1).log(), -math.inf)
    possible = (at > -math.inf).any(1)
    at = torch.where(possible[:, None], at, 0.0)

    def weights(s: Tensor, rows: Any = slice(None)) -> Parts:
        """Tilted P(below); the others' mean count, and the log-weight, of each mark.

        s·p is taken off each factor rather than s·rank off the whole, which keeps digits.
        """
        p, scale = sides.take(rows).tilted(s)
        held, n = p.detach(), times[rows]
        over = (n * held).sum(1, keepdim=True) - held - rank[rows, None]
        total = (n * (scale - s * held)).sum(1, keepdim=True)
        return p, over, at[rows] + total - (scale - s * held) + s * over

    def excess(s: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
        p, over, weight = weights(s[:, None], rows)
        share = weight.softmax(1)
        mean = (share * over).sum(1)
        own = (times[rows] * p * (1 - p)).sum(1, keepdim=True) - p * (1 - p)
        return mean, (share * (own + (over - mean[:, None]).square())).sum(1).clamp_min(0)

    with torch.no_grad():
        size = times.sum(1)
        start = ((rank + 0.5) / (size - rank - 0.5).clamp_min(0.5)).log()
        held = Sides(*(torch.where(times > 0, t, -0.7) for t in sides))
        s, gap, variance = solve_tilt(excess, held.odds, start)
        possible = possible & (gap.abs() < 0.5 + TILT_ERROR * variance.sqrt())
        s = torch.where(possible, s, 0.0)[:, None]
        p, _, _ = weights(s)
        decay = (times * p * (1 - p)).sum(1) - 0.25
        roots = Roots.of(reach_of(variance), decay, int(size.max()) - 1)
        weight = torch.where(possible[:, None], roots.weight * roots.turn(-rank[:, None]), 0.0)
    p, _, share = weights(s)
    top = logsumexp(share, 1)
    share = (share - top[:, None]).exp()
    total = torch.where(possible, 1 / roots.period[:, 0], 1.0)
    total = total + _over_nodes(_marked_powers, (p, share, times), roots.turn(), weight, arrays=8)
    return torch.where(possible, top + total.log(), -math.inf)


def _marked_powers(p: Tensor, share: Tensor, times: Tensor, z: Tensor) -> Tensor:
    """Σ_j share_j / φ_j · Π_i φ_i^n_i: no φ is 0 at a root of odd order."""
    phi = 1 + p[:, :, None] * (z[:, None, :] - 1)
    square = phi.real.square() + phi.imag.square()
    modulus = (0.5 * times[:, :, None] * square.log()).sum(1).exp()
    turn = (times[:, :, None] * torch.atan2(phi.imag, phi.real)).sum(1)
    each = (share[:, :, None] / square * phi.conj()).sum(1)
    return torch.polar(modulus, turn) * each


def log_one_mark_of_few(at: Tensor, first: Sides, then: Sides, sets: Sets, rank: Ints) -> Tensor:
    """`log_one_mark` of members that are listed flat, for sets of any sizes, each with its rank.

    It reads the members one after another and counts those below, or those above if they are fewer:
    O(K · count) for each set.
    """
    fewer = np.minimum(rank, sets.sizes - 1 - rank)
    most = int(fewer.max())
    above = sets.repeat(torch.from_numpy(fewer < rank).to(at.device))
    letters = [at - sets.repeat(top := _heaviest(sets, at))]
    for sides in (first,) if then is first else (first, then):
        letters += [torch.where(above, sides.above, sides.below)]
        letters += [torch.where(above, sides.below, sides.above)]
    start = torch.from_numpy(most - fewer).to(at.device)
    wanted = torch.arange(2 * most + 2, device=at.device) == 2 * most + 1
    step = _count_and_mark(most, then is not first)
    wanted = wanted.expand(len(sets), -1)
    return log_reach(torch.stack(letters, 1), sets, step, start, wanted, normalised=True) + top


def _heaviest(sets: Sets, at: Tensor) -> Tensor:
    top = sets.max(at.detach())
    return torch.where(top.isfinite(), top, 0.0)


@cache
def _count_and_mark(most: int, ties: bool) -> Ints:
    """An automaton that counts to `most` and has, in its second half, seen the mark.

    Its letters are the mark, "counts" and "does not count"; the last two come once for members
    before the mark and once for those after it, if these differ.
    """
    count = np.arange(most + 1)
    more = np.append(count[1:], -1)
    lost = np.full(most + 1, -1)
    marked, counted = most + 1 + count, np.where(more < 0, -1, most + 1 + more)
    if ties:
        before = np.stack([marked, more, count, lost, lost], 1)
        return np.concatenate([before, np.stack([lost, lost, lost, counted, marked], 1)])
    before = np.stack([marked, more, count], 1)
    return np.concatenate([before, np.stack([lost, counted, marked], 1)])


def log_two_marks(
    at_low: Tensor, at_high: Tensor, sides: Sides, rank: Any, times: Tensor | None = None
) -> Tensor:
    """log Σ_{i≠j} at_low_i at_high_j [x^rank] Π_{l≠i,j} (above_l + below_l x), all (n, K ≥ 2).

    One member may be the most likely one for both marks, by far, yet can have only one of them. So
    the heaviest low mark is set apart, and the pairs in which that member is the low one, the high
    one or neither are scaled each by their own heaviest marks: none can be lost to underflow. Where
    members stand for several individuals, `times`, one of these is set apart.
    """
    many = times is not None
    times = torch.ones_like(at_low) if times is None else times
    size = times.sum(1)
    rank = torch.as_tensor(rank, device=size.device).to(size).expand_as(size)
    nowhere = (torch.maximum(sides.below, sides.above) == -math.inf).any(1)
    at_low, at_high = (torch.where(nowhere[:, None], 0.0, t) for t in (at_low, at_high))
    sides = Sides(*(torch.where(nowhere[:, None], 0.0, t) for t in sides))

    def excess(s: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
        given = at_low[rows], at_high[rows], sides.take(rows), times[rows]
        p, low, high, left, kinds, _ = _set_apart(*given, s[:, None], many)
        n_low, n_high = low.sum(1).clamp_min(1e-300), high.sum(1).clamp_min(1e-300)
        both = (n_low * n_high - (low * high / left.clamp_min(1)).sum(1)).clamp_min(0)
        share = (kinds + torch.stack([n_high, n_low, both], 1).log()).softmax(1)
        own, rest = p[:, 0], p[:, 1:]
        p_low, p_high = (low * rest).sum(1) / n_low, (high * rest).sum(1) / n_high
        marked = torch.stack([own + p_high, own + p_low, p_low + p_high], 1)
        mean = own + (left * rest).sum(1) - (share * marked).sum(1) - rank[rows]
        return mean, own * (1 - own) + (left * rest * (1 - rest)).sum(1)

    with torch.no_grad():
        start = ((rank + 1) / (size - rank - 1)).log()
        s, gap, variance = solve_tilt(excess, sides.odds, start)
        possible = ~nowhere & (gap.abs() < 0.5 + TILT_ERROR * variance.sqrt())
        s = torch.where(possible, s, 0.0)[:, None]
        roots = Roots.of(reach_of(variance + 1), variance - 0.5, int(size.max()) - 2)
        weight = roots.weight * roots.turn(-rank[:, None])
        # here the angle 0 is not known beforehand: it joins the others
        weight = torch.cat([(1 / roots.period).expand(len(s), 1), weight.expand(len(s), -1)], 1)
        z = pad(roots.turn(), (1, 0), value=1.0)
    p, low, high, left, kinds, base = _set_apart(at_low, at_high, sides, times, s, many)
    top = kinds.detach().amax(1)
    possible = possible & (top > -math.inf)
    kinds = (kinds - torch.where(possible, top, 0.0)[:, None]).exp()
    given = (p, low, high, kinds, *((left,) if many else ()))
    total = _over_nodes(_two_marks, given, z, weight, arrays=12)
    total = torch.where(possible, total, 1.0)
    held = (times * (sides.odds + s).sigmoid().detach()).sum(1)
    out = base + s[:, 0] * (held - rank) + torch.where(possible, top, 0.0)
    # of tilts so far out that nothing is left of O(1), a bound: no probability is above 1
    most = at_low.amax(1) + at_high.amax(1) + 2 * size.log()
    out = torch.where(out.detach() > most.detach() + 1, most, out + total.log())
    return torch.where(possible, out, -math.inf)


def _set_apart(
    at_low: Tensor, at_high: Tensor, sides: Sides, times: Tensor, s: Tensor, many: bool
) -> Parts:
    """p with the member set apart in front, the scaled marks of the others, and the log-scales.

    Marks of the others come once for each individual that is left of a member.
    """
    p, scale = sides.tilted(s)
    base = (times * (scale - s * p.detach())).sum(1)
    low, high = at_low - scale, at_high - scale
    best = torch.where(times > 0, low.detach(), -math.inf).argmax(1, keepdim=True)
    own = [t.gather(1, best) for t in (p, low, high)]
    if many:
        left = times.scatter_add(1, best, -torch.ones_like(own[0]).detach())
    else:  # the others, in an order in which they are next to each other
        order = torch.arange(1, p.shape[1], device=p.device).repeat(len(p), 1)
        order = torch.where(order == best, 0, order)
        p, low, high, left = (t.gather(1, order) for t in (p, low, high, times))
    gone = left == 0
    low, high = (torch.where(gone, -math.inf, t) for t in (low, high))
    tops = [t.detach().amax(1) for t in (low, high)]
    low_rest, high_rest = (
        (t - torch.where(top > -math.inf, top, 0.0)[:, None]).exp() * left
        for t, top in zip((low, high), tops, strict=True)
    )
    own_low, own_high = own[1][:, 0], own[2][:, 0]
    kinds = torch.stack([own_low + tops[1], own_high + tops[0], tops[0] + tops[1]], 1)
    return torch.cat([own[0], p], 1), low_rest, high_rest, left, kinds, base


def _two_marks(p: Tensor, low: Tensor, high: Tensor, kinds: Tensor, *given: Tensor) -> Tensor:
    """The sum over pairs at each z; the member set apart is the first one."""
    *times, z = given
    factor = 1 + p[:, :, None] * (z[:, None, :] - 1)
    rest = factor[:, 1:]
    low, high = (t[:, :, None].expand_as(rest).to(rest.dtype) for t in (low, high))
    none, both = rest, torch.zeros_like(rest)
    if times:  # φⁿ, n·low·φⁿ⁻¹, n·high·φⁿ⁻¹ and n (n − 1)·low·high·φⁿ⁻²
        (left,) = times
        n, log = left[:, :, None], rest.log()
        none, fewer = (n * log).exp(), ((n - 1) * log).exp()
        both = low * high * ((n - 2) * log).exp() * ((n - 1) / n.clamp_min(1)).clamp_min(0)
        low, high = low * fewer, high * fewer

    def multiply(x: Parts, y: Parts) -> Parts:
        one_low, one_high = x[0] * y[1] + x[1] * y[0], x[0] * y[2] + x[2] * y[0]
        return x[0] * y[0], one_low, one_high, x[0] * y[3] + x[3] * y[0] + x[1] * y[2] + x[2] * y[1]

    _, one_low, one_high, both = tree_product((none, low, high, both), multiply)
    kinds = kinds[:, :, None]
    return kinds[:, 0] * one_high + kinds[:, 1] * one_low + kinds[:, 2] * both * factor[:, 0]


def _over_nodes(
    fn: Callable[..., Tensor], parts: Parts, z: Tensor, weight: Tensor, arrays: int
) -> Tensor:
    """Σ_j Re[weight_j fn(*parts, z_j)], a few sets and a few angles at a time."""
    n, size = parts[0].shape
    z, weight = z.expand(n, -1), weight.expand(n, -1)
    step = max(16, (1 << 16) // size)
    total = torch.zeros_like(parts[0][:, 0])

    def part(*tensors: Tensor) -> Tensor:
        *rest, z, weight = tensors
        return (weight * fn(*rest, z)).real.sum(1)

    for some_z, some_weight in zip(z.split(step, 1), weight.split(step, 1), strict=True):
        if some_z.shape[1]:
            cost = 2 * arrays * size * some_z.shape[1]
            total = total + chunked(part, *parts, some_z, some_weight, cost=cost, budget=1 << 22)
    return total
