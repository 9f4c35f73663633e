"""Fits by several processes, on one machine or many."""

from setwise.distributed.dask import on_dask
from setwise.distributed.division import Division, divide

__all__ = ["Division", "divide", "on_dask"]
