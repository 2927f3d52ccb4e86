"""Requests with different LoRA adapters: no step mixes them, no KV passes between them, and nobody waits for ever."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest

from forerun.core.adapters import MAX_ADAPTERS, AdapterSet, adapter_set, is_tenant_s, scope_of
from forerun.core.config import SchedulerConfig
from forerun.core.memory import MemoryKind
from forerun.core.planner import BatchPlanner
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import FailureKind, PrefillRows, StepFailure, StepPlan
from forerun.core.turns import Turn, Turns
from forerun.errors import InvalidRequestError
from forerun.testing import FAKE_SIZES, FakeDrafter, FakeRunner, FakeStore
from tests.core.harness import VOCABULARY, Harness

CONTENTS = {"a": "content of a", "b": "content of b"}


def harness(*, store: FakeStore | None = None, **limits: object) -> Harness:
    given: dict[str, object] = {"n_ctx": 2000, "n_seq_max": 16, "max_num_seqs": 8, "adapters": CONTENTS}
    config = SchedulerConfig(**(given | limits))  # type: ignore[arg-type]
    drafter = FakeDrafter(config.draft_n_ctx, VOCABULARY.size, 1.0) if config.draft_n_ctx else None
    runner = FakeRunner(
        config.n_ctx, VOCABULARY.size, drafter=drafter, kind=config.memory, store=store, adapters=config.adapters
    )
    made = Harness(config, runner)
    if store is not None:
        made.scheduler = Scheduler(config, VOCABULARY, stored=store.scan())
    return made


def add(to: Harness, name: str, prompt: list[int], adapters: object = (), most: int = 6, **options: object) -> None:
    chosen = {} if adapters == () else adapters
    params = SamplingParams(max_tokens=most, ignore_eos=True, adapters=chosen)  # type: ignore[arg-type]
    to.add(name, prompt, params, **options)


def ask(to: Harness, name: str, prompt: list[int], adapters: object = (), **options: object) -> int:
    """One request alone, its answer compared with the oracle's; how much of its prompt was cached."""
    add(to, name, prompt, adapters, **options)  # type: ignore[arg-type]
    to.run()
    assert to.answer(name) == to.expected(name)
    return to.usage(name).cached_tokens


def steps_of(to: Harness) -> list[AdapterSet]:
    return [plan.adapters for plan in to.plans if plan.decode or plan.prefill]


PROMPT = [index * 7 % 19 for index in range(100)]


# --- what callers say ---


def test_a_name_alone_has_scale_1_and_sets_are_ordered_by_name() -> None:
    assert SamplingParams(adapters="a").adapter_set == (("a", 1.0),)
    assert SamplingParams(adapters={"b": 2, "a": -0.5}).adapter_set == (("a", -0.5), ("b", 2.0))
    assert SamplingParams().adapter_set == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": 0}, "the scale of 'a' is 0"),
        ({"a": float("nan")}, "must lie between -100 and 100"),
        ({"a": float("inf")}, "must lie between -100 and 100"),
        ({"a": -101.0}, "must lie between -100 and 100"),
        ({"a": True}, "the scale of 'a' is a number"),
        ({"a": "1"}, "the scale of 'a' is a number"),
        ({"": 1.0}, "a name is text"),
        ("", "a name is text"),
        ({3: 1.0}, "a name is text"),
        (["a"], "maps names to scales"),
        ({str(index): 1.0 for index in range(MAX_ADAPTERS + 1)}, f"at most {MAX_ADAPTERS} at once"),
    ],
)
def test_what_makes_no_sense_is_refused(given: object, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        SamplingParams(adapters=given)  # type: ignore[arg-type]
    assert refused.value.field == "adapters"


def test_unknown_adapters_are_refused_naming_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="'c' is not known: this engine has 'a', 'b'"):
        add(harness(), "r", [1], "c")
    with pytest.raises(InvalidRequestError, match="'a' is not known: this engine was loaded without any"):
        add(harness(adapters={}), "r", [1], "a")


def test_scopes_cover_tenant_contents_and_scales() -> None:
    a, again = adapter_set("a"), {"a": "trained again", "copy of a": "content of a"}
    scopes = [
        scope_of(""),
        scope_of("x"),
        scope_of("", a, CONTENTS),
        scope_of("x", a, CONTENTS),
        scope_of("", a, again),
        scope_of("", adapter_set({"a": 0.5}), CONTENTS),
        scope_of("", adapter_set({"a": 1.0, "b": 1.0}), CONTENTS),
        scope_of("", adapter_set({"a": 1.0, "b": 0.5}), CONTENTS),
        scope_of("", adapter_set({"a": 0.5, "b": 1.0}), CONTENTS),
    ]
    assert scopes[0] == ""
    assert len(set(scopes)) == len(scopes)
    assert [len(scope) for scope in scopes] == [0, 32] + [64] * 7
    assert scope_of("", adapter_set("copy of a"), again) == scope_of("", a, CONTENTS), "names do not matter"


def test_a_scope_belongs_to_its_tenant_whatever_the_adapters() -> None:
    a = adapter_set("a")
    for tenant in ("", "x"):
        assert is_tenant_s(scope_of(tenant, a, CONTENTS), scope_of(tenant))
        assert is_tenant_s(scope_of(tenant), scope_of(tenant))
    assert not is_tenant_s(scope_of("x", a, CONTENTS), scope_of(""))
    assert not is_tenant_s(scope_of("", a, CONTENTS), scope_of("x"))


# --- KV is kept apart ---


def test_nothing_is_reused_under_other_adapters_and_everything_under_the_same() -> None:
    to = harness()
    for index, adapters in enumerate(["a", "b", (), {"a": 0.5}, {"a": 1.0, "b": 1.0}]):
        assert ask(to, f"first {index}", PROMPT, adapters) == 0
        assert ask(to, f"again {index}", PROMPT, adapters) == len(PROMPT) - 1
    assert ask(to, "a once more", PROMPT, {"a": 1.0}) == len(PROMPT) - 1
    assert to.answer("first 0") != to.answer("first 1"), "the adapters make no difference"


def test_requests_that_arrive_together_share_a_prompt_with_their_own_kind_only() -> None:
    to = harness()
    kinds = ["a", "b", (), {"a": 0.5}]
    for index in range(8):
        add(to, f"r{index}", PROMPT, kinds[index % 4])
    to.run()
    to.assert_all_right()
    assert [to.usage(f"r{index}").cached_tokens for index in range(8)] == [0] * 4 + [len(PROMPT) - 1] * 4


def test_a_retrained_adapter_finds_nothing_of_the_one_before_under_the_same_name() -> None:
    tiers = {"cache_ram": 10**9, "cache_disk": 10**9, "segment_sizes": FAKE_SIZES}
    store = FakeStore()
    to = harness(store=store, **tiers)
    ask(to, "r", PROMPT, "a")
    to.run()
    retrained = harness(store=store.restarted(), **tiers, adapters={"a": "trained again"})
    assert ask(retrained, "r", PROMPT, "a") == 0
    same = harness(store=store.restarted(), **tiers, adapters={"a": "content of b", "renamed": "content of a"})
    assert ask(same, "r", PROMPT, "renamed") == len(PROMPT) - 1
    assert same.usage("r").cached_disk_tokens == len(PROMPT) - 1


def test_lookups_pins_and_clearing_go_by_adapters_too() -> None:
    to = harness(store=FakeStore(), cache_ram=10**9, segment_sizes=FAKE_SIZES)
    ask(to, "mine", PROMPT, "a", tenant="x")
    ask(to, "theirs", PROMPT, "a", tenant="y")
    layout, a = PromptLayout.of_text(PROMPT), adapter_set("a")
    scope = to.scheduler.scope_of("x", a)
    assert to.scheduler.look_up(layout, scope).cached_tokens == len(PROMPT) - 1
    assert to.scheduler.look_up(layout, to.scheduler.scope_of("x")).cached_tokens == 0
    to.run()
    assert to.scheduler.pin(layout, scope, until=10**6) >= len(PROMPT)
    assert to.scheduler.pin(layout, to.scheduler.scope_of("x"), until=10**6) == 0
    assert to.scheduler.clear_cache(to.scheduler.scope_of("x")) > 0
    assert to.scheduler.look_up(layout, scope).cached_tokens == 0
    assert to.scheduler.look_up(layout, to.scheduler.scope_of("y", a)).cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("kind", [MemoryKind(), MemoryKind(window=16), MemoryKind(has_state=True)])
def test_drafts_may_be_wrong_under_adapters_and_answers_are_not(kind: MemoryKind) -> None:
    """The draft model has none; rejected rows are evaluated again with those of their step."""
    to = harness(memory=kind, speculation=4, draft_n_ctx=2000)
    for index in range(6):
        add(to, f"r{index}", [*PROMPT[:20], index], ["a", "b", ()][index % 3], most=30)
    to.run()
    to.assert_all_right()
    assert to.usage("r0").drafted_tokens > to.usage("r0").accepted_tokens
    assert to.usage("r2").accepted_tokens > 8


# --- turns ---


def test_sets_of_adapters_take_turns_step_by_step() -> None:
    to = harness()
    for index, adapters in enumerate(["a", "a", "b", ()]):
        add(to, f"r{index}", [index, 1, 2], adapters, most=10)
    to.run()
    to.assert_all_right()
    order = steps_of(to)
    assert order[:6] == [(("a", 1.0),), (("b", 1.0),), ()] * 2
    decoding = [plan for plan in to.plans if plan.adapters == (("a", 1.0),) and plan.decode]
    assert all(len(plan.decode) == 2 for plan in decoding), "those of one set run together"


def test_one_set_never_waits() -> None:
    to = harness()
    for index in range(4):
        add(to, f"r{index}", [index, 1, 2], "a", most=10)
    to.run()
    assert len(steps_of(to)) == 10


def test_a_set_whose_requests_have_ended_loses_its_turn() -> None:
    to = harness()
    add(to, "short", [1, 2], "b", most=2)
    add(to, "long", [1, 2], "a", most=8)
    to.run()
    assert steps_of(to)[4:] == [(("a", 1.0),)] * 6


def test_a_set_waits_for_each_other_set_once_however_many_new_ones_come() -> None:
    turns = Turns(lambda: BatchPlanner(quantum=8))
    old = Turn(adapter_set("old"))
    waited = 0
    for step in range(50):
        newcomer = Turn(adapter_set(f"new {step}"))
        first, *_ = turns.in_turn([old, Turn(adapter_set("steady")), newcomer])
        turns.served(first)
        waited = 0 if first == old else waited + 1
        assert waited <= 3


def test_nobody_starves_in_a_crowd_of_sets_and_prompts() -> None:
    to = harness(max_num_batched_tokens=16, prefill_rows_beside_decode=8, prefill_quantum=8, n_ctx=4000)
    for index in range(8):
        add(to, f"r{index}", [(index + at) % 19 for at in range(150)], ["a", "b"][index % 2], most=20)
    served: dict[int, list[int]] = {}
    while to.scheduler.has_work:
        plan, _ = to.step()
        for sequence_id in plan.sequence_ids():
            served.setdefault(sequence_id, []).append(len(to.plans))
    to.assert_all_right()
    gaps = [later - earlier for steps in served.values() for earlier, later in pairwise(steps)]
    assert max(gaps) <= 2 * 8, "two sets, four prompts each that get a quantum or two a step"


def test_a_long_prompt_with_other_adapters_holds_up_nobody_s_next_token() -> None:
    """As it would not in the same step: others' decodes wait for one piece of it."""
    to = harness(max_num_batched_tokens=128, prefill_rows_beside_decode=16)
    add(to, "decodes", [1, 2, 3], most=40)
    to.step()
    add(to, "long", [at % 19 for at in range(400)], "a")
    to.run()
    to.assert_all_right()
    while_decoding = [
        plan for earlier, plan in pairwise(to.plans) if plan.adapters and (earlier.decode and not earlier.adapters)
    ]
    assert len(while_decoding) > 10
    for plan in while_decoding:
        assert sum(rows.tokens.size for rows in plan.prefill if isinstance(rows, PrefillRows)) <= 16


def test_a_set_that_can_do_nothing_passes_its_turn_on() -> None:
    """A media span that finds no cells waits; those with other adapters go on, and nobody is pushed out for it."""
    to = harness(n_ctx=67, n_seq_max=9, max_num_seqs=9)
    for index in range(8):
        add(to, f"small {index}", [index, 2], "a", most=4)
    to.step()
    image = PromptLayout([PromptSegment.text([1]), PromptSegment.media("image", 40, 40), PromptSegment.text([2])])
    to.add("image", image, SamplingParams(max_tokens=4, adapters="b", ignore_eos=True))
    with patch.object(to.scheduler._parking, "park_one", side_effect=AssertionError("somebody was pushed out")):
        to.run()
    to.assert_all_right()
    a, b = adapter_set("a"), adapter_set("b")
    assert steps_of(to)[:6] == [a, a, b, a, a, b], "the image had no room at its second turn"


def test_a_full_memory_ends_nobody_whatever_the_adapters() -> None:
    to = harness(n_ctx=80, n_seq_max=6, max_num_seqs=6)
    for index in range(6):
        add(to, f"r{index}", [index] * 8, ["a", "b", ()][index % 3], most=30)
    to.run()
    to.assert_all_right()


def test_suspects_of_a_failed_step_run_alone_and_with_their_own_adapters() -> None:
    to = harness()
    failing = iter([False, False, True])

    def faults(_plan: StepPlan) -> StepFailure | None:
        return StepFailure(FailureKind.FAILED, "on demand") if next(failing, False) else None

    to.runner.faults = faults
    for index in range(4):
        add(to, f"r{index}", [index, 1, 2], ["a", "b"][index % 2], most=8)
    to.run()
    to.assert_all_right()


def test_drafters_that_look_up_text_serve_every_adapter() -> None:
    to = harness(speculation=4)
    loop = [1, 2, 3, 4] * 10
    ask(to, "plain", loop)
    assert ask(to, "adapted", loop, "a") == 0
