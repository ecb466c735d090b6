"""Crashes amid appends of large results, with real processes: no message lacks its blob.

Writers append large results with ids of their own, some of them uploaded before, and repeat what
was not acknowledged, as a careful agent backend does. Meanwhile the service is killed with -9.

[tool-output.offload, tool-output.with-its-message]
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.cli.demo import Answer, Client
from app.database.embedded import running
from tests.conftest import execute
from tests.patience import PATIENCE_SECONDS
from tests.replay import Served, read_messages
from tests.torture.forked import forked
from tests.writers import Message, Writer, grown, writing

WRITERS = 3
KILLS = 2
PNG = b"\x89PNG\r\n\x1a\n" + os.urandom(9000)

REFERRED = """
    SELECT m.seq, m.blob_id AS ref, b.byte_size, b.collected_at IS NOT NULL AS collected,
        (SELECT coalesce(sum(c.size), 0) FROM blob_chunks c
            WHERE c.conversation_id = b.conversation_id AND c.content_id = b.content_id) AS kept
    FROM blob_uses m
    LEFT JOIN blobs b ON b.conversation_id = m.conversation_id AND b.blob_id = m.blob_id
"""
LOOSE = """
    SELECT count(*) FROM blob_chunks c
    WHERE NOT EXISTS (SELECT FROM blobs b
            WHERE b.conversation_id = c.conversation_id AND b.content_id = c.content_id)
        AND NOT EXISTS (SELECT FROM blob_uploads u
            WHERE u.conversation_id = c.conversation_id AND u.content_id = c.content_id)
"""


class Stored(Served):
    """A service whose blobs lie where it is told, in rows without a URL."""

    def __init__(self, data_dir: Path, store_url: str | None) -> None:
        environ = {"CONTEXT_BLOB_STORE_URL": store_url} if store_url else None
        super().__init__(data_dir, environ, launch=forked)

    def content(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET."""
        return self.raw("GET", path)

    def raw(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send raw bytes; returns status and body, status 0 when nothing answered."""
        parts = urlsplit(self.url)
        with closing(
            HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_SECONDS)
        ) as connection:
            try:
                connection.request(method, path, body)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, HTTPException):
                return 0, b""


class Results(Writer):
    """Appends calls with large results."""

    def __init__(self, service: Stored, number: int) -> None:
        super().__init__(service.url)
        self._service = service
        self._number = number

    def next_batch(self, number: int) -> list[Message]:
        """Return a call and its result: a text of its own, an image, or a text that all share."""
        call_id, name = f"c{number}", f"writer {self._number} result {number}"
        function = {"name": "run", "arguments": "{}"}
        calls = [{"id": call_id, "type": "function", "function": function}]
        text = f"{name}\n" + f"line of {number}\r\n" * (number % 7 * 3000 + 400)
        message: Message = {"role": "tool", "tool_call_id": call_id, "content": text}
        if number % 6 == 2:
            message["content"] = [{"type": "text", "text": text}, _image()]
        if number % 6 == 4:
            message["content"] = "the same for all\n" * 5000
        return [
            {"id": f"m{number}", "role": "assistant", "content": None, "tool_calls": calls},
            {"id": f"m{number + 1}", **message},
        ]

    def append(self, batch: list[Message]) -> Answer | None:
        """Append; now and then an upload under way is cut off too, to which nobody refers."""
        if len(self.sent) % 8 == 0:
            self._service.raw("POST", f"{self.path}/blobs", os.urandom(300_000))
        return super().append(batch)


def _image() -> dict[str, Any]:
    data = base64.b64encode(PNG).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


@pytest.fixture(params=["rows", "objects"])
def service(request: pytest.FixtureRequest, data_dir: Path, tmp_path: Path) -> Iterator[Stored]:
    """A service over either store, which is gone afterwards, whatever happened."""
    url = f"file://{tmp_path}/objects" if request.param == "objects" else None
    served = Stored(data_dir, url)
    try:
        served.start()
        yield served
    finally:
        served.kill()


def progress(service: Stored, writers: Sequence[Writer]) -> None:
    """Wait until every writer has had some more messages acknowledged."""
    service.wait_until(grown(writers, 4), PATIENCE_SECONDS, "every writer has gone on")


def assert_every_blob_is_there(service: Stored) -> None:
    """No message refers to a blob without all its bytes, and no chunk belongs to nobody."""
    with running(service.data_dir) as url:
        referred = asyncio.run(execute(url, REFERRED))
        loose = asyncio.run(execute(url, LOOSE))
    assert referred
    for row in referred:
        assert (row["collected"], row["kept"]) == (False, row["byte_size"]), dict(row)
    assert loose[0][0] == 0


def assert_all_reads_back(service: Stored, writers: Sequence[Writer]) -> None:
    """Every message is there once, and its result is read back byte for byte."""
    with closing(Client(service.url)) as client:
        for writer in writers:
            log = read_messages(client, writer.conversation_id)
            assert not writer.misplaced(log)
            assert [message["id"] for message in log] == [sent["id"] for sent in writer.sent]
            for sent, shown in zip(writer.sent, log, strict=True):
                if sent["role"] != "tool":
                    continue
                _assert_reads_back(service, writer.path, sent, shown["output_ref"])


def _assert_reads_back(
    service: Stored, path: str, sent: dict[str, Any], ref: dict[str, Any]
) -> None:
    status, data = service.content(f"{path}/blobs/{ref['id']}/content")
    parts = sent["content"]
    if isinstance(parts, str):
        assert (status, data) == (200, parts.encode())
        return
    text, image = parts[0]["text"].encode(), "blob_" + sha256(PNG).hexdigest()[:24]
    label = f"\n[image/png; {len(PNG):,} bytes; ref={image}]".encode()
    assert (status, data) == (200, text + label)
    assert service.content(f"{path}/blobs/{image}/content") == (200, PNG)


def test_kill_amid_large_results(service: Stored) -> None:
    """A kill -9 between blob and message, again and again: each message has its blob."""
    with writing([Results(service, number) for number in range(WRITERS)]) as writers:
        for _ in range(KILLS):
            progress(service, writers)
            service.kill()
            assert_every_blob_is_there(service)
            service.start()
        progress(service, writers)
        for writer in writers:
            writer.leave()
            assert not writer.refused
        assert any(writer.unanswered for writer in writers)
        assert_all_reads_back(service, writers)
        with closing(Client(service.url)) as client:
            for writer in writers:
                # What was uploaded, in whole or in part, is collected; the rest stays readable.
                assert client.send("POST", f"{writer.path}/blobs/collect", {}).accepted
        assert_all_reads_back(service, writers)
