"""Threads are given up for cores that other programs use, and taken back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.engine import spare_cores
from forerun.engine.spare_cores import CpuTimes, SpareCores, read_cpu_times, threads_beside

TICKS = os.sysconf("SC_CLK_TCK")
STAT = """\
cpu  1000 50 500 9000 10 3 7 0 0 0
cpu0 600 50 300 4000 10 2 5 0 0 0
cpu1 400 0 200 5000 0 1 2 0 0 0
intr 123 456
"""


@pytest.mark.parametrize(
    ("used", "now", "most", "cores", "threads"),
    [
        (0.0, 2, 2, 2, 2),
        (0.5, 2, 2, 2, 2),
        (0.7, 2, 2, 2, 1),
        (0.5, 1, 2, 2, 1),
        (0.4, 1, 2, 2, 2),
        (2.0, 2, 2, 2, 1),
        (1.0, 8, 8, 8, 7),
        (5.0, 8, 8, 8, 3),
        (1.0, 4, 4, 8, 4),
        (0.1, 3, 8, 8, 8),
    ],
)
def test_a_thread_is_given_up_for_each_core_that_others_use_and_taken_back_when_they_use_little(
    used: float, now: int, most: int, cores: int, threads: int
) -> None:
    assert threads_beside(used, now, most, cores) == threads


def looks(*used: tuple[float, float, float]) -> SpareCores:
    """Two threads on two cores; each (seconds, of all programs, own) is what one look finds more than the last one."""
    at = CpuTimes(0.0, 0.0, 0.0)
    times = [at]
    for seconds, everybody, own in used:
        at = CpuTimes(at.at + seconds, at.all_programs + everybody, at.own + own)
        times.append(at)
    left: Iterator[CpuTimes] = iter(times)
    clock = iter(time.at for time in times[1:])
    return SpareCores(2, 2, lambda: next(left), lambda: next(clock))


def test_what_the_engine_uses_itself_takes_no_thread_from_it() -> None:
    spare = looks((0.5, 1.0, 1.0), (0.5, 1.02, 0.98))
    assert [spare.threads(1), spare.threads(1)] == [2, 2]


def test_a_program_that_comes_and_goes_takes_a_thread_for_as_long() -> None:
    spare = looks((0.5, 1.0, 0.5), (0.5, 1.0, 0.55), (0.5, 1.0, 0.5), (0.5, 0.5, 0.5), (0.5, 1.0, 1.0))
    assert [spare.threads(1) for _ in range(5)] == [2, 1, 1, 2, 2]


def test_what_one_look_alone_finds_takes_no_thread() -> None:
    spare = looks(*[(0.5, 1.0, 0.5), (0.5, 1.0, 1.0)] * 3)
    assert [spare.threads(1) for _ in range(6)] == [2] * 6


def test_steps_that_follow_each_other_closely_look_once() -> None:
    spare = looks((0.1, 0.2, 0.0))
    assert spare.threads(1) == 2


def test_a_long_prompt_is_computed_with_all_threads_beside_whatever_runs() -> None:
    spare = looks(*[(0.5, 1.0, 0.5)] * 3)
    assert [spare.threads(512), spare.threads(512), spare.threads(1)] == [2, 2, 1]


def test_what_others_did_while_this_process_had_nothing_to_do_says_nothing_of_now() -> None:
    spare = looks((0.5, 1.0, 0.5), (0.5, 1.0, 0.5), (60.0, 120.0, 0.1), (0.5, 1.0, 0.5), (0.5, 1.0, 0.5))
    assert [spare.threads(1) for _ in range(5)] == [2, 1, 2, 2, 1]


def test_a_long_step_beside_another_program_is_no_pause() -> None:
    spare = looks((8.0, 16.0, 8.0), (8.0, 16.0, 8.0))
    assert [spare.threads(1), spare.threads(1)] == [2, 1]


def test_a_look_that_fails_changes_nothing() -> None:
    given: list[CpuTimes | OSError] = [CpuTimes(0, 0, 0), OSError("gone"), CpuTimes(1, 2, 1), CpuTimes(2, 4, 2)]

    def read() -> CpuTimes:
        times = given.pop(0)
        if isinstance(times, OSError):
            raise times
        return times

    clock = iter((1.0, 1.0, 2.0))
    spare = SpareCores(2, 2, read, lambda: next(clock))
    assert [spare.threads(1), spare.threads(1), spare.threads(1)] == [2, 2, 1]


@pytest.mark.parametrize(("niceness", "ticks"), [(0, 1510), (10, 1560)])
def test_time_is_read_of_the_cpus_that_this_process_may_use_without_that_of_programs_that_yield_to_it(
    niceness: int, ticks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stat").write_text(STAT)
    monkeypatch.setattr(os, "nice", lambda _: niceness)
    assert read_cpu_times({0, 1}, proc=tmp_path).all_programs * TICKS == ticks
    assert read_cpu_times({1}, proc=tmp_path).all_programs * TICKS == 603
    assert read_cpu_times({10}, proc=tmp_path).all_programs == 0


def test_what_the_front_end_uses_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text("42 (a name) 7) S 1 2 3 4 5 6 7 8 9 10 300 200 0 0 20 0 1 0\n")
    alone, both = read_cpu_times({0}, proc=tmp_path), read_cpu_times({0}, 42, tmp_path)
    assert both.own - alone.own == pytest.approx(500 / TICKS, abs=0.5 / TICKS)
    with pytest.raises(FileNotFoundError):
        read_cpu_times({0}, 43, tmp_path)


def test_a_file_of_another_format_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu0 1 2 three 4 5 6 7\n")
    with pytest.raises(ValueError, match="three"):
        read_cpu_times({0}, proc=tmp_path)


def test_one_thread_is_never_given_up() -> None:
    assert spare_cores.spare_cores(1) is None


def test_this_machine_is_looked_at_where_it_tells() -> None:
    spare = spare_cores.spare_cores(2)
    assert spare is None or 1 <= spare.threads(1) <= 2
    assert spare_cores.spare_cores(2, front_end=os.getppid()) is not None or spare is None
