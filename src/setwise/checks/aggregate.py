"""Whether an aggregate does what it says: its likelihood is that of what it observes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.checks.examples import (
    check_numerics,
    context,
    default_families,
    example_raw,
    refused,
    require,
    simulate,
)
from setwise.checks.sample import FEW, Sample
from setwise.distributions import Categorical, Family, log_density, map_parameters
from setwise.likelihood import Aggregate, SetSizes, Targets, evaluate, find_rule, log_likelihood
from setwise.sets import Sets

__all__ = ["check_aggregate"]

Floats = NDArray[np.float64]
SCORES = 500  # sets over which derivatives are averaged
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


def check_aggregate(
    aggregate: Aggregate,
    families: Iterable[str | Family] | None = None,
    *,
    sizes: Sequence[int] | None = None,
    n_classes: int = 3,
    n_samples: int = 2000,
    seed: int = 0,
) -> None:
    """Checks an aggregate and its likelihood rules; raises AssertionError where one is wrong.

    For each family (None: all that have a rule) and each set size (None: 1, 2 and 3, or the
    smallest that it takes; sizes refused with a ValueError are left out) `n_samples` observations
    are simulated with `observe`, and

    * the likelihood of each is positive and agrees with how often it was observed; for continuous
      y, the density integrated between deciles does; probabilities add up to one; for several
      numbers per set, the derivative of log p is zero on average;
    * for classes and a deterministic aggregate, probabilities are those of full enumeration;
    * derivatives are finite and agree with difference quotients; single precision agrees with
      double (within wide limits for rules registered with `exact=False`);
    * a `class_posterior` in closed form is the gradient of its rule;
    * the attributes `symmetric`, `identity_at_one` and `linear` are true;
    * ragged sets give what each set gives alone; a y of wrong length, NaN or text is refused.

    >>> import setwise as sw
    >>> check_aggregate(sw.Similarity())
    """
    require(isinstance(aggregate, Aggregate), f"{aggregate!r} is not an Aggregate (an instance)")
    listed = default_families(aggregate, families, n_classes)
    name = type(aggregate).__name__
    require(listed, f"{name} has no likelihood rule: register one with @setwise.likelihood")
    unfit = {}
    for family in listed:
        taken = []
        for size in sizes or _small(aggregate.set_sizes(Targets.of(family))):
            try:
                sample = Sample.draw(aggregate, family, size, n_samples, seed)
            except (TypeError, ValueError) as error:  # some need larger sets, or odd ones
                unfit[type(family).__name__] = f"sets of {size}: {error}"
                continue
            taken.append(size)
            with context(f"{aggregate!r} of {family!r}, sets of {size}"):
                for check in CHECKS:
                    check(sample)
        if taken:
            unfit.pop(type(family).__name__, None)
            with context(f"{aggregate!r} of {family!r}"):
                _check_ragged(aggregate, family, taken, seed)
    most = 0 if families is not None else len(listed) - 1
    said = "; ".join(f"{who}, {why}" for who, why in unfit.items())
    require(len(unfit) <= most, f"{aggregate!r} takes no targets of {said}")


def _check_values(s: Sample) -> None:
    shape = tuple(s.log_p.shape)
    require(shape == (min(s.n, FEW),), f"the rule gave shape {shape} for {min(s.n, FEW)} sets")
    require(s.log_p.dtype == torch.float64, f"float64 parameters gave {s.log_p.dtype}")
    _check_possible(s, np.arange(len(s.log_p)), s.log_p)


def _check_possible(s: Sample, which: NDArray[np.int64], log_p: Tensor) -> None:
    bad = ~log_p.isfinite()
    if bad.any():
        at = int(which[int(bad.nonzero()[0, 0])])
        y = None if s.observed.y is None else np.asarray(s.observed.y[at]).tolist()
        raise AssertionError(
            f"y = {y} was observed of z = {s.z[at].tolist()}, but has log-likelihood "
            f"{float(log_p[bad][0])}"
        )


# ---- probabilities


def _check_frequencies(s: Sample) -> None:
    found, first, count = np.unique(s.outcomes(), axis=0, return_index=True, return_counts=True)
    if len(found) <= s.n / 2:
        log_p = log_likelihood(s.aggregate, s.distribution, *s.take(first))
        _check_possible(s, first, log_p)
        _check_discrete(s, log_p.exp().numpy(), count, first)
    elif s.observed.y is not None and s.observed.y.ndim == 1:
        _check_density(s, s.observed.y)
    else:
        _check_score(s)


def _slack(s: Sample) -> float:
    """How far a probability may be off; Monte Carlo rules say that they are not exact."""
    return 1e-6 if s.exact else 0.05


def _check_discrete(s: Sample, p: Floats, count: NDArray[np.int64], first: Any) -> None:
    share = count / s.n
    off = np.abs(share - p) - (5 * np.sqrt(p * np.abs(1 - p) / s.n) + 3 / s.n + _slack(s) * p)
    if off.max() > 0:
        at = int(off.argmax())
        what = s.outcomes()[first[at]][s.size :].tolist() or s.members[first[at]].tolist()
        raise AssertionError(
            f"{what} was observed in {share[at]:.2%} of {s.n} simulations, but its likelihood is "
            f"{p[at]:.4g}"
        )
    single = int((count == 1).sum())
    unseen = (single + 5 * math.sqrt(single) + 10) / s.n  # the mass of what was not observed
    require(
        1 - unseen - _slack(s) <= p.sum() <= 1 + _slack(s),
        f"the probabilities of {len(p)} outcomes add up to {p.sum():.8g}, not to one",
    )
    listed = s.aggregate.outcome(Targets.of(s.distribution), s.size).values
    if listed is not None:
        total = _at(s, np.array(listed, dtype=np.float64)).exp().sum()
        require(
            abs(float(total) - 1) < _slack(s) + 1e-6,
            f"the probabilities of its outcomes {list(listed)} add up to {float(total):.8g}",
        )
    if isinstance(s.family, Categorical) and s.family.n_classes**s.size <= 1000:
        _check_enumeration(s, s.family.n_classes)


def _at(s: Sample, y: Any) -> Tensor:
    """log p of these y for the same set."""
    return log_likelihood(s.aggregate, s.distribution, np.tile(s.members[:1], (len(y), 1)), y)


def _check_enumeration(s: Sample, n_classes: int) -> None:
    """All tuples of classes, where the observation does not depend on chance."""
    if s.aggregate.shares:  # members depend on each other
        return
    z = np.array(list(itertools.product(range(n_classes), repeat=s.size)))
    table = Sets(np.arange(z.size).reshape(z.shape))
    seen = [s.aggregate.observe(z.ravel(), table, seed=seed) for seed in range(3)]
    y = seen[0].y
    if y is None or any(not np.array_equal(o.y, y) for o in seen):  # type: ignore[arg-type]
        return
    log_p = s.distribution.log_prob(torch.from_numpy(z)).sum(1)
    values, number = np.unique(y.reshape(len(y), -1), axis=0, return_inverse=True)
    truth = np.bincount(number.ravel(), log_p.exp().numpy(), minlength=len(values))
    found = _at(s, values.reshape(len(values), *y.shape[1:])).exp().numpy()
    off = np.abs(found - truth)
    require(
        off.max() < 1e-7,
        f"P(y = {values[off.argmax()].tolist()}) is {truth[off.argmax()]:.8g} by enumeration, but "
        f"the rule gives {found[off.argmax()]:.8g}",
    )


def _check_density(s: Sample, y: Floats) -> None:
    """The integral of the density between deciles, and the share of observations there."""
    edges = np.unique(np.quantile(y, np.linspace(0.05, 0.95, 10)))
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    points = middle[:, None] + half[:, None] * NODES
    density = _at(s, points.ravel()).exp().numpy().reshape(points.shape)
    found = (density * WEIGHTS).sum(1) * half
    share = np.histogram(y, edges)[0] / s.n
    off = np.abs(found - share) - 5 * np.sqrt(share * (1 - share) / s.n) - 0.002 - 0.5 * _slack(s)
    at = int(off.argmax())
    require(
        off[at] <= 0,
        f"{share[at]:.2%} of {s.n} simulated y lie from {edges[at]:.4g} to {edges[at + 1]:.4g}, "
        f"but the integral of the likelihood is {found[at]:.4g}",
    )


def _check_score(s: Sample) -> None:
    """Where p is the density of what is observed, ∂ log p/∂θ is zero on average."""
    n = min(s.n, SCORES)
    raw = s.raw.repeat(n, 1).requires_grad_()  # every set has its own rows
    members, y = s.take(slice(n))
    rows = members + s.size * np.arange(n)[:, None]
    log_p = log_likelihood(s.aggregate, s.family(raw, s.shared), rows, y)
    _check_possible(s, np.arange(n), log_p)
    (slope,) = torch.autograd.grad(log_p.sum(), raw)
    each = slope.reshape(n, -1)
    error = each.std(0) / math.sqrt(n)
    off = each.mean(0).abs() - 5 * error - 1e-9 - _slack(s)
    at = int(off.argmax())
    require(
        off[at] <= 0,
        f"over {n} simulations the mean derivative of log p in raw parameter {at} is "
        f"{float(each.mean(0)[at]):.4g} ± {float(error[at]):.2g}, but should be zero: the "
        f"likelihood is not that of what is observed",
    )


# ---- numbers


def _check_numerics(s: Sample) -> None:
    members, y = s.take()
    sets = Sets(members)

    def value(raw: Tensor, shared: Tensor) -> Tensor:  # by the rule, without `class_posterior`
        rows = map_parameters(s.family(raw, shared), sets.members)
        return evaluate(s.aggregate, rows, sets, y)

    errors = (1e-3, 1e-3) if s.exact else (math.inf, 0.5)
    check_numerics(value, s.raw, s.shared, s.seed, *errors)


def _check_class_posterior(s: Sample) -> None:
    """P(class | y) − P(class) is the rule's own gradient, at ordinary and at extreme logits.

    So is its derivative, where it can be differentiated: learners use that for the curvature.
    """
    rule = find_rule(type(s.aggregate), s.family.distribution)
    if rule.class_posterior is None:
        return
    members, y = s.take()
    sets, label = Sets(members).flat, torch.as_tensor(y)
    for factor, dtype in itertools.product((1.0, 40.0), (torch.float64, torch.float32)):
        leaf = (factor * s.raw[torch.from_numpy(members.ravel())]).to(dtype).requires_grad_()
        each = evaluate(s.aggregate, s.family(leaf), sets, y)
        (slope,) = torch.autograd.grad(each.sum(), leaf)
        before: Any = s.family(leaf.detach())
        found = rule.class_posterior(s.aggregate, before, sets, label)
        if found is None:
            continue
        pairs = (found[0], each.detach()), (found[1], before.probs + slope)
        off = max(float(((a - b) / (1 + b.abs())).abs().max()) for a, b in pairs)
        least = 1e-7 if dtype == torch.float64 else 1e-3
        require(
            off < least,
            f"`class_posterior` is off the rule's own gradient by {off:.2g} ({dtype}, logits times "
            f"{factor:g})",
        )
    leaf = s.raw[torch.from_numpy(members.ravel())].double().requires_grad_()
    rows: Any = s.family(leaf)
    found = rule.class_posterior(s.aggregate, rows, sets, label)
    if found is not None and found[1].requires_grad:
        each = evaluate(s.aggregate, rows, sets, y)
        (slope,) = torch.autograd.grad(each.sum(), leaf, create_graph=True)
        along = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(s.seed)).to(leaf)
        (own,) = torch.autograd.grad((found[1] * along).sum(), leaf, retain_graph=True)
        (wanted,) = torch.autograd.grad(((rows.probs + slope) * along).sum(), leaf)
        off = float(((own - wanted) / (1 + wanted.abs())).abs().max())
        require(
            off < 1e-7,
            f"the derivative of `class_posterior` is off that of the rule's own gradient by "
            f"{off:.2g}: detach P(class | y) where it cannot be differentiated",
        )


# ---- claims and refusals


def _check_claims(s: Sample) -> None:
    members, y = s.take()
    if s.aggregate.symmetric:
        turned = log_likelihood(s.aggregate, s.distribution, members[:, ::-1].copy(), y)
        off = (turned - s.log_p[:FEW]).abs().max()
        require(off < 1e-7, f"`symmetric` is true, but another order changes log p by {off:.3g}")
    if s.aggregate.identity_at_one and s.size == 1:
        own = log_density(s.distribution, torch.as_tensor(y, dtype=torch.float64))
        off = (own - s.log_p).abs().max()
        require(off < 1e-7, f"`identity_at_one` is true, but log p is off the density by {off:.3g}")
    linear = s.aggregate.linear(s.observed.sets)
    if linear is not None and linear[1] == 0:
        total = (linear[0].reshape(s.n, s.size) * s.z.double().numpy()).sum(1)
        off = np.abs(total - s.observed.y).max()
        require(off < 1e-9, f"`linear` gives Σ a·z that is off the observed y by {off:.3g}")


def _check_refusals(s: Sample) -> None:
    members, y = s.take()
    sets = Sets(members)
    again = s.aggregate.check(sets, y)
    same = again is None if y is None else np.array_equal(np.asarray(again), y, equal_nan=True)
    require(same, "`check` changes a y that it has checked before")
    if y is None:
        bad: dict[str, Any] = {"numbers where None is expected": np.zeros(len(sets))}
    else:
        missing = np.array(y, dtype=np.float64)
        missing[0] = np.nan
        text = ["?"] * len(sets)
        bad = {"None": None, "too few entries": y[:-1], "NaN": missing, "text": text}
    for what, value in bad.items():
        with refused((TypeError, ValueError), f"`check`: a y of {what}"):
            s.aggregate.check(sets, value)


def _check_ragged(aggregate: Aggregate, family: Family, sizes: list[int], seed: int) -> None:
    """Sets of several sizes at once, over shared rows, against each of them alone."""
    if len(set(sizes)) < 2:
        return
    n = max(sizes) + 2
    d = family(*example_raw(family, n, seed))
    rng = np.random.default_rng(seed)
    sets = Sets([rng.choice(n, size, replace=False).tolist() for size in [*sizes, *sizes[::-1]]])
    o = aggregate.observe(simulate(family, d, 1, seed)[0], sets, seed=seed)
    together = log_likelihood(aggregate, d, o.sets, o.y)
    least = 1e-7 if find_rule(type(aggregate), family.distribution).exact else 0.5
    for i in range(len(sets)):
        one = o.take([i])
        alone = log_likelihood(aggregate, d, one.sets, one.y)[0]
        require(
            abs(float(alone - together[i])) < least,
            f"a set of {sets.sizes[i]} alone has log p {float(alone):.8g}, among sets of other "
            f"sizes {float(together[i]):.8g}",
        )


def _small(sizes: SetSizes) -> list[int]:
    """The sizes of set up to 3 that an aggregate takes, or else the smallest two."""
    return [k for k in range(sizes.least, max(4, sizes.least + 2)) if sizes.takes(k)]


CHECKS = (
    _check_values,
    _check_frequencies,
    _check_numerics,
    _check_class_posterior,
    _check_claims,
    _check_refusals,
)
