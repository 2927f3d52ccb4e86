"""Processes of engines: how one begins, and one that begins before anybody knows what it is for.

Imports next to nothing: a command that is going to need an engine starts its process first, and both import at the same
time what they need.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

ENGINE_CHILD: Final = "forerun.engine.child"
"""The module that an engine's process runs."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that waits to be told what to build, and the socket over which it is."""

    popen: subprocess.Popen[bytes]
    socket: socket.socket

    def end(self) -> None:
        """Kill it; nobody talked to it yet."""
        self.socket.close()
        self.popen.kill()
        self.popen.wait()


def spawn(child: str, imports: Sequence[str] = ()) -> Spawned:
    """Start a process that runs the module `child` and imports these first. Raises OSError.

    On Linux it ends with the thread that calls: that one has to live as long as it.
    """
    own, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", child, str(theirs.fileno()), str(os.getpid()), *imports]
        try:
            popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        except BaseException:
            own.close()
            raise
    return Spawned(popen, own)


class SpareProcess:
    """A process for the first engine that wants one. Ended at the end of its context, if none did. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spawned: Spawned | None = None

    def start(self, imports: Sequence[str] = (), child: str = ENGINE_CHILD) -> None:
        """Start it now. `imports`: what it is going to need. Where that fails there is none."""
        with suppress(OSError):
            self._spawned = spawn(child, imports)

    def take(self) -> Spawned | None:
        """Whoever asks first gets it, if it has not ended."""
        with self._lock:
            spawned, self._spawned = self._spawned, None
        if spawned is not None and spawned.popen.poll() is not None:
            spawned.end()
            return None
        return spawned

    def end(self) -> None:
        """Nobody is going to want it; safe to call again."""
        spawned = self.take()
        if spawned is not None:
            spawned.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()
