"""The rules of Anthropic Messages: roles, tools, sizes and settings.

The modules beside this one have the rules of calls, thinking and cache breakpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.domain.common.messages import FormatName
from app.domain.formats.block_types import owners_of
from app.domain.formats.tool_calls import TOOL_NAME_PATTERN, is_name
from app.domain.payload.validation import anthropic_breakpoints, anthropic_pairs, anthropic_thinking
from app.domain.payload.validation.anthropic_pairs import SERVER_CALLS, is_server_result
from app.domain.payload.validation.neutral import Dialect, Result, call_key
from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    blocks_of,
    is_blank,
    is_empty,
    list_of,
    object_of,
    string_of,
    texts_in,
    wire_bytes,
    wire_bytes_with_breakpoints,
)

MAX_MESSAGES: Final = 100_000
MAX_BYTES: Final = 32 * 10**6
MAX_IMAGES: Final = 600
MAX_IMAGES_SMALL_WINDOW: Final = 100
SMALL_WINDOW: Final = 200_000
"""Models with a window up to this, in tokens, take the smaller number of images (`A19`)."""
CLEAR_THINKING_EDIT: Final = "clear_thinking_20251015"

_ROLES = ("user", "assistant", "system")
_CHANGES = ("tool_addition", "tool_removal")
_GEMINI = frozenset(("thought_signature", "thoughtSignature"))


def judge(check: Check) -> None:
    """Judge messages, tools and the settings that concern them."""
    _judge_ends(check)
    anthropic_pairs.judge(check)
    for index, (at, raw) in enumerate(check.objects()):
        _judge_message(raw, at, check)
        if index and raw.get("role") == "system":
            _judge_system(index, check)
    for index, value in enumerate(list_of(check.system)):
        _judge_text(object_of(value), f"{check.system_at}/{index}", check)
    _judge_tools(check)
    _judge_sizes(check)
    _judge_settings(check)
    anthropic_thinking.judge(check)
    anthropic_breakpoints.judge(check)
    _judge_restated(check)


def _judge_ends(check: Check) -> None:
    """`A1`: roles, and the first and last of them; `A18`: the end of the assistant's text."""
    if not check.items:
        check.add("A1", check.items_at, "there is no message")
        return
    for at, raw in check.objects():
        if raw.get("role") not in _ROLES:
            check.add("A1", at, "a role is user, assistant or system")
    first, last = object_of(check.items[0]), object_of(check.items[-1])
    opening = [block.get("type") for _, block in blocks_of(first)][:1]
    if first.get("role") == "system":
        check.add("A1", f"{check.items_at}/0", "system text that comes first stands in `system`")
    elif first.get("role") == "assistant" and opening != ["compaction"]:
        check.add("A1", f"{check.items_at}/0", "the conversation starts with the assistant")
    if last.get("role") != "assistant" or len(check.items) == 1:
        return
    at, blocks = f"{check.items_at}/{len(check.items) - 1}", blocks_of(last)
    in_progress = {string_of(block.get("type")) for _, block in blocks} & {
        "tool_use",
        *SERVER_CALLS,
    }
    if not (check.context.prefill or in_progress or check.payload.get("compaction")):
        check.add("A1", at, "the conversation ends with the assistant")
    text = string_of(blocks[-1][1].get("text")) if blocks else ""
    if text[-1:].isspace() and not is_blank(text):
        check.add("A18", f"{at}{blocks[-1][0]}", "the last text ends with white space")


def _judge_system(index: int, check: Check) -> None:
    """`A16`: a system message follows the user or a server's tool, and precedes the assistant."""
    at, previous_item = f"{check.items_at}/{index}", check.items[index - 1]
    roles = [object_of(item).get("role") for item in check.items[index - 1 : index + 2]]
    ending = [block for _, block in blocks_of(previous_item)][-1:]
    is_hosted = any(
        block.get("type") in SERVER_CALLS or is_server_result(block) for block in ending
    )
    if check.context.model is not None and not check.context.model.mid_conversation_system:
        check.add("A16", at, "the model takes no system message inside a conversation")
    elif any(block.get("type") == "tool_use" for _, block in blocks_of(previous_item)):
        return  # stands between a call and its result: `A2`
    elif roles[0] != "user" and not (roles[0] == "assistant" and is_hosted):
        check.add("A16", at, "a system message follows a user message")
    elif roles[2:] == ["user"]:
        check.add("A16", at, "a system message comes last, or before the assistant")


def _judge_message(raw: Object, at: str, check: Check) -> None:
    if raw.get("role") in _ROLES and is_empty(raw.get("content")):
        check.add("N6", f"{at}/content", "the message is empty")
        return
    for path, block in blocks_of(raw):
        pointer, kind = f"{at}{path}", string_of(block.get("type"))
        if not kind:
            check.add("N6", pointer, "is no block")
        elif owners_of(kind, FormatName.ANTHROPIC) or _GEMINI & block.keys():
            check.add("N12", pointer, "only another provider understands this")
        _judge_text(block, pointer, check)
        if kind == "tool_use":
            if not isinstance(block.get("input"), dict):
                check.add("A17", f"{pointer}/input", "the input is an object")
            _judge_name(block, pointer, check)
        for index, nested in enumerate(list_of(block.get("content"))):
            _judge_text(object_of(nested), f"{pointer}/content/{index}", check)


def _judge_text(block: Object, pointer: str, check: Check) -> None:
    if block.get("type") == "text" and is_blank(block.get("text", "")):
        check.add("A18", pointer, "the text is empty")


def _judge_name(raw: Object, pointer: str, check: Check) -> None:
    if not is_name(string_of(raw.get("name"))):
        check.add("A19", f"{pointer}/name", f"a name matches {TOOL_NAME_PATTERN}")


def _judge_tools(check: Check) -> None:
    """`A6`: the tools that a history needs; `A19`: their names."""
    names: set[str] = set()
    loaded = 0
    for at, tool in check.tool_objects():
        if "name" in tool or tool.get("type") in (None, "custom"):
            _judge_name(tool, at, check)
        if string_of(tool.get("name")) in names:
            check.add("A19", f"{at}/name", "another tool has this name")
        names |= {string_of(tool.get("name"))} - {""}
        loaded += not tool.get("defer_loading")
    if check.tools and not loaded:
        check.add("A6", check.tools_at, "at least one tool is not deferred")
    calls_tools, references = _tool_uses(check, names)
    if calls_tools and not check.tools and not check.payload.get("mcp_servers"):
        check.add("A6", check.tools_at, "the history calls tools, and none is defined")
    for pointer, name in references:
        if name not in names:
            check.add("A6", pointer, f"no tool is named {name!r}")


def _tool_uses(shape: Shape, names: set[str]) -> tuple[bool, list[tuple[str, str]]]:
    """Return whether tools are called, and the references; `names` gets what was added inline."""
    used, references = False, []
    for pointer, raw in shape.objects():
        for path, block in blocks_of(raw):
            used = used or block.get("type") in ("tool_use", "tool_result")
            if block.get("type") == "tool_addition":
                definition = object_of(object_of(block.get("tool")).get("definition"))
                names.add(string_of(definition.get("name")))
            content = block.get("content")
            at = f"{pointer}{path}/content"
            if isinstance(content, dict):  # the result of the provider's own search
                content, at = content.get("tool_references"), f"{at}/tool_references"
            for index, nested in enumerate(map(object_of, list_of(content))):
                if nested.get("type") == "tool_reference":
                    references.append((f"{at}/{index}", string_of(nested.get("tool_name"))))
    return used, references


def _judge_sizes(check: Check) -> None:
    """`A19`: messages, bytes and images."""
    if len(check.items) > MAX_MESSAGES:
        check.add("A19", check.items_at, f"at most {MAX_MESSAGES:,} messages are taken")
    if len(wire_bytes_with_breakpoints(check.payload)) > MAX_BYTES:
        check.add("A19", "", f"at most {MAX_BYTES:,} bytes are taken")
    window = check.context.model.context_window if check.context.model is not None else None
    max_images = MAX_IMAGES_SMALL_WINDOW if window and window <= SMALL_WINDOW else MAX_IMAGES
    images = 0
    for item in check.items:
        for _, block in blocks_of(item):
            nested = (object_of(part) for part in list_of(block.get("content")))
            images += sum(part.get("type") == "image" for part in (block, *nested))
    if images > max_images:
        check.add("A19", check.items_at, f"{images} images, and at most {max_images} are taken")


def _judge_settings(check: Check) -> None:
    """`A15`: thinking is cleared first; `A14`: no setting of a reply goes with a compaction."""
    payload = check.payload
    edits = list_of(object_of(payload.get("context_management")).get("edits"))
    for index, edit in enumerate(edits):
        if index and object_of(edit).get("type") == CLEAR_THINKING_EDIT:
            at = f"/context_management/edits/{index}"
            check.add("A15", at, "clears thinking, so comes first")
    if not payload.get("compaction"):
        return
    if payload.get("stop_sequences"):
        check.add("A14", "/stop_sequences", "does not go with a compaction")
    if object_of(payload.get("output_config")).get("format") is not None:
        check.add("A14", "/output_config/format", "does not go with a compaction")
    if object_of(payload.get("tool_choice")).get("type") in ("any", "tool"):
        check.add("A14", "/tool_choice", "no call is forced in a compaction")


def _judge_restated(check: Check) -> None:
    """`A21`: system text and tool changes that were summarised are repeated."""
    missing = {key for item in check.previous_stable_items for key in _directives(item)}
    if not missing:
        return
    repeated = {key for item in check.items for key in (*_directives(item), *_restated(item))}
    check.add_all(
        "A21",
        [check.items_at] * len(missing - repeated),
        "an instruction of an earlier build is neither there nor restated",
    )


def _directives(item: Any) -> Iterator[bytes]:
    """Yield the texts and tool changes of a system message, as keys."""
    is_system = object_of(item).get("role") == "system"
    for _, block in blocks_of(item):
        for change in (block, *map(object_of, list_of(block.get("tool_changes")))):
            if change.get("type") in _CHANGES:
                yield wire_bytes((change.get("type"), change.get("tool")))
        if is_system and block.get("type") == "text":
            yield wire_bytes(block.get("text"))


def _restated(item: Any) -> Iterator[bytes]:
    """Yield the texts of a user message, without a tag around them, as keys."""
    for _, block in blocks_of(item):
        if block.get("type") == "text":
            text = string_of(block.get("text"))
            is_tagged = text.startswith("<") and text.endswith(">")
            yield wire_bytes(
                text.partition(">")[2].rpartition("</")[0].strip() if is_tagged else text
            )


def _results(shape: Shape) -> Iterator[Result]:
    for index, item in enumerate(shape.items):
        for path, block in blocks_of(item):
            if block.get("type") == "tool_result":
                text = "\n".join(texts_in(block.get("content")))
                yield f"{shape.items_at}/{index}{path}", text


def _groups(shape: Shape) -> Iterator[tuple[bytes, ...]]:
    for item in shape.items:
        calls = [block for _, block in blocks_of(item) if block.get("type") == "tool_use"]
        if calls:
            yield tuple(map(call_key, calls))


DIALECT = Dialect(judge, _results, _groups, prefix_rule="A20")
