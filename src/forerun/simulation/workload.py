"""What is simulated: users, limits of the engine, costs of the machine. Read from TOML, every field checked.

docs/simulation.md describes the fields.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from forerun.core.config import SchedulerConfig
from forerun.core.value import retention
from forerun.errors import InvalidConfigError
from forerun.simulation.amounts import Amount, Fixed, read_amount
from forerun.simulation.machine import Machine, MachineTable
from forerun.simulation.tables import Table, read_text, refusal

_MOST_TOKENS, _MOST_SECONDS = 2**24, 1e7
_MOST_USERS: Final = 1_000_000
_OWN_ENGINE_FIELDS: Final = frozenset(
    {"draft_n_ctx", "draft_name", "memory", "draft_memory", "segment_sizes", "model_key", "adapters", "verification"}
    | {"max_logit_rows"}
)
"""Fields of SchedulerConfig that follow from the machine, or mean nothing without a model."""


def _amount(least: float, most: float) -> BeforeValidator:
    def read(value: object) -> Amount:
        return read_amount(value, least=least, most=most)

    return BeforeValidator(read)


_Tokens = Annotated[Amount, _amount(1, _MOST_TOKENS)]
_Seconds = Annotated[Amount, _amount(0, _MOST_SECONDS)]


class UserGroup(Table):
    """Users who behave alike: each holds conversations of several turns."""

    name: str = Field(min_length=1, max_length=40)
    count: int = Field(ge=1, le=_MOST_USERS)
    priority: int = Field(default=0, ge=-1000, le=1000)
    arrivals: Literal["closed", "open"] = "closed"
    """closed: a user begins the next conversation a pause after the last one ended. open: whatever became of it."""
    every_seconds: float = Field(gt=0, le=_MOST_SECONDS)
    """Exponential, the mean: the pause before a user's next conversation, or the time between two beginnings (open)."""
    turns: Annotated[Amount, _amount(1, 1000)] = Fixed(1)
    think_seconds: _Seconds = Fixed(0)
    """From an answer to the next turn of the same conversation."""
    system_tokens: int = Field(default=0, ge=0, le=_MOST_TOKENS)
    """What all prompts of the group begin with."""
    message_tokens: _Tokens
    answer_tokens: _Tokens
    patience_seconds: float | None = Field(default=None, gt=0, le=_MOST_SECONDS)
    """A request without a first token after so long is cancelled, and its conversation ends."""

    @property
    def conversations_per_second(self) -> float:
        """Begun by all users together, as if answers took no time."""
        pauses = (self.turns.mean - 1) * self.think_seconds.mean if self.arrivals == "closed" else 0.0
        return self.count / (self.every_seconds + pauses)

    @property
    def offered(self) -> float:
        """Tokens a second that are asked for as answers, as if those took no time."""
        return self.conversations_per_second * self.turns.mean * self.answer_tokens.mean


class _RunTable(Table):
    seconds: float = Field(gt=0, le=_MOST_SECONDS)
    warmup_seconds: float = Field(default=0.0, ge=0, le=_MOST_SECONDS)
    seed: int = Field(default=0, ge=0, lt=2**63)


class _File(Table):
    simulation: _RunTable
    machine: MachineTable
    engine: dict[str, Any]
    users: list[UserGroup] = Field(min_length=1, max_length=100)


@dataclass(frozen=True, slots=True)
class Workload:
    """A whole simulation."""

    groups: tuple[UserGroup, ...]
    config: SchedulerConfig
    machine: Machine
    seconds: float
    """Requests arrive for so long; what is there then is finished."""
    warmup: float = 0.0
    """Nothing that arrives earlier is counted, in seconds."""
    seed: int = 0

    @property
    def users(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def offered(self) -> float:
        """Tokens a second that are asked for as answers, as if those took no time."""
        return sum(group.offered for group in self.groups)


def read_workload(path: Path, costs: Path | None = None, seed: int | None = None) -> Workload:
    """`costs`: a file of cost curves that stands in for the workload's; `seed` for its seed.

    Raises InvalidConfigError naming the field.
    """
    try:
        read = _File.model_validate(tomllib.loads(read_text(path)))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(str(path), f"is no TOML: {error}") from None
    except ValidationError as error:
        raise refusal(error) from None
    _require_distinct([group.name for group in read.users])
    run = read.simulation
    if run.warmup_seconds >= run.seconds:
        raise InvalidConfigError(
            "simulation.warmup_seconds",
            f"must be less than simulation.seconds = {run.seconds:g}, got {run.warmup_seconds:g}",
        )
    machine = read.machine.machine(path.parent, costs)
    config = _config(read.engine, machine)
    return Workload(
        tuple(read.users), config, machine, run.seconds, run.warmup_seconds, run.seed if seed is None else seed
    )


def _require_distinct(names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidConfigError(f"users[{index}].name", f"is taken by another group already: {name!r}")


def _config(read: Mapping[str, Any], machine: Machine) -> SchedulerConfig:
    known = {field.name: field for field in fields(SchedulerConfig) if field.name not in _OWN_ENGINE_FIELDS}
    for name, value in read.items():
        if name not in known:
            raise InvalidConfigError(f"engine.{name}", f"is not known; there are {', '.join(sorted(known))}")
        _check_kind(f"engine.{name}", value, known[name].default)
    if "n_ctx" not in read:
        raise InvalidConfigError("engine.n_ctx", "is missing: cells of the KV memory, all sequences together")
    if read.get("speculation") and read.get("synthetic_acceptance") is None:
        raise InvalidConfigError(
            "engine.synthetic_acceptance", "is missing: with speculation say how often a drafted token is right, 0 to 1"
        )
    drafts = bool(machine.draft and read.get("speculation"))
    try:
        retention(read.get("retention", "value"))
        return SchedulerConfig(
            **read, draft_n_ctx=read["n_ctx"] if drafts else 0, segment_sizes=machine.sizes, model_key="simulation"
        )
    except ValueError as error:
        raise InvalidConfigError("engine", str(error)) from None


def _check_kind(field: str, value: object, default: object) -> None:
    """Of the default's kind: whole numbers where that is one, or where there is none."""
    if isinstance(default, bool):
        fits, words = isinstance(value, bool), "true or false"
    elif isinstance(default, str):
        fits, words = isinstance(value, str), "text"
    elif isinstance(default, int) or default is MISSING:
        fits, words = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        fits, words = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if not fits:
        raise InvalidConfigError(field, f"must be {words}, got {value!r}")
