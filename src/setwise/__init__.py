"""setwise: learn to predict individuals from labels given to sets of them.

>>> import torch, setwise as sw
>>> rows = torch.distributions.Normal(torch.tensor([1.0, 3.0, 5.0]), torch.ones(3))
>>> sw.log_likelihood(sw.Rank(), rows, sw.Sets([[1, 0], [0, 2]]), y=[1, 1]).exp()
tensor([0.9214, 0.0023])
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from setwise import checks, datasets, distributions, metrics, model_selection, plots
    from setwise.aggregates.comparisons import Similarity, Triplet
    from setwise.aggregates.counts import Counts, Proportions
    from setwise.aggregates.custom import Custom
    from setwise.aggregates.direct import Coarse, Direct, Interval, PrimaryInstance
    from setwise.aggregates.effect import RandomEffect
    from setwise.aggregates.fold import Fold
    from setwise.aggregates.noisy import Noisy
    from setwise.aggregates.order_statistics import Max, Median, Min, OrderStatistic
    from setwise.aggregates.pairs import Difference, Rank
    from setwise.aggregates.presence import AnyPositive, Presence
    from setwise.aggregates.ranking import Choice, Ranking
    from setwise.aggregates.teams import Teams
    from setwise.aggregates.total import Mean, Sum
    from setwise.aggregates.uncoupled import Uncoupled
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
    from setwise.errors import SetError
    from setwise.estimators import AggregateClassifier, AggregateRegressor
    from setwise.frames import Encoder
    from setwise.io import load
    from setwise.learners import (
        EM,
        Auto,
        Blend,
        CatBoost,
        Ensemble,
        LightGBM,
        Linear,
        Network,
        XGBoost,
    )
    from setwise.likelihood import Aggregate, likelihood, log_likelihood
    from setwise.observations import Observations
    from setwise.sets import Sets
    from setwise.stored import Files

__version__ = "0.2.0"

__all__ = [
    "EM", "Aggregate", "AggregateClassifier", "AggregateRegressor", "AnyPositive", "Auto", "Blend",
    "CatBoost", "Categorical", "Cauchy", "Choice", "Coarse", "Counts", "Custom", "Difference",
    "Direct", "Encoder", "Ensemble", "Exponential", "Files", "Fold", "Gamma", "Gumbel", "Interval",
    "Laplace", "LightGBM", "Linear", "Logistic", "Max", "Mean", "Median", "Min", "NegativeBinomial",
    "Network", "Noisy", "Normal", "Observations", "OrderStatistic", "Poisson", "Presence",
    "PrimaryInstance", "Proportions", "RandomEffect", "Rank", "Ranking", "SetError", "Sets",
    "Similarity", "StudentT", "Sum", "Teams", "Triplet", "Uncoupled", "XGBoost", "checks",
    "datasets", "distributions", "likelihood", "load", "log_likelihood", "metrics",
    "model_selection", "plots",
]  # fmt: skip

# Nothing is imported before it is used (PEP 562): `setwise --help` needs none of it. A public name
# is one of these modules, or is listed in `__all__` of one of the homes.
_MODULES = ("checks", "datasets", "distributions", "metrics", "model_selection", "plots")
_HOMES = (
    "sets", "observations", "errors", "frames", "distributions", "likelihood", "aggregates",
    "learners", "estimators", "io", "stored",
)  # fmt: skip
_HERE: dict[str, Any] = globals()


class _Package(ModuleType):
    """The package, whose `likelihood` is the decorator and not the subpackage of that name."""

    @property
    def likelihood(self) -> Any:
        return import_module("setwise.likelihood").likelihood

    @likelihood.setter
    def likelihood(self, module: ModuleType) -> None:
        """Where importing the subpackage would put it: ignored."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions that mention the package travel to other processes, which import it."""
        return import_module, (self.__name__,)


if not TYPE_CHECKING:
    sys.modules[__name__].__class__ = _Package

    def __getattr__(name):
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name in __all__:
            for home in _HOMES:
                module = import_module(f"{__name__}.{home}")
                if name in module.__all__:
                    return _HERE.setdefault(name, getattr(module, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*_HERE, *__all__})
