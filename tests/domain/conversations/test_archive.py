"""Which conversations are archived, and the text that holds their rows. [operation.archive]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.conversations.archive import (
    MAX_MESSAGES,
    ArchiveCandidate,
    ArchiveReader,
    ArchiveSums,
    ArchiveWriter,
    DamagedArchive,
    Part,
    TableEnd,
    TableStart,
    TableSum,
)

CID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
SINCE = datetime(2026, 1, 5, tzinfo=UTC)
IDLE = ArchiveCandidate("default", CID, is_idle=True, is_busy=False, messages=2)
Tables = Sequence[tuple[str, Sequence[bytes]]]


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (IDLE, True),
        (replace(IDLE, is_idle=False), False),
        (replace(IDLE, is_busy=True), False),
        (replace(IDLE, messages=0), False),
        (replace(IDLE, messages=MAX_MESSAGES), True),
        (replace(IDLE, messages=MAX_MESSAGES + 1), False),
        (replace(IDLE, restored_at=SINCE), False),
        (replace(IDLE, restored_at=SINCE - timedelta(seconds=1)), True),
    ],
)
def test_idle_conversations_without_open_work_are_archived(
    candidate: ArchiveCandidate, expected: bool
) -> None:
    """Neither empty nor very long ones, nor those that were restored since."""
    assert candidate.is_archivable(SINCE) is expected


def rows() -> st.SearchStrategy[bytes]:
    """Rows as COPY writes them: a backslash before every backslash, and no line break."""
    return st.text(st.characters(codec="utf-8")).map(
        lambda text: text.replace("\\", "\\\\").replace("\n", "\\n").encode() + b"\n"
    )


def tables() -> st.SearchStrategy[Tables]:
    """Some tables with their rows."""
    names = st.lists(st.sampled_from(("messages", "epochs", "pins")), unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*(st.tuples(st.just(name), st.lists(rows())) for name in chosen))
    )


def written(content: Tables) -> tuple[bytes, ArchiveSums]:
    """Return the text of an archive, and what it holds."""
    writer = ArchiveWriter(CID)
    text = writer.first()
    for name, lines in content:
        text += writer.start(name, ["a", "b c"])
        text += b"".join(map(writer.rows, lines)) + writer.end()
    last, sums = writer.last({name: TableSum(len(lines), "7") for name, lines in content})
    return text + last, sums


def read(text: bytes, sizes: Sequence[int]) -> list[Part]:
    """Read a text in pieces of these sizes, the last one again and again."""
    reader, found, at, number = ArchiveReader(), list[Part](), 0, 0
    while at < len(text):
        size = sizes[min(number, len(sizes) - 1)]
        found += reader.feed(text[at : at + size])
        at, number = at + size, number + 1
    reader.finish()
    return found


@given(content=tables(), sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_a_text_is_read_in_pieces_of_any_size(content: Tables, sizes: list[int]) -> None:
    """What is written is read: every table with its columns and rows, and the sums."""
    text, sums = written(content)
    assert len(text) == sums.text_bytes
    *parts, last = read(text, sizes)
    assert last == sums
    found: list[tuple[str, bytes]] = []
    for part in parts:
        match part:
            case TableStart(table, columns):
                assert columns == ("a", "b c")
                found.append((table, b""))
            case bytes():
                assert part.endswith(b"\n")
                found[-1] = (found[-1][0], found[-1][1] + part)
            case _:
                assert part == TableEnd()
    assert found == [(name, b"".join(lines)) for name, lines in content]


@given(content=tables(), place=st.integers(0), bit=st.integers(0, 7), sizes=st.integers(1, 50))
def test_any_change_is_noticed(content: Tables, place: int, bit: int, sizes: int) -> None:
    """A text that is cut, longer, or differs in one bit is never taken for what was written."""
    text, sums = written(content)
    place %= len(text)
    changed = text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :]
    for other in (text[:place], text + b"\n", text + text[place:], changed):
        try:
            parts = read(other, [sizes])
        except DamagedArchive:
            continue
        # What is not in the sum of the text is compared by its own checksums.
        assert other == changed
        assert parts[-1] != sums


def test_another_version_is_refused() -> None:
    """A text of a format that this release does not know says so."""
    text, _ = written(())
    with pytest.raises(DamagedArchive, match="version is 2"):
        read(text.replace(b'"version":1', b'"version":2'), [1000])
