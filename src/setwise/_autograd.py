"""Calls of torch's autograd functions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["call"]


def call(function: Any, *arguments: Any) -> Tensor:
    """An autograd function's result; torch does not say what `apply` returns."""
    out: Tensor = function.apply(*arguments)
    return out
