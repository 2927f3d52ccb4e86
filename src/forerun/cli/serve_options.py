"""What `forerun serve` is told beside the model."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from forerun.cli.sizes import parse_size
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError
from forerun.media.limits import MediaLimits
from forerun.server.settings import DEFAULT_PORT, LogFormat, ServerSettings, read_keys

KEY_VARIABLE: Final = "FORERUN_API_KEY"
_MEDIA_LIMITS: Final = MediaLimits()
_option = functools.partial(typer.Option, rich_help_panel="Server")


def _latency(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'auto' or milliseconds, for instance 400, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Which models there are, where the server listens, who may call, and its limits."""

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Path of a GGUF file, or an id such as smollm2 (`forerun models list`), which brings its draft. Loaded"
            " at once; options for one model, such as --draft, are for this one.",
            show_default=False,
        ),
    ] = None
    models: Annotated[
        list[str] | None,
        _option(
            "--model",
            metavar="NAME=MODEL",
            help="A further model, under a name of its own, loaded when it is first asked for; may be repeated.",
        ),
    ] = None
    max_loaded: Annotated[
        int | None,
        _option(help="Models in memory at a time; the least recently used one goes. Default: as many as fit."),
    ] = None
    host: Annotated[str, _option(help="Address to listen on; 0.0.0.0 is all of this machine's.")] = "127.0.0.1"
    port: Annotated[int, _option(help="0: one that is free.")] = DEFAULT_PORT
    alias: Annotated[list[str] | None, _option(metavar="NAME", help="A further name of MODEL; may be repeated.")] = None
    chat_format: Annotated[
        str, _option(metavar="NAME", help="How the model writes calls and reasoning. Default: told from its template.")
    ] = "auto"
    api_key_file: Annotated[
        Path | None,
        _option(
            metavar="FILE",
            dir_okay=False,
            help=f"API keys, one a line; or one in the environment variable {KEY_VARIABLE}. Default: nobody is asked.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        _option(
            help="Requests that run at the same time. Default: 16, fewer where there is no memory for their states."
        ),
    ] = None
    max_queue: Annotated[int, _option(help="Requests that may wait beside them; one more is refused.")] = 64
    target_itl_ms: Annotated[
        Any,
        _option(
            parser=_latency,
            metavar="auto|MS",
            help="Milliseconds between two tokens at most while others' prompts are read; more reads prompts faster, "
            "for instance 400. auto: chosen from what decodes cost here.",
        ),
    ] = "auto"
    timeout: Annotated[float | None, _option(metavar="SECONDS", help="An answer may take. Default: no limit.")] = None
    shutdown_timeout: Annotated[
        float, _option(metavar="SECONDS", help="Open answers may go on when the server is told to stop.")
    ] = 30.0
    keep_alive: Annotated[float, _option(metavar="SECONDS", help="Silence after which a stream sends a comment.")] = (
        10.0
    )
    max_body: Annotated[str, _option(metavar="SIZE", help="A request's body at most.")] = "16MiB"
    allow_media_url: Annotated[
        list[str] | None,
        _option(
            metavar="HOST",
            help="Images are fetched from this host, such as images.example.org, *.example.org or *; may be repeated. "
            "Never from private addresses. Default: images come in requests alone, as data: URLs.",
        ),
    ] = None
    media_root: Annotated[
        Path | None,
        _option(metavar="DIR", file_okay=False, help="Requests may name images in this folder, as file: URLs."),
    ] = None
    max_image_pixels: Annotated[int, _option(help="Of one image; more is refused before it is decoded.")] = (
        _MEDIA_LIMITS.max_image_pixels
    )
    cors_origin: Annotated[
        list[str] | None,
        _option(metavar="ORIGIN", help="A web page that may call from browsers, such as https://example.org; * all."),
    ] = None
    log_format: Annotated[
        LogFormat, _option(help="Of the line each request that has ended is told in; never what was asked or answered.")
    ] = LogFormat.JSON
    otel: Annotated[
        str | None, _option(metavar="URL", help="Where traces are sent (OTLP over HTTP); needs forerun[otel].")
    ] = None

    record: Annotated[
        Path | None,
        _option(
            metavar="FILE.jsonl",
            dir_okay=False,
            help="Write what the scheduler is told and decides, for `forerun replay`; no text. The file must be new.",
        ),
    ] = None
    record_text: Annotated[bool, _option("--record-text", metavar="", help="Write prompts and answers to it too.")] = (
        False
    )

    def engine(self, config: EngineConfig) -> EngineConfig:
        """An engine's configuration with what the server says of all."""
        return replace(config, max_num_seqs=self.max_num_seqs, target_itl_ms=self.target_itl_ms)

    def recorded(self, config: EngineConfig) -> EngineConfig:
        """The same, recorded where that is wanted. Raises InvalidConfigError."""
        if self.record is not None and self.record.exists():
            raise InvalidConfigError("--record", f"{self.record} is there already: give another name, or remove it")
        record = None if self.record is None else str(self.record.absolute())
        return replace(config, record=record, record_text=self.record_text)

    def settings(self) -> ServerSettings:
        """Raises InvalidConfigError."""
        return ServerSettings(
            host=self.host,
            port=self.port,
            api_keys=_keys(self.api_key_file),
            cors_origins=tuple(self.cors_origin or ()),
            max_body_bytes=parse_size("max_body", self.max_body),
            allow_media_url=tuple(self.allow_media_url or ()),
            media_root=self.media_root,
            media_limits=_media_limits(self.max_image_pixels),
            max_loaded=self.max_loaded,
            max_queue=self.max_queue,
            timeout=self.timeout,
            keep_alive=self.keep_alive,
            shutdown_timeout=self.shutdown_timeout,
            log_format=self.log_format,
            otel_endpoint=self.otel,
        )


def _media_limits(max_image_pixels: int) -> MediaLimits:
    """Raises InvalidConfigError."""
    most = max(_MEDIA_LIMITS.max_pixels, max_image_pixels)
    return replace(_MEDIA_LIMITS, max_image_pixels=max_image_pixels, max_pixels=most)


def _keys(file: Path | None) -> frozenset[str]:
    """From the file and the environment, never from the command line, which everybody on the machine can read."""
    keys = frozenset() if file is None else read_keys(file)
    given = os.environ.get(KEY_VARIABLE)
    if given is not None and not given.strip():
        raise InvalidConfigError("api_keys", f"{KEY_VARIABLE} is set but empty: give it a key, or unset it")
    return keys | {given.strip()} if given else keys
