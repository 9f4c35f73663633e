"""From words of the command line to aggregates, families and learners.

`rank`, `order-statistic:k=2`, `student_t:df=3,scale=predicted`: a name in any spelling and, after a
colon, the arguments of the constructor. The names are those of the registries.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

from setwise._subclasses import spelled
from setwise.cli.common import Mistake

__all__ = ["aggregate", "family", "learner", "parse", "value"]


def parse(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """A name, arguments and named arguments.

    >>> parse("coarse:[[0, 1], [2]]")
    ('coarse', [[[0, 1], [2]]], {})
    >>> parse("Normal:scale=predicted")
    ('Normal', [], {'scale': 'predicted'})
    """
    name, _, rest = text.partition(":")
    given: list[Any] = []
    named: dict[str, Any] = {}
    for part in _parts(rest):
        found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=(.*)", part, re.S)
        if found:
            named[found[1]] = value(found[2])
        else:
            given.append(value(part))
    return name.strip(), given, named


def _parts(text: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def value(text: str) -> Any:
    """A number, list, true, false or none; anything else is a text."""
    text = text.strip()
    simple = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in simple:
        return simple[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _find(what: str, name: str, known: Mapping[str, type]) -> type:
    names = {spelled(key): cls for key, cls in known.items()}
    if spelled(name) not in names:
        listed = ", ".join(sorted(cls.__name__ for cls in names.values()))
        raise Mistake(f"unknown {what} {name!r}; known are {listed}")
    return names[spelled(name)]


def _make(what: str, text: str, cls: type, given: list[Any], named: dict[str, Any]) -> Any:
    try:
        inspect.signature(cls).bind(*given, **named)
        return cls(*given, **named)
    except (TypeError, ValueError) as error:
        options = ", ".join(str(p) for p in inspect.signature(cls).parameters.values())
        raise Mistake(f"{what} {text!r}: {error}; it is {cls.__name__}({options})") from None


def aggregate(text: str, noise: str = "", effect: str = "") -> Any:
    """The aggregate of these words, with `noise` such as laplace=0.5 around it, and an `effect`."""
    from setwise.likelihood import aggregates

    known = {cls.__name__: cls for cls in aggregates()}
    name, given, named = parse(text)
    cls: Any = _find("observation", name, known)
    if cls.not_on_command_line:
        raise Mistake(cls.not_on_command_line)
    made = _make("observation", text, cls, given, named)
    for what, around, how in (("noise", "noisy", noise), ("effect", "random_effect", effect)):
        if how:
            name, given, named = parse(f"{around}:{how}")
            made = _make(what, how, _find(what, name, known), [made, *given], named)
    return made


def family(text: str) -> Any:
    """The family of these words."""
    from setwise.distributions import families

    name, given, named = parse(text)
    cls = _find("family", name, families())
    if cls.__name__ == "Categorical":
        raise Mistake("for classes give --classes, as in --classes 3 or --classes a,b,c")
    return _make("family", text, cls, given, named)


def learner(text: str, options: Mapping[str, Any]) -> Any:
    """The learner of these words and options; EM takes the name of a scikit-learn estimator."""
    from sklearn.utils import all_estimators

    from setwise.learners import learners

    name, given, named = parse(text)
    cls = _find("learner", name, learners())
    named |= options
    if cls.__name__ != "EM":
        return _make("learner", text, cls, given, named)
    if len(given) != 1 or not isinstance(given[0], str):
        raise Mistake("EM needs a scikit-learn estimator: --learner em:RandomForestRegressor")
    known = dict(all_estimators(["classifier", "regressor"]))
    inner = _find("estimator of scikit-learn", given[0], known)
    return cls(_make("estimator", given[0], inner, [], named))
