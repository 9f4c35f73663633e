"""Gradients of the likelihood of each set, and how they vary together where sets share rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, sparse
from torch import Tensor

from setwise.objective import Objective
from setwise.objective.terms import Term, derivatives

__all__ = ["CHUNK", "outer", "set_gradients"]

Floats = NDArray[np.float64]
NEIGHBOURS = 100_000_000  # pairs of sets that share rows
CROWD = 1 / 3  # of all sets, that one set shares rows with
LEAST = 0.5  # times the per-set figure: what a sum over neighbours may not fall below
CHUNK = 4_000_000


def set_gradients(term: Term, raw: Tensor, shared: Tensor) -> tuple[Floats, Floats]:
    """Gradients of each set's weight · log p(y): at its members (flat), and in shared parameters.

    Gradients of several sets at one row are not added up.
    """
    leaf = term.sets.members(raw.detach()).clone().requires_grad_()
    own = shared.detach().clone().requires_grad_()
    ones = torch.ones(len(term.sets), dtype=leaf.dtype, requires_grad=True)
    with torch.enable_grad():
        total = (ones * term.weighted(term.at_members(leaf, own))).sum()
        at_members, at_shared = derivatives(total, (leaf, own), create_graph=bool(len(shared)))
        # the derivative of Σ uₛ ∂ log pₛ / ∂ shared in uₛ is the gradient of one set
        columns = [derivatives(g, [ones])[0].detach() for g in at_shared]
    at_sets = torch.stack(columns, 1) if columns else leaf.new_zeros(len(term.sets), 0)
    return at_members.detach().numpy(), at_sets.numpy()


def outer(
    objective: Objective,
    table: Any,
    raw: Tensor,
    shared: Tensor,
    units: Floats,
    learned: slice,
    alone: bool = False,
) -> Floats:
    """Σ g_s g_tᵀ over sets that are the same or share a row; `alone`: over those that are the same.

    Where sets have a joint likelihood, what is independent in it takes the place of sets, and only
    what is no part of it can be a neighbour.
    """
    gradients, members, joint = [], [], []
    n_rows = objective.n_rows
    for term in objective.terms:
        sets = term.sets
        ones = np.ones(len(sets.indices))
        rows = sparse.csr_array((ones, sets.indices, sets.offsets), (len(sets), n_rows))
        if term.adds_up:
            at_members, at_sets = set_gradients(term, raw, objective.seen(term, shared))
            at_sets = np.pad(at_sets, ((0, 0), (0, len(shared) - at_sets.shape[1])))
            lines = []
            for o in range(len(units)):
                slopes = at_members[:, o] * units[o]
                spread = sparse.csr_array((slopes, sets.indices, sets.offsets), rows.shape)
                part = spread @ table
                lines.append(part.toarray() if sparse.issparse(part) else part)
            by_output = np.stack(lines, 2).reshape(len(sets), -1)
            gradients.append(np.hstack([by_output, at_sets[:, learned]]))
        else:
            gradients.append(_of_joint(term, table, raw, shared, units, learned))
            rows = rows[cast(Any, term).directions.slot]
        members.append(rows)
        joint.append(np.full(rows.shape[0], not term.adds_up))
    g = np.nan_to_num(np.concatenate(gradients), posinf=0.0, neginf=0.0)
    if alone:
        return np.asarray(g.T @ g)
    return _over_neighbours(g, sparse.vstack(members, format="csr"), np.concatenate(joint))


def _of_joint(
    term: Any, table: Any, raw: Tensor, shared: Tensor, units: Floats, learned: slice
) -> Floats:
    """The gradients of the independent parts of a joint likelihood of normal targets."""
    found = term.directions
    rows = table[term.rows]
    rest = found.forward(raw[:, 0].numpy()[term.rows]) - found.target
    own = np.exp(2 * float(term.log_scale(shared))) * found.unit
    variance = own + found.noise
    slopes = found.forward(rows.toarray() if sparse.issparse(rows) else rows) * units[0]
    at_shared = np.zeros((len(rest), len(shared)))
    if len(term.family.shared):
        at_shared[:, 0] = own / variance * (rest**2 / variance - 1)
    return np.hstack([-(rest / variance)[:, None] * slopes, at_shared[:, learned]])


def _over_neighbours(g: Floats, rows: sparse.csr_array, joint: NDArray[np.bool_]) -> Floats:
    """The sum over sets, and pairs of sets that share a row, from gradients and members.

    Two that are `joint` are no pair. Where some set shares rows with a third of all, or pairs are
    too many, a pair counts by the share of rows that are common to both: the plain sum would be
    that of all gradients, zero.
    """
    alone = g.T @ g
    rows.data[:] = 1
    square = float((np.asarray(rows[~joint].sum(0), dtype=np.float64) ** 2).sum())
    square += 2 * float((rows[~joint].sum(0) * rows[joint].sum(0)).sum())
    if joint.all() or square <= rows[~joint].nnz:  # no row is in two sets
        return alone
    own, single = g[joint], g[~joint]
    flipped = rows.T.tocsr()
    out, most = own.T @ own, 0
    step = max(1, int(len(g) * CHUNK / square))
    each = np.flatnonzero(~joint)
    for begin in range(0, len(each) if square <= NEIGHBOURS else 0, step):
        near = (rows[each[begin : begin + step]] @ flipped).tocsr()
        near.data = np.ones(len(near.data))
        most = max(most, int(np.diff(near.indptr).max()))
        part = single[begin : begin + step].T
        crossed = part @ (near[:, joint] @ own)
        out += part @ (near[:, ~joint] @ single) + crossed + crossed.T
    if square > NEIGHBOURS or most > CROWD * len(g):
        sizes = np.asarray(rows.sum(1), dtype=np.float64).ravel()
        by_row, by_joint = (
            flipped[:, some] @ (g[some] / np.sqrt(sizes[some])[:, None])
            for some in (~joint | joint, joint)
        )
        out = by_row.T @ by_row - by_joint.T @ by_joint + own.T @ own
    return _no_less((out + out.T) / 2, alone)


def _no_less(outer: Floats, alone: Floats) -> Floats:
    """The sum over neighbours, kept above a share of the sum over sets, as it may be negative."""
    size, axes = linalg.eigh(alone)
    kept = size > 1e-12 * max(float(size[-1]), 1e-300)
    root = axes[:, kept] * np.sqrt(size[kept])
    inverse = axes[:, kept] / np.sqrt(size[kept])
    ratio, turn = linalg.eigh(inverse.T @ outer @ inverse)
    half = root @ turn
    return np.asarray((half * np.maximum(ratio, LEAST)) @ half.T)
