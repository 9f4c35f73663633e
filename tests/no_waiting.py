"""Steps on a device that need nothing from the host."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the host wait for the device, which no CUDA graph can record."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(self.waits), f"{func} needs the host"
        return func(*args, **(kwargs or {}))
