"""Learners: how features become parameters. One file each; none ever sees an aggregate."""

from setwise.learners.auto import Auto
from setwise.learners.base import Fitted, Learner, Model, Place, Task, learners, models, resolve
from setwise.learners.boosting import CatBoost, LightGBM, XGBoost
from setwise.learners.em import EM
from setwise.learners.ensemble import Blend, Ensemble
from setwise.learners.linear import Linear
from setwise.learners.network import Network

__all__ = [
    "EM",
    "Auto",
    "Blend",
    "CatBoost",
    "Ensemble",
    "Fitted",
    "Learner",
    "LightGBM",
    "Linear",
    "Model",
    "Network",
    "Place",
    "Task",
    "XGBoost",
    "learners",
    "models",
    "resolve",
]
