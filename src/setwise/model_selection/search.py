"""Scores of held-out sets, and a search for the parameters that make them best."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from setwise._random import seed_of
from setwise.learners import resolve
from setwise.observations import Observations
from setwise.validation.folds import SetKFold, listed

__all__ = ["SearchResult", "cross_validate", "search"]


def cross_validate(
    est: Any,
    X: Any,
    observations: Observations | Sequence[Observations],
    cv: int | SetKFold | Iterable[tuple[Any, Any]] = 5,
    *,
    fit_params: dict[str, Any] | None = None,
    return_train_score: bool = False,
    return_estimator: bool = False,
    n_jobs: int | None = None,
) -> dict[str, Any]:
    """Scores an estimator on held-out sets: the mean log-likelihood per set, larger is better.

    Test scores are computed with the shared or predicted scale that fits the held-out sets best, as
    by `score(..., profile=True)`.

    `cv` is a number of folds, a `SetKFold`, or pairs (train, test) of observations. A number is
    that of `SetKFold(disjoint="auto")`: folds have rows of their own where sets allow it, and a
    warning says where they do not. The estimator is copied for each fold; it may also be a Pipeline
    that ends in one of ours.

    Returns:
        A dict of arrays with one entry per fold: `test_score`, `fit_time`, `score_time` (seconds),
        `n_train`, `n_test` (sets), and if requested `train_score` and the list `estimator`.
    """
    folds = _folds(cv, X, observations)
    job = joblib.delayed(_fit_and_score)
    found = joblib.Parallel(n_jobs=n_jobs)(
        job(clone(est), X, train, test, fit_params or {}, return_train_score)
        for train, test in folds
    )
    names = [name for name in found[0] if name != "estimator" or return_estimator]
    table: dict[str, Any] = {name: [one[name] for one in found] for name in names}
    return {name: v if name == "estimator" else np.array(v) for name, v in table.items()}


def _folds(cv: Any, X: Any, observations: Any) -> list[tuple[Any, Any]]:
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        cv = SetKFold(int(cv), random_state=0, disjoint="auto")
    folds = list(cv.split(X, observations)) if hasattr(cv, "split") else [tuple(f) for f in cv]
    if not folds or any(len(fold) != 2 for fold in folds):
        raise ValueError("cv is a number, a SetKFold, or pairs (train, test) of observations")
    return folds


def _fit_and_score(
    est: Any, X: Any, train: Any, test: Any, fit_params: dict[str, Any], train_score: bool
) -> dict[str, Any]:
    begin = time.perf_counter()
    est.fit(X, train, **fit_params)
    if getattr(est, "interrupted_", False):
        raise KeyboardInterrupt
    fitted = time.perf_counter()
    last, table = est, X
    if isinstance(est, Pipeline):
        last, table = est[-1], est[:-1].transform(X)
    out = {"test_score": float(last.score(table, test, profile=True)), "fit_time": fitted - begin}
    out["score_time"] = time.perf_counter() - fitted
    out |= {"n_train": sum(map(len, listed(train))), "n_test": sum(map(len, listed(test)))}
    if train_score:
        out["train_score"] = est.score(X, train)
    return {**out, "estimator": est}


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The result of a search.

    Attributes:
        best_params_: The parameters of the best trial.
        best_score_: Its mean log-likelihood per held-out set.
        best_estimator_: The estimator with these parameters, fitted to all sets (None with
            `refit=False`).
        trials_: One dict per trial: its number, parameters, score (None where it failed), its
            spread over the folds, seconds, and the error where there was one. `pandas.DataFrame`
            makes a table of them.
        study_: Optuna's own record.
    """

    best_params_: dict[str, Any]
    best_score_: float
    best_estimator_: Any
    trials_: list[dict[str, Any]]
    study_: Any

    def __repr__(self) -> str:
        n = len(self.trials_)
        return f"SearchResult({self.best_score_:.6g}, best of {n} trials: {self.best_params_})"


def search(
    est: Any,
    X: Any,
    observations: Observations | Sequence[Observations],
    space: dict[str, Any],
    n_trials: int = 30,
    *,
    cv: int | SetKFold | Iterable[tuple[Any, Any]] = 5,
    timeout: float | None = None,
    random_state: Any = None,
    refit: bool = True,
    n_jobs: int | None = None,
) -> SearchResult:
    """Searches for the parameters that maximise the likelihood of held-out sets, with Optuna.

    `space` maps names of parameters, nested as in scikit-learn (`learner__num_leaves`), to a list
    of choices, to (low, high), or to (low, high, "log"); two whole numbers mean whole numbers. The
    folds are the same for all trials; `n_jobs` is how many of them run at once. After `timeout`
    seconds no trial is started. A trial that fails is noted in the result; the search ends with an
    error only if all fail.
    """
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "search needs Optuna: install it with `pip install 'setwise[search]'`, or compare "
            "candidates yourself with cross_validate"
        ) from error
    est = _with_learners(clone(est), space)
    domains = {name: _domain(name, spec) for name, spec in space.items()}
    _set(est, {name: spec[0] for name, spec in space.items()})  # raises where a name is unknown
    folds = _folds(cv, X, observations)
    sampler = optuna.samplers.TPESampler(seed=seed_of(random_state))
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(level)
    trials: list[dict[str, Any]] = []
    errors: list[Exception] = []
    end = math.inf if timeout is None else time.monotonic() + timeout
    while len(trials) < n_trials and time.monotonic() < end:
        trial = study.ask(domains)
        params = {
            name: spec[trial.params[name]] if isinstance(spec, list) else trial.params[name]
            for name, spec in space.items()
        }
        trials.append({"number": trial.number, **params, "score": None})
        begin = time.perf_counter()
        try:
            scores = cross_validate(_set(est, params), X, observations, folds, n_jobs=n_jobs)
            score = float(scores["test_score"].mean())
            if not np.isfinite(score):
                raise ValueError(f"the held-out sets have a mean log-likelihood of {score}")
        except Exception as error:
            errors.append(error)
            trials[-1]["error"] = f"{type(error).__name__}: {error}"
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            trials[-1] |= {"score": score, "std": float(scores["test_score"].std())}
            study.tell(trial, score)
        trials[-1]["seconds"] = time.perf_counter() - begin
    done = [trial for trial in trials if trial["score"] is not None]
    if not done:
        last = errors[-1] if errors else "there was no time for any"
        raise RuntimeError(f"all {len(trials)} trials failed, the last one: {last}")
    if errors:
        warnings.warn(
            f"{len(errors)} of {len(trials)} trials failed, the last one: {errors[-1]}",
            UserWarning,
            stacklevel=2,
        )
    best = max(done, key=lambda trial: trial["score"])
    params = {name: best[name] for name in space}
    winner = _set(est, params).fit(X, observations) if refit else None
    return SearchResult(params, best["score"], winner, trials, study)


def _with_learners(est: Any, space: dict[str, Any]) -> Any:
    """The estimator with learners instead of their names, where the space has their parameters."""
    for name in space:
        owner = name.rpartition("__")[0]
        if owner and isinstance(found := est.get_params().get(owner), str):
            est.set_params(**{owner: resolve(found)})
    return est


def _set(est: Any, params: dict[str, Any]) -> Any:
    """A copy of the estimator with these parameters, which are copied too."""
    return clone(est).set_params(**{name: clone(v, safe=False) for name, v in params.items()})


def _domain(name: str, spec: Any) -> Any:
    """The Optuna distribution of this entry of a space."""
    from optuna import distributions

    if isinstance(spec, list) and spec:  # by number, since choices may be of any type
        return distributions.CategoricalDistribution(range(len(spec)))
    if isinstance(spec, tuple) and (len(spec) == 2 or (len(spec) == 3 and spec[2] == "log")):
        low, high, log = spec[0], spec[1], len(spec) == 3
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
        if numbers and low < high and (low > 0 or not log):
            whole = isinstance(low, int) and isinstance(high, int)
            kind = distributions.IntDistribution if whole else distributions.FloatDistribution
            return kind(low, high, log=log)
    raise ValueError(
        f"space[{name!r}] must be a list of choices, (low, high) with low < high, or "
        f'(low, high, "log") with 0 < low < high; got {spec!r}'
    )
