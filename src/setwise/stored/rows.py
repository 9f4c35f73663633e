"""The rows of files as numbers, as learners read them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from setwise.frames import Encoded, Encoder
from setwise.stored.base import Stored
from setwise.stored.files import Files
from setwise.stored.tally import Tally

__all__ = ["FileRows"]


class FileRows(Stored):
    """Files read through an encoder, by default one for their own columns."""

    encoder: Encoder

    def __init__(self, files: Files, encoder: Encoder | None = None) -> None:
        self.files, self.memory = files, files.memory
        self.scratch: str | Path | None = files.scratch
        self.missing: dict[str, int] = {}  # values that are, where columns were looked at
        self._moments: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        if encoder is None:
            tally = Tally(files.categories)
            for table in files.tables():
                tally.see(table)
            encoder, self._moments = tally.encoder(), tally.moments()
            self.missing = {c.name: tally.missing(c.name) for c in encoder.columns}
        encoder.check(files.names)
        self.encoder = encoder
        self.shape = len(files), len(encoder.columns)

    def batches(self) -> Iterator[Encoded]:
        """All rows in their order, some thousand at a time."""
        names = [column.name for column in self.encoder.columns]
        unknown: Counter[str] = Counter()
        for table in self.files.tables(names):
            batch = self.encoder.encode(table)
            unknown.update(batch.unknown)
            yield batch
        for name, count in unknown.items():
            warnings.warn(
                f"{count:,} values of column {name!r} are categories that the fit has not seen: "
                f"they count as missing",
                UserWarning,
                stacklevel=2,
            )

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and deviation of `Encoded.dense()`."""
        return super().moments() if self._moments is None else self._moments
