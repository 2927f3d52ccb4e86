"""What is computed once is not computed again: forks, turns that come back, pools that are too small, restarts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.core.adapters import scope_of
from forerun.core.cache_report import WhyNotMore
from forerun.core.config import SchedulerConfig
from forerun.core.memory import MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import PrefillRows, RestoreSegment, StoreSegment
from forerun.testing import FAKE_SIZES, FakeDrafter, FakeRunner, FakeStore, FakeVocabulary
from tests.core.harness import Harness

END = 31
VOCABULARY = FakeVocabulary([*(bytes([97 + index % 26]) for index in range(31)), b""], end_tokens=[END])
KINDS = {"dense": MemoryKind(), "window": MemoryKind(window=16), "state": MemoryKind(has_state=True)}
kinds = pytest.mark.parametrize("kind", KINDS)


def harness(kind: str = "dense", *, store: FakeStore | None = None, **limits: object) -> Harness:
    given: dict[str, object] = {
        "n_ctx": 4096,
        "n_seq_max": 24,
        "max_num_seqs": 8,
        "memory": KINDS[kind],
        "cache_ram": 10**9,
        "segment_sizes": FAKE_SIZES,
    }
    config = SchedulerConfig(**(given | limits))  # type: ignore[arg-type]
    store = store or FakeStore(config.cache_ram)
    drafter = FakeDrafter(config.draft_n_ctx, VOCABULARY.size, 1.0) if config.draft_n_ctx else None
    runner = FakeRunner(config.n_ctx, VOCABULARY.size, kind=config.memory, store=store, drafter=drafter)
    made = Harness(config, runner, VOCABULARY)
    made.scheduler = Scheduler(config, VOCABULARY, stored=store.scan())
    return made


def tokens(seed: int, count: int) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(0, END, count).tolist()
    return drawn


def ask(to: Harness, name: str, prompt: Sequence[int], most: int = 8, **options: object) -> tuple[int, ...]:
    """One request alone; its answer is the oracle's."""
    to.add(name, list(prompt), SamplingParams(max_tokens=most, ignore_eos=True), **options)
    to.run()
    assert to.answer(name) == to.expected(name)
    return to.tokens(name)


def rows_of(to: Harness, name: str, prompt: Sequence[int], most: int = 8) -> tuple[int, tuple[int, ...]]:
    """Rows evaluated for a request beyond those that gave its output tokens."""
    before = to.runner.rows
    said = ask(to, name, prompt, most)
    return to.runner.rows - before - (len(said) - 1), said


@kinds
def test_eight_at_once_compute_what_they_share_once(kind: str) -> None:
    to = harness(kind)
    shared = tokens(1, 600)
    for index in range(8):
        to.add(f"r{index}", [*shared, index, *tokens(index, 9)], SamplingParams(max_tokens=4, ignore_eos=True))
    to.run()
    to.assert_all_right()
    decoded = 8 * 3
    quantum = to.config.max_num_batched_tokens
    assert to.runner.rows - decoded <= 600 + 8 * 10 + quantum


@kinds
def test_every_turn_computes_its_new_tokens_only(kind: str) -> None:
    to = harness(kind)
    prompt = [*tokens(1, 50), END]
    _, said = rows_of(to, "turn 0", prompt)
    for turn in range(1, 5):
        new = [END, *tokens(turn, 12), END]
        computed, answer = rows_of(to, f"turn {turn}", [*prompt, *said, *new])
        assert computed <= len(new) + 1
        prompt, said = [*prompt, *said, *new], answer


@kinds
def test_a_turn_whose_last_answer_was_shortened_is_computed_from_the_change_on(kind: str) -> None:
    """As clients do that take the reasoning out of what was said."""
    to = harness(kind)
    prompt = [*tokens(1, 80), END, *tokens(2, 5)]
    _, said = rows_of(to, "turn 0", prompt, most=40)
    for turn in range(1, 4):
        new = [*said[-5:], END, *tokens(turn + 10, 12), END, 1, 2]
        computed, answer = rows_of(to, f"turn {turn}", [*prompt, *new], most=40)
        assert computed <= len(new) + 1
        prompt, said = [*prompt, *new], answer


@kinds
def test_twelve_conversations_in_a_pool_for_four_compute_new_tokens_only(kind: str) -> None:
    to = harness(kind, n_ctx=400, n_seq_max=6, max_num_seqs=4)
    prompts = [[*tokens(index, 80), END] for index in range(12)]
    for turn in range(3):
        for index, prompt in enumerate(prompts):
            computed, said = rows_of(to, f"{index}, turn {turn}", prompt)
            if turn:
                assert computed <= 12 + 1 + 1
            prompts[index] = [*prompt, *said, END, *tokens(100 * turn + index, 10), END]
    restored = sum(isinstance(op, RestoreSegment) for plan in to.plans for op in plan.operations)
    assert restored >= 16


@kinds
def test_a_restart_serves_yesterday_s_conversations_from_disk(kind: str) -> None:
    store = FakeStore()
    to = harness(kind, store=store, cache_disk=10**9)
    prompts = [[*tokens(index, 700), END] for index in range(3)]
    answers = [ask(to, f"{index}", prompt) for index, prompt in enumerate(prompts)]
    to.run()
    again = harness(kind, store=store.restarted(), cache_disk=10**9)
    for index, (prompt, said) in enumerate(zip(prompts, answers, strict=True)):
        computed, _ = rows_of(again, f"{index}", [*prompt, *said, END, 1, 2])
        assert computed <= 3 + 1
        assert again.usage(f"{index}").cached_disk_tokens >= 700


def test_the_draft_comes_back_with_the_target() -> None:
    to = harness(draft_n_ctx=4096, speculation=4, n_ctx=260, n_seq_max=3, max_num_seqs=2)
    prompt = [*tokens(1, 100), END]
    said = ask(to, "first", prompt, 20)
    ask(to, "other", tokens(2, 200))
    ask(to, "another", tokens(3, 200))
    assert to.runner.drafter is not None
    before = to.runner.drafter.rows
    ask(to, "second", [*prompt, *said, END, 3], 20)
    assert to.usage("second").cached_host_tokens >= 100
    assert to.runner.drafter.rows - before < 60, "the draft ran through the prompt again"
    assert to.usage("second").accepted_tokens > 8


def test_only_what_is_new_is_stored() -> None:
    to = harness()
    shared = tokens(1, 300)
    ask(to, "a", [*shared, 1, 2, 3])
    ask(to, "b", [*shared, 4, 5, 6])
    to.run()
    stored = [op.header for plan in to.plans for op in plan.operations if isinstance(op, StoreSegment)]
    assert [header.start.logical_tokens for header in stored] == [0, 300]
    assert stored[1].parent == stored[0].key


def test_tenants_share_nothing() -> None:
    to = harness()
    prompt = tokens(1, 200)
    ask(to, "mine", prompt, tenant="a")
    ask(to, "theirs", prompt, tenant="b")
    ask(to, "everyone's", prompt)
    assert to.usage("theirs").cached_tokens == to.usage("everyone's").cached_tokens == 0
    ask(to, "mine again", prompt, tenant="a")
    assert to.usage("mine again").cached_tokens == 199


def test_idle_prefixes_leave_the_pool_once_they_cost_others_more_than_coming_back_would() -> None:
    to = harness()
    for index in range(5):
        ask(to, f"{index}", tokens(index, 200))
    to.add("runs", tokens(9, 20), SamplingParams(max_tokens=100, ignore_eos=True))
    to.run()
    assert to.scheduler.pool.target_cells.used <= 130
    computed, _ = rows_of(to, "back", [*tokens(0, 200), 1])
    assert computed <= 2
    to.assert_all_right()


def test_idle_prefixes_leave_the_pool_for_prompts_too() -> None:
    """A row of a prompt walks over idle cells as a decoded one does: 8,000 of them make a prompt half as slow again."""
    to = harness()
    ask(to, "idle", tokens(0, 200))
    for index in range(1, 5):
        to.add(f"{index}", tokens(index, 400), SamplingParams(max_tokens=1))
        to.run()
    lengths = [prefix.layout.logical_tokens for prefix in to.scheduler.pool.idle.values()]
    assert lengths
    assert min(lengths) >= 400, "the 200 tokens of the first one have left"
    computed, _ = rows_of(to, "back", [*tokens(0, 200), 1])
    assert computed <= 2


def test_an_idle_prefix_is_gone_before_a_long_prompt_s_first_rows_are_computed() -> None:
    """Behind its cells they would walk over those to their end: all up to the last cell in use are walked over."""
    to = harness()
    ask(to, "before", tokens(1, 700))
    to.add("long", tokens(2, 900), SamplingParams(max_tokens=4, ignore_eos=True))
    while not (plan := to.step()[0]).prefill:
        pass
    assert to.scheduler.pool.idle_ids == 0
    assert to.runner.memory.used == sum(rows.tokens.size for rows in plan.prefill if isinstance(rows, PrefillRows))
    to.run()
    computed, _ = rows_of(to, "again", [*tokens(1, 700), 3])
    assert computed <= 2, "and it comes back from where it is stored"


def test_alone_nothing_leaves_the_pool() -> None:
    to = harness()
    said = ask(to, "first", tokens(1, 200))
    ask(to, "second", [*tokens(1, 200), *said, 1])
    assert to.usage("second").cached_host_tokens == 0
    assert to.usage("second").cached_tokens == 200 + len(said) - 1


def test_a_budget_holds_whatever_is_said() -> None:
    store = FakeStore(20_000)
    to = harness(store=store, cache_ram=20_000, n_ctx=400, n_seq_max=4, max_num_seqs=2)
    for index in range(40):
        ask(to, f"{index}", tokens(index, 60 + 7 * index % 200))
        assert to.scheduler.stats.host_bytes <= 20_000
        assert store.nbytes <= 20_000


def test_an_entry_larger_than_the_budget_is_skipped() -> None:
    to = harness(cache_ram=500)
    ask(to, "large", tokens(1, 300))
    to.run()
    assert to.scheduler.stats.host_bytes <= 500


# --- looking in ---


def test_looking_up_says_how_much_would_hit_where_and_changes_nothing() -> None:
    store = FakeStore()
    to = harness(store=store, n_ctx=400, n_seq_max=3, max_num_seqs=2, cache_disk=10**9)
    prompt = tokens(1, 150)
    assert to.scheduler.look_up(PromptLayout.of_text(prompt)).cached_tokens == 0
    ask(to, "a", prompt)
    found = to.scheduler.look_up(PromptLayout.of_text([*prompt, 1]))
    assert (found.resident_tokens, found.host_tokens, found.disk_tokens) == (150, 0, 0)
    ask(to, "b", tokens(2, 300))
    found = to.scheduler.look_up(PromptLayout.of_text([*prompt, 1]))
    assert (found.resident_tokens, found.host_tokens, found.disk_tokens) == (0, 150, 0)
    to.run()
    again = harness(store=store.restarted(), cache_disk=10**9)
    found = again.scheduler.look_up(PromptLayout.of_text([*prompt, 1]))
    assert (found.resident_tokens, found.host_tokens, found.disk_tokens) == (0, 0, 150)
    assert again.scheduler.look_up(PromptLayout.of_text([*prompt, 1]), scope_of("x")).cached_tokens == 0


def test_why_no_more_was_reused_is_told() -> None:
    to = harness(n_ctx=700, n_seq_max=4, max_num_seqs=2, cache_ram=13_000)
    prompt = tokens(1, 200)

    def why(name: str) -> WhyNotMore:
        report = to.scheduler.explain(name)
        assert report is not None
        return report.why

    ask(to, "first", prompt)
    assert why("first") is WhyNotMore.UNKNOWN
    ask(to, "same", prompt)
    assert why("same") is WhyNotMore.NOTHING
    other = [*prompt[:150], (prompt[150] + 1) % 31, 5, 6]
    ask(to, "other", other)
    report = to.scheduler.explain("other")
    assert report is not None
    assert (report.why, report.known_tokens, report.cached_tokens) == (WhyNotMore.DIFFERS, 150, 150)
    assert list(report.prompt_around) == other[138:]
    assert list(report.other_after) == prompt[150:162]
    ask(to, "tiny share", [*prompt[:3], *tokens(8, 300)])
    assert why("tiny share") is WhyNotMore.SMALL
    for index in range(4):
        ask(to, f"pushes {index}", tokens(50 + index, 500))
    ask(to, "back", [*prompt, 1])
    report = to.scheduler.explain("back")
    assert report is not None
    assert report.why is WhyNotMore.EVICTED
    assert report.evicted_for.startswith("pushes ")
    assert to.scheduler.explain("never heard of") is None


def test_what_is_pinned_stays_until_then() -> None:
    to = harness(n_ctx=700, n_seq_max=4, max_num_seqs=2, cache_ram=26_000)
    prompt = tokens(1, 200)
    ask(to, "system", prompt)
    to.run()
    assert to.scheduler.pin(PromptLayout.of_text(prompt), "", until=10**6) >= 200
    for index in range(6):
        ask(to, f"pushes {index}", tokens(50 + index, 500))
    ask(to, "back", [*prompt, 1])
    assert to.usage("back").cached_tokens == 200


def test_pins_take_half_of_the_budget_at_most() -> None:
    to = harness(n_ctx=2000, cache_ram=26_000, segment_tokens=64)
    prompt = tokens(1, 900)
    ask(to, "large", prompt)
    to.run()
    pinned = to.scheduler.pin(PromptLayout.of_text(prompt), "", until=10**6)
    assert 0 < pinned * 24 <= 13_000


def test_a_pin_ends_with_what_it_held() -> None:
    """Its segment leaves host memory and comes back from disk before the time of the pin is over: nothing breaks."""
    to = harness(cache_disk=10**9, n_ctx=700, n_seq_max=4, max_num_seqs=2)
    prompt = tokens(1, 200)
    ask(to, "first", prompt)
    to.run()
    until = len(to.plans) + 100
    assert to.scheduler.pin(PromptLayout.of_text(prompt), "", until) > 0
    tiers = to.scheduler.pool.tiers
    assert tiers is not None
    for segment in list(tiers.segments()):
        tiers._leave_host(segment)  # as where a fetch is refused
    ask(to, "pushes it out of the pool", tokens(2, 650))
    ask(to, "back", [*prompt, 1])
    assert to.usage("back").cached_disk_tokens == 200
    while len(to.plans) <= until:
        ask(to, f"later {len(to.plans)}", tokens(len(to.plans), 30))
    assert to.scheduler.stats.host_bytes


def test_what_became_invalid_is_not_stored() -> None:
    to = harness("state")
    prompt = [*tokens(1, 100), END, *tokens(2, 100)]
    to.add("runs", prompt, SamplingParams(max_tokens=5, ignore_eos=True))
    to.step()
    to.scheduler.pool.invalidate_reuse()
    to.run()
    ask(to, "again", [*prompt, 1])
    assert to.usage("again").cached_tokens == 0


def test_a_cleared_cache_knows_nothing() -> None:
    store = FakeStore()
    to = harness(store=store, cache_disk=10**9)
    ask(to, "a", tokens(1, 100))
    ask(to, "b", tokens(2, 100), tenant="x")
    to.run()
    assert to.scheduler.clear_cache(scope_of("x")) == 2
    to.run()
    ask(to, "a again", tokens(1, 100))
    ask(to, "b again", tokens(2, 100), tenant="x")
    assert (to.usage("a again").cached_tokens, to.usage("b again").cached_tokens) == (99, 0)
    to.scheduler.clear_cache()
    to.run()
    assert not store.host
    assert not store.disk
    assert to.scheduler.stats.host_bytes == to.scheduler.stats.disk_bytes == to.scheduler.stats.used_cells == 0


def test_media_are_restored_whole() -> None:
    to = harness(n_ctx=400, n_seq_max=3, max_num_seqs=2, segment_tokens=16)
    image = PromptSegment.media("image", 40, 5)
    prompt = PromptLayout([PromptSegment.text(tokens(1, 50)), image, PromptSegment.text(tokens(2, 30))])
    to.add("first", prompt, SamplingParams(max_tokens=5, ignore_eos=True))
    to.run()
    ask(to, "other", tokens(3, 300))
    to.add("second", prompt.extended([PromptSegment.text([1])]), SamplingParams(max_tokens=5, ignore_eos=True))
    to.run()
    to.assert_all_right()
    assert to.usage("second").cached_host_tokens == 120


def test_what_a_request_is_about_to_get_back_does_not_go_to_make_room_for_another_s() -> None:
    """An idle prefix has to go for it, and what of that is not stored yet is stored first: host memory is full."""
    size = FAKE_SIZES.predict(64)
    to = harness(
        n_ctx=150, n_seq_max=1, max_num_seqs=1, cache_ram=size + size // 2, segment_tokens=64, retention="fifo"
    )
    first, other = tokens(1, 64), tokens(2, 64)
    to.add("first", [*first, 1], SamplingParams(max_tokens=1, ignore_eos=True))
    to.run()
    to.add("other", [*other, 1], SamplingParams(max_tokens=1, ignore_eos=True))
    to.run(until=lambda: to.deltas["other"] != [])
    to.add("again", [*first, 2], SamplingParams(max_tokens=1, ignore_eos=True))
    to.run()
    to.assert_all_right()
    assert to.scheduler.stats.quarantines == 0
    assert to.usage("again").cached_host_tokens == 64
