"""Features as normal scores of their ranks: far values lose their weight, crowded ones spread."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Scores"]

KNOTS = 128
MOST = 100_000  # rows that the knots are found from


class Scores(nn.Module):
    """A monotone map of each feature to Φ⁻¹(rank / n), linear between knots, flat beyond them.

    Values that are equal share their middle rank.

    >>> scores = Scores.of(torch.tensor([[1.0], [2.0], [900.0]]))
    >>> [round(score, 2) for score in scores(torch.tensor([[1.5], [2.0], [1e9]]))[:, 0].tolist()]
    [-0.48, 0.0, 0.97]
    """

    knots: Tensor
    values: Tensor

    def __init__(self, knots: Tensor, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("knots", knots)  # (features, knots), rising
        self.register_buffer("values", values)

    @classmethod
    def of(cls, x: Tensor) -> Scores:
        """The map that suits rows like these, (rows, features)."""
        x = x[:: -(-len(x) // MOST)].detach().double().cpu().T.contiguous().sort(1).values
        n = x.shape[1]
        at = torch.linspace(0, n - 1, min(KNOTS, n)).round().long()
        knots = x[:, at].contiguous()
        low, high = (torch.searchsorted(x, knots, right=right) for right in (False, True))
        return cls(knots, torch.special.ndtri((low + high).double() / (2 * n)))

    def forward(self, x: Tensor) -> Tensor:
        """The scores of rows, (rows, features)."""
        x, knots = x.double().T.contiguous(), self.knots.to(x.device)
        last = knots.shape[1] - 1
        after = torch.searchsorted(knots, x, right=True).clamp(max=last)
        before = (after - 1).clamp(min=0)
        low, high = knots.gather(1, before), knots.gather(1, after)
        share = ((x - low) / (high - low)).nan_to_num(1.0).clamp(0, 1)
        values = self.values.to(x.device)
        return torch.lerp(values.gather(1, before), values.gather(1, after), share).T
