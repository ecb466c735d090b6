"""Cuts the text of a transcript into chunks that fit a summariser's context window."""

from __future__ import annotations

from collections.abc import Sequence

from app.services.ports import Tokenizer

_NOTE_TOKENS = 24
"""Reserved for the note that counts the characters left out."""


def take_chunk(
    pieces: Sequence[str], max_tokens: int, tokenizer: Tokenizer
) -> tuple[str, list[str]]:
    """Return the first pieces that fit into `max_tokens` as one text, and the other pieces.

    A first piece that is too large alone is cut in the middle.
    """
    chunk: list[str] = []
    left = max_tokens
    for piece in pieces:
        tokens = tokenizer.count(piece) + 2
        if tokens > left:
            break
        chunk.append(piece)
        left -= tokens
    if not chunk and pieces:
        chunk = [cut_middle(pieces[0], max_tokens, tokenizer)]
    return "\n\n".join(chunk), list(pieces[len(chunk) :])


def cut_middle(text: str, max_tokens: int, tokenizer: Tokenizer) -> str:
    """Return the text with a note in the place of its middle, within `max_tokens`."""
    keep = min(len(text), max_tokens * 8)
    while True:
        tokens = tokenizer.count(text[: keep // 2]) + tokenizer.count(text[-(keep // 2) :])
        tokens += _NOTE_TOKENS
        if tokens <= max_tokens or keep < 2:
            break
        keep = min(keep - 1, int(keep * max_tokens / tokens * 0.95))
    head, tail = text[: keep // 2], text[len(text) - keep // 2 :]
    return f"{head}\n[… {len(text) - len(head) - len(tail):,} characters left out …]\n{tail}"
