"""The rules of Gemini.

1. Fields are read in snake_case and camelCase, roles as the provider takes them: none is `user`.
2. The current turn begins at the newest content of the user that answers no call. Its steps are the
   model's contents with calls; the first call of each carries the signature (`G2`).
3. Two signatures are placeholders for calls that another model made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from app.domain.common.messages import FormatName
from app.domain.formats.block_types import owners_of
from app.domain.payload.validation.neutral import Dialect, Result, call_key
from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    first_set_field,
    is_blank,
    list_of,
    object_of,
    string_of,
    texts_in,
)

PLACEHOLDER_SIGNATURES: Final = (
    "context_engineering_is_the_way_to_go",
    "skip_thought_signature_validator",
)
"""Signatures that the provider takes for calls it did not make."""

_UNSIGNED = re.compile(r"(models/)?gemini-(1|2|pro|flash)")
"""Models that do not sign, or do not require signatures."""
_RESPONSE_ROLES = ("user", "function")

_IndexedFields = list[tuple[int, Object]]


def judge(check: Check) -> None:
    """Judge the contents of a payload."""
    _judge_ends(check)
    _judge_pairs(check)
    seen: set[str] = set()
    for at, raw in check.objects():
        _judge_content(raw, at, seen, check)
    if not _UNSIGNED.match(string_of(check.payload.get("model"))):
        _judge_signatures(check)
    _judge_switch(check)


def role_of(item: object) -> str:
    """Return the role of a content, `user` by default."""
    return string_of(object_of(item).get("role")) or "user"


def parts_of(item: object) -> Sequence[Any]:
    """Return the parts of a content."""
    return list_of(object_of(item).get("parts"))


def calls_in(item: object) -> _IndexedFields:
    """Return the function calls of a content with the indexes of their parts."""
    return _fields(item, "function_call", "functionCall")


def responses_in(item: object) -> _IndexedFields:
    """Return the function responses of a content with the indexes of their parts."""
    return _fields(item, "function_response", "functionResponse")


def signature_in(part: object) -> str:
    """Return the thought signature of a part, empty without one."""
    return string_of(first_set_field(object_of(part), "thought_signature", "thoughtSignature"))


def _fields(item: object, *names: str) -> _IndexedFields:
    values = (
        (part_index, first_set_field(object_of(part), *names))
        for part_index, part in enumerate(parts_of(item))
    )
    return [(part_index, object_of(value)) for part_index, value in values if value is not None]


def _judge_ends(check: Check) -> None:
    """`G3`: the user begins; the user or a function ends."""
    if not check.items:
        check.add("G3", check.items_at, "there is no content")
        return
    for at, raw in check.objects():
        role = role_of(raw)
        if role == "system":
            check.add("G3", at, "system text stands in system_instruction")
        elif role not in ("model", *_RESPONSE_ROLES):
            check.add("G3", at, "a role is user or model")
    if role_of(check.items[0]) == "model":
        check.add("G3", f"{check.items_at}/0", "the contents start with the model")
    last = len(check.items) - 1
    if last and role_of(check.items[last]) == "model" and not calls_in(check.items[last]):
        check.add("G3", f"{check.items_at}/{last}", "the contents end with the model")


def _judge_pairs(check: Check) -> None:
    """`G1`: the content after a model's calls answers each of them, in their order."""
    waiting: _IndexedFields = []
    last_role = calls_at = ""
    for at, raw in check.objects():
        role = role_of(raw)
        responses = responses_in(raw) if role in _RESPONSE_ROLES else []
        calls = calls_in(raw) if role == "model" else []
        if waiting and len(responses) != len(waiting):
            check.add(
                "G1", calls_at, f"{len(waiting)} calls, and {len(responses)} responses to them"
            )
        elif waiting:
            _judge_answers(waiting, responses, at, check)
        elif responses:
            check.add("G1", at, "no call stands in the content before")
        elif calls and last_role == "model":
            check.add("G1", at, "calls follow the user or a function, not the model")
        waiting, calls_at, last_role = calls, at, role
    if waiting:
        check.add("G1", calls_at, "the calls have no responses")


def _judge_answers(calls: _IndexedFields, responses: _IndexedFields, at: str, check: Check) -> None:
    for (_, call), (part_index, response) in zip(calls, responses, strict=True):
        ids = call.get("id"), response.get("id")
        is_other = None not in ids and ids[0] != ids[1]
        if is_other or call.get("name") != response.get("name"):
            check.add("G1", f"{at}/parts/{part_index}", "the response is to another call")
            return


def _judge_content(item: Any, at: str, seen: set[str], check: Check) -> None:
    parts = parts_of(item)
    if not parts:
        check.add("N6", at, "the content has no parts")
    for part_index, value in enumerate(parts):
        part, pointer = object_of(value), f"{at}/parts/{part_index}"
        kind = part.get("type")
        if not part or (is_blank(part.get("text")) and len(part) == 1):
            check.add("N6", pointer, "the part is empty")
        elif owners_of(kind, FormatName.GEMINI):
            check.add("N12", pointer, f"only another provider understands a {kind} part")
    for part_index, call in calls_in(item):
        call_id = string_of(call.get("id"))
        if call_id in seen:
            check.add("N3", f"{at}/parts/{part_index}", "another call has this id")
        elif call_id:
            seen.add(call_id)


def turn_start(shape: Shape) -> int:
    """Return where the current turn begins (rule 2)."""
    starts = (
        index
        for index in reversed(range(len(shape.items)))
        if role_of(shape.items[index]) == "user" and not responses_in(shape.items[index])
    )
    return next(starts, 0)


def _judge_signatures(check: Check) -> None:
    for index in range(turn_start(check), len(check.items)):
        item = check.items[index]
        calls = calls_in(item) if role_of(item) == "model" else []
        if calls and not signature_in(parts_of(item)[calls[0][0]]):
            pointer = f"{check.items_at}/{index}/parts/{calls[0][0]}"
            check.add("G2", pointer, "the first call of the step has no thought signature")


def _judge_switch(check: Check) -> None:
    """`G4`: another model does not get the signatures of the one before."""
    if check.previous is None:
        return
    last_model, model = (
        string_of(check.previous.payload.get("model")),
        string_of(check.payload.get("model")),
    )
    if not (last_model and model) or last_model == model:
        return
    earlier = {signature for _, signature in _signed(check.previous)}
    for pointer, signature in _signed(check):
        if signature in earlier and signature not in PLACEHOLDER_SIGNATURES:
            check.add("G4", pointer, f"the signature was made by {last_model}")


def _signed(shape: Shape) -> Iterator[tuple[str, str]]:
    """Yield the signatures of parts, each with the pointer of its part."""
    for at, raw in shape.objects():
        for part_index, part in enumerate(parts_of(raw)):
            if signature := signature_in(part):
                yield f"{at}/parts/{part_index}", signature


def _results(shape: Shape) -> Iterator[Result]:
    for at, raw in shape.objects():
        for part_index, response in responses_in(raw):
            values = object_of(response.get("response")).values()
            yield (
                f"{at}/parts/{part_index}",
                "\n".join(text for value in values for text in texts_in(value)),
            )


def _groups(shape: Shape) -> Iterator[tuple[bytes, ...]]:
    for item in shape.items:
        calls = calls_in(item)
        if calls:
            yield tuple(call_key(call) for _, call in calls)


DIALECT = Dialect(judge, _results, _groups)
