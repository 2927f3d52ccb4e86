"""Do target, draft, limits and machine fit together? Decided before any weights are loaded.

`inspect` looks (headers, llama.cpp without weights, the machine's memory); everything else here is a pure judgement of
what it found. Building an engine and `forerun check` use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from forerun.core.memory import DENSE, MemoryKind
from forerun.errors import IncompatibleDraftError, ModelError, ModelLoadError
from forerun.models.adapter_file import read_adapter_header
from forerun.models.embedding_file import pools
from forerun.models.gguf_header import GgufHeader
from forerun.models.machine_memory import FreeMemory, free_memory
from forerun.models.nextn import why_no_mtp
from forerun.models.probe import probe_model
from forerun.models.resolve import resolve_model
from forerun.models.survey import ModelSurvey, Params, survey_model
from forerun.models.vocabulary import require_same_vocabulary

TIGHT: Final = 0.85
"""Needing more than this share of the free memory is told: others want some too."""


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `error`: what a refusal is raised as."""

    verdict: Verdict
    subject: str
    """What it is about: "target", "draft", "adapter", "vocabulary", "context", "memory", "speculation" or "speed"."""
    message: str
    error: ModelError | None = None

    @classmethod
    def refused(cls, subject: str, error: ModelError) -> Finding:
        return cls(Verdict.REFUSED, subject, str(error), error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine would be given, in tokens, rows and sequence ids."""

    n_ctx: int
    draft_n_ctx: int
    """0 where no draft model is loaded."""
    n_seq_max: int
    max_num_seqs: int
    max_num_batched_tokens: int
    draft_tokens: int
    """Drafted tokens a step and sequence at most; 0 is off."""


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
    limits: Limits | None = None
    adapters: dict[str, GgufHeader] = field(default_factory=dict)
    """Those that fit the target, by name."""
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
    def needed(self) -> int:
        """Bytes that all take together."""
        return sum(candidate.survey.total for candidate in self.candidates) + self.adapter_bytes

    @property
    def adapter_bytes(self) -> int:
        return sum(header.file_size for header in self.adapters.values())

    @property
    def usable_limits(self) -> Limits:
        """The limits of a pair that is usable. Raises ValueError for others."""
        if self.limits is None:
            raise ValueError("a pair that is refused has no limits")
        return self.limits


class Wanted(Protocol):
    """What is asked for, and what it comes out as for the files that are found."""

    @property
    def target(self) -> str:
        """Name or path of the model."""
        ...

    @property
    def draft(self) -> str | None:
        """Name or path of the draft model."""
        ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """Paths of the model's adapters by name."""
        ...

    def drafts_with_mtp(self, target: GgufHeader) -> bool:
        """Whether the model's own MTP head drafts. Raises ModelLoadError where it is to and cannot."""
        ...

    def limits(self, n_ctx_train: int, draft_n_ctx_train: int | None) -> Limits:
        """The limits with models trained for so many tokens; None: nothing but n-grams drafts."""
        ...

    def model_params(self, *, with_mtp: bool) -> Params:
        """What llama.cpp will be given to load a model."""
        ...

    def context_params(self, n_ctx: int, *, is_mtp: bool) -> Params:
        """What llama.cpp will be given to make a context of so many cells, or its MTP head's; without a state."""
        ...

    def sequence_ids(self, *, has_state: bool) -> int:
        """Ids that requests and cached prefixes get."""
        ...

    def native_ids(self, *, has_state: bool) -> int:
        """Ids that the context is made for. Raises InvalidConfigError where that is too many."""
        ...


def inspect(wanted: Wanted) -> Preflight:
    """Look at files and machine, and judge. Raises nothing that is a ModelError: those are findings."""
    found = Preflight(free=free_memory())
    target = _header("target", wanted.target, found)
    draft = _header("draft", wanted.draft, found) if wanted.draft is not None else None
    if target is None:
        return found
    with_mtp = _drafts_with_mtp(target, wanted, found)
    drafting = target if with_mtp else draft
    limits = found.limits = wanted.limits(_n_ctx_train(target), None if drafting is None else _n_ctx_train(drafting))
    found.target = _candidate("target", target, limits.n_ctx, wanted, found, with_mtp=with_mtp)
    for name, path in wanted.adapters.items():
        _adapter(name, path, target, found)
    if with_mtp:
        found.draft = _head(target, limits.draft_n_ctx, wanted, found)
    elif draft is not None and limits.draft_n_ctx:
        found.draft = _candidate("draft", draft, limits.draft_n_ctx, wanted, found)
    elif draft is not None:
        found.findings.append(Finding(Verdict.NOTE, "draft", "not loaded: speculation is off"))
    has_state = any(candidate.memory.has_state for candidate in found.candidates)
    limits = found.limits = replace(limits, n_seq_max=wanted.sequence_ids(has_state=has_state))
    if found.is_usable:  # all files are sound
        found.findings += judge_together(found.candidates, target, draft, limits, found.free, found.adapter_bytes)
    return found


def _header(subject: str, name: str, found: Preflight) -> GgufHeader | None:
    try:
        return probe_model(resolve_model(name))
    except ModelError as error:
        found.findings.append(Finding.refused(subject, error))
        return None


def _adapter(name: str, path: str, target: GgufHeader, found: Preflight) -> None:
    try:
        header = read_adapter_header(Path(path).expanduser(), target)
    except ModelError as error:
        found.findings.append(Finding.refused("adapter", error))
        return
    found.adapters[name] = header
    told = f"{name}: {header.path.name}, {len(header.tensors) // 2} weights adapted, {size(header.file_size)}"
    found.findings.append(Finding(Verdict.OK, "adapter", told))


def _drafts_with_mtp(target: GgufHeader, wanted: Wanted, found: Preflight) -> bool:
    try:
        return wanted.drafts_with_mtp(target)
    except ModelError as error:
        found.findings.append(Finding.refused("speculation", error))
        return False


def _candidate(
    subject: str, header: GgufHeader, n_ctx: int, wanted: Wanted, found: Preflight, *, with_mtp: bool = False
) -> Candidate | None:
    model, context = wanted.model_params(with_mtp=with_mtp), wanted.context_params(n_ctx, is_mtp=False)
    try:
        survey = survey_model(header.path, model, context)
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
        if survey.has_state:
            survey = survey.with_ids(wanted.native_ids(has_state=True), int(context["n_seq_max"]))
    except ModelError as error:
        found.findings.append(Finding.refused(subject, error))
        return None
    kind = f"{header.architecture}, {size(survey.weights)}, {survey.memory}"
    found.findings.append(Finding(Verdict.OK, subject, f"{header.path.name}: {kind}"))
    return Candidate(header, survey)


def _head(header: GgufHeader, n_ctx: int, wanted: Wanted, found: Preflight) -> Candidate | None:
    """The target's MTP head: another context on the same weights."""
    model, context = wanted.model_params(with_mtp=True), wanted.context_params(n_ctx, is_mtp=True)
    try:
        survey = survey_model(header.path, model, context)
    except ModelError as error:
        found.findings.append(Finding.refused("draft", error))
        return None
    head = Candidate(header, replace(survey, weights=0, other=0), is_mtp=True)
    found.findings.append(Finding(Verdict.OK, "draft", f"{head.name}, {survey.memory}"))
    return head


def _n_ctx_train(header: GgufHeader) -> int:
    value = header.hparam("context_length")
    return value if isinstance(value, int) else 1  # checked by probe_model


# --- judgements ---


def judge_together(
    candidates: Sequence[Candidate],
    target: GgufHeader,
    draft: GgufHeader | None,
    limits: Limits,
    free: FreeMemory | None,
    adapter_bytes: int = 0,
) -> list[Finding]:
    """All that sound files can still lack. `candidates`: those that would be loaded, the target first."""
    findings = [] if draft is None else judge_vocabularies(target, draft)
    fits = all(finding.verdict is not Verdict.REFUSED for finding in findings)
    loaded, *drafts = candidates
    findings += judge_methods(loaded, drafts[0] if drafts else None, limits, fits=fits)
    findings += judge_context(loaded.survey, drafts[0].survey if drafts else None, limits)
    return findings + judge_memory(candidates, free, adapter_bytes)


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


def judge_memory(candidates: Sequence[Candidate], free: FreeMemory | None, adapter_bytes: int = 0) -> list[Finding]:
    """What everything takes, against what is free: more is refused, but for weights, which can be read again."""
    needed = sum(candidate.survey.total for candidate in candidates) + adapter_bytes
    weights = sum(candidate.survey.weights for candidate in candidates)
    findings = [Finding(Verdict.OK, "memory", _itemised(candidate)) for candidate in candidates]
    if adapter_bytes:
        findings.append(Finding(Verdict.OK, "memory", f"adapters: {size(adapter_bytes)}"))
    if free is None:
        findings.append(Finding(Verdict.NOTE, "memory", f"{size(needed)} together; what is free is not told here"))
        return findings
    numbers = f"{size(needed)} needed, {size(free.free)} free on {free.where}"
    if any(candidate.survey.has_gpu for candidate in candidates):
        findings.append(Finding(Verdict.NOTE, "memory", f"{numbers}; part of it goes to the GPU, which is not counted"))
    elif needed - weights > free.free:
        names = " and ".join(str(candidate.header.path) for candidate in candidates if not candidate.is_mtp)
        advice = "lower n_ctx, take a smaller quantisation, or end something else"
        findings.append(Finding.refused("memory", ModelLoadError(f"{names}: too little memory: {numbers}; {advice}")))
    elif needed > free.free:  # llama.cpp maps weights into memory: they are read again and again, but they run
        slow = "weights that do not fit are read from disk again for every token: very slow"
        findings.append(Finding(Verdict.WARNING, "memory", f"{numbers}; {slow}"))
    elif needed > TIGHT * free.free:
        findings.append(Finding(Verdict.WARNING, "memory", f"{numbers}: tight"))
    else:
        findings.append(Finding(Verdict.OK, "memory", numbers))
    return findings


def _itemised(candidate: Candidate) -> str:
    survey = candidate.survey
    parts = {
        "weights": survey.weights,
        "KV cells": survey.kv,
        "recurrent states": survey.state,
        "compute buffers": survey.compute,
        "logits": survey.outputs,
        "vocabulary and graph": survey.other,
    }
    shown = ", ".join(f"{name} {size(number)}" for name, number in parts.items() if number)
    return f"{candidate.name}: {size(survey.total)}: {shown}"


def size(number: int) -> str:
    """Bytes as people read them: "92 MiB", "1.04 GiB"."""
    mib = number / 2**20
    return f"{mib / 1024:.2f} GiB" if mib >= 1000 else f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"
