"""What can be observed of a set: one aggregate, or close kin, per file, beside its rules."""

from setwise.aggregates.any_positive import AnyPositive
from setwise.aggregates.choice import Choice
from setwise.aggregates.coarse import Coarse
from setwise.aggregates.counts import Counts, Proportions
from setwise.aggregates.custom import Custom
from setwise.aggregates.difference import Difference
from setwise.aggregates.direct import Direct, Interval, PrimaryInstance
from setwise.aggregates.fold import Fold
from setwise.aggregates.noisy import Noisy
from setwise.aggregates.order_statistics import Max, Median, Min, OrderStatistic
from setwise.aggregates.presence import Presence
from setwise.aggregates.rank import Rank
from setwise.aggregates.ranking import Ranking
from setwise.aggregates.similarity import Similarity
from setwise.aggregates.total import Mean, Sum
from setwise.aggregates.triplet import Triplet
from setwise.aggregates.uncoupled import Uncoupled

__all__ = [
    "AnyPositive",
    "Choice",
    "Coarse",
    "Counts",
    "Custom",
    "Difference",
    "Direct",
    "Fold",
    "Interval",
    "Max",
    "Mean",
    "Median",
    "Min",
    "Noisy",
    "OrderStatistic",
    "Presence",
    "PrimaryInstance",
    "Proportions",
    "Rank",
    "Ranking",
    "Similarity",
    "Sum",
    "Triplet",
    "Uncoupled",
]
