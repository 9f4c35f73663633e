"""The information matrix of a linear model, and its null space.

The matrix is Σ over sets of E[g gᵀ], with g the gradient of log p(y) in the coefficients and y
drawn from the fitted model. (The Hessian at the observed y need not be positive semidefinite, and
the gradients at the observed y vanish where the fit is perfect.) A direction orthogonal to every g
changes predictions without changing the likelihood of any label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg
from torch import Tensor

from setwise.distributions import Categorical, Discrete, Family
from setwise.identifiability.facts import Identifiability
from setwise.identifiability.principle import identify
from setwise.likelihood import Aggregate, Bounds, Targets, evaluate
from setwise.objective import Objective
from setwise.objective.terms import derivatives
from setwise.observations import Observations
from setwise.sets import Sets

__all__ = ["Coefficients", "within"]

Floats = NDArray[np.float64]
NULL = 1e-9  # of the largest information: less counts as none
MOST_SETS = 200_000
FEW = 8  # when so few directions are left, sets that they do not change are skipped
CHUNK = 4_000_000  # numbers in a table of gradients


class Coefficients:
    """The coefficients of a linear model for the raw parameters, and what labels tell about them.

    For each output (for classes: each contrast) they are a level and the effects of uncorrelated
    mixtures of the features with variance 1; then come the shared parameters. `features` are the
    standardised ones of the rows `rows`.
    """

    def __init__(self, objective: Objective, rows: NDArray[np.int64], features: Floats) -> None:
        self.objective = objective
        family = objective.family
        spread, axes = linalg.eigh(features.T @ features / max(len(features), 1))
        kept = spread > 1e-10 * max(len(spread), 1)
        self.mix = axes[:, kept] / np.sqrt(spread[kept])  # from mixtures to features
        self.unmix = (axes[:, kept] * np.sqrt(spread[kept])).T  # and back
        self.row = np.zeros(objective.n_rows, dtype=np.int64)
        self.row[rows] = np.arange(len(rows))
        self.design = np.column_stack([np.ones(len(rows)), features @ self.mix])
        self.contrasts: Floats = np.eye(objective.n_outputs)
        if isinstance(family, Categorical):  # adding a number to all logits changes nothing
            self.contrasts = linalg.helmert(family.n_classes).T
        self.width = self.design.shape[1]
        self.n_outputs = self.contrasts.shape[1]
        self.n_raw: int = self.width * self.n_outputs

    def __len__(self) -> int:
        return self.n_raw + self.objective.n_shared

    def direction(self, output: int, feature: int | None = None) -> Floats:
        """The change of one feature's effect, or of the level, for one output."""
        out = np.zeros(len(self))
        own = out[output * self.width :][: self.width]
        if feature is None:
            own[0] = 1.0
        else:
            own[1:] = self.unmix[:, feature]
        return out

    def complement(self, whole: Identifiability) -> Floats:
        """Directions, as columns, without those that labels of this kind leave open anyway."""
        family = self.objective.family
        open_ = ["loc"] * whole.shift + [family.unit] * (not whole.scale)
        known = [self.width * j for j, name in enumerate(family.outputs) if name in open_]
        if not whole.scale:  # shared parameters stay as they are
            known += range(self.n_raw, len(self))
        out: Floats = np.delete(np.eye(len(self)), known, axis=1)
        return out

    def null(self, basis: Floats, raw: Tensor, shared: Tensor) -> Floats:
        """The directions within `basis` that no label depends on, as orthonormal columns."""
        rng = np.random.default_rng(0)
        observations = self.objective.observations
        compares = [identify(self.objective.family, [o]).shift for o in observations]
        left = [rng.permutation(len(o)) for o in observations]
        least, done = None, 0
        while basis.shape[1] and done < MOST_SETS and any(len(part) for part in left):
            tables = []
            for i, o in enumerate(observations):
                room = CHUNK // (self.n_raw * int(o.sets.sizes.max()))
                step = max(1, min(max(500, 4 * len(self)), room))
                part, left[i] = left[i][:step], left[i][step:]
                if len(part):
                    tables.append(self._table(o.take(part), raw, shared, int(rng.integers(2**31))))
            done += sum(len(table) for table in tables)
            seen = np.concatenate(tables) @ basis
            size, axes = linalg.eigh(seen.T @ seen)
            least = NULL * float(size[-1]) if least is None else least
            basis = basis @ axes[:, size <= least]
            if 0 < basis.shape[1] <= FEW:
                left = [
                    part[self._concerned(o.take(part), basis, shift)]
                    for o, part, shift in zip(observations, left, compares, strict=True)
                ]
        return basis

    def _concerned(self, o: Observations, basis: Floats, shift: bool) -> NDArray[np.bool_]:
        """Which sets these directions change, other than by a shift that goes unnoticed."""
        if not len(o):
            return np.zeros(0, dtype=bool)
        out = np.full(len(o), bool(basis[self.n_raw :].any()))
        design, starts = self.design[self.row[o.sets.indices]], o.sets.offsets[:-1]
        for j, name in enumerate(self.objective.family.outputs[: self.n_outputs]):
            change = design @ basis[j * self.width : (j + 1) * self.width]
            high, low = (f.reduceat(change, starts, axis=0) for f in (np.maximum, np.minimum))
            size = high - low if shift and name == "loc" else np.maximum(high, -low)
            out |= (size > 1e-9).any(1)
        return out

    def _table(self, o: Observations, raw: Tensor, shared: Tensor, seed: int) -> Floats:
        """The gradient of each set, as a row."""
        family = self.objective.family
        sets, rows, y = _drawn(family, o, raw, shared, seed)
        member, own = _slopes(family, o.aggregate, sets, y, raw[torch.from_numpy(rows)], shared)
        design, starts = self.design[self.row[rows]], sets.offsets[:-1]
        slopes = (member @ self.contrasts).T
        blocks = [np.add.reduceat(design * s[:, None], starts, axis=0) for s in slopes]
        out: Floats = np.nan_to_num(np.column_stack([*blocks, own]), posinf=0.0, neginf=0.0)
        return out


def within(null: Floats, direction: Floats) -> bool:
    """Whether a direction lies in the span of orthonormal columns."""
    rest = direction - null @ (null.T @ direction)
    return float(np.linalg.norm(rest)) < 1e-3 * float(np.linalg.norm(direction))


def _drawn(
    family: Family, o: Observations, raw: Tensor, shared: Tensor, seed: int
) -> tuple[Sets, NDArray[np.int64], Any]:
    """Labels drawn from the model: sets over members, the members' rows, and y."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        z = family(raw[torch.from_numpy(o.sets.expand().indices)], shared).sample()
    discrete = issubclass(family.kind, Discrete)
    if isinstance(o.aggregate.outcome(Targets.of(family), None), Bounds):
        # the same ends as before, on whichever side the drawn targets lie
        assert o.y is not None
        (low, high), values = o.y.T, z.numpy()
        below, above, gap = values < low, values > high, float(discrete)
        new_low = np.where(below, -np.inf, np.where(above, high + gap, low))
        new_high = np.where(below, low - gap, np.where(above, np.inf, high))
        return o.sets.flat, o.sets.indices, np.column_stack([new_low, new_high])
    aggregate = o.aggregate
    if isinstance(family, Categorical):
        aggregate = aggregate.with_classes(family.n_classes)
    seen = aggregate.observe(z.long() if discrete else z, o.sets.flat, seed=seed)
    return seen.sets.flat, o.sets.indices[seen.sets.indices], seen.y


def _slopes(
    family: Family, aggregate: Aggregate, sets: Sets, y: Any, members: Tensor, shared: Tensor
) -> tuple[Floats, Floats]:
    """Gradients of each set's log p(y): at its members' raw parameters, and the shared ones."""
    leaves = members.clone().requires_grad_(), shared.clone().requires_grad_()
    ones = torch.ones(len(sets), dtype=members.dtype, requires_grad=True)

    with torch.enable_grad():
        each = evaluate(aggregate, family(*leaves), sets, y)
        total = (ones * each).sum()
        at_members, at_shared = derivatives(total, leaves, create_graph=bool(len(shared)))
        # the derivative of Σ uₛ ∂ log pₛ / ∂ shared in uₛ is the gradient of one set
        columns = [derivatives(g, [ones])[0].detach() for g in at_shared]
    own = torch.stack(columns, 1) if columns else members.new_zeros(len(sets), 0)
    return at_members.detach().numpy(), own.numpy()
