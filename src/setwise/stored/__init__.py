"""Rows of features that are not in memory, and sets of such rows."""

from setwise.stored.base import Stored, Table, joined, numbers
from setwise.stored.files import FileColumn, Files
from setwise.stored.ranges import Ranges
from setwise.stored.rows import FileRows
from setwise.stored.scratch import Scratch

__all__ = [
    "FileColumn",
    "FileRows",
    "Files",
    "Ranges",
    "Scratch",
    "Stored",
    "Table",
    "joined",
    "numbers",
]
