"""Views of tool results: what is kept, how the rest is found, placeholders.

[tool-output.offload, tool-output.preview, tool-output.placeholder, agent-tools.definitions]
"""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from app.blobs.chunks import ToolOutputRef, encode
from app.blobs.preview import (
    GREP,
    NOTE_BYTES,
    READ_BYTES,
    READ_LINES,
    Preview,
    PreviewBuilder,
    PreviewKind,
    preview_of_texts,
)
from app.policy.policy import PreviewMode, ToolOutputPolicy
from tests.domain.tool_output.generated import any_text, cut_up

DEFAULT = ToolOutputPolicy()
BLOB = "blob_0123456789abcdef01234567"


def ref_of(*texts: str) -> ToolOutputRef:
    """Return a ref to the texts as a blob holds them."""
    data = encode("".join(texts))
    return ToolOutputRef(BLOB, len(data), len(data.splitlines()))


def limits(
    max_line_length: int, max_message_bytes: int, mode: PreviewMode = PreviewMode.TRUNCATE
) -> ToolOutputPolicy:
    """Return a policy with these limits."""
    return ToolOutputPolicy(
        view=mode, max_line_length=max_line_length, max_message_bytes=max_message_bytes
    )


def small_limits() -> st.SearchStrategy[ToolOutputPolicy]:
    """Policies with limits so small that short texts are cut in every way."""
    modes = st.sampled_from([PreviewMode.TRUNCATE] * 5 + [PreviewMode.REFERENCE])
    return st.builds(limits, st.integers(1, 6), st.integers(1, 40), modes)


def view_of(text: str, made_by: ToolOutputPolicy = DEFAULT) -> Preview:
    """Return the preview of one text."""
    return preview_of_texts([text], made_by, ref_of(text), "shell_exec")


def lines_cut(text: str, most: int) -> str:
    """Return the text with its lines cut, computed with a regular expression."""
    return re.sub(r"([^\n]*?)(\r*(?:\n|\Z))", lambda line: line[1][:most] + line[2], text)


def bytes_cut(text: str, most: int) -> str:
    """Return the longest start of the text within these bytes."""
    while len(encode(text)) > most:
        text = text[:-1]
    return text


def shown_text(view: Preview) -> str:
    """Return the text that a preview shows, without its note."""
    return "".join(view.texts).removesuffix(view.note)


def room_beside_note(most: int) -> int:
    """Return the bytes of text in a preview with a note."""
    return max(0, most - NOTE_BYTES)


PADDED = any_text() | any_text().map(lambda text: text + "z\n" * 200)
"""Texts that are shorter than a note, and texts that are longer."""
MAX_BYTES = st.integers(1, 40) | st.integers(NOTE_BYTES - 2, NOTE_BYTES + 80)

# --- what is kept ---------------------------------------------------------------------------


@example("ab\rc\n" + "z\n" * 200, 1, 254)
@given(PADDED, st.integers(1, 6), MAX_BYTES)
def test_lines_are_cut_then_bytes(text: str, line: int, most: int) -> None:
    """Rules 1 and 2; the note counts towards the bytes, and no character is split."""
    view = view_of(text, limits(line, most))
    cut = lines_cut(text, line)
    shown = text if bytes_cut(cut, most) == text else bytes_cut(cut, room_beside_note(most))
    assert len(encode(view.texts[0])) <= max(most, len(encode(view.note)))
    assert shown_text(view) in (shown, shown + "\n")
    assert (view.kind is PreviewKind.WHOLE) == (shown == text)
    if shown == text:
        assert view == Preview(PreviewKind.WHOLE, (text,))
    elif shown == cut:
        assert view.mentions == (READ_BYTES, GREP)
        assert view.plain_note.startswith(f"[Long lines cut: {len(encode(shown))} of ")
    else:
        assert view.mentions == (READ_LINES, GREP)
        assert f"offset={shown.count(chr(10))}, or" in view.note
        assert view.plain_note.startswith(f"[Output cut: {len(encode(shown))} of ")


@given(any_text(), small_limits(), st.data())
def test_a_stream_has_the_preview_of_its_text(
    text: str, policy: ToolOutputPolicy, data: st.DataObject
) -> None:
    """Rule 5, whatever the pieces, and the first full preview is the last.

    [tool-output.deterministic]
    """
    builder, whole = PreviewBuilder(policy), view_of(text, policy)
    for piece in cut_up(data, encode(text)):
        was_full = builder.is_full
        builder.feed(piece)
        assert builder.is_full >= was_full
        if builder.is_full:
            break
    assert builder.finish(ref_of(text), "shell_exec") == whole


@given(st.lists(PADDED, max_size=4), st.integers(1, 6), MAX_BYTES)
def test_the_texts_of_a_result_share_the_bytes(texts: list[str], line: int, most: int) -> None:
    """Rule 4; texts after the last one that fits are empty, and the note comes once."""
    view = preview_of_texts(texts, limits(line, most), ref_of(*texts), None)
    cut = [lines_cut(text, line) for text in texts]
    assert len(view.texts) == len(texts)
    is_whole = cut == texts and sum(len(encode(text)) for text in texts) <= most
    room, wanted = most if is_whole else room_beside_note(most), []
    for text in cut:
        wanted.append(bytes_cut(text, room))
        room = room - len(encode(text)) if wanted[-1] == text else 0
    if view.kind is PreviewKind.WHOLE:
        assert list(view.texts) == texts == wanted
        return
    last = max((index for index, text in enumerate(wanted) if text), default=0)
    assert [*view.texts[:last], *view.texts[last + 1 :]] == [*wanted[:last], *wanted[last + 1 :]]
    assert view.texts[last].removesuffix(view.note) in (wanted[last], wanted[last] + "\n")
    if view.mentions[0] == READ_LINES:
        cut_one = next(index for index, text in enumerate(wanted) if text != cut[index])
        offset = "\n".join(wanted[: cut_one + 1]).count("\n")
        assert f"offset={offset}, or" in view.note


# --- the words ------------------------------------------------------------------------------


def test_the_note_of_a_cut_output_has_the_next_offset() -> None:
    """The exact text, with and without the names of tools [tool-output.notes-match-tools]."""
    text = "".join(f"{number:062}\n" for number in range(16_645))
    view = view_of(text)
    assert view.note == (
        "[Output cut: 50,976 of 1,048,635 bytes shown. Read the rest with tool_output_cache"
        f' ref_id="{BLOB}" offset=809, or search it with tool_output_cache_grep.]'
    )
    assert view.plain_note == f'[Output cut: 50,976 of 1,048,635 bytes shown; ref="{BLOB}".]'
    assert view.texts == (text[:50_976] + "\n" + view.note,)
    assert text[:50_976].count("\n") == 809
    assert len(view.texts[0]) <= 51_200


def test_a_reference_has_the_documented_text() -> None:
    """The exact text of a reference, with the unchanged excerpt."""
    text = "é\r\n" + "x" * 48_227
    view = preview_of_texts(
        [text, "more"], limits(1, 400, PreviewMode.REFERENCE), ref_of(text), "shell_exec"
    )
    assert view.texts == (
        '[Tool result stored — 48,231 bytes from "shell_exec".\n'
        "First 200 chars: é\r\n" + "x" * 197 + "]\n"
        f'Use the "read_result" tool with ref_id="{BLOB}" to read specific portions.',
        "",
    )
    assert view.kind is PreviewKind.REFERENCE
    assert view.mentions == (READ_BYTES,)
    assert view.texts[0].removesuffix(view.note) + view.plain_note == (
        '[Tool result stored — 48,231 bytes from "shell_exec".\n'
        "First 200 chars: é\r\n" + "x" * 197 + f']\nref_id="{BLOB}"'
    )
