"""OpenAI Responses.

1. A call's output stands after it, has its call id and the output type of its kind of call. One
   output for one call. With `previous_response_id` the call may be in that response. The output of
   a call that is `async` may come any time later.
2. A reasoning item is followed by what it led to: a call, a message of the assistant, or more
   reasoning.
3. Item ids and call ids are unique. A call id has at most 64 characters.
4. An assistant's message holds `output_text` or `refusal`, a user's `input_*` parts. There is no
   role `tool`.
5. A `compaction_trigger` is the last item. `previous_response_id` excludes `conversation`. Without
   either of them the input begins with the user, a summary or a compaction.
6. A hosted tool search is followed by its output. A call of a tool that only a namespace has names
   the namespace.
7. At most four cache breakpoints are written, an implicit one included. Beside them no text stands
   in `instructions`, which take none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from openai.types.responses import ResponseInputItemParam
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from tests.judge.findings import (
    Facts,
    Finding,
    Findings,
    is_blank,
    is_empty,
    objects,
    occurrences,
    repeated,
)
from tests.judge.openai_chat import INSTRUCTIONS, MAX_BREAKPOINTS, judge_arguments
from tests.judge.sdk_types import check_json, check_type

MAX_CALL_ID_CHARS: Final = 64
OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "local_shell_call": "local_shell_call_output",
    "tool_search_call": "tool_search_output",
}
"""The type of the output for each type of call that the caller answers."""
_SEARCHES = ("tool_search_call", "tool_search_output")
AFTER_REASONING: Final = frozenset(OUTPUTS) | {
    "reasoning",
    "compaction",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "program",
}


def judge(payload: dict[str, Any], facts: Facts) -> list[Finding]:
    """Return what is wrong with a request to Responses."""
    items = payload.get("input")
    if is_empty(items) or not isinstance(items, str | list):
        return [Finding("no-input", "$.input", "a text or a non-empty array is required")]
    findings = Findings(check_json(payload))
    tools = payload.get("tools")
    request = {**payload, "input": []}
    if isinstance(tools, list):
        request["tools"] = [_completed_tool(tool) for tool in tools]
    findings.found += check_type(request, ResponseCreateParamsNonStreaming)
    if payload.get("previous_response_id") and payload.get("conversation"):
        findings.error(
            "two-histories", "$", "previous_response_id and conversation exclude another"
        )
    if isinstance(items, str):
        return findings.found
    for index, item in enumerate(items):
        _judge_item(item, f"$.input[{index}]", findings)
    if findings.is_mistyped:
        return findings.found
    read = objects(items)
    continues = bool(payload.get("previous_response_id") or payload.get("conversation"))
    _Pairs(read, continues, findings).judge()
    _judge_order(read, findings)
    if not continues:
        _judge_start(read, findings)
    _judge_searches(read, findings)
    _judge_namespaces(read, objects(tools), findings)
    for item_id in repeated(item.get("id") for item in read):
        findings.error("item-id-reused", "$.input", f"two items have the id {item_id!r}")
    for name in repeated(tool.get("name") for tool in objects(tools)):
        findings.error("tool-defined-twice", "$.tools", repr(name))
    _judge_breakpoints(payload, facts, findings)
    return findings.found


def kind_of(item: dict[str, Any]) -> Any:
    """Return the type of an item; a message may leave it out."""
    return item.get("type") or ("message" if "role" in item else None)


def _judge_start(items: list[dict[str, Any]], findings: Findings) -> None:
    """Rule 5: what comes first, instructions and tools aside."""
    for index, item in enumerate(items):
        kind, role = kind_of(item), item.get("role")
        if role == "assistant" or kind == "reasoning" or kind in OUTPUTS:
            findings.warn("first-not-user", f"$.input[{index}]", "the conversation starts so")
        if role not in INSTRUCTIONS and kind != "additional_tools":
            return


def _judge_searches(items: list[dict[str, Any]], findings: Findings) -> None:
    """Rule 6: hosted searches, which have no call id."""
    waiting = None
    for index, item in enumerate([*items, {"type": "tool_search_call"}]):
        place, kind = f"$.input[{index}]", kind_of(item)
        if item.get("call_id") is not None or kind not in _SEARCHES:
            continue
        if kind == "tool_search_output" and waiting is None:
            findings.error("orphan-search", place, "the search that found this is gone")
        elif kind == "tool_search_call" and waiting is not None:
            findings.error("search-unanswered", waiting, "what the search found is gone")
        waiting = place if kind == "tool_search_call" else None


def _judge_namespaces(
    items: list[dict[str, Any]], tools: list[dict[str, Any]], findings: Findings
) -> None:
    """Rule 6: the names of tools, in namespaces and outside."""
    found = [*tools, *(tool for item in items for tool in objects(item.get("tools")))]
    spaces = [tool for tool in found if tool.get("type") == "namespace"]
    inside = {tool.get("name") for space in spaces for tool in objects(space.get("tools"))}
    inside -= {tool.get("name") for tool in found if tool.get("type") != "namespace"}
    for index, item in enumerate(items):
        is_bare = kind_of(item) == "function_call" and not item.get("namespace")
        if is_bare and item.get("name") in inside:
            findings.error("no-namespace", f"$.input[{index}]", "its tool is in a namespace")


def _judge_breakpoints(payload: dict[str, Any], facts: Facts, findings: Findings) -> None:
    """Rule 7. Those of the build before are written already."""
    count = occurrences(payload["input"], "prompt_cache_breakpoint")
    if count and payload.get("instructions"):
        findings.warn("cached-instructions", "$.instructions", "they belong to a developer message")
    written = occurrences((facts.previous or {}).get("input"), "prompt_cache_breakpoint")
    is_explicit = (payload.get("prompt_cache_options") or {}).get("mode") == "explicit"
    if count - written > MAX_BREAKPOINTS - (not is_explicit):
        findings.warn("cache-breakpoints", "$.input", "only the last four are written")


def _completed_tool(tool: Any) -> Any:
    """Add what the SDK's type demands of a function and the API does not."""
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return {"strict": None, "parameters": None} | tool if is_function else tool


def _judge_item(item: Any, place: str, findings: Findings) -> None:
    """Rule 4, and the SDK's type of one item."""
    if not isinstance(item, dict):
        findings.error("sdk-type", place, "an item is an object")
        return
    if kind_of(item) != "message":
        findings.found += check_type(item, ResponseInputItemParam, place)
        if kind_of(item) in OUTPUTS.values() and item.get("output") == []:
            findings.warn("empty-content", place, "the output is empty")
        return
    content = item.get("content")
    if item.get("role") == "tool":
        findings.error("role-tool", place, "a result is a function_call_output")
        return
    parts = [part.get("text") for part in objects(content)]
    if is_empty(content) or any(map(is_blank, parts)):
        findings.warn("empty-content", place, "the message is empty, or a part of it")
    if item.get("role") != "assistant" or not isinstance(content, list):
        findings.found += check_type(item, ResponseInputItemParam, place)
        return
    for index, part in enumerate(objects(content)):
        if part.get("type") not in ("output_text", "refusal"):
            text = f"{part.get('type')!r} is no part of an assistant's message"
            findings.error("assistant-part", f"{place}.content[{index}]", text)
    findings.found += check_type(_completed_message(item), ResponseInputItemParam, place)


def _completed_message(item: dict[str, Any]) -> dict[str, Any]:
    """Add what the SDK's type demands of an assistant's message and the API does not."""
    completed = {"id": "msg_any", "status": "completed", "type": "message"} | item
    completed["content"] = [
        {"annotations": []} | part
        if isinstance(part, dict) and part.get("type") == "output_text"
        else part
        for part in item["content"]
    ]
    return completed


@dataclass(slots=True)
class _Pairs:
    """Rules 1 and 3: goes through the items once, and remembers the calls and their answers."""

    items: list[dict[str, Any]]
    continues: bool
    findings: Findings
    calls: dict[str, tuple[int, str]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)

    def judge(self) -> None:
        """Judge all pairs."""
        for index, item in enumerate(self.items):
            kind = kind_of(item)
            if kind in OUTPUTS:
                self._judge_call(index, kind, item)
            elif kind in OUTPUTS.values():
                self._judge_output(index, kind, item)
        for call_id, (index, _) in self.calls.items():
            if call_id not in self.answered and not self.items[index].get("async"):
                text = f"no output of {call_id!r} follows"
                self.findings.error("call-unanswered", f"$.input[{index}]", text)

    def _judge_call(self, index: int, kind: str, item: dict[str, Any]) -> None:
        place, call_id = f"$.input[{index}]", item.get("call_id")
        if kind == "function_call":
            judge_arguments(item.get("arguments"), place, self.findings)
            self.findings.judge_name(item.get("name"), place)
        if not isinstance(call_id, str):
            return  # hosted, or an error of its type
        if call_id in self.calls:
            self.findings.error("call-id-reused", place, f"{call_id!r} names an earlier call")
            return
        if len(call_id) > MAX_CALL_ID_CHARS:
            self.findings.error("call-id-long", place, f"{len(call_id)} characters")
        self.calls[call_id] = index, kind

    def _judge_output(self, index: int, kind: str, item: dict[str, Any]) -> None:
        place = f"$.input[{index}]"
        call_id = item.get("id" if kind == "local_shell_call_output" else "call_id")
        if call_id is None and kind == "tool_search_output":
            return  # the provider's own search
        if call_id in self.answered:
            self.findings.error("second-result", place, f"{call_id!r} already has an output")
        elif call_id in self.calls:
            self._judge_pair(index, kind, *self.calls[call_id])
        elif not self.continues:
            self.findings.error("orphan-result", place, f"no call {call_id!r} stands before it")
        if isinstance(call_id, str):
            self.answered.add(call_id)

    def _judge_pair(self, index: int, kind: str, called_at: int, called: str) -> None:
        place = f"$.input[{index}]"
        if OUTPUTS[called] != kind:
            self.findings.error("output-type", place, f"a {called} is not answered by {kind}")
        between = self.items[called_at + 1 : index]
        is_awaited = not self.items[called_at].get("async")
        if is_awaited and any(item.get("role") == "user" for item in between):
            self.findings.warn("result-not-adjacent", place, "a user message stands before it")


def _judge_order(items: list[dict[str, Any]], findings: Findings) -> None:
    """Rules 2 and 5."""
    for index, item in enumerate(items):
        place, kind = f"$.input[{index}]", kind_of(item)
        follows = items[index + 1] if index + 1 < len(items) else {}
        if kind == "reasoning" and not (
            kind_of(follows) in AFTER_REASONING or follows.get("role") == "assistant"
        ):
            findings.error("reasoning-alone", place, "what it led to does not follow")
        if kind == "compaction_trigger" and follows:
            findings.error("trigger-not-last", place, "nothing follows a compaction_trigger")
