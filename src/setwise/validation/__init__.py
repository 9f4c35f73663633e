"""Held-out sets: how to split observations, and what the held-out part chooses."""

from setwise.validation.choose import Split, fit_best, hold_out
from setwise.validation.folds import Fold, SetKFold, divided, listed

__all__ = ["Fold", "SetKFold", "Split", "divided", "fit_best", "hold_out", "listed"]
