"""Answers as events of Anthropic's Messages API, and the messages they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from forerun.chat.pieces import Content
from forerun.core.request import FinishReason
from forerun.server.anthropic.errors import anthropic_error
from forerun.server.anthropic.output import MessageEvents
from forerun.server.anthropic.thinking import thinking_of
from forerun.server.jobs import ChoiceEvent
from forerun.server.problems import Problem
from forerun.server.wire.messages import ThinkingBlock
from tests.server.scripted import CALLS, CUT_CALL, GREETING, PROMPT_TOKENS, THOUGHT, ended, said

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def told(script: Sequence[ChoiceEvent], **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events, and the message; what the official client makes of the events is the same message."""
    answer = MessageEvents("1", "m", prompt_tokens=PROMPT_TOKENS, **({"max_tokens": 5} | options))
    events = answer.begin() + [event for step in script for event in answer.push(step)]
    snapshot, buffers = None, dict[int, bytes]()
    for event in events:
        if event["type"] != "ping":
            read = EVENT.validate_python(event)
            snapshot = accumulate_event(event=read, current_snapshot=snapshot, json_bufs=buffers)
    whole = Message.model_validate(answer.message)
    assert snapshot is not None
    assert snapshot.to_dict()["content"] == whole.to_dict()["content"]
    assert (snapshot.stop_reason, snapshot.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert snapshot.usage.output_tokens == whole.usage.output_tokens
    assert snapshot.usage.cache_read_input_tokens == whole.usage.cache_read_input_tokens
    return events, answer.message


def types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_text_is_told_in_the_order_that_clients_know() -> None:
    events, message = told(GREETING)
    assert types(events) == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert message["content"] == [{"type": "text", "text": "Good day"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert events[0]["message"]["content"] == []


def test_input_tokens_leave_out_what_was_read_from_the_cache() -> None:
    events, message = told(GREETING)
    assert events[0]["message"]["usage"]["input_tokens"] == PROMPT_TOKENS
    for usage in (events[-2]["usage"], message["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (7, 4, 5)


def test_thinking_is_a_block_before_the_text_and_has_a_signature() -> None:
    events, message = told(THOUGHT)
    thinking, text = message["content"]
    assert (thinking["thinking"], text["text"]) == ("Hmm.", "Yes")
    assert thinking["signature"]
    assert [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"] == [
        "thinking_delta",
        "thinking_delta",
        "signature_delta",
        "text_delta",
    ]
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


def test_thinking_that_is_left_out_comes_back_with_its_signature() -> None:
    events, message = told(THOUGHT, hides_thinking=True)
    block = message["content"][0]
    assert block["thinking"] == ""
    assert "thinking_delta" not in [event.get("delta", {}).get("type") for event in events]
    assert thinking_of(ThinkingBlock(**block)) == "Hmm."


@pytest.mark.parametrize("signature", ["held:%%%", "held:/w==", "made by somebody else", None])
def test_a_signature_that_holds_nothing_is_no_error(signature: str | None) -> None:
    assert thinking_of(ThinkingBlock(type="thinking", thinking="", signature=signature)) == ""


def test_calls_are_blocks_whose_deltas_join_to_their_input() -> None:
    """Case T5: id and name once a call, and true differences."""
    events, message = told(CALLS)
    text, *calls = message["content"]
    assert text["text"] == "Let me see. "
    assert [(call["name"], call["input"]) for call in calls] == [
        ("weather", {"city": "Bern"}),
        ("weather", {"city": "Rome"}),
    ]
    assert len({call["id"] for call in calls}) == 2
    deltas = [
        event["delta"]["partial_json"]
        for event in events
        if event["type"] == "content_block_delta" and event["index"] == 1
    ]
    assert "".join(deltas) == '{"city": "Bern"}'
    assert message["stop_reason"] == "tool_use"


def test_a_call_that_was_cut_off_ends_for_its_length_in_streams_and_whole() -> None:
    """Case T5: `told` compares what clients make of the stream with the whole message."""
    _, message = told(CUT_CALL)
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][0]["input"] == {}


def test_the_stop_sequence_that_ended_the_answer_is_told() -> None:
    _, message = told([said(Content("a")), ended(stop_string="END")])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize(("output", "reason"), [(5, "max_tokens"), (3, "model_context_window_exceeded")])
def test_an_answer_cut_off_says_by_what(output: int, reason: str) -> None:
    _, message = told([said(Content("a")), ended(FinishReason.LENGTH, output=output)])
    assert message["stop_reason"] == reason


def test_an_answer_without_a_word_has_no_blocks() -> None:
    events, message = told([ended()])
    assert types(events) == ["message_start", "ping", "message_delta", "message_stop"]
    assert message["content"] == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_types(status: int, kind: str) -> None:
    body = anthropic_error(Problem(status=status, message="m"))
    assert body == {"type": "error", "error": {"type": kind, "message": "m"}}
