"""Cuts the text of a transcript into chunks that fit a summariser's context window."""

from __future__ import annotations

from collections.abc import Sequence

from app.services.ports import Tokenizer

_SEPARATOR_TOKENS = 2
_NOTE_TOKENS = 24
"""Reserved for the note that counts the characters left out."""


def take_chunk(
    texts: Sequence[str], max_tokens: int, tokenizer: Tokenizer
) -> tuple[str, list[str]]:
    """Return the first texts that fit into `max_tokens`, joined, and the other texts.

    A first text that is too large alone is cut in the middle.
    """
    chunk: list[str] = []
    remaining_tokens = max_tokens
    for text in texts:
        tokens = tokenizer.count(text) + _SEPARATOR_TOKENS
        if tokens > remaining_tokens:
            break
        chunk.append(text)
        remaining_tokens -= tokens
    if not chunk and texts:
        chunk = [cut_middle(texts[0], max_tokens, tokenizer)]
    return "\n\n".join(chunk), list(texts[len(chunk) :])


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
