"""Texts to tokens and back, and conversations to text: what the model will read."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from forerun.core.prompt import PromptLayout
from forerun.core.request import SamplingParams
from forerun.errors import InvalidRequestError
from forerun.server.body import json_body
from forerun.server.chat_jobs import template_messages, tools_of
from forerun.server.jobs import ChatJob, TextJob
from forerun.server.model_entry import EmbeddingServing, Serving
from forerun.server.openapi import ERRORS, takes
from forerun.server.serving import loaded_for, serving_for
from forerun.server.wire.tools import DetokenizeRequest, PromptFields, TemplateRequest, TokenizeRequest

router = APIRouter(tags=["tokens"])
_NOTHING_TO_SAMPLE = SamplingParams()


class TokenPiece(BaseModel):
    id: int
    piece: str | list[int]
    """Text; bytes where it is a part of a character."""


class Tokens(BaseModel):
    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int


class Text(BaseModel):
    content: str


class Prompt(BaseModel):
    prompt: str


def template_job(body: TemplateRequest | PromptFields) -> ChatJob:
    """A conversation that is to be rendered. Raises InvalidRequestError."""
    return ChatJob(
        messages=template_messages(body.messages or ()),
        params=_NOTHING_TO_SAMPLE,
        tools=tools_of(body.tools),
        template_kwargs=body.chat_template_kwargs or {},
    )


async def layout_of(serving: Serving, body: PromptFields) -> PromptLayout:
    """A prompt as the engine reads it. Raises InvalidRequestError."""
    if body.prompt is None:
        job: ChatJob | TextJob = template_job(body)
    else:
        job = TextJob([body.prompt], _NOTHING_TO_SAMPLE)
    (layout,) = await serving.service.layouts(job)
    return layout


@router.post("/tokenize", responses=ERRORS, openapi_extra=takes(TokenizeRequest), response_model=Tokens)
async def tokenize(request: Request, body: Annotated[TokenizeRequest, json_body(TokenizeRequest)]) -> Response:
    """A prompt as token ids, with what the model wants before it."""
    loaded = await loaded_for(request, body.model)
    if isinstance(loaded, EmbeddingServing):
        tokens = await asyncio.to_thread(_tokens_to_embed, loaded, body)
    else:
        tokens = (await layout_of(loaded, body)).text_tokens.tolist()
    content = await asyncio.to_thread(_tokens_shown, loaded, tokens, with_pieces=bool(body.with_pieces))
    return Response(content, media_type="application/json")


def _tokens_to_embed(serving: EmbeddingServing, body: TokenizeRequest) -> list[int]:
    """A text as /v1/embeddings reads it: what it spells of control tokens is text. Raises InvalidRequestError."""
    if body.prompt is None:
        raise InvalidRequestError("messages", "an embedding model reads no conversations; give a prompt")
    tokens: list[int] = serving.engine.tokenizer.tokenize_plain(body.prompt).tolist()
    return tokens


def _tokens_shown(loaded: Serving | EmbeddingServing, tokens: list[int], *, with_pieces: bool) -> bytes:
    """What `Tokens` describes. Millions of tokens take seconds: to be called on a thread."""
    shown: list[Any] = tokens
    if with_pieces:
        bytes_of = loaded.engine.tokenizer.bytes_of
        pieces = {token: _piece(bytes_of([token])) for token in set(tokens)}
        shown = [{"id": token, "piece": pieces[token]} for token in tokens]
    return msgspec.json.encode({"tokens": shown, "count": len(tokens), "max_model_len": loaded.engine.n_ctx})


def _piece(content: bytes) -> str | list[int]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)


@router.post("/detokenize", responses=ERRORS, openapi_extra=takes(DetokenizeRequest))
async def detokenize(request: Request, body: Annotated[DetokenizeRequest, json_body(DetokenizeRequest)]) -> Text:
    """Token ids as text, control tokens as templates write them."""
    loaded = await loaded_for(request, body.model)
    size = loaded.engine.tokenizer.size
    if wrong := next((token for token in body.tokens if not 0 <= token < size), None):
        raise InvalidRequestError("tokens", f"token id {wrong} is outside the vocabulary of {size} tokens")
    return Text(content=await asyncio.to_thread(loaded.engine.tokenizer.shown, body.tokens))


@router.post("/apply-template", responses=ERRORS, openapi_extra=takes(TemplateRequest))
async def apply_template(request: Request, body: Annotated[TemplateRequest, json_body(TemplateRequest)]) -> Prompt:
    """A conversation as text, through the model's chat template."""
    serving = await serving_for(request, body.model)
    return Prompt(prompt=await serving.service.prompt_text(template_job(body)))
