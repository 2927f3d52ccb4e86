"""A process that answers over its pipes: in time, or it is ended."""

from __future__ import annotations

import sys
import time

import pytest

from forerun.child_process import ChildProcess

ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


def child(program: str) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", program])


def test_what_is_sent_is_answered_as_often_as_it_is_asked() -> None:
    echo = child(ECHO)
    try:
        for word in (b"one\n", b"two\n"):
            with echo.within(30):
                echo.send(word[:1], word[1:])
                assert echo.read_line() == word
        assert echo.is_alive
    finally:
        echo.end()
    assert not echo.is_alive


def test_a_process_that_takes_too_long_is_ended() -> None:
    sleeper = child("import time; time.sleep(600)")
    with pytest.raises(TimeoutError), sleeper.within(0.05):
        sleeper.read_line()
    assert not sleeper.is_alive


def test_a_process_that_overruns_just_after_its_answer_is_given_nobody_else() -> None:
    echo = child(ECHO)
    with echo.within(0.05):
        deadline = time.monotonic() + 30
        while echo.is_alive and time.monotonic() < deadline:
            time.sleep(0.001)
    assert not echo.is_alive


@pytest.mark.parametrize("program", ["", "import sys; sys.stdout.write('no number\\n')"])
def test_a_process_that_ends_or_makes_no_sense_is_told_apart_from_a_slow_one(program: str) -> None:
    ended = child(program)
    with pytest.raises(EOFError), ended.within(30):
        int(ended.read_line())
    assert not ended.is_alive
