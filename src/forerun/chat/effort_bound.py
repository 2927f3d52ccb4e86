"""Bounds what rendering a template may take: templates are programs of somebody else's.

Jinja's sandbox bounds what they reach, not how long they run. Here every turn of a loop, call, filter and product is
counted, and so is the size of what comes of it. What one call could make of its arguments is judged before it runs,
since it could fill the memory. No single operation is left that takes long, so the count bounds the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import islice
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_EFFORT: Final = 1_000_000
"""Turns, calls (times a hundred) and characters / 16 together: a second or two."""
EFFORT_OF_MESSAGE: Final = 2_000
"""What each message adds."""
_EFFORT_OF_CALL, _EFFORT_OF_CONTAINER = 100, 5
_MAX_NUMBER: Final = 1_000_000  # as an argument or factor
_MAX_PRODUCT: Final = 256_000_000  # characters or elements that one call could make
_WIDE: Final = re.compile(r"\d{5,}|%[^a-zA-Z%]*\*")
_CHARACTERS_PER_TURN: Final = 16
_left: ContextVar[list[int]] = ContextVar("_left")


class TooMuchEffortError(OverflowError):
    """A template does more than any conversation needs."""


@contextmanager
def bounded(messages: int) -> Iterator[None]:
    """Give what is rendered inside its share of effort, for so many messages."""
    token = _left.set([MAX_EFFORT + messages * EFFORT_OF_MESSAGE])
    try:
        yield
    finally:
        _left.reset(token)


def spend(value: Any, effort: int = 1) -> Any:
    """Count a value that was made, and hand it on."""
    left = _left.get(None)
    if left is None:  # compile time: constants are folded
        return value
    size = len(value) if isinstance(value, Sized) else 0
    left[0] -= effort + (size // _CHARACTERS_PER_TURN if isinstance(value, str | bytes) else size)
    if left[0] < 0:
        raise TooMuchEffortError("it does more than any conversation needs")
    return value


def turns(values: Any) -> Any:
    """What a loop goes through, counted before it starts."""
    if isinstance(values, Sized) or not isinstance(values, Iterable):
        return spend(values)
    return spend(list(islice(values, MAX_EFFORT)))


def check_call(values: Iterable[Any]) -> None:
    """Refuse a call that could make very much of what it is given: repeat, fill, replace or join it."""
    sizes, texts = [1, 1], [0]
    for value in values:
        if isinstance(value, int) and abs(value) > _MAX_NUMBER:
            raise OverflowError("a number too large for a template")
        sizes.append(_size(value))
        if isinstance(value, Sized):
            texts.append(sizes[-1])
    if texts != [0] and max(sizes) * sorted(sizes)[-2] > _MAX_PRODUCT:
        raise OverflowError("a call that may make too much for a template")


def _size(value: Any) -> int:
    if isinstance(value, Mapping):
        return max([len(value), *(_size(one) for one in value.values() if isinstance(one, str))])
    if isinstance(value, Sized):
        return len(value)
    return abs(value) if isinstance(value, int) else 1


def check_format(layout: str) -> None:
    """Refuse widths of a format that are no layout of text."""
    if _WIDE.search(layout):
        raise OverflowError("a format too wide for a template")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a bound on time and memory. Render inside `bounded`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.code_generator_class = _CountingGenerator
        self.filters = {name: counted(function) for name, function in self.filters.items()}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= _MAX_NUMBER and abs(right) <= 64):
            raise OverflowError("a power too large for a template")
        if operator == "*" and _product_size(left, right) > _MAX_NUMBER:
            raise OverflowError("a repetition too long for a template")
        if operator == "%" and isinstance(left, str):
            check_format(left)
        return spend(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        check_call([owner, *args, *kwargs.values()])
        if isinstance(owner, str) and function.__name__ in ("format", "format_map"):
            check_format(owner)
        spend((), _EFFORT_OF_CALL)
        return spend(super().call(context, function, *args, **kwargs))

    def joined(self, values: Iterable[Any]) -> str:
        """What `~` makes."""
        return str(spend("".join([str(value) for value in values])))

    turns = staticmethod(turns)
    weighed = staticmethod(lambda value: spend_whole(value))


def spend_whole(value: Any) -> Any:
    """Count a list or mapping with all that is in it: what holds itself twice grows without bound when it is shown."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += spend(one, _EFFORT_OF_CONTAINER).values()
        elif isinstance(one, list | tuple):
            waiting += spend(one, _EFFORT_OF_CONTAINER)
    return value


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # with the marks by which Jinja knows what to pass
    def counted(*args: Any, **kwargs: Any) -> Any:
        check_call([*args, *kwargs.values()])
        if function.__name__ == "do_format":
            check_format(str(args[0]))
        for value in args:
            spend(value if isinstance(value, str | list | tuple | Mapping) else ())
        return turns(function(*args, **kwargs))

    return counted


def _product_size(left: Any, right: Any) -> int:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            return len(sequence) * times
    return 0


class _CountingGenerator(CodeGenerator):
    """Compiles loops, `~` and literals so that they are counted."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 (Jinja's name)
        node.iter = _through("turns", node.iter)
        if node.recursive:
            step = nodes.ExprStmt(_through("turns", nodes.Const(0)), lineno=node.lineno)
            node.body = [step, *node.body]
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("environment.weighed(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        is_made = node.ctx == "load"  # and not what a loop or assignment unpacks to
        self.write("environment.weighed(" if is_made else "")
        super().visit_Tuple(node, frame)
        self.write(")" if is_made else "")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("environment.weighed(")
        super().visit_Dict(node, frame)
        self.write(")")


def _through(name: str, value: nodes.Node) -> nodes.Call:
    called = nodes.Call(nodes.EnvironmentAttribute(name), [value], [], None, None)
    called.set_lineno(value.lineno or 1)
    return called
