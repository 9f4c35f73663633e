"""Gradient boosting with LightGBM, XGBoost and CatBoost."""

from setwise.learners.boosting.base import Boosting, Forest
from setwise.learners.boosting.catboost import CatBoost
from setwise.learners.boosting.lightgbm import LightGBM
from setwise.learners.boosting.xgboost import XGBoost

__all__ = ["Boosting", "CatBoost", "Forest", "LightGBM", "XGBoost"]
