"""Takes the addresses that the server listens on, and says what to do where one cannot be had."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Any, Final

from forerun.errors import InvalidConfigError

BACKLOG: Final = 2048
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""The machine has no such address, as ::1 where IPv6 is off."""


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of the host that this machine has; all have the same port, also where that is 0 (one that is
    free). Raises InvalidConfigError."""
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    with ExitStack() as undone:
        for family, address in _addresses(host, port):
            try:
                sockets.append(undone.enter_context(_listening(family, (address[0], port, *address[2:]))))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise _cannot_listen(error, host, port) from None
                missing = error
                continue
            port = sockets[0].getsockname()[1]
        if not sockets:
            assert missing is not None, "a host that is resolved has an address"
            raise _cannot_listen(missing, host, port)
        undone.pop_all()
    return sockets


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    name = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as error:  # ValueError: no encoding of a name
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidConfigError(
            "host",
            f"{host!r} is no address and no known name ({why}): 127.0.0.1 is this machine alone, 0.0.0.0 everyone",
        ) from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _listening(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not held up by connections of the server before
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(BACKLOG)  # only this finds another one that has bound the port, too
        one.setblocking(False)
    except BaseException:
        one.close()
        raise
    return one


def _cannot_listen(error: OSError, host: str, port: int) -> InvalidConfigError:
    at = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            why = (
                f"{at} is in use by another program: end that, or choose another port with --port (0: one that is free)"
            )
            return InvalidConfigError("port", why)
        case errno.EACCES | errno.EPERM:
            return InvalidConfigError("port", f"you may not listen on {at}: choose a port from 1024 on with --port")
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            why = f"{host} is no address of this machine: 127.0.0.1 is this machine alone, 0.0.0.0 everyone"
            return InvalidConfigError("host", why)
        case _:
            return InvalidConfigError("host", f"cannot listen on {at}: {error.strerror}")
