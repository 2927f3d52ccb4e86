"""What an engine gets where nobody says: as much as fits, and the same again in its own process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forerun import Engine
from forerun.compose import preflight, settled
from forerun.engine_config import EngineConfig
from forerun.errors import ModelError
from forerun.models.fit import TIGHT
from forerun.models.machine_memory import FreeMemory
from forerun.models.preflight import Preflight
from forerun.models.wanted import Limits

pytestmark = pytest.mark.model
GIB = 2**30


@dataclass(slots=True)
class Machine:
    """What it has free."""

    free: int | None = 10 * GIB

    def __call__(self) -> FreeMemory | None:
        return None if self.free is None else FreeMemory(self.free, "this machine")

    def shrink_to_what_has_no_room(self, found: Preflight) -> None:
        """A little less than what was found has room in."""
        host = found.places[0]
        self.free = int((host.needed + host.kv + host.states - 2**18) / TIGHT)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr("forerun.models.preflight.free_memory", machine)
    return machine


def found(path: Path, **options: Any) -> Preflight:
    return preflight(EngineConfig(model=str(path), n_threads=1, **options))


def limits(path: Path, **options: Any) -> Limits:
    return found(path, **options).usable_limits


def test_where_memory_is_plenty_it_is_the_training_context_and_sixteen_requests(
    tiny_dense_path: Path, machine: Machine
) -> None:
    ample = found(tiny_dense_path)
    chosen = ample.usable_limits
    assert (chosen.n_ctx, chosen.max_num_seqs) == (8192, 16)
    assert machine.free is not None
    assert chosen.cache_ram == (machine.free - ample.places[0].needed) // 4


def test_tokens_are_halved_until_they_fit_and_what_is_asked_for_stays(tiny_dense_path: Path, machine: Machine) -> None:
    machine.shrink_to_what_has_no_room(found(tiny_dense_path))
    assert limits(tiny_dense_path).n_ctx == 4096
    assert limits(tiny_dense_path, n_ctx=8192).n_ctx == 8192
    machine.free = 16 * 2**20
    nothing = found(tiny_dense_path)
    assert not nothing.is_usable
    assert nothing.limits is not None
    assert nothing.limits.n_ctx == 2048, "no less is chosen"


def test_a_draft_follows_the_target_s_choice(tiny_dense_path: Path, machine: Machine) -> None:
    machine.shrink_to_what_has_no_room(found(tiny_dense_path, draft=str(tiny_dense_path)))
    assert limits(tiny_dense_path, draft=str(tiny_dense_path)).draft_n_ctx == 4096


def test_where_states_take_the_memory_fewer_requests_run(tiny_recurrent_path: Path, machine: Machine) -> None:
    ample = found(tiny_recurrent_path)
    assert ample.usable_limits.max_num_seqs == 16
    machine.shrink_to_what_has_no_room(ample)
    few = limits(tiny_recurrent_path)
    assert (few.max_num_seqs, few.n_ctx) == (8, 8192)
    assert few.n_seq_max < ample.usable_limits.n_seq_max
    assert limits(tiny_recurrent_path, max_num_seqs=16).max_num_seqs == 16


def test_where_nobody_tells_what_is_free_it_is_little(tiny_dense_path: Path, machine: Machine) -> None:
    machine.free = None
    chosen = limits(tiny_dense_path)
    assert (chosen.n_ctx, chosen.cache_ram) == (8192, 2**28)


def test_what_was_chosen_is_what_the_next_process_is_told(tiny_dense_path: Path, machine: Machine) -> None:
    config = EngineConfig(model=str(tiny_dense_path), n_threads=1)
    first = settled(config, preflight(config))
    machine.free = 5 * GIB
    again = settled(first, preflight(first))
    assert again == first
    assert None not in (first.n_ctx, first.max_num_seqs, first.cache_ram)
    kept = EngineConfig(model=str(tiny_dense_path), n_threads=1, reuse_prefixes=False, cache_dir="kv")
    assert settled(kept, preflight(kept)).cache_ram is None, "nothing is kept, and that is no contradiction"


def test_an_engine_has_the_memory_that_was_chosen(tiny_dense_path: Path, machine: Machine) -> None:
    machine.shrink_to_what_has_no_room(found(tiny_dense_path))
    with Engine.load(tiny_dense_path, n_threads=1) as engine:
        assert (engine.n_ctx, engine.max_num_seqs) == (4096, 16)


@pytest.mark.parametrize("case", ["another vocabulary", "tokens swapped", "missing", "too big"])
def test_a_draft_that_cannot_be_used_is_refused_naming_both_models(
    case: str, tiny_dense_path: Path, tiny_foreign_path: Path, tiny_permuted_path: Path, machine: Machine
) -> None:
    """Case O2 (ggml-org/llama.cpp#3812)."""
    drafts = {"another vocabulary": tiny_foreign_path, "tokens swapped": tiny_permuted_path, "too big": tiny_dense_path}
    draft = drafts.get(case, tiny_dense_path.with_name("missing.gguf"))
    if case == "too big":  # for the pair there is less than its buffers take; for the target alone it was enough
        pair = found(tiny_dense_path, draft=str(draft), n_ctx=512).places[0]
        machine.free = pair.needed - pair.weights - 1
        assert found(tiny_dense_path, n_ctx=512).is_usable
    refused = found(tiny_dense_path, draft=str(draft))
    with pytest.raises(ModelError) as error:
        refused.require_usable()
    assert str(error.value).count(".gguf") >= 2
    for path in (tiny_dense_path, draft):
        assert str(path) in str(error.value)
