"""LightGBM as a learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.learners.base import shares
from setwise.learners.boosting.base import Boosting, Chosen, Forest
from setwise.learners.boosting.leaves import Leaves
from setwise.learners.inputs import n_rows, native

__all__ = ["LightGBM"]

CELLS = 1 << 18


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
    names_seed = ("seed", "random_seed", "random_state")
    names_threads = ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs")
    refused: ClassVar[dict[str, str]] = {
        "boosting": "only plain boosting (gbdt) and sampling by `data_sample_strategy` are known",
        "linear_tree": "leaves must be constant",
    }

    def _plant(self, X: Any, start: NDArray[np.float64], chosen: Chosen, params: Any) -> Forest:
        defaults = {
            "verbosity": -1,
            "deterministic": True,
            "force_row_wise": not params.get("force_col_wise", False),
        }
        params = {**defaults, **params, "objective": "none", "metric": "none"}
        params |= {"learning_rate": chosen.rate, "lambda_l2": chosen.penalty, "seed": chosen.seed}
        params["num_threads"] = chosen.threads
        params["num_class"] = len(start)
        data = lightgbm.Dataset(native(X), label=np.zeros(n_rows(X)), params=params)
        data.construct()
        if not any(data.feature_num_bin(i) for i in range(data.num_feature())):
            raise ValueError(
                f"LightGBM can split none of the {data.num_feature()} features of {n_rows(X)} rows:"
                f" they are constant, or there are fewer rows than two leaves need. Lower "
                f"min_child_samples (20), or use setwise.Linear()"
            )
        return LightGBMForest(lightgbm.Booster(params, data), start, n_rows(X))


class LightGBMForest(Forest):
    """A LightGBM booster that grows on so many rows."""

    def __init__(
        self, booster: lightgbm.Booster, start: NDArray[np.float64], rows: int = 0
    ) -> None:
        super().__init__(start)
        self.booster = booster
        self.scores = np.zeros((len(start), rows))  # LightGBM's own sums
        self.before = np.zeros_like(self.scores)
        self.curvature: tuple[Tensor, Tensor] | None = None

    def grow(self, gradient: Tensor, curvature: Tensor) -> Leaves | None:
        if self.curvature is None or self.curvature[0] is not curvature:
            self.curvature = curvature, curvature.float()  # which LightGBM takes as it is
        both = gradient.float(), self.curvature[1]
        g, h = (np.asarray(t.squeeze(1) if t.shape[1] == 1 else t) for t in both)
        if self.booster.update(fobj=lambda scores, data: (g, h)):
            return None
        self.scores, self.before = self.before, self.scores
        self.booster.eval_train(feval=self._keep)
        last = self.booster.current_iteration() - 1
        text = self.booster.model_to_string(start_iteration=last, num_iteration=1)
        lines = [part[: part.index("\n")] for part in text.split("\nleaf_value=")[1:]]
        values = [np.array(line.split(), dtype=np.float64) for line in lines]
        self.values.append(values)
        found = self._leaves_by_value(values)
        if found is None:
            return self.leaves(self.grown_on())
        return Leaves(found, [len(v) for v in values])

    def _keep(self, scores: Any, data: Any) -> tuple[str, float, bool]:
        self.scores[:] = scores.T
        return "", 0.0, True

    def _leaves_by_value(self, values: list[NDArray[np.float64]]) -> Tensor | None:
        """Which leaf each row is in, from what LightGBM's own leaf values have added to the row.

        Several times faster than asking for leaves; None where two leaves have the same value.
        """
        columns = []
        for output, own in enumerate(values):
            after, change = self.scores[output], self.before[output]
            np.subtract(after, change, out=change)  # the sums before are not needed again
            leaf = _nearest(change, own, 1e-12 * max(after.max(), -after.min()))
            if leaf is None:
                return None
            columns.append(torch.from_numpy(leaf))
        return columns[0].unsqueeze(1) if len(columns) == 1 else torch.stack(columns, 1)

    def leaves(self, X: Any) -> Leaves:
        last = self.booster.current_iteration() - 1
        found = self.booster.predict(
            native(X), pred_leaf=True, start_iteration=last, num_iteration=1
        )
        leaf = torch.from_numpy(np.asarray(found).reshape(n_rows(X), -1).astype(np.int64))
        return Leaves(leaf, [len(v) for v in self.values[-1]])

    def finish(self, rounds: int) -> Forest:
        trees = [tree for values in self.values for tree in values]
        for number, values in enumerate(trees):
            for leaf, value in enumerate(values):
                self.booster.set_leaf_output(number, leaf, float(value))
        text = self.booster.model_to_string(num_iteration=rounds)
        return LightGBMForest(lightgbm.Booster(model_str=text), self.start)

    def raw(self, X: Any) -> NDArray[np.float64]:
        scores = np.asarray(self.booster.predict(native(X), raw_score=True), dtype=np.float64)
        raw: NDArray[np.float64] = self.start + scores.reshape(n_rows(X), -1)
        return raw

    def importance(self) -> NDArray[np.float64]:
        return shares(self.booster.feature_importance("gain"))

    def save(self, folder: Path) -> dict[str, Any]:
        self.booster.save_model(folder / "model.txt")
        return {"start": self.start.tolist()}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any]) -> LightGBMForest:
        booster = lightgbm.Booster(model_file=folder / "model.txt")
        return cls(booster, np.array(facts["start"], dtype=np.float64))


def _nearest(
    x: NDArray[np.float64], values: NDArray[np.float64], rounding: float
) -> NDArray[np.int32] | None:
    """For each x, which of a few values it is, rounding aside; None where two are too close.

    By a table over cells so small that four lie between any two values: much faster than a search.
    """
    if len(values) == 1:
        return np.zeros(len(x), dtype=np.int32)
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
    at = x * scale
    at += 1.5 - low * scale
    found: NDArray[np.int32] = table[at.astype(np.int32)]
    return found
