"""Targets that overlapping linear observations without noise determine exactly.

Where there are more observations than rows, most targets can be solved from them. A large system
then splits into these targets, which are known exactly, and a small system for the remaining rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import lsqr

__all__ = ["ROUNDING", "Contradiction", "Infeasible", "determined", "log_volume", "scaled"]

Floats = NDArray[np.float64]
Reduced = tuple[sparse.csr_array, Floats, NDArray[np.int64], float]
MANY = 1.2  # observations for each row, for most targets to be determined
ITERATIONS = 3000
EXACT = 1e-13  # at which iterations stop
ROUNDING = 1e-6  # of the largest y: by so much may redundant observations disagree
TOLD = 1e-6  # of a random number: a target that is told is solved to more
PROBES = 32  # random vectors of an estimated determinant, whose error is about 1/√(2·rows) of it
STEPS = 80  # of Lanczos for each


class Infeasible(ValueError):
    """A joint likelihood that would cost too much, and why."""


class Contradiction(ValueError):
    """Observations without noise that cannot all be true; `set` is one of them."""

    def __init__(self, set: int, by: float) -> None:
        super().__init__(
            f"is contradicted by others that share its rows: these tell a value that differs by "
            f"{by:.3g}, and there is no noise that could explain it"
        )
        self.set = set


def scaled(A: sparse.csr_array) -> tuple[sparse.csr_array, Floats]:
    """A with rows of length 1, and the lengths that they had."""
    size = np.sqrt(np.asarray(A.multiply(A).sum(1)).ravel())
    return sparse.csr_array(sparse.diags_array(1 / size) @ A), size


def determined(A: sparse.csr_array, y: Floats, size: Floats, most: int) -> Reduced:
    """An equivalent smaller A and y, an observation for each line, and log_volume of the old A.

    `size` is what the rows of A are to be multiplied by, for the volume.
    """
    m, n = A.shape
    used = np.bincount(A.indices, minlength=n) > 0
    if m < MANY * used.sum():
        raise Infeasible("too many overlap, and too few to tell single targets")
    z = _solve(A, y)
    apart = np.abs(A @ z - y)
    if apart.max() > ROUNDING * np.abs(y).max():
        raise Contradiction(int(apart.argmax()), float((apart * size).max()))
    told = used.copy()
    rng = np.random.default_rng(0)
    for _ in range(2):
        x = np.where(used, rng.normal(size=n), 0.0)
        told &= np.abs(_solve(A, A @ x) - x) < TOLD
    open_rows = np.flatnonzero(used & ~told)
    if len(open_rows) > most:
        raise Infeasible("too many overlap, without telling single targets")
    rows = np.flatnonzero(told)
    eye = sparse.csr_array((np.ones(len(rows)), (np.arange(len(rows)), rows)), (len(rows), n))
    rest = sparse.csr_array(A @ sparse.diags_array((~told).astype(float)))
    rest.eliminate_zeros()
    left = np.flatnonzero(np.diff(rest.indptr))
    by_column = A.tocsc()
    of = by_column.indices[by_column.indptr[rows]].astype(np.int64)
    small, length = scaled(rest[left])
    target = (y - A @ np.where(told, z, 0.0))[left] / length
    null = linalg.null_space(rest[left][:, open_rows].toarray()) if len(open_rows) else None
    open_directions = np.zeros((n, 0))
    if null is not None:
        open_directions = np.zeros((n, null.shape[1]))
        open_directions[open_rows] = null
    original = sparse.csr_array(sparse.diags_array(size) @ A)
    columns = np.flatnonzero(used)
    volume = log_volume(original[:, columns], open_directions[columns], most)
    return (
        sparse.csr_array(sparse.vstack([eye, small])),
        np.concatenate([z[rows], target]),
        np.concatenate([of, left]),
        volume,
    )


def _solve(A: sparse.csr_array, y: Floats) -> Floats:
    """A⁺y."""
    out = lsqr(A, y, atol=EXACT, btol=EXACT, conlim=0, iter_lim=ITERATIONS)
    if out[1] == 7:
        raise Infeasible("too many overlap, in ways that are too close to redundant")
    solution: Floats = out[0]
    return solution


def log_volume(A: sparse.csr_array, null: Floats, most: int) -> float:
    """½ log of the product of the eigenvalues of AᵀA that are not zero; `null` is its null space.

    Exact for up to `most` rows. For more of them by stochastic Lanczos quadrature (Ubaru, Chen &
    Saad, "Fast estimation of tr(f(A))", 2017) of the matrix scaled to a diagonal of 1, with fixed
    random vectors: in error by a few thousandths of the number of rows. No parameter changes it,
    so it only shifts the likelihood by a constant.
    """
    if A.shape[1] <= most:
        return 0.5 * float(np.linalg.slogdet((A.T @ A).toarray() + null @ null.T)[1])
    rows = np.asarray(A.multiply(A).sum(0)).ravel() + (null * null).sum(1)
    root = 1 / np.sqrt(rows)
    n = A.shape[1]
    rng = np.random.default_rng(0)
    across = A.T.tocsr()

    def product(x: Floats) -> Floats:
        x = x * root[:, None]
        out: Floats = (across @ (A @ x) + null @ (null.T @ x)) * root[:, None]
        return out

    q = rng.choice([-1.0, 1.0], (n, PROBES)) / np.sqrt(n)
    before, beta = np.zeros_like(q), np.zeros(PROBES)
    alphas, betas = [], []
    for _ in range(min(STEPS, n)):
        w = product(q) - beta * before
        alpha = (w * q).sum(0)
        w -= alpha * q
        alphas.append(alpha)
        beta = np.sqrt((w * w).sum(0))
        betas.append(beta)
        before, q = q, w / np.maximum(beta, 1e-300)
        if beta.max() < 1e-12:
            break
    total = 0.0
    for a, b in zip(np.array(alphas).T, np.array(betas).T, strict=True):
        value, vector = linalg.eigh_tridiagonal(a, b[:-1])
        total += float(vector[0] ** 2 @ np.log(np.maximum(value, 1e-300)))
    out: float = 0.5 * n * total / PROBES + 0.5 * float(np.log(rows).sum())
    return out
