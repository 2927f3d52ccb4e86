"""One line in the log for each request that ended: what it took and how it ended, nothing of what it said."""

from __future__ import annotations

import json
import logging
from typing import Final, TextIO, TypeAlias

from forerun.server.records import RequestRecord
from forerun.server.settings import LogFormat

logger = logging.getLogger("forerun.requests")

Value: TypeAlias = str | int | float | bool | None
_QUIET_ROUTES: Final = frozenset({"/health", "/metrics"})
"""What is asked every few seconds is told only where it went wrong."""
_USUAL: Final = frozenset({200, 503})
"""A server that loads or restarts says so when it begins to, not to each who asks."""


def write_to(stream: TextIO) -> None:
    """Have the lines written there as they are, whatever else is logged how."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class RequestLog:
    """Implements records.RequestObserver: writes to the logger `forerun.requests` at INFO."""

    def __init__(self, form: LogFormat = LogFormat.JSON) -> None:
        self._write = _as_text if form is LogFormat.TEXT else _as_json

    def started(self, record: RequestRecord) -> None:
        pass

    def first_token(self, record: RequestRecord, seconds: float) -> None:
        pass

    def tokens(self, record: RequestRecord, count: int, seconds: float) -> None:
        pass

    def finished(self, record: RequestRecord) -> None:
        if record.route in _QUIET_ROUTES and record.status in _USUAL:
            return
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", self._write(log_fields(record)))

    def unread(self, status: int, error: str) -> None:
        """A connection sent what never became a request, and was answered with `status`."""
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", self._write({"status": status, "error": error}))


def log_fields(record: RequestRecord) -> dict[str, Value]:
    """All that is told of a request; tokens and times only where it came to an answer."""
    fields: dict[str, Value] = {
        "request_id": record.id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "tenant": record.tenant or None,
        "total_ms": _ms(record.seconds),
        "error": record.error,
    }
    if record.input_tokens:
        fields |= {"model": record.model, "stream": record.is_stream, "prompt_tokens": record.input_tokens}
    return fields | _answer_fields(record)


def _answer_fields(record: RequestRecord) -> dict[str, Value]:
    usages, reasons = record.usages, ",".join(sorted(set(record.finish_reasons)))
    if not usages:
        return {"finish_reason": reasons or None}
    return {
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "drafted_tokens": sum(usage.drafted_tokens for usage in usages),
        "accepted_tokens": sum(usage.accepted_tokens for usage in usages),
        "queue_ms": round(max(usage.queue_ms for usage in usages), 1),
        "ttft_ms": None if record.ttft is None else _ms(record.ttft),
        "finish_reason": reasons,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def _as_json(fields: dict[str, Value]) -> str:
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def _as_text(fields: dict[str, Value]) -> str:
    return " ".join(f"{name}={_plain(value)}" for name, value in fields.items() if value is not None)


def _plain(value: Value) -> str:
    """As it is, or quoted where a reader could take it for several fields."""
    if isinstance(value, str) and not any(character in value for character in ' "=\n'):
        return value
    return json.dumps(value)
