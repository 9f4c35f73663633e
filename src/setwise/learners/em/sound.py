"""Which scikit-learn estimators may be read from a file, and what has to be true of their arrays.

An estimator that only calls numpy cannot do worse than raise an error. Trees, support vectors and
losses go through compiled code that trusts its arrays: these are checked here, number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["KNOWN", "REMADE", "Known", "check_tree", "is_usual"]

Check = Callable[[Any], Any]
REMADE = {"_loss": "_get_loss", "_base_loss": "_get_loss"}  # by a method of the estimator
KERNELS = ("linear", "poly", "rbf", "sigmoid")


class Known(NamedTuple):
    """Where a class is defined, what checks (or rebuilds) it, and which attributes are rebuilt."""

    module: str
    check: Check
    remade: Mapping[str, tuple[Any, ...]] = {}


def need(sound: Any, what: Any, said: str = "its arrays do not go together") -> None:
    """Raises unless the condition holds."""
    if not sound:
        raise ValueError(f"{type(what).__name__} cannot be used: {said}")


def check_tree(
    left: NDArray[Any],
    right: NDArray[Any],
    feature: NDArray[Any],
    threshold: NDArray[Any],
    inner: NDArray[Any],
    width: int,
) -> None:
    """Raises unless a tree leads from its root to a leaf, by features that exist."""
    number, n = np.arange(len(left)), len(left)
    ahead = (left > number) & (right > number) & (left < n) & (right < n)
    known = (feature >= 0) & (feature < width) & ~np.isnan(threshold)
    if not (ahead & known)[inner].all():
        raise ValueError("a tree of the estimator is damaged: its nodes or features are none")


# ---- by kinds of estimators; each returns the estimator


def plain(est: Any) -> Any:
    """Estimators that only call numpy."""
    return est


def tree(est: Any) -> Any:
    """One tree of scikit-learn's own."""
    own = est.tree_
    need(type(own).__name__ == "Tree" and type(est.n_features_in_) is int, est)
    classes = len(est.classes_) if hasattr(est, "predict_proba") else 1
    need(own.n_features == est.n_features_in_ and est.n_outputs_ == 1, est)
    need(own.max_n_classes == classes and getattr(est, "n_classes_", 1) == classes, est)
    return est


def forest(est: Any) -> Any:
    """Trees that vote."""
    need(type(est.estimators_) is list and est.estimators_ and est.n_outputs_ == 1, est)
    fitted = [e for e in est.estimators_ if hasattr(e, "tree_")]
    need(len(fitted) == len(est.estimators_), est)
    kinds = {(type(e).__name__, e.n_features_in_, e.tree_.max_n_classes) for e in fitted}
    classes = len(est.classes_) if hasattr(est, "predict_proba") else 1
    need(len(kinds) == 1 and getattr(est, "n_classes_", 1) == classes, est)
    ((kind, width, of_tree),) = kinds
    need("Tree" in kind and width == est.n_features_in_ and of_tree == classes, est)
    return est


def bagging(est: Any) -> Any:
    """Estimators that each read some of the features."""
    need(type(est.n_features_in_) is int and type(est.estimators_) is list, est)
    need(len(est.estimators_) == len(est.estimators_features_) > 0, est)
    for one, features in zip(est.estimators_, est.estimators_features_, strict=True):
        columns = np.asarray(features)
        need(columns.ndim == 1 and columns.dtype.kind == "i" and len(columns), est)
        need(columns.min() >= 0 and columns.max() < est.n_features_in_, est)
        need(getattr(one, "n_features_in_", -1) == len(columns), est)
    if hasattr(est, "classes_"):
        need(est.n_classes_ == len(est.classes_), est)
    return est


def dummy(est: Any) -> Any:
    """An estimator that predicts the same for all rows."""
    need(est.n_outputs_ == 1, est)
    if hasattr(est, "classes_"):
        need(est.n_classes_ == len(est.classes_) == len(est.class_prior_), est)
    else:
        need(np.shape(est.constant_) == (1, 1), est)
    return est


def gradient_boosting(est: Any) -> Any:
    """Trees whose compiled sum writes one column for each tree of a round."""
    stages, width = est.estimators_, est.n_features_in_
    need(isinstance(stages, np.ndarray) and stages.ndim == 2 and stages.size, est)
    for one in stages.ravel():
        need(hasattr(one, "tree_"), est)
        need(type(one).__name__ == "DecisionTreeRegressor" and one.n_features_in_ == width, est)
    need(type(width) is int and 0 < width <= 2**24 and type(est.learning_rate) is float, est)
    if est.init_ != "zero":
        need(type(est.init_).__name__ in ("DummyRegressor", "DummyClassifier"), est)
    first = est._raw_predict_init(np.zeros((1, width), np.float32))
    need(first.shape == (1, stages.shape[1]) and first.dtype == np.float64, est)
    return est


def hist_gradient_boosting(est: Any) -> Any:
    """Trees on bins."""
    width, columns = est.n_features_in_, est.n_trees_per_iteration_
    need(type(width) is int and type(est._predictors) is list and est._predictors, est)
    for line in est._predictors:
        need(type(line) is list and len(line) == columns, est)
        for one in line:
            need(type(one).__name__ == "TreePredictor", est)
            need((one.nodes["feature_idx"] < width)[one.nodes["is_leaf"] == 0].all(), est)
    need(est.is_categorical_ is None and est._preprocessor is None, est, "it has categories")
    need(type(est._bin_mapper).__name__ == "_BinMapper", est)
    mapper = est._bin_mapper
    need(not np.any(mapper.is_categorical_) and len(mapper.is_categorical_) == width, est)
    need(np.shape(est._baseline_prediction) == (1, columns), est)
    return est


def is_usual(est: Any) -> bool:
    """Whether it has no options that hold arrays for compiled code."""
    return getattr(est, "metric_params", None) is None


def neighbours(est: Any) -> Any:
    """Rebuilt from its stored rows, with a new index."""
    need(is_usual(est), est, "arguments of its metric are not checked")
    rows, y = est._fit_X, est._y
    need(isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and rows.ndim == 2, est)
    need(isinstance(y, np.ndarray) and y.shape == (len(rows),) and len(rows), est)
    need(np.isfinite(rows).all() and est.metric != "precomputed", est)
    if hasattr(est, "classes_"):
        y = np.asarray(est.classes_)[y]
    made = type(est)(**{name: getattr(est, name) for name in est._get_param_names()})
    return made.fit(rows, y)


def support_vectors(est: Any) -> Any:
    """The arrays that libsvm reads."""
    rows, dual, each = est.support_vectors_, est._dual_coef_, est._n_support
    classes = len(est.classes_) if hasattr(est, "classes_") else 2
    pairs = classes * (classes - 1) // 2
    shapes = {
        "support_": (np.int32, (len(rows),)),
        "support_vectors_": (np.float64, (len(rows), est.n_features_in_)),
        "_n_support": (np.int32, (classes,)),
        "_dual_coef_": (np.float64, (classes - 1, len(rows))),
        "dual_coef_": (np.float64, (classes - 1, len(rows))),
        "_intercept_": (np.float64, (pairs,)),
        "intercept_": (np.float64, (pairs,)),
    }
    for name, (kind, shape) in shapes.items():
        array = getattr(est, name)
        need(isinstance(array, np.ndarray) and array.dtype == kind and array.shape == shape, est)
        need(np.isfinite(array).all() and array.flags.c_contiguous, est)
    for name in ("_probA", "_probB"):
        array = getattr(est, name)
        need(array.dtype == np.float64 and array.shape in ((0,), (pairs,)), est)
    need(est._probA.shape == est._probB.shape and len(rows) and (each >= 0).all(), est)
    total = int(each[0]) if est._impl in ("epsilon_svr", "nu_svr") else int(each.sum())
    need(total == len(rows) == dual.shape[1], est)
    need(est.kernel in KERNELS and est._sparse is False, est)
    need(type(est.degree) is int and 0 <= est.degree < 100 and np.isfinite(est._gamma), est)
    return est


def _known(module: str, names: str, check: Check = plain, **remade: tuple[Any, ...]) -> None:
    KNOWN.update({name: Known(module, check, remade) for name in names.split()})


KNOWN: dict[str, Known] = {}
_known(
    "linear_model",
    "LinearRegression Ridge RidgeCV Lasso LassoCV LassoLars LassoLarsCV LassoLarsIC Lars LarsCV "
    "ElasticNet ElasticNetCV BayesianRidge ARDRegression HuberRegressor QuantileRegressor "
    "TheilSenRegressor OrthogonalMatchingPursuit SGDRegressor SGDClassifier LogisticRegression "
    "LogisticRegressionCV",
)
_known("linear_model", "PoissonRegressor GammaRegressor TweedieRegressor", _base_loss=())
_known("naive_bayes", "GaussianNB BernoulliNB MultinomialNB")
_known("discriminant_analysis", "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis")
_known("kernel_ridge", "KernelRidge")
_known("neural_network", "MLPRegressor MLPClassifier")
_known("pipeline", "Pipeline")
_known("preprocessing", "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler")
_known("preprocessing", "LabelBinarizer LabelEncoder")
_known("decomposition", "PCA")
_known("impute", "SimpleImputer")
_known("calibration", "CalibratedClassifierCV _CalibratedClassifier _SigmoidCalibration")
_known("svm", "LinearSVR LinearSVC")
_known("svm", "SVR NuSVR SVC NuSVC", support_vectors)
_known("neighbors", "KNeighborsRegressor KNeighborsClassifier", neighbours)
_known("dummy", "DummyRegressor DummyClassifier", dummy)
_known("tree", "DecisionTreeRegressor DecisionTreeClassifier", tree)
_known("tree", "ExtraTreeRegressor ExtraTreeClassifier", tree)
_known("ensemble", "RandomForestRegressor RandomForestClassifier", forest)
_known("ensemble", "ExtraTreesRegressor ExtraTreesClassifier", forest)
_known("ensemble", "BaggingRegressor BaggingClassifier", bagging)
_known("ensemble", "AdaBoostRegressor AdaBoostClassifier")
_known(
    "ensemble", "GradientBoostingRegressor GradientBoostingClassifier", gradient_boosting,
    _loss=(None,),
)  # fmt: skip
_known(
    "ensemble", "HistGradientBoostingRegressor HistGradientBoostingClassifier",
    hist_gradient_boosting, _loss=(None,),
)  # fmt: skip
_known("ensemble._hist_gradient_boosting.binning", "_BinMapper")
