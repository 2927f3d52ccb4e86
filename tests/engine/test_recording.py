"""A recorded engine is replayed step for step, from a file that holds no text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.memory import MemoryKind
from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment, Tokens, as_tokens
from forerun.core.request import Request, SamplingParams
from forerun.engine.disguise import Disguise
from forerun.engine.recorded import RecordedScheduler
from forerun.engine.recording import Arrival, Journal, Line, Result, Session, read_recording
from forerun.errors import ForerunError, InvalidConfigError
from forerun.testing import FAKE_SIZES, FakeConstraint, FakeDrafter, FakeRunner, FakeStore, FakeVocabulary
from forerun.testing.replay import Replay, ReplayedStep
from forerun.testing.soak import Soak, fake_subject

KINDS = {"dense": MemoryKind(), "window": MemoryKind(window=12), "state": MemoryKind(has_state=True)}
VOCABULARY = FakeVocabulary()
GRAMMAR = Grammar(GrammarKind.REGEX, "what it says does not matter")


def replayed(path: Path) -> list[ReplayedStep]:
    return list(Replay(lambda: read_recording(path)))


def of_kind(path: Path, kind: type[Line]) -> list[Line]:
    return [line for line in read_recording(path) if isinstance(line, kind)]


# --- a whole engine ----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_under_pressure_and_faults_is_replayed_step_for_step(kind: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "recording.jsonl")
    subject = fake_subject(3, 0.05, KINDS[kind], partial(RecordedScheduler, journal=journal))
    summary = Soak(subject, seed=3).run(lambda steps: steps < 250)
    journal.close()
    steps = replayed(journal.path)
    assert len(steps) == summary.steps
    assert [step.number for step in steps if not step.is_same] == []


class Recorded:
    """A recorded scheduler on the fake model, driven by a test."""

    def __init__(self, path: Path, store: FakeStore | None = None, *, has_text: bool = False, **limits: object) -> None:
        given: dict[str, object] = {
            "n_ctx": 200,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "n_seq_max": 6,
            "speculation": 3,
            "cache_ram": 10_000,
            "cache_disk": 100_000,
            "segment_tokens": 16,
            "segment_sizes": FAKE_SIZES,
        }
        config = SchedulerConfig(**(given | limits))  # type: ignore[arg-type]
        self.store = store or FakeStore(config.cache_ram)
        self.journal = Journal(path, has_text=has_text)
        curve = CostCurve((1, 4, 16), (10.0, 12.0, 30.0), (0.1, 0.1, 0.1), 10)
        draft = StepCosts(LiveCosts(curve), LiveCosts(CostCurve((1, 16), (1.0, 4.0)))) if config.draft_n_ctx else None
        pace = None if draft else LiveCosts(curve)
        self.scheduler = RecordedScheduler(
            config, VOCABULARY, self.journal, costs=draft, pace=pace, stored=self.store.scan()
        )
        drafter = FakeDrafter(config.draft_n_ctx, VOCABULARY.size, 0.8) if config.draft_n_ctx else None
        self.runner = FakeRunner(
            config.n_ctx, VOCABULARY.size, drafter=drafter, store=self.store, kind=config.memory, costs=draft
        )
        self.now = 0.0

    def add(self, name: str, tokens: Sequence[int], params: SamplingParams | None = None, **options: Any) -> None:
        request = Request(id=name, prompt=PromptLayout.of_text(tokens), params=params or SamplingParams(max_tokens=12))
        self.scheduler.add(replace(request, **options))

    def run(self, most: int = 1000) -> None:
        for _ in range(most):
            if not self.scheduler.has_work:
                return
            self.now += 1.0
            plan = self.scheduler.schedule(self.now)
            self.scheduler.update(plan, self.runner.execute(plan))


PROMPT = [0, 1, 3, 4, 1, 0, 0, 1, 3, 4, 1, 0, 0, 1, 3, 4] * 2


class _Odd:
    """A hook that is right now and then, and raises at last."""

    def forced(self, output: Tokens, limit: int) -> list[int]:
        if output.size > 8:
            raise ValueError("out of ideas")
        return [0] * (limit if output.size % 3 else 0)


def test_grammars_hooks_drafts_by_cost_cancels_and_questions_are_replayed(tmp_path: Path) -> None:
    to = Recorded(tmp_path / "recording.jsonl", draft_n_ctx=200)
    sentence = FakeConstraint.of_sentences(VOCABULARY, [(0, 0, 0, 1, 0), (0, 0, 3, 4, 3, 4)])
    to.add("grammar", PROMPT, SamplingParams(max_tokens=20, grammar=GRAMMAR), constraint=sentence)
    to.add(
        "stuck", [1, *PROMPT], SamplingParams(grammar=GRAMMAR), constraint=FakeConstraint(VOCABULARY, lambda _: {0}, 4)
    )
    to.add("hook", PROMPT, SamplingParams(max_tokens=30, ignore_eos=True), forced=_Odd())
    to.add("stop", PROMPT[:9], SamplingParams(max_tokens=30, ignore_eos=True, stop=("ab", "ba", "aa", "bb", "é")))
    to.run(4)
    to.scheduler.look_up(PromptLayout.of_text(PROMPT))
    to.add("more", [*PROMPT, 0, 1], SamplingParams(max_tokens=40, ignore_eos=True), tenant="somebody")
    to.scheduler.pin(PromptLayout.of_text(PROMPT), "", until=50.0)
    to.run(2)
    to.scheduler.pause("hook")
    to.run(2)
    to.scheduler.resume("hook")
    to.run(2)
    to.scheduler.abort("more", to.now)
    to.run()
    to.scheduler.clear_cache(to.scheduler.scope_of("somebody"))
    to.add("last", [*PROMPT, 1])
    to.run()
    to.journal.close()
    assert [step for step in replayed(to.journal.path) if not step.is_same] == []


def test_an_engine_that_was_started_again_goes_on_in_the_same_file_with_what_was_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    first = Recorded(path)
    first.add("a", PROMPT * 2, SamplingParams(max_tokens=4, ignore_eos=True))
    first.add("b", [*PROMPT, *[1] * 20], SamplingParams(max_tokens=4, ignore_eos=True), tenant="somebody")
    first.run()
    first.journal.close()
    again = Recorded(path, first.store.restarted())
    again.add("a", [*PROMPT * 2, 1], SamplingParams(max_tokens=4, ignore_eos=True))
    again.add("b", [*PROMPT, *[1] * 20, 0], SamplingParams(max_tokens=4, ignore_eos=True), tenant="somebody")
    again.run()
    again.journal.close()
    steps = replayed(path)
    assert {step.session for step in steps} == {1, 2}
    assert [step for step in steps if not step.is_same] == []
    assert any(line.startswith("fetch") for step in steps if step.session == 2 for line in step.lines)


def test_another_decision_is_seen(tmp_path: Path) -> None:
    to = Recorded(tmp_path / "recording.jsonl")
    to.add("a", PROMPT)
    to.run()
    to.journal.close()

    def changed() -> list[Line]:
        lines = list(read_recording(to.journal.path))
        assert isinstance(lines[0], Session)
        config = replace(lines[0].config, max_num_batched_tokens=8)
        return [msgspec.structs.replace(lines[0], config=config), *lines[1:]]

    steps = list(Replay(changed))
    assert [step.is_same for step in steps] == [False]
    assert "prefill 0 at 0: 8 tokens" in steps[-1].lines


# --- what the file holds ----------------------------------------------------------


def test_there_is_no_text_unless_it_was_asked_for(tmp_path: Path) -> None:
    to = Recorded(tmp_path / "plain.jsonl")
    secret = SamplingParams(max_tokens=8, ignore_eos=True, stop=("secret",), logit_bias={1: 2.0}, stop_token_ids=(4,))
    to.add("the name of a request", PROMPT, secret, tenant="the key of a tenant")
    to.run()
    to.journal.close()
    (arrival,) = of_kind(to.journal.path, Arrival)
    assert isinstance(arrival, Arrival)
    (names,) = (segment.tokens for segment in arrival.request.prompt.segments)
    assert len(set(names.tolist())) == len(PROMPT)  # equal tokens go by names of their own
    data = to.journal.path.read_bytes()
    for word in (b"secret", b"the name", b"the key", b'"text"', b'"texts"'):
        assert word not in data
    assert to.journal.path.stat().st_mode & 0o077 == 0


def test_text_is_there_where_it_was_asked_for(tmp_path: Path) -> None:
    to = Recorded(tmp_path / "recording.jsonl", has_text=True)
    to.add("a", [0, 1, 0], SamplingParams(max_tokens=6, ignore_eos=True))
    to.run()
    to.journal.close()
    (arrival,) = of_kind(to.journal.path, Arrival)
    assert isinstance(arrival, Arrival)
    assert arrival.text == "aba"
    texts = [
        line.texts.get(arrival.number, "") for line in of_kind(to.journal.path, Result) if isinstance(line, Result)
    ]
    assert "".join(texts)
    assert all(step.is_same for step in replayed(to.journal.path))


# --- names ----------------------------------------------------------

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(tokens, tokens, tokens)
def test_prompts_have_the_same_names_as_far_as_they_are_the_same(
    shared: list[int], one: list[int], other: list[int]
) -> None:
    disguise = Disguise()
    first, _ = disguise.text(0, as_tokens([*shared, *one]))
    second, _ = disguise.text(0, as_tokens([*shared, *other]))
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    until = len(shared) + same
    assert first[:until].tolist() == second[:until].tolist()
    assert not set(first[until:].tolist()) & set(second[until:].tolist())


@given(tokens, tokens)
def test_names_do_not_depend_on_the_pieces_in_which_a_text_comes(head: list[int], tail: list[int]) -> None:
    disguise = Disguise(b"key")
    whole, end = disguise.text(0, as_tokens([*head, *tail]))
    first, middle = disguise.text(0, as_tokens(head))
    second, after = disguise.text(middle, as_tokens(tail))
    assert np.concatenate([first, second]).tolist() == whole.tolist()
    assert after == end


def test_names_are_another_recording_s_business() -> None:
    first, second = (Disguise().text(0, as_tokens(PROMPT))[0].tolist() for _ in range(2))
    assert not set(first) & set(second)


def test_media_are_told_apart_by_names_and_keep_their_extent() -> None:
    disguise = Disguise()

    def named(identity: str) -> PromptLayout:
        image = PromptSegment.media(identity, 576, 1)
        return disguise.layout(PromptLayout([PromptSegment.text([1, 2]), image, PromptSegment.text([3])]))[0]

    cat, dog = named("cat"), named("dog")
    assert cat == named("cat")
    assert cat.common_prefix(dog).logical_tokens == 2
    assert cat.end == PromptBoundary(579, 4)
    assert "cat" not in repr(cat)


# --- files that are none, and disks that are full ----------------------------------------------------------


def test_a_recording_ends_where_it_is_as_large_as_it_may_get_and_the_engine_goes_on(tmp_path: Path) -> None:
    to = Recorded(tmp_path / "recording.jsonl")
    to.journal._left = 2500
    to.add("a", PROMPT)
    to.run()
    assert not to.scheduler.has_work
    assert to.journal.path.stat().st_size < 5000
    assert all(step.is_same for step in replayed(to.journal.path))


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    to = Recorded(tmp_path / "recording.jsonl")
    to.add("a", PROMPT)
    to.run()
    to.journal.close()
    whole = len(list(read_recording(to.journal.path)))
    data = to.journal.path.read_bytes()
    to.journal.path.write_bytes(data[:-20])
    assert len(list(read_recording(to.journal.path))) == whole - 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _: b"", "it is empty"),
        (lambda _: b"{}\n", "line 1"),
        (lambda _: b"\xff\xfe\n", "line 1"),
        (lambda data: b'{"type":"look"}\n' + data, "does not begin with a session"),
        (lambda data: data.replace(b"forerun-recording-1", b"forerun-recording-9"), "forerun-recording-9"),
        (lambda data: data.replace(b'"n_ctx":200', b'"n_ctx":"x"'), "n_ctx"),
        (lambda data: data.replace(b'"n_ctx":200', b'"n_ctx":0'), "n_ctx must be at least 1"),
        (lambda data: data + b'{"type":"result","result":{}}\n', "elapsed"),
    ],
)
def test_what_is_no_recording_is_refused_by_line(spoil: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    to = Recorded(tmp_path / "recording.jsonl")
    to.add("a", PROMPT)
    to.run()
    to.journal.close()
    to.journal.path.write_bytes(spoil(to.journal.path.read_bytes()))
    with pytest.raises(ForerunError, match=message):
        replayed(to.journal.path)


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="cannot be written: Is a directory"):
        Journal(tmp_path)
