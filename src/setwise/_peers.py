"""Processes that fit one model together, each with a part of the sets.

All they ever exchange are sums: of the loss, of a tree's leaf system, of a network's gradient. A
sum has the same bits in every process, so that all of them take the same decisions.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

__all__ = ["ALONE", "Peers", "connect", "free_port", "launched"]

PATIENCE = timedelta(minutes=30)  # with a process that is there, but slow


class Peers:
    """The processes of one fit; without a group, this one alone.

    >>> Peers().sum(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """

    def __init__(
        self,
        group: Any = None,
        store: Any = None,
        host: str = "127.0.0.1",
        device: torch.device | None = None,
    ) -> None:
        self.group, self.store, self.host = group, store, host
        self.device = device or torch.device("cpu")  # that numbers are exchanged from
        self.rank: int = 0 if group is None else group.rank()
        self.size: int = 1 if group is None else group.size()

    def sum(self, own: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.group is None or not own.numel():
            return own
        out = own.detach().to(self.device, copy=True).contiguous()
        self.group.allreduce([out]).wait()
        return out.to(own.device)

    def trade(self, own: Tensor, to: list[int], of: list[int]) -> Tensor:
        """The lines that others send here, `of[r]` from process r, for `to[r]` lines to each."""
        if self.group is None:
            return own
        out = own.new_empty((sum(of), *own.shape[1:]))
        self.group.alltoall_base(out, own.contiguous(), of, to).wait()
        return out

    def share(self, n: int, begin: int = 0) -> slice:
        """Which of n items, counted from `begin`, this process owns."""
        own = n * self.rank // self.size, n * (self.rank + 1) // self.size
        return slice(begin + own[0], begin + own[1])

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

    def any(self, own: bool) -> bool:
        """Whether the flag is set in at least one process."""
        return bool(self.sum(torch.tensor(float(own))))

    def first(self, *numbers: float) -> list[float]:
        """The first process's copy of the numbers."""
        return self.of_first(torch.tensor(numbers, dtype=torch.float64)).tolist()

    def of_first(self, own: Tensor) -> Tensor:
        """The first process's copy of the tensor."""
        return self.sum(own if self.rank == 0 else torch.zeros_like(own))

    def tell(self, what: str, value: Any = None) -> list[Any]:
        """The plain values that each process gives, in the order of the processes."""
        if self.group is None:
            return [value]
        self.store.set(f"{what}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{what}/{rank}")) for rank in range(self.size)]


ALONE = Peers()


def free_port(host: str) -> int:
    """A port of this machine that nobody listens to."""
    with closing(_listening(host, 0)) as one:
        return int(one.getsockname()[1])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


@contextmanager
def connect(rank: int, size: int, host: str, port: int, own_host: str) -> Iterator[Peers]:
    """While so many processes are joined: the first of them listens at this host and port."""
    # A store that is left to listen by itself does so at every address of the machine.
    own: Any = {"master_listen_fd": _listening(host, port).detach()} if rank == 0 else {}
    store = TCPStore(host, port, size, rank == 0, timedelta(minutes=1), **own)
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


def launched(device: str | torch.device | None) -> Peers:
    """The processes that torchrun has started together with this one; each has its own GPU.

    They join where no script has done so before, by NCCL on CUDA and by Gloo elsewhere.
    """
    if not dist.is_initialized():
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise RuntimeError(
                "distributed=True is for processes that torchrun starts: torchrun "
                "--nproc-per-node 2 train.py; leave it out to fit in this process alone"
            )
        kind = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=PATIENCE)
        atexit.register(_leave)
    backend = dist.get_backend()
    own = torch.device("cpu")
    if backend == "nccl":
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(own)
    return Peers(dist.group.WORLD, device=own)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
