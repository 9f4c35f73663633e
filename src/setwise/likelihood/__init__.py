"""Aggregates, what kind of thing their y is, the registry of rules, and `log_likelihood`."""

from setwise.likelihood.aggregate import Aggregate, Conditioned, aggregates
from setwise.likelihood.numbers import padded
from setwise.likelihood.outcome import (
    ClassLabel,
    Label,
    Number,
    Outcome,
    Position,
    SetSizes,
    Targets,
)
from setwise.likelihood.registry import (
    Rule,
    by_size,
    evaluate,
    find_rule,
    likelihood,
    log_likelihood,
    rules,
)
from setwise.likelihood.several import Bounds, Order, PerClass, Unordered
from setwise.likelihood.unknown import LEARNED, Unknown

__all__ = [
    "LEARNED",
    "Aggregate",
    "Bounds",
    "ClassLabel",
    "Conditioned",
    "Label",
    "Number",
    "Order",
    "Outcome",
    "PerClass",
    "Position",
    "Rule",
    "SetSizes",
    "Targets",
    "Unknown",
    "Unordered",
    "aggregates",
    "by_size",
    "evaluate",
    "find_rule",
    "likelihood",
    "log_likelihood",
    "padded",
    "rules",
]
