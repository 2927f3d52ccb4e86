"""An HTTP server for downloads that does what real ones do at their worst: cuts, lies, stalls, is slow.

Each request for a path takes the path's next `Conduct`; after the last one the server behaves.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Conduct:
    """What one answer is like. Offsets count from the first byte of this answer's body."""

    cut_after: int | None = None
    """The connection is closed after so many bytes, fewer than were announced."""
    stall_after: int | None = None
    """After so many bytes nothing more comes until the server is told to end."""
    piece: int = 2**16
    """Bytes that are sent at a time."""
    wait: float = 0.0
    """Seconds before each piece."""
    content: bytes | None = None
    """Sent instead of the file."""
    ignores_ranges: bool = False
    says_no_length: bool = False
    shifts_range: int = 0
    """A part is sent from so many bytes further on than was asked for."""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    path: str
    range: str | None
    headers: Mapping[str, str]


class FileServer:
    """Files by path, and how each is to be handed out."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        """Of every answer for a path: an ETag, for instance."""
        self.conduct: dict[str, list[Conduct]] = defaultdict(list)
        self.asked: list[Asked] = []
        self.ended = threading.Event()
        self.stalled = threading.Event()
        """Set once an answer has stalled."""
        self.port = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def ranges(self, path: str) -> list[str | None]:
        """What ranges were asked for, in order."""
        return [asked.range for asked in self.asked if asked.path == path]


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    server = FileServer()

    class Handler(_Handler):
        files = server

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    files: FileServer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.files.asked.append(Asked(path, self.headers.get("Range"), dict(self.headers.items())))
        waiting = self.files.conduct[path]
        conduct = waiting.pop(0) if waiting else Conduct()
        self.close_connection = True
        content = self.files.files.get(path) if conduct.content is None else conduct.content
        if conduct.status is not None or content is None:
            self._answer(conduct.status or 404, conduct.headers, conduct.content or b"", conduct)
        else:
            self._send_file(path, content, conduct)

    def _send_file(self, path: str, content: bytes, conduct: Conduct) -> None:
        headers = {**self.files.headers.get(path, {}), **conduct.headers}
        start = self._start(headers, conduct)
        if start is None:
            self._answer(200, headers, content, conduct)
        elif start >= len(content):
            self._answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"", conduct)
        else:
            start += conduct.shifts_range
            headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}", **headers}
            self._answer(206, headers, content[start:], conduct)

    def _start(self, headers: Mapping[str, str], conduct: Conduct) -> int | None:
        """From where a part is wanted; None for the whole file."""
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if wanted is None or conduct.ignores_ranges or (condition is not None and condition != headers.get("ETag")):
            return None
        return int(wanted.removeprefix("bytes=").removesuffix("-"))

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes, conduct: Conduct) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if not conduct.says_no_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self._send(body, conduct)
        except OSError:  # the client went away
            return

    def _send(self, body: bytes, conduct: Conduct) -> None:
        ends = [end for end in (conduct.cut_after, conduct.stall_after) if end is not None]
        for at in range(0, min([len(body), *ends]), conduct.piece):
            if conduct.wait and self.files.ended.wait(conduct.wait):
                return
            self.wfile.write(body[at : min([at + conduct.piece, len(body), *ends])])
            self.wfile.flush()
        if conduct.stall_after is not None:
            self.files.stalled.set()
            self.files.ended.wait()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at `asked`."""
        del format, args
