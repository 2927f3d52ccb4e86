"""Models are loaded when somebody asks for them and leave where there is no room, never under a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forerun.engine.health import EngineState
from forerun.errors import InvalidConfigError, ModelLoadError, OverloadedError, RequestTimeoutError
from forerun.server.model_entry import ModelEntry, ServedModel, called
from forerun.server.problems import ProblemError
from forerun.server.registry import ModelRegistry
from forerun.server.residency import Footprint, Resident, who_leaves
from tests.server.loading import FakeModels, FakeSource

SMALL = Footprint(100, 0)


def with_models(names: str, check: Callable[[FakeModels], Awaitable[None]], **options: Any) -> list[str]:
    """What was loaded and closed while `check` ran, and before everything was closed."""

    async def main() -> list[str]:
        models = FakeModels(names, **options)
        try:
            await check(models)
            models.registry.check_integrity()
            return models.done[:]
        finally:
            await models.close()

    return asyncio.run(main())


# --- who leaves ---


def resident(name: str, *, last_used: float, is_busy: bool = False, footprint: Footprint = SMALL) -> Resident:
    return Resident(name, footprint, is_busy, last_used)


def test_nobody_leaves_while_there_is_room() -> None:
    assert who_leaves([resident("a", last_used=1)], SMALL, most=2, free=100) is None
    assert who_leaves([resident("a", last_used=1)], SMALL, most=None, free=None) is None
    assert who_leaves([], SMALL, most=1, free=0) is None


@pytest.mark.parametrize(("most", "free"), [(2, None), (None, 99), (2, 1000)])
def test_the_least_recently_used_one_leaves_and_busy_ones_last(most: int | None, free: int | None) -> None:
    idle = [resident("a", last_used=3), resident("b", last_used=2)]
    assert who_leaves(idle, SMALL, most=most, free=free) == "b"
    assert who_leaves([idle[0], resident("b", last_used=2, is_busy=True)], SMALL, most=most, free=free) == "a"
    busy = [resident("a", last_used=3, is_busy=True), resident("b", last_used=2, is_busy=True)]
    assert who_leaves(busy, SMALL, most=most, free=free) == "b"


def test_nobody_leaves_for_a_model_that_would_not_fit_alone() -> None:
    assert who_leaves([resident("a", last_used=1)], Footprint(201, 0), most=None, free=100) is None
    assert who_leaves([resident("a", last_used=1)], Footprint(200, 0), most=None, free=100) == "a"


def test_weights_that_are_mapped_from_files_are_not_free_though_the_system_counts_them_so() -> None:
    loaded = resident("a", last_used=1, footprint=Footprint(total=900, mapped=800))
    assert who_leaves([loaded], Footprint(300, 300), most=None, free=1000) == "a"
    assert who_leaves([loaded], Footprint(200, 200), most=None, free=1000) is None


# --- names ---


def entries_of(*models: ServedModel) -> list[ModelEntry]:
    return [ModelEntry(model, FakeSource(model.id, [])) for model in models]


def test_a_model_is_called_by_its_names_and_with_an_adapter_by_both() -> None:
    entries = entries_of(
        ServedModel("a", "a-q4.gguf", ("gpt",), ("sql", "law")), ServedModel("b", "b-q4.gguf", (), ("law",))
    )
    for name in ("a", "gpt", "a-q4.gguf", "a-q4"):
        found = called(name, entries)
        assert found is not None
        assert (found.id, found.adapter) == ("a", None)
    for name, meant in {"a:sql": "a:sql", "sql": "a:sql", "b:law": "b:law", "a:law": "a:law"}.items():
        found = called(name, entries)
        assert found is not None
        assert found.id == meant


def test_what_would_mean_two_models_means_none_and_what_was_given_as_a_name_comes_first() -> None:
    entries = entries_of(ServedModel("a", "same.gguf", (), ("law",)), ServedModel("b", "same.gguf", (), ("law", "a")))
    assert called("same.gguf", entries) is None
    assert called("law", entries) is None
    found = called("a", entries)
    assert found is not None
    assert (found.id, found.adapter) == ("a", None)


@pytest.mark.parametrize("second", [ServedModel("a"), ServedModel("b", "", ("a",)), ServedModel("a:sql")])
def test_two_models_of_one_name_are_refused(second: ServedModel) -> None:
    with pytest.raises(InvalidConfigError, match="two models are called 'a"):
        ModelRegistry(entries_of(ServedModel("a", adapters=("sql",)), second))


# --- loading and unloading ---


def test_a_model_is_loaded_once_for_all_that_ask_for_it() -> None:
    async def check(models: FakeModels) -> None:
        source = models.sources["a"]
        source.is_free.clear()
        asking = [models.asking("a") for _ in range(5)]
        await models.until(lambda: models.entries["a"].health.progress == 0.25)
        assert models.entries["a"].health.state is EngineState.LOADING
        source.is_free.set()
        assert len({id(await one) for one in asking}) == 1
        assert models.entries["a"].leases == 5
        await models.use("a")
        for _ in asking:
            models.registry.release(models.entries["a"])

    assert with_models("ab", check) == ["load a"]


def test_the_least_recently_used_model_makes_room() -> None:
    async def check(models: FakeModels) -> None:
        for name in "abac":
            await models.use(name)
        assert [models.entries[name].opened is None for name in "abc"] == [False, True, False]
        assert models.entries["b"].health.state is EngineState.UNLOADED

    assert with_models("abc", check, max_loaded=2) == ["load a", "load b", "close b", "load c"]


def test_models_leave_when_memory_requires_it() -> None:
    free = [1000]

    async def check(models: FakeModels) -> None:
        for source in models.sources.values():
            source.footprint = Footprint(400, 0)
        await models.use("a")
        free[0] = 600
        await models.use("b")
        free[0] = 300
        await models.use("c")

    assert with_models("abc", check, free=lambda: free[0]) == ["load a", "load b", "close a", "close b", "load c"]


def test_a_model_that_somebody_has_stays_until_he_is_done_and_takes_nobody_else_meanwhile() -> None:
    async def check(models: FakeModels) -> None:
        held = await models.registry.acquire(models.entries["a"])
        other = models.asking("b")
        await models.until(lambda: models.entries["a"].is_leaving)
        late = models.asking("a")
        await models.until(lambda: len(models.entries["a"].waiters) == 1)
        assert held.engine.health.is_alive
        assert models.done == ["load a"]
        models.registry.release(models.entries["a"])
        await other
        assert models.done == ["load a", "close a", "load b"]
        models.registry.release(models.entries["b"])
        assert await late is not held
        models.registry.release(models.entries["a"])

    assert with_models("ab", check, max_loaded=1) == ["load a", "close a", "load b", "close b", "load a"]


def test_another_model_that_nobody_has_any_more_leaves_instead_of_one_that_somebody_has() -> None:
    async def check(models: FakeModels) -> None:
        for name in "ab":
            await models.registry.acquire(models.entries[name])
        third = models.asking("c")
        await models.until(lambda: models.entries["a"].is_leaving)
        late = models.asking("a")
        await models.until(lambda: len(models.entries["a"].waiters) == 1)
        models.registry.release(models.entries["b"])
        await third
        await late
        for name in "aac":
            models.registry.release(models.entries[name])

    assert with_models("abc", check, max_loaded=2) == ["load a", "load b", "close b", "load c"]


def test_a_model_that_is_loaded_at_once_may_take_longer_than_answers() -> None:
    async def check(models: FakeModels) -> None:
        models.sources["a"].is_free.clear()
        loading = asyncio.create_task(models.registry.load(models.entries["a"]))
        with pytest.raises(RequestTimeoutError):
            await models.use("a")
        models.sources["a"].is_free.set()
        await loading
        models.sources["b"].error = ModelLoadError("b.gguf: is no model")
        with pytest.raises(ModelLoadError, match=r"^b.gguf: is no model$"):
            await models.registry.load(models.entries["b"])

    with_models("ab", check, patience=0.05)


def test_nobody_leaves_for_a_request_that_is_gone() -> None:
    async def check(models: FakeModels) -> None:
        await models.registry.acquire(models.entries["a"])
        gone = models.asking("b")
        await models.until(lambda: models.entries["a"].is_leaving)
        late = models.asking("a")
        await models.until(lambda: len(models.entries["a"].waiters) == 1)
        gone.cancel()
        await late
        assert models.entries["b"].health.state is EngineState.UNLOADED
        for _ in range(2):
            models.registry.release(models.entries["a"])

    assert with_models("ab", check, max_loaded=1) == ["load a"]


def test_a_model_that_was_given_to_somebody_who_is_gone_is_free_again() -> None:
    async def check(models: FakeModels) -> None:
        source, entry = models.sources["a"], models.entries["a"]
        source.is_free.clear()
        gone, stays = models.asking("a"), models.asking("a")
        await models.until(lambda: len(entry.waiters) == 2)
        give = entry.give_to_waiters

        def give_and_go(now: float) -> None:
            give(now)
            gone.cancel()

        entry.give_to_waiters = give_and_go  # type: ignore[method-assign]
        source.is_free.set()
        await stays
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert entry.leases == 1
        models.registry.release(entry)

    with_models("a", check)


def test_case_o4_those_who_wait_for_a_model_are_counted_and_one_too_many_is_refused() -> None:
    async def check(models: FakeModels) -> None:
        models.sources["a"].is_free.clear()
        waiting = [models.asking("a") for _ in range(4)]
        await models.until(lambda: len(models.entries["a"].waiters) == 4)
        with pytest.raises(OverloadedError, match="4 requests wait for 'a' to be loaded, no more may"):
            await models.use("a")
        models.sources["a"].is_free.set()
        for one in waiting:
            await one
            models.registry.release(models.entries["a"])

    with_models("a", check, max_waiting=4)


def test_who_waits_longer_than_an_answer_may_take_is_told() -> None:
    async def check(models: FakeModels) -> None:
        models.sources["a"].is_free.clear()
        with pytest.raises(RequestTimeoutError, match="'a' was not loaded in time, within"):
            await models.use("a")

    with_models("a", check, patience=0.05)


def test_a_model_that_cannot_be_loaded_is_told_to_all_that_wait_and_not_tried_again_at_once() -> None:
    now = [0.0]

    async def check(models: FakeModels) -> None:
        source = models.sources["a"]
        source.error = ModelLoadError("a.gguf: too little memory")
        refusals = await asyncio.gather(models.use("a"), models.use("a"), return_exceptions=True)
        for refusal in refusals:
            assert isinstance(refusal, ProblemError)
            assert refusal.problem.status == 503
            assert "'a' could not be loaded: a.gguf: too little memory" in str(refusal)
            assert refusal.__cause__ is source.error
        assert models.entries["a"].health.state is EngineState.FAILED
        source.error = None
        with pytest.raises(ProblemError):
            await models.use("a")
        now[0] = 60.0
        await models.use("a")

    assert with_models("a", check, clock=lambda: now[0]) == ["load a", "give up a", "load a"]


def test_what_nobody_foresaw_while_a_model_is_loaded_leaves_the_others_alone() -> None:
    async def check(models: FakeModels) -> None:
        models.sources["a"].error = ZeroDivisionError("a fault")  # type: ignore[assignment]
        with pytest.raises(ProblemError, match="ZeroDivisionError"):
            await models.use("a")
        await models.use("b")

    with_models("ab", check)


@pytest.mark.parametrize("closes", [False, True])
def test_stopping_gives_up_what_is_being_loaded_and_refuses_who_waits(closes: bool) -> None:  # noqa: FBT001
    async def check(models: FakeModels) -> None:
        models.sources["a"].is_free.clear()
        waiting = models.asking("a")
        await models.until(lambda: models.done == ["load a"])
        if closes:
            await models.registry.close()
        else:
            models.registry.stop()
        with pytest.raises(OverloadedError, match="the server is being stopped"):
            await waiting
        with pytest.raises(OverloadedError):
            await models.use("b")
        await models.registry.close()

    assert with_models("ab", check) == ["load a", "give up a"]


def test_closing_ends_all_models_also_one_that_somebody_has() -> None:
    async def check(models: FakeModels) -> None:
        serving = await models.registry.acquire(models.entries["a"])
        await models.use("b")
        await models.registry.close()
        assert not serving.engine.health.is_alive
        models.registry.release(models.entries["a"])

    assert sorted(with_models("ab", check)) == ["close a", "close b", "load a", "load b"]
