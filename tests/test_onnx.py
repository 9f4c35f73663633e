"""Exported models: onnxruntime gives what `predict` gives."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pytest
import torch
from pandas import DataFrame
from sklearn.linear_model import LinearRegression

import setwise as sw

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4))
GAPS = np.where(rng.random(X.shape) < 0.1, np.nan, X)
Z = 100 + X @ [1.0, 2.0, 0.0, -1.0] + np.sin(3 * X[:, 0])
CLASSES = (Z > 100).astype(int) + (X[:, 1] > 1)
MEANS = sw.Mean().observe(Z, sw.Sets.random(300, 200, 3, seed=1))
COUNTS = sw.Counts(n_classes=3).observe(CLASSES, sw.Sets.random(300, 200, 3, seed=1))
FEW = {"n_estimators": 12}
TREES = [
    sw.LightGBM(**FEW, num_leaves=7),
    sw.XGBoost(**FEW, max_depth=3),
    sw.CatBoost(**FEW, depth=3),
]
LEARNERS = [
    sw.Linear(),
    *TREES,
    sw.CatBoost(n_estimators=5, grow_policy="Depthwise"),
    sw.Network(hidden=(8,), dropout=0.1, epochs=3),
    sw.Network(hidden=(8,), inputs="ranks", epochs=3),
    sw.Blend([sw.Linear(), sw.LightGBM(**FEW)], [0.3, 0.7]),
]
OPTIONS = {"random_state": 0, "verbose": 0, "validation": None}


def regressor(learner, table=X, family="normal", observations=MEANS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short fits
        return sw.AggregateRegressor(family, learner, **OPTIONS).fit(table, observations)


def agrees(est, table, folder):
    """Whether the exported model says the same in onnxruntime; returns the model."""
    path = est.export_onnx(folder / "model.onnx", table if table.ndim > 2 else None)
    session = runtime.InferenceSession(path)
    raw, mean = session.run(None, {"X": np.asarray(table, np.float64)})
    if hasattr(est, "feature_names_in_"):
        table = DataFrame(table, columns=est.feature_names_in_)
    wanted = est.predict_proba(table) if hasattr(est, "classes_") else est.predict(table)
    np.testing.assert_allclose(raw, est._rows(table)[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mean, wanted, rtol=1e-5, atol=1e-5)
    names = [out.name for out in session.get_outputs()]
    assert names == ["raw", "probabilities" if hasattr(est, "classes_") else "mean"]
    return onnx.load(path)


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_numbers_and_classes_agree(learner, tmp_path):
    agrees(regressor(learner), X, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(sw.AggregateClassifier(3, learner, **OPTIONS).fit(X, COUNTS), X, tmp_path)


@pytest.mark.parametrize("learner", TREES, ids=repr)
def test_missing_values_go_where_they_went(learner, tmp_path):
    agrees(regressor(learner, GAPS), GAPS, tmp_path)
    agrees(regressor(learner), GAPS, tmp_path)  # of a fit that had none


@pytest.mark.parametrize("learner", [sw.Linear(), LEARNERS[-1]], ids=repr)
def test_missing_numbers_of_frames(learner, tmp_path):
    agrees(regressor(learner, DataFrame(GAPS, columns=list("abcd"))), GAPS, tmp_path)


@pytest.mark.parametrize("family", sorted(sw.distributions.families()))
def test_the_mean_of_every_family(family, tmp_path):
    if family == "categorical":
        return
    positive = np.round(np.exp(X[:, 0])) + 1.0
    direct = sw.Direct().observe(positive, np.arange(300)[:, None])
    agrees(regressor(sw.Linear(), X, family, direct), X, tmp_path)


def test_spread_and_alignment_are_part_of_it(tmp_path):
    options = {"random_state": 0, "verbose": 0}
    pairs = sw.Sets.random(300, 600, 2, replace=False, seed=2)
    ranks = sw.AggregateRegressor("normal", sw.Linear(), **options).fit(
        X, sw.Rank().observe(Z, pairs)
    )
    agrees(ranks.align(X[:20], Z[:20]), X, tmp_path)
    alike = sw.AggregateClassifier(list("abc"), sw.Linear(), **options).fit(
        X, sw.Similarity().observe(CLASSES, pairs)
    )
    assert alike.spread_.abs().max() > 0
    model = agrees(alike.align(X[:40], np.array(list("abc"))[CLASSES[:40]]), X, tmp_path)
    told = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert told["classes"] == ["a", "b", "c"]


@pytest.mark.filterwarnings("ignore")
def test_a_module_of_ones_own(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 6), torch.nn.Tanh())
    net.append(torch.nn.Linear(6, 1))
    images = X.reshape(300, 2, 2).astype(np.float32)
    agrees(regressor(sw.Network(net, epochs=2), images), images, tmp_path)


def test_what_has_no_form_is_refused_in_a_sentence(tmp_path):
    frame = DataFrame({"x": X[:, 0], "kind": np.where(X[:, 1] > 0, "u", "v")})
    for est in (
        regressor(sw.EM(LinearRegression())),
        regressor(sw.LightGBM(**FEW), frame),
        regressor(sw.Linear(), family=sw.Gumbel(scale="predicted")),
    ):
        with pytest.raises(NotImplementedError, match=r"^no ONNX form is known for .*save"):
            est.export_onnx(tmp_path / "none.onnx")
    with pytest.raises(ValueError, match=r"call fit\(X, observations\) first"):
        sw.AggregateRegressor().export_onnx(tmp_path / "none.onnx")
    assert not list(tmp_path.iterdir())


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    est = regressor(sw.Linear())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"setwise\[onnx\]"):
        est.export_onnx(tmp_path / "model.onnx")
