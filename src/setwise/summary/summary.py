"""The summary of a fitted estimator: a table of coefficients, or of features, and facts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from setwise.inference.standard_errors import MOST, StandardErrors
from setwise.summary.coefficients import Line, feature_names, lines
from setwise.summary.uncertainty import errors_of
from setwise.summary.words import facts, minus, page, paragraph, table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Summary", "summary"]

FEW = 60  # sets
SHOWN = 60  # lines of a printed table
AWAY = 0.1  # standard errors that coefficients may be from the maximum


class Summary:
    """What was fitted: print it, or read `table` (pandas), `facts` and `notes`.

    Attributes:
        title: What was fitted.
        facts: Pairs of a name and its text.
        lines: The coefficients, if the model has any.
        shared: The shared parameters.
        features: Names and shares of features, where the learner knows them.
        notes: The assumptions behind the figures, a sentence or two each.
    """

    def __init__(
        self,
        title: str,
        facts: list[tuple[str, str]],
        lines: list[Line],
        shared: list[Line],
        features: list[tuple[str, float]],
        notes: list[str],
        level: float,
    ) -> None:
        self.title, self.facts, self.lines, self.shared = title, facts, lines, shared
        self.features, self.notes, self.level = features, notes, level

    @property
    def table(self) -> pd.DataFrame:
        """The coefficients as a data frame; of other learners what each feature matters."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("summary().table needs pandas: pip install pandas") from error
        if not self.lines:
            names = [name for name, _ in self.features]
            return pd.DataFrame({"importance": [s for _, s in self.features]}, index=names)
        made = pd.DataFrame([*self.lines, *self.shared], columns=list(Line._fields))
        return made.set_index("name")

    def _heads(self) -> list[str]:
        percent = f"{100 * self.level:g} %"
        return ["", "estimate", "std. error", "z", "p", f"{percent} from", "to"]

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        if self.lines:
            rows = [_cells(line) for line in [*self.lines, *self.shared]]
            if len(rows) > SHOWN:
                more = [f"… {len(rows) - SHOWN:,} more in .table", *[""] * 6]
                rows = [*rows[: SHOWN - 10], more, *rows[-10:]]
            return [(self._heads(), rows)]
        shown = [[name, f"{share:.3f}"] for name, share in self.features[:20]]
        return [(["feature", "importance"], shown)]

    def __str__(self) -> str:
        room = 2 + max(len(name) for name, _ in self.facts)
        parts = ["\n".join([self.title, *(paragraph(n, t, room) for n, t in self.facts)])]
        parts += [table(head, rows) for head, rows in self._tables() if rows]
        if self.notes:
            parts.append("\n".join(paragraph("", note, 0) for note in self.notes))
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = [("Note" if i == 0 else "", note) for i, note in enumerate(self.notes)]
        return page(self.title, [*self.facts, *notes], self._tables())


def summary(
    est: Any, X: Any = None, observations: Any = None, *, level: float = 0.95, robust: bool = True
) -> Summary:
    """The summary of a fitted estimator; see `AggregateRegressor.summary`."""
    est._check_fitted()
    if not 0 < level < 1:
        raise ValueError(f"level is between 0 and 1, such as 0.95; got {level!r}")
    title, found = type(est).__name__, facts(est)
    if not hasattr(est.model_, "coef"):
        given = est.model_.importance()
        features: list[tuple[str, float]] = []
        if given is not None:
            pairs = zip(feature_names(est, len(given)), given.tolist(), strict=True)
            features = sorted(pairs, key=lambda pair: -pair[1])
        return Summary(title, found, [], [], features, [], level)
    errors, notes = None, []
    if X is None and observations is None and est.model_.coef.size > MOST:
        notes.append(f"Standard errors are computed for up to {MOST:,} coefficients.")
    elif X is None and est._errors is None and est._fitted_on is None:
        notes.append(
            "For standard errors, which this copy of the estimator has not kept, call "
            "summary(X, observations)."
        )
    else:
        errors = errors_of(est, X, observations)
    coefficients, shared = lines(est, errors, level, robust)
    if hasattr(est, "classes_"):
        notes.append(f"Coefficients are log odds against class {est.classes_[0]}.")
        if est.identifiability_.permutation and est.alignment_ is None:
            notes.append("Which class is which the labels do not tell: align settles it.")
    elif not est.identifiability_.scale and est.alignment_ is None:
        notes.append(
            "Coefficients are in units of the targets' scale, which the labels leave open."
        )
    if errors is not None:
        joint = str(getattr(est, "overlap_", "")).startswith("joint")
        notes += _notes(errors, robust, coefficients, est.alignment_ is not None, joint)
    return Summary(title, found, coefficients, shared, [], notes, level)


def _notes(
    errors: StandardErrors, robust: bool, found: list[Line], aligned: bool, joint: bool
) -> list[str]:
    """The assumptions behind standard errors."""
    p = f"{errors.effective:.4g}"
    size = f"n / (n − p) with n = {errors.n:,}, p = {p}"
    if not robust:
        out = ["Standard errors are from the observed information: right if the model is."]
    else:
        which = "sets, and pairs of sets that share a row" if errors.shares else "sets"
        if joint:
            which = "what is independent in the joint likelihood of the sets"
        out = [f"Standard errors are robust: a sandwich over {which}, times {size}."]
    if errors.penalised:
        out.append(
            "There is a ridge penalty: the intervals are conditional on it, around coefficients "
            "that are drawn towards zero."
        )
    if any(not line.identified for line in found):
        out.append(
            "Coefficients that are not identified have no standard error: these labels do not "
            "tell them, and their estimates are arbitrary."
        )
    if not math.isfinite(errors.factor):
        out.append("There are no more sets than coefficients, so nothing is known of their error.")
    elif robust and errors.n < FEW:
        out.append(
            f"With fewer than {FEW} sets (or rows that they share) intervals hold the truth less "
            f"often than they say: at 30 about 90 % where 95 % are meant."
        )
    if errors.saddle and errors.away <= AWAY:
        out.append("The likelihood has no maximum here in some direction, which is left out.")
    elif errors.away > AWAY:
        out.append(
            f"The coefficients are {errors.away:.2g} standard errors from the maximum of this "
            f"likelihood: the fit stopped early, or these are not the data of the fit."
        )
    if aligned:
        out.append("The intervals take the alignment as given.")
    return out


def _cells(line: Line) -> list[str]:
    estimate = _number(line.estimate)
    if not line.identified:
        return [line.name, estimate, "not identified", "", "", "", ""]
    p = "" if math.isnan(line.p) else f"{line.p:.3f}" if line.p >= 0.0005 else "< .001"
    z = "" if math.isnan(line.z) else minus(f"{line.z:.2f}")
    return [line.name, estimate, *map(_number, [line.std_error]), z, p, *map(_number, line[5:7])]


def _number(value: float) -> str:
    return "" if math.isnan(value) else minus(f"{value:.4g}")
