"""Slices of blobs by line and by byte. [tool-output.read-lines]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.blobs.chunks import decode_lossy, encode, prefix_size
from app.tool_output.slices import LineReader, OutputBytes, OutputLines, byte_slice, bytes_to_fetch
from tests.domain.tool_output.generated import any_bytes, cut_up

ENDLESS = 10**9


def line_count(blob: bytes) -> int:
    """Return the lines of a blob."""
    return blob.count(b"\n") + (not blob.endswith((b"\n",)) and blob != b"")


def lines_of(
    blob: bytes,
    offset: int = 0,
    limit: int = 2000,
    *,
    max_line_length: int = 2000,
    max_bytes: int = ENDLESS,
    pieces: list[bytes] | None = None,
) -> OutputLines:
    """Read a slice of lines from the blob's beginning on."""
    reader = LineReader(
        offset,
        limit,
        max_line_length=max_line_length,
        max_bytes=max_bytes,
        line_count=line_count(blob),
    )
    for piece in [blob] if pieces is None else pieces:
        reader.feed(piece)
    return reader.finish()


def bytes_of(blob: bytes, offset: int, limit: int) -> OutputBytes:
    """Read a slice from the bytes that `bytes_to_fetch` names."""
    start, end = bytes_to_fetch(offset, limit, len(blob))
    return byte_slice(blob[start:end], start, offset=offset, limit=limit, total=len(blob))


def plain_lines(blob: bytes, most: int) -> list[str]:
    """Return all lines numbered and cut, computed line by line."""
    parts = blob.split(b"\n")
    start, shown = 0, []
    for number, line in enumerate(parts[: line_count(blob)], 1):
        text = decode_lossy(line.removesuffix(b"\r"))
        if len(text) > most:
            text = f"{text[:most]} … [line goes on at byte {start + prefix_size(line, most)}]"
        shown.append(f"{number:6}\t{text}")
        start += len(line) + 1
    return shown


# --- lines ----------------------------------------------------------------------------------


@given(any_bytes(), st.integers(0, 8), st.integers(1, 8), st.integers(1, 5), st.data())
def test_lines_are_those_of_the_blob(
    blob: bytes, offset: int, limit: int, most: int, data: st.DataObject
) -> None:
    """Rules 1 to 3, for pieces of any size; a cut line continues at the named byte."""
    pieces = cut_up(data, blob)
    lines = lines_of(blob, offset, limit, max_line_length=most, pieces=pieces)
    wanted = plain_lines(blob, most)[offset : offset + limit]
    following = offset + len(wanted)
    total = line_count(blob)
    next_offset = following if following < total else None
    assert lines == OutputLines("\n".join(wanted), offset, total, next_offset)


@given(any_bytes(60), st.integers(1, 6), st.integers(1, 80))
def test_following_the_slices_shows_every_line_once(blob: bytes, limit: int, most: int) -> None:
    """Rule 4; a slice stays within its bytes unless one line alone is over them."""
    shown: list[str] = []
    offset: int | None = 0 if blob else None
    while offset is not None:
        lines = lines_of(blob, offset, limit, max_line_length=7, max_bytes=most)
        count = lines.text.count("\n") + 1
        assert 1 <= count <= limit
        assert len(encode(lines.text)) <= most or count == 1
        shown.append(lines.text)
        offset = lines.next_offset
    assert "\n".join(shown) == "\n".join(plain_lines(blob, 7))


# --- bytes ----------------------------------------------------------------------------------


@given(any_bytes(), st.integers(1, 9))
def test_byte_slices_concatenate_to_the_blob(blob: bytes, limit: int) -> None:
    """Rule 4; a slice is over its limit only for one character that is longer."""
    texts, offset = [], 0 if blob else None
    while offset is not None:
        part = bytes_of(blob, offset, limit)
        assert part.offset == offset
        size = (len(blob) if part.next_offset is None else part.next_offset) - offset
        assert 1 <= size <= max(limit, len(encode(part.text[:1])))
        assert part.byte_size == len(blob)
        texts.append(part.text)
        offset = part.next_offset
    assert "".join(texts) == decode_lossy(blob)
