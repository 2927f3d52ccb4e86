"""Where the time of steps goes."""

from __future__ import annotations

import io
import json

import pytest

from forerun.bench.steps import PARTS, Rows, Step, shares, write_chrome_trace

DECODE = Step(1.0, Rows(1, 0, 0), schedule=0.001, elapsed=0.008, target=0.006, draft=0.001, update=0.001, between=0.002)
PREFILL = Step(2.0, Rows(3, 2, 64), schedule=0.002, elapsed=0.1, target=0.09, storing=0.005, update=0.001)


def test_what_the_runner_does_beside_its_parts_is_the_runner_s() -> None:
    assert DECODE.runner == pytest.approx(0.001)
    assert sum(DECODE.part(name) for name in PARTS) == pytest.approx(DECODE.seconds)


def test_shares_are_of_kinds_the_dearest_first_and_of_all() -> None:
    found = shares([DECODE, DECODE, PREFILL])
    assert [(share.kind, share.steps) for share in found] == [
        ("3-4 streams + drafts + prompts", 1),
        ("1 stream", 2),
        ("all", 3),
    ]
    for share in found:
        assert sum(share.parts.values()) == pytest.approx(1.0)
    assert found[1].parts["target"] == pytest.approx(0.5)
    assert shares([]) == []


def test_the_trace_has_each_step_and_its_parts_within_it() -> None:
    file = io.StringIO()
    write_chrome_trace([DECODE, PREFILL], file)
    events = [event for event in json.loads(file.getvalue())["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if event["name"] == "step"]
    assert [event["args"]["kind"] for event in steps] == ["1 stream", "3-4 streams + drafts + prompts"]
    for step, own in zip(steps, (events[1:6], events[7:]), strict=True):
        assert own[0]["ts"] == step["ts"]
        assert sum(event["dur"] for event in own) == pytest.approx(step["dur"], abs=0.5)
        assert max(event["ts"] + event["dur"] for event in own) <= step["ts"] + step["dur"] + 0.5
