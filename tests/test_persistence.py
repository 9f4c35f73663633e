"""Saved folders: the same predictions, no code, a clear error for whatever is wrong with them."""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
import warnings
from pathlib import Path
from typing import get_type_hints

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_learners import small_learners
from torch import nn

import setwise as sw
from setwise.estimators import AggregateClassifier, AggregateRegressor
from setwise.identifiability import Alignment
from setwise.io.description import NAME, Description
from setwise.io.encoding import NotSaved
from setwise.io.persistence import load, notes_of, save
from setwise.learners import LightGBM, Linear, Network

X = np.random.default_rng(0).normal(size=(80, 3))
Z = X @ [1.0, -2.0, 0.5]
MEANS = sw.Mean().observe(Z, sw.Sets.random(80, 60, 3, seed=1))
COUNTS = sw.Counts(n_classes=3).observe((Z > -1).astype(int) + (Z > 1), MEANS.sets)
PAIRS = sw.Similarity().observe((Z > 0).astype(int), sw.Sets.random(80, 60, 2, seed=2))


def fit(learner, observations=MEANS, table=X, **kwargs):
    if observations is MEANS or isinstance(observations.aggregate, sw.Rank):
        est = AggregateRegressor(
            learner=learner, random_state=0, validation=None, verbose=0, **kwargs
        )
    else:
        kwargs = {"n_classes": 3, "n_restarts": 1, **kwargs}
        est = AggregateClassifier(
            learner=learner, random_state=0, validation=None, verbose=0, **kwargs
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of few steps
        return est.fit(table, observations)


def parts(d):
    return sw.distributions.parameters(d)


def assert_same(a, b, table=X):
    """Two estimators are the same in all that they hold and say."""
    assert type(a) is type(b)
    assert vars(a).keys() == vars(b).keys()
    one, two = parts(a.predict_dist(table)), parts(b.predict_dist(table))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert a.predict(table).tolist() == b.predict(table).tolist()
    assert a.history_ == b.history_
    assert a.identifiability_.facts() == b.identifiability_.facts()
    assert a.alignment_ == b.alignment_


@pytest.mark.parametrize("name", small_learners())
@pytest.mark.parametrize("observations", [MEANS, COUNTS], ids=["numbers", "classes"])
def test_every_learner_comes_back(name, observations, tmp_path):
    est = fit(small_learners(classes=observations is COUNTS)[name], observations)
    est.save(tmp_path / "model")
    back = load(tmp_path / "model")
    assert_same(est, back)
    assert repr(back.get_params()) == repr(est.get_params())
    assert repr(clone(back)) == repr(clone(est))
    assert back.score(X, observations) == est.score(X, observations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert clone(back).fit(X, observations).predict(X).tolist() == est.predict(X).tolist()


@pytest.mark.parametrize("name", small_learners())
@pytest.mark.parametrize("observations", [MEANS, COUNTS], ids=["numbers", "classes"])
def test_pickle_and_joblib_work_too(name, observations):
    est = fit(small_learners(classes=observations is COUNTS)[name], observations)
    assert_same(est, pickle.loads(pickle.dumps(est)))
    file = io.BytesIO()
    joblib.dump(est, file)
    file.seek(0)
    assert_same(est, joblib.load(file))


@pytest.mark.parametrize(
    "labels",
    [["a", "b", "c"], ("x", "y", "z"), np.array([3, 5, 9]), np.array(["é", "b", "c"], object)],
    ids=["list", "tuple", "array", "objects"],
)
def test_class_labels_and_alignment(labels, tmp_path):
    est = fit("linear", PAIRS, n_classes=labels)
    est.alignment_ = Alignment(classes=(2, 0, 1))
    est.save(tmp_path)
    assert_same(est, load(tmp_path))


def test_labels_that_are_no_values_are_refused(tmp_path):
    est = fit("linear", COUNTS, n_classes=np.array([object(), object(), object()]))
    with pytest.raises(TypeError, match="cannot be saved without pickle"):
        est.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_frames_families_and_other_arguments(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": X[:, 0], "kind": pd.Categorical(np.where(X[:, 1] > 0, "u", "v"))})
    ranks = sw.Rank().observe(Z, sw.Sets.random(80, 90, 2, replace=False, seed=2))
    learner = LightGBM(n_estimators=2, min_data_in_leaf=5, path=tmp_path, extra=np.float32(0.5))
    est = fit(learner, ranks, frame, distribution=sw.StudentT(df=3.0, scale=0.5))
    est.align(frame[:20], Z[:20])
    est.save(tmp_path / "model")
    back = load(tmp_path / "model")
    assert_same(est, back, frame)
    assert back.feature_names_in_.tolist() == ["x", "kind"]
    assert back.distribution == sw.StudentT(df=3.0, scale=0.5)
    assert back.learner.params == {**learner.params, "extra": 0.5}
    with pytest.raises(ValueError, match="no column 'x', which the model was fitted with"):
        back.predict(frame.rename(columns={"x": "other"}))


def test_a_module_of_ones_own_is_given_again(tmp_path):
    def build(n_features, n_outputs):
        return nn.Sequential(nn.Linear(n_features, 4), nn.Tanh(), nn.Linear(4, n_outputs))

    est = fit(Network(build, epochs=2, schedule=lambda step, total: 1.0, device="cpu"))
    est.save(tmp_path)
    with pytest.raises(ValueError, match="module="):
        load(tmp_path)
    with pytest.raises(ValueError, match="do not fit"):
        load(tmp_path, module=nn.Linear(3, 1))
    back = load(tmp_path, module=build)
    assert_same(est, back)
    assert back.learner.module is build
    assert isinstance(back.learner.schedule, NotSaved)
    with pytest.raises((TypeError, ValueError), match="not saved, give it again"):
        clone(back).fit(X, MEANS)
    back.save(tmp_path)  # what was not saved stays so
    assert isinstance(load(tmp_path, module=build).learner.schedule, NotSaved)
    other = tmp_path / "other"
    fit(Linear()).save(other)
    with pytest.raises(ValueError, match="LinearModel"):
        load(other, module=build)


# ---- where it is saved


def test_only_a_model_is_replaced(tmp_path):
    first, second = fit(Linear()), fit(LightGBM(n_estimators=2))
    folder = tmp_path / "deep" / "model"
    first.save(folder)
    second.save(folder)
    assert_same(second, load(folder))
    assert len(list(folder.iterdir())) == 2
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        first.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert_same(second, load(folder))
    with pytest.raises(ValueError, match="is a file"):
        first.save(folder / "notes.txt")
    empty = tmp_path / "empty"
    empty.mkdir()
    first.save(str(empty))
    assert_same(first, load(str(empty)))


@pytest.mark.parametrize("moment", ["model", "text", "replace"])
def test_an_interrupted_save_leaves_the_old_model(moment, tmp_path, monkeypatch):
    first, second = fit(Linear()), fit(LightGBM(n_estimators=2))
    first.save(tmp_path / "model")

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "model":
            patch.setattr(type(second.model_), "save", stop)
        elif moment == "text":
            patch.setattr("os.fsync", stop)
        else:
            patch.setattr(Path, "replace", stop)
        for target in ("model", "new"):
            with pytest.raises(KeyboardInterrupt):
                second.save(tmp_path / target)
    assert_same(first, load(tmp_path / "model"))
    for target in ("model", "new"):  # what is left over is in nobody's way
        second.save(tmp_path / target)
        assert_same(second, load(tmp_path / target))
        assert len(list((tmp_path / target).iterdir())) == 2


def test_notes_are_kept_beside_a_model(tmp_path):
    est = fit(Linear())
    save(est, tmp_path, {"columns": ["a", 1.5, None]})
    assert notes_of(tmp_path) == {"columns": ["a", 1.5, None]}
    est.save(tmp_path)
    assert notes_of(tmp_path) == {}


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError):
        AggregateRegressor().save(tmp_path)
    with pytest.raises(TypeError, match="Pipeline"):
        save(make_pipeline(StandardScaler(), AggregateRegressor()), tmp_path)


# ---- what is wrong with a folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    fit(LightGBM(n_estimators=1, num_leaves=3, verbosity=-1)).save(folder)
    return folder


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_damage_at_any_place_is_found(saved):
    rng = np.random.default_rng(0)
    assert len(files_of(saved)) == 2
    for path in files_of(saved):
        whole = path.read_bytes()
        try:
            for _ in range(150):
                at, how = int(rng.integers(len(whole))), rng.integers(4)
                if how == 0:
                    text = whole[:at]
                elif how == 1:
                    text = whole[:at] + whole[at + 1 :]
                elif how == 2:
                    text = whole[:at] + bytes([rng.integers(256)]) + whole[at:]
                else:
                    flipped = whole[at] ^ (1 << int(rng.integers(8)))
                    text = whole[:at] + bytes([flipped]) + whole[at + 1 :]
                path.write_bytes(text)
                with pytest.raises(ValueError, match=r"altered|format|missing|digest"):
                    load(saved)
        finally:
            path.write_bytes(whole)
    load(saved)


def test_missing_parts(saved, tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"has no setwise\.json"):
        load(tmp_path)
    model = next(path for path in files_of(saved) if path.name != NAME)
    away = model.rename(tmp_path / "away")
    with pytest.raises(ValueError, match="is missing"):
        load(saved)
    away.rename(model)
    load(saved)


def rewrite(folder, change):
    """Changes the description and seals it again, as somebody with bad intentions could."""
    path = folder / NAME
    whole = path.read_bytes()
    body = json.loads(whole)
    changed = change(body)
    body = changed if isinstance(changed, list) else body
    if isinstance(body, dict):
        body = {"format": body.get("format"), **body, "sha256": "0" * 64}
    text = json.dumps(body).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    path.write_bytes(text.replace(b"0" * 64, digest, 1))
    return whole


BAD = {
    "a newer format": (
        lambda b: b.update(format=4, setwise="9.0"),
        r"format 4.*setwise 9\.0.*update",
    ),
    "an older format": (lambda b: b.update(format=2), "format 2.*fit and save the model again"),
    "no format": (lambda b: b.pop("format"), "no format version"),
    "a list": (lambda b: [b], "no format version"),
    "an unknown estimator": (lambda b: b.update(estimator="Popen"), "'Popen' is not a known"),
    "an unknown model": (lambda b: b["model"].update({"class": "os.system"}), "not a known model"),
    "an unhashable class": (
        lambda b: b["model"].update({"class": [1]}),
        "a list of 1 where a text",
    ),
    "an unknown family": (lambda b: b["family"].update({"class": "X"}), "not a known family"),
    "an unknown learner": (lambda b: b["learner"].update({"class": "X"}), "not a known learner"),
    "an unknown kind": (lambda b: b["params"].update(verbose={"kind": "pickle"}), "no kind"),
    "a family that is none": (lambda b: b.update(family=b["learner"]), "something else"),
    "arguments unheard of": (lambda b: b["params"].update(evil=1), "evil"),
    "a shared parameter too many": (lambda b: b["shared"].append(1.0), "shared"),
    "text for numbers": (lambda b: b.update(shared=["a"]), r"shared\[0\] is 'a' where a finite"),
    "a number that is none": (lambda b: b.update(shared=[math.nan]), r"shared\[0\] is nan where"),
    "a huge number": (lambda b: b.update(spread=[10**400]), r"spread\[0\] is a huge number where"),
    "facts of another type": (lambda b: b["model"].update(facts=[1]), "facts is a list of 1 where"),
    "no facts": (lambda b: b["model"].pop("facts"), "has not the entries.*facts"),
    "an entry too many": (lambda b: b.update(evil=1), "has not the entries.*evil"),
    "a file outside": (lambda b: b["files"].update({"../x": ""}), "x is missing"),
    "no files": (lambda b: b.update(files={}), "is not one of the model's files"),
    "a model outside": (lambda b: b["model"].update(folder=".."), "no folder of a model"),
    "identifiability": (lambda b: b.update(identifiability={"a": 1}), "has not the entries"),
    "classes": (
        lambda b: b.update(
            family={"kind": "family", "class": "Categorical", "params": {"n_classes": 10**9}}
        ),
        "at most 1048576",
    ),
    "an array of huge items": (
        lambda b: b["params"].update(
            verbose={"kind": "array", "dtype": "S2000000000", "shape": [1], "items": ["x"]}
        ),
        "no type of an array",
    ),
    "an array of another shape": (
        lambda b: b["params"].update(
            verbose={"kind": "array", "dtype": "<i8", "shape": [10**9], "items": [1]}
        ),
        "have no shape",
    ),
    "an array of so many dimensions that their product takes minutes": (
        lambda b: b["params"].update(
            verbose={"kind": "array", "dtype": "<i8", "shape": [2**62] * 300_000, "items": [1]}
        ),
        "have no shape",
    ),
    "a model of other features": (lambda b: b.update(n_features_in=4), "cannot be loaded"),
    "an alignment to nothing": (
        lambda b: b.update(alignment={"slope": 0.0, "shift": 0.0, "classes": None}),
        "slope of 0",
    ),
    "classes in no order": (
        lambda b: b.update(alignment={"slope": 1.0, "shift": 0.0, "classes": [0, 0]}),
        "an order of classes is none",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_descriptions_that_are_wrong(what, saved):
    change, message = BAD[what]
    whole = rewrite(saved, change)
    try:
        with pytest.raises(ValueError, match=message):
            load(saved)
    finally:
        (saved / NAME).write_bytes(whole)


@pytest.mark.parametrize(
    "field", [name for name in get_type_hints(Description) if name not in ("format", "sha256")]
)
@pytest.mark.parametrize("value", [True, 1.5, "text"])
def test_fields_of_a_wrong_type(field, value, saved):
    if isinstance(value, str) and field in ("setwise", "estimator"):
        value = 3
    whole = rewrite(saved, lambda body: body.update({field: value}))
    try:
        with pytest.raises(ValueError, match=rf"{field} is .* where"):
            load(saved)
    finally:
        (saved / NAME).write_bytes(whole)
