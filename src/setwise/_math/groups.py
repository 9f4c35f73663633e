"""Sets in groups that are computed in different ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from setwise.numerics import chunked, gather

Case = tuple[Tensor, Callable[[Tensor], Tensor]]


def piecewise(*cases: Case) -> Tensor:
    """One value per set; each case is a mask and a function of the numbers of the sets in it.

    >>> even = torch.tensor([True, False, True])
    >>> piecewise((even, lambda at: 10 * at), (~even, lambda at: -at))
    tensor([ 0, -1, 20])
    """
    places = [(mask.nonzero().squeeze(1), value) for mask, value in cases]
    values = torch.cat([value(at) for at, value in places if len(at)])
    return gather(values, torch.cat([at for at, _ in places]).argsort())


def by_number(
    numbers: Tensor, fn: Callable[..., Tensor], *tensors: Tensor, cost: int
) -> list[Case]:
    """For `piecewise`: fn(n, *tensors) of the sets with the number n, in pieces, for each n > 0.

    `cost` is the number of elements that fn(1, …) needs per set.
    """

    def value(at: Tensor, n: int) -> Tensor:
        return chunked(partial(fn, n), *(gather(t, at) for t in tensors), cost=n * cost)

    return [(numbers == n, partial(value, n=n)) for n in numbers.unique().tolist() if n > 0]
