"""Integrals along paths in the complex plane: their nodes, and how many of them are enough.

Both are found without gradients, because the value of the integral does not depend on them; the sum
over fixed nodes is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from setwise._math.groups import Case, by_number
from setwise.numerics import at_once

Transform = Callable[[Tensor], Tensor]  # log of a transform at s of shape (n_sets, nodes)
Sums = tuple[Tensor, Tensor, Tensor, Tensor]

ANGLES = (90.0, 45.0, 67.5)  # how a path may leave the saddle point, in degrees
_MOST = 1600  # nodes


def cot(degrees: float) -> float:
    """The cotangent of an angle up to 90 degrees."""
    return 1 / math.tan(math.radians(degrees)) if degrees < 90 else 0.0


class Path(NamedTuple):
    """s(v) = centre + ahead · (cosh v − 1) + i · up · sinh v for v in [0, length], one per set.

    A negative length marks the straight path to Im s = π, for integrands with period 2πi.
    """

    centre: Tensor
    ahead: Tensor
    up: Tensor
    length: Tensor

    def at(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """s and ds/dv at v of shape (n_sets, nodes)."""
        centre, ahead, up, length = (t.unsqueeze(1) for t in self)
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
            s, ds = self.at(length.unsqueeze(1))
            size = (log_transform(s) - s * y.unsqueeze(1)).real.squeeze(1) - top
            size = size + (ds.abs().squeeze(1) / self.up).log()
            far = torch.log1p((s.squeeze(1) - self.centre).abs() / self.up)
            alive = alive & ~((size < -39) & ((size + 2 * far < -27) | (length > 45)))
            if not alive.any():
                break
        return self._replace(length=length)


class Plan:
    """How many nodes each set takes, −1 where no number is enough, and what places them.

    `tensors` have one entry per set: y and the parameters. `cost` is the number of elements that
    one node of one set takes.
    """

    def __init__(self, *tensors: Tensor, cost: int) -> None:
        self.tensors, self.cost = tensors, cost
        self.nodes = torch.full_like(tensors[0], -1, dtype=torch.long)
        self.constants: list[Tensor] = []

    def refine(
        self,
        which: Tensor,
        candidates: Sequence[Sequence[Tensor]],
        sums: Callable[..., Sums],
        *,
        first: int = 24,
        steady: float = 1e-7,
        slack: Tensor | float = 0.0,
        floor: float = 0.0,
    ) -> None:
        """Doubles the nodes of the sets in the mask `which` until their sums stand still.

        Each of the `candidates` holds constants that place the nodes, one entry per set in each
        tensor; the first that settles is taken. `sums(n, *constants, *tensors)` gives the sums over
        n + 1 nodes, over every second and every fourth node, and of absolute values.

        `steady` is the relative change allowed: where the error squares when the nodes double, a
        change of 1e-7 leaves an error of 1e-14. The change before it must have been below about
        3e-4, since two oscillating errors can agree by chance. `slack` is added to `steady` for
        each set; `floor` is the least share of its absolute terms that a sum must keep. `first` is
        the number of nodes to begin with.
        """
        self.constants = self.constants or [t.clone() for t in candidates[0]]
        allowed = steady + slack + torch.zeros_like(self.tensors[0])
        left = which.nonzero().squeeze(1)
        n = first
        while len(left) and n <= _MOST:
            for constants in candidates:
                parts, left = left.split(max(1, at_once(left) // (n * self.cost))), left[:0]
                for part in parts:
                    given = (t[part] for t in (*constants, *self.tensors))
                    fine, coarse, rough, size = sums(n, *given)
                    done = (fine - coarse).abs() <= allowed[part] * fine
                    done = done & ((coarse - rough).abs() <= 10 * allowed[part].sqrt() * fine)
                    done = done & (fine > floor * size)
                    at, left = part[done], torch.cat([left, part[~done]])
                    self.nodes[at] = n
                    for own, new in zip(self.constants, constants, strict=True):
                        own[at] = new[at]
                if not len(left):
                    break
            n *= 2

    def cases(self, log_sum: Callable[..., Tensor]) -> list[Case]:
        """For `piecewise`: log_sum(n, *constants, *tensors) of the sets that take n nodes."""
        return by_number(self.nodes, log_sum, *self.constants, *self.tensors, cost=self.cost)


def trapezoid_sums(terms: Tensor) -> Sums:
    """The sums of trapezoidal terms: all, every second and fourth one, and of absolute values."""
    halves, quarters = 2 * terms[:, ::2].sum(1), 4 * terms[:, ::4].sum(1)
    return terms.sum(1), halves, quarters, terms.abs().sum(1)
