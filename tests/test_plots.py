"""Pictures: what they show, in which colours, and how they refuse."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import setwise as sw
from setwise import plots

pytest.importorskip("matplotlib")
X = np.linspace(-1, 1, 60)[:, None]
WIDE = np.column_stack([X, X**2, np.cos(9 * X)])
Z = 1 + 2 * X[:, 0] + 0.1 * np.random.default_rng(0).normal(size=60)
CLASSES = (X[:, 0] > 0).astype(int) + (X[:, 0] > 0.5)


def regressor(X, observations, **options):
    return sw.AggregateRegressor(learner="linear", validation=None, verbose=0, **options).fit(
        X, observations
    )


def classifier(n_classes, observations, X=X):
    learner = sw.Linear(alpha=0.1)
    return sw.AggregateClassifier(
        n_classes, learner, random_state=0, validation=None, verbose=0
    ).fit(X, observations)


@pytest.fixture(scope="module")
def means():
    return sw.Mean().observe(Z, sw.Sets.random(60, 120, 3, seed=0))


@pytest.fixture(scope="module")
def model(means):
    return regressor(X, means)


def test_fit_along_one_feature(model):
    ax = plots.fit(model, X, Z, ax=plots.blank())
    line = next(line for line in ax.lines if line.get_label() == "prediction")
    assert line.get_ydata() == pytest.approx(model.predict(X))
    assert ax.get_xlabel() == "feature 0"


def test_fit_of_many_features(means):
    wide = regressor(WIDE, means)
    ax = plots.fit(wide, WIDE, Z, ax=plots.blank())
    assert "90% intervals" in ax.get_title("left")
    assert plots.fit(wide, WIDE, feature=2, ax=plots.blank()).get_xlabel() == "feature 2"
    with pytest.raises(ValueError, match="3 features: give z"):
        plots.fit(wide, WIDE, ax=plots.blank())
    with pytest.raises(ValueError, match="feature 7 of 3"):
        plots.fit(wide, WIDE, feature=7, ax=plots.blank())


def test_fit_without_a_formula_for_quantiles():
    counts = sw.Sum().observe(np.arange(60) % 5, sw.Sets.random(60, 80, 2, seed=0))
    poisson = regressor(X, counts, distribution="poisson")
    assert plots.fit(poisson, X, ax=plots.blank()).get_ylabel() == "target"


def test_learning_curve_marks_the_best_step(means, model):
    network = sw.Network(hidden=(8,), epochs=12)
    est = sw.AggregateRegressor(learner=network, random_state=0, validation=None, verbose=0)
    est.fit(X, means.take(np.arange(80)), eval=(X, means.take(np.arange(80, 120))))
    ax = plots.learning_curve(est, ax=plots.blank())
    best = max(entry["valid"] for entry in est.history_)
    assert ax.lines[-1].get_ydata() == pytest.approx([best])
    est.history_ = []
    with pytest.raises(ValueError, match="no record of its steps"):
        plots.learning_curve(est, ax=plots.blank())


def test_calibration_of_amounts_tells_right_from_wrong():
    rng = np.random.default_rng(0)
    F = rng.normal(size=(1500, 1))
    z = F[:, 0] + rng.normal(size=1500)
    o = sw.Mean().observe(z, sw.Sets.random(1500, 1200, 2, seed=0))
    right = regressor(F, o)
    nominal, held = _curve(plots.calibration(right, F, o, ax=plots.blank()))
    assert held == pytest.approx(nominal, abs=0.05)
    right.shared_ = right.shared_ - 1.0  # a scale that is e times too small
    nominal, held = _curve(plots.calibration(right, F, o, ax=plots.blank()))
    assert held[nominal.searchsorted(0.9)] < 0.6


def _curve(ax):
    line = next(line for line in ax.lines if line.get_label() == "this model")
    return line.get_xdata(), line.get_ydata()


@pytest.mark.parametrize(
    ("aggregate", "size"),
    [
        (sw.AnyPositive(), 3), (sw.Counts(n_classes=2), 4), (sw.Proportions(n_classes=2), 4),
        (sw.Presence(n_classes=2), 3), (sw.Direct(), 1), (sw.Noisy(sw.AnyPositive(), flip=0.1), 3),
    ],
)  # fmt: skip
def test_calibration_of_labels_of_classes(aggregate, size):
    o = aggregate.observe((CLASSES > 0).astype(int), sw.Sets.random(60, 80, size, seed=0), seed=0)
    ax = plots.calibration(classifier(2, o), X, o, ax=plots.blank())
    assert ax.get_title("left")


@pytest.mark.parametrize("aggregate", [sw.Rank(), sw.Rank(tie_margin=0.3), sw.Choice(), sw.Max()])
def test_calibration_of_labels_of_numbers(aggregate):
    o = aggregate.observe(Z, sw.Sets.random(60, 80, 2, replace=False, seed=0))
    assert plots.calibration(regressor(X, o), X, o, ax=plots.blank()).get_title("left")


def test_calibration_refuses_what_has_no_single_y(model, means):
    ranking = sw.Ranking().observe(Z, sw.Sets.random(60, 5, 3, replace=False, seed=0))
    with pytest.raises(TypeError, match="no single y"):
        plots.calibration(model, X, ranking, ax=plots.blank())
    with pytest.raises(TypeError, match="choose one"):
        plots.calibration(model, X, [means], ax=plots.blank())


def test_confusion_matches_classes_only_where_they_cannot_be_told(model):
    triplets = sw.Triplet().observe(CLASSES, sw.Sets.random(60, 400, 3, seed=0))
    names = np.array(["low", "middle", "high"])
    est = classifier(names.tolist(), triplets)
    ax = plots.confusion(est, X, names[CLASSES], ax=plots.blank())
    accuracy = sw.metrics.permutation_accuracy(names[CLASSES], est.predict(X))
    assert ax.get_title("left") == f"{accuracy:.1%} right, names of classes matched"
    est.align(X, names[CLASSES])
    assert "matched" not in plots.confusion(est, X, names[CLASSES], ax=plots.blank()).get_title(
        "left"
    )
    with pytest.raises(TypeError, match=r"plots\.fit"):
        plots.confusion(model, X, Z, ax=plots.blank())


def test_identifiability_says_what_is_open_and_what_align_settled(means):
    differences = sw.Difference().observe(Z, sw.Sets.random(60, 80, 2, replace=False, seed=0))
    est = regressor(X, differences)

    def words():
        ax = plots.identifiability(est, X, differences, ax=plots.blank())
        return " ".join(text.get_text() for text in ax.texts)

    assert "targets) is left open" in words()
    assert "The unit (a factor for all targets) is determined" in words()
    est.align(X[:9], Z[:9])
    assert "settled by align" in words()


def test_posterior_of_one_set(model, means):
    ax = plots.posterior(model, X, means, 4, z=Z, ax=plots.blank())
    after = next(line for line in ax.lines if line.get_label() == "after y is seen")
    assert np.mean(after.get_xdata()) == pytest.approx(means.y[4])
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert rows == [f"row {i}" for i in means.sets[4]]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_posterior_of_classes(n_classes):
    z = np.minimum(CLASSES, n_classes - 1)
    o = sw.Counts(n_classes=n_classes).observe(z, sw.Sets.random(60, 80, 3, seed=0))
    ax = plots.posterior(classifier(n_classes, o), X, o, 0, z=z, ax=plots.blank())
    assert ax.get_title("left").startswith("Counts: y = (")


def test_names_of_features_that_are_too_long_end_in_dots(means):
    import pandas

    frame = pandas.DataFrame(WIDE, columns=["profession of the head of the household", "b", "c"])
    ax = plots.importance(regressor(frame, means), frame, ax=plots.blank())
    shown = [label.get_text() for label in ax.get_yticklabels()]
    assert "profession of the head …" in shown


def test_of_many_rows_a_sample_is_drawn(means):
    many = np.tile(WIDE, (6, 1))
    ax = plots.fit(regressor(WIDE, means), many, np.tile(Z, 6), ax=plots.blank())
    assert len(ax.lines[0].get_xdata()) == len(ax.collections[0].get_segments()) == 300


def test_importance_adds_up_and_refuses(means):
    import pandas

    frame = pandas.DataFrame(WIDE, columns=["a", "b", "c"])
    ax = plots.importance(regressor(frame, means), frame, ax=plots.blank())
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(100)
    assert ax.get_yticklabels()[0].get_text() == "a"
    with pytest.raises(ValueError, match="does not tell which features matter"):
        plots.importance(regressor(WIDE, means), ax=plots.blank())


def test_without_axes_a_figure_of_pyplot_is_made(model, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    ax = plots.fit(model, X)
    assert plt.fignum_exists(ax.figure.number)
    plt.close(ax.figure)


def test_missing_matplotlib_names_the_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"setwise\[plots\]"):
        plots.blank()


def test_random_numbers_of_the_user_are_left_alone(means, model):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    plots.calibration(model, X, means, ax=plots.blank())
    assert torch.equal(before, torch.get_rng_state())


def test_figures_on_a_page_follow_the_theme(model):
    html = plots.svg(plots.fit(model, X, Z, ax=plots.blank()).figure, "A & B")
    blue = plots.PALETTE["blue"]
    assert "A &amp; B" in html
    assert "currentColor" in html
    assert html.count(blue) == html.count(f"var(--blue, {blue})") > 0
    assert ">feature 0</text>" in html  # text is text
    assert html == plots.svg(plots.fit(model, X, Z, ax=plots.blank()).figure, "A & B")
