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


def test_who_opens_the_address_in_a_browser_gets_there() -> None:
    (start,) = fetched("/")
    assert (start.status_code, start.headers["location"]) == (307, "docs")


def test_what_is_not_there_says_where_to_find_what_is() -> None:
    missing, wrong = fetched("/v1/files", "/v1/chat/completions")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    for answer in (missing, wrong):
        assert "GET /docs shows" in answer.json()["error"]["message"]
