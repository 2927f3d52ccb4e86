"""Whatever the server's own OpenAPI document allows, and what it does not, is never answered with a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from forerun.server.app import create_app
from forerun.server.registry import ModelRegistry
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings
from forerun.testing.served import served_parts
from tests.server.support import MODEL, ListeningServer, listening

# Its client leaves sockets to the collector, which warns during whatever test runs then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

schema = schemathesis.openapi.from_dict(create_app(Backend(ServerSettings(), ModelRegistry([]))).openapi())
OPERATIONS: dict[str, Any] = {
    f"{operation.method} {operation.path}": operation
    for found in schema.get_all_operations()
    if (operation := found.ok()) is not None  # type: ignore[union-attr]
}
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def quick_server() -> Iterator[ListeningServer]:
    """A server with the fake engine, whose context is short: no answer is long."""
    with listening(served_parts(n_ctx=256)) as server:
        yield server


def cases(name: str) -> st.SearchStrategy[Any]:
    """What may be sent to an operation, and what may not, to the model that is there."""
    operation = OPERATIONS[name]
    return st.one_of([operation.as_strategy(mode) for mode in MODES]).map(_to_our_model)


def _to_our_model(case: Any) -> Any:
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = MODEL
    return case


def check(server: ListeningServer, name: str, examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(name))
    def run(case: Any) -> None:
        response = case.call(base_url=server.url, timeout=20)
        assert response.status_code < 500, (response.status_code, response.text[:300])

    run()


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_that_is_sent_is_answered_with_a_5xx(quick_server: ListeningServer, name: str) -> None:
    check(quick_server, name, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_that_is_sent_is_answered_with_a_5xx_for_long(quick_server: ListeningServer, name: str) -> None:
    check(quick_server, name, 1000)
