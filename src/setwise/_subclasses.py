"""Classes by name: the concrete ones that are derived from a base class."""

from __future__ import annotations

import inspect
import re
from typing import Any

__all__ = ["concrete_subclasses", "spelled"]


def concrete_subclasses(root: Any) -> list[Any]:
    """`root` and every class derived from it, except abstract ones, sorted by name."""
    found, todo = {root}, [root]
    while todo:
        found.update(below := todo.pop().__subclasses__())
        todo += below
    return sorted((c for c in found if not inspect.isabstract(c)), key=lambda c: c.__name__)


def spelled(name: str) -> str:
    """A name without case, hyphens, underscores and spaces.

    >>> spelled("Order-Statistic"), spelled("student_t")
    ('orderstatistic', 'studentt')
    """
    return re.sub(r"[-_ ]", "", name).lower()
