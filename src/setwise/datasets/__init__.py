"""Data sets: those of the paper, a few with real labels of sets, and some that need no download.

`load` looks in the folder named by the environment variable SETWISE_DATA, then in the cache of the
user (~/.cache/setwise), and downloads what is in neither. Every file is checked.

>>> from setwise import datasets
>>> data = datasets.load("diabetes")
>>> data
Dataset('diabetes', regression, X 442 × 10)
>>> data.z[:3].tolist(), data.info.tables
([151.0, 75.0, 141.0], ('regression',))
"""

from __future__ import annotations

from dataclasses import replace

from setwise.datasets.build import Dataset, build, build_images, embedded
from setwise.datasets.download import DownloadError, fetch, not_had
from setwise.datasets.folders import ChecksumError, DatasetError, find, present
from setwise.datasets.registry import Catalogue, Info, info, names, registry
from setwise.datasets.tables import read_table
from setwise.datasets.text import text_features

__all__ = [
    "Catalogue", "ChecksumError", "Dataset", "DatasetError", "DownloadError", "Info", "available",
    "info", "load", "names", "text_features",
]  # fmt: skip


def load(name: str, *, frame: bool = False, download: bool = True) -> Dataset:
    """A data set by its name here or in the paper's tables.

    Args:
        name: one of `names()`, or the paper's name of it.
        frame: also give the raw table as a pandas DataFrame, in `.frame`.
        download: whether to fetch the set from the network if no folder has it.

    Raises:
        ValueError: no set has this name; the message has the nearest ones.
        ChecksumError: a file was altered or is incomplete.
        DownloadError: no folder has the set and it could not be downloaded; the message says what
            was tried.

    >>> load("wine").classes
    ('class_0', 'class_1', 'class_2')
    """
    one = info(name)
    if one.embedded:
        return embedded(one, frame=frame)
    paths = find(one)
    if paths is None:
        if not download:
            raise not_had(one, ["download=False"])
        fetch(one)
        paths = find(one)
        assert paths is not None
    origin = str(paths[0])
    if one.task == "images":
        return build_images(one, paths, origin=origin)
    return build(one, read_table(paths[0]), origin=origin, frame=frame)


def available(table: str | None = None) -> Catalogue:
    """All data sets, or those of one table of the paper, with size, licence, citation and place.

    >>> available("images")[0].licence
    'CC BY-SA 3.0 (LeCun, Cortes, Burges)'
    """
    entries = (registry()[name] for name in names(table))
    return Catalogue(replace(one, where=_where(one)) for one in entries)


def _where(one: Info) -> str:
    found = present(one)
    if one.embedded or found is None:
        return "embedded" if one.embedded else "download" if one.download else "missing"
    return found[0]
