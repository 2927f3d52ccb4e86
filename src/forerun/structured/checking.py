"""Whether a grammar can be used, found out where it can do no harm: in time, and in another process.

check ──► plain limits (microseconds) ──► a child compiles it ──► verdict, remembered
                                           │ dies, or overruns: the verdict, and another child is started
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

from forerun.child_process import ChildProcess
from forerun.core.grammar import Grammar
from forerun.errors import InvalidRequestError, OverloadedError
from forerun.structured.compiling import grammar_source
from forerun.structured.tokens import TokenTable

logger = logging.getLogger(__name__)

SECONDS = 1.5
"""What compiling may take."""
_REMEMBERED = 256
_WAITING = 64
"""Checks under way at most."""
_PATIENCE = 10.0
"""Seconds that a check waits for a child to be free."""


class GrammarChecker:
    """Any thread, and asyncio. Owns up to `processes` children, each started when it is first needed (70 MB and half a
    second, which a server that is asked for no grammar never spends); `close` ends them."""

    def __init__(self, read: Callable[[], TokenTable], *, processes: int = 2, seconds: float = SECONDS) -> None:
        """`read` gives the vocabulary's tokens; called with the first grammar."""
        self._read = read
        self._table: TokenTable | None = None
        self._reading = threading.Lock()
        self._seconds = seconds
        self._children: SimpleQueue[_Child] = SimpleQueue()
        self._alive: set[_Child] = set()
        self._verdicts: OrderedDict[Grammar, str | None] = OrderedDict()
        self._lock = threading.Lock()
        self._under_way = 0
        self._processes = processes
        self._begun = 0
        """Children that are there, or are being started."""
        self._is_closed = False
        self._threads = ThreadPoolExecutor(processes + 1, thread_name_prefix="forerun-grammars")
        self._starters = ThreadPoolExecutor(processes, thread_name_prefix="forerun-grammar-child")

    async def check_soon(self, grammar: Grammar, field: str = "grammar") -> None:
        """As `check`, for an event loop: it goes on meanwhile."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self.check, grammar, field)

    def check(self, grammar: Grammar, field: str = "grammar") -> None:
        """Return where the grammar compiles, in time, to something that an answer can begin with.

        Waits for up to a few seconds. Raises InvalidRequestError naming `field`, OverloadedError.
        """
        verdict = self._verdict(grammar)
        if verdict is not None:
            raise InvalidRequestError(field, verdict)

    def close(self) -> None:
        """End the children. Checks under way are refused."""
        with self._lock:
            self._is_closed = True
            alive = list(self._alive)
        for child in alive:
            child.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._starters.shutdown(wait=True, cancel_futures=True)

    def _verdict(self, grammar: Grammar) -> str | None:
        with self._lock:
            if grammar in self._verdicts:
                self._verdicts.move_to_end(grammar)
                return self._verdicts[grammar]
            if self._under_way >= _WAITING:
                raise OverloadedError(f"{self._under_way} grammars are being compiled; try again later", self._seconds)
            self._under_way += 1
        try:
            return self._checked(grammar)
        finally:
            with self._lock:
                self._under_way -= 1

    def _checked(self, grammar: Grammar) -> str | None:
        try:
            grammar_source(grammar, self._tokens())
        except InvalidRequestError as error:
            return self._remembered(grammar, error.reason)
        child = self._free_child()
        try:
            verdict = child.ask(grammar, self._seconds)
        except TimeoutError:  # not remembered: perhaps the machine was busy
            return f"takes longer than {self._seconds:g} s to compile; make it simpler"
        except EOFError:
            return self._remembered(grammar, "exhausts the compiler's stack or memory; make it simpler")
        finally:
            self._give_back(child)
        return self._remembered(grammar, verdict)

    def _remembered(self, grammar: Grammar, verdict: str | None) -> str | None:
        with self._lock:
            self._verdicts[grammar] = verdict
            while len(self._verdicts) > _REMEMBERED:
                self._verdicts.popitem(last=False)
        return verdict

    def _tokens(self) -> TokenTable:
        with self._reading:
            if self._table is None:
                self._table = self._read()
            return self._table

    # --- children ----------------------------------------------------------

    def _free_child(self) -> _Child:
        with suppress(Empty):
            return self._children.get_nowait()
        self._begin_another()
        try:
            return self._children.get(timeout=_PATIENCE)
        except Empty:
            raise OverloadedError("no process is free to compile the grammar; try again later", _PATIENCE) from None

    def _begin_another(self) -> None:
        with self._lock:
            if self._is_closed or self._begun >= self._processes:
                return
            self._begun += 1
        with suppress(RuntimeError):  # closed in between
            self._starters.submit(self._start_child)

    def _give_back(self, child: _Child) -> None:
        if child.is_alive:
            self._children.put(child)
            return
        self._lost(child)
        self._begin_another()

    def _lost(self, child: _Child) -> None:
        with self._lock:
            self._alive.discard(child)
            self._begun -= 1

    def _start_child(self) -> None:
        try:
            child = _Child()
        except OSError:  # no memory for a process now: the next check tries again
            logger.exception("a process to compile grammars could not be started")
            with self._lock:
                self._begun -= 1
            return
        with self._lock:
            self._alive.add(child)
            is_closed = self._is_closed
        if is_closed:
            child.end()
        elif child.prepare(pickle.dumps(self._tokens())):
            self._children.put(child)
        else:
            self._lost(child)

    def __repr__(self) -> str:
        return f"GrammarChecker({len(self._alive)} processes, {len(self._verdicts)} verdicts)"


class _Child(ChildProcess):
    """One compiling process."""

    def __init__(self) -> None:
        super().__init__([sys.executable, "-P", "-m", "forerun.structured.checking_child"])

    def prepare(self, payload: bytes) -> bool:
        """Hand the vocabulary over and wait until it is read; False where the process ended instead."""
        try:
            self.send(payload)
            self.read_line()
        except (OSError, EOFError):
            return False
        return True

    def ask(self, grammar: Grammar, seconds: float) -> str | None:
        """What is wrong with a grammar. Raises TimeoutError or EOFError, and the process has ended then."""
        with self.within(seconds):
            self.send(json.dumps([grammar.kind, grammar.text, grammar.after]).encode() + b"\n")
            verdict: str | None = json.loads(self.read_line())
            return verdict
