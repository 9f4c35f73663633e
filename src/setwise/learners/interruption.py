"""Ctrl-C during a fit: it ends after the current step, and what was learned is kept."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible", "note_step", "stop", "stopped"]


class _Wish:
    """Whether the user wants the fit to end, and whether it has made a step that can be kept."""

    asked = False
    steps = 0


_wish = _Wish()


def stopped() -> bool:
    """Whether a fit should end now: learners ask after each step."""
    return _wish.asked


def stop() -> None:
    """Asks the fit to end, as Ctrl-C does: another process that takes part in it was asked to."""
    _wish.asked = True


def note_step() -> None:
    """One more step is done, so that there is something to keep."""
    _wish.steps += 1


@contextmanager
def interruptible() -> Iterator[None]:
    """While a fit goes on: the first Ctrl-C asks it to end, the second one ends it at once.

    Where no step was made there is nothing to keep, and the first one is enough. In threads other
    than the main one, and where somebody else handles the signal, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is not signal.default_int_handler:
        yield
        return

    def handle(number: int, frame: Any) -> None:
        if _wish.asked or not _wish.steps:
            raise KeyboardInterrupt
        _wish.asked = True
        print("\nstopping after this step (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    _wish.asked, _wish.steps = False, 0
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _wish.asked, _wish.steps = False, 0
