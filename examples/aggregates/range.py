"""Range: the largest target of a set less the smallest."""

from dataclasses import dataclass
from itertools import permutations

import torch

import setwise as sw
from setwise.distributions import Continuous, double, log_density, map_parameters
from setwise.likelihood import SetSizes, by_size
from setwise.numerics import logsumexp
from setwise.rules import log_between, log_integral


@dataclass(frozen=True)
class Range(sw.Aggregate):
    """The largest target less the smallest, of sets of two or more.

    p(y) = ∫ Σ_{j≠l} f_j(x) f_l(x + y) Π_{i≠j,l} (F_i(x + y) − F_i(x)) dx: member j
    is the smallest, at x, member l the largest, and all others lie between them.
    """

    def apply(self, z, sets, rng):
        return sets.max(z) - sets.min(z)

    def set_sizes(self, targets):
        return SetSizes(least=2)


@sw.likelihood(Range, Continuous)
@by_size
def _range(aggregate, distribution, sets, y):
    """Integral over the smallest target of the joint density of both ends."""
    members = map_parameters(double(distribution), sets.dense)
    ends = torch.tensor(list(permutations(range(sets.size), 2)))
    others = [
        [i for i in range(sets.size) if i not in pair] for pair in ends.tolist()
    ]

    def joint(x, members, y):
        smallest, largest = log_density(members, x), log_density(members, x + y)
        both = smallest[..., ends[:, 0]] + largest[..., ends[:, 1]]
        if sets.size > 2:
            both = both + log_between(members, x, x + y)[..., others].sum(-1)
        return logsumexp(both, -1)

    possible = y > 0
    gap = torch.where(possible, y, 1.0).double()
    out = log_integral(joint, members, gap, shifts=[gap])
    return torch.where(possible, out, -torch.inf).to(y.dtype)
