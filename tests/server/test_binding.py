"""The address cannot be had: one line says why and what to do, before a model is loaded."""

from __future__ import annotations

import errno
import os
import re
import socket

import pytest

from forerun.compose_models import ToServe
from forerun.compose_server import Announcements, serve
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError
from forerun.server.binding import listening_sockets
from forerun.server.settings import ServerSettings

LOCAL = "127.0.0.1"


def nothing(*_: object) -> None:
    """Told, and does not care."""


def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    def load(*_: object) -> None:
        raise AssertionError("a model was loaded in vain")

    (taken,) = listening_sockets(LOCAL, 0)
    with taken:
        port = taken.getsockname()[1]
        said = f"^port: 127.0.0.1:{port} is in use by another program: end that, or choose another port with --port"
        with pytest.raises(InvalidConfigError, match=said):
            serve(
                [ToServe(EngineConfig(model="fake"), is_loaded_at_once=True)],
                ServerSettings(host=LOCAL, port=port),
                Announcements(nothing, nothing, nothing),
                opening=load,  # type: ignore[arg-type]
            )


def test_a_port_that_was_bound_but_is_not_listened_on_is_in_use_once_it_is() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((LOCAL, 0))
        port = other.getsockname()[1]
        (own,) = listening_sockets(LOCAL, port)
        with own, pytest.raises(OSError, match="in use"):
            other.listen()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("no.such.host.invalid", "host: 'no.such.host.invalid' is no address and no known name"),
        ("a..b", "host: 'a..b' is no address and no known name"),
        ("x" * 300, "is no address and no known name"),
        ("nul\0", "is no address and no known name"),
        ("192.0.2.1", "host: 192.0.2.1 is no address of this machine: 127.0.0.1 is this machine alone"),
    ],
)
def test_a_host_that_is_not_this_machine_is_told(host: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(said)):
        listening_sockets(host, 0)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "port: you may not listen on 127.0.0.1:80: choose a port from 1024 on with --port"),
        (errno.ENOBUFS, f"host: cannot listen on 127.0.0.1:80: {os.strerror(errno.ENOBUFS)}"),
    ],
)
def test_a_port_that_may_not_be_had_is_told(number: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user who is not root sees it, whoever runs this."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", refused)
    with pytest.raises(InvalidConfigError, match=re.escape(said)):
        listening_sockets(LOCAL, 80)


def test_all_addresses_of_a_name_have_the_same_free_port() -> None:
    sockets = listening_sockets("localhost", 0)
    ports = {one.getsockname()[1] for one in sockets}
    for one in sockets:
        one.close()
    assert len(ports) == 1
    assert ports != {0}
