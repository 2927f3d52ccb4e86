"""`forerun serve`: a model behind OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import sys

from forerun.cli.options import ModelOptions
from forerun.cli.serve_options import KEY_VARIABLE, ServeOptions
from forerun.cli.terminal import Terminal
from forerun.compose_server import Announcements, serve
from forerun.server import request_log
from forerun.server.serving import EmbeddingServing, Serving


def serve_model(model: ModelOptions, options: ServeOptions, *, verbose: bool) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    settings = options.settings()
    config = options.engine(model.config())
    terminal = Terminal(verbose=verbose)
    request_log.write_to(sys.stderr)
    if not settings.is_loopback and not settings.api_keys:
        terminal.warn(
            f"everybody who can reach {settings.host} can use this server: set {KEY_VARIABLE} or --api-key-file"
        )
    with terminal.loading(config.model) as progress:
        address = ""

        def listening(at: str) -> None:
            nonlocal address
            address = at
            terminal.note(f"listening on {at}, loading {config.model}")

        def ready(serving: Serving | EmbeddingServing) -> None:
            progress.stop()
            terminal.note(_greeting(address, serving, has_keys=bool(settings.api_keys)))

        def stopping(count: int) -> None:
            if count:
                terminal.note(_farewell(count, settings.shutdown_timeout))

        told = Announcements(listening, progress.show, ready, stopping)
        serve(config, settings, told, chat_format=options.chat_format)


def _farewell(count: int, seconds: float) -> str:
    answers = "1 open answer has" if count == 1 else f"{count} open answers have"
    return f"stopping: {answers} {seconds:g} s; Ctrl-C again ends {'it' if count == 1 else 'them'} at once"


def _greeting(address: str, serving: Serving | EmbeddingServing, *, has_keys: bool) -> str:
    key = ' -H "Authorization: Bearer $FORERUN_API_KEY"' if has_keys else ""
    if isinstance(serving, EmbeddingServing):
        route, body = "embeddings", f'{{"model": "{serving.model.id}", "input": "Hello"}}'
    else:
        messages = '[{"role": "user", "content": "Hello"}]'
        route, body = "chat/completions", f'{{"model": "{serving.model.id}", "messages": {messages}}}'
    curl = f"curl {address}/v1/{route}{key} -H 'Content-Type: application/json' -d '{body}'"
    return f"{serving.model.id} is ready at {address} (API: {address}/docs)\n  {curl}"
