"""The one home of −Σ log p(y) and its derivatives, in the raw parameters of rows."""

from setwise.objective.objective import Batch, Objective
from setwise.objective.profile import Intercept, Judged, judge, surely_worse
from setwise.objective.terms import FirstOrder, LeastSquares, Point, Term

__all__ = [
    "Batch",
    "FirstOrder",
    "Intercept",
    "Judged",
    "LeastSquares",
    "Objective",
    "Point",
    "Term",
    "judge",
    "surely_worse",
]
