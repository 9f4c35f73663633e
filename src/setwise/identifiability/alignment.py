"""Alignment: a few labelled rows determine what set labels leave open."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, minimize
from torch.distributions import Distribution

from setwise.distributions import Categorical, Family, map_parameters, parameters
from setwise.distributions.base import with_parameters
from setwise.identifiability.facts import EXACTLY, NOTHING, PARTLY, Identifiability, listed

__all__ = ["Alignment", "solve_alignment"]

Floats = NDArray[np.float64]
LEAST = 1e-9  # smaller probabilities are raised to this when classes are matched


@dataclass(frozen=True)
class Alignment:
    """Targets are `slope`·z + `shift`, with z from the model; class c is its class `classes[c]`.

    The default changes nothing.

    >>> Alignment(slope=2.0, shift=1.0).values(np.array([0.0, 1.0])).tolist()
    [1.0, 3.0]
    >>> Alignment(classes=(1, 0)).probs(np.array([0.9, 0.1])).tolist()
    [0.1, 0.9]
    """

    slope: float = 1.0
    shift: float = 0.0
    classes: tuple[int, ...] | None = None

    def distribution(self, d: Distribution) -> Distribution:
        """The distributions of the rows after alignment."""
        if self.classes is not None:
            order = list(self.classes)
            return map_parameters(d, lambda logits: logits[..., order])
        if self == Alignment():
            return d
        values = parameters(d)
        if "loc" in values:
            values["loc"] = self.slope * values["loc"] + self.shift
            values["scale"] = abs(self.slope) * values["scale"]
        else:
            values["rate"] = values["rate"] / self.slope
        return with_parameters(d, values)

    def probs(self, probs: NDArray[Any]) -> Floats:
        """Class probabilities, on the last axis, after alignment."""
        return probs if self.classes is None else probs[..., list(self.classes)]

    def values(self, z: Any) -> Any:
        """Targets, or means of them, after alignment."""
        return self.slope * z + self.shift

    def spread(self, deviation: Any) -> Any:
        """Standard deviations after alignment."""
        return abs(self.slope) * deviation

    def facts(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """The alignment that `facts` describes."""
        classes = facts["classes"]
        return cls(**{**facts, "classes": None if classes is None else tuple(classes)})


def solve_alignment(
    identifiability: Identifiability, family: Family, distribution: Distribution, z: Any
) -> Alignment:
    """The alignment under which the model best agrees with the known targets z of a few rows.

    `distribution` is the model's for those rows. Classes are matched so that the labels are most
    probable (the Hungarian method); a shift is the mean residual (the median for heavy tails);
    shift and slope are found by least squares or, where few or noisy labels or heavy tails make the
    slope uncertain, by maximum likelihood, as is a common factor. Where the labels of the sets
    determine everything, nothing is changed.

    >>> import torch
    >>> from setwise import Normal
    >>> rows = torch.distributions.Normal(torch.tensor([0.0, 1.0, 2.0]), 1.0)
    >>> solve_alignment(Identifiability("up to a shift", shift=True), Normal(1.0), rows, [5, 6, 7])
    Alignment(slope=1.0, shift=5.0, classes=None)
    """
    values = np.asarray(z, dtype=np.float64)
    n = int(distribution.batch_shape[0])
    if values.ndim != 1 or len(values) != n:
        raise ValueError(
            f"one target for each labelled row is expected, {n} in all; got shape {values.shape}"
        )
    bad = ~np.isfinite(values)
    if bad.any():
        at = int(bad.argmax())
        raise ValueError(f"labelled row {at} has target {values[at]}: leave such rows out")
    level = identifiability.level
    if level == EXACTLY:
        return Alignment()
    if level in (PARTLY, NOTHING):
        raise ValueError(
            f"the observations determine this model {level}, which a few rows cannot repair: "
            f"{identifiability.words}"
        )
    if n == 0:
        raise ValueError("at least one labelled row is needed to align, got none")
    if isinstance(family, Categorical):
        return _match_classes(identifiability, distribution, values)
    if not family.located:
        return _common_factor(distribution, values)
    return _affine(identifiability, distribution, values)


# ---- classes


def _match_classes(
    identifiability: Identifiability, distribution: Any, z: NDArray[np.float64]
) -> Alignment:
    logits = np.maximum(np.asarray(distribution.logits.detach().double()), math.log(LEAST))
    n = logits.shape[1]
    wrong = (z != np.floor(z)) | (z < 0) | (z >= n)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"labelled row {at} has class {z[at]:g}: the classes are 0 to {n - 1}")
    labels = z.astype(np.int64)
    agreement = np.stack([logits[labels == c].sum(0) for c in range(n)])  # (label, model's class)
    for group in identifiability.swaps:
        missing = [c for c in group if c not in labels]
        if len(missing) > 1 and identifiability.orders is None:
            raise ValueError(
                f"the classes {listed(group)} may be in any order, so labelled rows of at least "
                f"{len(group) - 1} of them are needed; {listed(missing)} have none"
            )
    if identifiability.orders is None:
        classes = np.arange(n)
        for group in identifiability.swaps:
            members = np.array(group)
            among = agreement[np.ix_(members, members)]
            classes[members] = members[linear_sum_assignment(among, maximize=True)[1]]
        rivals = []
        for a, b in (pair for g in identifiability.swaps for pair in itertools.combinations(g, 2)):
            rivals.append(classes.copy())
            rivals[-1][[a, b]] = classes[[b, a]]
    else:
        rivals = [np.array(order) for order in identifiability.orders]
        classes = max(rivals, key=lambda order: _total(agreement, order))
    best = _total(agreement, classes)
    for rival in rivals:
        if (rival != classes).any() and best - _total(agreement, rival) < 1e-9:
            pair = np.flatnonzero(rival != classes)
            raise ValueError(
                f"the labelled rows do not tell the classes {listed(pair)} apart: the model gives "
                f"both orders the same probability. Label more rows of these classes; if that does "
                f"not help, the model has not separated them"
            )
    return Alignment(classes=tuple(int(c) for c in classes))


def _total(agreement: Floats, order: NDArray[np.int64]) -> float:
    return float(agreement[np.arange(len(order)), order].sum())


# ---- numbers


def _common_factor(distribution: Distribution, z: Floats) -> Alignment:
    """The maximum-likelihood factor of gamma (or exponential) targets."""
    if (z <= 0).any():
        at = int((z <= 0).argmax())
        raise ValueError(f"labelled row {at} has target {z[at]:g}: the targets are positive")
    found = {k: np.asarray(v.detach().double()) for k, v in parameters(distribution).items()}
    shape = found.get("concentration", np.ones(len(z)))
    return Alignment(slope=float((found["rate"] * z).sum() / shape.sum()))


def _affine(identifiability: Identifiability, distribution: Any, z: Floats) -> Alignment:
    """Shift, stretch, or both; and the sign, if that is open too."""
    signs = (1.0, -1.0) if identifiability.sign else (1.0,)
    found = [_one_sign(identifiability, distribution, sign, z) for sign in signs]
    loc = np.asarray(distribution.loc.detach().double())
    return min(found, key=lambda made: float(np.abs(z - made.values(loc)).mean()))


def _one_sign(
    identifiability: Identifiability, distribution: Any, sign: float, z: Floats
) -> Alignment:
    """The best alignment whose slope has this sign."""
    values = (distribution.loc, distribution.scale, distribution.mean, distribution.variance)
    loc, scale, mean, variance = (np.asarray(v.detach().double()) for v in values)
    scale = np.broadcast_to(scale, loc.shape)
    heavy = not np.isfinite(variance).all()
    weight = scale**-2 / (scale**-2).sum()
    offset = 0.0 if heavy else float((weight * (mean - loc)).sum())  # of a Gumbel's mean
    loc, centre = sign * loc, identifiability.centre

    def middle(x: Floats) -> float:
        return float(np.median(x) if heavy else (weight * x).sum())

    def level(slope: float) -> float:
        return middle(z - slope * loc) - slope * sign * offset

    if identifiability.scale:
        return Alignment(sign, level(1.0) if identifiability.shift else 0.0)
    if centre is None:
        if len(z) < 2 or np.ptp(z) == 0 or np.ptp(loc) == 0:
            raise ValueError(
                f"a slope and a shift are open, so at least 2 labelled rows with different targets "
                f"and different predictions are needed (ten or more are better); got {len(z)} "
                f"row(s) with {len(np.unique(z))} target(s) and {len(np.unique(loc))} prediction(s)"
            )
        slope = _slope(z - middle(z), loc - middle(loc), scale, True, heavy)
        shift = level(slope)
    else:
        slope = _slope(z - centre, loc - centre, scale, False, heavy)
        shift = centre * (1 - sign * slope)
    if not heavy:
        return Alignment(sign * slope, shift)

    def made(x: Floats) -> Alignment:
        a = sign * slope * math.exp(x[0])
        return Alignment(a, shift + slope * x[1] if centre is None else centre * (1 - a))

    def loss(x: Floats) -> float:
        fit: Any = made(x).distribution(distribution)
        return -float(fit.log_prob(torch.from_numpy(z)).sum())

    return made(minimize(loss, np.zeros(2), method="Nelder-Mead").x)


def _slope(z: Floats, loc: Floats, scale: Floats, centred: bool, heavy: bool) -> float:
    """The positive a of z ≈ a·loc + a·scale·noise, both sides measured from the middle.

    By least squares if this makes a clearly positive. With few or noisy labels it may not; the
    likelihood of normal noise, −n log a − Σ (z/a − loc)² / 2 scale², uses the size of the noise as
    well and has its maximum at a positive a whatever the labels.
    """
    if heavy:  # a starting value that is robust to far targets
        return float(np.median(np.abs(z)) / np.median(np.hypot(loc, scale))) or 1.0
    w = scale**-2
    zz, zl, ll = float((w * z * z).sum()), float((w * z * loc).sum()), float((w * loc * loc).sum())
    n = len(z) - centred
    if n > 1 and ll > 0:
        slope = zl / ll
        error = math.sqrt(max(zz - slope * zl, 0.0) / (n - 1) / ll)
        if slope < -3 * error and n > 3:
            raise ValueError(
                f"the labelled targets fall where the predictions rise (correlation "
                f"{zl / math.sqrt(zz * ll):.2f} over {len(z)} rows): check that targets and rows "
                f"are in the same order, and that the sets' labels have the right direction"
            )
        if slope > 4 * error:
            return slope
    return 2 * zz / (zl + math.sqrt(zl * zl + 4 * n * zz)) if zz > 0 else 1.0
