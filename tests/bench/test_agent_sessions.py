"""How recorded sessions arrive."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.agent_sessions import Arrivals, Session, Turn
from forerun.core.prompt import as_tokens


def test_agents_take_every_session_once_turn_after_turn_and_several_at_once() -> None:
    turns = tuple(Turn(as_tokens([1] * n), as_tokens([2] * 40), n > 1) for n in range(1, 6))
    sessions = [Session(str(name), str(name), turns) for name in range(12)]
    requests = Arrivals(agents=4, seed=1).requests(sessions)
    assert requests == sorted(requests, key=lambda request: request.at)
    assert [request.at for request in requests] == [r.at for r in Arrivals(agents=4, seed=1).requests(sessions)]
    for session in sessions:
        own = [request for request in requests if request.conversation == session.name]
        assert [request.prompt.size for request in own] == [1, 2, 3, 4, 5]
        assert all(after.at - before.at > 1.5 for before, after in pairwise(own)), "an answer takes its time"
    changes = sum(before.conversation != after.conversation for before, after in pairwise(requests))
    assert changes > 15
