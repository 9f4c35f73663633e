"""The public checks: everything of ours passes them, and what is broken does not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from small_learners import small_learners
from torch import distributions as td

import setwise as sw
from setwise.checks import check_aggregate, check_distribution, check_learner
from setwise.checks.examples import default_families, examples, noisy_examples
from setwise.distributions import Continuous, base, families
from setwise.distributions.location import LocationScale
from setwise.learners import Fitted, Learner, Model
from setwise.likelihood import Label, aggregates

OURS = [cls for cls in aggregates() if cls.__module__.startswith("setwise.")]

# ---- ours pass


@pytest.mark.slow
@pytest.mark.parametrize("name", small_learners())
def test_learners(name):
    check_learner(small_learners()[name], n_rows=45, n_sets=25)


def test_learners_that_are_for_classes_only():
    em = small_learners(classes=True)["em"]
    check_learner(em, families=[sw.Categorical(3)], n_rows=45, n_sets=25)


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
def test_aggregates(cls):
    tried = examples(cls, 3)
    if cls is sw.Noisy:
        tried = [noisy_examples("normal", 3)[i] for i in (0, 2, 5)]
        tried += [noisy_examples("categorical", 3)[i] for i in (0, 4)]
    for aggregate in tried:
        listed = {type(f).__name__: f for f in default_families(aggregate, None, 3)}
        chosen = [listed[n] for n in ("Categorical", "Normal", "Poisson") if n in listed][:2]
        check_aggregate(aggregate, chosen, sizes=(2, 3) if cls is sw.Custom else None)


def choices():
    out = [sw.Categorical(3), sw.Poisson(), sw.Exponential(), sw.StudentT(df=2.5)]
    for name, family in families().items():
        for field in ("scale", "rate", "logits"):
            if name != "poisson" and field in getattr(family, "__dataclass_fields__", ()):
                out += [family(**{field: value}) for value in ("shared", "predicted", 0.7)]
    return out


@pytest.mark.parametrize("family", choices(), ids=repr)
def test_families(family):
    check_distribution(family)


def test_every_family_is_checked():
    assert {type(f) for f in choices()} == set(families().values())


# ---- a broken aggregate does not


@dataclass(frozen=True)
class Same(sw.Aggregate):
    """Whether all members are of one class; `fault` says what is wrong with it."""

    fault: str = ""

    @property
    def symmetric(self):
        return self.fault != "symmetric?"

    def apply(self, z, sets, rng):
        if self.fault == "first":
            first = torch.as_tensor(sets.offsets[:-1])
            return (z[first] == 0).double()
        return (sets.max(z) == sets.min(z)).double()

    def check_y(self, sets, y):
        if self.fault == "y":
            return np.resize(np.nan_to_num(np.asarray(y, float)), len(sets))
        y = super().check_y(sets, y)
        return y + 1 if self.fault == "check" else y

    def linear(self, sets):
        return (np.ones(len(sets.indices)), 0.0) if self.fault == "linear" else None

    def outcome(self, targets, size):
        return Label(dict.fromkeys((0.0, 1.0, 2.0) if self.fault == "outcomes" else (0.0, 1.0), ""))


def _class_posterior(aggregate, distribution, sets, y):
    if aggregate.fault == "posterior":
        return _same(aggregate, distribution, sets, y), distribution.probs  # as if y said nothing
    if aggregate.fault == "curvature":
        each = _same(aggregate, distribution, sets, y)
        leaf = distribution.logits.detach().requires_grad_()
        with torch.enable_grad():
            again = _same(aggregate, td.Categorical(logits=leaf), sets, y)
        (slope,) = torch.autograd.grad(again.sum(), leaf)
        return each, distribution.probs + slope  # the slope is a constant to torch
    return None


@sw.likelihood(Same, td.Categorical, class_posterior=_class_posterior)
def _same(aggregate, distribution, sets, y):
    """Sum over the common class."""
    logits, fault = distribution.logits, aggregate.fault
    if fault == "order":
        logits = logits * (1 + 0.5 * (torch.as_tensor(sets.indices) == 0))[:, None]
    same = torch.logsumexp(sets.sum(logits), -1)
    if fault == "gradient":
        same = same.detach()
    if fault == "nan":
        same = same + 0 * (logits[:, 0] - logits[:, 0]).sqrt().sum()
    if fault == "factor":
        same = same + 0.3
    if fault == "digits":
        same = same - 1e-5
    if fault == "double":
        same = same.double()
    out = torch.where(y == 1, same, torch.log(-torch.expm1(same.clamp(max=-1e-15))))
    if fault == "shape":
        return out[:1]
    if fault == "impossible":
        return torch.where(y == 1, -torch.inf, out)
    if fault == "ragged" and sets.size is None:
        return out + 0.1
    return out


def test_a_new_aggregate():
    check_aggregate(Same(), sizes=(2, 3))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("first", r"observed in .*% of 2000 simulations, but its likelihood is"),
        ("order", "observed in|symmetric"),
        ("gradient", "gradient gives a slope of 0, differences"),
        ("nan", "gradient is not finite"),
        ("factor", "observed in|not finite|log-likelihood nan"),
        ("digits", "by enumeration"),
        ("posterior", "`class_posterior` is off the rule's own gradient"),
        ("curvature", "the derivative of `class_posterior` is off"),
        ("double", r"float32 parameters gave torch\.float64"),
        ("shape", "gave shape"),
        ("impossible", "has log-likelihood -inf"),
        ("ragged", "among sets of other sizes"),
        ("y", "`check`: a y of .* is accepted"),
        ("check", "observed in|log-likelihood|changes a y|expects 0 or 1"),
        ("linear", "`linear` gives"),
        ("outcomes", r"its outcomes \[0.0, 1.0, 2.0\] add up to"),
    ],
)
def test_a_broken_aggregate(fault, message):
    with pytest.raises(AssertionError, match=message) as error:
        check_aggregate(Same(fault), sizes=(2, 3))
    assert "Same(" in str(error.value)


def test_an_aggregate_that_depends_on_order():
    @dataclass(frozen=True)
    class Front(sw.Aggregate):
        size = 2

        def apply(self, z, sets, rng):
            return sets.columns(z)[0].double()

    with pytest.raises(AssertionError, match="no likelihood rule"):
        check_aggregate(Front())

    @sw.likelihood(Front, Continuous)
    def front(aggregate, distribution, sets, y):
        """The density of the first."""
        return base.log_density(distribution, sets.repeat(y))[::2]

    with pytest.raises(AssertionError, match="`symmetric` is true"):
        check_aggregate(Front(), ["normal"])
    Front.symmetric = False
    check_aggregate(Front(), ["normal", "gumbel"])

    @sw.likelihood(Front, td.Normal)
    def wrong(aggregate, distribution, sets, y):
        """Half the density."""
        return front(aggregate, distribution, sets, y) - 0.7

    with pytest.raises(AssertionError, match="integral of the likelihood"):
        check_aggregate(Front(), ["normal"])
    with pytest.raises(AssertionError, match="takes no targets of Gumbel, sets of 3"):
        check_aggregate(Front(), ["gumbel"], sizes=(3,))


def test_several_numbers_per_set():
    class Shuffled(sw.Uncoupled):
        symmetric = False

    @sw.likelihood(Shuffled, Continuous)
    def coupled(aggregate, distribution, sets, y):
        """As if the order were known."""
        return sets.sum(base.log_density(distribution, y.reshape(-1)))

    with pytest.raises(AssertionError, match="should be zero"):
        check_aggregate(Shuffled(), [sw.Normal(scale=0.5)], sizes=(2,))


# ---- a broken family does not


@pytest.fixture
def _families_as_they_are(monkeypatch):
    monkeypatch.setattr(base, "_FAMILIES", dict(base._FAMILIES))


FAULTS = {
    "standard_log_cdf": "integral of the density",
    "standard_log_survival": "off one",
    "standard_log_density": "integral of the density",
    "sample": "samples are at most",
}


@pytest.mark.usefixtures("_families_as_they_are")
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_broken_family(fault):
    class Own(td.Normal):
        def sample(self, shape=()):
            return super().sample(shape) + (0.5 if fault == "sample" else 0.0)

    @dataclass(frozen=True)
    class Mine(LocationScale):
        scale: float = 1.0
        distribution: ClassVar = Own
        kind: ClassVar = Continuous

        @staticmethod
        def standard_log_cdf(d, z):
            return sw.Normal.standard_log_cdf(d, 1.1 * z if fault == "standard_log_cdf" else z)

        @staticmethod
        def standard_log_survival(d, z):
            off = 0.1 if fault == "standard_log_survival" else 0.0
            return sw.Normal.standard_log_survival(d, z) - off

        @staticmethod
        def standard_log_density(d, z):
            off = 0.1 if fault == "standard_log_density" else 0.0
            return sw.Normal.standard_log_density(d, z) - off

        cgf = staticmethod(sw.Normal.cgf)
        cgf_domain = staticmethod(sw.Normal.cgf_domain)

    if not fault:
        check_distribution(Mine())
        check_aggregate(sw.Max(), [Mine()])
        return
    with pytest.raises(AssertionError, match=rf"Mine\(scale=1.0\): .*{FAULTS[fault]}"):
        check_distribution(Mine())


# ---- a broken learner does not


class Constant(Learner):
    """The best constant prediction; `fault` says what is wrong with it."""

    def __init__(self, fault=""):
        self.fault = fault

    def fit(self, task):
        from setwise.learners.inputs import as_array

        as_array(task.X, missing=self.fault == "missing", who="Constant")
        raw, rng = task.raw.numpy().copy(), np.random.default_rng(task.seed)
        if self.fault == "random":
            rng = np.random.default_rng()
        if self.fault in ("worse", "random"):
            raw += rng.normal(0, 1e-4 if self.fault == "random" else 3.0, raw.shape)
        if self.fault == "finite":
            raw[0] = np.nan
        if self.fault == "warns":
            warnings.warn("numbers are small", RuntimeWarning, stacklevel=2)
        if self.fault == "refuses":
            raise TypeError("Constant is not made for this")
        if self.fault == "breaks":
            raise KeyError("something")
        if self.fault == "changes":
            self.fault = "changed"
        return Fitted(ConstantModel(raw, self.fault), task.shared)


class ConstantModel(Model):
    def __init__(self, constant, fault=""):
        self.constant, self.fault = constant, fault

    def raw(self, X):
        rows = 3 if self.fault == "rows" else len(X)
        return np.tile(self.constant, (rows, 1))

    def save(self, folder):
        (folder / "constant.txt").write_text("nothing")
        return {"constant": (self.constant + (self.fault == "load")).tolist()}

    @classmethod
    def load(cls, folder, facts):
        return cls(np.array(facts["constant"]))

    def __getstate__(self):
        return {**self.__dict__, "constant": self.constant + (self.fault == "pickle")}


def test_a_new_learner():
    check_learner(Constant(), [sw.Mean(), sw.Similarity(), Same()])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("worse", "under the best constant prediction"),
        ("random", "clone with the same random_state"),
        ("finite", "not finite|nan"),
        ("rows", "rows"),
        ("warns", "fit warned: RuntimeWarning: numbers are small"),
        ("refuses", "takes none of the families: Constant is not made for this"),
        ("breaks", "KeyError: 'something'"),
        ("changes", "changed the learner's parameters"),
        ("load", "save and load change"),
        ("pickle", "pickle changes"),
        ("missing", "NaN in X is accepted"),
    ],
)
def test_a_broken_learner(fault, message):
    with pytest.raises(AssertionError, match=message) as error:
        check_learner(Constant(fault), [sw.Mean()], families=["normal"])
    assert "Constant(" in str(error.value)


def test_families_without_a_rule_are_left_out():
    with pytest.raises(AssertionError, match="no aggregate"):
        check_learner(Constant(), [sw.Similarity()], families=["normal"])
