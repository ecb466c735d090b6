"""Reasoning in OpenAI Chat messages: whose it is, to whom it goes back, and in which shape (N12).

1. The Chat format itself has no reasoning. Providers and gateways add fields of their own to a
   message and to its calls. `fields_of` and `call_fields_of` keep them as they came.
2. The log does not know which model made a message, so the shape of the fields tells the maker:
   signed thinking is Anthropic's, a thought signature is Gemini's, `reasoning_details` name their
   format, and plain text is anyone's whose models write plain text.
3. A model's name tells whose reasoning it takes. Where the name tells nothing, nothing goes.
4. All reasoning of a message goes back as it came, or none of it.
5. Anthropic and Gemini get what is theirs in their own format, too: `in_format` makes it.
6. A field that is malformed is no reasoning. It stays in the stored message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from app.domain.common.errors import ValidationError
from app.domain.common.messages import FormatName, Message, Part, Reasoning, Role, Text, ToolCall
from app.domain.formats import gemini, json_fields

ANTHROPIC: Final = "anthropic"
GEMINI: Final = "gemini"
OPENAI: Final = "openai"
XAI: Final = "xai"
MISTRAL: Final = "mistral"
PLAIN: Final = "plain"
"""Unsigned text, of models that read the text of each other."""
SEALED: Final = "sealed"
"""Encrypted details that do not say whose they are: their router knows."""
UNBOUND: Final = frozenset((PLAIN, MISTRAL))
"""Reasoning that is not bound to the messages before it."""

BLANK_REASONING: Final = " "
"""The least that DeepSeek and Moonshot take as the reasoning of a message that calls tools."""

_CHAT: Final = FormatName.OPENAI_CHAT
_TEXT_FIELDS: Final = ("reasoning_content", "reasoning")
_LIST_FIELDS: Final = ("reasoning_details", "thinking_blocks")
_IN_ID: Final = "__thought__"
"""Stands between a call's id and its thought signature where LiteLLM joins them."""
_PARTS: Final = ("thinking", "redacted_thinking")

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
"""Words of model names and whose models they name; the first that is in a name decides."""
_REASONING_MODEL: Final = re.compile(r"(?:^|[/.])o[1-9](?:-|$)")
_DETAIL_FORMATS: Final = (
    ("anthropic", ANTHROPIC),
    ("google", GEMINI),
    ("openai", OPENAI),
    ("azure", OPENAI),
    ("xai", XAI),
)


# --- whose models ---------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def accepted_by(model: str, format: FormatName) -> tuple[str, ...]:
    """Return whose reasoning a model takes in a format, as far as its name tells.

    A name that tells nothing is the provider's own model in that provider's own format.
    """
    name = model.lower()
    family = next((family for words, family in _FAMILIES if any(w in name for w in words)), "")
    if not family and _REASONING_MODEL.search(name):
        family = OPENAI
    if not family:
        family = {FormatName.ANTHROPIC: ANTHROPIC, FormatName.GEMINI: GEMINI}.get(format, "")
    routed = (SEALED,) if name.startswith("openrouter/") else ()
    return (family, *routed) if family else routed


# --- in -------------------------------------------------------------------------------------------


def fields_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an assistant message that carry its reasoning, as they came."""
    found: dict[str, Any] = {key: raw[key] for key in _TEXT_FIELDS if isinstance(raw.get(key), str)}
    found |= {key: raw[key] for key in _LIST_FIELDS if _is_list(raw.get(key))}
    if _google_signature(raw):
        found["extra_content"] = raw["extra_content"]
    if given := _provider_fields(raw, found):
        found["provider_specific_fields"] = given
    return found if found and _is_plain_json(found) else {}


def _provider_fields(raw: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what LiteLLM keeps of reasoning apart, without what the message has itself."""
    given = _object(raw.get("provider_specific_fields"))
    kept = {key: given[key] for key in _LIST_FIELDS if _is_list(given.get(key))}
    kept |= {key: given[key] for key in _TEXT_FIELDS if _word(given.get(key))}
    kept = {key: item for key, item in kept.items() if key not in found}
    signatures = given.get("thought_signatures")
    if isinstance(signatures, list) and any(map(_word, signatures)):
        kept["thought_signatures"] = signatures
    if _word(given.get("thought_signature")):
        kept["thought_signature"] = given["thought_signature"]
    return kept


def call_fields_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tool call that carry its thought signature, as they came.

    LiteLLM also joins the signature to the call's id, which may be sent as another one. Where it
    stands nowhere else, it goes back where LiteLLM looks for it first.
    """
    found: dict[str, Any] = {}
    if _google_signature(raw):
        found["extra_content"] = raw["extra_content"]
    if _word(_object(raw.get("provider_specific_fields")).get("thought_signature")):
        found["provider_specific_fields"] = raw["provider_specific_fields"]
    function = _object(raw.get("function"))
    if _word(_object(function.get("provider_specific_fields")).get("thought_signature")):
        found["function"] = {"provider_specific_fields": function["provider_specific_fields"]}
    if not found and (joined := _word(raw.get("id")).partition(_IN_ID)[2]):
        found["provider_specific_fields"] = {"thought_signature": joined}
    return found if found and _is_plain_json(found) else {}


def text_of(fields: Mapping[str, Any]) -> str:
    """Return the text of the reasoning in a message's fields."""
    held = (fields, _object(fields.get("provider_specific_fields")))
    for given in held:
        for key in _TEXT_FIELDS:
            if text := _word(given.get(key)):
                return text
        for key in _LIST_FIELDS:
            if text := "\n".join(filter(None, map(_detail_text, given.get(key, ())))):
                return text
    return ""


def part_of(raw: Mapping[str, Any], pointer: str) -> Reasoning | None:
    """Read a content part of an assistant that is reasoning; None for any other part."""
    if raw.get("type") not in _PARTS:
        return None
    block = json_fields.json_at({key: raw[key] for key in raw if key != "cache_control"}, pointer)
    held = raw.get("thinking")
    texts = held if isinstance(held, list) else [{"text": held}]
    text = "\n".join(filter(None, (_word(_object(item).get("text")) for item in texts)))
    return Reasoning(text, block, _CHAT)


# --- whose it is ----------------------------------------------------------------------------------


def maker_of(message: Message) -> str:
    """Return who made the reasoning of a message, empty where it has none."""
    if any(signature_of(call) for call in message.calls):
        return GEMINI
    makers = [_maker(part) for part in message.parts if isinstance(part, Reasoning)]
    order = (GEMINI, ANTHROPIC, OPENAI, XAI, SEALED, MISTRAL, PLAIN)
    return next((maker for maker in order if maker in makers), "")


def goes_back(message: Message, accepts: Collection[str]) -> bool:
    """Tell whether a message's reasoning goes to a model that takes reasoning of these makers."""
    return bool(accepts) and maker_of(message) in accepts


def signature_of(call: ToolCall) -> str:
    """Return the thought signature of a call that came in the Chat format, empty without one."""
    if call.block is None or call.format is not _CHAT:
        return ""
    function = _object(call.block.get("function"))
    return (
        _google_signature(call.block)
        or _word(_object(call.block.get("provider_specific_fields")).get("thought_signature"))
        or _word(_object(function.get("provider_specific_fields")).get("thought_signature"))
    )


def _maker(part: Reasoning) -> str:
    if part.format is FormatName.ANTHROPIC and part.block is not None:
        return ANTHROPIC
    if part.format is not _CHAT or part.block is None:
        return ""
    fields = part.block
    if fields.get("type") in _PARTS:
        return MISTRAL if isinstance(fields.get("thinking"), list) else _maker_of_block(fields)
    given = _object(fields.get("provider_specific_fields"))
    if _google_signature(fields) or "thought_signatures" in given or "thought_signature" in given:
        return GEMINI
    makers = [_maker_of_block(block) for block in _held(fields, "thinking_blocks")]
    makers += [_maker_of_detail(detail) for detail in _held(fields, "reasoning_details")]
    return next((maker for maker in makers if maker != PLAIN), PLAIN)


def _maker_of_block(block: Mapping[str, Any]) -> str:
    is_signed = block.get("type") == "redacted_thinking" or _word(block.get("signature"))
    return ANTHROPIC if is_signed else PLAIN


def _maker_of_detail(detail: Mapping[str, Any]) -> str:
    named = _word(detail.get("format")).lower()
    for start, maker in _DETAIL_FORMATS:
        if named.startswith(start):
            return maker
    if _word(detail.get("signature")):
        return ANTHROPIC
    return SEALED if _word(detail.get("data")) else PLAIN


# --- out ------------------------------------------------------------------------------------------


def message_fields(message: Message) -> dict[str, Any]:
    """Return the fields that carry a message's reasoning in the Chat format."""
    found: dict[str, Any] = {}
    blocks: list[Mapping[str, Any]] = []
    for part in message.parts:
        if not isinstance(part, Reasoning) or part.block is None:
            continue
        if part.format is FormatName.ANTHROPIC:
            blocks.append(part.block)
        elif part.format is _CHAT and part.block.get("type") not in _PARTS:
            found |= part.block
    return found | ({"thinking_blocks": blocks} if blocks else {})


def content_part(part: Reasoning) -> Mapping[str, Any] | None:
    """Return the content part that a piece of reasoning came as, None where it came as a field."""
    is_part = part.format is _CHAT and part.block is not None and part.block.get("type") in _PARTS
    return part.block if is_part else None


def left_behind(message: Message) -> dict[str, Any]:
    """Return the fields that a message keeps when its reasoning does not go back any more.

    DeepSeek and Moonshot refuse a message with calls that has none.
    """
    fields = message_fields(message)
    blank = bool(message.calls) and "reasoning_content" in fields and maker_of(message) == PLAIN
    return {"reasoning_content": BLANK_REASONING} if blank else {}


def call_left_behind(call: ToolCall) -> dict[str, Any]:
    """Return the fields that a call keeps without its signature: the documented stand-in (G2).

    LiteLLM puts a stand-in itself.
    """
    if call.block is None or call.format is not _CHAT or not _google_signature(call.block):
        return {}
    return {"extra_content": {"google": {"thought_signature": gemini.STAND_IN_SIGNATURE}}}


def in_format(message: Message, format: FormatName, accepts: Collection[str]) -> Message:
    """Return a message that came in the Chat format with its reasoning as another format has it.

    What the format cannot carry, and what is not of one of these makers, is left out.
    """
    if message.role is not Role.ASSISTANT:
        return message
    parts: list[Part] = []
    goes = goes_back(message, accepts)
    thinks = goes and format is FormatName.ANTHROPIC and ANTHROPIC in accepts
    for part in message.parts:
        if isinstance(part, Reasoning) and part.format is _CHAT:
            parts.extend(_anthropic_parts(part) if thinks else ())
        elif isinstance(part, ToolCall) and part.format is _CHAT:
            parts.append(replace(part, block=None, format=None))
        else:
            parts.append(part)
    if goes and format is FormatName.GEMINI and maker_of(message) == GEMINI:
        parts = _signed(parts, message)
    return replace(message, parts=tuple(parts))


def _anthropic_parts(part: Reasoning) -> Iterator[Reasoning]:
    """Yield the blocks that Anthropic signed, as it made them."""
    fields = part.block or {}
    blocks = [fields] if fields.get("type") in _PARTS else _held(fields, "thinking_blocks")
    made = [block for block in blocks if _maker_of_block(block) == ANTHROPIC]
    if not made:
        made = [
            block for detail in _held(fields, "reasoning_details") for block in _from_detail(detail)
        ]
    for block in made:
        yield Reasoning(_word(block.get("thinking")), block, FormatName.ANTHROPIC)


def _from_detail(detail: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if _maker_of_detail(detail) != ANTHROPIC:
        return
    if signature := _word(detail.get("signature")):
        text = _word(detail.get("text"))
        yield {"type": "thinking", "thinking": text, "signature": signature}
    elif data := _word(detail.get("data")):
        yield {"type": "redacted_thinking", "data": data}


def _signed(parts: list[Part], message: Message) -> list[Part]:
    """Put Gemini's signatures back on the parts that they came on."""
    by_call, own = _gemini_signatures(message)
    made: list[Part] = []
    last_text = max((i for i, p in enumerate(parts) if isinstance(p, Text)), default=-1)
    for place, part in enumerate(parts):
        if isinstance(part, ToolCall) and json_fields.is_base64(by_call.get(part.id, "=")):
            call = {"id": part.id, "name": part.name, "args": {}}
            block = {"functionCall": call, "thoughtSignature": by_call[part.id]}
            made.append(replace(part, block=block, format=FormatName.GEMINI))
        elif isinstance(part, Text) and place == last_text and own:
            block = {"text": part.text, "thoughtSignature": own}
            made.append(replace(part, block=block, format=FormatName.GEMINI))
        else:
            made.append(part)
    return made


def _gemini_signatures(message: Message) -> tuple[dict[str, str], str]:
    """Return the signatures of calls by their ids, and the one of the text."""
    found = {call.id: sign for call in message.calls if (sign := signature_of(call))}
    fields = message_fields(message)
    given = _object(fields.get("provider_specific_fields"))
    listed = [*given.get("thought_signatures", ()), given.get("thought_signature")]
    own = _google_signature(fields) or next(filter(None, map(_word, listed)), "")
    for detail in _held(fields, "reasoning_details"):
        if _maker_of_detail(detail) == GEMINI and (data := _word(detail.get("data"))):
            named = _word(detail.get("id"))
            first = message.calls[0].id if message.calls else ""
            place = named if any(call.id == named for call in message.calls) else first
            if place:
                found.setdefault(place, data)
            else:
                own = own or data
    return found, own if own not in found.values() and json_fields.is_base64(own) else ""


# --- reading --------------------------------------------------------------------------------------


def _held(fields: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    given: list[Mapping[str, Any]] = fields.get(key) or _object(
        fields.get("provider_specific_fields")
    ).get(key, [])
    return given


def _detail_text(detail: Mapping[str, Any]) -> str:
    named = ("thinking", "text", "summary")
    return next(filter(None, (_word(detail.get(key)) for key in named)), "")


def _google_signature(raw: Mapping[str, Any]) -> str:
    google = _object(_object(raw.get("extra_content")).get("google"))
    return _word(google.get("thought_signature"))


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _is_plain_json(value: Any) -> bool:
    try:
        json_fields.json_at(value, "")
    except ValidationError:
        return False
    return True


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
