"""Integrals along paths in the complex plane: their nodes, and how many of them are enough.

Both are found without gradients, because the value of the integral does not depend on them; what is
differentiated afterwards is the sum over fixed nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from setwise.numerics import chunked, gather

__all__ = [
    "ANGLES",
    "Path",
    "Plan",
    "Sums",
    "assemble",
    "clenshaw_curtis",
    "cot",
    "trapezoid_sums",
]

Transform = Callable[[Tensor], Tensor]  # log of a transform at s of shape (n_sets, nodes)
Sums = tuple[Tensor, Tensor, Tensor, Tensor]
Constants = Sequence[Tensor]  # what places the nodes: one entry per set in each tensor

ANGLES = (90.0, 45.0, 67.5)  # how a path may leave the saddle point, in degrees
_MOST = 1600  # nodes
_BUDGET = 1 << 20


def cot(degrees: float) -> float:
    """The cotangent of an angle up to 90 degrees."""
    return 1 / math.tan(math.radians(degrees)) if degrees < 90 else 0.0


@dataclass(frozen=True)
class Path:
    """s(v) = centre + ahead · (cosh v − 1) + i · up · sinh v for v in [0, length], one per set.

    A negative length marks the straight path to Im s = π, for integrands with period 2πi.
    """

    centre: Tensor
    ahead: Tensor
    up: Tensor
    length: Tensor

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The four tensors that define it."""
        return self.centre, self.ahead, self.up, self.length

    def at(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """s and ds/dv at v of shape (n_sets, nodes)."""
        centre, ahead, up, length = (t.unsqueeze(1) for t in self.constants)
        periodic = length < 0
        bent = torch.where(periodic, 0.0, v)
        cosh, sinh = bent.cosh(), bent.sinh()
        rise = torch.where(periodic, v * (math.pi / length.abs()), up * sinh)
        slope = torch.where(periodic, math.pi / length.abs(), up * cosh)
        return torch.complex(centre + ahead * (cosh - 1), rise), torch.complex(ahead * sinh, slope)

    def terms(self, n: int, log_transform: Transform, y: Tensor, top: Tensor) -> Tensor:
        """The n + 1 terms of the trapezoidal sum for f(y) exp(−top): half the path, by symmetry."""
        step = (self.length.abs() / n).unsqueeze(1)
        s, ds = self.at(step * torch.arange(n + 1, device=step.device))
        ends = torch.ones(n + 1, dtype=step.dtype, device=step.device)
        ends[0] = ends[-1] = 0.5
        density = (log_transform(s) - s * y.unsqueeze(1) - top.unsqueeze(1)).exp()
        return (density * (ds * (step * ends / math.pi))).imag

    def long_enough(self, log_transform: Transform, y: Tensor, top: Tensor) -> Path:
        """The path, as long as it takes the integrand to die out, second derivatives included."""
        length = torch.full_like(y, 0.5)
        alive = torch.ones_like(y, dtype=torch.bool)
        for _ in range(22):
            length = torch.where(alive, length * 1.25, length)
            s, ds = Path(self.centre, self.ahead, self.up, length).at(length.unsqueeze(1))
            size = (log_transform(s) - s * y.unsqueeze(1)).real.squeeze(1) - top
            size = size + (ds.abs().squeeze(1) / self.up).log()
            far = torch.log1p((s.squeeze(1) - self.centre).abs() / self.up)
            alive = alive & ~((size < -39) & ((size + 2 * far < -27) | (length > 45)))
            if not alive.any():
                break
        return Path(self.centre, self.ahead, self.up, length)


class Plan:
    """Where the nodes of each set lie and how many there are; 0 where no number was enough."""

    def __init__(self, cost: int) -> None:
        self.cost = cost  # elements that one node of one set takes
        self.entries: list[tuple[int, Tensor, Constants]] = []

    def refine(
        self,
        which: Tensor,
        candidates: Sequence[Constants],
        sums: Callable[[int, Tensor, Constants], Sums],
        *,
        first: int = 24,
        steady: float = 1e-7,
        slack: Tensor | float = 0.0,
        floor: float = 0.0,
    ) -> Tensor:
        """Doubles the nodes until the sum stands still; returns the sets where it never does.

        `candidates` hold constants for all sets; the first that settles is taken. `sums(n, which,
        constants)` gives the sums over n + 1 nodes, over every second and every fourth node, and of
        absolute values. `steady` is the relative change allowed: where the error squares when the
        nodes double, a change of 1e-7 leaves an error of 1e-14, and one of 3e-4 came before it.
        That is asked for too, since two errors that swing can agree by chance. `slack` is added to
        `steady` for each set; `floor` is the least share of its absolute terms that a sum must
        keep. `first` is the number to begin with.
        """
        allowed = steady + slack + torch.zeros_like(candidates[0][0])
        n = first
        while len(which) and n <= _MOST:
            for constants in candidates:
                left = []
                for part in which.split(max(1, _BUDGET // (n * self.cost))):
                    fine, coarse, rough, size = sums(n, part, [t[part] for t in constants])
                    done = (fine - coarse).abs() <= allowed[part] * fine
                    done = done & ((coarse - rough).abs() <= 10 * allowed[part].sqrt() * fine)
                    done = done & (fine > floor * size)
                    self.take(n, part[done], constants)
                    left.append(part[~done])
                which = torch.cat(left)
                if not len(which):
                    break
            n *= 2
        return which

    def take(self, n: int, which: Tensor, constants: Constants) -> None:
        """Gives these sets n nodes."""
        if len(which):
            self.entries.append((n, which, [t[which] for t in constants]))

    def evaluate(
        self, log_sum: Callable[..., Tensor], y: Tensor, *tensors: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """(sets, log_sum(n, constants, y, *tensors)) for each number of nodes n."""
        out = []
        for n in sorted({n for n, _, _ in self.entries}):
            group = [(which, constants) for m, which, constants in self.entries if m == n]
            which = torch.cat([w for w, _ in group])
            held = [torch.cat(parts) for parts in zip(*(c for _, c in group), strict=True)]
            given = [gather(t, which) for t in (y, *tensors)]

            def fn(y: Tensor, *rest: Tensor, n: int = n, k: int = len(held)) -> Tensor:
                return log_sum(n, rest[:k], y, *rest[k:])

            cost = (n + 1) * self.cost
            out.append((which, chunked(fn, given[0], *held, *given[1:], cost=cost)))
        return out


def trapezoid_sums(terms: Tensor) -> Sums:
    """The sums of trapezoidal terms: all, every second and fourth one, and of absolute values."""
    halves, quarters = 2 * terms[:, ::2].sum(1), 4 * terms[:, ::4].sum(1)
    return terms.sum(1), halves, quarters, terms.abs().sum(1)


@lru_cache
def clenshaw_curtis(n: int) -> tuple[Tensor, Tensor]:
    """Nodes on [0, 1] and weights of the Clenshaw-Curtis rule with n + 1 nodes, n even.

    Every other node belongs to the rule with n/2 + 1 nodes.
    """
    j = torch.arange(n + 1, dtype=torch.float64)
    k = torch.arange(1, n // 2 + 1, dtype=torch.float64)
    share = torch.full_like(k, 2.0)
    share[-1] = 1.0
    turn = torch.cos(2 * math.pi * j[:, None] * k / n)
    weights = (1 - (share / (4 * k * k - 1) * turn).sum(1)) / n
    weights[0] *= 0.5
    weights[-1] *= 0.5
    return 0.5 * (1 - torch.cos(math.pi * j / n)), weights


def assemble(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Values of all sets in order, from (sets, values) of groups of them."""
    order = torch.cat([which for which, _ in parts]).argsort()
    return gather(torch.cat([value for _, value in parts]), order)
