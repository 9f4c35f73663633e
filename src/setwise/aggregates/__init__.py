"""The aggregates: each file holds one, or a few that are closely related, with their rules.

Every concrete aggregate that a file of this folder lists in its `__all__` is a name of this module.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from setwise.likelihood.aggregate import Aggregate

_found: dict[str, type[Aggregate]] = {}
for _file in iter_modules(__path__):
    _module = import_module(f"{__name__}.{_file.name}")
    for _name in _module.__all__:
        _value = getattr(_module, _name)
        if isinstance(_value, type) and not getattr(_value, "__abstractmethods__", None):
            _found[_name] = _value

globals().update(_found)
__all__ = sorted(_found)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
