"""The options that commands share, grouped by what they become."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from forerun.cli.grammars import wanted_grammar
from forerun.cli.sizes import parse_size
from forerun.core.request import SamplingParams
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError, InvalidRequestError

_model = functools.partial(typer.Option, rich_help_panel="Model and memory")
_cache = functools.partial(typer.Option, rich_help_panel="Cached prefixes")
_sampling = functools.partial(typer.Option, rich_help_panel="Sampling")


def _speculation(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if text == "off":
        return 0
    if not text.isdecimal():
        raise typer.BadParameter(f"'auto', 'off' or a whole number, got {text!r}")
    return int(text)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise InvalidRequestError("logit_bias", f"TOKEN=BIAS, for instance 42=-1.5, got {text!r}") from None


def _adapter_file(text: str) -> tuple[str, str]:
    name, _, file = text.partition("=")
    if not name or not file:
        raise InvalidConfigError("adapter", f"NAME=FILE, for instance sql=sql-lora.gguf, got {text!r}")
    return name, file


UseAdapter = Annotated[
    list[str] | None,
    _sampling(metavar="NAME[=SCALE]", help="Answer with a LoRA adapter (--adapter); may be repeated."),
]


def adapter_scales(texts: Iterable[str] | None) -> dict[str, float]:
    """What --use-adapter says. Raises InvalidRequestError."""
    return dict(map(_adapter_scale, texts or ()))


def _adapter_scale(text: str) -> tuple[str, float]:
    name, has_scale, scale = text.partition("=")
    try:
        return name, float(scale) if has_scale else 1.0
    except ValueError:
        raise InvalidRequestError("adapters", f"NAME or NAME=SCALE, for instance sql=0.5, got {text!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a model is loaded, and how much memory and compute it gets."""

    draft: Annotated[
        str | None,
        _model(help="A smaller model with the same vocabulary that drafts ahead."),
    ] = None
    mmproj: Annotated[
        str | None,
        _model(metavar="FILE", help="The model's projector, e.g. mmproj-model-f16.gguf: prompts may hold pictures."),
    ] = None
    mtp: Annotated[
        bool | None,
        _model(
            "--mtp/--no-mtp",
            metavar="",
            help="The model's own MTP head drafts. Default: where it has one and no --draft.",
        ),
    ] = None
    drafter: Annotated[
        str | None,
        _model(
            metavar="MODULE:FACTORY", help="A drafter of your own, from this folder or installed (docs/drafters.md)."
        ),
    ] = None
    speculation: Annotated[
        Any,
        _model(
            parser=_speculation,
            metavar="auto|off|N",
            help="auto: draft as far as it pays by measured costs; N: at most N tokens a step, whatever they cost. "
            "Default: auto with --draft, --mtp or --drafter, else off.",
        ),
    ] = None
    synthetic_acceptance: Annotated[
        float | None,
        _model(
            min=0.0,
            max=1.0,
            metavar="P",
            help="For measuring: accept drafted tokens with probability P, whatever the model says; the text is void.",
        ),
    ] = None
    adapter: Annotated[
        list[str] | None,
        _model(metavar="NAME=FILE", help="A LoRA adapter (GGUF) that requests may select; may be repeated."),
    ] = None
    chat_template: Annotated[
        str | None, _model(metavar="FILE", help="A Jinja template for conversations, instead of the model's own.")
    ] = None
    n_ctx: Annotated[
        int | None,
        _model(
            "--n-ctx",
            help="Tokens of memory, all requests together. Default: the model's own, at most 32768, halved until that "
            "fits.",
        ),
    ] = None
    threads: Annotated[
        int | None, _model(help="CPU threads, less those whose cores other programs use. Default: the physical cores.")
    ] = None
    cache_ram: Annotated[
        str | None,
        _cache(
            metavar="SIZE",
            help="Host memory for prefixes, such as 2GiB; 0 none. Default: a quarter of what is free, at most 8GiB.",
        ),
    ] = None
    cache_dir: Annotated[
        str | None, _cache(metavar="PATH", help="A directory that keeps prefixes over restarts. Default: none does.")
    ] = None
    cache_disk: Annotated[str, _cache(metavar="SIZE", help="Files in --cache-dir at most.")] = "16GiB"
    n_gpu_layers: Annotated[int, _model("--n-gpu-layers", help="Layers on the GPU; -1 for all.")] = -1
    flash_attention: Annotated[
        bool | None,
        _model(
            "--flash-attention/--no-flash-attention",
            metavar="",
            help="llama.cpp's flash attention. Default: where layers are on a GPU; a CPU is faster without.",
        ),
    ] = None
    calibrate: Annotated[
        bool, _model("--calibrate", metavar="", help="Measure what decodes cost here again (auto speculation).")
    ] = False

    def engine(self, model: str) -> EngineConfig:
        """The configuration of an engine on a model. Raises InvalidConfigError."""
        if self.drafter is not None and "" not in sys.path:
            sys.path.insert(0, "")  # modules in the current folder, as under `python -m`
        return EngineConfig(
            model=model,
            draft=self.draft,
            projector=self.mmproj,
            mtp=self.mtp,
            drafter=self.drafter,
            speculation=self.speculation,
            synthetic_acceptance=self.synthetic_acceptance,
            adapters=dict(map(_adapter_file, self.adapter or ())),
            chat_template=self.chat_template,
            n_ctx=self.n_ctx,
            n_threads=self.threads,
            cache_ram=None if self.cache_ram is None else parse_size("cache_ram", self.cache_ram),
            cache_dir=self.cache_dir,
            cache_disk=parse_size("cache_disk", self.cache_disk),
            n_gpu_layers=self.n_gpu_layers,
            flash_attention=self.flash_attention,
            recalibrate=self.calibrate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(EngineOptions):
    """Which model, and how it is loaded."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Path of a GGUF file, or an id such as smollm2 (`forerun models list`), which brings its draft.",
        ),
    ]

    def config(self) -> EngineConfig:
        """Raises InvalidConfigError."""
        return self.engine(self.model)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the answer is chosen; SamplingParams checks the values."""

    max_tokens: Annotated[int, _sampling(help="Tokens of the answer at most.")] = 256
    temperature: Annotated[float, _sampling(help="0 always takes the likeliest token.")] = 0.0
    top_k: Annotated[int, _sampling(help="Keep the k likeliest; 0 keeps all.")] = 0
    top_p: Annotated[float, _sampling(help="Keep the likeliest that reach p together.")] = 1.0
    min_p: Annotated[float, _sampling(help="Drop what is p times less likely than the likeliest.")] = 0.0
    typical_p: Annotated[float, _sampling(help="Locally typical sampling; 1 is off.")] = 1.0
    repetition_penalty: Annotated[float, _sampling(help="Above 1 discourages repetition.")] = 1.0
    presence_penalty: Annotated[float, _sampling(help="Taken off tokens that occurred.")] = 0.0
    frequency_penalty: Annotated[float, _sampling(help="Taken off for each time a token occurred.")] = 0.0
    penalty_last_n: Annotated[int, _sampling(help="Latest tokens that penalties look at; -1 all.")] = 64
    logit_bias: Annotated[
        list[str] | None,
        _sampling(metavar="TOKEN=BIAS", help="Add to a token's logit; may be repeated."),
    ] = None
    use_adapter: UseAdapter = None
    seed: Annotated[int | None, _sampling(help="Same seed, same answer. Default: drawn.")] = None
    stop: Annotated[list[str] | None, _sampling(help="End before this text; may be repeated.")] = None
    stop_token: Annotated[list[int] | None, _sampling(help="End after this token id; may be repeated.")] = None
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", metavar="", help="Go on past the model's end of turn.")] = (
        False
    )
    logprobs: Annotated[
        int | None,
        _sampling(help="Log probabilities of each token and of N alternatives (--json)."),
    ] = None
    json_schema: Annotated[
        str | None,
        _sampling("--json-schema", metavar="FILE|JSON", help="The answer is JSON that fits this schema."),
    ] = None
    regex: Annotated[str | None, _sampling(metavar="PATTERN", help="The answer matches this regular expression.")] = (
        None
    )
    grammar: Annotated[
        str | None, _sampling(metavar="FILE", help="The answer fits the grammar in this file: Lark, or GBNF.")
    ] = None

    def params(self) -> SamplingParams:
        """Raises InvalidRequestError, naming the option's field."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            penalty_last_n=self.penalty_last_n,
            logit_bias=dict(map(_bias, self.logit_bias or ())),
            adapters=adapter_scales(self.use_adapter),
            seed=self.seed,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token or ()),
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            grammar=wanted_grammar(self.json_schema, self.regex, self.grammar),
        )
