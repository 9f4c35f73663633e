"""Posterior-predictive checks: is what was seen of sets what the model expects to see?

Each statistic of the observed y is compared with the same statistic of y simulated from the model.
It is meant for sets that the model has not learned from: residuals of the sets it learned from are
too small.

Gelman, Meng & Stern, "Posterior predictive assessment of model fitness via realized
discrepancies", Statistica Sinica 1996.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from torch.distributions import Distribution

from setwise.distributions import Discrete, double, map_parameters
from setwise.inference.expected import simulated
from setwise.likelihood import Aggregate, Outcome, PerClass, Targets
from setwise.observations import Observations

__all__ = ["Check", "Finding", "check_observations", "shuffled_pairs"]

Floats = NDArray[np.float64]
DRAWS = 300
MEMBERS = 1 << 19  # drawn at once
FEWEST = 20  # sets of a kind below which nothing is said of it
SURE = 0.002  # chance of a false finding, in each of up to five tests of a kind


class Finding(NamedTuple):
    """One statistic of the observed y, beside what the model expects of it."""

    aggregate: str
    statistic: str
    observed: float
    expected: float
    p: float
    words: str  # empty where there is nothing to say


@dataclass(frozen=True)
class Check:
    """What held-out sets say against a model; `str` gives a sentence for each finding."""

    tests: list[Finding]
    skipped: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """The tests that reject the model."""
        return [test for test in self.tests if test.words]

    def __str__(self) -> str:
        lines = [f"{found.aggregate}: {found.words}" for found in self.findings]
        if self.tests and not lines:
            tried = ", ".join(dict.fromkeys(test.aggregate for test in self.tests))
            lines = [f"{tried}: these sets are as the model expects them"]
        return "\n".join([*lines, *self.skipped]) or "there was nothing to check"


def check_observations(
    distribution: Distribution,
    observations: Sequence[Observations],
    learned_from: float = np.inf,
    spread_from: float = np.inf,
    seed: int = 0,
) -> Check:
    """Compares the y of each kind with what the rows' distributions would give.

    The distributions are themselves estimates, from `learned_from` sets, and their spread from
    `spread_from` held-out ones: a deviation counts as much as if they had been estimated from so
    many.
    """
    estimated_from = learned_from, min(learned_from, spread_from)
    d = map_parameters(double(distribution), torch.Tensor.detach)
    tests: list[Finding] = []
    skipped = []
    for o in map(shuffled_pairs, observations):
        outcome = o.aggregate.outcome(Targets.of(d), None)
        name = repr(o.aggregate)
        if o.y is None or outcome.instead:
            skipped.append(f"{name}: y is {outcome.words}, for which no check is known")
        elif len(o) < FEWEST:
            skipped.append(f"{name}: {len(o)} sets are too few to check, {FEWEST} are needed")
        else:
            level, spread = (1 + len(o) / n for n in estimated_from)
            tests += _check(o, d, outcome, level, spread, seed)
    return Check(tests, skipped)


def shuffled_pairs(o: Observations) -> Observations:
    """The same with the members of pairs in random order, where their order tells y.

    Of a table of winners and losers every y is 1, whatever a model says of the pair: only in
    another order is there something to predict.
    """
    if o.y is None:
        return o
    mirrored = o.aggregate.mirrored(o.y)
    if mirrored is None or not ((o.y >= mirrored).all() or (o.y <= mirrored).all()):
        return o
    turn = np.random.default_rng(0).random(len(o)) < 0.5
    order = np.arange(2 * len(o)).reshape(-1, 2)
    order[turn] = order[turn, ::-1]
    return o._with(sets=o.sets.reorder(order.ravel()), y=np.where(turn, mirrored, o.y))


def _check(
    o: Observations, d: Distribution, outcome: Outcome, level: float, spread: float, seed: int
) -> list[Finding]:
    drawn, y = _simulated(o, d, seed), np.asarray(o.y, np.float64)
    if outcome.named:  # one column of 0 and 1 for each name
        names = np.unique(np.concatenate([drawn.ravel(), y]))
        drawn, y = (np.stack([a == name for name in names], -1) * 1.0 for a in (drawn, y))
    if y.ndim == 1:
        drawn, y = drawn[..., None], y[:, None]
    if not np.isfinite(drawn).all():
        return []
    deviation = np.maximum(drawn.std(0), 1e-300)
    listed = outcome.values is not None or bool(np.isin(drawn, (0, 1)).all())
    if listed:  # one for all sets: a few draws do not tell rare events
        deviation = np.maximum(np.sqrt((deviation**2).mean(0, keepdims=True)), 1 / DRAWS)
    heavy = not isinstance(d, Discrete) and not bool(torch.isfinite(d.variance).all())
    if heavy:  # there is no variance to compare with: ranks among the draws
        every = np.concatenate([drawn, y[None]])
        rank = (every.argsort(0).argsort(0) + 0.5) / len(every)
        r_drawn, r = special.ndtri(rank[:-1]), special.ndtri(rank[-1])
    else:
        r_drawn, r = (drawn - drawn.mean(0)) / deviation, (y - drawn.mean(0)) / deviation
    sizes = np.log(o.sets.individuals)
    centred = (sizes - sizes.mean()) / max(float(sizes.std()), 1e-300)
    binary = bool(np.isin(y, (0, 1)).all()) and y.shape[1] == 1
    statistics: dict[str, tuple[Floats, Floats]] = {
        "level": (r_drawn.mean((1, 2)), r.mean()) if r.shape[1] == 1 else _largest(r_drawn, r),
        "spread": ((r_drawn**2).mean((1, 2)), (r**2).mean()),
    }
    if len(np.unique(sizes)) > 1:
        by_size = centred[:, None]
        statistics["level by size"] = ((r_drawn * by_size).mean((1, 2)), (r * by_size).mean())
        statistics["spread by size"] = (
            ((r_drawn**2) * by_size).mean((1, 2)),
            ((r**2) * by_size).mean(),
        )
    if binary:
        del statistics["spread"]
        statistics["flips"] = _flips(drawn[..., 0], y[:, 0])
    elif y.shape[1] == 1:
        statistics["shape"] = _shape(r_drawn[..., 0], r[:, 0])
    # sets that vary more than the model says also have levels that do
    factor = max(1.0, float((r**2).mean() / max((r_drawn**2).mean(), 1e-300)))
    found = [
        _finding(
            o.aggregate, name, float(seen), told, factor * level if "level" in name else spread
        )
        for name, (told, seen) in statistics.items()
    ]
    # what varies more than expected does so by size and has another shape, too
    said = {f.statistic for f in found if f.words}
    idle = {"spread by size"} if "spread" in said else set()
    idle |= {"shape"} if said - {"shape"} else set()
    return [f._replace(words="") if f.statistic in idle else f for f in found]


def _largest(r_drawn: Floats, r: Floats) -> tuple[Floats, Any]:
    """The deviation of the class that deviates most on average."""
    each = np.abs(r_drawn.mean(1))
    return each.max(1), np.abs(r.mean(0)).max()


def _shape(r_drawn: Floats, r: Floats) -> tuple[Floats, Any]:
    """How far ranks among the draws are from uniform, apart from level and spread: logarithms.

    That is the probability integral transform of y, and its Kolmogorov distance.
    """
    every = np.concatenate([r_drawn, r[None]])
    every = every - every.mean(1, keepdims=True)
    every /= np.maximum(every.std(1, keepdims=True), 1e-300)
    order, n = np.sort(every, axis=0), len(every)
    rank = np.empty_like(every)
    for i in range(every.shape[1]):  # the middle of those that are equal
        low, high = (np.searchsorted(order[:, i], every[:, i], side) for side in ("left", "right"))
        rank[:, i] = (low + high) / (2 * n)
    rank.sort(axis=1)
    steps = (np.arange(rank.shape[1]) + 0.5) / rank.shape[1]
    distance = np.log(np.maximum(np.abs(rank - steps).max(1), 1e-12))
    return distance[:-1], distance[-1]


def _flips(drawn: Floats, y: Floats) -> tuple[Floats, Any]:
    """The share of labels that look flipped: of largest likelihood, from −½ to ½."""
    p = (drawn.sum(0) + 0.5) / (len(drawn) + 1)

    def rate(labels: Floats) -> float:
        def loss(flip: float) -> float:
            q = p + flip * (1 - 2 * p)
            q = np.clip(q, 1e-12, 1 - 1e-12)
            return -float((labels * np.log(q) + (1 - labels) * np.log1p(-q)).sum())

        found = optimize.minimize_scalar(loss, bounds=(-0.25, 0.5), method="bounded")
        return float(found.x)

    return np.array([rate(labels) for labels in drawn]), rate(y)


def _finding(aggregate: Aggregate, name: str, seen: float, drawn: Floats, factor: float) -> Finding:
    middle, width = float(drawn.mean()), max(float(drawn.std()) * factor**0.5, 1e-12)
    p = float(2 * special.ndtr(-abs(seen - middle) / width))
    words = ""
    if p < SURE and (name != "shape" or seen > middle):
        sure = "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".")
        words = _words(aggregate, name, seen, middle, sure)
    return Finding(repr(aggregate), name, seen, middle, p, words)


def _words(aggregate: Aggregate, name: str, seen: float, middle: float, sure: str) -> str:
    more = seen > middle
    kind = repr(aggregate.bare)
    if name == "level":
        side = "above" if more else "below"
        return (
            f"y lies {abs(seen):.2g} standard deviations {side} what is expected, on average "
            f"({sure}): new sets differ from those learned from, or a feature is missing"
        )
    if name == "spread":
        factor = seen / max(middle, 1e-300)
        if more:
            return (
                f"y varies {factor:.2g} times as much as "
                f"{'the model expects' if aggregate.shares else 'independent members would'} "
                f"({sure}): members of a set are alike, or y is noisier than the model knows. "
                f"Intervals of sets are too narrow; add features that the members of a set share, "
                f"or consider {_remedy(aggregate, kind)}"
            )
        return (
            f"y varies only {factor:.2g} times as much as independent members would ({sure}): "
            f"members of a set were balanced against one another, or the scale is too large"
        )
    if name == "flips":
        if more:
            return (
                f"{seen:.1%} of the labels look flipped ({sure}): consider "
                f"Noisy({kind}, flip={seen:.2g})"
            )
        return (
            f"labels are more certain than the model says ({sure}): it has not learned all that "
            f"there is; give it more steps or a smaller penalty"
        )
    if name == "shape":
        return (
            f"y is distributed otherwise than the model says, apart from its level and spread "
            f"({sure}): tails are heavier, or to one side. Intervals hold more or fewer sets than "
            f"they say; consider another family, such as StudentT, Laplace or Gumbel, or the "
            f"logarithm of the targets where single ones are known"
        )
    what = "y" if name == "level by size" else "its variation"
    side = "larger" if more else "smaller"
    return (
        f"in large sets {what} is {side} than expected, compared with small ones ({sure}): the "
        f"size of a set says something of its members; add it as a feature"
        + ("" if name == "level by size" else ", or members of a set are alike")
    )


def _remedy(aggregate: Aggregate, kind: str) -> str:
    """What to write where y varies too much."""
    noisy = f"Noisy({kind}, normal=…)"
    if aggregate.shares:
        return f"RandomEffect({noisy})"
    if isinstance(aggregate.outcome(Targets(), None), PerClass):
        return f"RandomEffect({kind})"
    return f"RandomEffect({kind}), or {noisy} where y is noisy"


def _simulated(o: Observations, d: Any, seed: int) -> Floats:
    """y of each set, (draws, sets, …), with members drawn from their distributions."""
    every = o.sets.expand()
    members, sets = map_parameters(d, every.members), every.flat
    rng, pieces = np.random.default_rng(seed), []
    step = max(1, min(DRAWS, MEMBERS // max(1, len(sets.indices))))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for begin in range(0, DRAWS, step):
            pieces.append(simulated(o.aggregate, members, sets, min(step, DRAWS - begin), rng))
    return np.concatenate(pieces)
