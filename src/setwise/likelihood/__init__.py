"""The heart: aggregates, the registry of likelihood rules, and `log_likelihood`."""

from setwise.likelihood.aggregate import Aggregate, aggregates, label_values, real_values
from setwise.likelihood.registry import (
    Rule,
    by_size,
    evaluate,
    find_rule,
    likelihood,
    log_likelihood,
    rules,
)

__all__ = [
    "Aggregate",
    "Rule",
    "aggregates",
    "by_size",
    "evaluate",
    "find_rule",
    "label_values",
    "likelihood",
    "log_likelihood",
    "real_values",
    "rules",
]
