"""What a model implies for sets and their members: expected observations, posteriors."""

from setwise.inference.expected import expected_aggregate
from setwise.inference.posterior import Posterior, expectation, posterior
from setwise.inference.predictive import Check, Finding, check_observations, shuffled_pairs

__all__ = [
    "Check",
    "Finding",
    "Posterior",
    "check_observations",
    "expectation",
    "expected_aggregate",
    "posterior",
    "shuffled_pairs",
]
