"""`POST /v1/embeddings`: texts as vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.core.prompt import Tokens, as_tokens
from forerun.core.request import FinishReason
from forerun.engine.embedding import EmbeddingEngine, Vectors
from forerun.errors import ContextExceededError, InvalidRequestError
from forerun.server.body import json_body
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.records import current_record
from forerun.server.serving import embedding_for
from forerun.server.wire.embeddings import MAX_INPUTS, MAX_TOKENS, EmbeddingRequest

router = APIRouter(tags=["OpenAI"])
_FLOAT32: Final = "<f4"


@router.post("/v1/embeddings", responses=ERRORS, openapi_extra=takes(EmbeddingRequest))
async def embeddings(request: Request, body: Annotated[EmbeddingRequest, json_body(EmbeddingRequest)]) -> Response:
    """The vector of each input, of length 1, in their order. Needs an embedding model."""
    serving = await embedding_for(request, body.model)
    engine = serving.engine
    if body.dimensions not in (None, engine.dimensions):
        own = f"this model's vectors have {engine.dimensions} numbers"
        raise InvalidRequestError(
            "dimensions", f"{own}, and its file does not say whether {body.dimensions} of them mean anything; leave out"
        )
    inputs = await asyncio.to_thread(inputs_of, body.input, engine)
    tokens = sum(len(one) for one in inputs)
    record = current_record()
    record.begin(engine.model_name, 1, tokens)
    vectors = await unless_client_leaves(request, _embedded(engine, inputs))
    record.end_choice(FinishReason.STOP, None)
    answer = {
        "object": "list",
        "data": _data(vectors, body.encoding_format or "float"),
        "model": serving.model.id,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _embedded(engine: EmbeddingEngine, inputs: Sequence[Tokens]) -> Vectors:
    # Cancelled where the client leaves, and the future with it: what is not computed yet never is.
    return await asyncio.wrap_future(engine.submit(inputs))


def inputs_of(given: str | Sequence[Any], engine: EmbeddingEngine) -> list[Tokens]:
    """Each input as token ids. Raises InvalidRequestError, naming the input, its size and the limit."""
    is_one = isinstance(given, str) or isinstance(given[0], int)
    inputs = [given] if is_one else list(given)
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequestError("input", f"has {len(inputs)} texts, at most {MAX_INPUTS} are taken; send fewer")
    tokens = [_tokens_of(one, "input" if is_one else f"input[{index}]", engine) for index, one in enumerate(inputs)]
    total = sum(len(one) for one in tokens)
    if total > MAX_TOKENS:
        raise InvalidRequestError("input", f"has {total} tokens in all, at most {MAX_TOKENS} are taken; send fewer")
    return tokens


def _tokens_of(one: str | Sequence[int], field: str, engine: EmbeddingEngine) -> Tokens:
    if not one:
        raise InvalidRequestError(field, "is empty; give at least one token")
    tokenizer = engine.tokenizer
    try:
        tokens = tokenizer.tokenize_plain(one) if isinstance(one, str) else as_tokens(one)
    except InvalidRequestError:
        raise InvalidRequestError(field, "is not valid Unicode") from None
    if not len(tokens):
        raise InvalidRequestError(field, "has no tokens; give some text")
    if tokens.max() >= tokenizer.size:
        raise InvalidRequestError(
            field, f"token id {tokens.max()} is outside the vocabulary of {tokenizer.size} tokens"
        )
    if len(tokens) > engine.n_ctx:
        raise ContextExceededError(
            field, f"has {len(tokens)} tokens, but the model reads at most {engine.n_ctx}: shorten or split it"
        )
    return tokens


def _data(vectors: Vectors, encoding: str) -> list[dict[str, Any]]:
    return [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]


def _encoded(vector: Any, encoding: str) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype(_FLOAT32).tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
