"""Learners: how features become parameters. One file each; none ever sees an aggregate."""

from setwise.learners.base import Fitted, Learner, Model, Task, learners, models, resolve
from setwise.learners.catboost import CatBoost
from setwise.learners.em import EM
from setwise.learners.lightgbm import LightGBM
from setwise.learners.linear import Linear
from setwise.learners.network import Network
from setwise.learners.xgboost import XGBoost

__all__ = [
    "EM",
    "CatBoost",
    "Fitted",
    "Learner",
    "LightGBM",
    "Linear",
    "Model",
    "Network",
    "Task",
    "XGBoost",
    "learners",
    "models",
    "resolve",
]
