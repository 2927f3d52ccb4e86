"""Every error Forerun raises on purpose. Messages name the field, the limit and the value, and say what to do."""

from __future__ import annotations


class ForerunError(Exception):
    """Root of the tree: catching it catches everything Forerun raises on purpose."""


class InvalidRequestError(ForerunError):
    """One request cannot be served as asked; the engine and all other requests are unaffected.

    `field` names the offending part of the request ("prompt", "max_tokens", ...), `reason` says what is wrong with it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.reason = message


class ContextExceededError(InvalidRequestError):
    """A prompt has more tokens than the context holds; the message carries both counts."""


class OverloadedError(ForerunError):
    """Too many requests are open already. `retry_after`: seconds after which there should be room."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimeoutError(ForerunError):
    """An answer was not finished within the time that the request, or the server, allows."""


class InvalidConfigError(ForerunError):
    """An engine cannot be configured like that. `field` names the option."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelError(ForerunError):
    """A model could not be found, read or loaded. The message carries the path and the kind of fault."""


class ModelNotFoundError(ModelError):
    """The path, or the model name, leads to no file."""


class ModelFileError(ModelError):
    """The file is there but is no usable GGUF model: wrong type, truncated, corrupt, of an unsupported architecture."""


class ModelLoadError(ModelError):
    """The file reads well, yet the native library did not load it (memory, backend, parameters)."""


class DownloadError(ModelError):
    """A model could not be fetched: no connection, no such file, wrong bytes, no room. Names the file."""


class IncompatibleDraftError(ModelError):
    """The draft model cannot draft for the target; names both models and the first difference."""


class CatalogError(ModelError):
    """A catalog of models says something that is malformed or contradicts itself.

    `file` is the catalog's, `field` the path of what is wrong in it ("models[2].files[0].sha256"), "" for all of it.
    """

    def __init__(self, file: str, field: str, problem: str) -> None:
        super().__init__(f"{file}: {field}: {problem}" if field else f"{file}: {problem}")
        self.file = file
        self.field = field


class EngineError(ForerunError):
    """The engine could not go on with a request: a failed step, or an engine that has stopped."""


class StepFailedError(EngineError):
    """The model's evaluation of a request failed, also when it was tried alone."""


class EngineDiedError(EngineError):
    """The engine's process died while it was answering; it is started again, and the request can be sent again."""


class GrammarFailedError(EngineError):
    """An answer could not go on as its grammar wants: nothing was left to choose from, or a limit was reached."""


class EngineClosedError(EngineError):
    """The engine was closed, or its thread died, before the request finished."""


class BenchmarkError(ForerunError):
    """A server could not be measured: it did not start, did not answer, or refused what it was asked."""
