"""An engine process that is started before it is known what for, by a program that is about to need one.

Python and our modules take a second to load; in two processes at once they take one of them together.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

ENGINE_CHILD: Final = "forerun.engine.child"


@dataclass(frozen=True, slots=True)
class Begun:
    """A process that waits to be told what it is for, and the socket to it."""

    popen: subprocess.Popen[bytes]
    stream: socket.socket


_early: list[Begun] = []


def begin_process(child: str, imports: Sequence[str] = ()) -> Begun:
    """Run the module `child`, which imports these modules while it waits.

    On Linux it ends with the thread that calls: that one has to live as long as it.
    """
    own, child_s = socket.socketpair()
    with child_s:
        command = [sys.executable, "-P", "-m", child, str(child_s.fileno()), str(os.getpid()), *imports]
        with _without_interrupts():
            return Begun(subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[child_s.fileno()]), own)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """What is started meanwhile gets no Ctrl-C, which is for us; ours comes a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_early(imports: Sequence[str]) -> None:
    """From the main thread, once in a program."""
    _early.append(begin_process(ENGINE_CHILD, imports))


def taken(child: str) -> Begun | None:
    """The early process, for its first taker; None where there is none, or it has another module."""
    return _early.pop() if child == ENGINE_CHILD and _early else None


def discard() -> None:
    """Nobody will take it: it ends."""
    while _early:
        begun = _early.pop()
        begun.stream.close()
        begun.popen.kill()
        begun.popen.wait()
