"""A digest of everything that a fit of a network depends on: a checkpoint is for one fit only."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from setwise.learners.base import Task
from setwise.learners.network.modules import RawNetwork, Rows
from setwise.objective import Objective
from setwise.stored import Ranges

if TYPE_CHECKING:
    from setwise.learners.network.training import Settings

__all__ = ["as_bytes", "data_digest", "fingerprint", "in_words"]

SAMPLE = 32  # items of a data set that are looked at
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def fingerprint(
    task: Task, rows: Rows, settings: Settings, network: RawNetwork, patience: int | None
) -> str:
    """A digest of the sets, held-out ones too, of X, of the choices and of the first weights.

    A function is known by its name and its code; one without a name is a ValueError.
    """
    digest = hashlib.blake2b(digest_size=16)
    plain = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    del plain["peers"]  # another number of processes may go on, on other devices
    plain["device"] = settings.device.type
    words = [f"{name}={in_words(value, name)}" for name, value in plain.items()]
    told = (task.objective.family, network, patience, task.free, task.restarts)
    words += [repr(v) for v in told]
    digest.update("\n".join(words).encode())
    digest.update(data_digest(task, rows))
    for weights in network.parameters():
        digest.update(as_bytes(weights))
    # Sums over all rows have other last bits where threads or processes are other in number.
    for start in (task.raw, task.shared, task.guide, *network.buffers()):
        digest.update(b"none" if start is None else as_bytes(start.bfloat16()))
    return digest.hexdigest()


def data_digest(task: Task, rows: Rows) -> bytes:
    """A digest of the sets, of X and of the seed."""
    digest = hashlib.blake2b(str(task.seed).encode(), digest_size=16)
    tables = [(task.objective, rows)]
    if task.eval is not None:
        tables.append((task.eval[1], Rows(task.eval[0], rows.device)))
    for objective, table in tables:
        for told in (*_sets(objective), *_features(table)):
            digest.update(told)
    return digest.digest()


def as_bytes(tensor: Tensor) -> bytes:
    """The type and shape of a tensor, then its numbers as they are in memory."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return f"{tensor.dtype} {tuple(tensor.shape)}".encode() + flat.numpy().tobytes()


def _sets(objective: Objective) -> Iterator[bytes]:
    for o in objective.observations:
        yield repr(o).encode()
        sets = o.sets
        members = sets.begins if isinstance(sets, Ranges) else sets.indices
        for values in (members, sets.offsets, sets.weights, sets.counts, o.y, o.weight, o.by):
            array = np.asarray(0 if values is None else values)
            plain = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            yield f"{array.dtype} {array.shape}".encode() + plain


def _features(rows: Rows) -> Iterator[bytes]:
    yield str(len(rows)).encode()
    if rows.table is not None:
        yield as_bytes(rows.table)
    elif len(rows):
        yield as_bytes(rows.take(np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(int))))


def in_words(value: Any, what: str) -> str:
    """A text for a value or a function, the same in every process."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, tuple | list | frozenset):
        return f"{type(value).__name__}({', '.join(in_words(v, what) for v in value)})"
    if isinstance(value, CodeType):
        parts = [value.co_code.hex(), *map(str, value.co_names)]
        return ",".join([*parts, *(in_words(v, what) for v in value.co_consts)])
    if isinstance(value, functools.partial):
        inside = (value.func, value.args, tuple(sorted(value.keywords.items())))
        return f"partial({', '.join(in_words(v, what) for v in inside)})"
    if isinstance(value, nn.Module):
        weights = b"".join(as_bytes(t) for t in value.state_dict().values())
        return f"{value!r} {hashlib.blake2b(weights, digest_size=16).hexdigest()}"
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    code = getattr(value, "__code__", None)
    if code is not None and not name.endswith("<lambda>") and not hasattr(value, "__self__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        inside = (code, value.__defaults__, tuple(cells))
        return f"{name}({', '.join(in_words(v, what) for v in inside)})"
    if code is None and " at 0x" not in repr(value):
        return f"{type(value).__qualname__} {value!r}"
    raise ValueError(
        f"a fit with a checkpoint has to know {what} again, but {value!r} has no name of its own: "
        f"make it a function (def) of plain values, or leave checkpoint out"
    )
