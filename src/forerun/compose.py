"""The one place that joins core, native and engine: from a configuration to an engine on a real model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forerun.compose_costs import cost_curve, known_curve, step_costs, target_pace
from forerun.compose_media import OpenMedia, media_kinds, open_media
from forerun.compose_tiers import OpenTiers, open_tiers
from forerun.compose_wanted import Configured, context_params
from forerun.core.config import MODEL_DRAFTER, SchedulerConfig, Verification
from forerun.core.costs import CostCurve
from forerun.core.lookups import own_lookups
from forerun.core.memory import DENSE
from forerun.core.scheduler import Scheduler
from forerun.core.step import Drafter
from forerun.core.synthetic import SyntheticAcceptance
from forerun.core.verification import verify
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.cores import machine_load
from forerun.engine.engine import BlockingEngine
from forerun.engine.loading import LoadPhase, LoadProgress, PhaseProgress, during
from forerun.engine.media_mail import MediaMail
from forerun.engine.parts import ChatRenderer, Constrain, EngineParts
from forerun.engine.recorded import RecordedScheduler
from forerun.engine.recording import Journal
from forerun.engine.spare_cores import spare_cores
from forerun.engine_config import MAX_AUTO_DRAFT_TOKENS, EngineConfig
from forerun.errors import ForerunError, ModelError, ModelLoadError
from forerun.plugins import DrafterContext, DrafterFactory, find_factory, make_drafter

if TYPE_CHECKING:  # forerun.native loads llama.cpp: only `build` does that
    from forerun.models.catalog_format import ListedModel
    from forerun.models.model_identity import ModelIdentity
    from forerun.models.preflight import Candidate, Preflight
    from forerun.models.prospects import Check
    from forerun.models.wanted import Limits
    from forerun.native.adapters import AppliedAdapters, LoraAdapter
    from forerun.native.context import ContextParams, LlamaContext
    from forerun.native.drafter import LlamaDrafter
    from forerun.native.model import LlamaModel
    from forerun.native.rollback import Rollback

logger = logging.getLogger(__name__)

_BUSY = 0.7
"""Cores that other programs may use before measured costs are told to be theirs too."""


def _config(model: str | os.PathLike[str], options: dict[str, Any]) -> EngineConfig:
    given: dict[str, Any] = {"model": model, **options}
    return EngineConfig(**given)


class Engine(BlockingEngine):
    """llama.cpp models for blocking code: `with Engine.load("smollm2") as engine: ...`. Safe to share among threads."""

    @classmethod
    def load(cls, model: str | os.PathLike[str], *, progress: LoadProgress | None = None, **options: Any) -> Self:
        """Load a model and start its engine. `options`: the other fields of EngineConfig. Raises ModelError."""
        return cls(build(_config(model, options), progress))


class AsyncEngine(AsyncioEngine):
    """llama.cpp models for asyncio: `async with AsyncEngine.load("smollm2") as engine: ...`."""

    @classmethod
    def load(cls, model: str | os.PathLike[str], *, progress: LoadProgress | None = None, **options: Any) -> Self:
        """Load a model and start its engine. Blocks while it loads; `asyncio.to_thread` calls it beside other tasks."""
        return cls(build(_config(model, options), progress))


def as_listed(config: EngineConfig) -> EngineConfig:
    """The same, with what the catalog says of a model that is named by its id: its projector, and its draft unless the
    caller chose what drafts.

    Idempotent. A malformed catalog is for `preflight` to tell.
    """
    from forerun.models.listed import find_listed

    try:
        listed = find_listed(config.model)
    except ModelError:
        return config
    if listed is None:
        return config
    if config.projector is None and listed.projecting is not None:
        config = replace(config, projector=listed.projecting.source)
    is_chosen = config.draft is not None or config.mtp or config.speculation in (0, "off")
    return config if is_chosen else _drafting_as_listed(config, listed)


def _drafting_as_listed(config: EngineConfig, listed: ListedModel) -> EngineConfig:
    from forerun.models.catalog_format import Method

    if listed.method is None or (listed.method is Method.MTP and config.mtp is False):
        return config
    if listed.draft is not None:
        return replace(config, draft=listed.draft.source)
    speculation = "auto" if config.speculation is None else config.speculation
    return replace(config, speculation=speculation, mtp=None if listed.method is Method.MTP else False)


def build(config: EngineConfig, progress: LoadProgress | None = None, *, front_end: int | None = None) -> EngineParts:
    """Find, check and load the models, and join everything: all of it, or nothing stays in memory. `front_end`: the
    process that this one computes for, if it is another one.

    Raises ModelError with one clear line, and what `progress` raises.
    """
    from forerun.native.runner import LlamaRunner

    config = as_listed(config)
    factory = None if config.drafter is None else find_factory(config.drafter)
    template = given_template(config)
    looking = during(LoadPhase.FILES, progress)
    found = usable_files(config, looking)
    config = settled(config, found)
    digests = adapter_digests(found, looking)
    identity = model_identity(config, found, looking) if config.cache_dir is not None else None
    limits = found.usable_limits
    with ExitStack() as loaded:
        model = _load(found.paths[0], config, loaded, during(LoadPhase.TARGET, progress), with_mtp=found.with_mtp)
        adapters = _adapters(model, found, digests)
        draft = (
            None if len(found.paths) == 1 else _load(found.paths[1], config, loaded, during(LoadPhase.DRAFT, progress))
        )
        _warn_beyond_training(model, limits.n_ctx)
        making = during(LoadPhase.CONTEXTS, progress)
        making(model.path.name, 0.0)
        context = _context(model, config, limits.n_ctx, loaded)
        drafter = _drafter(draft or model, context, config, limits, loaded)
        contexts = [context] if drafter is None else [context, drafter.context]
        making(model.path.name, 1.0)
        media = open_media(config, context, limits.n_ctx, loaded, during(LoadPhase.PROJECTOR, progress))
        warming = during(LoadPhase.WARM_UP, progress)
        _warm_up(contexts, warming)
        tiers = open_tiers(config, context, drafter, identity, loaded)
        costs = step_costs(config, contexts, warming) if config.drafts_by_gain else None
        pace = costs.target if costs else target_pace(config, context, warming)
        scheduler_config = _scheduler_config(config, limits, context, drafter, tiers, digests, media)
        lookups = None if factory is None else _with_plug_in(factory, scheduler_config, model)
        make_scheduler = _scheduler_factory(config, loaded)
        synthetic = config.synthetic_acceptance
        return EngineParts(
            scheduler=make_scheduler(
                scheduler_config,
                model.vocabulary,
                costs=costs,
                pace=pace,
                lookups=lookups,
                stored=tiers.found if tiers else (),
            ),
            runner=LlamaRunner(
                context,
                drafter,
                verify if synthetic is None else SyntheticAcceptance(synthetic).verify,
                _rollback(context, config, limits.n_seq_max),
                tiers.segments if tiers else None,
                _applied(adapters, contexts),
                media.encoder if media else None,
                _threads(context.params, front_end),
            ),
            media=media.reader if media else None,
            media_mail=media.mail if media else MediaMail(),
            vocabulary=model.vocabulary,
            chat_template=chat_template(model, template),
            constrain=_constrain(model, loaded),
            model_name=model.path.name,
            n_ctx=limits.n_ctx,
            interrupt=lambda: _interrupt(contexts),
            dispose=loaded.pop_all().close,
            checks_integrity=config.checks_integrity,
        )


def usable_files(config: EngineConfig, progress: PhaseProgress) -> Preflight:
    """What `preflight` finds of models that can be loaded. Raises ModelError for others, and for a bad projector."""
    name = f"header of {Path(config.model).name}"
    progress(name, 0.0)
    found = preflight(config)
    found.require_usable()
    media_kinds(as_listed(config))
    progress(name, 1.0)
    return found


def _warn_beyond_training(model: LlamaModel, n_ctx: int) -> None:
    if n_ctx > model.n_ctx_train:
        logger.warning("n_ctx %d is beyond the %d tokens %s was trained for", n_ctx, model.n_ctx_train, model.path.name)


def _drafter(
    draft: LlamaModel, context: LlamaContext, config: EngineConfig, limits: Limits, loaded: ExitStack
) -> LlamaDrafter | None:
    """What drafts with a model: another one than the target's or, where it is the same, its MTP head."""
    from forerun.native.drafter import LlamaDrafter
    from forerun.native.mtp import MtpDrafter

    if not limits.draft_n_ctx:
        return None
    if draft is context.model:
        return MtpDrafter(_context(draft, config, limits.draft_n_ctx, loaded, is_mtp=True), context)
    own = _context(draft, config, limits.draft_n_ctx, loaded)
    return LlamaDrafter(own, context.model.vocabulary.size, _rollback(own, config, limits.n_seq_max))


def _warm_up(contexts: Sequence[LlamaContext], progress: PhaseProgress) -> None:
    # On a thread that ends, as measurements are (compose_costs.cost_curve).
    with ThreadPoolExecutor(max_workers=1) as thread:
        for context in contexts:
            name = f"{context.model.path.name}'s MTP head" if context.params.is_mtp else context.model.path.name
            progress(name, 0.0)
            thread.submit(context.warm_up).result()
            progress(name, 1.0)


def _scheduler_factory(config: EngineConfig, loaded: ExitStack) -> Callable[..., Scheduler]:
    """What makes the scheduler: one that is recorded where that is wanted. Raises InvalidConfigError."""
    if config.record is None:
        return Scheduler
    journal = Journal(Path(config.record), has_text=config.record_text)
    loaded.callback(journal.close)
    return partial(RecordedScheduler, journal=journal)


def _constrain(model: LlamaModel, loaded: ExitStack) -> Constrain:
    """What compiles grammars, for as long as the model is loaded."""
    from forerun.structured.compiling import GrammarCompiler

    compiler = GrammarCompiler(model.vocabulary)
    loaded.callback(compiler.close)
    return compiler


def preflight(config: EngineConfig) -> Preflight:
    """Whether models, limits and machine fit together, found out without loading weights. Raises no ModelError."""
    from forerun.models.preflight import inspect

    return inspect(Configured(as_listed(config)))


def settled(config: EngineConfig, found: Preflight) -> EngineConfig:
    """The same with what was chosen where it said nothing, so that another process, or the next one, gets the same.

    Raises ModelError for a pair that cannot be used.
    """
    found.require_usable()
    limits = found.usable_limits
    cache_ram = limits.cache_ram if config.moves_prefixes else config.cache_ram
    return replace(config, n_ctx=limits.n_ctx, max_num_seqs=limits.max_num_seqs, cache_ram=cache_ram)


def check(config: EngineConfig, *, measures: bool, progress: PhaseProgress | None = None) -> Check:
    """Everything `preflight` finds, and what drafting can bring here: from costs known, or measured with `measures`.

    Measuring takes a few seconds a model, and loads its weights; it is done only for a pair that is usable. Raises
    InvalidConfigError for a chat template that cannot be used, ModelError for a file that is no projector.
    """
    from forerun.models.findings import Finding, Verdict
    from forerun.models.memory_findings import judge_fit
    from forerun.models.preflight import measured_fit
    from forerun.models.prospects import Check, judge_speed

    given_template(config)
    config = as_listed(config)
    media_kinds(config)
    found = preflight(config)
    if not found.is_usable:
        return Check(found)
    fit = measured_fit(found, Configured(config))
    if fit is not None:
        found.findings += judge_fit(fit, found.usable_limits.n_ctx, is_asked=config.n_ctx is not None)
    config = settled(config, found)
    curves = [None if config.recalibrate else _known_curve(one, config) for one in found.candidates]
    if measures and None in curves:
        if (load := machine_load()) > _BUSY:
            busy = f"other programs keep {load:.1f} cores busy while costs are measured: measure again without them"
            found.findings.append(Finding(Verdict.WARNING, "speed", f"{busy} (--measure)"))
        pairs = zip(found.candidates, curves, strict=True)
        curves = [_measured_or_told(one, config, found, progress) if curve is None else curve for one, curve in pairs]
    return judge_speed(found, curves, config.draft_tokens or MAX_AUTO_DRAFT_TOKENS, fit)


def _measured_or_told(
    candidate: Candidate, config: EngineConfig, found: Preflight, progress: PhaseProgress | None
) -> CostCurve | None:
    """A model's costs here; None where they could not be measured, which is then a finding."""
    from forerun.models.findings import Finding, Verdict

    try:
        return _measured(candidate, config, progress)
    except ForerunError as error:
        found.findings.append(Finding(Verdict.WARNING, "speed", f"costs could not be measured: {error}"))
        return None


def _load(
    path: Path, config: EngineConfig, loaded: ExitStack, progress: PhaseProgress | None, *, with_mtp: bool = False
) -> LlamaModel:
    from forerun.native.model import LlamaModel

    def report(share: float) -> None:
        if progress is not None:
            progress(path.name, share)

    model = LlamaModel.load(path, n_gpu_layers=config.n_gpu_layers, progress=report, with_mtp=with_mtp)
    loaded.callback(model.close)
    return model


def _adapters(model: LlamaModel, found: Preflight, digests: Mapping[str, str]) -> dict[str, LoraAdapter]:
    """The target's adapters, loaded: freed with it. Raises ModelLoadError, also for a file that just changed."""
    from forerun.native.adapters import LoraAdapter

    loaded = {name: LoraAdapter.load(model, header.path) for name, header in found.adapters.items()}
    for name, digest in adapter_digests(found).items():
        if digest != digests[name]:
            raise ModelLoadError(f"{loaded[name].path}: the adapter changed while it was loaded: load it again")
    return loaded


def _applied(adapters: Mapping[str, LoraAdapter], contexts: Sequence[LlamaContext]) -> AppliedAdapters | None:
    """What applies them to the contexts of their model: the target's, and its MTP head's where there is one."""
    from forerun.native.adapters import AppliedAdapters

    own = [context for context in contexts if context.model is contexts[0].model]
    return AppliedAdapters(adapters, own) if adapters else None


def adapter_digests(found: Preflight, progress: PhaseProgress | None = None) -> dict[str, str]:
    """What KV that was computed with them depends on, by name."""
    from forerun.models.file_digest import file_digest

    return {name: file_digest(header.path, progress) for name, header in found.adapters.items()}


def _rollback(context: LlamaContext, config: EngineConfig, n_seq_max: int) -> Rollback | None:
    """What takes rejected rows back, on the ids from n_seq_max on; None where they can be cut off or there are none."""
    from forerun.native.rollback import Rollback

    spare = config.rollback_ids(has_state=context.memory.has_state)
    return Rollback(context, n_seq_max, spare) if spare else None


def _context(
    model: LlamaModel, config: EngineConfig, n_ctx: int, loaded: ExitStack, *, is_mtp: bool = False
) -> LlamaContext:
    from forerun.native.context import LlamaContext

    memory = DENSE if is_mtp else model.memory
    context = LlamaContext(model, context_params(config, n_ctx, memory, is_mtp=is_mtp))
    loaded.callback(context.close)
    return context


def calibrate(config: EngineConfig, progress: PhaseProgress | None = None) -> list[tuple[Path, CostCurve]]:
    """The cost curves of the model and, where there is one, its draft. Raises ModelError."""
    config = as_listed(config)
    found = preflight(config)
    config = settled(config, found)
    return [(candidate.header.path, _measured(candidate, config, progress)) for candidate in found.candidates]


def _measured(candidate: Candidate, config: EngineConfig, progress: PhaseProgress | None) -> CostCurve:
    """Load a model for as long as its cost curve, or its head's, takes."""
    with ExitStack() as loaded:
        model = _load(candidate.header.path, config, loaded, progress, with_mtp=candidate.is_mtp)
        context = _context(model, config, config.n_ctx or model.n_ctx_train, loaded, is_mtp=candidate.is_mtp)
        return cost_curve(context, config, progress)


def _known_curve(candidate: Candidate, config: EngineConfig) -> CostCurve | None:
    params = context_params(config, 1, candidate.memory, is_mtp=candidate.is_mtp)
    return known_curve(candidate.header.path, params, config)


def _threads(params: ContextParams, front_end: int | None) -> Callable[[int], int] | None:
    """How many threads to compute so many rows with beside other programs; None where answers would change."""
    threads = max(params.n_threads, params.n_threads_batch)
    spare = None if params.flash_attention else spare_cores(threads, front_end)
    return None if spare is None else spare.threads


def _interrupt(contexts: Sequence[LlamaContext]) -> None:
    for context in contexts:
        context.request_abort()


def _with_plug_in(factory: DrafterFactory, config: SchedulerConfig, model: LlamaModel) -> list[Drafter]:
    """Forerun's lookups, and then the user's. Raises InvalidConfigError."""
    context = DrafterContext(vocabulary=model.vocabulary, n_ctx=config.n_ctx)
    return [*own_lookups(config), make_drafter(factory, context)]


def _scheduler_config(
    config: EngineConfig,
    limits: Limits,
    context: LlamaContext,
    drafter: LlamaDrafter | None,
    tiers: OpenTiers | None,
    adapters: Mapping[str, str],
    media: OpenMedia | None,
) -> SchedulerConfig:
    return SchedulerConfig(
        **(tiers.limits() if tiers else {}),
        n_ctx=limits.n_ctx,
        n_seq_max=limits.n_seq_max,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_logit_rows=config.logit_rows,
        max_queue=config.max_queue,
        target_itl_ms=config.latency_ms,
        speculation=config.draft_tokens,
        suffix_tokens=config.suffix_tokens,
        draft_n_ctx=limits.draft_n_ctx,
        memory=context.memory,
        draft_memory=drafter.context.memory if drafter else DENSE,
        synthetic_acceptance=config.synthetic_acceptance,
        draft_name=drafter.name if drafter else MODEL_DRAFTER,
        verification=Verification(config.verification),
        adapters=adapters,
        splits_media=media is not None and media.splits_media,
        reuse_prefixes=config.reuse_prefixes,
    )


def given_template(config: EngineConfig) -> str | None:
    """The template that users gave instead of the model's own, if any. Raises InvalidConfigError."""
    from forerun.chat.template_file import read_template

    return None if config.chat_template is None else read_template(config.chat_template)


def chat_template(model: LlamaModel, given: str | None = None) -> ChatRenderer | None:
    """What writes prompts with the template that was given, else the model's own; None where there is none."""
    from forerun.chat.prompts import PromptWriter
    from forerun.chat.templates import ChatTemplate

    vocabulary = model.vocabulary
    source = vocabulary.chat_template if given is None else given
    if source is None:
        return None
    bos, eos = (vocabulary.token_text(token) if token >= 0 else "" for token in (vocabulary.bos, vocabulary.eos))
    return PromptWriter(ChatTemplate(source, bos, eos), vocabulary.control_tokens)


def model_identity(config: EngineConfig, found: Preflight, progress: PhaseProgress | None = None) -> ModelIdentity:
    """What stored KV of a usable pair depends on. Reads the models' files where it is their first time.

    Raises ModelLoadError.
    """
    from forerun.models.model_identity import ModelIdentity, is_beyond_training
    from forerun.models.package import bundle_of
    from forerun.native.build import library_build

    target, *drafts = found.candidates
    limits = found.usable_limits
    contexts = zip(found.candidates, (limits.n_ctx, limits.draft_n_ctx), strict=False)
    draft = next((one.header for one in drafts if not one.is_mtp), None)
    return ModelIdentity(
        bundle=bundle_of(target.header, draft, has_mtp=found.with_mtp, progress=progress),
        target_name=target.header.path.name,
        draft_name=next((one.name for one in drafts), ""),
        build=library_build(),
        settings=context_params(config, limits.n_ctx, target.memory).numbers(),
        beyond_training=tuple(is_beyond_training(one.header, n_ctx) for one, n_ctx in contexts),
    )
