"""The concrete classes that are derived from a base class."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["concrete_subclasses"]


def concrete_subclasses(root: Any) -> list[Any]:
    """`root` and every class derived from it, except abstract ones, sorted by name."""
    found, todo = {root}, [root]
    while todo:
        found.update(below := todo.pop().__subclasses__())
        todo += below
    return sorted((c for c in found if not inspect.isabstract(c)), key=lambda c: c.__name__)
