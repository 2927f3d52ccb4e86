"""The one place that joins core, native and engine: from a configuration to an engine on a real model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from forerun.core.config import MODEL_DRAFTER, SchedulerConfig, Verification
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.request import AUTO, MAX_DRAFT_TOKENS, OFF
from forerun.core.scheduler import Scheduler, own_lookups
from forerun.core.step import Drafter
from forerun.core.synthetic import SyntheticAcceptance
from forerun.core.verification import verify
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.cores import machine_load, physical_cores
from forerun.engine.engine import BlockingEngine
from forerun.engine.parts import ChatRenderer, EngineParts
from forerun.errors import ForerunError, InvalidConfigError, ModelLoadError
from forerun.plugins import DrafterContext, DrafterFactory, find_factory, make_drafter

if TYPE_CHECKING:  # forerun.native loads llama.cpp: only `build` does that
    from forerun.models.gguf_header import GgufHeader
    from forerun.models.preflight import Candidate, Limits, Preflight
    from forerun.models.prospects import Check
    from forerun.native.context import ContextParams, LlamaContext
    from forerun.native.drafter import LlamaDrafter
    from forerun.native.model import LlamaModel
    from forerun.native.rollback import Rollback

logger = logging.getLogger(__name__)

DEFAULT_MAX_N_CTX = 8192
"""Without n_ctx a model gets its training context, but no more than this: KV memory is allocated at once."""
MAX_AUTO_DRAFT_TOKENS = 32
"""Drafted tokens a step and sequence at most, however well they are accepted."""
_BUSY = 0.7
"""Cores that other programs may use before measured costs are told to be theirs too."""
DEFAULT_N_SEQ_MAX = 128
_IDLE_STATES = 16
"""Cached prefixes that recurrent and hybrid models have ids for."""
MAX_SEQUENCE_IDS = 256
"""llama.cpp's LLAMA_MAX_SEQ."""

LoadProgress = Callable[[str, float], None]
"""Told the model's name and the share that is loaded, 0 to 1."""

MAX_N_CTX = 2**24
"""llama.cpp fills about 40 bytes a cell before it allocates the cells themselves: no more, or the system ends us."""

_LIMITS: dict[str, tuple[int, int]] = {
    "n_ctx": (1, MAX_N_CTX),
    "draft_n_ctx": (1, MAX_N_CTX),
    "max_num_batched_tokens": (1, 2**20),
    "n_ubatch": (1, 2**20),
    "max_num_seqs": (1, MAX_SEQUENCE_IDS),
    "n_seq_max": (1, MAX_SEQUENCE_IDS),
    "max_queue": (1, 2**31 - 1),
    "n_threads": (1, 1024),
    "n_gpu_layers": (-1, 2**31 - 1),
    "speculation": (0, MAX_DRAFT_TOKENS),
    "suffix_tokens": (0, 2**26),
}
_OPTIONAL = {"n_ctx", "draft_n_ctx", "n_seq_max", "n_threads", "speculation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is made of. Raises InvalidConfigError, naming the field, for values that make no sense."""

    model: str
    """Path of a GGUF file (a Path too), or the name of a packaged model ("smollm2")."""
    draft: str | None = None
    """A draft model with the same vocabulary, named the same way."""
    n_ctx: int | None = None
    """KV cells, all sequences together. None: the model's training context, at most DEFAULT_MAX_N_CTX."""
    mtp: bool | None = None
    """Let the model's own MTP (NextN) head draft. True: or refuse to load, saying why. None: where it has a head that
    can, speculation is on and there is no `draft`.
    """
    draft_n_ctx: int | None = None
    """KV cells of the draft model or MTP head. None: as many as the target's, at most its training context."""
    max_num_batched_tokens: int = 512
    """Rows of one step at most (llama.cpp's n_batch)."""
    n_ubatch: int = 512
    """Rows computed at a time inside a step."""
    max_num_seqs: int = 16
    """Requests that run at the same time."""
    n_seq_max: int | None = None
    """Sequence ids: running requests and cached prefixes together. None: DEFAULT_N_SEQ_MAX, or a few more than
    max_num_seqs for recurrent and hybrid models, which hold a whole state for each id.
    """
    max_queue: int = 2**31 - 1
    """Requests that may wait; one more is refused."""
    n_threads: int | None = None
    """CPU threads. None: the physical cores this process may run on."""
    n_gpu_layers: int = -1
    """Layers on the GPU where llama.cpp has one; -1 all."""
    speculation: int | Literal["auto", "off"] | None = None
    """"auto": drafts go where measured costs and acceptance say they pay, zero included. A number: so many drafted
    tokens a step and sequence at most, whatever they cost; 0 is "off". None: "auto" with `draft`,
    `mtp` or `drafter`, off without.
    Requests may ask for less (SamplingParams.speculation).
    """
    drafter: str | Drafter | DrafterFactory | None = None
    """A drafter of your own beside Forerun's: "module:factory", a factory, or the drafter itself (docs/drafters.md)."""
    suffix_tokens: int = 2**20
    """Tokens of past outputs that are kept to draft from, 36 bytes each; 0 none."""
    synthetic_acceptance: float | None = None
    """For measuring only: each drafted token is accepted with this probability (0 to 1), whatever the model says. Costs
    are real, answers are not, and every output says so. Without a draft model a dummy drafts, as much as it may;
    `speculation` is then "auto" where nothing is said.
    """
    verification: Literal["auto", "match", "rejection"] = "auto"
    """How a draft model's proposals are verified where a request samples and gives no seed: "match" them with what is
    chosen anyway, by "rejection" sampling, which accepts a little more, or "auto": by what has been accepting more.
    """
    recalibrate: bool = False
    """Measure costs again, also where they are known of this model, build and machine."""
    reuse_prefixes: bool = True
    """False computes every prompt from scratch."""
    checks_integrity: bool = False
    """Check every owner's bookkeeping whenever the engine goes idle."""

    def __post_init__(self) -> None:
        for name in ("model", "draft"):
            object.__setattr__(self, name, _file_name(name, getattr(self, name)))
        for name, (low, high) in _LIMITS.items():
            if name != "speculation" or _is_number(name, self.speculation, (AUTO, OFF)):
                _check(name, getattr(self, name), low, high)
        _check_share("synthetic_acceptance", self.synthetic_acceptance)
        if self.mtp is not None and not isinstance(self.mtp, bool):
            _refuse("mtp", f"must be true, false or None, got {self.mtp!r}")
        if self.mtp and self.draft is not None:
            _refuse("mtp", f"there is the draft model {self.draft} already; give one of the two")
        if self.mtp and not self.draft_tokens:
            _refuse("mtp", "an MTP head drafts, but speculation is 0")
        if self.verification not in list(Verification):
            _refuse("verification", f"must be one of {', '.join(Verification)}, got {self.verification!r}")
        if self.n_seq_max is not None and self.max_num_seqs > self.n_seq_max:
            _refuse("max_num_seqs", f"is {self.max_num_seqs}, but there are only n_seq_max = {self.n_seq_max} ids")
        if self.max_num_seqs > self.max_num_batched_tokens:
            rows = f"max_num_batched_tokens = {self.max_num_batched_tokens} rows"
            _refuse("max_num_seqs", f"is {self.max_num_seqs}, but a step holds only {rows}")

    def sequence_ids(self, *, has_state: bool) -> int:
        """Ids of requests and cached prefixes: cheap where memory is cells, a whole state each where it is one."""
        if self.n_seq_max is not None:
            return self.n_seq_max
        if not has_state:
            return max(DEFAULT_N_SEQ_MAX, self.max_num_seqs)
        return min(self.max_num_seqs + _IDLE_STATES, max(MAX_SEQUENCE_IDS - self.max_num_seqs, self.max_num_seqs))

    def native_ids(self, *, has_state: bool) -> int:
        """Ids that a context needs: with a state, one more for each request whose drafts may have to be taken back.

        Raises InvalidConfigError where llama.cpp has not so many.
        """
        ids = self.sequence_ids(has_state=has_state)
        if not has_state or not self.draft_tokens:
            return ids
        if ids + self.max_num_seqs > MAX_SEQUENCE_IDS:
            _refuse(
                "n_seq_max",
                f"is {ids}; with speculation, a recurrent or hybrid model needs max_num_seqs = {self.max_num_seqs} ids "
                f"beside it to take rejected drafts back, and there are {MAX_SEQUENCE_IDS} in all",
            )
        return ids + self.max_num_seqs

    @property
    def draft_tokens(self) -> int:
        """Drafted tokens a step and sequence at most."""
        if self.drafts_by_gain:
            return MAX_AUTO_DRAFT_TOKENS
        return self.speculation if isinstance(self.speculation, int) else 0

    @property
    def drafts_by_gain(self) -> bool:
        """Whether draft lengths follow measured costs."""
        drafters = (self.draft, self.mtp or None, self.drafter, self.synthetic_acceptance)
        has_drafter = any(given is not None for given in drafters)
        return self.speculation == AUTO or (self.speculation is None and has_drafter)


def _file_name(name: str, value: object) -> str | None:
    """A name or path as text: callers may give a Path."""
    if value is None and name == "draft":
        return None
    if not isinstance(value, str | os.PathLike):
        _refuse(name, f"must be a path or a known name, got {value!r}")
    return os.fsdecode(value)


def _check(name: str, value: object, low: int, high: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(name, f"must be a whole number, got {value!r}")
    if not low <= value <= high:
        _refuse(name, f"must lie between {low} and {high}, got {value}")


def _is_number(name: str, value: object, words: tuple[str, ...]) -> bool:
    """Whether a value is to be checked as a number; False for one of `words`."""
    if isinstance(value, str) and value not in words:
        _refuse(name, f"must be a whole number or one of {', '.join(map(repr, words))}, got {value!r}")
    return not isinstance(value, str)


def _check_share(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, f"must be a number, got {value!r}")
    if not 0 <= value <= 1:  # also refuses NaN
        _refuse(name, f"must lie between 0 and 1, got {value}")


def _refuse(name: str, message: str) -> NoReturn:
    raise InvalidConfigError(name, message)


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


def build(config: EngineConfig, progress: LoadProgress | None = None) -> EngineParts:
    """Find, check and load the models, and join everything. Raises ModelError with one clear line."""
    from forerun.native.drafter import LlamaDrafter
    from forerun.native.mtp import MtpDrafter
    from forerun.native.runner import LlamaRunner

    factory = None if config.drafter is None else find_factory(config.drafter)
    found = preflight(config)
    found.require_usable()
    limits, paths, with_mtp = found.usable_limits, found.paths, found.with_mtp
    with ExitStack() as loaded:
        model = _load(paths[0], config, loaded, progress, with_mtp=with_mtp)
        n_ctx, draft_n_ctx = limits.n_ctx, limits.draft_n_ctx
        if n_ctx > model.n_ctx_train:
            logger.warning(
                "n_ctx %d is beyond the %d tokens %s was trained for", n_ctx, model.n_ctx_train, paths[0].name
            )
        context = _context(model, config, n_ctx, loaded)
        drafter: LlamaDrafter | None = None
        if with_mtp:
            drafter = MtpDrafter(_context(model, config, draft_n_ctx, loaded, is_mtp=True), context)
        elif draft_n_ctx:
            draft = _load(paths[1], config, loaded, progress)
            draft_context = _context(draft, config, draft_n_ctx, loaded)
            rollback = _rollback(draft_context, limits.n_seq_max)
            drafter = LlamaDrafter(draft_context, model.vocabulary.size, rollback)
        synthetic = config.synthetic_acceptance
        verification = verify if synthetic is None else SyntheticAcceptance(synthetic).verify
        contexts = [context] if drafter is None else [context, drafter.context]
        costs = _costs(config, contexts, progress) if config.drafts_by_gain else None
        scheduler_config = _scheduler_config(config, limits, context, drafter)
        lookups = None if factory is None else _with_plug_in(factory, scheduler_config, model)
        return EngineParts(
            scheduler=Scheduler(scheduler_config, model.vocabulary, costs=costs, lookups=lookups),
            runner=LlamaRunner(context, drafter, verification, _rollback(context, limits.n_seq_max)),
            vocabulary=model.vocabulary,
            chat_template=_chat_template(model),
            model_name=paths[0].name,
            n_ctx=n_ctx,
            interrupt=lambda: _interrupt(contexts),
            dispose=loaded.pop_all().close,
            checks_integrity=config.checks_integrity,
        )


def preflight(config: EngineConfig) -> Preflight:
    """Whether models, limits and machine fit together, found out without loading weights. Raises no ModelError."""
    from forerun.models.preflight import inspect

    return inspect(_Wanted(config))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Implements models.preflight.Wanted: what a configuration comes out as for the files it names."""

    config: EngineConfig

    @property
    def target(self) -> str:
        return self.config.model

    @property
    def draft(self) -> str | None:
        return self.config.draft

    def drafts_with_mtp(self, target: GgufHeader) -> bool:
        return _drafts_with_mtp(self.config, target)

    def limits(self, n_ctx_train: int, draft_n_ctx_train: int | None) -> Limits:
        from forerun.models.preflight import Limits

        config = self.config
        n_ctx = config.n_ctx or min(n_ctx_train, DEFAULT_MAX_N_CTX)
        is_drafting = draft_n_ctx_train is not None and config.draft_tokens > 0
        draft_n_ctx = config.draft_n_ctx or min(n_ctx, draft_n_ctx_train or n_ctx)
        return Limits(
            n_ctx=n_ctx,
            draft_n_ctx=draft_n_ctx if is_drafting else 0,
            n_seq_max=config.sequence_ids(has_state=False),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            draft_tokens=config.draft_tokens,
        )

    def model_params(self, *, with_mtp: bool) -> dict[str, int | float | bool]:
        params: dict[str, int | float | bool] = {"n_gpu_layers": self.config.n_gpu_layers}
        return params | {"load_mtp": True} if with_mtp else params

    def context_params(self, n_ctx: int, *, is_mtp: bool) -> dict[str, int | float | bool]:
        return _context_params(self.config, n_ctx, is_mtp=is_mtp).numbers()

    def sequence_ids(self, *, has_state: bool) -> int:
        return self.config.sequence_ids(has_state=has_state)

    def native_ids(self, *, has_state: bool) -> int:
        return self.config.native_ids(has_state=has_state)


def check(config: EngineConfig, *, measures: bool, progress: LoadProgress | None = None) -> Check:
    """Everything `preflight` finds, and what drafting can bring here: from costs known, or measured with `measures`.

    Measuring takes a few seconds a model, and loads its weights; it is done only for a pair that is usable.
    """
    from forerun.models.preflight import Finding, Verdict
    from forerun.models.prospects import Check, judge_speed

    found = preflight(config)
    if not found.is_usable:
        return Check(found)
    curves = [None if config.recalibrate else _known_curve(one, config) for one in found.candidates]
    if measures and None in curves:
        if (load := machine_load()) > _BUSY:
            busy = f"other programs keep {load:.1f} cores busy while costs are measured: measure again without them"
            found.findings.append(Finding(Verdict.WARNING, "speed", f"{busy} (--measure)"))
        pairs = zip(found.candidates, curves, strict=True)
        curves = [_measured_or_told(one, config, found, progress) if curve is None else curve for one, curve in pairs]
    return judge_speed(found, curves, config.draft_tokens or MAX_AUTO_DRAFT_TOKENS)


def _measured_or_told(
    candidate: Candidate, config: EngineConfig, found: Preflight, progress: LoadProgress | None
) -> CostCurve | None:
    """A model's costs here; None where they could not be measured, which is then a finding."""
    from forerun.models.preflight import Finding, Verdict

    try:
        return _measured(candidate, config, progress)
    except ForerunError as error:
        found.findings.append(Finding(Verdict.WARNING, "speed", f"costs could not be measured: {error}"))
        return None


def _drafts_with_mtp(config: EngineConfig, header: GgufHeader) -> bool:
    """Whether the model's MTP head drafts. Raises ModelLoadError where it is to and cannot."""
    from forerun.models.nextn import nextn_layers, why_no_mtp
    from forerun.native.nextn import why_no_nextn

    is_allowed = config.mtp is not False and config.draft is None and config.draft_tokens > 0
    if not is_allowed or not (config.mtp or nextn_layers(header)):
        return False
    reason = why_no_mtp(header) or why_no_nextn()
    if reason and config.mtp:
        raise ModelLoadError(f"{header.path}: its MTP head cannot draft: {reason}")
    if reason:
        logger.info("%s: its MTP head does not draft: %s", header.path, reason)
    return reason is None


def _load(
    path: Path, config: EngineConfig, loaded: ExitStack, progress: LoadProgress | None, *, with_mtp: bool = False
) -> LlamaModel:
    from forerun.native.model import LlamaModel

    def report(share: float) -> None:
        if progress is not None:
            progress(path.name, share)

    model = LlamaModel.load(path, n_gpu_layers=config.n_gpu_layers, progress=report, with_mtp=with_mtp)
    loaded.callback(model.close)
    return model


def _rollback(context: LlamaContext, n_seq_max: int) -> Rollback | None:
    """What takes rejected rows back, on the ids from n_seq_max on; None where they can be cut off or there are none."""
    from forerun.native.rollback import Rollback

    spare = context.params.n_seq_max - n_seq_max
    return Rollback(context, n_seq_max, spare) if context.memory.has_state and spare > 0 else None


def _context(
    model: LlamaModel, config: EngineConfig, n_ctx: int, loaded: ExitStack, *, is_mtp: bool = False
) -> LlamaContext:
    from forerun.native.context import LlamaContext

    memory = DENSE if is_mtp else model.memory
    context = LlamaContext(model, _context_params(config, n_ctx, memory, is_mtp=is_mtp))
    loaded.callback(context.close)
    return context


def _context_params(
    config: EngineConfig, n_ctx: int, memory: MemoryKind = DENSE, *, is_mtp: bool = False
) -> ContextParams:
    from forerun.native.context import ContextParams

    n_seq_max = config.native_ids(has_state=memory.has_state)
    threads = config.n_threads or physical_cores()
    # llama.cpp ends the process where a batch has no room for a row of every sequence id, and cuts batches down to the
    # context. So both are made large enough here, and the scheduler keeps to the limits that were asked for.
    n_batch = max(config.max_num_batched_tokens, n_seq_max)
    return ContextParams(
        n_ctx=max(n_ctx, n_batch),
        n_batch=n_batch,
        # Several micro-batches could take cells of a window that taking back rejected drafts needs.
        n_ubatch=n_batch if memory.window else min(config.n_ubatch, n_batch),
        n_seq_max=n_seq_max,
        n_threads=threads,
        n_threads_batch=threads,
        is_mtp=is_mtp,
    )


def _costs(config: EngineConfig, contexts: Sequence[LlamaContext], progress: LoadProgress | None) -> StepCosts:
    """What target and draft cost here: remembered, or measured now."""
    target, *draft = [LiveCosts(cost_curve(context, config, progress)) for context in contexts]
    return StepCosts(target, draft[0] if draft else None)


def calibrate(config: EngineConfig, progress: LoadProgress | None = None) -> list[tuple[Path, CostCurve]]:
    """The cost curves of the model and, where there is one, its draft. Raises ModelError."""
    found = preflight(config)
    found.require_usable()
    return [(candidate.header.path, _measured(candidate, config, progress)) for candidate in found.candidates]


def _measured(candidate: Candidate, config: EngineConfig, progress: LoadProgress | None) -> CostCurve:
    """Load a model for as long as its cost curve, or its head's, takes."""
    with ExitStack() as loaded:
        model = _load(candidate.header.path, config, loaded, progress, with_mtp=candidate.is_mtp)
        n_ctx = config.n_ctx or min(model.n_ctx_train, DEFAULT_MAX_N_CTX)
        return cost_curve(_context(model, config, n_ctx, loaded, is_mtp=candidate.is_mtp), config, progress)


def _known_curve(candidate: Candidate, config: EngineConfig) -> CostCurve | None:
    """The cost curve of a model, or its head, where it was measured before; loads nothing."""
    from forerun.models.cost_cache import CostCache
    from forerun.native.calibration import calibration_key

    params = _context_params(config, 1, candidate.memory, is_mtp=candidate.is_mtp)
    return CostCache.of_user().get(calibration_key(candidate.header.path, params, config.n_gpu_layers))


def cost_curve(context: LlamaContext, config: EngineConfig, progress: LoadProgress | None = None) -> CostCurve:
    """Milliseconds by rows of one context's decodes, measured once for each model, build, machine and settings."""
    from forerun.models.cost_cache import CostCache
    from forerun.native.calibration import Calibration, calibration_key

    cache, key = CostCache.of_user(), calibration_key(context.model.path, context.params, config.n_gpu_layers)
    curve = None if config.recalibrate else cache.get(key)
    if curve is None:
        if progress is not None:
            progress(f"measuring {context.model.path.name}", 0.0)
        # On a thread that ends: what llama.cpp's OpenMP keeps for a thread that decoded once makes the engine's own
        # threads spin too little for as long as it is there (decision 4).
        with ThreadPoolExecutor(max_workers=1) as thread:
            curve = thread.submit(Calibration(context).measure).result()
        cache.put(key, curve)
        if progress is not None:
            progress(f"measuring {context.model.path.name}", 1.0)
    return curve


def _interrupt(contexts: Sequence[LlamaContext]) -> None:
    for context in contexts:
        context.request_abort()


def _with_plug_in(factory: DrafterFactory, config: SchedulerConfig, model: LlamaModel) -> list[Drafter]:
    """Forerun's lookups, and then the user's. Raises InvalidConfigError."""
    context = DrafterContext(vocabulary=model.vocabulary, n_ctx=config.n_ctx)
    return [*own_lookups(config), make_drafter(factory, context)]


def _scheduler_config(
    config: EngineConfig, limits: Limits, context: LlamaContext, drafter: LlamaDrafter | None
) -> SchedulerConfig:
    return SchedulerConfig(
        n_ctx=limits.n_ctx,
        n_seq_max=limits.n_seq_max,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_queue=config.max_queue,
        speculation=config.draft_tokens,
        suffix_tokens=config.suffix_tokens,
        draft_n_ctx=limits.draft_n_ctx,
        memory=context.memory,
        draft_memory=drafter.context.memory if drafter else DENSE,
        synthetic_acceptance=config.synthetic_acceptance,
        draft_name=drafter.name if drafter else MODEL_DRAFTER,
        verification=Verification(config.verification),
        reuse_prefixes=config.reuse_prefixes,
    )


def _chat_template(model: LlamaModel) -> ChatRenderer | None:
    from forerun.chat.templates import ChatTemplate

    vocabulary = model.vocabulary
    if vocabulary.chat_template is None:
        return None
    bos, eos = (vocabulary.token_text(token) if token >= 0 else "" for token in (vocabulary.bos, vocabulary.eos))
    return ChatTemplate(vocabulary.chat_template, bos, eos)
