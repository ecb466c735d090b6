"""Media cost by what is known of them: text, pages, bytes; flat only where nothing is.

[tokens.media]
"""

from __future__ import annotations

import base64
import zlib
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formats.message import File, Image
from app.models.tokens import (
    FILE_TOKENS,
    MAX_ESTIMATED_PAGES,
    MAX_PAGES,
    MAX_SEARCH_TOKENS,
    data_tokens,
    file_tokens,
    image_tokens,
    without_data,
)
from tests.domain.compaction.strategies_messages import png

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


def test_a_long_pdf_is_taken_to_go_on_as_it_began() -> None:
    """Of a PDF beyond what is read, the pages are in proportion."""
    read = data_tokens(PDF, pdf(10, padding=1 << 21), len)
    longer = data_tokens(PDF, pdf(10, padding=1 << 23), len)
    assert read == 10 * FILE_TOKENS < longer < 30 * FILE_TOKENS


def test_a_document_without_pages_is_counted_by_its_bytes() -> None:
    """A document that cannot be looked into costs a page for every 20 KB, up to a most."""
    for size, pages in ((10, 1), (15_000, 1), (50_000, 3), (4_000_000, MAX_ESTIMATED_PAGES)):
        assert data_tokens("application/zip", encoded(b"x" * size), len) == pages * FILE_TOKENS
        assert data_tokens(PDF, encoded(b"x" * size), len) == pages * FILE_TOKENS


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


def test_a_generated_image_costs_what_an_image_costs() -> None:
    """What a provider drew is an image again, however long its data. [tokens.media]"""
    data = "QUJD" * 300_000
    for result, tokens in ((png(800, 600) + data, 640), (data, 1_000)):
        item = {"type": "image_generation_call", "id": "ig_1", "result": result}
        assert without_data(item, len).media == tokens


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


@given(st.sampled_from(BILLED), st.lists(st.integers(64, 100_000), min_size=2, max_size=2))
def test_sealed_text_is_never_free_and_never_text(
    billed: tuple[dict[str, str], int, int], sizes: list[int]
) -> None:
    """More of it costs no less, and all of it at most a quarter of its length."""
    low, high = (
        without_data({key: text.replace("{}", "Q" * size) for key, text in billed[0].items()}, len)
        for size in sorted(sizes)
    )
    assert 0 < low.sealed <= high.sealed <= max(sizes) // 4 + 2


def test_the_pages_of_one_search_are_bounded() -> None:
    """A provider puts parts of the pages that it found in the context, not all of each."""
    result = {"type": "web_search_result", "encrypted_content": "ErYB" * 2_048, "url": "u"}
    block = {"type": "web_search_tool_result", "content": [result] * 10}
    assert without_data(block, len).sealed == MAX_SEARCH_TOKENS


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
