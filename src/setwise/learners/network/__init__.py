"""Network: any torch module as a learner."""

from setwise.learners.network.learner import Network, NetworkModel

__all__ = ["Network", "NetworkModel"]
