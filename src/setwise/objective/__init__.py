"""The one home of −Σ log p(y) and its derivatives, in the raw parameters of rows."""

from setwise.objective.given import listed, objective_of
from setwise.objective.objective import Batch, Objective
from setwise.objective.profile import HeldOut, Intercept, Judged, judge, respread, surely_worse
from setwise.objective.terms import FirstOrder, LeastSquares, Point, Term

__all__ = [
    "Batch",
    "FirstOrder",
    "HeldOut",
    "Intercept",
    "Judged",
    "LeastSquares",
    "Objective",
    "Point",
    "Term",
    "judge",
    "listed",
    "objective_of",
    "respread",
    "surely_worse",
]
