"""Renders the chat template a model carries in its file: what Hugging Face's templates expect, in a sandbox.

Templates are untrusted programs in Jinja. The names they may use are those of transformers' `apply_chat_template`
(utils/chat_template_utils.py): `messages`, `tools`, `add_generation_prompt`, `bos_token`, `eos_token`,
`raise_exception`, `strftime_now`, a `tojson` that leaves HTML characters alone, loop controls and the `generation`
block. What they can reach, how much they can write and how long they may take is bounded (effort_bound.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from forerun.chat.effort_bound import BoundedSandbox, TooMuchEffortError, bounded, counted
from forerun.errors import InvalidRequestError

MAX_TEMPLATE_BYTES: Final = 1_000_000
MAX_RENDERED_CHARACTERS: Final = 64_000_000
# What running somebody's program can raise besides Jinja's own errors.
_RUNTIME_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)

_TAKEN: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
    | {"raise_exception", "strftime_now", "range", "namespace", "dict", "lipsum", "cycler", "joiner"}
)

Message = Mapping[str, Any]


class ChatTemplate:
    """One model's template, compiled when first used: a broken one fails the chats, not the loading of the model.

    `bos` and `eos` are the texts of the special tokens, empty where the model has none. `now` gives the date to
    templates that write it into the prompt.
    """

    def __init__(self, source: str, bos: str, eos: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = source
        self._names = {"bos_token": bos, "eos_token": eos}
        self._now = now

    def __repr__(self) -> str:
        return f"ChatTemplate({len(self.source)} characters, {self._names})"

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text for a conversation, special tokens included. Use PromptWriter for what users wrote.

        `add_generation_prompt` ends it with the start of the assistant's turn; `names` are further ones for the
        template (enable_thinking, ...). Raises InvalidRequestError("messages") where the conversation is malformed or
        the template refuses it, InvalidRequestError("chat_template_kwargs") for names that are taken.
        """
        check_messages(messages)
        further = dict(names or {})
        if taken := sorted(_TAKEN & further.keys()):
            raise InvalidRequestError("chat_template_kwargs", f"may not set {', '.join(taken)}")
        try:
            pieces = self._compiled.generate(
                further,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._names,
            )
            with bounded(len(messages)):
                return _joined(pieces)
        except TemplateError as error:
            raise InvalidRequestError("messages", f"the model's chat template says: {error}") from error
        except TooMuchEffortError as error:
            said = (
                "the conversation is too long to render with the model's chat template; send fewer or shorter messages"
            )
            raise InvalidRequestError("messages", said) from error
        except _RUNTIME_ERRORS as error:
            problem = f"the model's chat template failed on them: {type(error).__name__}: {error}"
            raise InvalidRequestError("messages", problem) from error

    def problem(self) -> str | None:
        """Why it cannot render anything, in a line; None where it compiles."""
        try:
            _ = self._compiled
        except TemplateSyntaxError as error:
            return f"line {error.lineno}: {error.message}"
        except (TemplateError, InvalidRequestError, *_RUNTIME_ERRORS) as error:
            return f"{type(error).__name__}: {error}"
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the template asks for; none of a broken one."""
        try:
            return frozenset(meta.find_undeclared_variables(self._environment.parse(self.source)))
        except (TemplateError, RecursionError):
            return frozenset()

    @cached_property
    def _compiled(self) -> Any:
        size = len(self.source.encode(errors="replace"))
        if size > MAX_TEMPLATE_BYTES:
            raise InvalidRequestError(
                "messages", f"the model's chat template has {size} bytes, at most {MAX_TEMPLATE_BYTES} are allowed"
            )
        return self._environment.from_string(self.source)

    @cached_property
    def _environment(self) -> BoundedSandbox:
        environment = BoundedSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        environment.filters["tojson"] = counted(_to_json)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: self._now().strftime(layout)
        return environment


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, marks of the assistant's words for training: here just the words."""

    tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def check_messages(messages: object) -> None:
    """Raise InvalidRequestError for what is no list of messages with roles."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequestError("messages", "expected a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"messages[{index}]", "expected an object with a text 'role' and a 'content'")


def _joined(pieces: Any) -> str:
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > MAX_RENDERED_CHARACTERS:
            raise OverflowError(f"the prompt has more than {MAX_RENDERED_CHARACTERS} characters")
    return "".join(parts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001 (templates pass these by place or name, as to transformers)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
