"""The pages that a browser opens first. [operation.pages]"""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urljoin

import httpx

from app.keys import create
from app.main import create_app
from app.settings import Settings
from tests.conftest import started

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


class References(HTMLParser):
    """All URLs and all inline code of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.inline: list[str] = []
        self._tag = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the URLs and the inline code in the attributes of a tag."""
        self._tag = tag
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data"):
                self.urls.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(name)

    def handle_endtag(self, tag: str) -> None:
        """Leave a tag."""
        self._tag = ""

    def handle_data(self, data: str) -> None:
        """Note inline code."""
        if self._tag in ("script", "style") and data.strip():
            self.inline.append(data)


async def test_pages_need_no_key_and_no_other_host(settings: Settings) -> None:
    """Each file that a page names comes from the app, without a key, as its policy allows."""
    await create("alice", "", None, settings)
    async with started(create_app(settings)) as client:
        assert (await client.get("/v1/models")).status_code == 401
        for path in ("/", "/docs"):
            page = await client.get(path, headers={"accept": BROWSER, "host": "docs.example.org"})
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert "unsafe" not in page.headers["content-security-policy"]
            found = References(page.text)
            assert found.inline == []
            urls = [url for url in found.urls if url != "data:,"]
            assert urls
            for url in urls:
                assert "//" not in url
                answer = await client.get(urljoin(path, url))
                assert answer.status_code == 200, url
                if url.endswith((".js", ".css")):
                    kind = "text/javascript" if url.endswith(".js") else "text/css"
                    assert answer.headers["content-type"].partition(";")[0] == kind
                    assert answer.headers["x-content-type-options"] == "nosniff"
        script = (await client.get("/docs/start.js")).text
        assert "//" not in script
        assert 'url: "openapi.json"' in script
        assert "SwaggerUIBundle" in (await client.get("/docs/swagger-ui-bundle.js")).text
        for other in ("/docs/redoc.standalone.js", "/docs/..%2fcore.py", "/docs/"):
            assert (await client.get(other)).status_code in (401, 404)


ACCEPTED = {
    BROWSER: "text/html",
    "TEXT/HTML": "text/html",
    "application/json;q=0.5, text/html;q=0.9": "text/html",
    "*/*": "application/json",
    "application/json, text/html": "application/json",
    "text/html;q=0": "application/json",
    "text/html;q=much, , ;": "application/json",
    "": "application/json",
}


async def test_the_first_page_follows_accept(client: httpx.AsyncClient) -> None:
    """A browser gets HTML, everything else the same links as JSON."""
    for accept, kind in ACCEPTED.items():
        answer = await client.get("/", headers={"accept": accept})
        assert answer.headers["content-type"].partition(";")[0] == kind, accept
        assert answer.headers["vary"] == "Accept"
    links = (await client.get("/")).json()
    assert links.pop("name") == "Context Service"
    document = (await client.get("/openapi.json")).json()
    assert document["info"]["version"] == links.pop("version")
    for path in links.values():
        assert (await client.get(path)).status_code == 200
