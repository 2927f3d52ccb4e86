"""Which models `forerun serve` is to have: MODEL, and each --model NAME=MODEL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from forerun.chat.choice import AUTO
from forerun.cli.options import EngineOptions
from forerun.cli.serve_options import ServeOptions
from forerun.compose_models import ToServe, served_id
from forerun.errors import InvalidConfigError

_OF_ONE_MODEL: Final = ("draft", "mmproj", "mtp", "drafter", "synthetic_acceptance", "chat_template")


def models_to_serve(options: ServeOptions, engine: EngineOptions) -> list[ToServe]:
    """MODEL first. Raises InvalidConfigError."""
    named = [_named(text) for text in options.models or ()]
    first = [] if options.model is None else [(served_id(options.model), options.model)]
    models = [*first, *named]
    if not models:
        raise InvalidConfigError("model", "there is none: give MODEL, or --model NAME=MODEL for each of several")
    if len(models) > 1 and not first:
        _refuse_what_is_for_one(options, engine)
    adapters = _adapters(engine.adapter or (), [name for name, _ in models])
    shared = replace(
        engine, draft=None, mmproj=None, mtp=None, drafter=None, synthetic_acceptance=None, chat_template=None
    )
    return [
        _to_serve(name, model, options, replace(shared if index else engine, adapter=adapters[name]), is_main=not index)
        for index, (name, model) in enumerate(models)
    ]


def _to_serve(name: str, model: str, options: ServeOptions, engine: EngineOptions, *, is_main: bool) -> ToServe:
    config = options.engine(engine.engine(model))
    if not is_main:
        return ToServe(config, name)
    return ToServe(
        options.recorded(config),
        name,
        aliases=tuple(options.alias or ()),
        chat_format=options.chat_format,
        is_loaded_at_once=options.model is not None,
    )


def _named(text: str) -> tuple[str, str]:
    name, has_name, model = text.partition("=")
    if not has_name:
        return served_id(text), text
    if not model:
        raise InvalidConfigError("model", f"NAME=MODEL, for instance small=smollm2, got {text!r}")
    return name, model


def _refuse_what_is_for_one(options: ServeOptions, engine: EngineOptions) -> None:
    given = [name for name in _OF_ONE_MODEL if getattr(engine, name) is not None]
    given += [name for name in ("alias", "record") if getattr(options, name)]
    given += ["chat_format"] if options.chat_format != AUTO else []
    if given:
        option = given[0].replace("_", "-")
        said = f"is for one model, and several are served: give that one as MODEL, without --model, beside --{option}"
        raise InvalidConfigError(option, said)


def _adapters(given: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """By model: those that begin with its name and a colon, and the first model's without one."""
    adapters: dict[str, list[str]] = {name: [] for name in names}
    for text in given:
        model, has_model, rest = text.partition(":")
        if has_model and model in adapters and "=" not in model:
            adapters[model].append(rest)
        else:
            adapters[names[0]].append(text)
    return adapters
