"""setwise: learn to predict individuals from labels given to sets of them.

>>> import torch, setwise as sw
>>> rows = torch.distributions.Normal(torch.tensor([1.0, 3.0, 5.0]), torch.ones(3))
>>> sw.log_likelihood(sw.Rank(), rows, sw.Sets([[1, 0], [0, 2]]), y=[1, 1]).exp()
tensor([0.9214, 0.0023])
"""

from setwise import checks, datasets, distributions, metrics, model_selection, plots
from setwise.aggregates import (
    AnyPositive,
    Choice,
    Coarse,
    Counts,
    Custom,
    Difference,
    Direct,
    Fold,
    Interval,
    Max,
    Mean,
    Median,
    Min,
    Noisy,
    OrderStatistic,
    Presence,
    PrimaryInstance,
    Proportions,
    Rank,
    Ranking,
    Similarity,
    Sum,
    Triplet,
    Uncoupled,
)
from setwise.distributions import (
    Categorical,
    Cauchy,
    Exponential,
    Gamma,
    Gumbel,
    Laplace,
    Logistic,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
)
from setwise.estimators import AggregateClassifier, AggregateRegressor
from setwise.io import load
from setwise.learners import EM, CatBoost, LightGBM, Linear, Network, XGBoost
from setwise.likelihood import Aggregate, likelihood, log_likelihood
from setwise.observations import Observations
from setwise.sets import Sets

__version__ = "0.1.0"

__all__ = [
    "EM",
    "Aggregate",
    "AggregateClassifier",
    "AggregateRegressor",
    "AnyPositive",
    "CatBoost",
    "Categorical",
    "Cauchy",
    "Choice",
    "Coarse",
    "Counts",
    "Custom",
    "Difference",
    "Direct",
    "Exponential",
    "Fold",
    "Gamma",
    "Gumbel",
    "Interval",
    "Laplace",
    "LightGBM",
    "Linear",
    "Logistic",
    "Max",
    "Mean",
    "Median",
    "Min",
    "NegativeBinomial",
    "Network",
    "Noisy",
    "Normal",
    "Observations",
    "OrderStatistic",
    "Poisson",
    "Presence",
    "PrimaryInstance",
    "Proportions",
    "Rank",
    "Ranking",
    "Sets",
    "Similarity",
    "StudentT",
    "Sum",
    "Triplet",
    "Uncoupled",
    "XGBoost",
    "checks",
    "datasets",
    "distributions",
    "likelihood",
    "load",
    "log_likelihood",
    "metrics",
    "model_selection",
    "plots",
]
