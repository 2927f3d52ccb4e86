"""`forerun cache`: what a cache directory holds, as tables or JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forerun.cache.chains import StoredConversation
from forerun.cache.contents import StoredModel, stored_models
from forerun.cache.directory import CacheDirectory
from forerun.cache.embeddings import encoded_files, remove_encoded
from forerun.cli.options import ModelOptions, adapter_scales
from forerun.cli.run import read_prompts
from forerun.cli.sizes import parse_age
from forerun.cli.terminal import Terminal
from forerun.core.adapters import adapter_set
from forerun.core.cache_report import CacheLookup
from forerun.core.prompt import PromptLayout, Tokens
from forerun.engine.intake import Intake
from forerun.engine.tokenizer import Tokenizer
from forerun.errors import InvalidConfigError, ModelNotFoundError
from forerun.models.findings import size
from forerun.models.resolve import resolve_model
from forerun.offline import PromptReader, look_up_on_disk, prompt_reader

_KEY_DIGITS = 8
_FIRST_TOKENS = 40
"""Enough for the first words of a conversation."""
_FIRST_WORDS = 60
"""Characters."""


def show_stats(cache_dir: str, *, as_json: bool) -> None:
    directory = _directory(cache_dir)
    models, encoded = stored_models(directory), encoded_files(directory)
    encoded_bytes = sum(file.nbytes for file in encoded)
    if as_json:
        listed = [_model_as_json(model) for model in models]
        _print_json({"models": listed, "encoded_media": {"files": len(encoded), "bytes": encoded_bytes}})
        return
    table = _table("model", "key", "segments", "conversations", "size", "last used")
    for model in models:
        table.add_row(Text(model.name), model.key[:_KEY_DIGITS], *_figures(model))
    console = Console(highlight=False)
    console.print(table)
    media = f", and {size(encoded_bytes)} of encoded media" if encoded else ""
    console.print(f"{size(sum(model.nbytes for model in models))} in {cache_dir}{media}", markup=False)


def _figures(model: StoredModel) -> tuple[str, ...]:
    counts = (str(len(model.segments)), str(len(model.conversations)))
    return *counts, size(model.nbytes), _ago(model.last_used)


def list_conversations(cache_dir: str, *, model: str | None, limit: int, as_json: bool) -> None:
    models = _chosen(stored_models(_directory(cache_dir)), model)
    rows = [(one, conversation) for one in models for conversation in one.conversations]
    rows.sort(key=lambda row: row[1].last_used, reverse=True)
    shown = rows[:limit]
    with _reader(model) as reader:
        words = None if reader is None else _first_words([row[1].layout for row in shown], reader.tokenizer)
    if as_json:
        listed = [_conversation_as_json(*row) for row in shown]
        for index, said in enumerate(words or ()):
            listed[index]["first_words"] = said
        _print_json({"conversations": listed, "total": len(rows)})
        return
    table = _table("tokens", "size", "last used", "model", *(["first words"] if words else []))
    for index, (one, conversation) in enumerate(shown):
        first = [Text(words[index])] if words else []
        table.add_row(*_facts(conversation), Text(one.name), *first)
    console = Console(highlight=False)
    console.print(table)
    if len(rows) > limit:
        console.print(f"{limit} of {len(rows)} conversations: --limit shows more")


def _reader(model: str | None) -> AbstractContextManager[PromptReader | None]:
    """The vocabulary of a model that is named by its file, or by a known name."""
    is_file = model is not None and os.path.exists(_as_file(model))
    return prompt_reader(model) if model is not None and is_file else nullcontext()


def _facts(conversation: StoredConversation) -> tuple[str, ...]:
    return str(conversation.tokens), size(conversation.nbytes), _ago(conversation.last_used)


def _first_words(layouts: Sequence[PromptLayout], tokenizer: Tokenizer) -> list[str]:
    """How each conversation begins; what all of them share, a system prompt as a rule, is left out."""
    shared = min((layouts[0].common_prefix(other).logical_tokens for other in layouts[1:]), default=0)
    texts = [layout.text_tokens if shared == layout.logical_tokens else _after(layout, shared) for layout in layouts]
    return [_words(tokens[:_FIRST_TOKENS].tolist(), tokenizer) for tokens in texts]


def _after(layout: PromptLayout, shared: int) -> Tokens:
    return PromptLayout(layout.slice_segments(shared, layout.logical_tokens)).text_tokens


def _words(tokens: list[int], tokenizer: Tokenizer) -> str:
    """Tokens as one line, without control characters; nothing where the vocabulary lacks one of them."""
    try:
        text = tokenizer.bytes_of(tokens).decode(errors="replace")
    except IndexError:
        return ""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:_FIRST_WORDS]


def look_up(
    options: ModelOptions,
    prompt: str,
    *,
    system: str | None,
    raw: bool,
    use_adapter: Sequence[str] | None,
    as_json: bool,
) -> None:
    if raw and system is not None:
        raise typer.BadParameter("--system needs the chat template that --raw leaves out")
    config = options.config()
    (text,) = read_prompts([prompt])

    def layout(intake: Intake) -> PromptLayout:
        if system is not None and text:
            return intake.chat_layout([{"role": "system", "content": system}, {"role": "user", "content": text}])
        return intake.raw_layout(text) if raw else intake.layout(text)

    with Terminal(verbose=False).waiting("looking"):
        found = look_up_on_disk(config, layout, adapter_set(adapter_scales(use_adapter)))
    if as_json:
        _print_json(dataclasses.asdict(found))
    else:
        typer.echo(_told(found))


def _told(found: CacheLookup) -> str:
    computed = found.prompt_tokens - found.disk_tokens
    return f"{found.disk_tokens} of {found.prompt_tokens} tokens are on disk, {computed} would be computed"


def clear_cache(cache_dir: str, *, model: str | None, older_than: str | None, yes: bool) -> None:
    age = None if older_than is None else parse_age("older_than", older_than)
    directory = _directory(cache_dir)
    models = _chosen(stored_models(directory), model)
    before = float("inf") if age is None else time.time() - age
    doomed = [(one, file) for one in models for file in one.files.sizes() if file.last_used <= before]
    media = [file for file in encoded_files(directory) if file.last_used <= before] if model is None else []
    if not (doomed or media):
        typer.echo("nothing to delete")
        return
    told = f"{len(doomed)} segments, {size(sum(file.nbytes for _, file in doomed))}"
    told += f"; {len(media)} encoded spans of media, {size(sum(file.nbytes for file in media))}" if media else ""
    if not yes and not typer.confirm(f"Delete {told} in {cache_dir}?", err=True):
        raise typer.Exit(1)
    for one, file in doomed:
        one.files.remove(file.key)
    for picture in media:
        remove_encoded(directory, picture.name)
    typer.echo(f"deleted: {told}")


def _directory(cache_dir: str) -> CacheDirectory:
    return CacheDirectory(Path(cache_dir), creates=False)


def _chosen(models: list[StoredModel], name: str | None) -> list[StoredModel]:
    """The models that are meant; raises InvalidConfigError where none is."""
    if name is None:
        return models
    chosen = [model for model in models if model.is_meant_by({name, Path(_as_file(name)).name})]
    if not chosen:
        known = ", ".join(f"{model.name} ({model.key[:_KEY_DIGITS]})" for model in models) or "nothing at all"
        raise InvalidConfigError("model", f"nothing is stored of {name!r}; there is {known}")
    return chosen


def _as_file(name: str) -> str:
    """The path of a model's file as far as the name leads to one."""
    with suppress(ModelNotFoundError):
        return str(resolve_model(name))
    return name


def _table(*headings: str) -> Table:
    table = Table(title_justify="left")
    for heading in headings:
        is_text = heading in ("model", "key", "first words")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    return table


def _ago(seconds: float | None) -> str:
    """How long ago a time was, in the largest unit that fits."""
    if seconds is None:
        return "never"
    age = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= length:
            return f"{age / length:.0f} {unit} ago"
    return "just now"


def _model_as_json(model: StoredModel) -> dict[str, Any]:
    return {
        "key": model.key,
        "description": model.description,
        "segments": len(model.segments),
        "conversations": len(model.conversations),
        "bytes": model.nbytes,
        "last_used": model.last_used,
    }


def _conversation_as_json(model: StoredModel, conversation: StoredConversation) -> dict[str, Any]:
    return {
        "model": model.key,
        "tokens": conversation.tokens,
        "segments": len(conversation.segments),
        "bytes": conversation.nbytes,
        "last_used": conversation.last_used,
    }


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False, indent=2))  # noqa: T201  # the product
