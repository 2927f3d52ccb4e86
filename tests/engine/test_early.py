"""A process that is begun before it is known what for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from forerun import Engine
from forerun.engine import early
from tests.engine.processes import front_end_parts, remote_worker, running
from tests.engine.test_remote import TEN


@pytest.fixture
def begun() -> Iterator[int]:
    """The number of an early process."""
    early.begin_early(["json", "there.is.no.such.module"])
    (one,) = early._early
    yield one.popen.pid
    early.discard()


def test_the_first_engine_that_is_started_is_built_in_it_and_the_second_in_another(begun: int) -> None:
    with running(remote_worker()) as first, running(remote_worker()) as second:
        assert first.pid == begun
        assert second.pid not in (None, begun)
        assert list(Engine(front_end_parts(first)).generate("Hello", TEN))


def test_another_kind_of_process_does_not_take_it(begun: int) -> None:
    assert early.taken("forerun.engine.embedding_child") is None
    taken = early.taken(early.ENGINE_CHILD)
    assert taken is not None
    assert taken.popen.pid == begun
    early._early.append(taken)


def test_one_that_nobody_needs_ends(begun: int) -> None:
    process = psutil.Process(begun)
    early.discard()
    assert not process.is_running()
    early.discard()


def test_it_ends_with_the_program_that_began_it() -> None:
    code = "from forerun.engine import early; early.begin_early([]); print(early._early[0].popen.pid)"
    program = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number = int(program.stdout)
    left = [psutil.Process(number)] if psutil.pid_exists(number) else []
    assert not psutil.wait_procs(left, 20)[1]


def test_ctrl_c_in_the_terminal_is_not_for_it(begun: int) -> None:
    """It may come before the process has got to saying so itself."""
    process = psutil.Process(begun)
    process.send_signal(2)
    with running(remote_worker()) as worker:
        assert worker.pid == begun
