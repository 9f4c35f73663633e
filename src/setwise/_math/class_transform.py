"""How many individuals are of each of a few classes, however many individuals there are.

The probability of counts y is the coefficient of Π x_c^{y_c} in Π_k (Σ_c p_kc x_c)^{n_k}, where row
k stands for n_k individuals. As for two classes (`binary_counts`), the classes are tilted so that y
becomes the mean; then the probability is not small, and a mean of characteristic functions over the
angles of a lattice in C − 1 dimensions,

    P̃(y) = 1/M Σ_ω e^{−iω·y} Π_k φ_k(ω)^{n_k},   φ_k(ω) = Σ_c q_kc e^{iω_c}.

The lattice is so fine that counts outside of one period hold less than 1e-16, and angles where the
product is smaller than that are left out: about 300 remain for three classes, 5 000 for four,
whatever the number of individuals. It is shifted by half a step (and M even), which keeps away from
the zeros of φ for equal probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from setwise._math.binary_counts import TILT_ERROR
from setwise.numerics import at_once, gather, logsumexp

FEW_CLASSES = 4  # that are counted above zero: angles are (C − 1)-dimensional
_LEAST = 30.0  # −log of what is left out
_ROUNDS = 200
_SAFE = 1e-4  # share of the normal height that a tilted probability is trusted with
_SMALL = 48  # logits of a set up to which its Hessian is kept


def log_class_counts(logits: Tensor, times: Tensor, counts: Tensor) -> Tensor:
    """log P(counts) of n_k individuals of each row, for (n, K, C) logits, (n, K) and (n, C).

    The counts, whole numbers, add up to Σ n_k; up to four of a set are above zero. A row that
    stands for 0 individuals says nothing. In float64; −inf with gradient zero where impossible, +∞
    where the sum may have lost digits: where few individuals have classes that are all but certain,
    the mean of the tilted counts may be nowhere near their mode.

    >>> thirds = torch.full((1, 1, 3), 1 / 3).double().log()
    >>> log_class_counts(thirds, torch.tensor([[3.0]]), torch.tensor([[1.0, 1.0, 1.0]])).exp()
    tensor([0.2222], dtype=torch.float64)
    """
    logits, times, counts = logits.double(), times.double(), counts.double()
    # of the classes that were counted, the most frequent one last: its angle is 0
    order = counts.argsort(dim=1, stable=True)[:, -FEW_CLASSES:]
    counts = counts.gather(1, order)
    used = counts > 0
    logits = logits.gather(2, order.unsqueeze(1).expand(-1, logits.shape[1], -1))
    logits = torch.where(used.unsqueeze(1), logits, -math.inf)
    alive = (logits > -math.inf).any(2) | (times == 0)
    logits = torch.where(alive.unsqueeze(2), logits, 0.0)  # a row of none of them: impossible
    with torch.no_grad():
        tilt, possible = _tilt(logits, times, counts)
        lattice = _Lattice.of(logits, times, counts, tilt)
        least = lattice.log_height(counts > 0) + math.log(_SAFE)
    out = torch.zeros_like(least)
    for at in lattice.alike(logits.shape[1]):
        with torch.no_grad():
            sums = _Sums(times[at], tilt[at], *lattice.take(at).nodes(counts[at]))
        found: Tensor = _Log.apply(gather(logits, at), sums)  # type: ignore[no-untyped-call]
        out = out.index_add(0, at, found)
    log_top = -torch.where(used, tilt * counts, 0.0).sum(1)
    least = least + (times * logsumexp(logits + tilt.unsqueeze(1), 2)).sum(1).detach()
    safe = out.detach() > least
    out = torch.where(safe, log_top + torch.where(safe, out, 0.0), math.inf)
    return torch.where(possible & alive.all(1), out, -math.inf)


class _Sums:
    """Sums over the angles of some sets, and derivatives of their logarithm in closed form.

    r_kc = q_kc e^{iω_c} / φ_k is the derivative of log φ_k + log Σ e^{logit} in a logit; gradient
    and Hessian are moments of n_k r_kc under the terms of the sum.
    """

    def __init__(
        self, times: Tensor, tilt: Tensor, cos: Tensor, sin: Tensor, turn: Tensor, weight: Tensor
    ) -> None:
        self.times, self.tilt, self.weight = times, tilt, weight
        self.turn, self.e = turn, torch.complex(cos, sin)  # (n, J), (n, C, J)
        self.kept: tuple[Tensor, Tensor] | None = None

    def parts(self, logits: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        """Terms (n, j) and n·r (n, K, C, j) of a few angles at a time; of few, kept if all fit."""
        if self.kept is None and logits.numel() * self.turn.shape[1] <= at_once(logits):
            (self.kept,) = self._computed(logits)
        return self._computed(logits) if self.kept is None else [self.kept]

    def _computed(self, logits: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        q = (logits + self.tilt.unsqueeze(1)).softmax(2)
        n, k, c = q.shape
        step = max(1, at_once(q) // (n * k * c))
        split = (t.split(step, -1) for t in (self.e, self.turn, self.weight))
        for e, turn, weight in zip(*split, strict=True):
            phi = q.to(e.dtype) @ e
            square = phi.real.square() + phi.imag.square()
            modulus = (0.5 * self.times.unsqueeze(2) * square.log()).sum(1).exp()
            turned = (self.times.unsqueeze(2) * torch.atan2(phi.imag, phi.real)).sum(1) - turn
            term = torch.polar(modulus * weight, turned)
            share = (q.unsqueeze(3) * e.unsqueeze(1)) / phi.unsqueeze(2)
            yield term, share * self.times[:, :, None, None]

    def value(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """log of the sum, with Σ n_k log Σ_c e^{logit}; and its gradient. −∞ and 0 where ≤ 0."""
        total, slope = torch.zeros_like(self.times[:, 0]), torch.zeros_like(logits)
        for term, share in self.parts(logits):
            total += term.real.sum(1)
            slope += torch.einsum("nj,nkcj->nkc", term, share).real
        good = total > 0
        safe = torch.where(good, total, 1.0)
        top = (self.times * logsumexp(logits + self.tilt.unsqueeze(1), 2)).sum(1)
        slope = torch.where(good[:, None, None], slope / safe[:, None, None], 0.0)
        return torch.where(good, safe.log() + top, -math.inf), slope

    def moments(self, logits: Tensor, v: Tensor | None = None) -> Tensor:
        """The Hessian, (n, K·C, K·C), or its product with v, (n, K, C)."""
        n, k, c = logits.shape
        total, slope = torch.zeros_like(self.times[:, 0]), torch.zeros_like(logits)
        out = logits.new_zeros((n, k * c, k * c) if v is None else (n, k, c))
        for term, share in self.parts(logits):
            total += term.real.sum(1)
            seen = term[:, None, None] * share
            slope += seen.real.sum(3)
            own = share / self.times.clamp_min(1)[:, :, None, None]
            if v is None:
                out += (seen.flatten(1, 2) @ share.flatten(1, 2).transpose(1, 2)).real
                within = torch.einsum("nkcj,nkdj->nkcd", seen, own).real
                for i in range(k):
                    out[:, i * c : (i + 1) * c, i * c : (i + 1) * c] -= within[:, i]
            else:
                along = (share * v.unsqueeze(3)).sum((1, 2))
                within = (own * v.unsqueeze(3)).sum(2, keepdim=True)
                out += (seen * (along[:, None, None] - within)).real.sum(3)
        safe = torch.where(total > 0, total, math.inf)
        slope, out = slope / safe[:, None, None], out / safe[:, None, None]
        if v is None:
            flat = slope.flatten(1)
            return out + torch.diag_embed(flat) - flat.unsqueeze(1) * flat.unsqueeze(2)
        return out + slope * v - slope * (slope * v).sum((1, 2), keepdim=True)


class _Log(torch.autograd.Function):
    """The logarithm of the sums; twice differentiable."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, sums: _Sums) -> Tensor:
        out, slope = sums.value(logits)
        ctx.sums = sums
        ctx.save_for_backward(logits, slope)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, slope = ctx.saved_tensors
        if torch.is_grad_enabled():
            slope = _Slope.apply(logits, slope, ctx.sums)  # type: ignore[no-untyped-call]
        return grad[:, None, None] * slope, None


class _Slope(torch.autograd.Function):
    """The gradient, already computed; its derivative is the Hessian, kept if it is small."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, slope: Tensor, sums: _Sums) -> Tensor:
        ctx.sums = sums
        ctx.save_for_backward(logits)
        return slope.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        (logits,) = ctx.saved_tensors
        if logits.shape[1] * logits.shape[2] > _SMALL:
            return ctx.sums.moments(logits, v), None, None
        if not hasattr(ctx, "hessian"):
            ctx.hessian = ctx.sums.moments(logits)
        return (ctx.hessian @ v.flatten(1).unsqueeze(2)).reshape(v.shape), None, None


# ---- where to compute: the tilt and the angles, none of which changes the value


def _moments(logits: Tensor, times: Tensor, tilt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ n_k log Σ_c exp(logit + tilt), and the means and the covariances of the tilted counts."""
    moved = logits + tilt.unsqueeze(1)
    share = moved.softmax(2)
    mean = (times.unsqueeze(2) * share).sum(1)
    together = (times.unsqueeze(2) * share).transpose(1, 2) @ share
    value = (times * logsumexp(moved, 2)).sum(1)
    return value, mean, torch.diag_embed(mean) - together


def _tilt(logits: Tensor, times: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The tilt at which the counts are the mean, (n, C), and where there is one.

    Newton's method in a trust region that grows, on a convex function: where the counts are the
    only ones possible in some direction, the tilt goes so far that little else is left.
    """
    n_classes = counts.shape[1]
    free = (counts > 0) & (torch.arange(n_classes, device=counts.device) < n_classes - 1)
    tilt = torch.zeros_like(counts)
    value, mean, covariance = _moments(logits, times, tilt)
    radius = torch.full_like(value, 4.0)
    for _ in range(_ROUNDS):
        gap = torch.where(free, mean - counts, 0.0)
        spread = covariance.diagonal(dim1=1, dim2=2)
        wrong = (gap.abs() > TILT_ERROR * (1 + spread.clamp_min(0).sqrt())).any(1)
        wrong &= radius > 1e-12
        if not wrong.any():
            break
        hessian = covariance * free.unsqueeze(1) * free.unsqueeze(2)
        step, length = _within(hessian, gap, radius)
        moved = _moments(logits, times, tilt + step)
        fall = value - moved[0] + (step * counts).sum(1)
        good = wrong & (fall > 0)
        hit = length > 0.9 * radius
        tilt = torch.where(good.unsqueeze(1), tilt + step, tilt)
        value, mean = torch.where(good, moved[0], value), torch.where(good[:, None], moved[1], mean)
        covariance = torch.where(good[:, None, None], moved[2], covariance)
        radius = torch.where(good & hit, 2 * radius, torch.where(wrong & ~good, radius / 8, radius))
    off = torch.where(free, mean - counts, 0.0).abs()
    reached = off < 0.5 + TILT_ERROR * covariance.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    return tilt, reached.all(1)


def _within(hessian: Tensor, slope: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The step that lowers a quadratic function most, among those up to so long; and its length."""
    size, axes = torch.linalg.eigh(hessian)
    along = (axes.transpose(1, 2) @ slope.unsqueeze(2)).squeeze(2)
    size = size.clamp_min(0) + 1e-300
    low, high = torch.zeros_like(radius), slope.norm(dim=1) / radius
    for _ in range(60):
        middle = torch.where(low > 0, (low * high).sqrt(), 1e-12 * high)
        long = (along / (size + middle.unsqueeze(1))).norm(dim=1) > radius
        low, high = torch.where(long, middle, low), torch.where(long, high, middle)
    long = (along / size).norm(dim=1) > radius
    step = -along / (size + torch.where(long, high, 0.0).unsqueeze(1))
    return (axes @ step.unsqueeze(2)).squeeze(2), step.norm(dim=1)


@dataclass(frozen=True)
class _Lattice:
    """Angles of some sets: a period M for each class but the last, and how far they go."""

    period: Tensor  # (n, C − 1); 1 where the class was not counted, and there is no angle
    reach: Tensor  # (n, C − 1), in steps on either side of 0
    together: Tensor  # Σ_k n_k q_c q_d of pairs of classes: (n, C, C)

    @classmethod
    def of(cls, logits: Tensor, times: Tensor, counts: Tensor, tilt: Tensor) -> _Lattice:
        _, _, covariance = _moments(logits, times, tilt)
        inner = covariance[:, :-1, :-1]
        variance = inner.diagonal(dim1=1, dim2=2).clamp_min(0)
        wanted = torch.minimum(8.0 * variance.sqrt() + 11, times.sum(1, keepdim=True) + 1)
        period = 2 * (wanted / 2).ceil()
        ridge = torch.diag_embed(1e-9 * variance + 1e-12)
        spread = torch.linalg.inv(inner + ridge).diagonal(dim1=1, dim2=2).clamp_min(0)
        # 1 − cos x ≥ 2 x² / π², and the other angles follow as far as it helps
        widest = (math.pi * (0.5 * _LEAST * spread).sqrt()).clamp_max(math.pi)
        reach = torch.minimum((widest * period / (2 * math.pi)).ceil(), period / 2)
        counted = counts[:, :-1] > 0
        return cls(torch.where(counted, period, 1.0), torch.where(counted, reach, 0.0), -covariance)

    def log_height(self, counted: Tensor) -> Tensor:
        """log of the normal density at its mean, for counts that are tilted so."""
        inner = counted[:, :-1] * 1.0
        covariance = -self.together[:, :-1, :-1] * inner[:, None] * inner[:, :, None]
        covariance = covariance + torch.diag_embed(1 / (2 * math.pi) * inner + 1 - inner)
        return -0.5 * (torch.logdet(covariance) + inner.sum(1) * math.log(2 * math.pi))

    def take(self, at: Tensor) -> _Lattice:
        """The lattice of these sets."""
        return _Lattice(self.period[at], self.reach[at], self.together[at])

    def alike(self, n_rows: int) -> list[Tensor]:
        """Sets whose angles go about as far, together, and as many as fit into memory."""
        size = (2 * self.reach).clamp_min(1).prod(1)
        kind = size.log2().mul(2).ceil()
        out: list[Tensor] = []
        for k in kind.unique().tolist():
            at = (kind == k).nonzero()[:, 0]
            most = float((2 * self.reach[at].amax(0)).clamp_min(1).prod())
            out += at.split(max(1, int(at_once(at) / max(most, n_rows))))
        return out

    def nodes(self, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the angles that matter: cosines, sines (n, C, J), counts · angle and weights (n, J).

        Weights are 0 past the last angle of a set.
        """
        period, far = self.period, self.reach.amax(0).long().tolist()
        ends = [(-r, r) if r else (0, 1) for r in far]
        steps = [torch.arange(low, high, device=period.device) for low, high in ends]
        # along each axis: angles, cosines and sines, and which are this set's own: (n, 2 reach)
        angle = [
            math.pi * (2 * step.to(m) + 1) / m * (m > 1)
            for step, m in zip(steps, period.T.unsqueeze(2), strict=True)
        ]
        cos, sin = [a.cos() for a in angle], [a.sin() for a in angle]
        own = [
            ((step >= -r) & (step < r)) | ((r == 0) & (step == 0))
            for step, r in zip(steps, self.reach.T.unsqueeze(2), strict=True)
        ]
        first = (self.reach > 0).long().argmax(1)  # ω and −ω count alike
        for axis, (step, inside) in enumerate(zip(steps, own, strict=True)):
            inside &= (step >= 0) | (first != axis).unsqueeze(1)
        places = [torch.arange(len(step), device=period.device) for step in steps]
        grid = torch.cartesian_prod(*places).reshape(-1, len(far)).T  # (C − 1, B)
        inside = own[0][:, grid[0]]
        for axis in range(1, len(far)):
            inside = inside & own[axis][:, grid[axis]]
        decay = torch.zeros_like(inside, dtype=period.dtype)  # a bound of −log |Π φ_k^{n_k}|
        last = len(far)
        for c in range(last):
            decay += (self.together[:, c, last, None] * (1 - cos[c]))[:, grid[c]]
            for d in range(c):
                both = self.together[:, c, d, None]
                near = cos[c][:, grid[c]] * cos[d][:, grid[d]]
                near += sin[c][:, grid[c]] * sin[d][:, grid[d]]
                decay += both - both * near
        inside &= decay < _LEAST
        most = int(inside.sum(1).max())
        at = inside.byte().topk(most, dim=1, sorted=False).indices
        weight = inside.gather(1, at) * torch.where(self.reach.any(1), 2.0, 1.0).unsqueeze(1)
        weight = weight / period.prod(1, keepdim=True)
        which = [grid[axis][at] for axis in range(last)]
        turn = sum(
            counts[:, axis, None] * angle[axis].gather(1, which[axis]) for axis in range(last)
        )
        cos = [table.gather(1, place) for table, place in zip(cos, which, strict=True)]
        sin = [table.gather(1, place) for table, place in zip(sin, which, strict=True)]
        one = torch.ones_like(weight)  # the last class stays at 0
        return torch.stack([*cos, one], 1), torch.stack([*sin, 0 * one], 1), turn, weight
