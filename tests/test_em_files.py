"""Files of scikit-learn's estimators: what is known comes back, what is damaged is refused."""

from __future__ import annotations

import importlib
import json
import warnings

import numpy as np
import pytest
import sklearn
from safetensors.numpy import load_file, save_file
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeRegressor

from setwise.learners.em.files import ARRAYS, OTHER, read_estimator, write_estimator
from setwise.learners.em.learner import EMModel
from setwise.learners.em.parts import Reader
from setwise.learners.em.sound import KNOWN

RNG = np.random.default_rng(0)
X = np.abs(RNG.normal(size=(60, 4)))
Z = X @ [1.0, 2.0, 1.0, 0.5] + np.abs(RNG.normal(size=60))
C = (Z > 3).astype(int) + (Z > 4.5)
C_AND_X = np.column_stack([C, X])
GAPS = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
INNER = ("Pipeline", "_CalibratedClassifier", "_SigmoidCalibration")  # parts of others
SMALL = {"n_estimators": 3, "max_iter": 30}

LOGISTIC = LogisticRegression(class_weight={0: 1, 1: 2, 2: 1})
SCALERS = RobustScaler(), MinMaxScaler(), MaxAbsScaler()
MORE = [
    (make_pipeline(StandardScaler(), PCA(2), Ridge()), X),
    (make_pipeline(SimpleImputer(), *SCALERS, LOGISTIC), GAPS),
    (MultinomialNB(), X),
    (SVC(C=2.0, kernel="poly"), X),
    (GradientBoostingClassifier(n_estimators=3, init="zero"), X),
    (GradientBoostingRegressor(n_estimators=3, loss="huber", n_iter_no_change=2), X),
    (BaggingRegressor(n_estimators=3, max_features=2), X),
    (HistGradientBoostingRegressor(max_iter=3, loss="quantile", quantile=0.3), GAPS),
    (HistGradientBoostingClassifier(max_iter=3, early_stopping=True), GAPS),
    (RandomForestRegressor(3), GAPS),
    (RandomForestClassifier(3), np.asfortranarray(X)),
    (KNeighborsRegressor(metric="manhattan", weights="distance"), X),
    (CalibratedClassifierCV(LinearSVC(), cv=2), X),
]


def known():
    """One of each class that is known, with few trees."""
    for name, (module, *_) in KNOWN.items():
        cls = getattr(importlib.import_module(f"sklearn.{module}"), name)
        if hasattr(cls, "predict") and name not in INNER:
            names = cls._get_param_names()
            yield cls(**{k: v for k, v in (SMALL | {"nu": 0.2}).items() if k in names})


def fitted(estimator, table=X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few steps
        return estimator.fit(table, C if is_classifier(estimator) else Z)


def again(folder, told, trusted=False):
    told = json.loads(json.dumps(told))
    return read_estimator(folder, told["estimator"], told["sklearn"], trusted)


@pytest.mark.parametrize(
    ("estimator", "table"),
    [pytest.param(e, t, id=type(e).__name__) for e, t in [*((e, X) for e in known()), *MORE]],
)
def test_what_is_known_comes_back(estimator, table, tmp_path):
    fitted(estimator, table)
    told = write_estimator(estimator, tmp_path)
    back = again(tmp_path, told)
    assert type(back) is type(estimator)
    names = [n for n in ("predict", "predict_proba") if hasattr(estimator, n)]
    for name in names:
        found, wanted = getattr(back, name)(table), getattr(estimator, name)(table)
        # The last digit of a product depends on where in memory its numbers lie.
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
    importance = getattr(estimator, "feature_importances_", None)
    if importance is not None:
        np.testing.assert_array_equal(back.feature_importances_, importance)
    second = tmp_path / "second"
    second.mkdir()
    assert json.dumps(write_estimator(back, second)) == json.dumps(told)


class Stranger(LinearRegression):
    pass


STRETCHED = KNeighborsRegressor(metric="mahalanobis", metric_params={"VI": np.eye(4)})


@pytest.mark.parametrize(
    "estimator", [Stranger(), GaussianProcessRegressor(), STRETCHED], ids=lambda e: type(e).__name__
)
def test_others_need_trust(estimator, tmp_path):
    pytest.importorskip("skops")
    told = write_estimator(fitted(estimator), tmp_path)
    assert told["estimator"] is None
    with pytest.raises(ValueError, match="whoever made this folder, give trusted=True"):
        again(tmp_path, told)
    back = again(tmp_path, told, trusted=True)
    np.testing.assert_array_equal(back.predict(X), estimator.predict(X))


def test_what_is_not_trusted_is_not_opened(tmp_path):
    (tmp_path / OTHER).write_text("no archive at all")
    with pytest.raises(ValueError, match="cannot be checked"):
        again(tmp_path, {"estimator": None, "sklearn": sklearn.__version__})


def test_without_skops(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("setwise.learners.em.files.importlib.import_module", missing)
    with pytest.raises(ImportError, match=r"GaussianProcess.*pip install 'setwise\[skops\]'.*job"):
        write_estimator(fitted(GaussianProcessRegressor()), tmp_path)
    with pytest.raises(ImportError, match=r"kept with skops: pip install"):
        read_estimator(tmp_path, None, "1.9.1", True)


def test_another_version_warns(tmp_path):
    told = write_estimator(fitted(Ridge()), tmp_path)
    with pytest.warns(UserWarning, match=r"fitted with scikit-learn 0\.1; with"):
        again(tmp_path, {**told, "sklearn": "0.1"})


# ---- damage


def find(told, name):
    """The word for an attribute, wherever it is."""
    if isinstance(told, dict):
        if name in told:
            return told
        told = list(told.values())
    for inside in told if isinstance(told, list) else ():
        if (found := find(inside, name)) is not None:
            return found
    return None


def altered(estimator, name, change, folder):
    """Saves an estimator, changes the array of this name, and loads it."""
    told = write_estimator(fitted(estimator), folder)
    arrays = load_file(folder / ARRAYS)
    where = find(told["estimator"], name)[name]["array"]
    arrays[where] = np.ascontiguousarray(change(arrays[where].copy()))
    save_file(arrays, folder / ARRAYS)
    return again(folder, told)


def put(value, at=0):
    def change(array):
        array[at] = value
        return array

    return change


TREE, FOREST = DecisionTreeRegressor(max_depth=3), RandomForestRegressor(2, max_depth=3)
HIST = HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=5)
BOOSTED = GradientBoostingRegressor(n_estimators=2)


@pytest.mark.parametrize(
    ("estimator", "name", "change"),
    [
        (FOREST, "left_child", put(10**6)),
        (FOREST, "right_child", put(0)),
        (TREE, "left_child", put(-2)),
        (TREE, "feature", put(99)),
        (TREE, "feature", put(-2)),
        (TREE, "threshold", put(np.nan)),
        (TREE, "threshold", lambda a: a[:-1]),
        (TREE, "threshold", lambda a: a.astype(np.float32)),
        (TREE, "values", put(np.nan)),
        (TREE, "values", lambda a: a[:-1]),
        (TREE, "n_classes", put(10**9)),
        (TREE, "n_classes", lambda a: np.ones(1000, a.dtype)),
        (HIST, "left", put(10**6)),
        (HIST, "right", put(0)),
        (HIST, "feature_idx", put(4)),
        (HIST, "value", put(np.inf, -1)),
        (HIST, "_baseline_prediction", lambda a: np.zeros((1, 5))),
        (BOOSTED, "feature", put(4)),
        (SVR(), "_dual_coef_", lambda a: a[:, :0]),
        (SVR(), "support_vectors_", lambda a: a[:-1]),
        (SVR(), "support_vectors_", lambda a: a[:, :-1]),
        (SVR(), "support_vectors_", put(np.nan)),
        (SVC(), "_n_support", put(10**6)),
        (SVC(), "_intercept_", lambda a: a[:1]),
        (SVC(), "support_", lambda a: a.astype(np.int64)),
        (SVC(), "_probA", lambda a: np.zeros(2)),
        (KNeighborsRegressor(), "_fit_X", put(np.nan)),
        (KNeighborsRegressor(), "_y", lambda a: a[:-1]),
        (BaggingRegressor(n_estimators=2), "array", lambda a: a + 1),
    ],
)
def test_arrays_that_lead_astray_are_refused(estimator, name, change, tmp_path):
    if name == "array":  # the features of the first estimator
        told = write_estimator(fitted(estimator), tmp_path)
        where = told["estimator"]["state"]["estimators_features_"]["list"][0]["array"]
        arrays = load_file(tmp_path / ARRAYS)
        save_file({**arrays, where: change(arrays[where])}, tmp_path / ARRAYS)
        with pytest.raises(ValueError, match="cannot be used"):
            again(tmp_path, told)
        return
    with pytest.raises(ValueError, match=r"cannot be used|a tree|of a tree"):
        altered(estimator, name, change, tmp_path)


def restated(estimator, folder, **changes):
    """Saves an estimator with other values for its attributes, and loads it."""
    told = write_estimator(fitted(estimator), folder)
    told["estimator"]["state"].update(changes)
    return again(folder, told)


@pytest.mark.parametrize(
    ("estimator", "changes"),
    [
        (TREE, {"n_features_in_": 3}),
        (TREE, {"n_outputs_": 10**9}),
        (TREE, {"tree_": 1}),
        (FOREST, {"n_outputs_": 10**9}),
        (FOREST, {"n_features_in_": 5}),
        (FOREST, {"estimators_": {"list": []}}),
        (FOREST, {"estimators_": {"list": [{"class": "Ridge", "state": {}}]}}),
        (RandomForestClassifier(2), {"n_classes_": 10**9}),
        (BOOSTED, {"init_": {"class": "Ridge", "state": {}}}),
        (BOOSTED, {"estimators_": {"items": [], "shape": [0, 3]}}),
        (BOOSTED, {"n_features_in_": 10**12}),
        (HIST, {"n_trees_per_iteration_": 10**9}),
        (HIST, {"_predictors": {"list": [{"list": [1]}]}}),
        (SVR(), {"kernel": "precomputed"}),
        (SVR(), {"_sparse": True}),
        (SVR(), {"degree": 10**9}),
        (SVR(), {"n_features_in_": 3}),
        # squares that the search would take as they are, from beyond their end
        (
            KNeighborsRegressor(algorithm="brute"),
            {"metric_params": {"dict": [["Y_norm_squared", {"list": [0.0]}]]}},
        ),
    ],
)
def test_attributes_that_lead_astray_are_refused(estimator, changes, tmp_path):
    with pytest.raises(ValueError, match="cannot be used"):
        restated(estimator, tmp_path, **changes)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"class": "Popen", "state": {}}, "not a known estimator"),
        ({"class": ["Ridge"], "state": {}}, "not a known estimator"),
        ({"class": "Ridge", "state": {"predict": 1}}, "has no attribute 'predict'"),
        ({"class": "Ridge", "state": {"__class__": 1}}, "has no attribute '__class__'"),
        ({"class": "Ridge", "state": {"a b": 1}}, "has no attribute 'a b'"),
        ({"class": "Ridge", "state": {"a": {"array": "a0"}}}, "missing, or used twice"),
        ({"class": "Ridge", "state": {"a": {"evil": 1}}}, "no kind of value"),
        ({"class": "Ridge", "state": {"a": [1]}}, "something else than values"),
        ({"class": "Ridge", "state": {"a": {"items": [1], "shape": [2]}}}, "another shape"),
        (
            {"class": "Ridge", "state": {"a": {"items": [1], "shape": [2**62] * 300_000}}},
            "another shape",
        ),
        ({"class": "StandardScaler", "state": {}}, "holds no estimator"),
        (1, "holds no estimator"),
    ],
)
def test_descriptions_of_other_things_are_refused(told, message):
    with pytest.raises(ValueError, match=message):
        Reader({}).whole(told)


def test_splits_on_categories_need_trust(tmp_path):
    estimator = fitted(HistGradientBoostingRegressor(max_iter=2, categorical_features=[0]), C_AND_X)
    assert write_estimator(estimator, tmp_path)["estimator"] is None


def test_a_widened_ensemble_is_refused(tmp_path):
    """Its compiled sum would write beyond its rows."""
    told = write_estimator(fitted(GradientBoostingRegressor(n_estimators=4)), tmp_path)
    told["estimator"]["state"]["estimators_"]["shape"] = [1, 4]
    with pytest.raises(ValueError, match="GradientBoostingRegressor cannot be used"):
        again(tmp_path, told)


def test_threads_are_those_of_this_machine(tmp_path):
    forest = fitted(RandomForestRegressor(2))
    told = write_estimator(forest.set_params(n_jobs=10**6), tmp_path)
    assert again(tmp_path, told).n_jobs <= 1024


@pytest.mark.parametrize(
    "facts",
    [
        {"link": {"n_classes": 10**9}, "estimator": None, "sklearn": "1"},
        {"link": {"n_classes": 0, "offset": 0.0, "floor": 0.0}, "estimator": None, "sklearn": "1"},
        {"link": {"n_classes": 0, "evil": 1}, "estimator": None, "sklearn": "1"},
        {"link": {"n_classes": 0}, "estimator": None},
        {},
    ],
)
def test_facts_of_the_link_are_checked(facts, tmp_path):
    with pytest.raises(ValueError, match="EM's model"):
        EMModel.load(tmp_path, facts)
