"""Servers that are started to be measured: one gets CPU time at a time, the others sleep (SIGSTOP)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

from forerun.bench.client import Client, Target
from forerun.bench.http import Address
from forerun.bench.peers import Launch
from forerun.bench.processes import ProcessTree
from forerun.bench.results import SystemResult
from forerun.bench.texts import user
from forerun.errors import BenchmarkError

_PATIENCE: Final = 300.0
"""Seconds until a server has to be ready."""
_POLL: Final = 0.02
_END: Final = 15.0
_NOT_HANDED_ON: Final = ("OMP_", "GOMP_", "KMP_")
"""What a shell says of threads is not what servers are to run with."""
_TAIL: Final = 600


@dataclass(frozen=True, slots=True)
class Started:
    """How a server came up."""

    first_token: float
    """Seconds from its start to the first token of its first answer."""
    resident: int | None
    """Bytes, after that answer."""


class RunningServer:
    """A server in a process of its own. Sleeps but for when it is `awake`."""

    def __init__(self, launch: Launch, port: int, log: Path) -> None:
        self._launch = launch
        self._log: IO[bytes] = log.open("wb")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_HANDED_ON)}
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                launch.command,
                env=environment | dict(launch.environment),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise BenchmarkError(f"{launch.name} cannot be started: {error.strerror}: {launch.command[0]}") from error
        self._tree = ProcessTree(self._process.pid)
        address = Address("127.0.0.1", port)
        self.target = Target(launch.name, address, launch.model, extra=launch.extra, process=self._tree)

    def __repr__(self) -> str:
        return f"RunningServer({self._launch.name}, {self._tree})"

    async def ready(self) -> Started:
        """Wait for its first answer. Raises BenchmarkError where it ends, or takes too long."""
        client = Client(self.target)
        while not await _answers(client, self._launch.ready):
            if self._process.poll() is not None:
                raise BenchmarkError(f"{self._launch.name} ended with {self._process.returncode}: {self._said()}")
            if time.monotonic() - self._began > _PATIENCE:
                raise BenchmarkError(f"{self._launch.name} was not ready after {_PATIENCE:g} s: {self._said()}")
            await asyncio.sleep(_POLL)
        offset = time.monotonic() - asyncio.get_running_loop().time()
        answer = await client.ask([user("Say hello.")], 8)
        if answer.ttft is None:
            raise BenchmarkError(f"{self._launch.name}'s first answer is empty")
        taken = self._tree.taken()
        started = answer.began + offset + answer.ttft - self._began
        return Started(started, taken.resident_bytes if taken else None)

    def told(self, started: Started) -> SystemResult:
        """What results say of it."""
        resident = None if started.resident is None else started.resident / 1e6
        launch = self._launch
        return SystemResult(launch.name, launch.command, launch.version, started.first_token, resident)

    def __enter__(self) -> Self:
        """It gets CPU time."""
        self._tree.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.stop()

    def close(self) -> None:
        """End it: politely, then not. Safe to call again."""
        self._tree.go_on()
        if self._process.poll() is None:
            everybody = self._tree.pids()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END)
            for pid in everybody:  # a process whose parent did not end it would burn on
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def _said(self) -> str:
        """The end of its log, in one line."""
        return " ".join(Path(self._log.name).read_text(errors="replace")[-_TAIL:].split())


async def _answers(client: Client, route: str) -> bool:
    try:
        await client.get(route)
    except BenchmarkError:
        return False
    return True


def free_port() -> int:
    """One that nobody listens on, a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
