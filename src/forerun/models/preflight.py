"""Do target, draft, limits and machine fit together? Decided before any weights are loaded.

`inspect` looks (headers, llama.cpp without weights, the machine's memory); everything else here is a pure judgement of
what it found. Building an engine and `forerun check` use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from forerun.core.memory import DENSE, MemoryKind
from forerun.errors import CatalogError, IncompatibleDraftError, ModelError, ModelLoadError
from forerun.models.adapter_file import read_adapter_header
from forerun.models.embedding_file import pools
from forerun.models.findings import Finding, Verdict, size
from forerun.models.fit import MOST_CHOSEN, Fit, Place, fit_of, places_of
from forerun.models.gguf_header import GgufHeader
from forerun.models.gpu_memory import free_on_gpus
from forerun.models.machine_memory import FreeMemory, free_memory
from forerun.models.memory_findings import beside, itemised, judge_places, resident
from forerun.models.nextn import why_no_mtp
from forerun.models.probe import probe_model
from forerun.models.resolve import resolve_model
from forerun.models.survey import ModelSurvey, survey_model
from forerun.models.vocabulary import require_same_vocabulary
from forerun.models.wanted import Limits, Wanted

_MOST_UNTOLD: Final = 8_192
"""The same where the system does not tell what is free."""
_LEAST_CHOSEN: Final = 2_048
_APART: Final = 16_384
"""Tokens between two surveys that tell what one more token takes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sound model file, and what it would take as loaded with the limits that are wanted."""

    header: GgufHeader
    survey: ModelSurvey
    is_mtp: bool = False
    """It is the file's MTP head, in a context of its own; the weights are counted with the target."""

    @property
    def memory(self) -> MemoryKind:
        """Where its context's memory can be cut; an MTP head's layers are plain attention."""
        return DENSE if self.is_mtp else MemoryKind(window=self.survey.n_swa, has_state=self.survey.has_state)

    @property
    def name(self) -> str:
        return f"{self.header.path.name}'s MTP head" if self.is_mtp else self.header.path.name


@dataclass(slots=True)
class Preflight:
    """What was found out about a pair.

    `target` and `draft` (a draft model, or the target's own MTP head) are None where they are refused, or not wanted.
    """

    target: Candidate | None = None
    draft: Candidate | None = None
    free: FreeMemory | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Bytes that are free on those that are used."""
    limits: Limits | None = None
    adapters: dict[str, GgufHeader] = field(default_factory=dict)
    """Those that fit the target, by name."""
    beside: dict[str, int] = field(default_factory=dict)
    """Bytes that are taken by neither model, by what for."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        return all(finding.verdict is not Verdict.REFUSED for finding in self.findings)

    def require_usable(self) -> None:
        """Raise the first refusal, a ModelError."""
        for finding in self.findings:
            if finding.error is not None:
                raise finding.error

    @property
    def candidates(self) -> list[Candidate]:
        """Target and, where there is one, draft."""
        return [candidate for candidate in (self.target, self.draft) if candidate is not None]

    @property
    def paths(self) -> list[Path]:
        """Their files, the target's first."""
        return [candidate.header.path for candidate in self.candidates if not candidate.is_mtp]

    @property
    def with_mtp(self) -> bool:
        """Whether the target's own MTP head drafts."""
        return self.draft is not None and self.draft.is_mtp

    @property
    def places(self) -> list[Place]:
        """What is needed of the machine's memory, and of each GPU's."""
        surveys = [candidate.survey for candidate in self.candidates]
        return places_of(surveys, self.free, self.gpus, sum(self.beside.values()))

    @property
    def needed(self) -> int:
        """Bytes that all take together, wherever; cached prefixes not counted."""
        return sum(place.needed for place in self.places)

    @property
    def repacked(self) -> int:
        """Bytes of weights that are copied for this processor: pages of the file that are there twice."""
        return sum(candidate.survey.repacked for candidate in self.candidates)

    @property
    def resident(self) -> int:
        """Bytes that the process will be seen to have in memory."""
        return self.places[0].needed + self.repacked

    @property
    def usable_limits(self) -> Limits:
        """The limits of a pair that is usable. Raises ValueError for others."""
        if self.limits is None:
            raise ValueError("a pair that is refused has no limits")
        return self.limits


@dataclass(frozen=True, slots=True)
class _Files:
    """The headers of what is to be loaded."""

    target: GgufHeader
    draft: GgufHeader | None
    with_mtp: bool

    @property
    def drafting(self) -> GgufHeader | None:
        return self.target if self.with_mtp else self.draft


def inspect(wanted: Wanted) -> Preflight:
    """Look at files and machine, choose what nobody says, and judge. Raises nothing that is a ModelError: those are
    findings."""
    found = Preflight(free=free_memory())
    target = _header("target", wanted.target, found)
    purpose = f" (it was to draft for {wanted.target})"
    draft = None if wanted.draft is None else _header("draft", wanted.draft, found, purpose)
    if target is None:
        return found
    files = _Files(target, draft, _drafts_with_mtp(target, wanted, found))
    adapters = [_adapter(name, path, target, found) for name, path in wanted.adapters.items()]
    _look(files, wanted, found)
    found.findings += adapters
    if found.is_usable:  # all files are sound
        limits = found.usable_limits
        found.limits = replace(limits, cache_ram=wanted.cache_ram(found.free, found.places[0].needed))
        found.findings += judge_together(found, target, draft)
    return found


def _look(files: _Files, wanted: Wanted, found: Preflight) -> None:
    """Survey the pair with what is wanted; what nobody says is halved until it fits."""
    told = len(found.findings)
    most = MOST_CHOSEN if found.free is not None else _MOST_UNTOLD
    n_ctx = wanted.n_ctx or min(_n_ctx_train(files.target), most)
    running = wanted.running
    while True:
        del found.findings[told:]
        _survey_pair(files, n_ctx, wanted.chosen(n_ctx, running), found)
        if not found.candidates or all(place.has_room for place in found.places):
            return
        host = found.places[0]
        if wanted.max_num_seqs is None and host.states > host.kv and running > 1:
            running //= 2
        elif wanted.n_ctx is None and n_ctx > _LEAST_CHOSEN:
            n_ctx = max(n_ctx // 2, _LEAST_CHOSEN)
        else:
            return


def _survey_pair(files: _Files, n_ctx: int, wanted: Wanted, found: Preflight) -> None:
    """What target and draft take with memory for so many tokens."""
    drafting = files.drafting
    limits = wanted.limits(n_ctx, None if drafting is None else _n_ctx_train(drafting))
    found.target = _candidate("target", files.target, limits.n_ctx, wanted, found, with_mtp=files.with_mtp)
    found.draft = None
    if files.with_mtp:
        found.draft = _head(files.target, limits.draft_n_ctx, wanted, found)
    elif files.draft is not None and limits.draft_n_ctx:
        found.draft = _candidate("draft", files.draft, limits.draft_n_ctx, wanted, found)
    elif files.draft is not None:
        found.findings.append(Finding(Verdict.NOTE, "draft", "not loaded: speculation is off"))
    has_state = any(candidate.memory.has_state for candidate in found.candidates)
    found.limits = replace(limits, n_seq_max=wanted.sequence_ids(has_state=has_state))
    if found.target is not None:
        adapters = sum(header.file_size for header in found.adapters.values())
        found.beside = {"program": found.target.survey.program, **wanted.beside, "adapters": adapters}
    if not found.gpus and any(candidate.survey.gpus for candidate in found.candidates):
        found.gpus = free_on_gpus()


def _header(subject: str, name: str, found: Preflight, purpose: str = "") -> GgufHeader | None:
    try:
        return probe_model(resolve_model(name))
    except CatalogError as error:
        found.findings.append(Finding.refused(subject, error))
    except ModelError as error:
        found.findings.append(Finding.refused(subject, type(error)(f"{error}{purpose}")))
    return None


def _adapter(name: str, path: str, target: GgufHeader, found: Preflight) -> Finding:
    try:
        header = read_adapter_header(Path(path).expanduser(), target)
    except ModelError as error:
        return Finding.refused("adapter", error)
    found.adapters[name] = header
    told = f"{name}: {header.path.name}, {len(header.tensors) // 2} weights adapted, {size(header.file_size)}"
    return Finding(Verdict.OK, "adapter", told)


def _drafts_with_mtp(target: GgufHeader, wanted: Wanted, found: Preflight) -> bool:
    try:
        return wanted.drafts_with_mtp(target)
    except ModelError as error:
        found.findings.append(Finding.refused("speculation", error))
        return False


def _candidate(
    subject: str, header: GgufHeader, n_ctx: int, wanted: Wanted, found: Preflight, *, with_mtp: bool = False
) -> Candidate | None:
    try:
        survey = _survey(header, n_ctx, wanted, with_mtp=with_mtp)
        if not survey.generates and pools(header):
            raise ModelLoadError(
                f"{header.path}: an embedding model ({header.architecture}): it writes no text, "
                "and `forerun serve` serves it at /v1/embeddings"
            )
        if not survey.generates:
            raise ModelLoadError(
                f"{header.path}: this model ({header.architecture}) does not remember what it has read token by token "
                "(an encoder, embedding or diffusion model); Forerun runs models that write text"
            )
    except ModelError as error:
        found.findings.append(Finding.refused(subject, error))
        return None
    kind = f"{header.architecture}, {size(survey.weights)}, {survey.memory}"
    found.findings.append(Finding(Verdict.OK, subject, f"{header.path.name}: {kind}"))
    return Candidate(header, survey)


def _head(header: GgufHeader, n_ctx: int, wanted: Wanted, found: Preflight) -> Candidate | None:
    """The target's MTP head: another context on the same weights."""
    try:
        survey = _survey(header, n_ctx, wanted, with_mtp=True, is_mtp=True)
    except ModelError as error:
        found.findings.append(Finding.refused("draft", error))
        return None
    head = Candidate(header, survey, is_mtp=True)
    found.findings.append(Finding(Verdict.OK, "draft", f"{head.name}, {survey.memory}"))
    return head


def _survey(
    header: GgufHeader, n_ctx: int, wanted: Wanted, *, with_mtp: bool = False, is_mtp: bool = False
) -> ModelSurvey:
    """Raises ModelError, and InvalidConfigError where there are too few sequence ids."""
    context = wanted.context_params(n_ctx, is_mtp=is_mtp)
    survey = survey_model(header, wanted.model_params(with_mtp=with_mtp), context)
    if is_mtp:  # the weights, and all that comes with them, are the target's
        gpus = tuple(replace(gpu, weights=0) for gpu in survey.gpus)
        return replace(survey, weights=0, repacked=0, other=0, gpus=gpus)
    ids = wanted.native_ids(has_state=survey.has_state)
    return survey.with_ids(ids, int(context["n_outputs_max"]), int(context["n_seq_max"]))


def measured_fit(found: Preflight, wanted: Wanted) -> Fit | None:
    """How much would fit, of a pair that is usable: each model is surveyed once more, with more memory for tokens.

    None where llama.cpp makes no context with more.
    """
    limits = found.usable_limits
    wanted = wanted.chosen(limits.n_ctx, limits.max_num_seqs)
    contexts = zip(found.candidates, (limits.n_ctx, limits.draft_n_ctx), strict=False)
    try:
        later = [
            _survey(one.header, n_ctx + _APART, wanted, with_mtp=found.with_mtp, is_mtp=one.is_mtp)
            for one, n_ctx in contexts
        ]
    except ModelError:
        return None
    has_state = any(candidate.memory.has_state for candidate in found.candidates)
    a_request = 2 if limits.draft_tokens else 1  # and one to take its drafts back
    return fit_of(
        found.places,
        places_of(later, found.free, found.gpus, sum(found.beside.values())),
        (limits.n_ctx, limits.n_ctx + _APART),
        found.candidates[0].survey.n_ctx_train,
        (wanted.native_ids(has_state=has_state), a_request),
    )


def _n_ctx_train(header: GgufHeader) -> int:
    value = header.hparam("context_length")
    return value if isinstance(value, int) else 1  # checked by probe_model


# --- judgements ---


def judge_together(found: Preflight, target: GgufHeader, draft: GgufHeader | None) -> list[Finding]:
    """All that sound files can still lack. `found` has what would be loaded, its limits and what is free."""
    findings = [] if draft is None else judge_vocabularies(target, draft)
    fits = all(finding.verdict is not Verdict.REFUSED for finding in findings)
    limits = found.usable_limits
    loaded, *drafts = found.candidates
    findings += judge_methods(loaded, drafts[0] if drafts else None, limits, fits=fits)
    findings += judge_context(loaded.survey, drafts[0].survey if drafts else None, limits)
    return findings + judge_memory(found)


def judge_memory(found: Preflight) -> list[Finding]:
    """What everything takes, and whether there is as much."""
    limits = found.usable_limits
    return [
        *(itemised(candidate.name, candidate.survey) for candidate in found.candidates),
        *beside(found.beside),
        *judge_places(found.places, found.paths, limits.cache_ram),
        *resident(found.resident, found.repacked),
    ]


def judge_vocabularies(target: GgufHeader, draft: GgufHeader) -> list[Finding]:
    """Whether every id means the same to both; what differs without harm is a note each."""
    try:
        comparison = require_same_vocabulary(target, draft)
    except IncompatibleDraftError as error:
        return [Finding.refused("vocabulary", error)]
    tokens = target.array("tokenizer.ggml.tokens")
    same = f"every id means the same to both ({0 if tokens is None else len(tokens)} tokens, special tokens included)"
    notes = [
        Finding(Verdict.NOTE, "vocabulary", f"{difference} (target against draft): harmless")
        for difference in comparison.cosmetic
    ]
    return [Finding(Verdict.OK, "vocabulary", same), *notes]


def judge_methods(target: Candidate, draft: Candidate | None, limits: Limits, *, fits: bool = True) -> list[Finding]:
    """Which ways of drafting the files allow. `fits`: whether the draft's vocabulary is the target's."""
    findings = [
        Finding(Verdict.OK, "speculation", "n-gram drafts, and drafts from past outputs: possible with every model")
    ]
    if draft is not None and fits and not draft.is_mtp:
        findings.append(_judge_draft(target, draft))
    reason = why_no_mtp(target.header)
    if reason is None:
        findings.append(Finding(Verdict.OK, "speculation", "MTP drafts: possible with this model's own head"))
    else:
        findings.append(Finding(Verdict.NOTE, "speculation", f"MTP drafts: not possible, {reason}"))
    spare = limits.max_num_batched_tokens - limits.max_num_seqs
    if limits.draft_tokens and spare < limits.draft_tokens:
        findings.append(
            Finding(
                Verdict.WARNING,
                "speculation",
                f"a step of {limits.max_num_batched_tokens} rows has room for {spare} drafted tokens beside "
                f"{limits.max_num_seqs} running requests: raise max_num_batched_tokens, or lower max_num_seqs",
            )
        )
    return findings


def _judge_draft(target: Candidate, draft: Candidate) -> Finding:
    if draft.survey.weights < target.survey.weights:
        ratio = target.survey.weights / draft.survey.weights
        return Finding(Verdict.OK, "speculation", f"draft model: possible, {ratio:.1f} times smaller than the target")
    sizes = f"{size(draft.survey.weights)} against the target's {size(target.survey.weights)}"
    return Finding(Verdict.WARNING, "speculation", f"the draft is no smaller than its target ({sizes}): swapped?")


def judge_context(target: ModelSurvey, draft: ModelSurvey | None, limits: Limits) -> list[Finding]:
    """Whether both can follow a conversation as long as the target's memory."""
    findings = [_judge_length("the target's", limits.n_ctx, target.n_ctx_train)]
    if draft is not None:
        if limits.draft_n_ctx < limits.n_ctx:
            findings.append(
                Finding(
                    Verdict.WARNING,
                    "context",
                    f"the draft holds {limits.draft_n_ctx} tokens, the target {limits.n_ctx}: what lies beyond, in one "
                    "request or all together, is answered without the draft model",
                )
            )
        findings.append(_judge_length("the draft's", limits.draft_n_ctx, draft.n_ctx_train))
    ids = f"{limits.n_seq_max} sequence ids, {limits.max_num_seqs} running at once"
    findings.append(Finding(Verdict.OK, "context", f"{ids}, {limits.max_num_batched_tokens} rows a step"))
    return findings


def _judge_length(whose: str, n_ctx: int, n_ctx_train: int) -> Finding:
    if n_ctx > n_ctx_train:
        beyond = f"{whose} {n_ctx} tokens are beyond the {n_ctx_train} it was trained for: answers get worse there"
        return Finding(Verdict.WARNING, "context", beyond)
    return Finding(Verdict.OK, "context", f"{whose} {n_ctx} tokens are within the {n_ctx_train} it was trained for")
