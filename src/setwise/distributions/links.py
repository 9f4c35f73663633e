"""From raw model outputs, any real numbers, to parameters: checks, names and the log link."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["Choice", "check_raw", "exp_link"]

Choice = float | Literal["shared", "predicted"]


def check_raw(family: Any, raw: Tensor, shared: Tensor | None) -> dict[str, Tensor]:
    """Each raw number by name, one entry per row; shared numbers are expanded, not copied.

    `shared` begins with those of the family.
    """
    outputs, names = family.outputs, family.shared
    if raw.ndim != 2 or raw.shape[1] != len(outputs):
        raise ValueError(
            f"{family!r} needs raw outputs of shape (rows, {len(outputs)}), one column for each of "
            f"{', '.join(outputs)}; got {tuple(raw.shape)}"
        )
    given = () if shared is None else tuple(shared.shape)
    # behind the family's own may come numbers that are learned of aggregates
    if len(given or (0,)) != 1 or (given or (0,))[0] < len(names):
        raise ValueError(
            f"{family!r} needs {len(names)} shared number(s)"
            + (f" ({', '.join(names)})" if names else "")
            + f", got {'none' if shared is None else f'shape {given}'}"
        )
    out = dict(zip(outputs, raw.unbind(1), strict=True))
    for i, name in enumerate(names):
        assert shared is not None
        out[name] = shared[i].expand(len(raw))
    return out


def exp_link(raw: Tensor) -> Tensor:
    """exp(raw), kept inside the range of numbers; the gradient is that of exp even at the ends.

    One number for all rows (an expanded tensor) stays one.

    >>> exp_link(torch.tensor([0.0, 1e4])).isfinite()
    tensor([True, True])
    """
    if raw.ndim and raw.shape[0] and raw.stride(0) == 0:
        return exp_link(raw[0]).expand(raw.shape)
    limit = 0.45 * math.log(torch.finfo(raw.dtype).max)
    fixed = raw.detach()
    return (fixed.clamp(-limit, limit) + (raw - fixed)).exp()
