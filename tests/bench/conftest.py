"""A server on the fake engine, as the tests of the server have it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.support import ListeningServer, listening


@pytest.fixture(scope="module")
def listening_server() -> Iterator[ListeningServer]:
    """On a port, with the paced fake engine."""
    with listening() as server:
        yield server
