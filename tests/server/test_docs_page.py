"""/docs: the routes, shown and tried in a browser, without anything from elsewhere."""

from __future__ import annotations

import asyncio
import re

import httpx

from tests.server.support import served


def fetched(*paths: str) -> list[httpx.Response]:
    async def main() -> list[httpx.Response]:
        async with served() as server:
            return [await server.client.get(path) for path in paths]

    return asyncio.run(main())


def test_the_page_takes_everything_from_the_server_itself() -> None:
    (page,) = fetched("/docs")
    assert page.status_code == 200
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(linked) >= 2
    assert [link for link in linked if "//" in link] == []
    for answer in fetched(*(link for link in linked if link.startswith("/")), "/openapi.json"):
        assert answer.status_code == 200
        assert answer.headers["content-type"].split(";")[0] in ("text/javascript", "text/css", "application/json")
    assert "https://" not in page.text


def test_there_is_one_page_of_documentation() -> None:
    assert [answer.status_code for answer in fetched("/redoc")] == [404]
