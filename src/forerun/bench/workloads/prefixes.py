"""Prompts that begin alike: what a server computes again of what it has computed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forerun.bench.client import Client
from forerun.bench.reading import Answer
from forerun.bench.texts import assistant, dice, story, system, user
from forerun.bench.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class FanOut(Workload):
    name = "fan-out"
    about = "Several prompts with the same long beginning arrive together: the time until all are answered."
    primary = "wall_s"
    shown = ("evaluated_tokens", "prompt_tokens", "ttft_p95_ms")
    tokens = frozenset({"shared", "own", "output"})

    branches: int = 8
    shared: int = 2048
    own: int = 32
    output: int = 16

    async def run(self, client: Client, seed: int) -> None:
        shared = story(dice(seed, "shared"), self.shared)
        async with client.measured(), asyncio.TaskGroup() as group:
            for index in range(self.branches):
                own = story(dice(seed, index), self.own)
                group.create_task(client.ask([system(shared), user(own)], self.output))


@dataclass(frozen=True, slots=True)
class Turns(Workload):
    name = "turns"
    about = "An agent's turns behind a long system prompt, each with all before it: first tokens of turns 2 and later."
    primary = "ttft_ms"
    shown = ("evaluated_tokens", "prompt_tokens", "new_tokens", "wall_s")
    tokens = frozenset({"system_prompt", "question", "output"})
    feeds_back = True

    turns: int = 6
    system_prompt: int = 1024
    question: int = 64
    output: int = 32

    async def run(self, client: Client, seed: int) -> None:
        conversation = Conversation(seed, "agent", self.system_prompt)
        first = await conversation.turn(client, self.question, self.output)
        async with client.measured() as figures:
            later = [await conversation.turn(client, self.question, self.output) for _ in range(self.turns - 1)]
        put_new_tokens(figures, first, later)


@dataclass(frozen=True, slots=True)
class Crowd(Workload):
    name = "crowd"
    about = "More conversations than a server has sequences, one after the other, again and again: rounds 2 and later."
    primary = "wall_s"
    shown = ("evaluated_tokens", "prompt_tokens", "ttft_ms")
    tokens = frozenset({"system_prompt", "question", "output"})
    feeds_back = True

    conversations: int = 12
    rounds: int = 3
    system_prompt: int = 256
    question: int = 48
    output: int = 16

    async def run(self, client: Client, seed: int) -> None:
        everybody = [Conversation(seed, index, self.system_prompt) for index in range(self.conversations)]
        for conversation in everybody:
            await conversation.turn(client, self.question, self.output)
        async with client.measured():
            for _ in range(self.rounds - 1):
                for conversation in everybody:
                    await conversation.turn(client, self.question, self.output)


@dataclass(frozen=True, slots=True)
class Tools(Workload):
    name = "tools"
    about = (
        "A question with tools, the call's result, the answer to it: first token after the result. Needs tool support."
    )
    primary = "result ttft_ms"
    shown = ("question ttft_ms", "evaluated_tokens", "prompt_tokens")
    tokens = frozenset({"result", "output"})

    round_trips: int = 3
    tools: int = 8
    result: int = 256
    output: int = 24

    async def run(self, client: Client, seed: int) -> None:
        tools = [_tool(seed, index) for index in range(self.tools)]
        messages: list[dict[str, Any]] = [user(story(dice(seed, "question"), 32))]
        async with client.measured():
            for number in range(self.round_trips):
                await client.ask(messages, self.output, "question", tools=tools)
                # The call is a recorded one: small models make none, and the work has to be the same everywhere.
                messages += [_call(number), _result(number, story(dice(seed, "result", number), self.result))]
                await client.ask(messages, self.output, "result", tools=tools)
                messages += [assistant("Noted."), user(story(dice(seed, "again", number), 32))]


class Conversation:
    """One person's, behind a system prompt of its own. Holds what was said."""

    def __init__(self, seed: int, name: object, system_prompt: int) -> None:
        self._chances = dice(seed, "conversation", name)
        self._messages = [system(story(self._chances, system_prompt))]

    async def turn(self, client: Client, question: int, output: int) -> Answer:
        """Ask the next question, and remember what was answered."""
        self._messages.append(user(story(self._chances, question)))
        answer = await client.ask(self._messages, output)
        self._messages.append(assistant(answer.text))
        return answer


def put_new_tokens(figures: dict[str, float], first: Answer, later: Sequence[Answer]) -> None:
    """What a server has to evaluate where it keeps everything: each prompt less the one before and its answer."""
    lengths = [(answer.counts.prompt, answer.output_tokens) for answer in (first, *later)]
    if all(prompt is not None for prompt, _ in lengths):
        pairs = pairwise(lengths)
        figures["new_tokens"] = sum((after or 0) - (before or 0) - output for (before, output), (after, _) in pairs)


def _tool(seed: int, index: int) -> dict[str, Any]:
    about = story(dice(seed, "tool", index), 24)
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return {"type": "function", "function": {"name": f"tool_{index}", "description": about, "parameters": parameters}}


def _call(number: int) -> dict[str, Any]:
    function = {"name": "tool_0", "arguments": '{"query": "river"}'}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def _result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}
