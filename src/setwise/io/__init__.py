"""Models on disk: saving and loading without pickle."""

from setwise.io.persistence import Saveable, load, save

__all__ = ["Saveable", "load", "save"]
