"""AggregateRegressor and AggregateClassifier: individuals predicted from labels of sets."""

from setwise.estimators.classifier import AggregateClassifier
from setwise.estimators.regressor import AggregateRegressor

__all__ = ["AggregateClassifier", "AggregateRegressor"]
