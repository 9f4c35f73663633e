"""From raw model outputs, any real numbers, to parameters: checks, names and the log link."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = [
    "Choice",
    "ask",
    "check_choice",
    "check_raw",
    "exp_link",
    "parameter",
    "positive_parameter",
]

Choice = float | Literal["shared", "predicted"]


def check_choice(family: str, name: str, value: Any, *, positive: bool) -> None:
    """Raises unless `value` is "shared", "predicted" or a finite (positive) number."""
    if isinstance(value, str) and value in ("shared", "predicted"):
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or (positive and value <= 0):
        kind = "positive number" if positive else "number"
        raise ValueError(
            f'{family}: {name} must be "shared" (one for all rows, learned), "predicted" (one per '
            f"row, from the features) or a fixed {kind}, got {value!r}"
        )


def ask(value: Choice, when: str, name: str) -> tuple[str, ...]:
    """(name,) where the user chose `when` for this parameter, else ()."""
    return (name,) if value == when else ()


def check_raw(family: Any, raw: Tensor, shared: Tensor | None) -> dict[str, Tensor]:
    """Each raw number by name, one entry per row; shared numbers are expanded, not copied."""
    outputs, names = family.outputs, family.shared
    if raw.ndim != 2 or raw.shape[1] != len(outputs):
        raise ValueError(
            f"{family!r} needs raw outputs of shape (rows, {len(outputs)}), one column for each of "
            f"{', '.join(outputs)}; got {tuple(raw.shape)}"
        )
    given = () if shared is None else tuple(shared.shape)
    if (given or (0,)) != (len(names),):
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


def parameter(choice: Choice, raw: dict[str, Tensor], name: str) -> Tensor:
    """The raw number called `name`, or the user's fixed number for every row."""
    if isinstance(choice, str):
        return raw[name]
    first = next(iter(raw.values()))
    return first.new_full((), choice).expand(len(first))


def positive_parameter(choice: Choice, raw: dict[str, Tensor], name: str) -> Tensor:
    """exp of the raw number called `name`, or the user's fixed number for every row."""
    value = parameter(choice, raw, name)
    return exp_link(value) if isinstance(choice, str) else value
