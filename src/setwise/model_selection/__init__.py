"""Model selection on the likelihood of held-out sets: no individual label is ever needed."""

from setwise.model_selection.search import SearchResult, cross_validate, search
from setwise.model_selection.split import train_test_split
from setwise.validation.folds import SetKFold

__all__ = ["SearchResult", "SetKFold", "cross_validate", "search", "train_test_split"]
