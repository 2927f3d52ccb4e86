"""Streams alone and side by side, and how they arrive."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Final

from forerun.bench.client import Client
from forerun.bench.texts import dice, story, user
from forerun.bench.workloads.workload import Workload
from forerun.errors import BenchmarkError

_ASK: Final = "Go on with this text.\n\n"


def question(seed: int, name: object, tokens: int) -> dict[str, str]:
    """A message of about so many tokens."""
    return user(_ASK + story(dice(seed, name), tokens))


@dataclass(frozen=True, slots=True)
class Single(Workload):
    name = "single"
    about = "One stream, nothing else: tokens a second after the first one."
    primary = "decode_per_s"
    shown = ("ttft_ms", "itl_p95_ms", "server_rss_mb")
    tokens = frozenset({"prompt", "output"})

    prompt: int = 64
    output: int = 192

    async def run(self, client: Client, seed: int) -> None:
        async with client.measured():
            await client.ask([question(seed, self.name, self.prompt)], self.output)


@dataclass(frozen=True, slots=True)
class Prefill(Workload):
    name = "prefill"
    about = "A long prompt, nothing else: the time to its first token."
    primary = "ttft_ms"
    shown = ("prompt_per_s", "evaluated_tokens")
    tokens = frozenset({"prompt"})

    prompt: int = 2048

    async def run(self, client: Client, seed: int) -> None:
        async with client.measured():
            await client.ask([question(seed, self.name, self.prompt)], 2)


@dataclass(frozen=True, slots=True)
class Concurrent(Workload):
    name = "concurrent"
    about = "Several streams that start together: tokens a second of all."
    primary = "tokens_per_s"
    shown = ("itl_p95_ms", "largest_gap_ms", "ttft_p95_ms")
    tokens = frozenset({"prompt", "output"})

    streams: int = 8
    prompt: int = 64
    output: int = 96

    async def run(self, client: Client, seed: int) -> None:
        async with client.measured(), asyncio.TaskGroup() as group:
            for index in range(self.streams):
                group.create_task(client.ask([question(seed, index, self.prompt)], self.output))


@dataclass(frozen=True, slots=True)
class ClosedLoop(Workload):
    name = "closed"
    about = "Users who ask the next question when they have the answer, each a few times: tokens a second of all."
    primary = "tokens_per_s"
    shown = ("ttft_p95_ms", "itl_p95_ms", "largest_gap_ms")
    tokens = frozenset({"prompt", "output"})

    users: int = 4
    questions: int = 3
    prompt: int = 128
    output: int = 48

    async def run(self, client: Client, seed: int) -> None:
        async with client.measured(), asyncio.TaskGroup() as group:
            for index in range(self.users):
                group.create_task(self._user(client, seed, index))

    async def _user(self, client: Client, seed: int, index: int) -> None:
        for number in range(self.questions):
            await client.ask([question(seed, (index, number), self.prompt)], self.output)


@dataclass(frozen=True, slots=True)
class Poisson(Workload):
    name = "poisson"
    about = "Requests that arrive whether or not others are answered (Poisson): the 95th percentile of first tokens."
    primary = "ttft_p95_ms"
    shown = ("tokens_per_s", "itl_p95_ms", "e2e_ms")
    tokens = frozenset({"prompt", "output"})

    requests: int = 16
    per_second: float = 1.0
    prompt: int = 128
    output: int = 48

    async def run(self, client: Client, seed: int) -> None:
        if self.per_second <= 0:
            raise BenchmarkError(f"poisson: per_second must be above 0, got {self.per_second:g}")
        chances = dice(seed, self.name)
        async with client.measured(), asyncio.TaskGroup() as group:
            for index in range(self.requests):
                group.create_task(client.ask([question(seed, index, self.prompt)], self.output))
                await asyncio.sleep(chances.expovariate(self.per_second))


@dataclass(frozen=True, slots=True)
class Stall(Workload):
    name = "stall"
    about = "A long prompt, then a short one, arrive beside a stream: the largest gap of the stream meanwhile."
    primary = "stream largest_gap_ms"
    shown = ("newcomer ttft_ms", "short ttft_ms", "stream itl_p50_ms")
    tokens = frozenset({"prompt", "before"})

    prompt: int = 3072
    before: int = 24
    """Tokens of the stream until the long prompt comes."""
    short_after: float = 1.0
    """Seconds between the long prompt and the short one."""
    output: int = 4096
    """Of the stream at most: it is left when both prompts are answered."""
    _SHORT: ClassVar[int] = 16

    async def run(self, client: Client, seed: int) -> None:
        async with client.measured():
            stream = await client.start([question(seed, "stream", self._SHORT)], self.output, "stream")
            await stream.reached(self.before)
            newcomer = asyncio.create_task(client.ask([question(seed, "long", self.prompt)], 2, "newcomer"))
            await asyncio.sleep(self.short_after)
            await client.ask([question(seed, "short", self._SHORT)], 2, "short")
            await newcomer
            await stream.leave()


@dataclass(frozen=True, slots=True)
class Cancel(Workload):
    name = "cancel"
    about = "Half of the streams leave early, then somebody else asks: the time to the newcomer's first token."
    primary = "newcomer ttft_ms"
    shown = ("stays decode_per_s", "stays largest_gap_ms")
    tokens = frozenset({"prompt", "output", "left_after"})

    streams: int = 8
    prompt: int = 256
    output: int = 64
    left_after: int = 8

    async def run(self, client: Client, seed: int) -> None:
        async with client.measured():
            stays = [
                asyncio.create_task(client.ask([question(seed, index, self.prompt)], self.output, "stays"))
                for index in range(self.streams - self.streams // 2)
            ]
            leaves = [
                await client.start([question(seed, f"leaves {index}", self.prompt)], self.output, "leaves")
                for index in range(self.streams // 2)
            ]
            for pending in leaves:
                await pending.reached(self.left_after)
                await pending.leave()
            await client.ask([question(seed, "newcomer", self.prompt)], 8, "newcomer")
            await asyncio.gather(*stays)
