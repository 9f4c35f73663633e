"""Linear observations that share normal targets, turned into directions that are independent.

y = A z + noise with z ~ N(f, σ²) and noise of known variances has the likelihood N(A f, σ²AAᵀ + N).
The *directions* t = Ãf − ỹ are linear in the targets' means f and have variances σ²·unit + noise
without covariances, whatever σ is: formulas for disjoint sets then apply to them. They are computed
once. Observations without noise come first; sets of a largest disjoint part of them are directions
as they are, which leaves a dense matrix for the others only (a pivoted Cholesky factor, which shows
which ones are redundant). Noisy ones, given those, are rotated by the eigenvectors of their
covariance.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.linalg.lapack import dpstrf

from setwise._math.determined import ROUNDING, Contradiction, Infeasible, determined, scaled

__all__ = ["DENSE", "Contradiction", "Directions", "Infeasible"]

Floats = NDArray[np.float64]
DENSE = 3000  # the largest dense matrix that is factored
NUMBERS = 4 * 10**7  # in a table of directions by rows, or by sets
REDUNDANT = 1e-9  # of an observation's variance: what is left given others, if they tell it


class Exact:
    """The directions of observations without noise; their `unit` is 1.

    They are those of the rows of A that are scaled to length 1: first the disjoint ones, then the
    others less their projection on these, in the order of pivots.
    """

    def __init__(self, A: sparse.csr_array, y: Floats) -> None:
        A, size = scaled(A)
        y = y / size
        first = disjoint(A)
        self.reduced = False  # to targets that are told, and what is left
        if int((~first).sum()) > DENSE:
            A, y, of, volume = determined(A, y, size, DENSE)
            first, size, self.reduced = disjoint(A), np.ones(len(y)), True
            if int((~first).sum()) > DENSE:
                raise Infeasible("too many overlap, without telling single targets")
        else:
            of, volume = np.arange(len(y)), math.nan
        self.own, others = A[first], A[~first]
        place = np.flatnonzero(~first)
        self.own_transpose = self.own.T.tocsr()
        cross = (others @ self.own_transpose).tocsr()
        rest = (others @ others.T).toarray() - (cross @ cross.T).toarray()
        self.factor, keep, gone = pivoted(rest)
        self.kept, self.cross = others[keep], cross[keep]
        self.kept_transpose, self.cross_transpose = self.kept.T.tocsr(), self.cross.T.tocsr()
        self.lower = np.asfortranarray(self.factor[: len(keep)])  # as LAPACK reads it
        seen = y[first]
        told = self._solve(y[place[keep]] - self.cross @ seen)
        self.target: Floats = np.concatenate([seen, told])
        self._check(
            cross[gone] @ seen + self.factor[len(keep) :] @ told,
            y[place[gone]], of[place[gone]], size[place[gone]], float(np.abs(y).max(initial=0.0)),
        )  # fmt: skip
        active = np.concatenate([np.flatnonzero(first), place[keep]])
        self.slot, self.size = of[active], size[active]
        if math.isnan(volume):
            volume = float(np.log(size[first]).sum() + np.log(size[place[keep]]).sum())
            volume += float(np.log(np.diag(self.lower)).sum())
            volume += self._redundant_volume(cross[gone], size, first, place[keep], place[gone])
        self.log_volume = volume

    def __len__(self) -> int:
        return len(self.target)

    def _solve(self, x: Floats, transposed: bool = False) -> Floats:
        if not len(self.lower):
            return x
        out: Floats = linalg.solve_triangular(
            self.lower, x, lower=True, trans=int(transposed), check_finite=False
        )
        return out

    def _check(self, told: Floats, y: Floats, of: Any, size: Floats, largest: float) -> None:
        """Raises where redundant observations disagree with the others."""
        apart = np.abs(told - y)
        if len(apart) and apart.max() > ROUNDING * largest:
            at = int(apart.argmax())
            raise Contradiction(int(of[at]), float((apart * size)[at]))

    def _redundant_volume(
        self, cross: Any, size: Floats, first: Any, kept: Any, gone: Any
    ) -> float:
        """½ log det(1 + RRᵀ) where redundant observations are R times the others.

        With it the determinant is the product of all eigenvalues of AAᵀ that are not zero.
        """
        if not len(gone):
            return 0.0
        if len(gone) * len(self) > NUMBERS:
            raise Infeasible("too many are redundant")
        rows = self.factor[len(kept) :]
        on_kept = self._solve(rows.T, transposed=True).T
        on_own = cross.toarray() - (self.cross_transpose @ on_kept.T).T
        made = np.hstack([on_own, on_kept]) * size[gone, None]
        made /= np.concatenate([size[first], size[kept]])
        if len(gone) <= len(self):
            small = np.eye(len(gone)) + made @ made.T
        else:
            small = np.eye(len(self)) + made.T @ made
        return 0.5 * float(np.linalg.slogdet(small)[1])

    def forward(self, rows: Any) -> Floats:
        """Ã times values at the rows, or a table of them (sparse or not)."""
        own, kept = self.own @ rows, self.kept @ rows
        kept = kept - self.cross @ own
        if sparse.issparse(own):
            own, kept = own.toarray(), kept.toarray()
        return np.concatenate([own, self._solve(kept)])

    def adjoint(self, along: Floats) -> Floats:
        """Ãᵀ times values of the directions."""
        own, kept = np.split(self._onto(along), [self.own.shape[0]])
        out: Floats = self.own_transpose @ own + self.kept_transpose @ kept
        return out

    def _onto(self, along: Floats) -> Floats:
        own, kept = np.split(along, [self.own.shape[0]])
        kept = self._solve(kept, transposed=True)
        return np.concatenate([own - self.cross_transpose @ kept, kept])

    def dual(self, along: Floats) -> Floats:
        """Values u of the observations `slot` such that Aᵀu equals Ãᵀ times the given values."""
        out: Floats = self._onto(along) / self.size
        return out

    @cached_property
    def diagonal(self) -> Floats:
        """The diagonal of ÃᵀÃ."""
        out = np.asarray(self.own_transpose.multiply(self.own_transpose).sum(1)).ravel()
        if not len(self.lower):
            return out
        columns = (self.kept - self.cross @ self.own).T.tocsr()
        inverse = self._solve(np.eye(len(self.lower)))
        step = max(1, NUMBERS // 8 // len(inverse))
        for begin in range(0, len(out), step):
            found = columns[begin : begin + step] @ inverse.T
            out[begin : begin + step] += np.einsum("ij,ij->i", found, found)
        return out


class Directions:
    """All directions of N(A f, σ²AAᵀ + noise) at y; `unit` and `noise` make their variances.

    −log p(y) = ½ Σ (t²/v + log 2πv) + `constant`, with t = Ãf − `target` and v = σ²·unit + noise.
    `slot` is an observation that stands for each.
    """

    def __init__(self, A: sparse.csr_array, y: Floats, noise: Floats) -> None:
        self.n_rows: int = A.shape[1]
        plain = noise == 0
        places = np.flatnonzero(plain), np.flatnonzero(~plain)
        try:
            self.exact = Exact(A[plain], y[plain])
        except Contradiction as error:
            error.set = int(places[0][error.set])
            raise
        self.constant = self.exact.log_volume
        slots, targets = [places[0][self.exact.slot]], [self.exact.target]
        self.table: Floats = np.zeros((0, self.n_rows))
        unit = np.zeros(0)
        if len(places[1]):
            size = np.sqrt(noise[~plain])
            self.constant += float(np.log(size).sum())
            seen = sparse.csr_array(sparse.diags_array(1 / size) @ A[~plain])
            unit, target = self._rotate(seen, y[~plain] / size)
            self.size = size
            slots.append(places[1][: len(unit)])
            targets.append(target)
        # whether `dual` leads from directions to observations
        self.by_sets = not self.exact.reduced and len(unit) == len(places[1])
        self.unit = np.concatenate([np.ones(len(self.exact)), unit])
        self.noise = np.concatenate([np.zeros(len(self.exact)), np.ones(len(unit))])
        self.slot, self.target = np.concatenate(slots), np.concatenate(targets)

    def __len__(self) -> int:
        return len(self.unit)

    def _rotate(self, seen: sparse.csr_array, y: Floats) -> tuple[Floats, Floats]:
        """The directions of observations with noise of variance 1, given those without."""
        m, n = seen.shape
        exact = self.exact
        rest = y - seen @ exact.adjoint(exact.target)
        if m <= DENSE and m * max(n, len(exact)) <= NUMBERS:
            shared = exact.forward(seen.T.tocsr())
            unit, turn = np.linalg.eigh((seen @ seen.T).toarray() - shared.T @ shared)
            self.shared, self.turn = shared, turn
            self.table = np.ascontiguousarray((seen.T @ turn - exact.adjoint(shared @ turn)).T)
            return unit.clip(min=0.0), turn.T @ rest
        if n > DENSE:
            raise Infeasible(f"{m} have noise, more than can be joined")
        # Fewer rows than observations: what these say of no row is a constant.
        own = exact.forward(np.eye(n))
        apart = np.eye(n) - own.T @ own
        unit, turn = np.linalg.eigh(apart @ (seen.T @ seen).toarray() @ apart)
        keep = unit > 1e-12 * max(float(unit[-1]), 1e-300)
        unit, turn = unit[keep], turn[:, keep]
        root = np.sqrt(unit)
        self.table = np.ascontiguousarray((turn * root).T)
        target = (turn.T @ (apart @ (seen.T @ rest))) / root
        quiet = float(rest @ rest - target @ target)
        self.constant += 0.5 * (quiet + (m - len(unit)) * math.log(2 * math.pi))
        return unit, target

    def forward(self, rows: Any) -> Floats:
        """Ã times values at the rows, or a table of them."""
        if not len(self.table):
            return self.exact.forward(rows)
        return np.concatenate([self.exact.forward(rows), self.table @ rows])

    def adjoint(self, along: Floats) -> Floats:
        """Ãᵀ times values of the directions."""
        own, noisy = np.split(along, [len(self.exact)])
        out = self.exact.adjoint(own)
        if len(self.table):
            out = out + self.table.T @ noisy
        return out

    def dual(self, along: Floats) -> Floats:
        """Values u of the observations `slot` such that Aᵀu equals Ãᵀ times the given values."""
        own, noisy = np.split(along, [len(self.exact)])
        if not len(noisy):
            return self.exact.dual(own)
        noisy = self.turn @ noisy
        return np.concatenate([self.exact.dual(own - self.shared @ noisy), noisy / self.size])

    def diagonal(self, weight: Floats) -> Floats:
        """The diagonal of Ãᵀ·weight·Ã; directions without noise have one weight."""
        out = np.zeros(self.n_rows)
        if len(self.exact):
            out = weight[0] * self.exact.diagonal
        step = max(1, NUMBERS // 8 // max(self.n_rows, 1))
        for begin in range(0, len(self.table), step):
            part = self.table[begin : begin + step]
            own = weight[len(self.exact) + begin :][: len(part)]
            out = out + own @ (part * part)
        return out


def disjoint(A: sparse.csr_array) -> NDArray[np.bool_]:
    """A large part of the sets (rows of A) of which no two share a member.

    Sets that are met by few others come first, in random order where that is the same for many.
    """
    m, n = A.shape
    of = np.repeat(np.arange(m), np.diff(A.indptr))
    met = np.bincount(of, np.bincount(A.indices, minlength=n)[A.indices] - 1, minlength=m)
    rank = np.empty(m, np.int64)
    rank[np.lexsort((np.random.default_rng(0).random(m), met))] = np.arange(m)
    member = A.indices
    chosen = np.zeros(m, bool)
    while len(of):
        best = np.full(n, m)
        np.minimum.at(best, member, rank[of])
        loses = np.zeros(m, bool)
        loses[of[best[member] != rank[of]]] = True
        wins = np.zeros(m, bool)
        wins[of] = True
        wins &= ~loses
        chosen |= wins
        taken = np.zeros(n, bool)
        taken[member[wins[of]]] = True
        out = wins.copy()
        out[of[taken[member]]] = True
        still = ~out[of]
        of, member = of[still], member[still]
    return chosen


def pivoted(G: Floats) -> tuple[Floats, Any, Any]:
    """A factor L of G ≈ LLᵀ, its lines in the order of pivots: those kept, and those redundant."""
    if np.diag(G).max(initial=0.0) <= REDUNDANT:  # which dpstrf asks of all pivots but the first
        return np.zeros((len(G), 0)), np.zeros(0, np.int64), np.arange(len(G))
    c, pivot, rank, _ = dpstrf(G, tol=REDUNDANT, lower=1)
    return np.tril(c)[:, :rank], pivot[:rank] - 1, pivot[rank:] - 1
