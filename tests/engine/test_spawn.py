"""A process that is started before anybody knows for which engine."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from forerun.engine.messages import Loading, Ready
from forerun.engine.process import EngineProgram
from forerun.engine.spawn import ENGINE_CHILD, SpareProcess, spawn

PATIENCE = 30.0


def pids() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_the_first_engine_gets_the_spare_process_and_the_next_one_its_own() -> None:
    with SpareProcess() as spare:
        spare.start(["forerun.engine.loop", "no.such.module"])
        (waiting,) = pids()
        program = EngineProgram("forerun.testing.served:make", {}, spare=spare)
        first, second = program.start(), program.start()
        try:
            assert first.pid == waiting
            assert second.pid != waiting
            for process in (first, second):
                while isinstance(report := process.receive(), Loading):
                    pass
                assert isinstance(report, Ready)
        finally:
            for process in (first, second):
                process.kill()
                process.ended()
                process.close()


def test_a_spare_process_that_nobody_wants_ends_with_its_context() -> None:
    with SpareProcess() as spare:
        spare.start()
        (waiting,) = pids()
    assert not psutil.pid_exists(waiting)


def test_a_spare_process_that_has_died_is_given_to_nobody() -> None:
    with SpareProcess() as spare:
        spare.start()
        (waiting,) = psutil.Process().children()
        waiting.kill()
        psutil.wait_procs([waiting], PATIENCE)
        assert spare.take() is None


def test_where_no_process_can_be_started_there_is_no_spare_and_no_socket_stays_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    before = psutil.Process().num_fds()
    with SpareProcess() as spare:
        spare.start()
        assert spare.take() is None
    with pytest.raises(FileNotFoundError):
        spawn(ENGINE_CHILD)
    assert psutil.Process().num_fds() == before
