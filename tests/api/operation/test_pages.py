"""The pages that a browser opens first. [operation.pages, inspector.page]"""

from __future__ import annotations

import re
from urllib.parse import urljoin

from app.main import create_app
from app.settings import Settings
from tests.conftest import started
from tests.keys import create

URL = re.compile(r"""\b(?:src|href)=["']?([^"' >]+)""")
INLINE = re.compile(r"<script(?![^>]*src)|<style|<[a-z][^>]* (?:style|on[a-z]+)=")
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def test_the_pages_are_served(settings: Settings) -> None:
    """Without a key and for any host: a page is asked for again, its files never.

    Each file that a page names comes from the app, as its policy allows, and nothing else is there.
    """
    await create("alice", "", None, settings)
    async with started(create_app(settings)) as client:
        assert (await client.get("/v1/models")).status_code == 401
        for path in ("/inspector", "/docs"):
            page = await client.get(path, headers={"accept": BROWSER, "host": "docs.example.org"})
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert page.headers["cache-control"] == "no-cache"
            assert not INLINE.search(page.text)
            files = [url for url in URL.findall(page.text) if url.endswith((".js", ".css"))]
            assert len(files) >= 2
            answers = [page]
            for url in files:
                assert "//" not in url
                answer = await client.get(urljoin(path, url))
                assert answer.status_code == 200, url
                assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
                kind = "text/javascript" if url.endswith(".js") else "text/css"
                assert answer.headers["content-type"].partition(";")[0] == kind
                answers.append(answer)
            for served in answers:
                policy = served.headers["content-security-policy"].split("; ")
                assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= {*policy}
                assert "unsafe" not in served.headers["content-security-policy"]
                assert served.headers["x-content-type-options"] == "nosniff"
                assert "set-cookie" not in served.headers
        for other in ("main-A2.js", "index.html", "..%2fmain.py", "a/main-A1.js", ".js", ""):
            assert (await client.get(f"/inspector/{other}")).status_code == 404, other
        assert (await client.get("/docs/")).status_code in (401, 404)


async def test_the_first_page_is_the_inspector(settings: Settings) -> None:
    """The address of the service leads there."""
    async with started(create_app(settings)) as client:
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "inspector")
