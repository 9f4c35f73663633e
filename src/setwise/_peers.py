"""Processes that fit one model together, each with a part of the sets.

All they ever exchange are sums: of the loss, of a tree's leaf system, of a network's gradient. A
sum has the same bits in every process, so that all of them take the same decisions.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

__all__ = ["ALONE", "Peers", "connect", "free_port"]

PATIENCE = timedelta(minutes=30)  # with a process that is there, but slow


class Peers:
    """The processes of one fit; without a group, this one alone.

    >>> Peers().sum(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """

    def __init__(self, group: Any = None, store: Any = None, host: str = "127.0.0.1") -> None:
        self.group, self.store, self.host = group, store, host
        self.rank: int = 0 if group is None else group.rank()
        self.size: int = 1 if group is None else group.size()

    def sum(self, own: Tensor) -> Tensor:
        """The sum of all processes' numbers."""
        if self.group is None or not own.numel():
            return own
        out = own.detach().clone(memory_format=torch.contiguous_format)
        self.group.allreduce([out]).wait()
        return out

    def trade(self, own: Tensor, to: list[int], of: list[int]) -> Tensor:
        """The lines that others send here, `of[r]` from process r, for `to[r]` lines to each."""
        if self.group is None:
            return own
        out = own.new_empty((sum(of), *own.shape[1:]))
        self.group.alltoall_base(out, own.contiguous(), of, to).wait()
        return out

    def share(self, n: int, rank: int | None = None) -> slice:
        """Which of n things are this process's own."""
        rank = self.rank if rank is None else rank
        return slice(n * rank // self.size, n * (rank + 1) // self.size)

    def gather(self, own: Tensor, n: int) -> Tensor:
        """All n lines, of which each process has its `share`."""
        if self.group is None:
            return own
        out = own.new_zeros((n, *own.shape[1:]))
        out[self.share(n)] = own
        return self.sum(out)

    def pooled(self, own: Tensor) -> Tensor:
        """The lines of all processes, one process after another."""
        if self.group is None:
            return own
        count = torch.zeros(self.size, dtype=torch.int64)
        count[self.rank] = len(own)
        ends = self.sum(count).cumsum(0).tolist()
        out = own.new_zeros((ends[-1], *own.shape[1:]))
        out[ends[self.rank] - len(own) : ends[self.rank]] = own
        return self.sum(out)

    def first(self, *numbers: float) -> list[float]:
        """The numbers that the first process has."""
        own = torch.tensor(numbers, dtype=torch.float64)
        return self.sum(own if self.rank == 0 else torch.zeros_like(own)).tolist()

    def tell(self, what: str, value: Any = None) -> list[Any]:
        """What each process says about something, as plain values."""
        if self.group is None:
            return [value]
        self.store.set(f"{what}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{what}/{rank}")) for rank in range(self.size)]


ALONE = Peers()


def free_port(host: str) -> int:
    """A port of this machine that nobody listens to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])


@contextmanager
def connect(rank: int, size: int, host: str, port: int, own_host: str) -> Iterator[Peers]:
    """While so many processes are joined: the first of them listens at this host and port."""
    store = TCPStore(host, port, size, rank == 0, timedelta(minutes=1))
    gloo: Any = ProcessGroupGloo  # without full annotations
    device = gloo.create_device(hostname=own_host)
    options = gloo._Options()
    options._timeout, options._devices = PATIENCE, [device]
    group = gloo(store, rank, size, options)
    try:
        yield Peers(group, store, own_host)
        group.barrier().wait()  # the store is the first process's: it goes last
    finally:
        del group
