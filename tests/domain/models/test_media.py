"""Media cost by what is known of them: text, pages, bytes; flat only where nothing is.

[tokens.media]
"""

from __future__ import annotations

import base64
import zlib
from time import process_time

import pytest

from app.formats.message import File, Image
from app.models.tokens import (
    FILE_TOKENS,
    MAX_PAGES,
    data_tokens,
    file_tokens,
    image_tokens,
    without_data,
)

PDF = "application/pdf"
KINDS = ("", "text/plain", "application/json", PDF, "application/zip", "audio/mp3", "audio/wav")


def encoded(data: bytes) -> str:
    """Return data in base64."""
    return base64.b64encode(data).decode()


def pdf(pages: int, *, packed: bool = False, padding: int = 0) -> str:
    """Return something like a PDF, its page objects in an object stream or beside it."""
    objects = b"<< /Type /Pages >>\n" + b"<< /Type /Page /Parent 1 0 R >>\n" * pages
    if packed:
        stream = zlib.compress(objects)
        head = b"<< /Type /ObjStm /N %d /Filter /FlateDecode >> stream\n" % pages
        objects = head + stream + b"\nendstream\n"
    return encoded(b"%PDF-1.7\n" + objects + b"\0" * padding)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("pages", "counted"), [(1, 1), (2, 2), (37, 37), (5_000, MAX_PAGES)])
def test_a_pdf_costs_its_pages(pages: int, counted: int, packed: bool) -> None:
    """Pages are found as objects and in compressed streams, up to a most."""
    assert data_tokens(PDF, pdf(pages, packed=packed), len) == counted * FILE_TOKENS


@pytest.mark.parametrize("data", ["", "*", "%%%%", "é", "A", "JVBERi0" * 3])
@pytest.mark.parametrize("kind", KINDS)
def test_no_data_crash_the_count(kind: str, data: str) -> None:
    """What is no base64 has a count, too. [tokens.what-counts]"""
    assert data_tokens(kind, data, len) >= 0


def test_only_unknown_media_cost_a_flat_value() -> None:
    """A URL and a file id tell nothing of a file; a name counts on top. [tokens.what-counts]"""
    assert file_tokens(File(url="https://x.test/a.pdf"), len) == FILE_TOKENS
    assert file_tokens(File(file_id="file-1", name="a.pdf"), len) == FILE_TOKENS + 5
    assert file_tokens(File(url="x" * 3_000), len) == 3_000
    assert image_tokens(Image(url="x" * 3_000), len) == 3_000


def test_media_in_a_block_cost_their_size_and_not_their_base64() -> None:
    """Sound in a part that one provider understands is no text."""
    data = encoded(b"\1" * 249_999)
    block = {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}, "note": "x"}
    rest = {"type": "input_audio", "input_audio": {"format": "mp3"}, "note": "x"}
    assert without_data(block, len) == (rest, 1_000, 0)
    url = {"video_url": [{"url": f"data:video/mp4;base64,{data}"}, {"url": "https://x.test/"}]}
    assert without_data(url, len) == ({"video_url": [{}, {"url": "https://x.test/"}]}, 1_000, 0)
    text = {"source": {"type": "text", "media_type": "text/plain", "data": "abcd"}}
    assert without_data(text, len) == (text, 0, 0)


# What providers billed for sealed text in recorded calls: its field, its length, and its tokens.
BILLED = [
    ({"type": "reasoning", "encrypted_content": "gAAAA{}"}, 12_900, 1_920),
    ({"type": "reasoning", "encrypted_content": "gAAAA{}"}, 11_896, 1_728),
    ({"type": "reasoning", "encrypted_content": "gAAAA{}"}, 3_512, 384),
    ({"thoughtSignature": "{}"}, 5_180, 1_001),
    ({"thoughtSignature": "{}"}, 12_732, 2_650),
    ({"thoughtSignature": "{}"}, 1_100_000, 1_100),
    ({"type": "web_search_result", "encrypted_content": "{}"}, 9_904, 2_900),
    ({"type": "web_search_result", "encrypted_content": "{}"}, 13_692, 4_100),
]


@pytest.mark.parametrize(("block", "chars", "tokens"), BILLED)
def test_sealed_text_costs_about_what_it_seals(
    block: dict[str, str], chars: int, tokens: int
) -> None:
    """Never much less, which would send too much, and never as much as text. [tokens.sealed]"""
    filled = {key: text.replace("{}", "x7Qz" * (chars // 4)) for key, text in block.items()}
    assert 0.8 * tokens <= without_data(filled, len).sealed <= 2 * tokens


HOSTILE = [
    b"/ObjStm " * 500_000,
    b"/Type /Page " * 300_000,
    (b"/ObjStm >> stream\n" + zlib.compress(b"/Type /Page\n" * 50_000)) * 200,
    b"/Type" + b" " * 4_000_000,
]


@pytest.mark.parametrize("content", HOSTILE)
def test_no_pdf_takes_long_to_count(content: bytes) -> None:
    """Whatever stands in a PDF, little of it is read, and its cost has a most."""
    started = process_time()
    assert FILE_TOKENS <= data_tokens(PDF, encoded(content), len) <= MAX_PAGES * FILE_TOKENS
    assert process_time() - started < 1
