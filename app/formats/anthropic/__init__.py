"""Anthropic Messages.

1. A wire user message with k tool results is k tool messages and one user message with the rest.
   The results must come first. `split` cuts the raw message in the same way and loses nothing.
2. `render` returns the wire role and blocks, since one wire message may hold several neutral ones.
3. Thinking is replayed verbatim, at its place among the blocks, or is left out.
"""

from __future__ import annotations

from app.formats.anthropic.parsing import RESULT_KEY, parse, results, split
from app.formats.anthropic.rendering import adapt, is_sent, render, tools_to_wire

__all__ = ["RESULT_KEY", "adapt", "is_sent", "parse", "render", "results", "split", "tools_to_wire"]
