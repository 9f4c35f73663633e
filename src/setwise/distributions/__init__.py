"""Families of distributions: links, supports and distribution functions, one file each."""

from __future__ import annotations

from setwise._subclasses import spelled
from setwise.distributions.base import (
    Continuous,
    Count,
    Discrete,
    Family,
    double,
    families,
    family_of,
    has_mean,
    interval,
    kinds_of,
    log_cdf,
    log_density,
    log_survival,
    map_parameters,
    parameters,
    point_estimate,
    shifted,
)
from setwise.distributions.categorical import Categorical
from setwise.distributions.cauchy import Cauchy
from setwise.distributions.exponential import Exponential
from setwise.distributions.gamma import Gamma
from setwise.distributions.gumbel import Gumbel
from setwise.distributions.laplace import Laplace
from setwise.distributions.logistic import Logistic, LogisticDistribution
from setwise.distributions.negative_binomial import NegativeBinomial
from setwise.distributions.normal import Normal
from setwise.distributions.poisson import Poisson
from setwise.distributions.student import StudentT

__all__ = [
    "Categorical",
    "Cauchy",
    "Continuous",
    "Count",
    "Discrete",
    "Exponential",
    "Family",
    "Gamma",
    "Gumbel",
    "Laplace",
    "Logistic",
    "LogisticDistribution",
    "NegativeBinomial",
    "Normal",
    "Poisson",
    "StudentT",
    "double",
    "families",
    "family_of",
    "has_mean",
    "interval",
    "kinds_of",
    "log_cdf",
    "log_density",
    "log_survival",
    "map_parameters",
    "parameters",
    "point_estimate",
    "resolve",
    "shifted",
]


def resolve(family: str | Family) -> Family:
    """The family itself, or the default one of that name.

    >>> resolve("student_t")
    StudentT(df=4.0, scale='shared')
    """
    if isinstance(family, Family):
        return family
    known = families()
    if isinstance(family, type) and issubclass(family, Family):
        raise TypeError(f"{family.__name__} is a class: call it, as in {family.__name__}()")
    if not isinstance(family, str):
        raise TypeError(
            f"a distribution is a name or a family such as setwise.Normal(), got {family!r}; "
            f"known names are {', '.join(sorted(known))}"
        )
    name = spelled(family)
    if name not in known:
        raise ValueError(f"unknown family {family!r}; known are {', '.join(sorted(known))}")
    if name == "categorical":
        raise ValueError("the number of classes is needed: use setwise.Categorical(n_classes)")
    return known[name]()
