"""What the server is told: where it listens, who may call, and its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from forerun.errors import InvalidConfigError
from forerun.media.addresses import allowed_host
from forerun.media.limits import MediaLimits

DEFAULT_PORT: Final = 8080
_SHORTEST_KEY: Final = 8
_MAX_KEYS: Final = 10_000


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"
    """key=value"""
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Raises InvalidConfigError, naming the field, for values that make no sense."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0: one that is free."""
    api_keys: frozenset[str] = field(default=frozenset(), repr=False)
    """Every route but /health asks for one of them; none: nobody is asked."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call from a browser; "*" is all."""
    max_body_bytes: int = 16 * 2**20
    max_header_bytes: int = 32 * 2**10
    max_json_depth: int = 100
    """Arrays and objects inside one another."""
    max_json_values: int = 100_000
    """Objects, arrays and strings of one body, names of fields among them: some 20 000 messages. Numbers are not
    counted, so prompts of token ids may fill any context."""
    allow_media_url: tuple[str, ...] = ()
    """Hosts that images are fetched from (`media.addresses.allowed_host`). None: images come in requests alone."""
    media_root: Path | None = None
    """Folder below which requests may name files. None: they may name none."""
    media_limits: MediaLimits = field(default_factory=MediaLimits)
    max_loaded: int | None = None
    """Models in memory at a time, where several are served. None: as many as fit."""
    max_queue: int = 64
    """Requests that may wait beside those that run; one more is refused with 503 and Retry-After."""
    timeout: float | None = None
    """Seconds an answer may take; requests may ask for less. None: no limit."""
    keep_alive: float = 10.0
    """Seconds without an event after which a stream sends a comment, so that proxies leave it open."""
    shutdown_timeout: float = 30.0
    """Seconds that open answers may go on when the server is told to stop."""
    log_format: LogFormat = LogFormat.JSON
    """How each request that has ended is told in the log; never what was asked or answered."""
    otel_endpoint: str | None = None
    """Where traces are sent (OTLP over HTTP). None: what OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere."""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidConfigError(name, f"must lie between {low:g} and {high:g}, got {value:g}")
        if not self.host:
            raise InvalidConfigError("host", "is empty; 127.0.0.1 is this machine alone, 0.0.0.0 is everyone")
        for origin in self.cors_origins:
            if origin != "*" and "://" not in origin:
                raise InvalidConfigError("cors_origin", f"is like https://example.org, or *, got {origin!r}")
        for host in self.allow_media_url:
            allowed_host(host)
        if self.media_root is not None and not self.media_root.is_dir():
            raise InvalidConfigError("media_root", f"is no folder: {self.media_root}")
        check_keys(self.api_keys)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"


_RANGES: Final = (
    ("port", 0, 65_535),
    ("max_body_bytes", 1, 2**40),
    ("max_header_bytes", 1024, 2**24),
    ("max_json_depth", 8, 400),
    ("max_json_values", 100, 10_000_000),
    ("max_loaded", 1, 2**20),
    ("max_queue", 0, 2**20),
    ("timeout", 0.001, 30 * 86_400.0),
    ("keep_alive", 0.001, 3600.0),
    ("shutdown_timeout", 0.0, 3600.0),
)


def check_keys(keys: frozenset[str]) -> None:
    """Raise InvalidConfigError for keys that no client could send, without telling them."""
    if len(keys) > _MAX_KEYS:
        raise InvalidConfigError("api_keys", f"at most {_MAX_KEYS}, got {len(keys)}")
    for key in keys:
        if len(key) < _SHORTEST_KEY:
            raise InvalidConfigError("api_keys", f"a key has at least {_SHORTEST_KEY} characters, one has {len(key)}")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InvalidConfigError("api_keys", "a key consists of printable ASCII characters without spaces")


def read_keys(path: Path) -> frozenset[str]:
    """Keys of a file: one a line; blank lines and lines that begin with # are left out. Raises InvalidConfigError."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError("api_key_file", f"{path} cannot be read: {error}") from error
    keys = frozenset(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise InvalidConfigError("api_key_file", f"{path} holds no key: write one a line")
    return keys
