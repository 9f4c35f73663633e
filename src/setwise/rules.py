"""What likelihood rules of one's own may use, beside `setwise.numerics`: integrals and counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import Distribution

from setwise._math.class_counts import log_compositions
from setwise._math.integration_axis import Line, piecewise
from setwise._math.quadrature import rebuild
from setwise.distributions import family_of, log_cdf, log_survival, parameters
from setwise.numerics import logsubexp

__all__ = ["log_between", "log_compositions", "log_integral"]


def log_integral(
    integrand: Callable[..., Tensor],
    members: Distribution,
    *tensors: Tensor,
    shifts: Sequence[Tensor] = (),
) -> Tensor:
    """log ∫ exp(integrand(x, members, *tensors)) dx over where targets can be, one for each set.

    `members` is batched (sets, K) and continuous, the tensors have one entry per set. The integrand
    is given the points x, (cells, nodes, 1), with what belongs to them: members that are batched
    (cells, 1, K) and tensors (cells, 1, 1); it returns (cells, nodes). Steps and bumps must be
    where targets are, or where targets less one of the `shifts`, (sets,), are. The relative error
    is about 1e-11, however improbable the event.

    >>> two = torch.distributions.Normal(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    >>> def first(x, members):  # ∫ p₁(x) P(Z₂ < x) dx
    ...     return members.log_prob(x)[..., 0] + log_cdf(members, x)[..., 1]
    >>> log_integral(first, two).exp()
    tensor([0.5000], dtype=torch.float64)
    """
    values = list(parameters(members).values())
    line = Line.of(members)
    moved = [line.shifted(shift.detach()[:, None]) for shift in shifts]
    line = replace(
        line,
        centres=torch.cat([line.centres, *(m.centres for m in moved)], 1),
        widths=torch.cat([line.widths, *(m.widths for m in moved)], 1),
    )

    def inner(x: Tensor, *given: Tensor) -> Tensor:
        d = rebuild(members, (v.unsqueeze(1) for v in given[: len(values)]))
        return integrand(x.unsqueeze(2), d, *(t[:, None, None] for t in given[len(values) :]))

    size = values[0].shape[1]
    return line.integral(inner, [*values, *tensors], cost=8 * size**2)


def log_between(distribution: Distribution, low: Tensor, high: Tensor) -> Tensor:
    """log P(low < Z ≤ high) of finite bounds, from whichever tail keeps its digits.

    >>> d = torch.distributions.Normal(0.0, 1.0)
    >>> log_between(d, torch.tensor(1.0), torch.tensor(2.0)).exp()
    tensor(0.1359)
    """
    family = family_of(distribution)
    centre = family.centre_width(distribution)[0].detach()
    values = list(parameters(distribution).values())
    upper = low > (centre.exp() if family.positive else centre)
    flat = [t.reshape(-1) for t in torch.broadcast_tensors(upper, low, high, *values)]

    def part(at: Tensor, tail: Callable[..., Tensor], near: int, far: int) -> Tensor:
        given = [t[at] for t in flat]
        d = rebuild(distribution, given[3:])
        return logsubexp(tail(d, given[near]), tail(d, given[far]))

    found = piecewise(
        (flat[0], lambda at: part(at, log_survival, 1, 2)),
        (~flat[0], lambda at: part(at, log_cdf, 2, 1)),
    )
    return found.reshape(torch.broadcast_shapes(upper.shape, high.shape, values[0].shape))
