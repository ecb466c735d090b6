"""Reading lists: each summary with what it replaced, for a person."""

from __future__ import annotations

from pathlib import Path

from benchmarks.fidelity.chat import Chat
from benchmarks.fidelity.sessions import Message, Session, content_text

SHOWN = 600


def write(folder: Path, session: Session, chat: Chat) -> None:
    """Write the summaries of the last compaction, then the messages that they stand for."""
    parts = [f"# {session.name}\n"]
    kept = set(chat.receipt.get("kept_seqs", ()))
    for made in chat.receipt.get("made", ()):
        start, end = made["summary_range"]
        parts.append(f"## Summary of messages {start} to {end - 1}\n\n{made['text']}\n")
        parts.append("## What it replaced\n")
        replaced = (seq for seq in range(start, end) if seq not in kept)
        parts += [_shown(seq, session.messages[seq - 1]) for seq in replaced]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{session.name.replace(':', '-').partition('+')[0]}.md"
    path.write_text("\n".join(parts), encoding="utf-8")


def _shown(seq: int, message: Message) -> str:
    text = content_text(message)
    if len(text) > SHOWN:
        half = SHOWN // 2
        text = f"{text[:half]}\n[… {len(text) - SHOWN} characters …]\n{text[-half:]}"
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    named = "".join(f"\n→ {call['name']} {call['arguments'][:SHOWN]}" for call in calls)
    return f"### {seq} {message['role']}\n{text}{named}\n"
