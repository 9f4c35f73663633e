"""The one home of −Σ log p(y) and its derivatives, in the raw parameters of rows."""

from setwise._math.class_posterior import unchecked
from setwise.objective.autodiff import of_fixed_steps
from setwise.objective.given import check_informative, listed, objective_of
from setwise.objective.objective import Batch, Objective
from setwise.objective.parts import Parts
from setwise.objective.profile import HeldOut, Intercept, Judged, judge, respread, surely_worse
from setwise.objective.stream import Stream
from setwise.objective.terms import FirstOrder, LeastSquares, Point, Term
from setwise.objective.unknown import Kind, Unknowns

__all__ = [
    "Batch",
    "FirstOrder",
    "HeldOut",
    "Intercept",
    "Judged",
    "Kind",
    "LeastSquares",
    "Objective",
    "Parts",
    "Point",
    "Stream",
    "Term",
    "Unknowns",
    "check_informative",
    "judge",
    "listed",
    "objective_of",
    "of_fixed_steps",
    "respread",
    "surely_worse",
    "unchecked",
]
