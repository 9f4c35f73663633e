"""Parameters of an aggregate that a fit learns, such as how noisy labels are.

An aggregate declares them: the fields named in `Aggregate.learnable` may hold the text "learned"
(and then hold no other text), and `unknown` says for each of them where a fit begins and what
values it can take. A fit holds a raw number, any real one, for each, behind the shared parameters
of the family; `with_values` gives the aggregate with the values that belong to raw numbers: tensors
that are to be differentiated while a fit goes on, plain numbers in the end. Where observations say
by whom each set was labelled (`by=`), there is a value for each set; see `objective.unknown`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from setwise.distributions.links import exp_link

__all__ = ["LEARNED", "Unknown"]

LEARNED = "learned"


class Unknown(NamedTuple):
    """A number from 0 to `most` that a fit learns, and the raw number that it begins with.

    It is most · sigmoid(raw), or exp(raw) where there is no upper bound.

    >>> import torch
    >>> Unknown("flip", 0.0, 0.5).value(torch.tensor(0.0))
    tensor(0.2500)
    """

    name: str
    start: float
    most: float = math.inf

    def value(self, raw: Tensor) -> Tensor:
        """The number itself."""
        return exp_link(raw) if math.isinf(self.most) else self.most * raw.sigmoid()
