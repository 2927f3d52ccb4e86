"""The official clients' own types are the list of what may come: every field is honoured, or refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import anthropic.types as of_anthropic
import anthropic.types.beta as of_anthropic_beta
import openai.types.responses as of_openai
import openai.types.shared_params as openai_shared
import pytest
from anthropic.types import (
    cache_control_ephemeral_param,
    json_output_format_param,
    output_config_param,
    thinking_config_adaptive_param,
    thinking_config_enabled_param,
)
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types.responses import response_create_params, response_input_item_param
from pydantic import BaseModel

from forerun.server.wire import messages, responses

PAIRS: list[tuple[Any, type[BaseModel]]] = [
    (response_create_params.ResponseCreateParamsStreaming, responses.ResponsesRequest),
    (response_create_params.StreamOptions, responses.ResponseStreamOptions),
    (response_create_params.PromptCacheOptions, responses.ResponseCacheOptions),
    (openai_shared.Reasoning, responses.ReasoningConfig),
    (of_openai.ResponseTextConfigParam, responses.TextConfig),
    (of_openai.ResponseFormatTextJSONSchemaConfigParam, responses.TextFormat),
    (of_openai.FunctionToolParam, responses.FunctionTool),
    (of_openai.EasyInputMessageParam, responses.MessageItem),
    (of_openai.ResponseOutputMessageParam, responses.MessageItem),
    (of_openai.ResponseInputTextParam, responses.TextPart),
    (of_openai.ResponseOutputTextParam, responses.TextPart),
    (of_openai.ResponseInputImageParam, responses.ImagePart),
    (of_openai.ResponseOutputRefusalParam, responses.RefusalPart),
    (of_openai.ResponseFunctionToolCallParam, responses.FunctionCallItem),
    (response_input_item_param.FunctionCallOutput, responses.FunctionOutputItem),
    (of_openai.ResponseReasoningItemParam, responses.ReasoningItem),
    (of_openai.ToolChoiceAllowedParam, responses.AllowedTools),
    (of_openai.ToolChoiceFunctionParam, responses.NamedFunction),
    (of_anthropic.message_create_params.MessageCreateParamsStreaming, messages.MessagesRequest),
    (beta_create_params.MessageCreateParamsStreaming, messages.MessagesRequest),
    (of_anthropic.MessageCountTokensParams, messages.CountTokensRequest),
    (of_anthropic.ToolParam, messages.ToolDefinition),
    (of_anthropic.TextBlockParam, messages.TextBlock),
    (of_anthropic.ImageBlockParam, messages.ImageBlock),
    (of_anthropic.ImageTransformationsParam, messages.ImageTransformations),
    (of_anthropic.Base64ImageSourceParam, messages.Base64Image),
    (of_anthropic.URLImageSourceParam, messages.ImageAt),
    (of_anthropic.ThinkingBlockParam, messages.ThinkingBlock),
    (of_anthropic.ToolUseBlockParam, messages.ToolUseBlock),
    (of_anthropic.ToolResultBlockParam, messages.ToolResultBlock),
    (of_anthropic.ToolChoiceAutoParam, messages.ToolChoiceField),
    (of_anthropic.ToolChoiceToolParam, messages.ToolChoiceField),
    (of_anthropic.MetadataParam, messages.Metadata),
    (of_anthropic.DiagnosticsParam, messages.Diagnostics),
    (output_config_param.OutputConfigParam, messages.OutputConfig),
    (of_anthropic_beta.BetaOutputConfigParam, messages.OutputConfig),
    (json_output_format_param.JSONOutputFormatParam, messages.OutputFormat),
    (thinking_config_enabled_param.ThinkingConfigEnabledParam, messages.ThinkingField),
    (thinking_config_adaptive_param.ThinkingConfigAdaptiveParam, messages.ThinkingField),
    (cache_control_ephemeral_param.CacheControlEphemeralParam, messages.CacheControl),
    (of_anthropic_beta.BetaCacheControlEphemeralParam, messages.CacheControl),
]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_field_of_the_client_is_known(theirs: Any, ours: type[BaseModel]) -> None:
    known = {field.alias or name for name, field in ours.model_fields.items()}
    assert set(get_type_hints(theirs)) <= known
