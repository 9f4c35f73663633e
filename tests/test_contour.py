"""Numbers of nodes are not settled by two errors that agree by chance."""

import numpy as np
import torch

import setwise as sw


def test_sums_of_laplace_targets_at_many_places():
    """e^−s (s² + 3s + 3)/16 for three standard members: no single y may be off."""
    y = np.linspace(0.3, 4.3, 4001)
    rows = torch.distributions.Laplace(torch.zeros(3).double(), torch.ones(3).double())
    sets = np.broadcast_to(np.arange(3), (len(y), 3))
    got = sw.log_likelihood(sw.Sum(), rows, sets, y)
    s = np.abs(y)
    want = -s + np.log((s * s + 3 * s + 3) / 16)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-10)
