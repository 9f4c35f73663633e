"""Work in a fork of this process, which may be killed at any moment."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from threadpoolctl import threadpool_limits

__all__ = ["Child", "limited", "one_thread"]


def one_thread() -> None:
    """Lets a fork compute alone: it has none of the threads that OpenMP would wait for."""
    torch.set_num_threads(1)
    threadpool_limits(1)


class Child:
    """A fork that does `work()` and ends; what it says goes nowhere."""

    def __init__(self, work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.reader, writer = os.pipe()
        self.number = os.fork()
        if self.number:
            os.close(writer)
            return
        code = 0
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            one_thread()
            before()
            work()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            code = 77
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:60_000])
        finally:
            os._exit(code)

    def wait(self) -> tuple[int, str]:
        """Its exit code (negative: a signal), and the error that ended it."""
        with os.fdopen(self.reader, "rb") as pipe:
            said = pipe.read().decode(errors="replace")
        return os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1]), said

    def kill(self, after: float) -> tuple[int, str]:
        """Kills it after so many seconds, if it has not ended by then."""
        until = time.monotonic() + after
        while (left := until - time.monotonic()) > 0:
            if os.waitid(os.P_PID, self.number, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(min(left, 0.002))
        else:
            os.kill(self.number, signal.SIGKILL)
        return self.wait()


def limited(size: int) -> None:
    """No file may become larger than so many bytes: as on a full disk."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
