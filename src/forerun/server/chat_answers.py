"""From the events of an answer to what OpenAI's chat clients read: a stream of chunks, or one whole completion."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from forerun.chat.pieces import Content, Piece, Reasoning, ToolArguments, ToolCall
from forerun.core.request import FinishReason, TokenLogprobs, Usage
from forerun.server.about import FINGERPRINT
from forerun.server.jobs import Answering, ChoiceEvent, Progress
from forerun.server.problems import error_event
from forerun.server.sse import DONE, data_event
from forerun.server.timings import completion_usage, timings
from forerun.server.wire.chat import ChatRequest

BytesOf = Callable[[Iterable[int]], bytes]
"""Tokens as the bytes they add to the text."""


def finish_reason(event: ChoiceEvent) -> str:
    """OpenAI's word for how a choice ended. A call that was cut off ended for its length, not as a call."""
    return "tool_calls" if event.has_called else str(event.finish_reason)


def logprobs_value(entries: Sequence[TokenLogprobs], bytes_of: BytesOf) -> dict[str, Any]:
    """OpenAI's `logprobs` of some tokens."""
    content = [
        _token(entry.token, entry.logprob, bytes_of)
        | {"top_logprobs": [_token(token, logprob, bytes_of) for token, logprob in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _token(token: int, logprob: float, bytes_of: BytesOf) -> dict[str, Any]:
    piece = bytes_of([token])
    # A token may end inside a character: then `bytes` alone says what it is.
    return {"token": piece.decode("utf-8", "backslashreplace"), "logprob": logprob, "bytes": list(piece)}


def delta_of(pieces: Sequence[Piece], call_ids: dict[int, str]) -> dict[str, Any]:
    """What pieces add to a message. A call's id, type and name come with its first delta alone."""
    if len(pieces) == 1 and isinstance(pieces[0], Content):  # nearly all
        return {"content": pieces[0].text}
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        match piece:
            case Content(text):
                delta["content"] = delta.get("content", "") + text
            case Reasoning(text):
                delta["reasoning_content"] = delta.get("reasoning_content", "") + text
            case ToolCall(index, name):
                call_ids[index] = new_call_id()
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": call_ids[index], "type": "function", "function": function}
            case ToolArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class UsageTally:
    """Usages of all choices as they end."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._usages: dict[int, Usage] = {}
        self._reasoning_tokens = 0

    def add(self, event: ChoiceEvent) -> None:
        if event.usage is not None:
            self._usages[event.index] = event.usage
            self._reasoning_tokens += event.reasoning_tokens

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        prompts: dict[int, list[Usage]] = {}
        for index, usage in sorted(self._usages.items()):
            prompts.setdefault(index // self._n, []).append(usage)
        return completion_usage(list(prompts.values()), self._reasoning_tokens).model_dump(exclude_none=True)

    def timings(self) -> dict[str, Any]:
        """llama.cpp's `timings`, which are of one choice: nothing where there are several."""
        if len(self._usages) != 1:
            return {}
        return {"timings": timings(*self._usages.values()).model_dump()}


def progress_value(progress: Progress) -> dict[str, Any]:
    left = progress.seconds_left
    return {
        "done": progress.done,
        "total": progress.total,
        "seconds_left": None if left is None else round(left, 3),
    }


class ChatAnswer:
    """Implements sending.Answer: chunks, or one completion."""

    def __init__(self, answering: Answering, body: ChatRequest, model_id: str, bytes_of: BytesOf) -> None:
        self._answering = answering
        self._body = body
        self._bytes_of = bytes_of
        self._tally = UsageTally(body.n or 1)
        self._call_ids: list[dict[int, str]] = [{} for _ in range(body.n or 1)]
        self._begun = [False] * (body.n or 1)
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{answering.id}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": model_id,
            "system_fingerprint": FINGERPRINT,
        }
        if body.stream and body.wants_usage:
            self._head |= {"usage": None}

    async def frames(self) -> AsyncGenerator[bytes]:
        """Events as bytes. An error is the last one; without one it is [DONE]."""
        try:
            async for event in self._answering:
                if frame := self._frame(event):
                    yield frame
        except Exception as error:  # noqa: BLE001 (the answer has begun: whatever went wrong is told as an event)
            yield error_event(error)
            return
        if self._body.wants_usage:
            yield data_event(self._head | {"choices": [], "usage": self._tally.usage()})
        yield DONE

    def _frame(self, event: ChoiceEvent) -> bytes:
        if event.progress is not None:
            return data_event(self._head | {"choices": [], "progress": progress_value(event.progress)})
        frame = b""
        if not self._begun[event.index]:
            self._begun[event.index] = True
            frame = self._chunk(event.index, {"role": "assistant", "content": ""})
        logprobs = logprobs_value(event.logprobs, self._bytes_of) if event.logprobs else None
        if event.pieces or logprobs:
            delta = delta_of(event.pieces, self._call_ids[event.index])
            frame += self._chunk(event.index, delta, logprobs)
        if event.finish_reason is not None:
            self._tally.add(event)
            frame += self._last_chunk(event)
        return frame

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return data_event(self._head | {"choices": [choice]})

    def _last_chunk(self, event: ChoiceEvent) -> bytes:
        choice = {"index": event.index, "delta": {}, "logprobs": None, "finish_reason": finish_reason(event)}
        own = {} if event.usage is None else {"timings": timings(event.usage).model_dump()}
        return data_event(self._head | {"choices": [choice]} | own)

    async def whole(self) -> Response:
        """The completion when it is finished. Raises what the answering raises."""
        choices = [_Whole() for _ in self._begun]
        try:
            async for event in self._answering:
                self._tally.add(event)
                choices[event.index].add(event)
        finally:
            await self._answering.aclose()
        shown = [
            {
                "index": index,
                "message": choice.message(),
                "logprobs": logprobs_value(choice.logprobs, self._bytes_of) if self._body.logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        value = self._head | {"choices": shown, "usage": self._tally.usage()} | self._tally.timings()
        return Response(msgspec.json.encode(value), media_type="application/json")


class _Whole:
    """One choice, gathered."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[str, list[str]]] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason = str(FinishReason.STOP)

    def add(self, event: ChoiceEvent) -> None:
        self.logprobs.extend(event.logprobs or ())
        for piece in event.pieces:
            match piece:
                case Content(text):
                    self.content.append(text)
                case Reasoning(text):
                    self.reasoning.append(text)
                case ToolCall(_, name):
                    self.calls.append((name, []))
                case ToolArguments(index, text):
                    self.calls[index][1].append(text)
        if event.finish_reason is not None:
            self.finish_reason = finish_reason(event)

    def message(self) -> dict[str, Any]:
        """OpenAI's message; its content is null where there are calls alone."""
        content = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
                for name, arguments in self.calls
            ]
        return message
