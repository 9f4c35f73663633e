"""Shows the examples of docstrings as code: without a fence they would be read as quotations."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> (?:.+(?:\n|\Z))*", re.MULTILINE)


class Fences(griffe.Extension):
    """Puts a fence around each paragraph of a docstring that begins with a prompt."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Looks at every object of the package."""
        waiting: list[griffe.Object] = [pkg]
        while waiting:
            obj = waiting.pop()
            waiting += [m for m in obj.members.values() if isinstance(m, griffe.Object)]
            if obj.docstring:
                obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(found: re.Match[str]) -> str:
    return f"```pycon\n{found[0].rstrip()}\n```\n"
