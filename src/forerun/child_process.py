"""A process that does for us, one thing at a time, what may take too long or end whoever does it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO


class ChildProcess:
    """Talks over its standard input and output. Used by one thread at a time; `end` and `is_alive` by any."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises OSError where it cannot be started."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._has_overrun = False

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """`send` and read inside: it is killed where that takes longer.

        Raises TimeoutError then, and EOFError where it ended by itself or makes no sense; it is not alive after either.
        """
        alarm = threading.Timer(seconds, self._overrun)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        except (OSError, EOFError, ValueError):
            self.end()
            raise (TimeoutError if self._has_overrun else EOFError) from None
        finally:
            alarm.cancel()
            alarm.join()
            if self._has_overrun:  # be it just after the answer: nobody else may be given it
                self.end()

    def send(self, *pieces: bytes) -> None:
        """Raises OSError where it has ended."""
        stdin = self._pipe(self._process.stdin)
        for piece in pieces:
            stdin.write(piece)
        stdin.flush()

    def read_line(self) -> bytes:
        """Raises EOFError where it has ended."""
        line = self._pipe(self._process.stdout).readline()
        if not line:
            raise EOFError
        return line

    def read(self, count: int) -> bytes:
        """Fewer bytes where it has ended."""
        return self._pipe(self._process.stdout).read(count)

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it; safe to call again."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written yet cannot be
                    pipe.close()

    def _overrun(self) -> None:
        self._has_overrun = True
        self._process.kill()
