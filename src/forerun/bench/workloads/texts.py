"""Text that copies what the prompt holds, and text that copies nothing: where drafts pay, and where they must not cost.

These questions are about real texts, since what a model copies depends on them. Rounds go through them one after the
other; where there are more questions than texts, some come again, behind another number: a server that remembers what
it answered (Forerun's past outputs) drafts from that then. Answers are cut before the model would end them.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.bench.client import Client
from forerun.bench.passages import EDITS, PROSE
from forerun.bench.texts import user
from forerun.bench.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Copying(Workload):
    name = "copy"
    about = "Texts and programs to be repeated with a change, one after the other: tokens a second after the first."
    primary = "decode_per_s"
    shown = ("accepted_tokens", "drafted_tokens", "wall_s")
    tokens = frozenset({"output"})

    prompts: int = 2
    output: int = 192

    async def run(self, client: Client, seed: int) -> None:
        await _ask_all(client, EDITS, self.prompts, self.output, seed)


@dataclass(frozen=True, slots=True)
class Creative(Workload):
    name = "creative"
    about = "Stories, where nothing can be copied, one after the other: tokens a second after the first."
    primary = "decode_per_s"
    shown = ("accepted_tokens", "drafted_tokens", "wall_s")
    tokens = frozenset({"output"})

    prompts: int = 2
    output: int = 128

    async def run(self, client: Client, seed: int) -> None:
        await _ask_all(client, PROSE, self.prompts, self.output, seed)


async def _ask_all(client: Client, texts: tuple[str, ...], count: int, output: int, seed: int) -> None:
    async with client.measured():
        for index in range(count):
            text = texts[(seed * count + index) % len(texts)]
            await client.ask([user(f"Request {seed}-{index}. {text}")], output)
