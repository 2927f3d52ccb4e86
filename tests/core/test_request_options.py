"""Priorities, requests that leave the cache alone, and how far a prompt has been read."""

from __future__ import annotations

from forerun.core.config import SchedulerConfig
from forerun.core.request import SamplingParams
from tests.core.harness import Harness

PROMPT = list(range(10)) * 3


def test_a_higher_priority_is_admitted_first_and_equals_in_order() -> None:
    run = Harness(SchedulerConfig(n_ctx=256, max_num_seqs=1))
    run.add("first", [1, 2, 3], arrival=1000.0)
    run.step()
    for name, priority in [("a", 0), ("b", 5), ("low", -1), ("c", 5), ("d", 0)]:
        run.add(name, [1, 2, 3], priority=priority, arrival=1000.0)  # nobody ages
    run.run()
    finished = {delta[-1].usage.queue_ms if delta[-1].usage else 0: name for name, delta in run.deltas.items()}
    assert [finished[at] for at in sorted(finished)] == ["first", "b", "c", "a", "d", "low"]
    run.assert_all_right()


def test_a_request_that_leaves_the_cache_alone_takes_nothing_from_it_and_leaves_nothing() -> None:
    run = Harness(SchedulerConfig(n_ctx=256, speculation=4))
    run.add("before", PROMPT)
    run.run()
    idle = run.scheduler.stats.cached_prefixes
    drafted_from = repr(run.scheduler._drafting._texts)
    run.add("alone", [*PROMPT, 1], reuses_cache=False)
    run.step()
    run.add("beside", [*PROMPT, 1, 2], reuses_cache=False)
    run.run()
    assert run.usage("alone").cached_tokens == run.usage("beside").cached_tokens == 0
    assert run.scheduler.stats.cached_prefixes == idle
    assert repr(run.scheduler._drafting._texts) == drafted_from
    assert run.scheduler.explain("alone") is None
    run.add("after", [*PROMPT, 1, 2])
    run.run()
    assert run.usage("after").cached_tokens == len(PROMPT)
    run.assert_all_right()


def test_nobody_waits_for_or_forks_a_running_request_that_leaves_the_cache_alone() -> None:
    run = Harness(SchedulerConfig(n_ctx=256, max_num_batched_tokens=16))
    run.add("alone", PROMPT, SamplingParams(max_tokens=20), reuses_cache=False)
    run.step()
    run.add("other", PROMPT)
    run.run()
    assert run.usage("other").cached_tokens == 0
    run.assert_all_right()


def test_progress_is_reported_after_each_piece_of_a_prompt_that_asks_for_it() -> None:
    run = Harness(SchedulerConfig(n_ctx=256, max_num_batched_tokens=16))
    run.add("first", PROMPT[:20])
    run.run()
    run.add("told", PROMPT * 2, reports_progress=True)
    run.add("quiet", [5, *PROMPT])
    run.run()
    done = [delta.prefill_done for delta in run.deltas["told"]]
    assert done[0] is not None
    assert done[0][0] > 20, "what was reused counts"
    reported = [one for one in done if one is not None]
    assert reported == sorted(set(reported))
    assert {total for _, total in reported} == {60}
    assert done[len(reported) :] == [None] * 4, "with the first token the prompt has been read"
    assert not any(delta.prefill_done for delta in run.deltas["quiet"])
    run.assert_all_right()
