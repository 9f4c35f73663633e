"""Whether a learner keeps what learners promise, with every aggregate at tiny size."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
    library_aggregates,
    noisy_examples,
    refused,
    require,
    simulate,
)
from setwise.distributions import Categorical, Family, parameters
from setwise.estimators import AggregateClassifier, AggregateRegressor
from setwise.io import load
from setwise.learners import Learner, resolve
from setwise.likelihood import Aggregate, find_rule
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
    the library): with classes, if there is a rule for them, and with one family of numbers, a
    different one each time; or with the given `families`. A learner may refuse a family with a
    TypeError, but not all of them. For each fit,

    * the only warning is that of having stopped early (`ConvergenceWarning`), and the learner is
      unchanged;
    * sets are no less likely than under the best constant prediction;
    * predictions are finite and of the right shape, also for one row;
    * once for each aggregate: a `clone` with the same `random_state`, pickle, and `save` with
      `load` give the same predictions.

    Once, mistakes of a user must raise errors, a fit with `eval` must work, and missing values and
    sparse X must either be refused or give finite predictions. Use a learner with few steps: there
    are about seventy fits.

    >>> import setwise as sw
    >>> check_learner(sw.Linear(), [sw.Mean()], families=["normal"])
    """
    learner = resolve(learner)
    pairs = list(_pairs(tried, families))
    require(pairs, "there is no aggregate to try with these families")
    accepted, refusal = None, ""
    repeated: set[int] = set()  # aggregates with which a fit was also repeated and stored
    for aggregate, family in pairs:
        problem = _problem(aggregate, family, n_rows, n_sets, seed)
        with context(f"{learner!r} with {aggregate!r} of {family!r}"):
            est, X = problem.estimator(learner), problem.X.copy()
            try:
                _fit(est, X, problem.observed)
            except TypeError as error:
                refusal = str(error)
                continue
            require(np.array_equal(problem.X, X), "fit changed X")
            _check_fit(learner, est, problem)
            if id(aggregate) not in repeated:
                _check_copies(learner, est, problem)
        repeated.add(id(aggregate))
        accepted = accepted or problem
    if accepted is None:
        raise AssertionError(f"{learner!r} takes none of the families: {refusal}")
    with context(repr(learner)):
        _check_usage(learner, accepted)


class _Problem(NamedTuple):
    """Something to learn: targets that depend on two of three features, seen through sets."""

    family: Family
    X: NDArray[np.float64]
    observed: Observations
    seed: int

    def estimator(self, learner: Learner) -> Any:
        settings: dict[str, Any] = {
            "validation": None, "overlap": "independent", "random_state": self.seed, "verbose": 0,
        }  # fmt: skip
        if isinstance(self.family, Categorical):
            n_classes = self.family.n_classes
            return AggregateClassifier(n_classes, clone(learner), n_restarts=1, **settings)
        return AggregateRegressor(self.family, clone(learner), **settings)


def _problem(aggregate: Aggregate, family: Family, n_rows: int, n_sets: int, seed: int) -> _Problem:
    X = np.random.default_rng(seed).normal(size=(n_rows, 3))
    raw = np.zeros((n_rows, len(family.outputs)))
    weights = [[1.5, 0.0, 0.0], [0.0, 1.5, 0.0]] if raw.shape[1] > 2 else [[0.6, -0.4, 0.0]]
    raw[:, : len(weights)] = X @ np.array(weights).T
    shared = torch.full((len(family.shared),), -0.5, dtype=torch.float64)
    z = simulate(family, family(torch.from_numpy(raw), shared), 1, seed)[0]
    sets = Sets.random(n_rows, n_sets, aggregate.size or 3, replace=False, seed=seed)
    return _Problem(family, X, aggregate.observe(z, sets, seed=seed), seed)


def _pairs(
    tried: Iterable[Aggregate] | None, families: Iterable[str | Family] | None
) -> Iterator[tuple[Aggregate, Family]]:
    """Each aggregate with each family to try it on."""
    if tried is None:
        tried = [a for cls in library_aggregates() for a in examples(cls, CLASSES)[:1]]
        tried += [noisy_examples(name, CLASSES)[0] for name in ("categorical", "normal")]
    given = None if families is None else [*families]
    for number, aggregate in enumerate(tried):
        listed = default_families(aggregate, None, CLASSES)
        if given is not None:
            known = {type(family) for family in listed}
            wanted = default_families(aggregate, given, CLASSES)
            listed = [family for family in wanted if type(family) in known]
        else:
            numbers = [family for family in listed if not isinstance(family, Categorical)]
            chosen = numbers[number % len(numbers)] if numbers else None
            listed = [f for f in listed if isinstance(f, Categorical) or f is chosen]
        for family in listed:
            yield aggregate, family


def _fit(est: Any, X: Any, observed: Observations, **kwargs: Any) -> Any:
    """Fits, and raises on any warning except that of having stopped early."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        est.fit(X, observed, **kwargs)
    for warning in caught:
        require(
            issubclass(warning.category, ConvergenceWarning),
            f"fit warned: {warning.category.__name__}: {warning.message}",
        )
    return est


def _check_fit(learner: Learner, est: Any, problem: _Problem) -> None:
    X, observed = problem.X, problem.observed
    same = repr(est.learner.get_params()) == repr(learner.get_params())
    require(same, "fit changed the learner's parameters")
    raw, shared = est.constant_  # the best constant prediction
    objective = Objective(problem.family, [observed], len(X))
    score, least = est.score(X, observed), objective.score(raw.expand(len(X), -1), shared)
    exact = find_rule(type(observed.aggregate), problem.family.distribution).exact
    require(
        score >= least - (1e-3 if exact else 0.05) * (1 + abs(least)),
        f"the sets have a mean log-likelihood of {score:.6g} after the fit, but {least:.6g} under "
        f"the best constant prediction",
    )
    _check_predictions(est, problem)


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
            shape = (n, problem.family.n_classes)
            require(p.shape == shape, f"predict_proba gave shape {p.shape} for {n} rows")
            require(np.allclose(p.sum(1), 1), "probabilities do not add up to one")
            require(np.isin(found, est.classes_).all(), "predict gave what is not a class")


def _check_usage(learner: Learner, problem: _Problem) -> None:
    """What a user may do, right or wrong."""
    X, observed = problem.X, problem.observed
    est = problem.estimator(learner)
    with refused(NotFittedError, "predict before fit"):
        est.predict(X)
    with refused(ValueError, "X without rows of the sets"):
        _fit(clone(est), X[:5], observed)
    held_out = _fit(clone(est), X, observed, eval=(X, observed))
    require(held_out.score(X, observed) > -np.inf, "fit with eval gave an impossible model")
    with refused(ValueError, "X with fewer features than in fit"):
        held_out.predict(X[:, :2])
    holes = X.copy()
    holes[observed.sets.indices[0], 0] = np.nan
    if not learner.missing:
        with refused(ValueError, "NaN in X"):
            _fit(clone(est), holes, observed)
    for what, table in (("NaN in X", holes), ("sparse X", sparse.csr_array(X))):
        try:
            fitted = _fit(clone(est), table, observed)
        except (TypeError, ValueError):  # wrapped estimators may not take what their learner does
            continue
        for name, value in parameters(fitted.predict_dist(table)).items():
            require(value.isfinite().all(), f"with {what}, `{name}` is not finite for every row")
