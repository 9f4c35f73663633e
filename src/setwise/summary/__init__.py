"""What was fitted, and how sure it is: summaries, coefficients, standard errors."""

from setwise.summary.predictions import PredictsClasses, PredictsNumbers
from setwise.summary.summary import Summary

__all__ = ["PredictsClasses", "PredictsNumbers", "Summary"]
