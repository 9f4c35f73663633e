"""The checks that our own tests run, public so that a new aggregate, family or learner can too.

Each raises an `AssertionError` that says what failed, with which family, set size or aggregate.
"""

from setwise.checks.aggregate import check_aggregate
from setwise.checks.distribution import check_distribution
from setwise.checks.examples import examples, noisy_examples
from setwise.checks.learner import check_learner

__all__ = [
    "check_aggregate",
    "check_distribution",
    "check_learner",
    "examples",
    "noisy_examples",
]
