"""Tensors and facts in one file, which is replaced as a whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from setwise._files import beside

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Writes tensors, and facts as JSON in the header, without ever leaving half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tensors that share memory are written twice: the format knows no sharing.
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    with beside(path) as new:
        save_file(whole, new, metadata={"facts": json.dumps(facts)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; runs no code from the file."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads((file.metadata() or {})["facts"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a whole file of a network: it was cut short or altered ({error})"
        ) from error
    return tensors, facts
