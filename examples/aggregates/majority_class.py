"""MajorityClass: the class that most members of a set are of."""

from dataclasses import dataclass

import torch

import setwise as sw
from setwise.likelihood import ClassLabel, by_size
from setwise.numerics import logsumexp
from setwise.rules import log_compositions


@dataclass(frozen=True)
class MajorityClass(sw.Aggregate):
    """The most frequent class of the set; of equally frequent ones the first.

    P(y) = Σ P(counts) over all counts of which class y is the first of the largest.
    """

    def apply(self, z, sets, rng):
        counts = sets.sum(torch.nn.functional.one_hot(z))
        return counts.argmax(1)

    def outcome(self, targets, size):
        return ClassLabel(targets.n_classes)


@sw.likelihood(MajorityClass, torch.distributions.Categorical)
@by_size
def _majority(aggregate, distribution, sets, y):
    """Sum over the counts of all classes."""
    counts, log_p = log_compositions(sets.dense(distribution.logits))
    wins = counts.argmax(1) == y[:, None]
    return logsumexp(log_p.masked_fill(~wins, -torch.inf), 1)
