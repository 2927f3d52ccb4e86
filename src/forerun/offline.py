"""Answers that need a vocabulary or a cache directory, but no engine: joins the same packages as `compose`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forerun.compose import adapter_digests, as_listed, chat_template, given_template, model_identity, preflight
from forerun.core.adapters import AdapterSet
from forerun.core.cache_report import CacheLookup
from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptLayout
from forerun.core.scheduler import Scheduler
from forerun.engine.intake import Intake
from forerun.engine.parts import TextVocabulary
from forerun.engine.tokenizer import Tokenizer
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Prompts as an engine would read them, and tokens as text."""

    intake: Intake
    tokenizer: Tokenizer
    vocabulary: TextVocabulary


@contextmanager
def prompt_reader(name: str, template: str | None = None) -> Iterator[PromptReader]:
    """A model's vocabulary and chat template, or the one that is given instead, without its weights.

    Raises ModelError.
    """
    from forerun.models.probe import probe_model
    from forerun.models.resolve import resolve_model
    from forerun.native.model import LlamaModel

    model = LlamaModel.load(probe_model(resolve_model(name)).path, vocab_only=True)
    try:
        tokenizer = Tokenizer(model.vocabulary)
        yield PromptReader(
            Intake(tokenizer, chat_template(model, template), time.monotonic), tokenizer, model.vocabulary
        )
    finally:
        model.close()


def look_up_on_disk(
    config: EngineConfig, prompt: Callable[[Intake], PromptLayout], adapters: AdapterSet = ()
) -> CacheLookup:
    """How much of a prompt an engine of this configuration, started now, would find in `cache_dir`.

    `adapters`: with which it would be answered. Deletes nothing. Raises ModelError, InvalidConfigError,
    InvalidRequestError.
    """
    from forerun.cache.directory import CacheDirectory
    from forerun.cache.disk import SegmentFiles

    if config.cache_dir is None:
        raise InvalidConfigError("cache_dir", "is not given: name the directory that keeps the prefixes")
    template = given_template(config)
    directory = CacheDirectory(Path(config.cache_dir), creates=False)
    config = as_listed(config)
    found = preflight(config)
    found.require_usable()
    identity = model_identity(config, found)
    target = found.candidates[0]
    with prompt_reader(config.model, template) as reader:
        scheduler = Scheduler(
            SchedulerConfig(
                n_ctx=found.usable_limits.n_ctx,
                memory=target.memory,
                cache_ram=1,
                cache_disk=2**62,
                model_key=identity.key,
                adapters=adapter_digests(found),
            ),
            reader.vocabulary,
            stored=SegmentFiles(directory, identity.key).scan(removes=False),
        )
        return scheduler.look_up(prompt(reader.intake), scheduler.scope_of("", adapters))
