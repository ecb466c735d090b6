"""Hypothesis strategies for whole logs: raw messages, their rows, their planning entries."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from app.conversations.messages.draft import Draft, make_drafts
from app.conversations.messages.row import Calls, LogRow, batch_shape
from app.conversations.turns import Entry, entry, marked
from app.formats.message import FormatName, Role
from app.formats.tools import own_id
from app.models.tokens import CountText
from tests.domain.compaction import strategies_messages as given_

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
INTERACTIONS = FormatName.INTERACTIONS
QUICK = settings(max_examples=30, deadline=None)
"""For properties of whole logs, whose examples take milliseconds each."""

CALL_IDS = ("c1", "c2", "c3", "toolu_A", "bad id!", "é", "x" * 60)
"""Few, so that logs use them again; some that no provider takes."""

IMAGE_DATA = given_.png(640, 480)
IMAGE_URL = f"data:image/png;base64,{IMAGE_DATA}"


def third(text: str) -> int:
    """Count a token per three characters, rounded up: cheap, and not additive over parts."""
    return -(-len(text) // 3)


# --- planning entries -----------------------------------------------------------------------


@st.composite
def entries(draw: st.DrawFn, max_groups: int = 12) -> list[Entry]:
    """Draw a history for planners: turns, groups of parallel results, now and then huge ones."""
    sizes = st.one_of(st.integers(1, 60), st.integers(1, 60), st.integers(100, 900))
    found: list[Entry] = []

    def put(role: Role, *, joins: bool = False) -> None:
        found.append(entry(len(found) + 1, role, draw(sizes), joins=joins))

    for _ in range(draw(st.integers(1, max_groups))):
        put(draw(st.sampled_from((Role.USER, Role.ASSISTANT, Role.ASSISTANT))))
        if found[-1].role is Role.ASSISTANT:
            for role in draw(st.sampled_from(("", "", "t", "t", "tt", "ttttt", "atta", "tu"))):
                put({"t": Role.TOOL, "a": Role.ASSISTANT, "u": Role.USER}[role], joins=True)
            if not draw(st.integers(0, 9)):
                put(Role.TOOL)  # a late result
    return found


def pinned_at(history: Iterable[Entry], seqs: Iterable[int]) -> list[Entry]:
    """Return the history with exactly these seqs pinned."""
    pins = set(seqs)
    return [marked(item, pinned=item.seq in pins) for item in history]


# --- raw logs -------------------------------------------------------------------------------


@dataclass
class RawLog:
    """Messages as they would be appended, each with its format; results answer open calls."""

    messages: list[tuple[FormatName, dict[str, Any]]] = field(default_factory=list)
    open_calls: list[str] = field(default_factory=list)


@functools.cache
def texts() -> st.SearchStrategy[str]:
    """Texts of a log: ordinary, odd, long."""
    long = st.integers(100, 900).map(lambda words: "lorem ipsum " * words)
    plain = st.text("abc \né日", max_size=60)
    return st.one_of(plain, plain, given_.texts(20), long, given_.HOSTILE)


def _chat_user(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.integers(0, 3)):
        return {"role": "user", "content": draw(texts())}
    parts = [{"type": "text", "text": draw(texts())}]
    if draw(st.booleans()):
        image = {"type": "image_url", "image_url": {"url": IMAGE_URL}}
        parts.append(image)  # type: ignore[arg-type]
    return {"role": "user", "content": parts, "name": draw(st.sampled_from(("ann", "no name")))}


def _chat_assistant(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    content = draw(st.one_of(st.none(), texts()))
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "read_file", "arguments": draw(given_.arguments())},
        }
        for call_id in ids
    ]
    raw: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        raw["tool_calls"] = calls
    if draw(st.integers(0, 4)) == 0:
        raw["reasoning_content"] = draw(texts())
    return raw


def _chat_result(draw: st.DrawFn, call_id: str) -> dict[str, Any]:
    content: Any = draw(texts())
    if draw(st.integers(0, 3)) == 0:
        image = {"type": "image_url", "image_url": {"url": IMAGE_URL}}
        content = [{"type": "text", "text": content}, image]
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _block(draw: st.DrawFn) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE_DATA}
    if draw(st.integers(0, 3)) == 0:
        return {"type": "image", "source": source}
    return {"type": "text", "text": draw(texts())}


def _anthropic_user(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"role": "user", "content": draw(texts())}
    return {"role": "user", "content": [_block(draw) for _ in range(draw(st.integers(1, 3)))]}


def _anthropic_assistant(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    thinking = st.sampled_from(
        (
            {"type": "thinking", "thinking": "step by step", "signature": "c2ln"},
            {"type": "thinking", "thinking": "unsigned thoughts"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        )
    )
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        blocks.append(dict(draw(thinking)))
    if draw(st.booleans()):
        blocks.append({"type": "text", "text": draw(texts())})
    blocks += [
        {"type": "tool_use", "id": call_id, "name": "read_file", "input": {"path": draw(texts())}}
        for call_id in ids
    ]
    if draw(st.integers(0, 5)) == 0:
        blocks.append(dict(draw(thinking)))
    return {"role": "assistant", "content": blocks}


def _anthropic_results(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for call_id in ids:
        content: Any = draw(texts())
        if draw(st.integers(0, 3)) == 0:
            content = [_block(draw) for _ in range(draw(st.integers(0, 2)))]
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        blocks.append(block | ({"is_error": True} if draw(st.booleans()) else {}))
    if draw(st.booleans()):
        blocks.append({"type": "text", "text": draw(texts())})
    return {"role": "user", "content": blocks}


_ITEM_NUMBERS = itertools.count()


def _new_item_id() -> str:
    """Return an id as the provider makes them: never twice, and always of one length."""
    return f"{next(_ITEM_NUMBERS):09d}"


def _input_parts(draw: st.DrawFn) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.integers(0, 3)) == 0:
            parts.append({"type": "input_image", "image_url": IMAGE_URL, "detail": "low"})
        else:
            parts.append({"type": "input_text", "text": draw(texts())})
    return parts


def _responses_user(draw: st.DrawFn) -> dict[str, Any]:
    content = draw(texts()) if draw(st.booleans()) else _input_parts(draw)
    typed = {"type": "message"} if draw(st.booleans()) else {}
    return {**typed, "role": "user", "content": content}


def _responses_call(draw: st.DrawFn, call_id: str, item_id: str) -> dict[str, Any]:
    kind = draw(st.sampled_from(("function", "function", "custom", "search", "patch")))
    done = {"call_id": call_id, "status": "completed"}
    match kind:
        case "custom":
            said = {"name": "sql", "input": draw(texts()), "call_id": call_id}
            return {"type": "custom_tool_call", "id": f"ctc_{item_id}", **said}
        case "search":
            asked = {"execution": "client", "arguments": {"query": draw(texts())}}
            return {"type": "tool_search_call", "id": f"tsc_{item_id}", **done, **asked}
        case "patch":
            operation = {"type": "delete_file", "path": "a.txt"}
            return {"type": "apply_patch_call", **done, "operation": operation}
        case _:
            said = {"name": "read_file", "arguments": draw(given_.arguments())}
            return {"type": "function_call", "id": f"fc_{item_id}", **done, **said}


def _responses_assistant(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": "step by step"}]
    items: list[dict[str, Any]] = []
    for kind in draw(st.lists(st.sampled_from("rrmmhsc"), max_size=4)):
        item_id = _new_item_id()
        match kind:
            case "r":
                thought = {"type": "reasoning", "summary": draw(st.sampled_from(([], summary)))}
                items.append({**thought, "id": f"rs_{item_id}", "encrypted_content": "b3BhcXVl"})
            case "m":
                said = {"type": "output_text", "text": draw(texts()), "annotations": []}
                kept = {"status": "completed", "phase": draw(st.sampled_from((None, "commentary")))}
                message = {"type": "message", "role": "assistant", "content": [said]}
                items.append({**message, "id": f"msg_{item_id}", **kept})
            case "h":
                action = {"type": "search", "query": "q"}
                searched = {"type": "web_search_call", "status": "completed", "action": action}
                items.append({**searched, "id": f"ws_{item_id}"})
            case "s":
                hosted = {"call_id": None, "execution": "server", "id": f"tsc_{item_id}"}
                items.append({"type": "tool_search_call", "arguments": {}, **hosted})
                found = {"type": "tool_search_output", "status": "completed", "tools": []}
                items.append({**found, **hosted, "id": f"tso_{item_id}"})
            case _:
                compacted = {"type": "compaction", "encrypted_content": "Y29tcGFjdA=="}
                items.append({**compacted, "id": f"cmp_{item_id}"})
    items += [_responses_call(draw, call_id, _new_item_id()) for call_id in ids]
    return {"role": "assistant", "output": items}


def _responses_result(draw: st.DrawFn, call_id: str) -> dict[str, Any]:
    kind = draw(st.sampled_from(("function", "function", "custom", "search", "patch")))
    output = draw(texts()) if draw(st.booleans()) else _input_parts(draw)
    match kind:
        case "custom":
            return {"type": "custom_tool_call_output", "call_id": call_id, "output": output}
        case "search":
            tool = {"type": "function", "name": "found", "parameters": {}, "strict": False}
            found = {"execution": "client", "status": "completed", "tools": [tool]}
            return {"type": "tool_search_output", "call_id": call_id, **found}
        case "patch":
            done = {"status": "failed", "output": draw(texts())}
            return {"type": "apply_patch_call_output", "call_id": call_id, **done}
        case _:
            more = draw(st.sampled_from(({}, {"status": "completed", "name": "read_file"})))
            return {"type": "function_call_output", "call_id": call_id, "output": output, **more}


def _content_part(draw: st.DrawFn) -> dict[str, Any]:
    image = {"mimeType": "image/png", "data": IMAGE_DATA}
    if draw(st.integers(0, 3)) == 0:
        return {"inlineData": image} if draw(st.booleans()) else {"inline_data": image}
    return {"text": draw(texts())}


def _gemini_user(draw: st.DrawFn) -> dict[str, Any]:
    parts = [_content_part(draw) for _ in range(draw(st.integers(1, 3)))]
    return {"role": "user", "parts": parts}


def _gemini_model(draw: st.DrawFn, ids: list[str], nameless: int) -> dict[str, Any]:
    """Return a content that calls a tool under each id, and so many times without one."""
    parts: list[dict[str, Any]] = []
    for kind in draw(st.lists(st.sampled_from("ttsuec"), max_size=3)):
        match kind:
            case "t":
                parts.append({"text": draw(texts())})
            case "s":
                parts.append(
                    {"text": draw(st.sampled_from(("", "so"))), "thoughtSignature": "c2ln"}
                )
            case "u":
                parts.append({"text": "hm", "thought": True})
            case "e":
                parts.append({"executableCode": {"language": "PYTHON", "code": "1"}})
            case _:
                parts.append({"text": "said", "thought_signature": "c2ln", "thought": False})
    signature = st.sampled_from(({}, {"thoughtSignature": "c2ln"}))
    for call_id in [*ids, *[""] * nameless]:
        known = {"id": call_id} if call_id else {}
        call = {**known, "name": "read_file", "args": {"path": draw(texts())}}
        parts.append({"functionCall": call, **draw(signature)})
    return {"role": "model", "parts": parts or [{"text": draw(texts())}]}


def _gemini_results(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    """Return a content that answers calls; those without an id are told by their order."""
    parts: list[dict[str, Any]] = []
    told = 0
    for call_id in ids:
        is_next = call_id == named(told + 1)
        told += is_next
        known = {} if is_next else {"id": call_id}
        kind = draw(st.sampled_from(("output", "result", "error", "object", "media")))
        response: dict[str, Any] = {kind: draw(texts())}
        more: dict[str, Any] = {}
        if kind == "object":
            response = {"rows": [1, draw(texts())], "more": None}
        elif kind == "media":
            response = {}
            more = {"parts": [{"inlineData": {"mimeType": "image/png", "data": IMAGE_DATA}}]}
        answer = {**known, "name": "read_file", "response": response, **more}
        parts.append({"functionResponse": answer})
    if draw(st.booleans()):
        parts.append({"text": draw(texts())})
    return {"role": "user", "parts": parts}


def _step_content(draw: st.DrawFn) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.integers(0, 3)) == 0:
            parts.append({"type": "image", "data": IMAGE_DATA, "mime_type": "image/png"})
        else:
            parts.append({"type": "text", "text": draw(texts())})
    return parts


def _interactions_user(draw: st.DrawFn) -> dict[str, Any]:
    return {"type": "user_input", "content": _step_content(draw)}


def _interactions_model(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    thought = {"type": "thought", "signature": "c2ln"}
    steps: list[dict[str, Any]] = []
    for kind in draw(st.lists(st.sampled_from("ttumser"), max_size=4)):
        match kind:
            case "t":
                summary = [{"type": "text", "text": "step by step"}]
                steps.append(thought | draw(st.sampled_from(({}, {"summary": summary}))))
            case "u":
                steps.append({"type": "thought", "signature": ""})
            case "m" | "e":
                content = [{"type": "text", "text": draw(texts())}] if kind == "m" else []
                steps.append({"type": "model_output", "content": content})
            case _:
                signed = {"signature": "c2ln"} if kind == "s" else {}
                tool = "google_search" if kind == "s" else "mcp_server_tool"
                call: dict[str, Any] = (
                    {"name": "find", "server_name": "wiki"} if kind == "r" else {}
                )
                found: Any = [] if kind == "s" else "found"
                steps += [
                    {"type": f"{tool}_call", "id": "s1", "arguments": {}, **call, **signed},
                    {"type": f"{tool}_result", "call_id": "s1", "result": found, **signed},
                ]
    steps += [
        {"type": "function_call", "id": id, "name": "read_file", "arguments": {"p": draw(texts())}}
        for id in ids
    ]
    return {"role": "assistant", "output": steps}


def _interactions_result(draw: st.DrawFn, call_id: str) -> dict[str, Any]:
    kind = draw(st.sampled_from(("text", "parts", "object")))
    result: Any = draw(texts())
    if kind == "parts":
        result = _step_content(draw)
    elif kind == "object":
        result = {"rows": [1, result], "more": None}
    some: tuple[dict[str, Any], ...] = ({}, {"is_error": True}, {"name": "read_file"})
    more = draw(st.sampled_from(some))
    return {"type": "function_result", "call_id": call_id, "result": result, **more}


def named(number: int) -> str:
    """Return the id by which a Gemini call without one is known."""
    return "read_file" if number == 1 else f"read_file#{number}"


@st.composite
def raw_logs(draw: st.DrawFn, max_steps: int = 10) -> RawLog:
    """Draw a log in mixed formats: parallel and pending calls, late results, ids used again."""
    log = RawLog()
    for _ in range(draw(st.integers(1, max_steps))):
        format = draw(st.sampled_from(FormatName))
        kind = draw(st.sampled_from(("user", "assistant", "calls", "calls", "results", "results")))
        if kind == "results" and not log.open_calls:
            kind = "user"
        match kind:
            case "user":
                log.messages.append((format, _USERS[format](draw)))
            case "results":
                order = draw(st.permutations(log.open_calls))
                answered = order[: draw(st.integers(1, len(order)))]
                _answer(draw, log, format, list(answered))
            case _:
                ids = []
                if kind == "calls":
                    some = st.lists(st.sampled_from(CALL_IDS), min_size=1, max_size=3, unique=True)
                    ids = draw(some)
                called = _speak(draw, log, format, ids)
                log.open_calls = [id for id in log.open_calls if id not in called] + called
    return log


_USERS = {
    CHAT: _chat_user,
    RESPONSES: _responses_user,
    ANTHROPIC: _anthropic_user,
    GEMINI: _gemini_user,
    INTERACTIONS: _interactions_user,
}


def _speak(draw: st.DrawFn, log: RawLog, format: FormatName, ids: list[str]) -> list[str]:
    """Append an assistant message that calls under these ids; return those it calls under."""
    match format:
        case FormatName.OPENAI_CHAT:
            raw = _chat_assistant(draw, ids)
        case FormatName.OPENAI_RESPONSES:
            raw = _responses_assistant(draw, ids)
            if len(raw["output"]) == 1 and (not log.messages or log.messages[-1][0] is not format):
                raw = raw["output"][0]  # beside another one it would be taken for its neighbour
        case FormatName.ANTHROPIC:
            raw = _anthropic_assistant(draw, ids)
        case FormatName.INTERACTIONS:
            raw = _interactions_model(draw, ids)
        case _:
            nameless = draw(st.integers(0, 2)) if ids else 0
            raw = _gemini_model(draw, ids, nameless)
            ids = [*ids, *(named(number + 1) for number in range(nameless))]
    log.messages.append((format, raw))
    return ids


def _answer(draw: st.DrawFn, log: RawLog, format: FormatName, answered: list[str]) -> None:
    left = [call_id for call_id in log.open_calls if call_id not in answered]
    match format:
        case FormatName.OPENAI_CHAT:
            log.messages += [(CHAT, _chat_result(draw, call_id)) for call_id in answered]
        case FormatName.OPENAI_RESPONSES:
            log.messages += [(RESPONSES, _responses_result(draw, call_id)) for call_id in answered]
        case FormatName.ANTHROPIC:
            raw = _anthropic_results(draw, answered)
            log.messages.append((ANTHROPIC, raw))
        case FormatName.GEMINI:
            raw = _gemini_results(draw, answered)
            log.messages.append((GEMINI, raw))
        case FormatName.INTERACTIONS:
            log.messages += [(format, _interactions_result(draw, id)) for id in answered]
    log.open_calls = left


def drafts_of(log: RawLog, count: CountText = third) -> list[tuple[FormatName, Draft]]:
    """Return every draft of a log with the format it came in, appended in one batch.

    A result may answer a call from before the log.
    """
    made = [
        (format, draft)
        for format, raw in log.messages
        for draft in make_drafts(raw, format, count, "")
    ]
    answered: dict[str, int] = {}
    for _, draft in made:
        if draft.role is Role.TOOL:
            answered[own_id(draft.call_ids[0], answered)] = 0
    shape = batch_shape([draft for _, draft in made], Calls(answered, 0))
    assert shape is not None
    return [(format, draft) for (format, _), draft in zip(made, shape.drafts, strict=True)]


def rows_of(log: RawLog, wanted: FormatName, count: CountText = third) -> list[LogRow]:
    """Return the rows a build of the wanted format reads, as the database gives them."""
    found = []
    for seq, (format, made) in enumerate(drafts_of(log, count), 1):
        as_chat = wanted is CHAT and not made.needs_body
        found.append(
            LogRow(
                id=f"0190f3a0-0000-7000-8000-{seq:012d}",
                seq=seq,
                role=made.role,
                tokens=made.tokens,
                reasoning_tokens=made.reasoning_tokens,
                call_ids=made.call_ids,
                needs_body=made.needs_body,
                format=CHAT if as_chat else format,
                text=(made.chat_item or made.body) if as_chat else made.body,
                joins=made.joins,
            )
        )
    return found


def entries_of(rows: list[LogRow]) -> list[Entry]:
    """Return what planning needs of rows."""
    return [entry(row.seq, row.role, row.tokens, joins=row.joins) for row in rows]
