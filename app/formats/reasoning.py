"""Reasoning, the families of models that accept each other's, and what providers keep of it.

1. The Chat format has no reasoning. Providers and gateways add fields of their own to a message and
   to its calls. `fields_of` and `call_fields_of` keep them unchanged.
2. The log does not store which model made a message, so the fields identify its family
   (`family_of`): signed thinking is Anthropic's, a thought signature is Gemini's, each of the
   `reasoning_details` names its format, and plain text fits every family that writes plain text.
3. All reasoning of a message is replayed unchanged, or none of it.
4. A malformed field is ignored. It stays in the stored message.
5. The name of a model tells whose reasoning it accepts. Where it does not, none is replayed.
6. OpenAI Responses and xAI have encrypted items of the type `compaction`, Anthropic has blocks of
   that type with a readable summary. Both are parsed as reasoning: only their provider reads them.
   One without content failed. It stands for nothing, any other for everything before it, in its own
   message as well. Calls of that message stay: their results come later.
7. The result of a call that the provider runs may be in a later answer: the provider paused, or the
   call waits for tools of the client. A request for an approval is such a call as well, which the
   client answers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from app.formats.json_fields import Raw, Wire, object_in, text_in
from app.formats.message import FormatName, Message, Opaque, Part, Reasoning, ToolCall

ANTHROPIC: Final = "anthropic"
GEMINI: Final = "gemini"
OPENAI: Final = "openai"
XAI: Final = "xai"
MISTRAL: Final = "mistral"
PLAIN: Final = "plain"
"""Models that read each other's unsigned text."""
DEMANDING: Final = "demanding"
"""Models of the PLAIN family that refuse a tool loop in which a message has no reasoning."""
SEALED: Final = "sealed"
"""Encrypted details without the name of their family, which only their router can read."""
_FAMILIES: Final = (
    (
        (
            *("deepseek", "qwen", "qwq", "kimi", "moonshot", "glm", "z-ai", "zai", "zhipu"),
            *("minimax", "gpt-oss", "nemotron", "ernie", "hunyuan", "mimo", "longcat", "vllm"),
        ),
        PLAIN,
    ),
    (("claude", "anthropic"), ANTHROPIC),
    (("gemini",), GEMINI),
    (("mistral", "magistral", "ministral", "devstral"), MISTRAL),
    (("grok", "xai/"), XAI),
    (("gpt-", "openai/", "codex"), OPENAI),
)
"""Substrings of model names and their family; the first row with a match counts."""
_DEMANDING: Final = ("deepseek", "kimi", "moonshot")
_REASONING_MODEL: Final = re.compile(r"(?:^|[/.])o[1-9](?:-|$)")
_CLAUDE_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_FIRST_BOUND: Final = (5, 1)
"""The first version of Claude that refuses thinking after another prefix."""

BLANK_REASONING: Final = " "
"""The shortest reasoning that DeepSeek and Moonshot accept in a message of a tool loop."""
STAND_IN_SIGNATURE: Final = "skip_thought_signature_validator"
"""Gemini's mark of a call that was not made by the model to which it is sent."""
_LITELLM: Final = "provider_specific_fields"
_TEXTS: Final = ("reasoning_content", "reasoning")
_LISTS: Final = ("reasoning_details", "thinking_blocks")
_SIGNATURES: Final = ("thought_signatures", "thought_signature")
_CARRIERS: Final = frozenset({*_TEXTS, *_LISTS, "extra_content", _LITELLM})
"""Fields of a message without which it has no reasoning; most have none of them."""
_ID_SEPARATOR: Final = "__thought__"
"""Separates a call's id from its thought signature where LiteLLM joins them."""
_DETAIL_FORMATS: Final = {
    **{"anthropic": ANTHROPIC, "google": GEMINI, "xai": XAI},
    **{"openai": OPENAI, "azure": OPENAI},
}


@lru_cache(maxsize=1024)
def accepted_families(model: str, default: str) -> tuple[str, ...]:
    """Return the families whose reasoning a model accepts; an unknown name has the default one."""
    name = model.lower()
    family = next((family for words, family in _FAMILIES if any(w in name for w in words)), "")
    if not family:
        family = OPENAI if _REASONING_MODEL.search(name) else default
    if name.startswith("openrouter/"):
        return (family, SEALED) if family else (SEALED,)
    if any(word in name for word in _DEMANDING) and not name.endswith("deepseek-chat"):
        return family, DEMANDING
    return (family,) if family else ()


def binds_reasoning(model: str) -> bool:
    """Whether a model takes reasoning back only while nothing before it has changed."""
    found = _CLAUDE_VERSION.search(model.lower())
    return found is not None and (int(found[1]), int(found[2] or 0)) >= _FIRST_BOUND


def fields_of(raw: Raw) -> Wire:
    """Return the fields of an assistant message that carry its reasoning, unchanged."""
    if _CARRIERS.isdisjoint(raw):
        return {}
    fields = {key: raw[key] for key in _TEXTS if isinstance(raw.get(key), str)} | _lists_in(raw)
    if _google_signature(raw):
        fields["extra_content"] = raw["extra_content"]
    held = object_in(raw, _LITELLM)
    others = _lists_in(held) | {key: held[key] for key in (*_TEXTS, *_SIGNATURES) if held.get(key)}
    litellm = {key: item for key, item in others.items() if key not in fields}
    return fields | ({_LITELLM: litellm} if litellm else {})


def _lists_in(raw: Raw) -> Wire:
    """Return the lists of objects that hold reasoning, without malformed ones."""
    lists = {key: raw[key] for key in _LISTS if raw.get(key) and isinstance(raw[key], list)}
    return {key: held for key, held in lists.items() if all(isinstance(i, dict) for i in held)}


def call_fields_of(raw: Raw) -> Wire:
    """Return the fields of a tool call that carry its thought signature, unchanged.

    LiteLLM also joins the signature to the call's id, which may be replaced. Where the signature is
    nowhere else, it is put into the field that LiteLLM reads first.
    """
    fields: Wire = {}
    if _google_signature(raw):
        fields["extra_content"] = raw["extra_content"]
    if _litellm_signature(raw):
        fields[_LITELLM] = raw[_LITELLM]
    if _litellm_signature(function := object_in(raw, "function")):
        fields["function"] = {_LITELLM: function[_LITELLM]}
    if not fields and (signature := text_in(raw, "id").partition(_ID_SEPARATOR)[2]):
        fields[_LITELLM] = {"thought_signature": signature}
    return fields


def text_of(fields: Raw) -> str:
    """Return the text of the reasoning in a message's fields."""
    for source in (fields, object_in(fields, _LITELLM)):
        found = [text_in(source, key) for key in _TEXTS]
        for key in _LISTS:
            texts = (
                text_in(item, "thinking") or text_in(item, "text") or text_in(item, "summary")
                for item in source.get(key, ())
            )
            found.append("\n".join(filter(None, texts)))
        if text := next(filter(None, found), ""):
            return text
    return ""


def family_of(message: Message, format: FormatName) -> str:
    """Return the family that made the reasoning of a Chat message, empty where it has none."""
    own = [part for part in message.parts if part.block is not None and part.format is format]
    if any(isinstance(part, ToolCall) for part in own):
        return GEMINI
    return next((_family(part.block or {}) for part in own if isinstance(part, Reasoning)), "")


def _family(fields: Raw) -> str:
    litellm = object_in(fields, _LITELLM)
    if _google_signature(fields) or not litellm.keys().isdisjoint(_SIGNATURES):
        return GEMINI
    items = [item for key in reversed(_LISTS) for item in fields.get(key) or litellm.get(key, ())]
    return next((family for item in items if (family := _maker(item)) != PLAIN), PLAIN)


def _maker(item: Raw) -> str:
    """Return the family that made a thinking block or an item of `reasoning_details`."""
    name = text_in(item, "format").lower()
    of_format = (family for start, family in _DETAIL_FORMATS.items() if name.startswith(start))
    if family := next(of_format, ""):
        return family
    if text_in(item, "signature") or item.get("type") == "redacted_thinking":
        return ANTHROPIC
    return SEALED if text_in(item, "data") else PLAIN


def stand_in_fields(fields: Raw) -> Wire | None:
    """Return what a call needs where these fields are left out: the stand-in of a signature
    [gemini.thought-signatures].

    LiteLLM adds a stand-in itself.
    """
    if not _google_signature(fields):
        return None
    return {"extra_content": {"google": {"thought_signature": STAND_IN_SIGNATURE}}}


def _google_signature(raw: Raw) -> str:
    return text_in(object_in(object_in(raw, "extra_content"), "google"), "thought_signature")


def _litellm_signature(raw: Raw) -> str:
    return text_in(object_in(raw, _LITELLM), "thought_signature")


# --- compactions, and calls that a provider runs --------------------------------------------------

COMPACTION: Final = "compaction"
"""The type of these items and blocks."""
CONTENT_KEYS: Final = {"openai_responses": "encrypted_content", "anthropic": "content"}
"""The formats that have them, and the field without which one stands for nothing (rule 6)."""


def is_compaction(part: Part) -> bool:
    """Whether a part is a provider's compaction, failed ones included."""
    return isinstance(part, Reasoning) and (part.block or {}).get("type") == COMPACTION


def last_compaction(message: Message) -> Reasoning | None:
    """Return the last part that stands for something, None without any."""
    found = (part for part in message.parts if isinstance(part, Reasoning) and _content(part))
    return next(iter(reversed(list(found))), None)


def readable_summary(part: Reasoning) -> str:
    """Return the readable text of a compaction, empty for an encrypted one."""
    return _content(part) if part.format is FormatName.ANTHROPIC else ""


def encrypted_bytes(part: Reasoning) -> int:
    """Return the size of an encrypted compaction, which is sent as base64; 0 for a readable one."""
    return len(_content(part)) * 3 // 4 if not readable_summary(part) else 0


def is_requested(part: Reasoning) -> bool:
    """Whether a compaction came of a request for it: Anthropic signs those."""
    return bool((part.block or {}).get("signature"))


def without_compactions(message: Message) -> Message | None:
    """Return a clean message without its compactions, None where nothing else is in it."""
    parts = [part for part in message.parts if not is_compaction(part)]
    return message.with_parts(parts) if parts else None


def after_compaction(message: Message) -> Message | None:
    """Return what its last compaction does not stand for, None where that is nothing (rule 6)."""
    last = last_compaction(message)
    if last is None:
        return without_compactions(message)
    parts = list(message.parts)
    index = next(at for at, part in enumerate(parts) if part is last)
    calls = [part for part in parts[:index] if isinstance(part, ToolCall)]
    left = calls + [part for part in parts[index + 1 :] if not is_compaction(part)]
    return message.with_parts(left) if left else None


def _content(part: Reasoning) -> str:
    """Return the content of a compaction, empty for a failed one and for other parts."""
    if part.block is None or part.format not in CONTENT_KEYS or not is_compaction(part):
        return ""
    content = part.block.get(CONTENT_KEYS[part.format])
    return content if isinstance(content, str) else ""


_CALLS: Final = {
    **dict.fromkeys(("server_tool_use", "mcp_tool_use", "mcp_approval_request"), "id"),
    "program": "call_id",
}
"""The types of calls, and the field of their ids."""
_RESULTS: Final = {"program_output": "call_id", "mcp_approval_response": "approval_request_id"}


def call_of(block: Raw) -> str:
    """Return the id of the call that a block is, empty for any other block."""
    if (key := _CALLS.get(text_in(block, "type"))) is not None:
        return text_in(block, key)
    return text_in(block.get("toolCall", block.get("tool_call")), "id")


def result_of(block: Raw) -> str:
    """Return the id of the call that a block is the result of, empty for any other block."""
    kind = text_in(block, "type")
    if key := "tool_use_id" if kind.endswith("_tool_result") else _RESULTS.get(kind):
        return text_in(block, key)
    return text_in(block.get("toolResponse", block.get("tool_response")), "id")


def waiting_calls(message: Message) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the calls without a result in a message, and those from before that it has one for."""
    waiting: dict[str, None] = {}
    resolved: list[str] = []
    for part in message.parts:
        block = part.block if isinstance(part, Opaque) else {}
        if call := call_of(block):
            waiting[call] = None
        elif (result := result_of(block)) in waiting:
            del waiting[result]
        elif result:
            resolved.append(result)
    return tuple(waiting), tuple(resolved)
