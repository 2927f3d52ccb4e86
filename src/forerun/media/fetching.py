"""Fetches media from hosts that the operator allows: what a name resolves to is looked at where it is connected to.

The address that was checked is the one that is connected to: a name that resolves to another one a moment later changes
nothing. Redirects are followed one by one, each as if a caller had sent it. No proxy, no cookies, no credentials.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import httpcore2
import httpx2

from forerun.errors import InvalidRequestError, OverloadedError
from forerun.media.addresses import AllowedHost, IPAddress, is_allowed, is_public
from forerun.media.limits import MediaLimits

_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_AT_ONCE: Final = 8
_WAITING: Final = 256
_HEADERS: Final = ((b"user-agent", b"forerun"), (b"accept", b"image/*"), (b"accept-encoding", b"identity"))


class MediaFetcher:
    """Used on one event loop."""

    def __init__(
        self,
        hosts: Sequence[AllowedHost],
        limits: MediaLimits,
        *,
        is_address_allowed: Callable[[IPAddress], bool] = is_public,
    ) -> None:
        """`is_address_allowed`: for tests, whose servers are on this machine."""
        self._hosts = tuple(hosts)
        self._limits = limits
        self._backend = _CheckingBackend(is_address_allowed)
        self._certificates = httpcore2.default_ssl_context()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._open = 0

    async def fetch(self, url: str, field: str) -> bytes:
        """The file at an address. Raises InvalidRequestError naming `field`, OverloadedError."""
        if self._open >= _WAITING:
            raise OverloadedError(f"{self._open} files are being fetched; try again later", self._limits.fetch_seconds)
        self._open += 1
        try:
            async with asyncio.timeout(self._limits.fetch_seconds), self._turns:
                return await self._fetched(url, field)
        except TimeoutError:
            said = f"was not there within {self._limits.fetch_seconds:g} s; send it as a data: URL"
            raise InvalidRequestError(field, said) from None
        except _RefusedAddressError as error:
            raise InvalidRequestError(field, str(error)) from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise InvalidRequestError(field, f"cannot be fetched: {str(error) or type(error).__name__}") from None
        finally:
            self._open -= 1

    async def _fetched(self, url: str, field: str) -> bytes:
        address = self._checked(url, field)
        for _ in range(_MAX_REDIRECTS + 1):
            found = await self._get(address, field)
            if isinstance(found, bytes):
                return found
            further = self._checked(str(address.join(found)), field)
            if (address.scheme, further.scheme) == ("https", "http"):
                raise InvalidRequestError(field, f"is redirected to {further.host} without encryption: not followed")
            address = further
        raise InvalidRequestError(field, f"is redirected more than {_MAX_REDIRECTS} times")

    def _checked(self, url: str, field: str) -> httpx2.URL:
        try:
            address = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError) as error:
            raise InvalidRequestError(field, f"is no address: {error}") from None
        if address.scheme not in ("http", "https") or not address.host or address.userinfo:
            raise InvalidRequestError(field, "is no address that is fetched: http or https, a host, no user name")
        host = address.raw_host.decode("ascii")
        if not is_allowed(self._hosts, address.scheme, host, address.port):
            port = f":{address.port}" if address.port else ""
            raise InvalidRequestError(
                field,
                f"is at {host[:100]}{port}, which this server does not fetch from: send a data: URL, "
                f"or have it started with --allow-media-url {host[:100]}{port}",
            )
        return address

    async def _get(self, address: httpx2.URL, field: str) -> bytes | str:
        """The file, or where it is instead."""
        headers = [(b"host", address.netloc), *_HEADERS]
        target = httpcore2.URL(
            scheme=address.raw_scheme, host=address.raw_host, port=address.port, target=address.raw_path
        )
        async with (
            httpcore2.AsyncConnectionPool(
                ssl_context=self._certificates, network_backend=self._backend, max_connections=1
            ) as pool,
            pool.stream("GET", target, headers=headers) as response,
        ):
            fields = httpx2.Headers(response.headers)
            if response.status in _REDIRECTS and "location" in fields:
                return str(fields["location"])
            if response.status != 200:
                raise InvalidRequestError(field, f"cannot be fetched: {address.host} answered {response.status}")
            if fields.get("content-encoding", "identity").lower() != "identity":
                raise InvalidRequestError(field, f"cannot be fetched: {address.host} sends it compressed, unasked")
            return await self._body(response, fields.get("content-length", ""), field)

    async def _body(self, response: httpcore2.Response, length: str, field: str) -> bytes:
        most = self._limits.max_item_bytes
        if length.isascii() and length.isdecimal() and len(length) < 16 and int(length) > most:
            raise InvalidRequestError(field, f"has {length} bytes, at most {most} are read")
        body = bytearray()
        async for piece in response.aiter_stream():
            body += piece
            if len(body) > most:
                raise InvalidRequestError(field, f"has more than {most} bytes, which is what is read at most")
        return bytes(body)


class _RefusedAddressError(Exception):
    """A name that leads nowhere where media is fetched from."""


class _CheckingBackend(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were looked at, never to names."""

    def __init__(self, is_allowed: Callable[[IPAddress], bool]) -> None:
        self._is_allowed = is_allowed
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        refusal: Exception = _RefusedAddressError(f"cannot be fetched: {host} resolves to nothing")
        for address in await self._addresses(host, port):
            try:
                return await self._inner.connect_tcp(
                    str(address), port, timeout=timeout, local_address=local_address, socket_options=socket_options
                )
            except httpcore2.NetworkError as error:
                refusal = error
        raise refusal

    async def _addresses(self, host: str, port: int) -> list[IPAddress]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
        allowed = [address for address in dict.fromkeys(addresses) if self._is_allowed(address)]
        if addresses and not allowed:
            raise _RefusedAddressError(f"cannot be fetched: {host} is at a private address, {addresses[0]}")
        return allowed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
