"""Tensors and facts in one file, replaced at once: it is whole, or still the one before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["has_checkpoint", "read_checkpoint", "read_tensors", "write_checkpoint", "write_tensors"]

NAME = "checkpoint.safetensors"


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Writes tensors, and facts as JSON in the header, without ever leaving half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".part")
    # Tensors that share memory are written twice: the format knows no sharing.
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    save_file(whole, half, metadata={"facts": json.dumps(facts)})
    with half.open("rb") as file:
        os.fsync(file.fileno())
    half.replace(path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; runs no code from the file."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {})["facts"])
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a whole file of a network: it was cut short or altered ({error})"
        ) from error
    return tensors, facts


def has_checkpoint(folder: Path) -> bool:
    """Whether a fit was begun in the folder."""
    return (folder / NAME).exists()


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Writes the checkpoint of a fit into its folder."""
    write_tensors(folder / NAME, tensors, facts)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint in the folder, or None."""
    return read_tensors(folder / NAME) if has_checkpoint(folder) else None
