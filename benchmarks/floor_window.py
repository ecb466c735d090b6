"""The window that floor B caches for each conversation.

A window holds consecutive messages up to the newest. An append returns the seq of its message: if
that is the next after the window's last, no other process has written, and the window is current.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Window:
    """The newest messages of one conversation, each as JSON with its token count."""

    def __init__(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Take rows of seq, tokens and body, the oldest first."""
        self._tokens: deque[int] = deque()
        self._bodies: deque[bytes] = deque()
        self._total = 0
        self.last_seq = 0
        for seq, tokens, body in rows:
            self._add(seq, tokens, body)

    def append(self, seq: int, tokens: int, body: bytes) -> bool:
        """Add a message if it is the next one; return whether the window is current."""
        if seq != self.last_seq + 1:
            return False
        self._add(seq, tokens, body)
        return True

    def cut(self, tokens: int) -> None:
        """Remove the oldest messages until the others fit; the newest message always stays."""
        while self._total > tokens and len(self._tokens) > 1:
            self._total -= self._tokens.popleft()
            self._bodies.popleft()

    def after(self, seq: int) -> list[bytes] | None:
        """Return the messages after a seq, or None if the window begins after the next one."""
        count = self.last_seq - seq
        if not 0 <= count <= len(self._bodies):
            return None
        newest = [self._bodies[-place] for place in range(1, count + 1)]
        return newest[::-1]

    def all(self) -> Iterable[bytes]:
        """Return all messages, the oldest first."""
        return self._bodies

    def _add(self, seq: int, tokens: int, body: bytes) -> None:
        self.last_seq = seq
        self._total += tokens
        self._tokens.append(tokens)
        self._bodies.append(body)
