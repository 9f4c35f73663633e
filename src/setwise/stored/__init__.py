"""Rows of features that are not in memory."""

from setwise.stored.base import Stored, Table, joined

__all__ = ["Stored", "Table", "joined"]
