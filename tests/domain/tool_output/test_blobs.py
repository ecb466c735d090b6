"""Blobs: chunks that add up to the whole, ids, and bytes shown as text (rules 1 to 5).

[tool-output.byte-exact, tool-output.same-content-once]
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.blobs.chunks import CHUNK_BYTES, decode, decode_lossy, encode, split_character
from tests.domain.tool_output.generated import any_bytes, any_text, chunked, cut_up


@given(any_bytes(), st.integers(0, 3), st.data())
def test_chunks_concatenate_to_the_blob(end: bytes, times: int, data: st.DataObject) -> None:
    """For pieces of any size, the chunks are the bytes, with the counts before each."""
    blob = b"line\n\xff" * (times * 20_000) + end
    chunker, chunks = chunked(cut_up(data, blob))
    assert b"".join(chunk.data or b"" for chunk in chunks) == blob
    assert chunker.blob("text/plain", None, None).sha256 == hashlib.sha256(blob).hexdigest()
    assert chunker.byte_size == len(blob)
    for number, chunk in enumerate(chunks):
        assert (chunk.number, chunk.start) == (number, number * CHUNK_BYTES)
        assert chunk.newlines == blob[: chunk.start].count(b"\n")
        assert chunk.size == CHUNK_BYTES or number == len(chunks) - 1


@given(any_text())
def test_text_is_restored_exactly(text: str) -> None:
    """Rule 2, with lone surrogates and NUL; it is decoded to the same text."""
    assert decode(encode(text)) == text
    assert decode_lossy(encode(text)) == text


@given(any_bytes(), st.data())
def test_decoded_text_does_not_depend_on_the_cuts(blob: bytes, data: st.DataObject) -> None:
    """Rule 5, for invalid bytes as well, as long as no character is split [tool-output.preview]."""
    places = [0]
    for position in sorted(data.draw(st.lists(st.integers(0, len(blob))))):
        across = split_character(blob, position)
        places.append(across[1] if across else position)
    places = sorted({*places, len(blob)})
    parts = [blob[start:end] for start, end in pairwise(places)]
    assert "".join(map(decode_lossy, parts)) == decode_lossy(blob)
