"""What `setwise demo` trains: five tasks, each learned three ways by the same learner."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import setwise as sw
from setwise import plots

__all__ = ["TASKS", "Result", "Task"]

BODY_MASS = 2  # the column of the patients
SEED = 100  # the sizes of sets and the learners were chosen on splits with other seeds

Picture = tuple[Callable[[], Any], str]  # a function that draws it, and its caption


class Result(NamedTuple):
    """The scores of the three ways to learn (1 is perfect), pictures, and a remark for the page."""

    scores: list[Any]  # naive, from labels of sets, and from every label (None: not known)
    pictures: list[Picture]
    more: str = ""

    @property
    def gains(self) -> bool:
        """Whether set labels gave more than the naive recipe, beyond rounding."""
        return bool(self.scores[1] > self.scores[0] + 0.005)

    @property
    def shown(self) -> list[str]:
        """The three scores as texts."""
        return ["–" if v is None else f"{v:.2f}".replace("-", "−") for v in self.scores]


class Task(NamedTuple):
    """What is learned: `about`, `naive` and `judged` are sentences for the page."""

    data: str
    seen: str
    measure: str
    learner: str
    about: str
    naive: str
    judged: str
    run: Callable[[bool], Result]


def _inherited(o: sw.Observations, y: Any, weight: Any = None) -> sw.Observations:
    """Each member as if it had been seen alone, with these labels."""
    return sw.Observations(sw.Direct(), o.sets.indices[:, None], y, weight)


def _every_label(z: NDArray[Any]) -> sw.Observations:
    return sw.Direct().observe(z, np.arange(len(z))[:, None])


# ---- diabetes


def _patients(splits: int, observe: Any, score: Any) -> tuple[list[float], Any]:
    """The mean score of each way over random splits; the model and the data of the first.

    `observe` takes rows, targets and a seed; it gives observations, and naive labels of their
    members.
    """
    data = sw.datasets.load("diabetes")
    scores: list[list[float]] = []
    first: Any = None
    for seed in range(SEED, SEED + splits):
        X, X_test, z, z_test = train_test_split(data.X, data.z, test_size=0.3, random_state=seed)
        o, labels = observe(X, z, seed)
        models = [
            sw.AggregateRegressor(learner="linear", random_state=0, verbose=0).fit(X, some)
            for some in (_inherited(o, labels), o, _every_label(z))
        ]
        scores.append([score(z_test, model.predict(X_test)) for model in models])
        first = first or (models[1], X, z, o, X_test, z_test)
    return np.mean(scores, 0).tolist(), first


def means(quick: bool) -> Result:
    """Means of eight patients."""

    def observe(X: Any, z: NDArray[Any], seed: int) -> Any:
        o = sw.Mean().observe(z, sw.Sets.random(len(z), 300, 8, replace=False, seed=seed))
        return o, np.repeat(np.asarray(o.y), 8)

    scores, (model, X, z, o, X_test, z_test) = _patients(2 if quick else 10, observe, r2_score)
    fit = (
        lambda: plots.fit(model, X_test, z_test, ax=plots.blank()),
        "Patients that were not in the fit, predicted by the model that only saw means.",
    )
    posterior = (
        lambda: plots.posterior(model, X, o, 0, z=z, ax=plots.blank()),
        "Eight patients of the fit: what the model expects of each, before and after their mean is "
        "known (bars: two standard deviations). A mean says little about each one.",
    )
    return Result(scores, [fit, posterior])


def ranks(quick: bool) -> Result:
    """Comparisons of two patients who are alike in body mass, each with one of the 60 nearest."""
    rank = sw.Rank(tie_margin=0.5)  # the targets are whole numbers, so some pairs tie

    def observe(X: Any, z: NDArray[Any], seed: int) -> Any:
        rng, order = np.random.default_rng(seed), np.argsort(X[:, BODY_MASS], kind="stable")
        one = rng.integers(0, len(z), 1000)
        other = one + rng.integers(1, 31, 1000) * rng.choice([-1, 1], 1000)
        outside = (other < 0) | (other >= len(z))
        other[outside] = 2 * one[outside] - other[outside]
        o = rank.observe(z, np.stack([order[one], order[other]], 1))
        y: Any = o.y
        return o, np.stack([y, 1 - y], 1).ravel()

    scores, first = _patients(1 if quick else 3, observe, sw.metrics.concordance)
    model, *_, X, z = first
    new, _ = observe(X, z, 1)
    untied = new.take(new.y != 0.5)
    calibration = (
        lambda: plots.calibration(model, X, untied, ax=plots.blank()),
        "Who comes first among patients that were not in the fit: stated and observed.",
    )
    left_open = (
        lambda: plots.identifiability(model, ax=plots.blank(4.6, 1.8)),
        "Comparisons leave the level open, and reveal the unit only because a tie is a gap of at "
        "most half a point: setwise says so.",
    )
    return Result(scores, [calibration, left_open])


# ---- digits


def _images(X: Any, observations: Any, epochs: int, quick: bool) -> Any:
    network = sw.Network(hidden=(128,), epochs=3 if quick else epochs)
    with warnings.catch_warnings():
        if quick:  # it stops early on purpose
            warnings.simplefilter("ignore", ConvergenceWarning)
        return sw.AggregateClassifier(10, network, validation=None, random_state=0, verbose=0).fit(
            X, observations
        )


@cache
def _digits(quick: bool) -> tuple[Any, float]:
    """Training and test images with their digits, and the accuracy of learning from all digits."""
    data = sw.datasets.load("digits")
    parts = train_test_split(data.X, data.z, test_size=0.3, random_state=SEED, stratify=data.z)
    X, X_test, z, z_test = parts
    full = _images(X, _every_label(z), 40, quick)
    return parts, float(np.mean(full.predict(X_test) == z_test))


def _digits_from(o: Any, epochs: int, naive: Any, naive_epochs: int, quick: bool) -> Result:
    (X, X_test, _, z_test), full = _digits(quick)
    models = [_images(X, naive, naive_epochs, quick), _images(X, o, epochs, quick)]
    swapped = models[1].identifiability_.permutation  # labels do not tell which class is which
    accuracy = sw.metrics.permutation_accuracy if swapped else accuracy_score
    scores = [float(accuracy(z_test, model.predict(X_test))) for model in models]
    picture = (
        lambda: plots.confusion(models[1], X_test, z_test, ax=plots.blank(4.4, 4.4)),
        "Images that were not in the fit: predicted digits of each true digit, in percent.",
    )
    return Result([*scores, full], [picture])


def proportions(quick: bool) -> Result:
    """Proportions of the ten digits in bags of four images."""
    (_, _, z, _), _ = _digits(quick)
    bags = sw.Sets.random(len(z), 60 if quick else 400, 4, replace=False, seed=SEED)
    o = sw.Proportions(n_classes=10).observe(z, bags)
    share = np.repeat(np.asarray(o.y), 4, axis=0)  # of each member, of each class
    member, digit = np.nonzero(share)
    rows = o.sets.indices[member][:, None]
    shares = sw.Observations(sw.Direct(), rows, digit, share[member, digit])
    return _digits_from(o, 30, shares, 30, quick)


def triplets(quick: bool) -> Result:
    """Answers about three images."""
    (X, _, z, _), _ = _digits(quick)
    triples = sw.Sets.random(len(z), 300 if quick else 8000, 3, replace=False, seed=SEED)
    clusters = KMeans(10, n_init=4, random_state=0).fit_predict(X).astype(np.int64)
    return _digits_from(sw.Triplet().observe(z, triples), 20, _every_label(clusters), 40, quick)


# ---- molecules


def molecules(quick: bool) -> Result:
    """Whether one of a molecule's shapes makes it a musk: real labels of sets."""
    data = sw.datasets.load("musk1")
    y = np.asarray(data.y)
    shown: Any = None  # a model, and a musk that it has not seen
    o = sw.Observations(sw.AnyPositive(), data.sets, y)
    sets, any_of, mean_of = np.zeros((3, len(y)))
    folds = StratifiedKFold(3 if quick else 10, shuffle=True, random_state=0)
    for some, others in folds.split(y, y):
        fold, new = o.take(some), o.take(others)
        rows = data.X[fold.sets.indices]
        kernel = Nystroem(gamma=3 / rows.shape[1], n_components=min(400, len(rows)), random_state=0)
        features = make_pipeline(StandardScaler(), kernel).fit(rows)
        X = features.transform(data.X)
        model, naive = (
            sw.AggregateClassifier(2, sw.Linear(alpha=1.0), random_state=0, verbose=0).fit(X, seen)
            for seen in (fold, _inherited(fold, np.repeat(y[some], fold.sets.sizes)))
        )
        sets[others] = model.predict_aggregate(X, new.sets, sw.AnyPositive())
        any_of[others] = naive.predict_aggregate(X, new.sets, sw.AnyPositive())
        alone = naive.predict_proba(X)[:, 1]
        mean_of[others] = [alone[members].mean() for members in new.sets]
        if shown is None:
            musks = (y[others] == 1) & (new.sets.sizes >= 4) & (new.sets.sizes <= 9)
            shown = model, X, new, int(musks.argmax())
    picture = (
        lambda: plots.posterior(*shown, ax=plots.blank()),
        "A musk that was not in the fit: which of its conformations make it one?",
    )
    found, any_found, mean_found = (float(roc_auc_score(y, p)) for p in (sets, any_of, mean_of))
    behind = mean_found - found
    told = "**The naive average is ahead here.** " if behind > 0.01 else ""
    if abs(behind) <= 0.01:
        told = "**Level with the naive average here**, as the shapes of a molecule are much alike. "
    more = (
        f"{told}Asked whether any conformation fits, the naive model reaches {any_found:.2f}. "
        f"With 92 molecules such scores are uncertain by several hundredths. The kernel and its "
        f"penalty were chosen for setwise among 30 settings by cross-validation of these molecules "
        f"with other folds, as there are no others, so its score flatters."
    )
    return Result([mean_found, found, None], [picture], more)


TASKS = (
    Task(
        "Diabetes", "300 means of 8", "R²", "linear",
        "442 patients with ten measures each; the task is to predict how far the disease goes in "
        "a year. Only means over groups of eight patients are known.",
        "every patient is given the mean of the group as if it were their own",
        "R² on 30 % of the patients, mean of 10 random splits", means,
    ),
    Task(
        "Diabetes", "1,000 comparisons", "right order", "linear",
        "The same patients. Like is compared with like: of two of about the same body mass it is "
        "only known who fares worse. How often someone fares worse then says little of how they "
        "fare, just as equals in sports win about half of their games against each other.",
        "the worse of a pair is given 1, the other 0",
        "share of pairs of new patients in the right order (1/2 is chance), mean of 3 splits",
        ranks,
    ),
    Task(
        "Digits", "400 proportions of 4", "accuracy", "network",
        "1,797 images of 8 × 8 pixels of handwritten digits. Of bags of four images only the share "
        "of each digit is known.",
        "every image is given the shares of its bag as its label",
        "accuracy on 30 % of the images, one split", proportions,
    ),
    Task(
        "Digits", "8,000 triplets", "accuracy", "network",
        "The same images; of triplets only whether the first shows the digit of the second, and "
        "not that of the third. No digit is ever named.",
        "k-means finds ten clusters of images without any labels, and the network learns those",
        "accuracy on 30 % of the images after matching the names of classes", triplets,
    ),
    Task(
        "Molecules", "92 real labels", "ROC AUC", "linear on a kernel",
        "MUSK: 92 molecules in 476 conformations. A molecule smells of musk if any of its "
        "conformations fits the receptor; which one is not known to anyone, so there is no full "
        "supervision to compare with. Nothing is simulated here.",
        "every conformation is given the label of its molecule, and the predictions for a "
        "molecule's conformations are averaged",
        "ROC AUC over molecules that were held out, 10-fold cross-validation", molecules,
    ),
)  # fmt: skip
