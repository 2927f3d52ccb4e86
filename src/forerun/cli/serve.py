"""`forerun serve`: models behind OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from forerun.cli.options import EngineOptions
from forerun.cli.serve_models import models_to_serve
from forerun.cli.serve_options import KEY_VARIABLE, ServeOptions
from forerun.cli.terminal import Terminal
from forerun.compose_models import open_engine
from forerun.compose_server import Announcements, serve
from forerun.engine.spawn import SpareProcess
from forerun.server import request_log
from forerun.server.model_entry import ServedModel


def serve_models(options: ServeOptions, engine: EngineOptions, spare: SpareProcess, *, verbose: bool) -> None:
    """Serve until Ctrl-C or SIGTERM; the first engine gets the spare process."""
    settings = options.settings()
    models = models_to_serve(options, engine)
    opening = partial(open_engine, spare=spare)
    at_once = ", ".join(one.id for one in models if one.is_loaded_at_once)
    terminal = Terminal(verbose=verbose)
    request_log.write_to(sys.stderr)
    if not settings.is_loopback and not settings.api_keys:
        terminal.warn(
            f"everybody who can reach {settings.host} can use this server: set {KEY_VARIABLE} or --api-key-file"
        )
    with terminal.loading(at_once or "models", doing="loading" if at_once else "looking at") as progress:
        address = ""

        def listening(at: str) -> None:
            nonlocal address
            address = at
            if at_once:
                terminal.note(f"listening on {at}, loading {at_once}")

        def ready(served: Sequence[ServedModel]) -> None:
            progress.stop()
            terminal.note(_greeting(address, served, has_keys=bool(settings.api_keys)))

        def stopping(count: int) -> None:
            if count:
                terminal.note(_farewell(count, settings.shutdown_timeout))

        serve(models, settings, Announcements(listening, progress.show_phase, ready, stopping), opening=opening)


def _farewell(count: int, seconds: float) -> str:
    answers = "1 open answer has" if count == 1 else f"{count} open answers have"
    return f"stopping: {answers} {seconds:g} s; Ctrl-C again ends {'it' if count == 1 else 'them'} at once"


def _greeting(address: str, served: Sequence[ServedModel], *, has_keys: bool) -> str:
    key = ' -H "Authorization: Bearer $FORERUN_API_KEY"' if has_keys else ""
    first, *others = served
    if first.embeds:
        route, body = "embeddings", f'{{"model": "{first.id}", "input": "Hello"}}'
    else:
        messages = '[{"role": "user", "content": "Hello"}]'
        route, body = "chat/completions", f'{{"model": "{first.id}", "messages": {messages}}}'
    curl = f"curl {address}/v1/{route}{key} -H 'Content-Type: application/json' -d '{body}'"
    names = ", ".join(one.id for one in served)
    state = f"{names} are ready" if others else f"{names} is ready"
    return f"{state} at {address} (API: {address}/docs)\n  {curl}"
