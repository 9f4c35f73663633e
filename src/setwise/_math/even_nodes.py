"""P(z₁ > z₂ > … > z_K) on evenly spaced nodes: quick where densities are smooth, with light tails.

A smooth function that vanishes at both ends is known by its values at even nodes, and so are its
running integrals (sinc interpolation; Si is the sine integral):

    ∫_{−∞}^{x_j} f = h Σ_k f(x_k) (½ + Si(π (j − k)) / π),

with an error that falls exponentially in 1/h. So G_k(x) = ∫_{−∞}^x p_k(s) G_{k+1}(s) ds, with
G_{K+1} = 1, is a product with one matrix for each member, and P = G₁(∞). Nodes are even in t, where

    x = t + w·exp((t − b) / w − 3) − w·exp((a − t) / w − 3)

reaches far beyond the outermost centres a and b (w is the largest width). There are no logs, so
digits are lost where members are far out of order, and a density may be too steep for the step. The
error is followed from member to member, and where it gets large the set is left to
`order_probability`.

Stenger, "Numerical methods based on Whittaker cardinal, or sinc functions", SIAM Review 1981.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import sici
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.graded import graded
from setwise._math.groups import Case, piecewise
from setwise._math.integration_axis import Line
from setwise._math.quadrature import rebuild
from setwise._math.tied_orders import Sizes, Steps, integrals, log_beside
from setwise.distributions import parameters
from setwise.numerics import gather

__all__ = ["UNKNOWN", "log_ordered_evenly"]

UNKNOWN = 1.0  # in place of a logarithm, which is at most 0, that is not known well enough
_STEPS = 0.28, 0.2  # between nodes, in units of the smallest width, whichever knows more sets
_BEND = 3.0
_REACH = 6.4  # of t beyond the outermost centres, in units of the largest width: 36 of x
_MOST, _MULTIPLE = 384, 16  # nodes of a set
_NOTHING = -33.0  # the log of p·w at both ends is below
_SAMPLE = 16  # sets that tell which step will do
_HALF = 100.0  # times the square of how far off half the nodes are: seen with Gumbel targets
_ROUNDING = 1e-15  # of a running integral, relative to its end
_ERROR = 1e-10  # of the result, as far as it can be told
_AT_ONCE = 1 << 20  # elements


def log_ordered_evenly(d: Distribution, line: Line, tied: Sizes | None = None) -> Tensor:
    """log P(z₁ > z₂ > …) of members batched as (sets, K), to about 1e-11; else `UNKNOWN`.

    `tied` are the sizes of groups in which the order is not known, by default 1 each.

    >>> d = torch.distributions.Normal(torch.zeros(1, 3).double(), torch.ones(1, 3).double())
    >>> 1 / log_ordered_evenly(d, Line.of(d)).exp()  # 3!
    tensor([6.0000], dtype=torch.float64)
    """
    tied = (1,) * d.batch_shape[1] if tied is None else tied
    ends = torch.stack([line.centres.amin(1), line.centres.amax(1), line.widths.amax(1)], 1)
    able = _vanishes(d, line, ends)
    some = able.nonzero().squeeze(1)
    if not len(some):
        return ends.new_full((len(ends),), UNKNOWN)
    some = some[:: -(-len(some) // _SAMPLE)]
    part = rebuild(d, (p.detach()[some] for p in parameters(d).values()))
    found = (_by_steps(part, line.take(some), ends[some], tied, step) for step in _STEPS)
    step = _STEPS[int(torch.stack([(each < UNKNOWN).sum() for each in found]).argmax())]

    def unknown(at: Tensor) -> Tensor:
        return ends.new_full((len(at),), UNKNOWN)

    def known(at: Tensor) -> Tensor:
        own = rebuild(d, (gather(p, at) for p in parameters(d).values()))
        return _by_steps(own, line.take(at), ends[at], tied, step)

    return piecewise((~able, unknown), (able, known))


def _by_steps(d: Distribution, line: Line, ends: Tensor, tied: Sizes, step: float) -> Tensor:
    """All sets with this step: those of about as many nodes together."""
    tensors = list(parameters(d).values())
    low, high, wide = ends.unbind(1)
    wanted = (high - low + 2 * _REACH * wide) / (step * line.widths.amin(1) * _MULTIPLE)
    steps = (wanted.clamp(max=_MOST).ceil() * _MULTIPLE).long()  # one less than there are nodes

    def values(at: Tensor, n: int) -> Tensor:
        own = [gather(t, at) for t in tensors]
        fn = partial(_ordered, d, line, tied, n + 1)
        return graded(fn, ends[at], *own, cost=8 * n * integrals(tied), budget=_AT_ONCE)

    few = steps <= _MOST
    cases: list[Case] = [(~few, lambda at: low.new_full((len(at),), UNKNOWN))]
    cases += [(steps == n, partial(values, n=n)) for n in steps[few].unique().tolist()]
    return piecewise(*cases)


def _place(ends: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """x and dx/dt at t, (sets, nodes)."""
    low, high, wide = (part.unsqueeze(1) for part in ends.unbind(1))
    right, left = ((t - high) / wide - _BEND).exp(), ((low - t) / wide - _BEND).exp()
    return t + wide * (right - left), 1 + right + left


def _vanishes(d: Distribution, line: Line, ends: Tensor) -> Tensor:
    """Whether every member's density is nothing at both ends of the nodes."""
    if line.kinked:
        return torch.zeros(len(ends), dtype=torch.bool, device=ends.device)
    low, high, wide = ends.unbind(1)
    x, _ = _place(ends, torch.stack([low - _REACH * wide, high + _REACH * wide], 1))
    with torch.no_grad():
        members = rebuild(d, (p.unsqueeze(2) for p in parameters(d).values()))
        density = line.log_density(members, x.unsqueeze(1)) + wide.log()[:, None, None]
    return (density < _NOTHING).all(2).all(1)


def _ordered(
    d: Distribution, line: Line, tied: Sizes, n: int, ends: Tensor, *tensors: Tensor
) -> Tensor:
    """The logarithm of each set's probability by n nodes, or `UNKNOWN`."""
    low, high, wide = ends.unbind(1)
    begin, step = low - _REACH * wide, (high - low + 2 * _REACH * wide) / (n - 1)
    number = torch.arange(n, device=ends.device, dtype=ends.dtype)
    x, slope = _place(ends, begin.unsqueeze(1) + step.unsqueeze(1) * number)
    log_dx = (slope * step.unsqueeze(1)).log()
    members = rebuild(d, (p.T.unsqueeze(2) for p in tensors))
    return _Nodes(members, line, x, log_dx).walk(tied).logarithm()


class _Known(NamedTuple):
    """exp(log_unit) times the values of a function at the nodes, up to some error."""

    values: Tensor  # (sets, nodes)
    error: Tensor
    log_unit: Tensor  # (sets,), without derivative
    whole: Tensor  # its limit to the right, over what it is without derivative

    def times(self, factor: Tensor) -> _Known:
        """The product with a function that is known."""
        return self._replace(values=self.values * factor, error=self.error * factor.detach())

    def logarithm(self) -> Tensor:
        """That of the limit, or `UNKNOWN`."""
        lost = ~(self.error[:, -1] < _ERROR)
        total = torch.where(lost, 1.0, self.whole).log() + self.log_unit
        return torch.where(lost, UNKNOWN, total)


class _Nodes(Steps[_Known]):
    """Running integrals at even nodes, without logs."""

    def __init__(self, members: Distribution, line: Line, x: Tensor, log_dx: Tensor) -> None:
        self.members, self.line, self.x = members, line, x
        self.density = (line.log_density(members, x) + log_dx).exp()  # (K, sets, nodes)
        self.up_to = torch.from_numpy(_running(x.shape[1])).to(x)

    def begin(self) -> _Known:
        one = torch.ones_like(self.x)
        return _Known(one, torch.zeros_like(one), 0 * one[:, 0], one[:, 0])

    def _log_tails(self, members: range, *, upper: bool) -> Tensor:
        some = slice(members.start, members.stop)
        d = rebuild(self.members, (p[some] for p in parameters(self.members).values()))
        return self.line.log_tail(d, self.x, upper=upper)

    def below(self, members: range) -> _Known:
        return self.begin().times(self._log_tails(members, upper=False).sum(0).exp())

    def above_beside(self, members: range, below: _Known) -> list[_Known]:
        if len(members) == 1:
            return [below]
        return [*map(below.times, log_beside(self._log_tails(members, upper=True)).exp())]

    def integral(self, terms: Sequence[tuple[int, _Known]]) -> _Known:
        unit = terms[0][1].log_unit
        if len(terms) > 1:
            unit = torch.stack([known.log_unit for _, known in terms]).amax(0)
        mass, error = torch.zeros_like(self.x), torch.zeros_like(self.x)
        for k, known in terms:
            part = self.density[k]
            if len(terms) > 1:
                part = part * (known.log_unit - unit).exp().unsqueeze(1)
            mass, error = mass + part * known.values, error + part.detach() * known.error
        whole = mass.sum(1, keepdim=True)
        size = whole.detach().clamp_min(1e-300)
        with torch.no_grad():  # off by the square of what half the nodes are off by, and more
            halved = 2 * mass[:, ::2].sum(1, keepdim=True) / size - 1
            error = error.cumsum(1) / size + _HALF * halved.square() + _ROUNDING
        shares = mass / size
        return _Known(shares @ self.up_to, error, unit + size[:, 0].log(), (whole / size)[:, 0])


@cache
def _running(n: int) -> NDArray[np.float64]:
    """What each node (a line) adds to the running integral at each node (a column)."""
    apart = np.arange(-(n - 1), n)
    weight = 0.5 + sici(np.pi * apart)[0] / np.pi
    node = np.arange(n)
    out: NDArray[np.float64] = weight[node[None, :] - node[:, None] + n - 1]
    return out
