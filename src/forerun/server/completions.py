"""`POST /v1/completions`: OpenAI's older API, prompts continued as they stand."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.core.request import FinishReason, TokenLogprobs
from forerun.engine.tokenizer import Tokenizer
from forerun.errors import InvalidRequestError
from forerun.server.about import FINGERPRINT
from forerun.server.body import json_body
from forerun.server.chat_answers import UsageTally, progress_value
from forerun.server.jobs import Answering, ChoiceEvent, TextJob
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.problems import error_event
from forerun.server.sending import sent
from forerun.server.serving import serving_for, tenant_of, with_adapter
from forerun.server.sse import DONE, data_event
from forerun.server.timings import timings
from forerun.server.wire.common import grammar_of
from forerun.server.wire.completions import CompletionRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/completions", responses=ERRORS, openapi_extra=takes(CompletionRequest))
async def completions(request: Request, body: Annotated[CompletionRequest, json_body(CompletionRequest)]) -> Response:
    """Continue prompts, each n times, whole or as a stream of events."""
    body = with_adapter(request, body, body.model)
    serving = await serving_for(request, body.model)
    job = text_job(body, tenant_of(request, body.cache_salt))
    answering = await unless_client_leaves(request, serving.service.start(job))
    answer = CompletionAnswer(answering, body, job, serving.model.id, serving.engine.tokenizer)
    return await sent(request, answering, answer, streams=bool(body.stream))


def text_job(body: CompletionRequest, tenant: str) -> TextJob:
    """Raises InvalidRequestError, naming the field."""
    body.check_stream()
    n = body.n or 1
    if body.best_of is not None and body.best_of != n:
        raise InvalidRequestError("best_of", f"is {body.best_of}, but must equal n = {n}: answers are not ranked")
    if body.echo and body.logprobs is not None:
        raise InvalidRequestError("echo", "does not go with logprobs: those of the prompt are not computed")
    return TextJob(
        prompts=prompts_of(body.prompt),
        params=body.sampling(max_tokens=body.max_tokens, logprobs=body.logprobs, stop=body.stop),
        grammar=grammar_of(body.grammar),
        n=n,
        echo=bool(body.echo),
        tenant=tenant,
        cache_prompt=body.cache_prompt is not False,
        priority=body.priority or 0,
        deadline=body.deadline,
        timeout=body.timeout,
        wants_progress=body.wants_progress,
    )


def prompts_of(prompt: str | Sequence[Any]) -> Sequence[str | Sequence[int]]:
    """One prompt a list entry. Raises InvalidRequestError where there is nothing in one."""
    prompts = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else list(prompt)
    if not prompts:
        raise InvalidRequestError("prompt", "is an empty list; give text or token ids")
    for index, one in enumerate(prompts):
        if not one:
            where = f"prompt[{index}]" if len(prompts) > 1 else "prompt"
            raise InvalidRequestError(where, "is empty; give at least one token")
    return prompts


class _Choice:
    """What is known of one choice so far; `offset` counts characters of its text, as OpenAI's text_offset does."""

    def __init__(self, echoed: str) -> None:
        self.echoed = echoed
        self.text: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.offset = 0


class CompletionAnswer:
    """The answers to one request, as chunks or whole."""

    def __init__(
        self, answering: Answering, body: CompletionRequest, job: TextJob, model_id: str, tokenizer: Tokenizer
    ) -> None:
        self._answering = answering
        self._body = body
        self._tokenizer = tokenizer
        self._tally = UsageTally(job.n)
        echoed = [self._shown(prompt) if job.echo else "" for prompt in job.prompts]
        self._choices = [_Choice(text) for text in echoed for _ in range(job.n)]
        self._head: dict[str, Any] = {
            "id": f"cmpl-{answering.id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model_id,
            "system_fingerprint": FINGERPRINT,
        }

    def _shown(self, prompt: str | Sequence[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.bytes_of(prompt).decode("utf-8", "replace")

    # --- as a stream ----------------------------------------------------------

    async def frames(self) -> AsyncGenerator[bytes]:
        """Events as bytes. An error is the last one; without one it is [DONE]."""
        head = self._head | ({"usage": None} if self._body.wants_usage else {})
        try:
            async for event in self._answering:
                if event.progress is not None:
                    yield data_event(head | {"choices": [], "progress": progress_value(event.progress)})
                elif frame := self._frame(event, head):
                    yield frame
        except Exception as error:  # noqa: BLE001 (the answer has begun: whatever went wrong is told as an event)
            yield error_event(error)
            return
        if self._body.wants_usage:
            yield data_event(head | {"choices": [], "usage": self._tally.usage()})
        yield DONE

    def _frame(self, event: ChoiceEvent, head: dict[str, Any]) -> bytes:
        self._tally.add(event)
        choice = self._choices[event.index]
        echoed, choice.echoed = choice.echoed, ""
        text = echoed + event.text
        if not (text or event.logprobs or event.finish_reason):
            return b""
        shown = {
            "index": event.index,
            "text": text,
            "logprobs": self._logprobs(event.logprobs, choice) if event.logprobs else None,
            "finish_reason": event.finish_reason,
        }
        own = {} if event.usage is None else {"timings": timings(event.usage).model_dump()}
        return data_event(head | {"choices": [shown]} | own)

    # --- whole ----------------------------------------------------------

    async def whole(self) -> Response:
        """The response when all choices are finished. Raises what the answering raises."""
        try:
            async for event in self._answering:
                self._tally.add(event)
                choice = self._choices[event.index]
                choice.text.append(event.text)
                choice.logprobs.extend(event.logprobs or ())
                choice.finish_reason = event.finish_reason
        finally:
            await self._answering.aclose()
        shown = [
            {
                "index": index,
                "text": choice.echoed + "".join(choice.text),
                "logprobs": None if self._body.logprobs is None else self._logprobs(choice.logprobs, choice),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        answer = self._head | {"choices": shown, "usage": self._tally.usage()} | self._tally.timings()
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def _logprobs(self, entries: Sequence[TokenLogprobs], choice: _Choice) -> dict[str, Any]:
        """OpenAI's older form: parallel lists."""
        tokens = [self._token(entry.token) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(choice.offset)
            choice.offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{self._token(token): value for token, value in entry.top} for entry in entries],
            "text_offset": offsets,
        }

    def _token(self, token: int) -> str:
        return self._tokenizer.bytes_of([token]).decode("utf-8", "backslashreplace")
