"""LightGBM as a learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.learners.base import Task
from setwise.learners.boosting.base import Boosting, Forest
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.inputs import n_rows, native

__all__ = ["LightGBM"]


class LightGBM(Boosting):
    """Gradient boosting with LightGBM; any of its parameters can be given.

    `coupled` solves the leaf values of each tree jointly, which is what makes large sets work;
    without it each leaf takes its own Newton step. Categorical columns of pandas frames and missing
    values are used as LightGBM does. With `eval` in `fit`, boosting stops when the likelihood of
    held-out sets has not improved for `early_stopping_rounds` (50).

    >>> LightGBM(num_leaves=15, learning_rate=0.05)
    LightGBM(num_leaves=15, learning_rate=0.05)
    """

    names_rounds = ("n_estimators", "num_iterations", "num_boost_round", "num_rounds", "n_iter")
    names_rate = ("learning_rate", "shrinkage_rate", "eta")
    names_patience = ("early_stopping_rounds", "early_stopping_round", "n_iter_no_change")
    names_penalty = ("lambda_l2", "reg_lambda", "lambda")
    refused: ClassVar[dict[str, str]] = {
        "objective": "the objective is the likelihood of the observations",
        "boosting": "only plain boosting (gbdt) and sampling by `data_sample_strategy` are known",
        "linear_tree": "leaves must be constant",
        "monotone_constraints": "leaf values are solved jointly and would not respect them",
    }

    def _plant(self, X: Any, task: Task, rate: float, penalty: float, params: Any) -> Forest:
        params = {
            "verbosity": -1,
            "seed": task.seed % (2**31 - 1),
            "deterministic": True,
            "force_row_wise": not params.get("force_col_wise", False),
            **params,
        }
        params |= {
            "objective": "none",
            "metric": "none",
            "learning_rate": rate,
            "lambda_l2": penalty,
        }
        if task.objective.n_outputs > 1:
            params["num_class"] = task.objective.n_outputs
        return LightGBMForest.plant(X, task.raw.numpy(), params)


class LightGBMForest(Forest):
    """A LightGBM booster whose leaves are ours."""

    def __init__(
        self, booster: lightgbm.Booster, start: NDArray[np.float64], X: Any = None
    ) -> None:
        self.booster, self.start, self.X = booster, start, X
        shape = (0 if X is None else n_rows(X), len(start))
        self.before = self.after = np.zeros(shape)

    @classmethod
    def plant(cls, X: Any, start: NDArray[np.float64], params: dict[str, Any]) -> LightGBMForest:
        """An empty booster over these rows."""
        data = lightgbm.Dataset(native(X), label=np.zeros(n_rows(X)), params=params)
        data.construct()
        if not any(data.feature_num_bin(i) for i in range(data.num_feature())):
            raise ValueError(
                f"LightGBM can split none of the {data.num_feature()} features of {n_rows(X)} rows:"
                f" they are constant, or there are fewer rows than two leaves need. Lower "
                f"min_child_samples (20), or use setwise.Linear()"
            )
        return cls(lightgbm.Booster(params, data), start, X)

    def grow(self, gradient: Tensor, curvature: Tensor) -> bool:
        g, h = (np.asarray(t.squeeze(1) if t.shape[1] == 1 else t) for t in (gradient, curvature))
        self.before = self.after
        if self.booster.update(fobj=lambda scores, data: (g, h)):
            return False
        self.booster.eval_train(feval=self._keep)
        return True

    def _keep(self, scores: Any, data: Any) -> tuple[str, float, bool]:
        self.after = np.array(scores).reshape(len(scores), -1)
        return "", 0.0, True

    def scores(self) -> Tensor:
        return torch.from_numpy(self.after)

    def leaves(self, X: Any = None) -> Leaves:
        last = self.booster.current_iteration() - 1
        text = self.booster.model_to_string(start_iteration=last, num_iteration=1)
        told = [part[: part.index("\n")] for part in text.split("\nleaf_value=")[1:]]
        values = [np.array(numbers.split(), dtype=np.float64) for numbers in told]
        counts = [len(v) for v in values]
        if X is None and (leaf := self._told_by_scores(values)) is not None:
            return Leaves(leaf, counts)
        X = self.X if X is None else X
        found = self.booster.predict(
            native(X), pred_leaf=True, start_iteration=last, num_iteration=1
        )
        leaf = torch.from_numpy(np.asarray(found).reshape(n_rows(X), -1).astype(np.int64))
        return Leaves(leaf, counts)

    def _told_by_scores(self, values: list[NDArray[np.float64]]) -> Tensor | None:
        """Which leaf each row is in, from what LightGBM's own leaf values have added to the row.

        Several times faster than asking for leaves; None where two leaves have the same value.
        """
        columns = []
        for output, own in enumerate(values):
            after = self.after[:, output]
            leaf = _nearest(after - self.before[:, output], own, 1e-12 * np.abs(after).max())
            if leaf is None:
                return None
            columns.append(torch.from_numpy(leaf))
        return columns[0].unsqueeze(1) if len(columns) == 1 else torch.stack(columns, 1)

    def newest(self, X: Any) -> NDArray[np.float64]:
        last = self.booster.current_iteration() - 1
        found = self.booster.predict(
            native(X), raw_score=True, start_iteration=last, num_iteration=1
        )
        return np.asarray(found, dtype=np.float64).reshape(n_rows(X), -1)

    def write(self, values: list[NDArray[np.float64]]) -> None:
        first = (self.booster.current_iteration() - 1) * len(values)
        for output, leaf_values in enumerate(values):
            for leaf, value in enumerate(leaf_values):
                self.booster.set_leaf_output(first + output, leaf, float(value))

    def finish(self, rounds: int) -> None:
        self.booster = lightgbm.Booster(
            model_str=self.booster.model_to_string(num_iteration=rounds)
        )
        self.X, self.before, self.after = None, self.before[:0], self.before[:0]

    def raw(self, X: Any) -> NDArray[np.float64]:
        scores = np.asarray(self.booster.predict(native(X), raw_score=True), dtype=np.float64)
        raw: NDArray[np.float64] = self.start + scores.reshape(n_rows(X), -1)
        return raw

    def importance(self) -> NDArray[np.float64]:
        gain = np.asarray(self.booster.feature_importance("gain"), dtype=np.float64)
        share: NDArray[np.float64] = gain / max(gain.sum(), 1e-300)
        return share

    def save(self, folder: Path) -> dict[str, Any]:
        self.booster.save_model(folder / "model.txt")
        return {"start": self.start.tolist()}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> LightGBMForest:
        booster = lightgbm.Booster(model_file=folder / "model.txt")
        return cls(booster, np.array(facts["start"], dtype=np.float64))


CELLS = 1 << 18


def _nearest(
    x: NDArray[np.float64], values: NDArray[np.float64], rounding: float
) -> NDArray[np.int64] | None:
    """For each x, which of a few values it is, rounding aside; None where two are too close.

    By a table over cells so small that four lie between any two values: much faster than a search.
    """
    if len(values) == 1:
        return np.zeros(len(x), dtype=np.int64)
    ascending = np.sort(values)
    low, span = ascending[0], ascending[-1] - ascending[0]
    gap = float(np.diff(ascending).min())
    if gap * CELLS < 4 * span or gap <= 100 * rounding:
        return None
    scale = 4 / gap
    table = np.zeros(int(span * scale) + 5, dtype=np.int32)
    place = ((values - low) * scale + 1.5).astype(np.int64)
    for shift in (-1, 0, 1):  # rounding may lead to the next cell
        table[place + shift] = np.arange(len(values))
    at = (x - (low - 1.5 / scale)) * scale
    found: NDArray[np.int64] = table[at.astype(np.int32)].astype(np.int64)
    return found
