"""Generated contents of blobs, and cuts of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from app.blobs.chunks import Chunk, Chunker, encode

PARTS = ["a", "b", "ab", " ", "\n", "\r\n", "\r", "é", "€", "😀", "\ud800", "\udc00", "\0"]
"""Characters of every length, both halves of a pair, and the ends of lines."""
BROKEN = [b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", b"\xc0\x80", b"\xed\xa0", b"\xed"]
"""Bytes that belong to no character."""


def any_text(max_size: int = 40) -> st.SearchStrategy[str]:
    """Texts of short lines, odd characters included."""
    return st.lists(st.sampled_from(PARTS), max_size=max_size).map("".join)


def any_bytes(max_size: int = 30) -> st.SearchStrategy[bytes]:
    """Bytes in which characters and broken ones stand side by side."""
    parts = st.sampled_from([*map(encode, PARTS), *BROKEN])
    return st.lists(parts, max_size=max_size).map(b"".join)


def cut_up(data: st.DataObject, blob: bytes) -> list[bytes]:
    """Draw pieces that add up to the blob, empty ones and single bytes among them."""
    if len(blob) < 200 and data.draw(st.booleans()):
        return [blob[index : index + 1] for index in range(len(blob))]
    places = sorted(data.draw(st.lists(st.integers(0, len(blob)), max_size=6)))
    return [blob[start:end] for start, end in pairwise([0, *places, len(blob)])]


def chunked(pieces: list[bytes]) -> tuple[Chunker, list[Chunk]]:
    """Return a finished chunker and the chunks of all pieces."""
    chunker = Chunker()
    chunks = [chunk for piece in pieces for chunk in chunker.feed(piece)]
    return chunker, [*chunks, *chunker.finish()]
