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
from app.domain.payload.validation.rules import Context, Findings
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    either,
    is_blank,
    list_of,
    object_of,
    read,
    texts_in,
    word,
)

DUMMIES: Final = ("context_engineering_is_the_way_to_go", "skip_thought_signature_validator")
"""Signatures that the provider takes for calls it did not make."""

_UNSIGNED = re.compile(r"(models/)?gemini-(1|2|pro|flash)")
"""Models that sign nothing, or do not ask for it."""
_ANSWERS = ("user", "function")

_Places = list[tuple[int, Object]]


def judge(shape: Shape, context: Context, found: Findings) -> None:
    """Judge the contents of a payload."""
    _judge_ends(shape, found)
    _judge_pairs(shape, found)
    seen: set[str] = set()
    for index, item in enumerate(shape.items):
        _judge_content(item, f"{shape.at}/{index}", seen, found)
    if not _UNSIGNED.match(word(shape.payload.get("model"))):
        _judge_signatures(shape, found)
    _judge_switch(shape, context, found)


def role_of(item: object) -> str:
    """Return the role of a content, `user` by default."""
    return word(object_of(item).get("role")) or "user"


def parts_of(item: object) -> Sequence[Any]:
    """Return the parts of a content."""
    return list_of(object_of(item).get("parts"))


def calls_in(item: object) -> _Places:
    """Return the function calls of a content with their places among its parts."""
    return _fields(item, "function_call", "functionCall")


def responses_in(item: object) -> _Places:
    """Return the function responses of a content with their places among its parts."""
    return _fields(item, "function_response", "functionResponse")


def signature_in(part: object) -> str:
    """Return the thought signature of a part, empty without one."""
    return word(either(object_of(part), "thought_signature", "thoughtSignature"))


def _fields(item: object, *names: str) -> _Places:
    found = ((place, either(object_of(part), *names)) for place, part in enumerate(parts_of(item)))
    return [(place, object_of(value)) for place, value in found if value is not None]


def _judge_ends(shape: Shape, found: Findings) -> None:
    """`G3`: the user begins; the user or a function ends."""
    if not shape.items:
        found.add("G3", shape.at, "there is no content")
        return
    for index, item in enumerate(shape.items):
        at, role = f"{shape.at}/{index}", role_of(item)
        if role == "system":
            found.add("G3", at, "system text stands in system_instruction")
        elif role not in ("model", *_ANSWERS):
            found.add("G3", at, "a role is user or model")
    if role_of(shape.items[0]) == "model":
        found.add("G3", f"{shape.at}/0", "the contents start with the model")
    last = len(shape.items) - 1
    if last and role_of(shape.items[last]) == "model" and not calls_in(shape.items[last]):
        found.add("G3", f"{shape.at}/{last}", "the contents end with the model")


def _judge_pairs(shape: Shape, found: Findings) -> None:
    """`G1`: the content after a model's calls answers each of them, in their order."""
    waiting: _Places = []
    before = caller = ""
    for index, item in enumerate(shape.items):
        at, role = f"{shape.at}/{index}", role_of(item)
        given = responses_in(item) if role in _ANSWERS else []
        calls = calls_in(item) if role == "model" else []
        if waiting and len(given) != len(waiting):
            found.add("G1", caller, f"{len(waiting)} calls, and {len(given)} responses to them")
        elif waiting:
            _judge_answers(waiting, given, at, found)
        elif given:
            found.add("G1", at, "no call stands in the content before")
        elif calls and before == "model":
            found.add("G1", at, "calls follow the user or a function, not the model")
        waiting, caller, before = calls, at, role
    if waiting:
        found.add("G1", caller, "the calls have no responses")


def _judge_answers(calls: _Places, given: _Places, at: str, found: Findings) -> None:
    for (_, call), (place, response) in zip(calls, given, strict=True):
        ids = call.get("id"), response.get("id")
        is_other = None not in ids and ids[0] != ids[1]
        if is_other or call.get("name") != response.get("name"):
            found.add("G1", f"{at}/parts/{place}", "the response is to another call")
            return


def _judge_content(item: Any, at: str, seen: set[str], found: Findings) -> None:
    parts = parts_of(item)
    if not parts:
        found.add("N6", at, "the content has no parts")
    for place, value in enumerate(parts):
        part, pointer = object_of(value), f"{at}/parts/{place}"
        kind = part.get("type")
        if not part or (is_blank(part.get("text")) and len(part) == 1):
            found.add("N6", pointer, "the part is empty")
        elif owners_of(kind, FormatName.GEMINI):
            found.add("N12", pointer, f"only another provider understands a {kind} part")
    for place, call in calls_in(item):
        call_id = word(call.get("id"))
        if call_id in seen:
            found.add("N3", f"{at}/parts/{place}", "another call has this id")
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


def _judge_signatures(shape: Shape, found: Findings) -> None:
    for index in range(turn_start(shape), len(shape.items)):
        item = shape.items[index]
        calls = calls_in(item) if role_of(item) == "model" else []
        if calls and not signature_in(parts_of(item)[calls[0][0]]):
            pointer = f"{shape.at}/{index}/parts/{calls[0][0]}"
            found.add("G2", pointer, "the first call of the step has no thought signature")


def _judge_switch(shape: Shape, context: Context, found: Findings) -> None:
    """`G4`: another model does not get the signatures of the one before."""
    if context.previous is None:
        return
    models = word(context.previous.get("model")), word(shape.payload.get("model"))
    if not all(models) or models[0] == models[1]:
        return
    before = {signature for _, _, signature in _signed(read(context.previous, FormatName.GEMINI))}
    for pointer, _, signature in _signed(shape):
        if signature in before and signature not in DUMMIES:
            found.add("G4", pointer, f"the signature was made by {models[0]}")


def _signed(shape: Shape) -> Iterator[tuple[str, Object, str]]:
    """Yield the parts that carry a signature, each with its pointer."""
    for index, item in enumerate(shape.items):
        for place, part in enumerate(parts_of(item)):
            signature = signature_in(part)
            if signature:
                yield f"{shape.at}/{index}/parts/{place}", part, signature


def _results(shape: Shape) -> Iterator[Result]:
    for index, item in enumerate(shape.items):
        for place, response in responses_in(item):
            said = object_of(response.get("response")).values()
            text = "\n".join(text for value in said for text in texts_in(value))
            yield f"{shape.at}/{index}/parts/{place}", text


def _groups(shape: Shape) -> Iterator[tuple[bytes, ...]]:
    for item in shape.items:
        calls = calls_in(item)
        if calls:
            yield tuple(call_key(call) for _, call in calls)


DIALECT = Dialect(judge, _results, _groups)
