"""Answers as events of the Responses API, and the responses they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from forerun.chat.pieces import Content, Reasoning, ToolArguments
from forerun.core.request import FinishReason, TokenLogprobs
from forerun.server.body import validated
from forerun.server.jobs import ChoiceEvent
from forerun.server.problems import Problem
from forerun.server.responses.job import opening
from forerun.server.responses.output import ResponseEvents
from forerun.server.wire.responses import ResponsesRequest
from tests.server.scripted import CALLS, CUT_CALL, GREETING, THOUGHT, ended, said

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def told(script: Sequence[ChoiceEvent], **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events, each read by the official client's types, and the response."""
    body = validated(ResponsesRequest, {"model": "m", "input": "hello"})
    answer = ResponseEvents(opening(body, "resp_1", "m", 5), **options)
    events = answer.begin() + [event for step in script for event in answer.push(step)]
    for event in events:
        assert EVENT.validate_python(event).type == event["type"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    Response.model_validate(answer.response)
    return events, answer.response


def types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text_is_told_in_the_order_that_clients_know() -> None:
    events, response = told(GREETING)
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_text", "text": "Good day", "annotations": [], "logprobs": []}]
    assert (item["status"], response["status"]) == ("completed", "completed")
    assert events[-1]["response"] == response
    assert events[0]["response"]["output"] == []


def test_usage_tells_what_was_cached_and_what_was_reasoning() -> None:
    _, response = told(THOUGHT)
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (11, 5, 16)
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert response["timings"]["cache_n"] == 4


def test_reasoning_is_an_item_before_the_message() -> None:
    events, response = told(THOUGHT)
    assert types(events)[2:9] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    reasoning, message = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"] == "Yes"
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 7 + [1] * 6


def test_reasoning_comes_as_its_summary_where_one_is_asked_for() -> None:
    events, response = told(THOUGHT, reasoning_as_summary=True)
    assert "reasoning_summary_text.delta" in types(events)
    assert "reasoning_text.delta" not in types(events)
    assert response["output"][0]["summary"] == [{"type": "summary_text", "text": "Hmm."}]


def test_calls_are_items_whose_deltas_join_to_their_arguments() -> None:
    """Case T5: id and name once a call, and true differences."""
    events, response = told(CALLS)
    message, *calls = response["output"]
    assert message["content"][0]["text"] == "Let me see. "
    assert [(call["name"], call["arguments"]) for call in calls] == [
        ("weather", '{"city": "Bern"}'),
        ("weather", '{"city": "Rome"}'),
    ]
    assert len({call["call_id"] for call in calls} | {call["id"] for call in calls}) == 4
    for index, call in enumerate(calls, start=1):
        deltas = [
            event["delta"]
            for event in events
            if event["type"] == "response.function_call_arguments.delta" and event["output_index"] == index
        ]
        assert "".join(deltas) == call["arguments"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item.get("arguments") for item in added] == [None, "", ""]
    assert response["status"] == "completed"


def test_a_call_that_was_cut_off_is_incomplete() -> None:
    """Case T5: the end for length is not told as a call."""
    events, response = told(CUT_CALL)
    assert events[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    (call,) = response["output"]
    assert (call["status"], call["arguments"]) == ("incomplete", '{"city": "Be')


@pytest.mark.parametrize("script", [GREETING[:1], THOUGHT[:1], CALLS[:2], ()])
def test_a_failed_answer_ends_as_failed_with_what_had_come(script: Sequence[ChoiceEvent]) -> None:
    body = validated(ResponsesRequest, {"model": "m", "input": "hello"})
    answer = ResponseEvents(opening(body, "resp_1", "m", 5))
    events = (
        answer.begin()
        + [event for step in script for event in answer.push(step)]
        + answer.fail(Problem(status=500, message="broken"))
    )
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.failed"
    assert EVENT.validate_python(events[-1]).response.error.message == "broken"
    assert answer.response["status"] == "failed"
    assert all(item["status"] == "incomplete" for item in answer.response["output"][-1:])


def test_an_answer_that_ends_in_error_is_failed() -> None:
    events, _ = told([said(Content("a")), ended(FinishReason.ERROR)])
    assert events[-1]["type"] == "response.failed"


def test_an_answer_without_a_word_has_no_items() -> None:
    events, response = told([ended()])
    assert types(events) == ["created", "in_progress", "completed"]
    assert response["output"] == []


def test_log_probabilities_come_with_the_text_that_their_tokens_make() -> None:
    def scored(token: int) -> list[TokenLogprobs]:
        return [TokenLogprobs(token, -0.5, ((token, -0.5), (66, -1.5)))]

    script = [
        said(Reasoning("hm"), logprobs=scored(63)),
        said(logprobs=scored(65)),  # held back: it may have become a stop string
        said(Content("AB"), logprobs=scored(66)),
        ended(),
    ]
    events, response = told(script, bytes_of=bytes)
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for entry in delta["logprobs"]] == ["A", "B"]
    assert response["output"][1]["content"][0]["logprobs"] == delta["logprobs"]
    assert delta["logprobs"][0]["top_logprobs"][1] == {"token": "B", "logprob": -1.5, "bytes": [66]}


def test_without_being_asked_for_log_probabilities_do_not_come() -> None:
    _, response = told([said(Content("A"), logprobs=[TokenLogprobs(65, -0.5)]), ended()])
    assert response["output"][0]["content"][0]["logprobs"] == []


def test_arguments_without_a_call_are_a_mistake_of_the_parser() -> None:
    with pytest.raises(AssertionError, match="follow the call"):
        told([said(ToolArguments(0, "{}"))])
