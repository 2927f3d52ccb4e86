"""One file from an HTTP server, whole and right or not at all: goes on where it was cut, and believes nobody.

What has come lies in a `Part` until all of it is there and its sha256 is right. A server that ignores ranges,
or has another file by now, means a start from the beginning. Where nobody said a sha256, bytes of two connections are
joined only under the same strong validator (If-Range, RFC 9110, 13.1.5).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from forerun.errors import DownloadError
from forerun.fetch.answer import CutError, Extent, StaleError, UnreachedError, extent_of
from forerun.fetch.http_file import HttpFile
from forerun.fetch.limits import Patience, Space, TransferProgress
from forerun.fetch.part import Part
from forerun.models.findings import size
from forerun.models.gguf_types import MAGIC
from forerun.models.model_file import describe_foreign

_MAX_REDIRECTS: Final = 8
_UNREACHED_ATTEMPTS: Final = 2


def http_client(patience: Patience) -> httpx2.AsyncClient:
    """A client as transfers need it; proxies and certificates come from the environment."""
    timeout = httpx2.Timeout(patience.stall, connect=patience.connect)
    return httpx2.AsyncClient(follow_redirects=True, max_redirects=_MAX_REDIRECTS, timeout=timeout)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Fetches files into one folder."""

    client: httpx2.AsyncClient
    patience: Patience
    space: Space
    progress: TransferProgress

    async def fetch(self, remote: HttpFile, path: Path) -> Part:
        """The file, whole and right, at `path`. Raises DownloadError; what has come by then stays for next time."""
        with Part(path, remote.told) as part:
            try:
                await part.read()
                await self._fetch_right(remote, part)
                await part.settle()
            except OSError as error:
                raise DownloadError(f"{remote.told}: {path} cannot be written: {error.strerror or error}") from error
        return part

    async def _fetch_right(self, remote: HttpFile, part: Part) -> None:
        self._keep_what_is_of_use(remote, part)
        for may_begin_again in (True, False):
            was_joined = await self._fetch_whole(remote, part)
            if remote.sha256 in (None, part.sha256):
                return
            found = part.sha256
            part.restart()
            if not (was_joined and may_begin_again):  # else one of its pieces may have been at fault
                raise DownloadError(
                    f"{remote.told}: its sha256 is {found}, {remote.sha256} is expected: the bytes are wrong and were "
                    "deleted; try again, or look where they come from"
                )

    @staticmethod
    def _keep_what_is_of_use(remote: HttpFile, part: Part) -> None:
        if remote.size is not None:
            part.total = remote.size
        fits = part.total is None or part.size <= part.total
        may_be_joined = remote.sha256 is not None or part.validator is not None
        if part.size and not (fits and may_be_joined):
            part.restart()

    async def _fetch_whole(self, remote: HttpFile, part: Part) -> bool:
        """All bytes, right or not; whether they are joined from several connections, an earlier pull's included."""
        failures, connections = 0, 1 if part.size else 0
        was_whole = part.is_whole
        if remote.barred is not None and not part.is_whole:
            raise DownloadError(f"{remote.told}: {remote.barred}")
        while not part.is_whole:
            before = part.size
            try:
                await self._attempt(remote, part)
            except CutError as cut:
                if isinstance(cut, StaleError) or not self._may_go_on(remote, part):
                    part.restart()
                failures = 1 if part.size - before >= self.patience.progress else failures + 1
                never_reached = isinstance(cut, UnreachedError) and not part.size
                if failures >= (_UNREACHED_ATTEMPTS if never_reached else self.patience.attempts):
                    raise self._given_up(remote, part, cut) from cut
                await asyncio.sleep(max(self.patience.wait(failures), cut.after))
            connections += 1
        return was_whole or connections > 1

    @staticmethod
    def _may_go_on(remote: HttpFile, part: Part) -> bool:
        return remote.sha256 is not None or part.validator is not None

    @staticmethod
    def _given_up(remote: HttpFile, part: Part, cut: CutError) -> DownloadError:
        part.flush()
        kept = f"; {size(part.size)} of it are kept, and the next pull goes on from there" if part.size else ""
        return DownloadError(f"{remote.told}: {cut}{kept}")

    async def _attempt(self, remote: HttpFile, part: Part) -> None:
        """One connection. Raises CutError where it ends early."""
        headers = {**remote.headers, "Accept-Encoding": "identity"}
        if part.size:
            headers["Range"] = f"bytes={part.size}-"
        if part.size and remote.sha256 is None and part.validator is not None:
            headers["If-Range"] = part.validator
        try:
            async with self.client.stream("GET", remote.url, headers=headers) as response:
                extent = extent_of(response, part.size, remote.told, remote.size)
                self._begin(extent, remote, part)
                async for chunk in response.aiter_raw():
                    self._take(chunk, remote, part)
        except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
            raise DownloadError(f"{remote.told}: the server leads nowhere: {error}") from error
        except httpx2.ConnectTimeout as error:
            raise UnreachedError(f"{_host(remote)} did not answer within {self.patience.connect:g} s") from error
        except httpx2.TimeoutException as error:
            raise CutError(f"no byte came for {self.patience.stall:g} s") from error
        except httpx2.ConnectError as error:
            raise UnreachedError(f"{_host(remote)} cannot be reached: {error}") from error
        except httpx2.TransportError as error:
            raise CutError(f"the connection was cut: {str(error) or type(error).__name__}") from error
        if not part.is_whole:
            raise CutError(f"the connection ended after {part.size} of {part.total} bytes")

    def _begin(self, extent: Extent, remote: HttpFile, part: Part) -> None:
        if extent.start == 0 and part.size:
            part.restart()
        elif part.size and part.total not in (None, extent.total):
            raise StaleError(f"the server's file has {extent.total} bytes now, it had {part.total}")
        elif part.size and remote.sha256 is None and part.validator != extent.validator:
            raise StaleError("the server's file was changed meanwhile")
        self.space.claim({remote.told: extent.total - part.size})
        part.expect(extent.total, extent.validator)

    def _take(self, chunk: bytes, remote: HttpFile, part: Part) -> None:
        if part.total is None or part.size + len(chunk) > part.total:
            raise StaleError(f"the server sent more than the {part.total} bytes that it said")
        part.append(chunk)
        if part.path.name.endswith(".gguf.part") and not part.head.startswith(MAGIC[: len(part.head)]):
            found = describe_foreign(part.head)
            part.restart()
            raise DownloadError(f"{remote.told}: the server sends no GGUF: {found}")
        self.progress(part.path.name.removesuffix(".part"), part.size, part.total)


def _host(remote: HttpFile) -> str:
    return httpx2.URL(remote.url).host
