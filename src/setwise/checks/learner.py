"""Whether a learner keeps what learners promise, with every aggregate at tiny size."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from setwise.checks.examples import (
    context,
    default_families,
    examples,
    noisy_examples,
    require,
    simulate,
)
from setwise.distributions import Categorical, Family, parameters
from setwise.estimators import AggregateClassifier, AggregateRegressor
from setwise.io import load
from setwise.learners import Learner, resolve
from setwise.likelihood import Aggregate, aggregates, find_rule
from setwise.objective import Objective
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["check_learner"]

CLASSES = 3


def check_learner(
    learner: str | Learner,
    tried: Iterable[Aggregate] | None = None,
    *,
    families: Iterable[str | Family] | None = None,
    n_rows: int = 60,
    n_sets: int = 40,
    seed: int = 0,
) -> None:
    """Checks a learner with every aggregate; raises AssertionError where something is wrong.

    It is fitted to simulated sets, for each aggregate (`tried`, by default one of every class of
    the library) with classes, where there is a rule for them, and with one family of numbers,
    another one each time; or with the given `families`. A learner that is not made for a family
    says so with a TypeError, which is fine unless it takes none. Of each fit is asked that

    * it warns of nothing but of having stopped early (`ConvergenceWarning`), and does not change
      the learner;
    * sets are no less likely than under the best constant prediction;
    * predictions are finite and of the right shape, also for one row;
    * once for each aggregate: a `clone` with the same `random_state`, pickle, and `save` with
      `load`, give the same predictions.

    Once, what a user may do wrong must be an error, a fit with `eval` must work, and missing values
    and sparse X must either be refused or give finite predictions. Give a learner of few steps:
    there are some seventy fits.

    >>> import setwise as sw
    >>> check_learner(sw.Linear(), [sw.Mean()], families=["normal"])
    """
    learner = resolve(learner)
    problems = list(_problems(tried, families, n_rows, n_sets, seed))
    require(problems, "there is no aggregate to try with these families")
    accepted, refusal = None, ""
    repeated: set[int] = set()  # aggregates with which a fit was also repeated and stored
    for problem in problems:
        aggregate = problem.observed.aggregate
        with context(f"{learner!r} with {aggregate!r} of {problem.family!r}"):
            try:
                est = _check_fit(learner, problem)
            except _Refusal as error:
                refusal = str(error)
                continue
            if id(aggregate) not in repeated:
                _check_copies(learner, est, problem)
        repeated.add(id(aggregate))
        accepted = accepted or problem
    if accepted is None:
        raise AssertionError(f"{learner!r} takes none of the families: {refusal}")
    with context(repr(learner)):
        _check_manners(learner, accepted)


class _Problem:
    """Something to learn: targets that depend on two of three features, seen through sets."""

    def __init__(
        self, aggregate: Aggregate, family: Family, n_rows: int, n_sets: int, seed: int
    ) -> None:
        self.family, self.seed = family, seed
        rng = np.random.default_rng(seed)
        self.X = rng.normal(size=(n_rows, 3))
        raw = np.zeros((n_rows, len(family.outputs)))
        weights = [[1.5, 0.0, 0.0], [0.0, 1.5, 0.0]] if raw.shape[1] > 2 else [[0.6, -0.4, 0.0]]
        raw[:, : len(weights)] = self.X @ np.array(weights).T
        shared = torch.full((len(family.shared),), -0.5, dtype=torch.float64)
        d = family(torch.from_numpy(raw), shared)
        z = simulate(family, d, 1, seed)[0]
        size = aggregate.size or 3
        sets = Sets.random(n_rows, n_sets, size, replace=False, seed=seed)
        self.observed: Observations = aggregate.observe(z, sets, seed=seed)

    def estimator(self, learner: Learner) -> Any:
        settings: dict[str, Any] = {"random_state": self.seed, "verbose": 0}
        if isinstance(self.family, Categorical):
            return AggregateClassifier(
                self.family.n_classes, clone(learner), n_restarts=1, **settings
            )
        return AggregateRegressor(self.family, clone(learner), **settings)

    def intercept_score(self, est: Any) -> float:
        """The likelihood under the best constant prediction."""
        objective = Objective(self.family, [self.observed], len(self.X))
        raw, shared = est.intercept_
        return objective.score(raw.expand(len(self.X), -1), shared)


def _problems(
    tried: Iterable[Aggregate] | None, families: Any, n_rows: int, n_sets: int, seed: int
) -> Iterator[_Problem]:
    if tried is None:
        own = [cls for cls in aggregates() if cls.__module__.startswith("setwise.")]
        found = [examples(cls, CLASSES)[:1] for cls in own]
        noisy = [noisy_examples(name, CLASSES)[0] for name in ("categorical", "normal")]
        tried = [*(a for one in found for a in one), *noisy]
    for number, aggregate in enumerate(tried):
        listed = default_families(aggregate, None, CLASSES)
        if families is not None:
            wanted = default_families(aggregate, families, CLASSES)
            known = {type(family) for family in listed}
            listed = [family for family in wanted if type(family) in known]
        else:
            classes = [family for family in listed if isinstance(family, Categorical)]
            numbers = [family for family in listed if not isinstance(family, Categorical)]
            listed = classes + ([numbers[number % len(numbers)]] if numbers else [])
        for family in listed:
            yield _Problem(aggregate, family, n_rows, n_sets, seed)


def _fit(est: Any, X: Any, observed: Observations, **kwargs: Any) -> Any:
    """Fits, and lets no warning pass but that of having stopped early."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        est.fit(X, observed, **kwargs)
    for warning in caught:
        require(
            issubclass(warning.category, ConvergenceWarning),
            f"fit warned: {warning.category.__name__}: {warning.message}",
        )
    return est


class _Refusal(Exception):
    """What a learner says where it is not made for a family."""


def _check_fit(learner: Learner, problem: _Problem) -> Any:
    """The fitted estimator, after a look at what the fit did."""
    X, observed = problem.X, problem.observed
    kept, before = X.copy(), repr(learner.get_params())
    est = problem.estimator(learner)
    try:
        _fit(est, X, observed)
    except TypeError as error:
        raise _Refusal(str(error)) from error
    require(np.array_equal(kept, X), "fit changed X")
    require(repr(est.learner.get_params()) == before, "fit changed the learner's parameters")
    score, least = est.score(X, observed), problem.intercept_score(est)
    exact = find_rule(type(observed.aggregate), problem.family.distribution).exact
    require(
        score >= least - (1e-3 if exact else 0.05) * (1 + abs(least)),
        f"the sets have a mean log-likelihood of {score:.6g} after the fit, but {least:.6g} under "
        f"the best constant prediction",
    )
    _check_predictions(est, problem)
    return est


def _check_copies(learner: Learner, est: Any, problem: _Problem) -> None:
    X = problem.X
    again = _fit(clone(est), X, problem.observed)
    require(_same(est, again, X), "a clone with the same random_state predicts something else")
    require(_same(est, pickle.loads(pickle.dumps(est)), X), "pickle changes the predictions")
    with tempfile.TemporaryDirectory() as folder:
        try:
            est.save(Path(folder))
        except ImportError:  # what a file format needs may not be installed
            return
        module = getattr(learner, "module", None)
        back = load(folder, module=module) if module is not None else load(folder)
    require(_same(est, back, X), "save and load change the predictions")


def _same(a: Any, b: Any, X: Any) -> bool:
    one, two = (parameters(e.predict_dist(X)) for e in (a, b))
    return all(torch.equal(one[name], two[name]) for name in one)


def _check_predictions(est: Any, problem: _Problem) -> None:
    X = np.random.default_rng(problem.seed + 1).normal(size=(7, 3))
    for table in (problem.X, X, X[:1]):
        n = len(table)
        for name, value in parameters(est.predict_dist(table)).items():
            require(len(value) == n, f"{n} rows gave `{name}` of shape {tuple(value.shape)}")
            require(value.isfinite().all(), f"`{name}` is not finite for every row")
        found: NDArray[Any] = est.predict(table)
        require(found.shape == (n,), f"predict gave shape {found.shape} for {n} rows")
        if isinstance(problem.family, Categorical):
            p = est.predict_proba(table)
            require(p.shape == (n, CLASSES), f"predict_proba gave shape {p.shape} for {n} rows")
            require(np.allclose(p.sum(1), 1), "probabilities do not add up to one")
            require(np.isin(found, est.classes_).all(), "predict gave what is not a class")


# ---- what a user may do, right or wrong


def _check_manners(learner: Learner, problem: _Problem) -> None:
    X, observed = problem.X, problem.observed
    est = problem.estimator(learner)
    _refused(NotFittedError, lambda: est.predict(X), "predict before fit")
    _refused(ValueError, lambda: _fit(clone(est), X[:5], observed), "X without rows of the sets")
    held_out = _fit(clone(est), X, observed, eval=(X, observed))
    require(held_out.score(X, observed) > -np.inf, "fit with eval gave an impossible model")
    _refused(ValueError, lambda: held_out.predict(X[:, :2]), "X with fewer features than in fit")
    holes = X.copy()
    holes[observed.sets.indices[0], 0] = np.nan
    for what, table in (("NaN in X", holes), ("sparse X", sparse.csr_array(X))):
        if what == "NaN in X" and not learner.missing:
            _refused(ValueError, lambda table=table: _fit(clone(est), table, observed), what)
            continue
        try:
            fitted = _fit(clone(est), table, observed)
        except (TypeError, ValueError):  # wrapped estimators may not take what their learner does
            continue
        for name, value in parameters(fitted.predict_dist(table)).items():
            require(value.isfinite().all(), f"with {what}, `{name}` is not finite for every row")


def _refused(kind: type[Exception], call: Any, what: str) -> None:
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} raised {type(error).__name__}, {kind.__name__} is expected: {error}"
        ) from error
    raise AssertionError(f"{what} is accepted: raise a {kind.__name__} that says why not")
