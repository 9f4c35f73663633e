"""What the labels can tell given enough sets, drawn at random from the rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from setwise.distributions import Categorical, Family
from setwise.identifiability.classes import identify_classes
from setwise.identifiability.facts import Identifiability
from setwise.identifiability.numbers import identify_numbers
from setwise.objective import Unknowns
from setwise.observations import Observations

__all__ = ["identify"]


def identify(family: Family, observations: Sequence[Observations]) -> Identifiability:
    """How far these observations, all together, determine the distributions of the rows.

    What one kind of observations leaves open another may determine.

    >>> import setwise as sw
    >>> ranks = sw.Observations(sw.Rank(), [[0, 1], [1, 2]], [1, 0])
    >>> identify(sw.Normal(scale=1.0), [ranks])
    'up to a shift'
    >>> identify(sw.Normal(scale="shared"), [ranks])
    'up to an affine map'
    >>> identify(sw.Normal(), [ranks, sw.Observations(sw.Direct(), [[0]], [1.5])])
    'exactly'

    Zhang et al., "Learning from aggregate observations", NeurIPS 2020: propositions 6 to 8.
    """
    some = [o for o in observations if len(o)]
    if not some:
        raise ValueError("there are no sets with labels: give at least one")
    unknowns = Unknowns.of(family, some)  # what labels tell does not depend on their values
    begin = torch.cat([torch.zeros(len(family.shared)), unknowns.start])
    some = [unknowns.settled(o, begin) for o in some]
    if isinstance(family, Categorical):
        return identify_classes(family.n_classes, some)
    return identify_numbers(family, some)
