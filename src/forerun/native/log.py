"""llama.cpp's log, routed to the logger `forerun.native`."""

from __future__ import annotations

import logging
import threading
from collections import deque

from llama_cpp import llama_cpp

_ERROR_LINES_KEPT = 50
_PARTIAL_LIMIT = 16_384
_CONTINUED = 5

_OF_ABORTS = (
    "failed with error 1",
    "compute status: 1",
    "ret = 2",
    "removing memory module entries",
)
"""Parts of what llama.cpp says of a decode that was cut short, which was asked for: nobody needs to be warned."""

_LEVELS = {  # ggml_log_level in ggml.h
    1: logging.DEBUG,
    2: logging.DEBUG,  # "info" is a page of metadata and buffer sizes for every model
    3: logging.WARNING,
    4: logging.ERROR,
}


class NativeLog:
    """Joins the pieces llama.cpp writes into lines, hands them to `logging` and keeps the latest error lines.

    Called from whichever thread runs native code.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._level = logging.DEBUG
        self._partial = ""
        self._errors: deque[tuple[int, str]] = deque(maxlen=_ERROR_LINES_KEPT)
        self._lines = 0

    def write(self, level: int, text: bytes | None) -> None:
        """One piece of the log at a ggml level (5 continues the piece before it)."""
        decoded = (text or b"").decode("utf-8", "replace")
        with self._lock:
            lines = self._joined(level, decoded)
        for line_level, line in lines:
            self._logger.log(line_level, "%s", line)

    def _joined(self, level: int, text: str) -> list[tuple[int, str]]:
        lines: list[tuple[int, str]] = []
        if level != _CONTINUED:
            if self._partial:
                lines.append(self._finished(self._partial))
            self._partial = ""
            self._level = _LEVELS.get(level, logging.DEBUG)
        *whole, self._partial = (self._partial + text).split("\n")
        if len(self._partial) > _PARTIAL_LIMIT:
            whole.append(self._partial)
            self._partial = ""
        lines += [self._finished(line) for line in whole if line.strip()]
        return lines

    def _finished(self, line: str) -> tuple[int, str]:
        line = line.rstrip()
        self._lines += 1
        if any(part in line for part in _OF_ABORTS):
            return logging.DEBUG, line
        if self._level >= logging.ERROR:
            self._errors.append((self._lines, line))
        return self._level, line

    def mark(self) -> int:
        """A point in the log, for `errors_since`."""
        with self._lock:
            return self._lines

    def errors_since(self, mark: int, limit: int = 5) -> list[str]:
        """The last error lines written after a mark, oldest first."""
        with self._lock:
            return [line for number, line in self._errors if number > mark][-limit:]

    def __repr__(self) -> str:
        return f"NativeLog({self._lines} lines, {len(self._errors)} errors kept)"


_logger = logging.getLogger("forerun.native")
_logger.addHandler(logging.NullHandler())  # without one, logging's last resort would print warnings to stderr
native_log = NativeLog(_logger)


def _write(level: int, text: bytes | None, _user_data: int | None) -> None:
    native_log.write(level, text)


log_callback = llama_cpp.llama_log_callback(_write)
"""llama.cpp holds only its address, so the module keeps it alive."""


def route_native_log() -> None:
    """Send all further llama.cpp output to `native_log`."""
    llama_cpp.llama_log_set(log_callback, None)
