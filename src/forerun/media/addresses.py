"""Which hosts may be asked for media, and which of their addresses may be connected to."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from forerun.errors import InvalidConfigError

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")
_PORTS: Final = {"http": 80, "https": 443}
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL: Final = ipaddress.ip_network("64:ff9b:1::/48")
_V4_COMPATIBLE: Final = ipaddress.ip_network("::/96")


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """A host, `*.name` for all below it, or `*`; and the port, where it is not the scheme's own."""

    name: str
    port: int | None = None

    def allows(self, scheme: str, host: str, port: int | None) -> bool:
        """Whether an address of this host may be asked; `port` None: the scheme's own."""
        own = _PORTS[scheme]
        if (port or own) != (self.port or own):
            return False
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return self.name in ("*", host)


def allowed_host(text: str) -> AllowedHost:
    """`example.org`, `example.org:8443`, `*.example.org`, an IP address, or `*`. Raises InvalidConfigError."""
    name, port = _split_port(text.strip().lower())
    is_address = ":" in name or _is_ip(name)
    if not (name == "*" or is_address or _NAME.fullmatch(name)) or (":" in name and not _is_ip(name)):
        said = f"is a host such as example.org, example.org:8443, *.example.org or *, got {text!r}"
        raise InvalidConfigError("allow_media_url", said)
    return AllowedHost(name.removesuffix("."), port)


def _split_port(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+):([0-9]{1,5})", text)
    if match is None:
        return _without_brackets(text), None
    if not 0 < int(match[2]) < 2**16:
        raise InvalidConfigError("allow_media_url", f"has a port between 1 and 65535, got {text!r}")
    return _without_brackets(match[1]), int(match[2])


def _without_brackets(text: str) -> str:
    """IPv6 addresses have them in URLs."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_allowed(hosts: Iterable[AllowedHost], scheme: str, host: str, port: int | None) -> bool:
    return any(one.allows(scheme, host.rstrip(".").lower(), port) for one in hosts)


def is_public(address: IPAddress) -> bool:
    """Whether an address is of the internet: of no private network, no machine's own, no group.

    IPv6 addresses that stand for an IPv4 one (mapped, NAT64, 6to4, Teredo) are what that one is.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_public(inner)
        if address in _NAT64_LOCAL or address in _V4_COMPATIBLE or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour
