"""The rules of all providers that need the build before, or facts beside the payload.

1. The estimated tokens are within the capacity.
2. The placeholder of a result names its ref and its size, and the tool that reads it, if there is
   one.
3. For the model of the build before, system text and tools are the same, and the items that it
   promised to keep begin the payload. Breakpoints of caches do not count.
4. For another model, a group of calls is shown whole or not at all; what stands before the thinking
   of Anthropic, or after a compaction of OpenAI, has not changed; signatures of Gemini do not
   return.
5. Instructions are sent with every request to Responses. What a system message of Anthropic said,
   or a change of tools, is there, or said again by the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, Final

from tests.judge.anthropic_thinking import is_missing
from tests.judge.findings import THINKING, Facts, Finding, Findings, objects, wire
from tests.judge.gemini import data_of, parts_of, snake_keys
from tests.judge.openai_chat import INSTRUCTIONS
from tests.judge.openai_responses import OUTPUTS, kind_of

Payload = Mapping[str, Any]
Item = dict[str, Any]

ITEMS: Final = {
    "openai_chat": "messages",
    "openai_responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
    "gemini_interactions": "input",
}
BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
STAND_INS: Final = frozenset(
    ("context_engineering_is_the_way_to_go", "skip_thought_signature_validator")
)
"""Signatures that Gemini takes for calls it did not make."""
_TRIMMED = "[tool output trimmed"
_TRIMMED_WHOLE = re.compile(r"\[tool output trimmed; ref=\S+; [\d,]+ bytes(; read with \w+)?\]")
_STORED = "[Tool result stored —"
_STORED_WHOLE = re.compile(
    r"\[Tool result stored — [\d,]+ bytes from \"[^\n]*\"\.\nFirst \d+ chars: .*ref_id=\"",
    re.DOTALL,
)
_READER = '"tool_output_cache"'


def judge(format: str, payload: Payload, facts: Facts) -> list[Finding]:
    """Return which of these rules a payload breaks."""
    findings, key = Findings(), ITEMS[format]
    if (facts.tokens or 0) > (inf if facts.capacity is None else facts.capacity):
        findings.error("too-long", "$", f"{facts.tokens} tokens, and {facts.capacity} fit")
    has_reader = _READER in wire(_fixed(format, payload))
    for text in _texts(payload.get(key)):
        if not _names_all(text, has_reader):
            findings.warn("placeholder", f"$.{key}", f"it does not name all: {text[:80]}")
    old = facts.previous
    if old is None:
        return findings.found
    items, before = objects(payload.get(key)), objects(old.get(key))
    stable = before[: facts.previous_stable]
    if payload.get("model") == old.get("model"):
        _judge_prefix(format, payload, old, stable, findings)
    else:
        _judge_groups(_groups(format, items), _groups(format, before), findings)
        if format == "anthropic":
            _judge_binding(payload, old, facts, findings)
        elif format == "openai_responses":
            _judge_after_compaction(items, stable, findings)
        elif format in ("gemini", "gemini_interactions"):
            _judge_signatures(items, before, findings)
    if old.get("instructions") and not payload.get("instructions"):
        findings.error("instructions-missing", "$.instructions", "they are not sent again")
    if format == "anthropic":
        missing = set(map(wire, _directives(stable))) - set(map(wire, _said(items)))
        for directive in sorted(missing):
            findings.warn(
                "instruction-lost", "$.messages", f"not there, nor said again: {directive}"
            )
    return findings.found


def _names_all(text: str, has_reader: bool) -> bool:
    """Rule 2; other texts pass."""
    if text.startswith(_TRIMMED):
        found = _TRIMMED_WHOLE.fullmatch(text)
        return found is not None and (found[1] is not None or not has_reader)
    return not text.startswith(_STORED) or _STORED_WHOLE.match(text) is not None


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _fixed(format: str, payload: Payload) -> tuple[Any, Any]:
    """Return tools and system text."""
    if format == "gemini":
        config = snake_keys(payload.get("config"))
        return config.get("tools"), config.get("system_instruction")
    names = {"anthropic": "system", "gemini_interactions": "system_instruction"}
    return payload.get("tools"), payload.get(names.get(format, "instructions"))


def _first_difference(items: Sequence[Item], before: Sequence[Item]) -> int | None:
    """Return where the first earlier item is missing or different."""
    for index, item in enumerate(before):
        if index >= len(items) or wire(items[index]) != wire(item):
            return index
    return None


def _judge_prefix(
    format: str, payload: Payload, old: Payload, stable: Sequence[Item], findings: Findings
) -> None:
    """Rule 3."""
    (tools, system), (old_tools, old_system) = _fixed(format, payload), _fixed(format, old)
    if wire(tools) != wire(old_tools):
        findings.warn("tools-changed", "$", "the tools changed inside an epoch")
    if wire(system) != wire(old_system):
        findings.warn("system-changed", "$", "the system text changed inside an epoch")
    items = objects(payload.get(ITEMS[format]))
    index = _first_difference(items, stable)
    if index is None:
        return
    new, was = (items[index] if index < len(items) else {}), stable[index]
    rule = "prefix-changed"
    if format == "openai_chat" and {new.get("role"), was.get("role")} & {*INSTRUCTIONS}:
        rule = "instructions-changed"
    elif format == "openai_responses" and _extends(new, was):
        rule = "item-extended"
    findings.warn(rule, f"$.{ITEMS[format]}[{index}]", "is not what the build before promised")


def _extends(new: Item, old: Item) -> bool:
    """Whether an item of Responses has more text, or more parts, than it had."""
    for field in ("content", "output"):
        texts = ["\0".join(_texts(item.get(field))) for item in (new, old)]
        if kind_of(new) == kind_of(old) and len(texts[0]) > len(texts[1]):
            return texts[0].startswith(texts[1])
    return False


def _groups(format: str, items: Sequence[Item]) -> list[frozenset[str]]:
    """Return the groups of calls that a model made at once."""
    if format in ("openai_responses", "gemini_interactions"):
        return _item_groups(items)
    if format == "openai_chat":
        calls = [objects(item.get("tool_calls")) for item in items]
    elif format == "gemini":
        calls = [data_of(item, "function_call") for item in items]
    else:
        blocks = [objects(item.get("content")) for item in items]
        calls = [[block for block in some if block.get("type") == "tool_use"] for some in blocks]
    return [frozenset(map(wire, some)) for some in calls if some]


def _item_groups(items: Sequence[Item]) -> list[frozenset[str]]:
    groups: list[set[str]] = [set()]
    for item in items:
        call_id = item.get("call_id", item.get("id"))
        if kind_of(item) in OUTPUTS and call_id is not None:
            groups[-1].add(wire([call_id, item.get("name"), item.get("arguments")]))
        elif kind_of(item) in (*OUTPUTS.values(), "function_result"):
            groups.append(set())
    return [frozenset(group) for group in groups if group]


def _judge_groups(
    groups: Sequence[frozenset[str]], before: Sequence[frozenset[str]], findings: Findings
) -> None:
    """Rule 4: a group is never shown in part."""
    for group in groups:
        if any(group < whole for whole in before) and group not in before:
            findings.error("group-split", "$", "a group of calls is shown only in part")


def _judge_binding(payload: Payload, old: Payload, facts: Facts, findings: Findings) -> None:
    """Rule 4: the thinking of an earlier epoch; not where the provider may leave it out."""
    binding = (payload.get("thinking") or {}).get("block_binding") or {}
    is_dropped = binding.get("prefix_mismatch_behavior") == "drop_block"
    if is_dropped and not is_missing(BINDING_BETA, dict(payload), facts):
        return
    items, before = objects(payload.get("messages")), objects(old.get("messages"))
    changed = _first_difference(items, before)
    if wire(_fixed("anthropic", payload)) != wire(_fixed("anthropic", old)):
        changed = -1
    earlier = {signature for item in before for signature in _thinking(item)}
    after = items[changed + 1 :] if changed is not None else ()
    if any(signature in earlier for item in after for signature in _thinking(item)):
        findings.error("thinking-unbound", "$.messages", "what stood before thinking has changed")


def _thinking(item: Item) -> Iterator[str]:
    for block in objects(item.get("content")):
        if block.get("type") in THINKING:
            yield str(block.get("signature") or block.get("data"))


def _judge_after_compaction(
    items: Sequence[Item], stable: Sequence[Item], findings: Findings
) -> None:
    """Rule 4: only what stands before the latest compaction may be left out."""
    now, then = _from_compaction(items), _from_compaction(stable)
    is_same = bool(now and then) and wire(now[0]) == wire(then[0])
    if is_same and _first_difference(now, then) is not None:
        findings.error("compaction-tail", "$.input", "an item behind the compaction is not kept")


def _from_compaction(items: Sequence[Item]) -> Sequence[Item]:
    places = [index for index, item in enumerate(items) if kind_of(item) == "compaction"]
    return items[places[-1] :] if places else ()


def _judge_signatures(items: Sequence[Item], before: Sequence[Item], findings: Findings) -> None:
    """Rule 4: another model does not get the signatures of the one before."""
    signed = [
        {part.get("thought_signature") for item in some for part in parts_of(item)}
        | {item.get("signature") for item in some}
        for some in (items, before)
    ]
    for signature in (signed[0] & signed[1]) - {None, *STAND_INS}:
        findings.warn("foreign-signature", "$", f"another model made {signature!r}")


def _directives(items: Sequence[Item]) -> Iterator[Any]:
    """Yield the texts of system messages, and changes of tools."""
    for item in items:
        content = item.get("content")
        if item.get("role") == "system" and isinstance(content, str):
            yield content
        for block in objects(content):
            if item.get("role") == "system" and block.get("type") == "text":
                yield block.get("text")
            for change in (block, *objects(block.get("tool_changes"))):
                if change.get("type") in ("tool_addition", "tool_removal"):
                    yield [change.get("type"), change.get("tool")]


def _said(items: Sequence[Item]) -> Iterator[Any]:
    """Yield what is said again: directives, and texts without a tag around them."""
    yield from _directives(items)
    for item in items:
        content = item.get("content")
        blocks = [{"text": content}] if isinstance(content, str) else objects(content)
        for text in (str(block.get("text")) for block in blocks):
            is_tagged = text.startswith("<") and text.endswith(">")
            yield text.partition(">")[2].rpartition("</")[0].strip() if is_tagged else text
