"""Every field of OpenAI's requests is in our tables, and the page that lists them is up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai.types.chat as of_chat
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from pydantic import BaseModel

from forerun.server.compat import ENDPOINTS, HONOURED, document, parts_of, status_of
from forerun.server.wire import chat, common, completions

PAGE = Path(__file__).parents[2] / "docs/openai-compat.md"
PAIRS: list[tuple[Any, type[BaseModel]]] = [
    (chat_create_params.CompletionCreateParamsStreaming, chat.ChatRequest),
    (chat_create_params.PromptCacheOptions, chat.PromptCacheOptions),
    (completion_create_params.CompletionCreateParamsStreaming, completions.CompletionRequest),
    (of_chat.ChatCompletionStreamOptionsParam, common.StreamOptions),
    (of_chat.ChatCompletionFunctionToolParam, chat.ToolDefinition),
    (of_chat.ChatCompletionAllowedToolChoiceParam, chat.AllowedToolsChoice),
    (of_chat.ChatCompletionNamedToolChoiceParam, chat.NamedTool),
    (of_chat.ChatCompletionUserMessageParam, chat.ChatMessage),
    (of_chat.ChatCompletionSystemMessageParam, chat.ChatMessage),
    (of_chat.ChatCompletionDeveloperMessageParam, chat.ChatMessage),
    (of_chat.ChatCompletionAssistantMessageParam, chat.ChatMessage),
    (of_chat.ChatCompletionToolMessageParam, chat.ChatMessage),
    (of_chat.ChatCompletionMessageFunctionToolCallParam, chat.CalledTool),
    (of_chat.ChatCompletionContentPartTextParam, chat.ContentPart),
    (of_chat.ChatCompletionContentPartRefusalParam, chat.ContentPart),
    (of_chat.ChatCompletionContentPartImageParam, chat.ContentPart),
    (of_chat.ChatCompletionContentPartInputAudioParam, chat.ContentPart),
    (of_chat.ChatCompletionPredictionContentParam, chat.PredictedContent),
]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda one: one.__name__)
def test_every_field_of_openai_s_is_in_our_table(theirs: Any, ours: type[BaseModel]) -> None:
    fields = set(theirs.__annotations__) | {
        name for base in theirs.__mro__ for name in getattr(base, "__annotations__", ())
    }
    known = {field.alias or name for name, field in ours.model_fields.items()}
    assert fields - known == set()


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text("utf-8") == document(), "run: python -m forerun.server.compat"


def test_what_is_not_honoured_says_why() -> None:
    for _, request in ENDPOINTS:
        for model in parts_of(request):
            for name, field in model.model_fields.items():
                status, why = status_of(field)
                assert status == HONOURED or why, (model, name)
