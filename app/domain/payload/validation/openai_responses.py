"""The rules of OpenAI Responses.

1. A call and its output are separate items. With a previous response or a conversation, the call of
   an output may be there instead of in the input.
2. A call with `async` needs no output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from app.domain.common.messages import FormatName
from app.domain.formats.block_types import owners_of
from app.domain.formats.openai_responses import OUTPUT_TYPES
from app.domain.payload.validation.neutral import Dialect, Result, call_key
from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import (
    BREAKPOINT_FIELDS,
    Object,
    Shape,
    first_difference,
    is_blank,
    is_empty,
    is_summary,
    list_of,
    object_of,
    same_on_wire,
    string_of,
    texts_in,
)

MAX_ID_CHARS: Final = 64
MAX_WRITES: Final = 4
"""How many cache breakpoints a request writes, an implicit one included (`C8`)."""
_NOT_PAIRED: Final = ("tool_search_call", "local_shell_call")
OUTPUT_OF: Final[Mapping[str, str]] = {
    call: output for call, output in OUTPUT_TYPES.items() if call not in _NOT_PAIRED
}
OUTPUTS: Final = frozenset(OUTPUT_OF.values())
PRODUCED: Final = frozenset(OUTPUT_OF) | {
    "reasoning",
    "web_search_call",
    "file_search_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "code_interpreter_call",
    "image_generation_call",
    "local_shell_call",
    "tool_search_call",
    "compaction",
    "program",
}
"""Items that may follow a reasoning item (`C2`)."""

_ROLES = ("user", "assistant", "system", "developer")
_SYSTEM = ("system", "developer")
_PHASES = (None, "commentary", "final_answer")


class _Call(NamedTuple):
    item_index: int
    kind: str
    is_async: bool


def judge(check: Check) -> None:
    """Judge the items of a payload."""
    chained = bool(check.payload.get("previous_response_id") or check.payload.get("conversation"))
    _judge_start(chained, check)
    _judge_pairs(chained, check)
    for at, raw in check.objects():
        _judge_item(raw, at, check)
    _judge_order(check)
    _judge_searches(check)
    _judge_namespaces(check)
    _judge_state(check)
    _judge_breakpoints(check)


def kind_of(item: object) -> str:
    """Return the type of an item; what has a role alone is a message."""
    raw = object_of(item)
    return string_of(raw.get("type")) or ("message" if "role" in raw else "")


def _judge_start(chained: bool, check: Check) -> None:
    if chained:
        return
    if not check.items:
        check.add("N5", check.items_at, "there is no item")
    for at, raw in check.objects():
        kind, role = kind_of(raw), raw.get("role")
        if role == "assistant" or kind in OUTPUT_OF or kind == "reasoning":
            check.add("N5", at, "the conversation starts with the assistant")
        if (kind != "additional_tools" and role not in _SYSTEM) or is_summary(raw):
            return


def _judge_pairs(chained: bool, check: Check) -> None:
    """`C1`: every call has its output and every output its call, of types that match."""
    calls: dict[str, _Call] = {}
    answered: set[str] = set()
    last_user = -1
    for index, (at, raw) in enumerate(check.objects()):
        kind = kind_of(raw)
        call_id = string_of(raw.get("call_id"))
        if raw.get("role") == "user":
            last_user = index
        elif kind in OUTPUT_OF:
            _judge_call_id(call_id, at, call_id in calls, check)
            calls.setdefault(call_id, _Call(index, kind, raw.get("async") is True))
        elif kind in OUTPUTS and not call_id:
            check.add("N1", at, "the output names no call")
        elif kind in OUTPUTS and call_id in answered:
            check.add("N2", at, "the call has an output already")
        elif kind in OUTPUTS:
            answered.add(call_id)
            if call_id in calls:
                _judge_output(calls[call_id], kind, at, last_user, check)
            elif not chained:
                check.add("C1", at, "no call before it has this call_id")
    for call_id, call in calls.items():
        if call_id and call_id not in answered and not call.is_async:
            check.add("C1", f"{check.items_at}/{call.item_index}", "the call has no output")


def _judge_call_id(call_id: str, at: str, is_known: bool, check: Check) -> None:
    if not call_id:
        check.add("C1", at, "the call has no call_id")
    elif is_known:
        check.add("N3", f"{at}/call_id", "another call has this call_id")
    elif len(call_id) > MAX_ID_CHARS:
        check.add("N3", f"{at}/call_id", f"a call_id has at most {MAX_ID_CHARS} characters")


def _judge_output(call: _Call, kind: str, at: str, last_user: int, check: Check) -> None:
    if OUTPUT_OF[call.kind] != kind:
        check.add("C1", at, f"a {call.kind} is answered by a {OUTPUT_OF[call.kind]}")
    elif last_user > call.item_index and not call.is_async:
        check.add("N2", at, "a user message stands between the call and its output")


def _judge_item(raw: Object, at: str, check: Check) -> None:
    kind = kind_of(raw)
    if not kind:
        check.add("N6", at, "is no item")
    elif owners_of(kind, FormatName.OPENAI_RESPONSES):
        check.add("N12", at, f"only another provider understands a {kind}")
    elif kind == "message":
        _judge_message(raw, at, check)
    elif kind in OUTPUTS and raw.get("output") in (None, []):
        check.add("N6", at, "the output is empty")


def _judge_message(raw: Object, at: str, check: Check) -> None:
    role, content = raw.get("role"), raw.get("content")
    if role == "tool":
        check.add("C1", at, "a result is an item of type function_call_output")
        return
    if role not in _ROLES:
        check.add("N5", f"{at}/role", f"a role is one of {', '.join(_ROLES)}")
    if is_empty(content):
        check.add("N6", f"{at}/content", "the message is empty")
    for index, value in enumerate(content if isinstance(content, list) else ()):
        part, pointer = object_of(value), f"{at}/content/{index}"
        kind = string_of(part.get("type"))
        if not part or is_blank(part.get("text")):
            check.add("N6", pointer, "the part is empty")
        elif role == "assistant" and kind in ("text", "input_text"):
            check.add("C6", pointer, "what the assistant said is output_text")
        elif owners_of(kind, FormatName.OPENAI_RESPONSES):
            check.add("N12", pointer, f"only another provider understands a {kind} part")
    if role == "assistant" and "tool_calls" in raw:
        check.add("C6", f"{at}/tool_calls", "calls are items of their own")
    if raw.get("phase") not in _PHASES:
        check.add("C6", f"{at}/phase", "a phase is commentary or final_answer")


def _judge_order(check: Check) -> None:
    """`C2`, `C4`: what follows a reasoning item, and that nothing follows a compaction trigger."""
    last = len(check.items) - 1
    for index, (at, raw) in enumerate(check.objects()):
        kind = kind_of(raw)
        if kind == "compaction_trigger" and index != last:
            check.add("C4", at, "a compaction trigger is the last item")
        elif kind == "reasoning":
            following = check.items[index + 1] if index < last else None
            is_answer = object_of(following).get("role") == "assistant"
            if not is_answer and kind_of(following) not in PRODUCED:
                check.add("C2", at, "the item that the reasoning led to does not follow it")


def _judge_searches(check: Check) -> None:
    """`C7`: tool searches and their outputs come in pairs, hosted ones next to each other."""
    waiting: dict[str, str] = {}
    hosted: str | None = None
    for at, raw in check.objects():
        kind = kind_of(raw)
        call_id = string_of(raw.get("call_id"))
        if kind == "tool_search_call" and call_id:
            waiting[call_id] = at
        elif kind == "tool_search_output" and call_id:
            if waiting.pop(call_id, None) is None:
                check.add("C7", at, "no tool search before it has this call_id")
        elif kind == "tool_search_output":
            if hosted is None:
                check.add("C7", at, "the hosted tool search that found this is gone")
            hosted = None
        elif kind == "tool_search_call":
            if hosted is not None:
                check.add("C7", hosted, "what the hosted tool search found is gone")
            hosted = at
    rest = waiting.values() if hosted is None else (*waiting.values(), hosted)
    check.add_all("C7", rest, "the tool search has no output")


def _judge_namespaces(check: Check) -> None:
    """`C7`: a call of a tool that only a namespace has names that namespace."""
    plain: set[str] = set()
    inside: set[str] = set()
    lists = [check.tools, *(list_of(object_of(item).get("tools")) for item in check.items)]
    for tool in map(object_of, (tool for tools in lists for tool in tools)):
        if tool.get("type") == "namespace":
            inside |= {
                string_of(object_of(nested).get("name")) for nested in list_of(tool.get("tools"))
            }
        else:
            plain.add(string_of(tool.get("name")))
    for index, item in enumerate(check.items if inside else ()):
        raw = object_of(item)
        is_bare = kind_of(item) == "function_call" and not raw.get("namespace")
        if is_bare and string_of(raw.get("name")) in inside - plain:
            check.add("C7", f"{check.items_at}/{index}", "the call does not name its namespace")


def _judge_state(check: Check) -> None:
    """`C5`, `C3`: the state at the provider, and the items that a compaction item replaces."""
    payload = check.payload
    if payload.get("previous_response_id") and payload.get("conversation"):
        check.add("C5", "/conversation", "goes on from a response and from a conversation")
    if check.previous is None:
        return
    if check.previous.payload.get("instructions") and not payload.get("instructions"):
        check.add("C5", "/instructions", "the instructions are not sent again")
    if check.has_other_model:
        _judge_after_compaction(check)


def _judge_after_compaction(check: Check) -> None:
    """`C3`: only what stands before the latest compaction item may be left out."""
    items, before = check.items, check.previous_stable_items
    start, start_before = _latest_compaction(items), _latest_compaction(before)
    if (
        start is None
        or start_before is None
        or not same_on_wire(items[start], before[start_before])
    ):
        return
    step = first_difference(items[start:], before[start_before:])
    if step is not None:
        pointer = (
            f"{check.items_at}/{start + step}" if start + step < len(items) else check.items_at
        )
        check.add("C3", pointer, "an item after the compaction was left out or changed")


def _latest_compaction(items: Any) -> int | None:
    indexes = (index for index, item in enumerate(items) if kind_of(item) == "compaction")
    return max(indexes, default=None)


def _judge_breakpoints(check: Check) -> None:
    """`C8`: at most four cache writes, and breakpoints where the provider reads them."""
    breakpoints = _breakpoints(check)
    if not isinstance(check.system, str | None):
        check.add("C8", check.system_at, "instructions are a string, and take no breakpoint")
    elif breakpoints and check.system:
        check.add("C8", check.system_at, "stable text stands in a developer message")
    written = (
        {at for at, _ in _breakpoints(check.previous)} if check.previous is not None else set()
    )
    new = [at for at, is_part in breakpoints if is_part and at not in written]
    options = object_of(check.payload.get("prompt_cache_options"))
    max_writes = MAX_WRITES if options.get("mode") == "explicit" else MAX_WRITES - 1
    if len(new) > max_writes:
        check.add(
            "C8", new[max_writes], f"a request writes {max_writes} explicit breakpoints at most"
        )
    misplaced = (at for at, is_part in breakpoints if not is_part)
    check.add_all("C8", misplaced, "a breakpoint stands on a content part")


def _breakpoints(shape: Shape) -> list[tuple[str, bool]]:
    """Return where cache breakpoints stand, and whether that is on a content part."""
    breakpoints = [
        (at, False) for at, tool in shape.tool_objects() if BREAKPOINT_FIELDS & tool.keys()
    ]
    for at, raw in shape.objects():
        if BREAKPOINT_FIELDS & raw.keys():
            breakpoints.append((at, False))
        for field in ("content", "output", "tools"):
            for index, part in enumerate(list_of(raw.get(field))):
                if BREAKPOINT_FIELDS & object_of(part).keys():
                    breakpoints.append((f"{at}/{field}/{index}", field != "tools"))
    return breakpoints


def _results(shape: Shape) -> Iterator[Result]:
    for at, raw in shape.objects():
        if kind_of(raw) in OUTPUTS:
            yield at, "\n".join(texts_in(raw.get("output")))


def _groups(shape: Shape) -> Iterator[tuple[bytes, ...]]:
    group: list[bytes] = []
    for _, raw in shape.objects():
        kind = kind_of(raw)
        if kind in OUTPUT_OF:
            group.append(call_key(raw.get("call_id"), raw.get("name"), raw.get("arguments")))
        elif group and kind in OUTPUTS:
            yield tuple(group)
            group = []
    if group:
        yield tuple(group)


def _changed_rule(old: Any, new: Any) -> str:
    """`C9`: what is new is an item of its own, never more of an earlier one."""
    before, after = object_of(old), object_of(new)
    if kind_of(old) != kind_of(new) or before.get("role") != after.get("role"):
        return "N9"
    for field in ("content", "output"):
        if _extends(after.get(field), before.get(field)):
            return "C9"
    return "N9"


def _extends(new: Any, old: Any) -> bool:
    if isinstance(new, str) and isinstance(old, str):
        return len(new) > len(old) and new.startswith(old)
    if not (isinstance(new, list) and isinstance(old, list) and old) or len(new) < len(old):
        return False
    if not same_on_wire(new[: len(old) - 1], old[:-1]):
        return False
    last, was = object_of(new[len(old) - 1]), object_of(old[-1])
    is_longer = _extends(last.get("text"), was.get("text"))
    return is_longer or (len(new) > len(old) and same_on_wire(last, was))


DIALECT = Dialect(judge, _results, _groups, _changed_rule)
