"""Standard error: progress, figures, warnings. Standard output: text, piece by piece."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from forerun.compose import Engine, build
from forerun.engine.loading import LoadPhase
from forerun.engine.output import Output
from forerun.engine_config import EngineConfig

LONG_PREFILL_TOKENS = 256
"""Prompts from this length on take long enough that the wait is shown."""


class Terminal:
    """Where a command writes. Progress is shown on a terminal, or when asked for."""

    def __init__(self, *, verbose: bool) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.output = Console(highlight=False)
        """What standard output can show; text is written by `write`."""
        self._is_verbose = verbose
        self._set_up_logging(verbose=verbose)
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character must not end the answer.
            if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
                stream.reconfigure(errors="replace")

    def _set_up_logging(self, *, verbose: bool) -> None:
        logger = logging.getLogger("forerun")
        handler = logging.StreamHandler() if verbose else _OneLine()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.handlers = [handler]
        logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
        logger.propagate = False
        # llama.cpp's own warnings explain errors that are reported anyway.
        logging.getLogger("forerun.native").setLevel(logging.NOTSET if verbose else logging.CRITICAL)

    @staticmethod
    def write(text: str) -> None:
        """Text for standard output, at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def note(self, line: str | Text) -> None:
        """A line beside the text, on standard error."""
        sys.stdout.flush()
        style = "dim" if isinstance(line, str) else None
        self.console.print(line, style=style, markup=False, soft_wrap=True)

    def warn_synthetic(self) -> None:
        """What stands on standard output is no answer."""
        self.warn("synthetic acceptance: the costs are real, the text is INVALID")

    def warn(self, line: str) -> None:
        """A line that should not be overlooked, on standard error."""
        sys.stdout.flush()
        self.console.print(f"forerun: {line}", style="yellow", markup=False, soft_wrap=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show that something takes its time, and for how long."""
        if not self.console.is_terminal:
            if self._is_verbose:
                self.note(what)
            yield
            return
        with self._progress(TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
            progress.add_task(what)
            yield

    def watched(self, outputs: Iterable[Output], what: str) -> Iterator[Output]:
        """The outputs; the wait for each is shown, and what is printed between them is not disturbed."""
        iterator = iter(outputs)
        while True:
            with self.waiting(what):
                output = next(iterator, None)
            if output is None:
                return
            yield output

    def announced(self, pieces: Iterator[Output], prompt_tokens: int) -> Iterator[Output]:
        """The pieces of an answer; the wait for the first is shown where the prompt is long."""
        if prompt_tokens >= LONG_PREFILL_TOKENS:
            with self.waiting(f"reading {prompt_tokens} tokens"):
                first = next(pieces)
            yield first
        yield from pieces

    def _progress(self, *columns: ProgressColumn) -> Progress:
        # Not redirected: standard output must stay what it is, whatever is shown on standard error.
        return Progress(*columns, console=self.console, transient=True, redirect_stdout=False, redirect_stderr=False)

    def load(self, config: EngineConfig) -> Engine:
        """An engine, with progress while its models load."""
        with self.loading(config.model) as progress:
            return Engine(build(config, progress.show_phase))

    @contextmanager
    def loading(self, model: str, doing: str = "loading") -> Iterator[LoadingBars]:
        """Show how far models are loaded, or whatever is `doing`, until this ends or the bars are stopped."""
        if not self.console.is_terminal:
            with self.waiting(f"{doing} {model}"):
                yield LoadingBars(None)
            return
        with self._progress(TextColumn(doing + " {task.description}"), BarColumn(), TimeElapsedColumn()) as progress:
            yield LoadingBars(progress)


class LoadingBars:
    """A bar for each model that is loaded; any thread."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, share: float) -> None:
        if self._progress is None:
            return
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=1.0)
        self._progress.update(self._tasks[name], completed=share)

    def show_phase(self, phase: LoadPhase, name: str, share: float) -> None:
        """Implements engine.loading.LoadProgress."""
        self.show(f"{name} ({phase})", share)

    def stop(self) -> None:
        """Nothing more is loaded: take the bars away."""
        if self._progress is not None:
            self._progress.stop()


class _OneLine(logging.Handler):
    """Warnings as one line, without traceback: what failed is reported by whoever asked for it."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"forerun: {' '.join(record.getMessage().split())}\n")
