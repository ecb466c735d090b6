"""`/v1/conversations/{id}/blobs` over HTTP: in, out, by slice, and gone.

[tool-output.transcript, tool-output.read-lines, tool-output.with-its-message, api.limits]
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any, cast

import asyncpg
import httpx
import pytest

from app.database.embedded import DATABASE
from app.main import create_app
from app.settings import Settings
from tests.api.talk import append, assert_problem, calling, new_conversation, result, user
from tests.conftest import Server, execute, in_thread, started
from tests.logged import Lines, lines
from tests.patience import PATIENCE_SECONDS

__all__ = ["lines"]

JSON = {"content-type": "application/json"}
LARGE = "line\n" * 2000
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
BASE64 = base64.b64encode(PNG).decode()
CHAT_IMAGE: dict[str, Any] = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{BASE64}"},
}
IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": BASE64},
}


async def upload(
    client: httpx.AsyncClient, path: str, content: Any, **headers: str
) -> dict[str, Any]:
    """Upload raw bytes and return the answer."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await client.post(f"{path}/blobs", content=content, headers=given)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{path}/blobs/{body['id']}"
    return body


async def stored(client: httpx.AsyncClient, path: str, content: Any) -> str:
    """Append a call with its result, and return the result's ref."""
    done = await append(client, path, calling("c"), result("c", content))
    ref: str = done["messages"][1]["output_ref"]["id"]
    return ref


async def transcript(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return all messages, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await client.get(f"{path}/messages", params={"limit": 1000, **query})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        found += body["data"]
        if body["next_cursor"] is None:
            return found
        query["cursor"] = body["next_cursor"]


async def content(client: httpx.AsyncClient, path: str, ref: str, **headers: str) -> bytes:
    """Return the raw bytes of an output."""
    answer = await client.get(f"{path}/blobs/{ref}/content", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-length"] == str(len(answer.content))
    return answer.content


async def count(settings: Settings, table: str) -> int:
    """Return how many rows a table has."""
    connection = await asyncpg.connect(settings.database_url)
    try:
        return int(await connection.fetchval(f"SELECT count(*) FROM {table}"))
    finally:
        await connection.close()


async def assert_nothing_stored(settings: Settings) -> None:
    """Check that there is no blob, chunk or upload."""
    for table in ("blobs", "blob_chunks", "blob_uploads"):
        assert await count(settings, table) == 0, table


# --- there and back ---------------------------------------------------------------------------

TEXTS = {
    "nothing": "",
    "no final newline": "line\n" * 2000 + "end",
    "CRLF": "line\r\n" * 2000 + "\r\r\n\r",
    "lone surrogates": "\ud800 and \udfff, \udc00\ud800" * 900,
    "NUL": "\x00\x01\x1b[0m" * 2000,
    "emoji": "👩‍👩‍👧‍👦😀é" * 900,
    "3 MB in one line": "0123456789abcdé" * 200_000,
    "100k lines": "".join(f"line {number}\n" for number in range(100_000)),
    "separators": "\u2028\u2029\x85\x0b\x0c" * 2000,
    "threshold": "x" * 4096,
    "one more": "x" * 4097,
}


async def test_texts_are_read_back_byte_for_byte(client: httpx.AsyncClient) -> None:
    """A result comes back identical, as a message and as bytes, and in slices.

    Sent with everything beyond ASCII escaped, as many clients do.

    [tool-output.byte-exact, tool-output.ref, log.identical-strings, tool-output.transcript]
    """
    for text in TEXTS.values():
        await assert_read_back(client, await new_conversation(client), text)


async def assert_read_back(client: httpx.AsyncClient, path: str, text: str) -> None:
    """Check that a text is read back unchanged, as a result in every form."""
    data = text.encode("utf-8", "surrogatepass")
    parts = [{"type": "text", "text": text}, {"type": "text", "text": "and"}]
    use = {"type": "tool_use", "id": "c", "name": "shell", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "c"}
    shapes: list[tuple[dict[str, Any], dict[str, Any], bytes]] = [
        (calling("c"), result("c", text), data),
        (calling("c"), {**result("c"), "content": parts}, data + b"\nand"),
        (
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{**answer, "content": text}]},
            data,
        ),
        (
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{**answer, "content": parts}]},
            data + b"\nand",
        ),
    ]
    for call, message, expected in shapes[: 2 if len(text) > 10**6 else 4]:
        batch: dict[str, Any] = {"messages": [call, message]}
        batch["format"] = "openai_chat" if message["role"] == "tool" else "anthropic"
        sent = await client.post(f"{path}/messages", content=json.dumps(batch), headers=JSON)
        assert sent.status_code == 201, sent.text
        ref = sent.json()["messages"][1]["output_ref"]
        seq = sent.json()["messages"][1]["seq"]
        lines = expected.count(b"\n") + (expected[-1:] not in (b"", b"\n"))
        assert (ref["byte_size"], ref["line_count"]) == (len(expected), lines)
        assert ref["id"].startswith("blob_") == (len(expected) > 4096)
        (shown,) = await transcript(client, path, content="full", after_seq=seq - 1)
        assert shown["content"] == message["content"] and shown["role"] == "tool"
        assert shown["output_ref"] == ref and not shown["content_truncated"]
        assert await content(client, path, ref["id"]) == expected
        about = (await client.get(f"{path}/blobs/{ref['id']}")).json()
        assert about["sha256"] == sha256(expected).hexdigest()
        assert about["media_type"] == "text/plain; charset=utf-8"
        place = f"{path}/blobs/{ref['id']}"
        first = (await client.get(f"{place}/lines", params={"limit": 1})).json()
        assert first["line_count"] == lines and bool(first["text"]) == bool(lines)
        found, at = "", cast(int | None, 0)
        while at is not None:
            piece = await client.get(f"{place}/bytes", params={"offset": at, "limit": 2**20})
            found += piece.json()["text"]
            at = piece.json()["next_offset"]
        assert found.encode("utf-8", "surrogatepass") == expected


@pytest.mark.parametrize("format", ["openai_chat", "anthropic"])
async def test_images_are_kept_with_their_type(client: httpx.AsyncClient, format: str) -> None:
    """An image, alone or beside text, is a blob with its media type, and the text has its id."""
    path = await new_conversation(client)
    image: dict[str, Any] = CHAT_IMAGE if format == "openai_chat" else IMAGE
    both: list[dict[str, Any]] = [
        {"type": "text", "text": "seen:"},
        image,
        {"type": "text", "text": LARGE},
    ]
    bad: dict[str, Any] = json.loads(json.dumps(image).replace(BASE64, "!" + "?" * 6000))
    named = "blob_" + sha256(PNG).hexdigest()[:24]
    main = f"seen:\n[image/png; {len(PNG):,} bytes; ref={named}]\n{LARGE}".encode()
    for parts, output, kind in (
        (both, main, "text/plain; charset=utf-8"),
        ([image], PNG, "image/png"),
        ([bad], b"[image: image/png]", "text/plain; charset=utf-8"),
    ):
        call, message = calling("c"), {**result("c"), "content": parts}
        if format == "anthropic":
            use = {"type": "tool_use", "id": "c", "name": "shell", "input": {}}
            call = {"role": "assistant", "content": [use]}
            block = {"type": "tool_result", "tool_use_id": "c", "content": parts}
            message = {"role": "user", "content": [block]}
        done = await append(client, path, call, message, format=format)
        ref = done["messages"][1]["output_ref"]
        answer = await client.get(f"{path}/blobs/{ref['id']}/content")
        assert (answer.content, answer.headers["content-type"]) == (output, kind)
        for how in ({}, {"content": "full"}, {"content": "view"}):
            shown = (await transcript(client, path, **how))[-1]
            assert shown["content"] == message["content"]
    answer = await client.get(f"{path}/blobs/{named}/content")
    assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
    built = await client.post(f"{path}/context", json={"format": format})
    assert BASE64 in built.text


async def test_a_transcript_shows_small_results_whole(client: httpx.AsyncClient) -> None:
    """Up to 64 KiB inline, else a preview; `content` overrides this. [tool-output.transcript]"""
    path = await new_conversation(client)
    sizes = (4096, 60_000, 65_536, 65_537, 300_000)
    for size in sizes:
        await stored(client, path, "x\n" * (size // 2) + "x" * (size % 2))
    for query, whole in (
        ({}, (True, True, True, False, False)),
        ({"content": "view"}, (True, False, False, False, False)),
        ({"content": "full"}, (True, True, True, True, True)),
    ):
        shown = [item for item in await transcript(client, path, **query) if item["output_ref"]]
        assert tuple(not item["content_truncated"] for item in shown) == whole
        for item, size, is_whole in zip(shown, sizes, whole, strict=True):
            assert item["output_ref"]["byte_size"] == size
            assert (len(item["content"]) == size) == is_whole
            ref = item["output_ref"]["id"]
            assert is_whole or item["content"].endswith(
                f'Read the rest with tool_output_cache ref_id="{ref}" offset=25488,'
                " or search it with tool_output_cache_grep.]"
            )
            assert not item["content_collected"]
    answer = await client.get(f"{path}/messages", params={"content": "some"})
    assert_problem(answer, 422, "VALIDATION_ERROR", "/query/content")


# --- uploading --------------------------------------------------------------------------------


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    """Yield pieces, so that the body is sent in chunks and its size is not known."""
    for piece in data:
        yield piece


UPLOADS = (
    (b"", "text/plain"),
    (b"\xff\xfe\x00 no text \xed\xa0\x80", "text/plain"),
    (b"\x89PNG", "image/png"),
    (LARGE.encode(), "text/csv; charset=latin-1; header=present"),
    (bytes(200_000), None),
)


async def test_uploads_are_read_back_unchanged(client: httpx.AsyncClient) -> None:
    """Bytes and media type are read back unchanged, chunked or not."""
    for data, media_type in UPLOADS:
        path = await new_conversation(client)
        headers = {"content_type": media_type} if media_type else {}
        refs = set()
        for body in (data, pieces(data[:7], b"", data[7:])):
            found = await upload(client, path, body, **headers)
            refs.add(found["id"])
            assert found["sha256"] == sha256(data).hexdigest()
            assert found["byte_size"] == len(data) and found["attached"] is False
            answer = await client.get(f"{path}/blobs/{found['id']}/content")
            assert answer.content == data
            expected = media_type or "application/octet-stream"
            assert answer.headers["content-type"] == found["media_type"] == expected
        listed = (await client.get(f"{path}/blobs")).json()["data"]
        assert {item["id"] for item in listed} == refs and len(refs) == 1


@pytest.mark.parametrize("format", ["openai_chat", "anthropic"])
async def test_a_message_refers_to_an_upload(client: httpx.AsyncClient, format: str) -> None:
    """A message without content shows the `view` of the upload; other content stays."""
    path = await new_conversation(client, policy={"tool_output": {"max_message_bytes": 2000}})
    data = b"\xed\xa0\x80\x00" + LARGE.encode()
    text = data.decode("utf-8", "surrogatepass")
    found = await upload(client, path, data)
    assert "Output cut" in found["view"] and found["view"].startswith("\ud800\x00line\n")
    for own in (None, "own words"):
        name: dict[str, Any] = {
            "output_ref": {"id": found["id"]},
            **({"content": own} if own else {}),
        }
        call, message = calling("c"), {**name, "role": "tool", "tool_call_id": "c"}
        if format == "anthropic":
            use = {"type": "tool_use", "id": "c", "name": "shell", "input": {}}
            call = {"role": "assistant", "content": [use]}
            block = {"type": "tool_result", "tool_use_id": "c", **name}
            message = {"role": "user", "content": [block]}
        done = await append(client, path, call, message, format=format)
        ref = {key: found[key] for key in ("id", "byte_size", "line_count")}
        assert done["messages"][1]["output_ref"] == ref
        shown = (await transcript(client, path, content="view"))[-1]
        held = shown["content"][0] if format == "anthropic" else shown
        assert held["content"] == own or held["content"] == found["view"]
        assert shown["content_truncated"] == (own is None)
        built = (await client.post(f"{path}/context", json={"format": format})).json()
        seen = own or found["view"].replace("\ud800", "\ufffd").replace("\x00", "\ufffd")
        assert json.dumps(seen) in json.dumps(built["payload"])
        full = (await transcript(client, path, content="full"))[-1]
        held = full["content"][0] if format == "anthropic" else full
        assert held["content"] == (own or text)
    about = (await client.get(f"{path}/blobs/{found['id']}")).json()
    assert about["attached"] is True


async def test_invalid_refs_are_refused(client: httpx.AsyncClient) -> None:
    """An invalid, unknown or collected ref, or one of another conversation, is a 422."""
    path, other = await new_conversation(client), await new_conversation(client)
    foreign = (await upload(client, other, b"x" * 5000))["id"]
    gone = (await upload(client, path, b"y" * 5000))["id"]
    await client.post(f"{path}/blobs/collect")
    await append(client, path, calling("c"))
    wrong: list[Any] = [{"id": foreign}, {"id": gone}, {"id": "x"}, {"id": 5}, {}, [], 7, ""]
    for ref in wrong:
        message = {"role": "tool", "tool_call_id": "c", "output_ref": ref}
        answer = await client.post(f"{path}/messages", json={"messages": [message]})
        assert_problem(answer, 422, "VALIDATION_ERROR", "/messages/0/output_ref")
    assert len(await transcript(client, path)) == 1


async def never_read() -> AsyncIterator[bytes]:
    """Yield pieces that must not be read."""
    yield pytest.fail("the body was read")


async def test_an_upload_over_the_limit_is_refused(settings: Settings) -> None:
    """A too large body is a 413; nothing is stored, and a declared size is not read."""
    async with started(
        create_app(settings.model_copy(update={"max_blob_bytes": 100_000}))
    ) as client:
        path = await new_conversation(client)
        for body in (pieces(b"x" * 60_000, b"x" * 40_001), pieces(b"x" * 100_001)):
            answer = await client.post(f"{path}/blobs", content=body)
            assert assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")["limit"] == 100_000
        headers = {"content-length": "100001"}
        answer = await client.post(f"{path}/blobs", content=never_read(), headers=headers)
        assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")
        await assert_nothing_stored(settings)
        # No JSON body: the limit of those does not apply.
        assert (await upload(client, path, b"x" * 100_000))["byte_size"] == 100_000
    async with started(create_app(settings.model_copy(update={"max_body_bytes": 1000}))) as client:
        assert (await upload(client, path, b"x" * 100_000))["byte_size"] == 100_000


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Poll until `holds`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# A pooler says that a database is away for a while longer than it is.
@pytest.mark.direct
@pytest.mark.one_server  # it renames the database
async def test_the_database_is_lost_during_an_upload(
    client: httpx.AsyncClient, settings: Settings, server: Server
) -> None:
    """The upload is a 503; a collection deletes its chunks."""
    path = await new_conversation(client)
    url = settings.database_url or ""
    name = re.search(r"/(test_\w+)\?", url)
    assert name is not None

    def admin(sql: str) -> None:
        in_thread(execute, server.url_of(DATABASE), sql)

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        assert await count(settings, "blob_chunks") > 0
        where = f"datname = '{name[1]}'"
        admin(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {where}")
        admin(f"ALTER DATABASE {name[1]} RENAME TO {name[1]}_away")
        yield b"x" * 2_000_000

    answer = await client.post(f"{path}/blobs", content=body())
    assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
    admin(f"ALTER DATABASE {name[1]}_away RENAME TO {name[1]}")
    assert await count(settings, "blob_uploads") == 1
    old = "UPDATE blob_uploads SET begun_at = now() - interval '25 hours'"
    in_thread(execute, url, old)
    dry = (await client.post(f"{path}/blobs/collect", json={"dry_run": True})).json()
    assert (dry["upload_count"], dry["collected"]) == (1, [])
    done = (await client.post(f"{path}/blobs/collect")).json()
    assert (done["upload_count"], done["dry_run"]) == (1, False)
    await assert_nothing_stored(settings)
    assert (await upload(client, path, b"again"))["byte_size"] == 5


# --- reading ----------------------------------------------------------------------------------

BODY = b"0123456789" * 20_000
SIZE = len(BODY)
RANGES = [
    ("bytes=0-0", 0, 1),
    ("bytes=0-", 0, SIZE),
    (f"bytes=0-{SIZE - 1}", 0, SIZE),
    ("bytes=5-9", 5, 10),
    ("Bytes = 5 - 9", 5, 10),
    ("bytes=65530-65545", 65530, 65546),
    (f"bytes={SIZE - 3}-", SIZE - 3, SIZE),
    (f"bytes={SIZE - 3}-{SIZE + 100}", SIZE - 3, SIZE),
    ("bytes=100-" + "9" * 60, 100, SIZE),
    ("bytes=-5", SIZE - 5, SIZE),
    ("bytes=-" + "9" * 60, 0, SIZE),
    (f"bytes={SIZE}-", None, None),
    (f"bytes={SIZE}-{SIZE + 5}", None, None),
    ("bytes=" + "9" * 60 + "-", None, None),
    ("bytes=-0", None, None),
    ("bytes=9-5", 0, 0),
    ("bytes=-", 0, 0),
    ("bytes=x-y", 0, 0),
    ("lines=1-2", 0, 0),
    ("bytes=0-1,5-6", 0, 0),
    ("", 0, 0),
    ("bytes=" + "1" * 200 + "-", 0, 0),
]
"""Ranges with what they give: both 0 for everything, None for a 416."""


async def test_ranges_are_returned(client: httpx.AsyncClient) -> None:
    """A range returns its bytes, one past the end a 416; invalid or several ranges return all."""
    path = await new_conversation(client)
    place = f"{path}/blobs/{(await upload(client, path, BODY))['id']}/content"
    for header, start, end in RANGES:
        answer = await client.get(place, headers={"range": header})
        if start is None or end is None:
            assert_problem(answer, 416, "VALIDATION_ERROR", "/header/range")
            assert answer.headers["content-range"] == f"bytes */{SIZE}"
            continue
        status, expected = (206, BODY[start:end]) if end else (200, BODY)
        assert (answer.status_code, answer.content) == (status, expected), header
        assert answer.headers["content-length"] == str(len(expected))
        assert answer.headers["accept-ranges"] == "bytes"
        if status == 206:
            given = f"bytes {start}-{end - 1}/{SIZE}"
            assert answer.headers["content-range"] == given
        else:
            assert "content-range" not in answer.headers
    empty = f"{path}/blobs/{(await upload(client, path, b''))['id']}/content"
    assert (await client.get(empty)).content == b""
    for header in ("bytes=0-", "bytes=0-0", "bytes=-1"):
        answer = await client.get(empty, headers={"range": header})
        assert_problem(answer, 416, "VALIDATION_ERROR")
        assert answer.headers["content-range"] == "bytes */0"


async def test_a_download_never_runs_as_a_page(client: httpx.AsyncClient) -> None:
    """Its headers keep browsers from showing or guessing the content."""
    path = await new_conversation(client)
    ref = await stored(client, path, "small")
    headers = (await client.get(f"{path}/blobs/{ref}/content")).headers
    assert headers["content-disposition"] == "attachment"
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]


async def test_compacted_outputs_are_gone(settings: Settings) -> None:
    """With `collection.drop_compacted` the transcript has `content_collected`; reads are a 410.

    [tool-output.collected-gone]
    """
    sandwich = {"preserve_top": 1, "preserve_bottom": 1}
    policy = {"collection": {"drop_compacted": True}, "sandwich": sandwich}
    async with started(create_app(settings)) as client:
        path = await new_conversation(client, policy=policy)
        await append(client, path, user("begin"), user("go"))
        ref = await stored(client, path, "x\n" * 40_000)
        for _ in range(4):
            await append(client, path, user("go on " * 200))
        compacted = await client.post(f"{path}/compact", json={})
        assert compacted.json()["compacted"], compacted.text
        done = (await client.post(f"{path}/blobs/collect")).json()
        assert [item["id"] for item in done["collected"]] == [ref]
        for how in ({}, {"content": "full"}, {"content": "view"}):
            shown = (await transcript(client, path, **how))[3]
            assert (shown["content_collected"], shown["content_truncated"]) == (True, True)
            assert shown["output_ref"]["id"] == ref
            for name in (ref, shown["id"]):
                gone = await client.get(f"{path}/blobs/{name}/content")
                assert_problem(gone, 410, "GONE")
        built = await client.post(f"{path}/context", json={})
        assert built.status_code == 200


# --- gone -------------------------------------------------------------------------------------


async def test_blobs_are_listed_newest_first(client: httpx.AsyncClient) -> None:
    """Every blob is listed once, also when blobs are added meanwhile. [api.lists]"""
    path = await new_conversation(client)
    made = [(await upload(client, path, b"%d" % n))["id"] for n in range(7)]
    found: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = (await client.get(f"{path}/blobs", params=query)).json()
        found += [item["id"] for item in page["data"]]
        await upload(client, path, b"later %d" % len(found))
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert found == made[::-1]
    answer = await client.get(f"{path}/blobs?cursor=x")
    assert_problem(answer, 422, "VALIDATION_ERROR", "/query/cursor")


def test_a_download_of_a_collected_blob_ends_early(served: str, lines: Lines) -> None:
    """The client can detect the missing rest, and no error is logged."""
    size = 48 * 2**20
    with httpx.Client(base_url=served, timeout=PATIENCE_SECONDS) as client:
        made = client.post("/v1/conversations", json={"model": "gpt-4o"}).json()
        path = f"/v1/conversations/{made['conversation_id']}/blobs"
        ref = client.post(path, content=os.urandom(size)).json()["id"]
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            host, port = served.removeprefix("http://").split(":")
            reader.connect((host, int(port)))
            reader.sendall(f"GET {path}/{ref}/content HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            received = reader.recv(65_536)
            assert f"content-length: {size}".encode() in received.lower()
            assert client.post(f"{path}/collect").status_code == 200
            total = len(received)
            while piece := reader.recv(2**20):  # the connection is closed before the end
                total += len(piece)
        assert total < size
        assert client.get(f"{path}/{ref}/content").status_code == 410
    wait_until(lambda: bool(lines.told("response_interrupted")), "the interruption was not logged")
    (told,) = lines.told("response_interrupted")
    assert told["level"] == "info"
    assert told["reason"] == "GONE"
    assert told["route"].endswith("/content")
    assert not lines.told("request_failed")
    assert not [line for line in lines.texts if '"level":"error"' in line]
