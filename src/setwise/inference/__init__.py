"""What a model implies for sets and their members: expected observations, posteriors."""

from setwise.inference.expected import expected_aggregate
from setwise.inference.posterior import Posterior, expectation, posterior

__all__ = ["Posterior", "expectation", "expected_aggregate", "posterior"]
