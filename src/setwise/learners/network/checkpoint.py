"""Tensors and facts in one file, which is replaced as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from setwise._arrays import check_header
from setwise._files import beside

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Writes tensors, and facts as JSON in the header, without ever leaving half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tensors that share memory are written twice: the format knows no sharing.
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    told = json.dumps(facts)
    with beside(path) as new:
        try:
            save_file(whole, new, metadata={"facts": told, "sum": _sum(whole, told)})
        except SafetensorError as error:  # a full disk
            raise OSError(f"{path} could not be written: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; runs no code from the file."""
    try:
        check_header(path)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            told = file.metadata() or {}
        if told["sum"] != _sum(tensors, told["facts"]):
            raise ValueError("its checksum is another")
        facts = json.loads(told["facts"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a whole file of a network: it was cut short or altered ({error})"
        ) from error
    return tensors, facts


def _sum(tensors: dict[str, Tensor], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for name in sorted(tensors):
        flat = tensors[name].contiguous().flatten().view(torch.uint8)
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(flat.numpy().data)
    return digest.hexdigest()
