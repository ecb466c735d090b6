"""The pages that a browser opens first. [operation.pages, inspector.page]"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest

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


PAGE = '<link rel="stylesheet" href="inspector/main-A1.css"><script src="inspector/main-A1.js">'

DOCS = '<script src="inspector/docs-A1.js">'


@pytest.fixture
def inspector(tmp_path: Path) -> Path:
    """A built inspector of three files, with an API reference of two."""
    folder = tmp_path / "inspector_files"
    folder.mkdir()
    (folder / "index.html").write_text(PAGE, encoding="utf-8")
    (folder / "main-A1.js").write_text("start()", encoding="utf-8")
    (folder / "main-A1.css").write_text("main {}", encoding="utf-8")
    (folder / "docs.html").write_text(DOCS, encoding="utf-8")
    (folder / "docs-A1.js").write_text("start()", encoding="utf-8")
    (tmp_path / "secret.js").write_text("secret", encoding="utf-8")
    return folder


async def test_the_inspector_is_served(settings: Settings, inspector: Path) -> None:
    """Without a key: the page is asked for again, its files never, and nothing else is there."""
    await create("alice", "", None, settings)
    app = create_app(settings)
    app.state.inspector = inspector
    async with started(app) as client:
        page = await client.get("/inspector", headers={"host": "docs.example.org"})
        assert (page.status_code, page.text) == (200, PAGE)
        assert page.headers["cache-control"] == "no-cache"
        answers = [page]
        for url in References(page.text).urls:
            answer = await client.get(urljoin("/inspector", url))
            answers.append(answer)
            assert answer.status_code == 200, url
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        reference = await client.get("/docs")
        assert (reference.status_code, reference.text) == (200, DOCS)
        answers += [reference, await client.get("/inspector/docs-A1.js")]
        assert len(answers) == 5
        for served in answers:
            policy = served.headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= {*policy}
            assert "unsafe" not in served.headers["content-security-policy"]
            assert served.headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in served.headers
        for other in ("main-A2.js", "index.html", "..%2fsecret.js", "a/main-A1.js", ".js", ""):
            assert (await client.get(f"/inspector/{other}")).status_code == 404, other
        first = await client.get("/", headers={"accept": BROWSER})
        assert (first.status_code, first.headers["location"]) == (303, "inspector")
        assert first.headers["vary"] == "Accept"
        assert (await client.get("/")).json()["inspector"] == "/inspector"


async def test_an_inspector_that_is_not_built_says_so(settings: Settings, tmp_path: Path) -> None:
    """Without the built files both pages say how to build them, and `/` does not lead there."""
    app = create_app(settings)
    app.state.inspector = tmp_path / "nothing"
    async with started(app) as client:
        for path in ("/inspector", "/docs"):
            page = await client.get(path)
            assert page.status_code == 404
            assert "make inspector" in page.text
        assert (await client.get("/inspector/main-A1.js")).status_code == 404
        assert (await client.get("/", headers={"accept": BROWSER})).status_code == 200
        assert (await client.get("/")).json()["inspector"] is None


async def test_a_page_that_an_earlier_build_lacks_says_so(
    settings: Settings, inspector: Path
) -> None:
    """Files that were built before a page existed serve the others."""
    (inspector / "docs.html").unlink()
    app = create_app(settings)
    app.state.inspector = inspector
    async with started(app) as client:
        page = await client.get("/docs")
        assert page.status_code == 404
        assert "make inspector" in page.text
        assert (await client.get("/inspector")).status_code == 200


async def test_pages_need_no_key_and_no_other_host(settings: Settings, inspector: Path) -> None:
    """Each file that a page names comes from the app, without a key, as its policy allows."""
    await create("alice", "", None, settings)
    app = create_app(settings)
    for folder, path, status in (
        (inspector / "nothing", "/", 200),
        (inspector / "nothing", "/docs", 404),
        (inspector, "/docs", 200),
        (inspector, "/inspector", 200),
    ):
        app.state.inspector = folder
        async with started(app) as client:
            assert (await client.get("/v1/models")).status_code == 401
            page = await client.get(path, headers={"accept": BROWSER, "host": "docs.example.org"})
            assert page.status_code == status
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert "unsafe" not in page.headers["content-security-policy"]
            found = References(page.text)
            assert found.inline == []
            urls = [url for url in found.urls if url != "data:,"]
            assert urls
            for url in urls:
                assert "//" not in url
                answer = await client.get(urljoin(path, url))
                assert answer.status_code == 200 or (url, status) == ("docs", 200), url
                if url.endswith((".js", ".css")):
                    kind = "text/javascript" if url.endswith(".js") else "text/css"
                    assert answer.headers["content-type"].partition(";")[0] == kind
                    assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await client.get("/docs/")).status_code in (401, 404)


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


async def test_the_first_page_follows_accept(settings: Settings, inspector: Path) -> None:
    """A browser is led to the inspector or gets HTML, everything else the same links as JSON."""
    app = create_app(settings)
    for folder in (inspector, inspector / "nothing"):
        app.state.inspector = folder
        async with started(app) as client:
            for accept, kind in ACCEPTED.items():
                answer = await client.get("/", headers={"accept": accept})
                assert answer.headers["vary"] == "Accept"
                if kind == "text/html" and folder is inspector:
                    assert answer.status_code == 303, accept
                else:
                    assert answer.headers["content-type"].partition(";")[0] == kind, accept
            links = (await client.get("/")).json()
            assert links.pop("name") == "Context Service"
            document = (await client.get("/openapi.json")).json()
            assert document["info"]["version"] == links.pop("version")
            for name, path in links.items():
                is_built = folder is inspector
                if path is not None:
                    expected = 200 if is_built or name != "docs" else 404
                    assert (await client.get(path)).status_code == expected
