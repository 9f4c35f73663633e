"""Sums of whole numbers: classes and counts, seen exactly or through continuous noise.

Members are tilted exponentially, P̃(v) ∝ P(v)·exp(s₀v), so that what was observed becomes the mean;
then the tilted probabilities are a discrete Fourier sum,

    P̃(v) = 1/M Σ_j φ̃(ω_j) exp(−iω_j v),   ω_j = 2πj/M,

and the wanted ones are not small, so nothing cancels. M must be so large that the tilted sum leaves
the window with negligible probability, by Chernoff's bound. Where tilting does not help, because
the probabilities have gaps (classes 0 and 9 likely, 1 to 8 all but impossible), the members are
convolved one by one in log space.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Laplace, NegativeBinomial, Poisson

from setwise._math.binary_counts import log_count
from setwise._math.cumulant_inversion import (
    Cgf,
    Members,
    Noise,
    log_density_of_sum,
    rescaled,
    saddle_point,
)
from setwise._math.graded import graded
from setwise._math.groups import by_number, piecewise
from setwise._math.polynomials import coefficient_of_product, mixture_of_product, tree_product
from setwise.distributions import double, family_of, log_density, map_parameters
from setwise.numerics import chunked, gather, logaddexp, logsumexp
from setwise.sets import Sets

_NEGLIGIBLE = 42.0  # −log of the tilted probability that may be left out
_SURE = 1e-100  # a probability that large has lost nothing, and its cube is a number
_DIRECT = 4096  # members times classes up to which polynomials are multiplied
_AT_ONCE = 1 << 19  # coefficients
_LONG = 8192  # terms that a Fourier sum over counts may have
_SAFE = 1e-3  # least fraction of the Gaussian height that a Fourier sum is trusted with


def log_probability_of_class_sum(logits: Tensor, y: Tensor, sizes: Tensor | None = None) -> Tensor:
    """log P(Σ Zₖ = y) for classes with normalised `logits` of shape (n_sets, K, C), float64.

    y holds whole numbers from 0 to K(C − 1). The coefficient of xʸ in Πₖ Σ_c p_kc xᶜ. Where `sizes`
    are given, later members are (0, −∞, …, −∞): they are always of class 0.
    """
    size, n_classes = logits.shape[1:]
    if not few_products(size, n_classes):
        return _log_unlikely(logits, y, sizes)
    found = graded(_log_direct, logits, y, cost=_cost(size, n_classes), budget=_AT_ONCE)
    return _replaced(found, lambda at: _log_unlikely(*_taken(at, logits, y, sizes)))


def log_probability_of_counted_sum(logits: Tensor, times: Tensor, y: Tensor) -> Tensor:
    """The same where member k stands for `times`, (n_sets, K), individuals; it may be 0."""
    top = times.sum(1) * (logits.shape[2] - 1)
    if logits.shape[2] == 2:
        return log_count(logits[:, :, 1], logits[:, :, 0], y, times)
    return _log_of_ends(logits, y, top, logits[:, :, -1], times)


def _cost(size: int, n_classes: int) -> int:
    """Coefficients that are in use at a time for one set."""
    return 4 * size * n_classes


def _taken(at: Tensor, *tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(t if t is None else gather(t, at) for t in tensors)


def _log_direct(logits: Tensor, y: Tensor) -> Tensor:
    """By products of polynomials; +∞ where the probability may have lost digits."""
    found = coefficient_of_product(logits.exp().permute(2, 1, 0).contiguous(), y.long())
    return _log_or_lost(found)


def log_noisy_class_sum(logits: Tensor, log_weight: Tensor) -> Tensor:
    """log Σ_v P(Σ Zₖ = v) exp(log_weight_v), v from 0 to K(C − 1), by products of polynomials.

    `logits` as in `log_probability_of_class_sum`; +∞ where the sum may have lost digits.
    """
    size, n_classes = logits.shape[1:]
    top = log_weight.detach().amax(1)

    def direct(logits: Tensor, log_weight: Tensor) -> Tensor:
        p = logits.exp().permute(2, 1, 0).contiguous()
        return _log_or_lost(mixture_of_product(p, log_weight.exp().T))

    given = logits, log_weight - top.unsqueeze(1)
    return graded(direct, *given, cost=_cost(size, n_classes), budget=_AT_ONCE) + top


def certain(logits: Tensor) -> Tensor:
    """The logits of a member that is of class 0, of as many classes as those given: (C,)."""
    impossible = torch.full_like(logits[0].detach(), -math.inf)
    return torch.where(torch.arange(len(impossible), device=logits.device) > 0, impossible, 0.0)


def few_products(size: int, n_classes: int) -> bool:
    """Whether polynomials are multiplied rather than transformed."""
    return size * n_classes <= _DIRECT


def _log_or_lost(found: Tensor) -> Tensor:
    sure = found > _SURE
    return torch.where(sure, torch.where(sure, found, 1.0).log(), math.inf)


def _log_unlikely(logits: Tensor, y: Tensor, sizes: Tensor | None) -> Tensor:
    _, size, n_classes = logits.shape
    last, top = logits[:, :, -1], torch.full_like(y, size * (n_classes - 1))
    if sizes is not None:
        past = torch.arange(size, device=y.device) >= sizes.unsqueeze(1)
        last, top = last.masked_fill(past, 0.0), sizes.to(y) * (n_classes - 1)
    return _log_of_ends(logits, y, top, last)


def _log_of_ends(
    logits: Tensor, y: Tensor, top: Tensor, last: Tensor, times: Tensor | None = None
) -> Tensor:
    """At the ends in closed form, otherwise by a tilted Fourier sum."""
    lowest, highest = y == 0, (y == top) & (y > 0)

    def all_of(side: Tensor, at: Tensor) -> Tensor:
        side = gather(side, at)
        return (side if times is None else _product(gather(times, at), side)).sum(1)

    def inner(at: Tensor) -> Tensor:
        own = None if times is None else gather(times, at)
        return _log_inner(gather(logits, at), gather(y, at), int(top.max()), own)

    return piecewise(
        (lowest, lambda at: all_of(logits[:, :, 0], at)),
        (highest, lambda at: all_of(last, at)),
        (~lowest & ~highest, inner),
    )


def _product(times: Tensor, logits: Tensor) -> Tensor:
    """times · logits, 0 where there are none."""
    none = times == 0
    return torch.where(none, 0.0, times * torch.where(none, 0.0, logits))


def _log_inner(logits: Tensor, y: Tensor, top: int, times: Tensor | None) -> Tensor:
    given = () if times is None else (times,)
    with torch.no_grad():
        cgf = _class_cgf(logits.detach(), times)
        s0, spread = _tilt(cgf, y)
        low, high = _extent(cgf, s0, torch.full_like(y, math.inf))
        nodes = _rounded(torch.maximum(high - y, y - low) + 2).clamp(max=top + 1)

    def tilted(
        m: int, logits: Tensor, y: Tensor, s0: Tensor, spread: Tensor, *times: Tensor
    ) -> Tensor:
        height, transform = _class_transform(logits, s0, m, *times)
        pmf = torch.fft.irfft(transform.conj(), n=m)
        value = pmf.gather(1, (y % m).long().unsqueeze(1)).squeeze(1)
        safe = value.detach() * (1 + spread) > _SAFE
        out = height - s0 * y + torch.where(safe, value, 1.0).log()
        return torch.where(safe, out, math.inf)

    def exact(at: Tensor) -> Tensor:
        pmf = _log_pmf(gather(logits, at), None if times is None else gather(times, at))
        return pmf.gather(1, gather(y, at).long().unsqueeze(1)).squeeze(1)

    cost = 2 * logits.shape[1]
    out = piecewise(*by_number(nodes, tilted, logits, y, s0, spread, *given, cost=cost))
    return _replaced(out, exact)


def _replaced(out: Tensor, exact: Callable[[Tensor], Tensor]) -> Tensor:
    """`out`, but where the tilted sum failed (+∞) the exact value."""
    failed = out.detach() == math.inf
    if not failed.any():
        return out
    return piecewise((failed, exact), (~failed, lambda at: gather(out, at)))


def log_noisy_lattice(d: Distribution, sets: Sets, y: Tensor, noise: Noise) -> Tensor:
    """log Σ_v P(Σ Zₖ = v) · noise(y − v): a sum of counts or classes seen through noise.

    `d` is Poisson, NegativeBinomial or Categorical over the flat members of sets of one size,
    `noise` a Normal or Laplace with location 0 and one scale, for all sets or for each.
    """
    d, y = double(d), y.double()
    scale = noise.scale.to(y).expand(len(y))
    law: Any = rescaled(noise, scale.detach().unsqueeze(1))
    sized = isinstance(d, NegativeBinomial)
    high, top = torch.full_like(y, math.inf), math.inf
    tensors: tuple[Tensor, ...]
    if isinstance(d, Poisson):
        tensors = (sets.sum(d.rate),)
        rate = tensors[0].detach().unsqueeze(1)
        cgf: Cgf = lambda s: rate * torch.expm1(s)  # noqa: E731
    elif isinstance(d, Categorical):
        tensors = (sets.dense(d.logits),)
        if sets.counts is not None:
            tensors += (sets.dense(sets.tensor("counts", y)),)
        cgf = _class_cgf(tensors[0].detach(), *tensors[1:])
        top = int(sets.individuals.max()) * (tensors[0].shape[2] - 1)
    else:  # v·P(v), which has K'(s) exp K(s) for its transform, does not cancel for tiny shapes
        members = Members.of(d, None, sets)
        tensors = members.tensors
        held = [t.detach() for t in tensors]
        cgf = lambda s: members.cgf(s, *held, biased=True)  # noqa: E731
        high = members.domain()[1]

    with torch.no_grad():
        family = family_of(law)
        edge = family.cgf_domain(law)[1].squeeze(1)
        s0, _ = saddle_point(
            lambda s: cgf(s) + family.cgf(law, s), -edge, torch.minimum(high, edge), y
        )
        first, last = _extent(cgf, s0, high)
        first, last = first.clamp(min=float(sized)), last.clamp(max=top)
        if isinstance(d, Poisson):  # only v that the noise can reach
            near, far = _extent(lambda s: family.cgf(law, s), s0, edge)
            lowest = torch.minimum((y - far).floor() - 2, last - 4)
            first = torch.maximum(first, lowest).clamp(min=0)
            last = torch.minimum(last, torch.maximum((y - near).ceil() + 2, first + 4))
        width = _rounded(last - first + 1)
    large = (width > _LONG) & (y > 40)  # exp(−s·y) has died out at Im s = π
    if sized and large.any():

        def part(at: Tensor) -> tuple[Distribution, Sets, Tensor, Noise]:
            some, own = sets.take(at.cpu().numpy()), rescaled(noise, gather(scale, at))
            return map_parameters(d, some.members), some.flat, gather(y, at), own

        return piecewise(
            (large, lambda at: _of_large_counts(*part(at))),
            (~large, lambda at: log_noisy_lattice(*part(at))),
        )

    def tilted(
        m: int, y: Tensor, s0: Tensor, first: Tensor, scale: Tensor, *tensors: Tensor
    ) -> Tensor:
        v = first.unsqueeze(1) + torch.arange(m, device=y.device)
        seen = log_density(rescaled(noise, scale.unsqueeze(1)), y.unsqueeze(1) - v)
        if isinstance(d, Poisson):
            return logsumexp(log_density(Poisson(tensors[0].unsqueeze(1)), v) + seen, 1)
        if isinstance(d, Categorical):
            height, transform = _class_transform(tensors[0], s0, m, *tensors[1:])
        else:
            omega = torch.arange(m // 2 + 1, device=y.device).to(y) * (2 * math.pi / m)
            height = members.cgf(s0.unsqueeze(1), *tensors, biased=True)
            s = torch.complex(*torch.broadcast_tensors(s0.unsqueeze(1), omega))
            transform = (members.cgf(s, *tensors, biased=True) - height).exp()
            height, seen = height.squeeze(1), seen - v.log()
        pmf = torch.fft.irfft(transform.conj(), n=m).gather(1, (v % m).long())
        seen = seen - s0.unsqueeze(1) * v
        most = seen.detach().amax(1, keepdim=True)
        share = (seen - most).exp() * (v <= top)
        value = (pmf * share).sum(1)
        safe = value.detach() * m > (0.0 if sized else _SAFE) * share.detach().sum(1)
        out = height + most.squeeze(1) + torch.where(safe, value, 1.0).log()
        return torch.where(safe, out, math.inf)

    def exact(at: Tensor) -> Tensor:  # of classes
        pmf = _log_pmf(*(gather(t, at) for t in tensors))
        v = torch.arange(pmf.shape[1], device=y.device)
        own = rescaled(noise, gather(scale, at).unsqueeze(1))
        return logsumexp(pmf + log_density(own, gather(y, at).unsqueeze(1) - v), 1)

    cost = 8 if isinstance(d, Poisson) else 4 * tensors[-1].shape[1]
    out = piecewise(*by_number(width, tilted, y, s0, first, scale, *tensors, cost=cost))
    if isinstance(d, Categorical):
        return _replaced(out, exact)
    if isinstance(d, Poisson):
        return out
    none = sets.sum(log_density(d, torch.zeros_like(sets.repeat(y))))
    none = none + log_density(rescaled(noise, scale), y)
    return logaddexp(torch.where(out == math.inf, -math.inf, out), none)


def _of_large_counts(d: Distribution, sets: Sets, y: Tensor, noise: Noise) -> Tensor:
    """The same for negative binomial sums too large for a Fourier sum: along a contour."""
    if isinstance(noise, Laplace) or float(noise.scale.detach().min()) >= 1.5:
        return log_density_of_sum(d, None, sets, y, noise)
    # Narrow normal noise: the few whole numbers near y, one by one.
    reach = math.ceil(9 * float(noise.scale.detach().max())) + 2
    v = y.detach().round().unsqueeze(1) + torch.arange(-reach, reach + 1, device=y.device)
    each = sets.take(np.repeat(np.arange(len(sets)), v.shape[1]))
    d = map_parameters(d, each.members)
    pmf = log_density_of_sum(d, None, each.flat, v.clamp(min=1).reshape(-1)).reshape(v.shape)
    law = rescaled(noise, noise.scale.unsqueeze(1))
    return logsumexp(pmf + log_density(law, y.unsqueeze(1) - v), 1)


def _class_cgf(logits: Tensor, times: Tensor | None = None) -> Cgf:
    """K(s) = Σₖ nₖ log Σ_c p_kc exp(s·c) for real s of shape (n_sets, nodes)."""
    classes = torch.arange(logits.shape[2], dtype=logits.dtype, device=logits.device)

    def cgf(s: Tensor) -> Tensor:
        each = logsumexp(logits.unsqueeze(2) + s[:, None, :, None] * classes, 3)
        return (each if times is None else each * times.unsqueeze(2)).sum(1)

    return cgf


def _tilt(cgf: Cgf, y: Tensor) -> tuple[Tensor, Tensor]:
    """The tilt that makes y the mean, 0 where it is already, and the standard deviation then."""
    end = torch.full_like(y, math.inf)
    s0, variance = saddle_point(cgf, -end, end, y)
    with torch.enable_grad():
        zero = torch.zeros_like(y).requires_grad_()
        (mean,) = torch.autograd.grad(cgf(zero.unsqueeze(1)).sum(), zero)
    return torch.where((mean - y).abs() < 1e-6, 0.0, s0), variance.clamp(min=0).sqrt()


def _extent(cgf: Cgf, s0: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The range that a variable tilted by s₀ leaves only with probability 1e-18, by Chernoff."""
    steps = 2.0 ** torch.arange(6, -15, -1, device=s0.device).to(s0)
    up = torch.minimum(high - s0, torch.full_like(s0, 64 / 0.9)).unsqueeze(1) * (0.9 * steps / 64)
    down = steps.expand_as(up)
    at = cgf(s0.unsqueeze(1))
    above = (cgf(s0.unsqueeze(1) + up) - at + _NEGLIGIBLE) / up
    below = -(cgf(s0.unsqueeze(1) - down) - at + _NEGLIGIBLE) / down
    worst = torch.nan_to_num(above, math.inf, math.inf).amin(1)
    return torch.nan_to_num(below, -math.inf, posinf=-math.inf).amax(1).floor(), worst.ceil()


def _rounded(wanted: Tensor) -> Tensor:
    """Numbers of nodes rounded up to powers of two, so that few sizes occur."""
    return (2.0 ** wanted.clamp(min=8).log2().ceil()).long()


def _class_transform(
    logits: Tensor, s0: Tensor, m: int, times: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """K(s₀), and Πₖ φ̃ₖ at the frequencies 2πj/m for j = 0, …, m//2."""
    classes = torch.arange(logits.shape[2], device=logits.device)
    tilted = logits + s0[:, None, None] * classes
    share = tilted.softmax(2)
    angle = torch.arange(m // 2 + 1, device=s0.device) * classes[:, None] % m
    angle = angle.to(share) * (2 * math.pi / m)
    factors = torch.complex(share @ angle.cos(), share @ angle.sin())
    height = logsumexp(tilted, 2)
    if times is not None:
        height, factors = height * times, _power(factors, times)
    return height.sum(1), tree_product([factors])[0]


def _power(base: Tensor, times: Tensor) -> Tensor:
    """base^times for whole numbers, (n, K, …) and (n, K), by squares: also where the base is 0."""
    out, left = torch.ones_like(base), times.long().unsqueeze(2)
    while bool((left > 0).any()):
        out = torch.where(left % 2 == 1, out * base, out)
        left = left // 2
        base = base * base
    return out


def _log_pmf(logits: Tensor, times: Tensor | None = None) -> Tensor:
    """log P(Σ Zₖ = v) for every v, member by member in log space: (n_sets, ΣK(C − 1) + 1)."""
    if times is not None:  # each individual is a member, and last some that are of class 0
        logits = _listed(logits, times)
    n, size, n_classes = logits.shape

    def extend(state: Tensor, members: Tensor) -> Tensor:
        for k in range(members.shape[1]):
            shifted = [
                torch.nn.functional.pad(state, (c, n_classes - 1 - c), value=-math.inf)
                + members[:, k, c, None]
                for c in range(n_classes)
            ]
            state = logsumexp(torch.stack(shifted), 0)
        return state

    state = logits.new_zeros(n, 1)
    block = max(1, math.isqrt(size))
    for members in logits.split(block, 1):
        cost = 2 * block * n_classes * (state.shape[1] + block * n_classes)
        state = chunked(extend, state, members, cost=cost)
    return state


def _listed(logits: Tensor, times: Tensor) -> Tensor:
    """The logits of each individual, (n, N, C), and certain ones where a set has fewer."""
    number = times.long().sum(1)
    every = torch.arange(int(number.max()), device=times.device).expand(len(times), -1)
    ends = times.long().cumsum(1)
    member = torch.searchsorted(ends, every.contiguous(), right=True)
    past = member >= times.shape[1]
    member = member.clamp_max(times.shape[1] - 1).unsqueeze(2)
    found = logits.gather(1, member.expand(-1, -1, logits.shape[2]))
    return torch.where(past.unsqueeze(2), certain(logits[0]), found)
