"""Folders from strangers: each is refused in one sentence, or predicts finite numbers."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

import setwise as sw
from tests.attack.damage import damage
from tests.attack.models import frame, save_models, table
from tests.attack.outcome import Case
from tests.attack.sandbox import run_each

__all__ = ["fuzz"]

LONGEST = 600  # letters of a sentence
FEW = 300  # damaged folders for which it is not worth while to fit every model
MEMORY = ("bad_alloc", "alloc_cpu", "Unable to allocate", "not enough memory")


def fuzz(seed: int, cases: int, only: int | None = None) -> Iterator[Case]:
    """`cases` damaged folders, few of them of few models; `only` is the number of one of them."""
    with tempfile.TemporaryDirectory() as folder:
        saved = save_models(Path(folder) / "models", 1 if cases >= FEW else 3)
        names, work = sorted(saved), partial(_attempt, seed=seed, saved=saved, folder=Path(folder))
        _warm(saved)
        numbers = range(cases) if only is None else [only]
        for number, said in run_each(work, numbers):
            outcome, _, told = said.partition(": ")
            good = outcome in ("refused", "refused at predict", "predicted")
            how = f"seed {seed} case {number} ({names[number % len(names)]}): {told}"
            yield Case("folders from strangers", outcome, good, how)


def _warm(saved: dict[str, Path]) -> None:
    """Loads everything once, so that the forks need not import it."""
    for name, path in saved.items():
        _use(path, name, trusted=True)


def _attempt(number: int, *, seed: int, saved: dict[str, Path], folder: Path) -> str:
    rng = np.random.default_rng([seed, number])
    names = sorted(saved)
    name = names[number % len(names)]
    copy = folder / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(saved[name], copy)
    try:
        how = damage(copy, [path for path in saved.values() if path != saved[name]], rng)
    except Exception as error:
        return f"damage itself fails: {type(error).__name__}: {error}"
    try:
        said = _use(copy, name)
    except ValueError as error:
        said = f"refused: {error}"
    said = "allocation: " + said if any(word in said for word in MEMORY) else said
    text = said.partition(": ")[2]
    if said.startswith("refused") and ("\n" in text or not 0 < len(text) <= LONGEST):
        said = f"not one sentence: {said}"
    return f"{said} <- {how}"[:1000]


def _use(path: Path, name: str, trusted: bool = False) -> str:
    """Loads a model and predicts; a ValueError of `load` is left to the caller."""
    X: Any = frame() if name.endswith("frame") else table()
    X = sparse.csr_matrix(X) if name.endswith("sparse") else X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est = sw.load(path, trusted=trusted)
        try:
            found = [est.predict(X)]
            if hasattr(est, "classes_"):
                found = [est.predict_proba(X)]
            parameters = sw.distributions.parameters(est.predict_dist(X)).values()
        except (ValueError, TypeError) as error:
            # A folder may say that its model has no encoder: then texts in X are refused by type.
            if isinstance(error, TypeError) and " of X " not in str(error):
                raise
            return f"refused at predict: {error}"
        found += [np.asarray(p.to(torch.float64)) for p in parameters]
        if not all(np.isfinite(values).all() for values in found):
            return "not finite: predictions"
        str(est), repr(est), str(est.summary())
        with tempfile.TemporaryDirectory() as again:
            est.save(Path(again) / "model")
    return "predicted: "
