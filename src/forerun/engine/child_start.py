"""How an engine process begins, whatever its engine is: who it belongs to, what it is told, how it builds.

Ctrl-C and a service manager's SIGTERM reach the whole group of processes, and are for the front end, which ends this
one in order. It ends with the process that started it, however that ends.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from forerun.engine import messages
from forerun.engine.connection import Connection
from forerun.engine.loading import LoadPhase, LoadProgress
from forerun.engine.messages import Command, Loading, Report, Start
from forerun.errors import EngineError, ForerunError, InvalidConfigError

logger = logging.getLogger(__name__)

Factory: TypeAlias = Callable[[Mapping[str, Any], LoadProgress], Any]
"""Builds what the process is for. Raises ForerunError."""

_PR_SET_PDEATHSIG: Final = 1
_SMALLEST_PROGRESS: Final = 0.01


def begin(arguments: Sequence[str]) -> tuple[Connection[Command], Start] | None:
    """The front end, and what it wants; None where it is gone. `arguments`: a descriptor of a socket to it, its id, and
    modules that will be needed: it may not know yet what for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_with_parent(int(arguments[1]))
    for module in arguments[2:]:
        with suppress(ImportError):  # told by what needs it
            importlib.import_module(module)
    connection = Connection(socket.socket(fileno=int(arguments[0])), messages.commands())
    start = connection.receive()
    if not isinstance(start, Start):
        return None
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name, level in start.log_levels.items():
        logging.getLogger(name).setLevel(level)
    return connection, start


def built(start: Start, tell: Callable[[Report], None]) -> Any:
    """What the front end wants; `tell` is told how far it is. Raises ForerunError, for whatever the factory raises."""
    sys.path.extend(folder for folder in start.path if folder not in sys.path)
    told: dict[tuple[LoadPhase, str], float] = {}

    def progress(phase: LoadPhase, what: str, share: float) -> None:
        if share >= 1.0 or abs(share - told.get((phase, what), -1.0)) >= _SMALLEST_PROGRESS:
            told[phase, what] = share
            tell(Loading(phase, what, share))

    factory = _find_factory(start.factory)
    try:
        return factory(start.options, progress)
    except ForerunError:
        raise
    except Exception as error:
        logger.exception("the engine could not be built")
        raise EngineError(f"the engine could not be built: {type(error).__name__}: {error}") from error


def _find_factory(path: str) -> Factory:
    """The function at "module:name". Raises InvalidConfigError."""
    module, _, name = path.partition(":")
    try:
        factory: Factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError("factory", f"{path!r} cannot be imported: {error}") from error
    return factory


def _end_with_parent(parent: int) -> None:
    """Have the system end this process when the thread that started it is gone. Elsewhere the socket's end does."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
