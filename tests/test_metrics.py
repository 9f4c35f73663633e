"""Metrics: against brute force, invariant to what they should not count, strict about input."""

import doctest
import inspect
import itertools

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from setwise import metrics

FUNCTIONS = {
    name: fn for name in metrics.__all__ if inspect.isfunction(fn := getattr(metrics, name))
}
NUMBERS = [n for n in FUNCTIONS if n not in ("permutation_accuracy", "set_log_likelihood")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_a_doctest(name):
    found = doctest.DocTestFinder(recurse=False).find(FUNCTIONS[name], name)
    assert any(test.examples for test in found)


def test_everything_public_is_listed():
    here = {n for n, f in vars(metrics).items() if getattr(f, "__module__", "") == metrics.__name__}
    assert {n for n in here if not n.startswith("_")} == set(FUNCTIONS)
    scorers = {n for n in vars(metrics) if n.endswith("_scorer") and not n.startswith("make")}
    assert scorers == set(metrics.__all__) - set(FUNCTIONS)
    assert scorers == {f"{n}_scorer" for n in FUNCTIONS if n != "set_log_likelihood"}


def test_permutation_accuracy_against_brute_force(rng):
    for _ in range(20):
        z, predicted = rng.integers(0, 4, (2, 30))
        best = max(np.mean(np.array(p)[predicted] == z) for p in itertools.permutations(range(4)))
        assert metrics.permutation_accuracy(z, predicted, n_classes=4) == pytest.approx(best)


def test_permutation_accuracy_of_any_labels():
    z = np.array(["cat", "dog", "cat", "cow"])
    assert metrics.permutation_accuracy(z, [7, 3, 7, 5]) == 1.0
    assert metrics.permutation_accuracy(z, [7, 7, 7, 7]) == 0.5
    assert metrics.permutation_accuracy(torch.tensor([0, 1]), torch.tensor([1, 0])) == 1.0
    # more names than classes: one each
    assert metrics.permutation_accuracy([0, 0, 0, 1], [0, 1, 2, 3]) == 0.5


def test_errors_after_the_best_line(rng):
    z, predicted = rng.normal(size=(2, 200))
    predicted = predicted + 0.5 * z
    at = np.linspace(-3, 3, 2001)
    shifts = [np.mean((z - predicted - b) ** 2) for b in at]
    assert metrics.error_variance(z, predicted) == pytest.approx(min(shifts), abs=1e-5)
    r = np.corrcoef(z, predicted)[0, 1]
    assert metrics.affine_mse(z, predicted) == pytest.approx(np.var(z) * (1 - r**2))
    assert metrics.affine_mse(z, -predicted) == pytest.approx(np.var(z))  # the order must be right
    assert metrics.affine_mse(z, np.zeros(200)) == pytest.approx(np.var(z))
    assert metrics.mean_squared_error(z, predicted) == pytest.approx(np.mean((z - predicted) ** 2))


def test_what_is_not_counted(rng):
    z, predicted = rng.normal(size=(2, 50))
    for name, changes in (
        ("error_variance", [predicted + 3]),
        ("affine_mse", [predicted + 3, 2 * predicted - 1]),
        ("concordance", [predicted + 3, 2 * predicted - 1, np.exp(predicted)]),
    ):
        before = FUNCTIONS[name](z, predicted)
        for after in changes:
            assert FUNCTIONS[name](z, after) == pytest.approx(before)


def test_concordance_against_all_pairs(rng):
    for levels in (3, 10, 1000):
        z, predicted = rng.integers(0, levels, (2, 60))
        right = total = 0.0
        for i, j in itertools.combinations(range(60), 2):
            if z[i] != z[j]:
                total += 1
                gap = (z[i] - z[j]) * (int(predicted[i]) - int(predicted[j]))
                right += 1.0 if gap > 0 else 0.5 if gap == 0 else 0.0
        assert metrics.concordance(z, predicted) == pytest.approx(right / total)
    z, predicted = rng.normal(size=(2, 60))
    tau = kendalltau(z, predicted).statistic
    assert metrics.concordance(z, predicted) == pytest.approx((1 + tau) / 2)
    assert metrics.concordance(z, np.zeros(60)) == 0.5
    assert metrics.concordance(z, -z) == 0.0
    with pytest.raises(ValueError, match="no order"):
        metrics.concordance(np.ones(3), [1, 2, 3])


@pytest.mark.parametrize("name", [*NUMBERS, "permutation_accuracy"])
@pytest.mark.parametrize(
    ("z", "predicted", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], "z has 2 rows, but predicted has 3"),
        ([[1.0, 2.0]], [1.0, 2.0], "one value per row|one per row"),
        ([], [], "at least"),
    ],
)
def test_bad_shapes(name, z, predicted, message):
    with pytest.raises(ValueError, match=message):
        FUNCTIONS[name](z, predicted)


@pytest.mark.parametrize("name", NUMBERS)
def test_bad_numbers(name):
    with pytest.raises(ValueError, match="predicted is nan at row 1"):
        FUNCTIONS[name]([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(ValueError, match="z must be numbers"):
        FUNCTIONS[name](["a", "b"], [1.0, 2.0])


def test_classes_out_of_range():
    with pytest.raises(ValueError, match=r"predicted has .*5.* at row 1"):
        metrics.permutation_accuracy([0, 1], [0, 5], n_classes=3)


def test_set_log_likelihood_is_the_score():
    class Model:
        def score(self, X, observations, *, profile):
            assert profile
            return -len(observations) / len(X)

    assert metrics.set_log_likelihood(Model(), [1, 2], [1]) == -0.5
    with pytest.raises(TypeError, match="AggregateRegressor"):
        metrics.set_log_likelihood("model", [1], [1])


def test_scorers_serve_scikit_learn(rng):
    X = rng.normal(size=(80, 3))
    z = X @ [1.0, 2.0, -1.0]
    scores = cross_val_score(LinearRegression(), X, z + 5, scoring=metrics.error_variance_scorer)
    assert (scores <= 0).all()
    assert scores == pytest.approx(0.0, abs=1e-12)
    for scorer in (metrics.affine_mse_scorer, metrics.mean_squared_error_scorer):
        assert scorer(LinearRegression().fit(X, z), X, z) == pytest.approx(0.0, abs=1e-12)
    assert metrics.concordance_scorer(LinearRegression().fit(X, z), X, z) == 1.0
    classes = (z > 0).astype(int)
    search = GridSearchCV(
        KNeighborsClassifier(), {"n_neighbors": [1, 5]}, scoring=metrics.permutation_accuracy_scorer
    ).fit(X, classes)
    assert search.best_score_ > 0.8

    class Swapped(BaseEstimator):
        def fit(self, X, z):
            return self

        def predict(self, X):
            return 1 - (X @ [1.0, 2.0, -1.0] > 0).astype(int)

    assert metrics.permutation_accuracy_scorer(Swapped(), X, classes) == 1.0
