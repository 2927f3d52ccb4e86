"""`forerun chat`: a conversation that is never computed twice."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from forerun.chat.conversation import Conversation
from forerun.cli.endings import report
from forerun.cli.figures import figures
from forerun.cli.options import ModelOptions, SamplingOptions
from forerun.cli.terminal import Terminal
from forerun.compose import Engine
from forerun.core.request import SamplingParams, Usage
from forerun.engine.output import Output
from forerun.errors import ForerunError, InvalidRequestError

QUIT = ("/quit", "/exit")


def chat(model: ModelOptions, sampling: SamplingOptions, *, system: str | None, verbose: bool) -> None:
    """Read messages until the input ends, and answer each."""
    params, config = sampling.params(), model.config()
    terminal = Terminal(verbose=verbose)
    with terminal.load(config) as engine:
        if not engine.has_chat_template:
            raise InvalidRequestError(
                "model", f"{engine.model_name} has no chat template; use `forerun run --raw` to continue texts"
            )
        if config.synthetic_acceptance is not None:
            terminal.warn_synthetic()
        session = ChatSession(engine, params, terminal, system)
        while (message := read_message(terminal)) is not None:
            session.answer(message)


def read_message(terminal: Terminal) -> str | None:
    """The next message that is not blank; None at the end of input or at /quit."""
    while True:
        line = _read_line(terminal)
        if line is None or line.strip() in QUIT:
            return None
        if line.strip():
            return line


def _read_line(terminal: Terminal) -> str | None:
    """A line typed or piped in. Ctrl-C at the prompt drops what was typed."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
    with suppress(ImportError):
        import readline  # noqa: F401  # gives input() history and editing where it exists
    try:
        return input("> ")
    except EOFError:
        terminal.write("\n")
        return None
    except KeyboardInterrupt:
        terminal.write("\n")
        terminal.note("(/quit or Ctrl-D ends)")
        return ""


class ChatSession:
    """One conversation with one engine."""

    def __init__(self, engine: Engine, params: SamplingParams, terminal: Terminal, system: str | None) -> None:
        self._engine = engine
        self._params = params
        self._terminal = terminal
        self._conversation = Conversation(engine.chat_text, engine.tokenizer, system)

    def answer(self, message: str) -> None:
        """Print the answer to a message as it comes; a message that cannot be answered is reported and forgotten."""
        started = time.monotonic()
        answer = _Answer()
        try:
            self._stream(message, answer)
        except ForerunError as error:
            if not self._engine.is_alive:
                raise
            report(error)
        except KeyboardInterrupt:
            pass  # what was said so far stays part of the conversation
        self._terminal.write("\n")
        if answer.usage is not None:
            self._terminal.note(figures([answer.usage], time.monotonic() - started))

    def _stream(self, message: str, answer: _Answer) -> None:
        prompt = self._conversation.ask(message)
        try:
            with self._engine.stream(prompt, self._params) as pieces:
                for piece in self._terminal.announced(pieces, len(prompt)):
                    answer.add(piece)
                    self._terminal.write(piece.text)
        finally:
            if answer.tokens:
                self._conversation.answered(answer.text, answer.tokens)
            else:
                self._conversation.withdraw()


class _Answer:
    """What has come of an answer so far; kept when Ctrl-C ends it."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.usage: Usage | None = None

    def add(self, piece: Output) -> None:
        self.text += piece.text
        self.tokens.extend(piece.token_ids)
        self.usage = piece.usage
