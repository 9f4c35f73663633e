"""What set labels tell about individuals, what the given sets leave open, and how to align."""

from setwise.identifiability.alignment import Alignment, solve_alignment
from setwise.identifiability.diagnosis import diagnose
from setwise.identifiability.facts import Identifiability
from setwise.identifiability.principle import identify

__all__ = ["Alignment", "Identifiability", "diagnose", "identify", "solve_alignment"]
