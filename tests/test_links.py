"""From raw outputs to distributions: links, names, errors; the logistic distribution of torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td
from torch import Tensor

import setwise.distributions as D
from setwise.distributions import special
from setwise.distributions.links import exp_link

F64 = torch.float64
INF = math.inf
FUNCTIONS = ("log_cdf", "log_survival", "log_density")


def t64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def test_exp_link_keeps_a_useful_gradient_where_it_saturates() -> None:
    for dtype in (torch.float32, F64):
        raw = torch.tensor([-1e30, -1e4, 0.5, 1e4, 1e30], dtype=dtype, requires_grad=True)
        value = exp_link(raw)
        (grad,) = torch.autograd.grad(value.sum(), raw)
        assert value.isfinite().all()
        assert (value > 0).all()
        assert torch.equal(grad, value.detach())
        held = special.saturating_exp(raw.detach())
        assert held.isfinite().all()
        assert held[3] > 1e18


FAMILIES = [
    *(
        cls(scale=scale)
        for cls in (D.Normal, D.Cauchy, D.Laplace, D.Logistic, D.Gumbel, D.StudentT)
        for scale in ("shared", "predicted", 2.5)
    ),
    *(D.Gamma(rate) for rate in ("shared", "predicted", 2.5)),
    *(D.NegativeBinomial(logits) for logits in ("shared", "predicted", -0.5)),
    D.Exponential(),
    D.Poisson(),
    D.Categorical(3),
]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_links(family: D.Family) -> None:
    raw = torch.randn(5, len(family.outputs), dtype=F64)
    shared = torch.randn(len(family.shared), dtype=F64) if family.shared else None
    d = family(raw, shared)
    assert isinstance(d, family.distribution)
    assert d.batch_shape == (5,)
    assert D.family_of(d) is type(family)
    named = D.parameters(d)
    assert all(p.shape[:1] == (5,) and p.dtype == F64 for p in named.values())
    choice = getattr(family, "scale", getattr(family, "rate", getattr(family, "logits", None)))
    second = list(named.values())[-1]
    if choice == "predicted":
        assert len(family.outputs) == 2
        assert not family.shared
        assert second.stride(0) != 0
        want = raw[:, 1] if isinstance(family, D.NegativeBinomial) else raw[:, 1].exp()
        torch.testing.assert_close(second, want)
    elif choice == "shared":
        assert len(family.shared) == 1
        assert second.stride(0) == 0
        want = shared if isinstance(family, D.NegativeBinomial) else shared.exp()
        torch.testing.assert_close(second, want.expand(5))
    elif choice is not None:
        assert not family.shared
        assert second.stride(0) == 0
        assert (second == choice).all()


def test_links_by_value() -> None:
    raw = t64(0.7).unsqueeze(1)
    one = t64(1.0)
    assert D.Exponential()(raw).mean.item() == pytest.approx(math.exp(0.7))
    assert D.Poisson()(raw).rate.item() == pytest.approx(math.exp(0.7))
    assert D.Gamma()(raw, one).concentration.item() == pytest.approx(math.exp(0.7))
    assert D.NegativeBinomial()(raw, one).total_count.item() == pytest.approx(math.exp(0.7))
    assert D.Normal()(raw, one).loc.item() == 0.7
    assert D.StudentT(3.0)(raw, one).df.item() == 3.0
    assert D.StudentT(3.0)(raw, one).df.stride(0) == 0


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_extreme_raw_outputs(family: D.Family, dtype: torch.dtype) -> None:
    """A step of a learner that went much too far: finite values, finite gradients."""
    near = family.kind is D.Continuous and not family.positive  # loc: up to 1e6 scales away
    ends = (-1e6, -1.0, 1e6) if near else (-1e4, -14.0, 0.0, 14.0, 1e4)
    for log_second in (-14.0, 0.0, 14.0):  # scales from 1e-6 to 1e6
        raw = torch.tensor(list(itertools.product(ends, repeat=len(family.outputs))), dtype=dtype)
        if near:
            raw *= math.exp(log_second)
            raw[:, 1:] = log_second
        raw.requires_grad_()
        shared = torch.full((len(family.shared),), log_second, dtype=dtype, requires_grad=True)
        for x, f in itertools.product((0.0, 1.0, 2.0), FUNCTIONS):
            if x == 2 and f == "log_survival" and isinstance(family, D.Categorical):
                continue  # no class above the last
            at = torch.tensor(x + 0.5 * family.positive, dtype=dtype)
            value = getattr(D, f)(family(raw, shared), at)
            assert value.isfinite().all(), (f, x, raw[~value.isfinite()])
            grads = torch.autograd.grad(value.sum(), [raw, shared], allow_unused=True)
            assert all(g is None or g.isfinite().all() for g in grads), (f, x)


# ---- the logistic distribution that torch lacks


def test_logistic_distribution() -> None:
    d = D.LogisticDistribution(t64(0.5, -1.0), 2.0)
    scipy_d = scipy.stats.logistic(np.array([0.5, -1.0]), 2.0)
    x = t64(3.0, -4.0)
    for ours, theirs in (
        (d.log_prob(x), scipy_d.logpdf(x)),
        (d.cdf(x), scipy_d.cdf(x)),
        (d.mean, scipy_d.mean()),
        (d.mode, scipy_d.mean()),
        (d.variance, scipy_d.var()),
        (d.entropy(), scipy_d.entropy()),
        (d.icdf(t64(0.2, 0.9)), scipy_d.ppf([0.2, 0.9])),
    ):
        torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=1e-10, atol=0)
    wide = d.expand((3, 2))
    assert wide.batch_shape == (3, 2)
    assert wide.sample((4,)).shape == (4, 3, 2)
    assert torch.equal(wide.log_prob(x), d.log_prob(x).expand(3, 2))
    loc = t64(0.0).requires_grad_()
    D.LogisticDistribution(loc, 1.0).rsample((5,)).sum().backward()
    assert loc.grad.item() == 5
    with pytest.raises(ValueError, match="scale"):
        D.LogisticDistribution(0.0, -1.0, validate_args=True)
    with pytest.raises(ValueError, match="support"):
        D.LogisticDistribution(0.0, 1.0, validate_args=True).log_prob(torch.tensor(math.nan))


# ---- names and errors


def test_resolve() -> None:
    assert D.resolve("normal") == D.Normal()
    assert D.resolve("Student_T") == D.StudentT(df=4.0)
    assert D.resolve("negative-binomial") == D.NegativeBinomial()
    mine = D.Laplace(scale=3.0)
    assert D.resolve(mine) is mine
    with pytest.raises(ValueError, match=r"unknown family 'foo'.*cauchy.*poisson"):
        D.resolve("foo")
    with pytest.raises(ValueError, match="n_classes"):
        D.resolve("categorical")
    with pytest.raises(TypeError, match=r"Normal is a class: call it"):
        D.resolve(D.Normal)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="known names are"):
        D.resolve(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: D.Normal(scale="foo"), "Normal: scale must be .*'foo'"),
        (lambda: D.Cauchy(scale=-1.0), "Cauchy: scale must be .*positive number, got -1.0"),
        (lambda: D.Laplace(scale=0), "positive number, got 0"),
        (lambda: D.Gumbel(scale=INF), "got inf"),
        (lambda: D.Logistic(scale=True), "got True"),
        (lambda: D.Normal(scale=None), "got None"),
        (lambda: D.StudentT(df=0.0), "StudentT: df must be a positive number, got 0.0"),
        (lambda: D.StudentT(df="four"), "df must be a positive number, got 'four'"),
        (lambda: D.StudentT(scale=-2.0), "StudentT: scale"),
        (lambda: D.Gamma(rate=-1.0), "Gamma: rate must be"),
        (lambda: D.NegativeBinomial(logits="foo"), "NegativeBinomial: logits must be"),
        (lambda: D.NegativeBinomial(logits=math.nan), "a fixed number, got nan"),
        (lambda: D.Categorical(1), "n_classes must be at least 2, got 1"),
        (lambda: D.Categorical(2.5), "n_classes must be an integer, got 2.5"),
        (lambda: D.Normal()(torch.zeros(3), torch.zeros(1)), r"shape \(rows, 1\).*loc; got \(3,\)"),
        (lambda: D.Normal()(torch.zeros(3, 2), torch.zeros(1)), r"got \(3, 2\)"),
        (lambda: D.Normal()(torch.zeros(3, 1)), r"1 shared number\(s\) \(log_scale\), got none"),
        (lambda: D.Normal()(torch.zeros(3, 1), torch.zeros(1, 1)), r"got shape \(1, 1\)"),
        (lambda: D.Categorical(3)(torch.zeros(3, 2)), r"logit_0, logit_1, logit_2; got \(3, 2\)"),
    ],
)
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_unknown_distribution() -> None:
    with pytest.raises(TypeError, match=r"no distribution functions.*Beta.*known are.*Cauchy"):
        D.family_of(td.Beta(1.0, 1.0))


def test_what_is_learned_of_aggregates_comes_behind_the_shared_numbers():
    raw = torch.zeros(3, 1)
    d = D.Normal()(raw, torch.tensor([0.5, 7.0, 9.0]))
    assert torch.equal(d.scale, D.Normal()(raw, torch.tensor([0.5])).scale)
    assert D.Poisson()(raw, torch.ones(2)).rate.tolist() == [1, 1, 1]
