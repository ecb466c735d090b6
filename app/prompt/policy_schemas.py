"""Schemas of the policy, generated from the domain's dataclasses.

Every setting may be absent, which leaves it unchanged, or null, which inherits it again. The domain
validates combinations of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, create_model
from typing_extensions import TypeAliasType

from app.http.fields import MAX_TOKENS, NAME_PATTERN, RequestSchema, ResponseSchema
from app.policy.policy import (
    AGENT_TOOL_NAMES,
    MAX_PREVIEW_BYTES,
    MAX_TREE_LEVELS,
    AgentToolChoice,
    Auto,
    ChainStep,
    Policy,
)

DESCRIPTIONS: Mapping[str, str] = {
    "strategy": (
        "How the history is kept inside the context window; `GET /v1/strategies` lists them."
    ),
    "sandwich": "Settings of the strategy `sandwich`.",
    "sandwich.preserve_top": "Messages kept verbatim at the start.",
    "sandwich.preserve_bottom": "Messages kept verbatim at the end.",
    "sandwich.compression_threshold": "Share of the effective window at which a summary is due.",
    "sliding_window": "Settings of the strategy `sliding_window`.",
    "sliding_window.keep_last_n": "Number of the newest messages in a payload.",
    "tree_summary": "Settings of the strategy `tree_summary`.",
    "tree_summary.chunk_size": "Approximate number of messages in one summary.",
    "tree_summary.levels": (
        "Maximum levels of summaries: 1 means that summaries are not summarised again."
    ),
    "chain": (
        "Strategies that `chain` runs in order; each runs only while usage is above the target."
    ),
    "compaction": "When and how summaries are made.",
    "compaction.enabled": (
        "false: never compact; a build that exceeds the context window is refused."
    ),
    "compaction.auto": "false: compact only on request, or if the context window would overflow.",
    "compaction.threshold_ratio": (
        "Share of the effective window at which `retain_summary`, `tree_summary` and `chain`"
        " are due."
    ),
    "compaction.model": "Model that writes summaries; `extractive` is built in and calls no model.",
    "compaction.summary_template": (
        "Built-in prompt for summaries by a model: `sections` asks for requests, decisions, state,"
        " files, errors, values, evidence and next step below headings, `brief` for a dense text."
    ),
    "compaction.summary_input": (
        "What a model reads: `transcript` is a text made for the summary; `prefix` is the newest"
        " payload with one instruction, sent to the payload's model, which has it in its cache."
    ),
    "compaction.summary_prompt": "Prompt for summaries, instead of the built-in one.",
    "compaction.summary_directives": "Additional instructions, added to the prompt as bullets.",
    "compaction.retain_prompt": (
        "Prompt for a text that is kept verbatim beside the summary; null uses only the directives."
    ),
    "compaction.retain_directives": (
        "Additional instructions for that text, added to its prompt as bullets."
    ),
    "compaction.retain_last_turns": (
        "Number of turns that `retain_summary` keeps verbatim at the end."
    ),
    "compaction.mode": (
        "`background`: after the turn, once due; `inline`: only during a build that needs it."
    ),
    "compaction.target": "Share of the effective window to which a compaction reduces usage.",
    "compaction.min_gain": "Minimum share of the effective window that a compaction must free.",
    "compaction.max_messages": "Number of verbatim messages above which a compaction is due.",
    "budget": "The context window and its thresholds.",
    "budget.context_window": "Tokens of the context window; null takes the model's.",
    "budget.max_output_tokens": (
        "Tokens reserved for the response; fewer than the context window has."
    ),
    "budget.notice_at": "Share of the effective window at which `notice` is true.",
    "budget.compact_trigger": "Share at which a build compacts before it returns.",
    "budget.hard_block": (
        "Share at which it compacts even if `compaction.auto` is false; not below"
        " `compact_trigger`."
    ),
    "budget.on_unknown_model": (
        "`derive`: the context window of an unknown model is max_output_tokens x 4."
    ),
    "budget.counter": "How tokens are counted; set with a conversation's first message.",
    "tool_output": "How large tool results are stored and shortened in payloads.",
    "tool_output.enabled": "false: results stay whole, in their messages and in payloads.",
    "tool_output.offload_threshold_bytes": (
        "Larger results are stored in a blob and shown as a preview."
    ),
    "tool_output.context_budget_tokens": (
        "Tokens of tool results in a payload above which the oldest are cleared; `auto` is a"
        " quarter of the context window, from 20000 to 60000."
    ),
    "tool_output.max_message_bytes": (
        "Maximum bytes of a preview, its note included. A small window lowers it."
    ),
    "tool_output.max_line_length": (
        "Maximum characters of a line in a preview. Longer lines are cut in small results too."
    ),
    "tool_output.view": (
        "Kind of preview. `truncate`: as much as fits; `reference`: the size and an excerpt."
    ),
    "tool_output.clear_at_least": (
        "Minimum tokens that a clearing frees; `auto` is half of the budget."
    ),
    "tool_output.exclude_tools": "Names of tools whose results are never cleared.",
    "messages": "How user and assistant texts that exceed the context window are shortened.",
    "messages.offload_oversized": (
        "true: in a payload that would not fit, such a text is replaced by its beginning, a note"
        " with its ref, and its end; false: such a build is refused."
    ),
    "gc": "What the garbage collection deletes besides uploads that no message refers to.",
    "gc.drop_compacted": "true: also blobs whose messages are all compacted.",
    "tool_deferral_threshold": (
        "Share of the effective window that tool definitions may take before some are deferred."
    ),
    "dynamic_position": "Position of scratchpad, status and notes; `tail` keeps the cached prefix.",
    "status_preamble": "`auto`: a build without a status names the agent's other active"
    " conversations; `none`: it does not.",
    "agent_tools": (
        "Tools of the service in a payload: `auto` adds them beside tools of the caller, and"
        " elsewhere those that its texts need; `none` adds none, a list adds the named ones."
    ),
    "summary_role": (
        "Role of a summary. Anthropic and Gemini have no system messages in a history:"
        " `system` becomes `user` there, and `degraded` has `summary_role_user`."
    ),
    "preserve_user_messages": "true: the newest user messages stay verbatim in compactions.",
}
"""The description of each setting, by its path."""

_MAX_TEXT = 32_000
_MAX_DIRECTIVES = 100

_LIST = Annotated[
    list[Annotated[str, Field(max_length=_MAX_TEXT)]], Field(max_length=_MAX_DIRECTIVES)
]
AddedTools = TypeAliasType(
    "AddedTools",
    Annotated[AgentToolChoice, Field(description="Which of the service's tools a payload has.")],
)
_AGENT_TOOL_NAMES = Annotated[
    list[Annotated[str, Field(json_schema_extra={"pattern": f"^({'|'.join(AGENT_TOOL_NAMES)})$"})]],
    Field(max_length=_MAX_DIRECTIVES),
]
_LIMITS: Mapping[Any, Any] = {
    int: Annotated[int, Field(le=MAX_TOKENS)],
    int | None: Annotated[int, Field(le=MAX_TOKENS)],
    float: Annotated[float, Field(le=1_000_000)],
    str | None: Annotated[str, Field(max_length=_MAX_TEXT)],
    tuple[str, ...]: _LIST,
    AgentToolChoice | tuple[str, ...]: AddedTools | _AGENT_TOOL_NAMES,
    tuple[ChainStep, ...]: Annotated[
        list[Annotated[ChainStep, Field(strict=False)]],
        Field(min_length=1, max_length=len(ChainStep)),
    ],
}
_NAMES = {"compaction.model": Annotated[str, Field(max_length=256, pattern=NAME_PATTERN)]}

_SHARE = {"exclusiveMinimum": 0, "maximum": 1}
_COUNT = {"minimum": 0}
_POSITIVE = {"minimum": 1}
_PREVIEW_SIZE = {"minimum": 1, "maximum": MAX_PREVIEW_BYTES}
BOUNDS: Mapping[str, Mapping[str, Any]] = {
    "sandwich.preserve_top": _COUNT,
    "sandwich.preserve_bottom": _POSITIVE,
    "sandwich.compression_threshold": _SHARE,
    "sliding_window.keep_last_n": _POSITIVE,
    "tree_summary.chunk_size": {"minimum": 2},
    "tree_summary.levels": {"minimum": 1, "maximum": MAX_TREE_LEVELS},
    "chain": {"uniqueItems": True},
    "compaction.threshold_ratio": _SHARE,
    "compaction.retain_last_turns": _COUNT,
    "compaction.target": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "compaction.min_gain": {"minimum": 0, "exclusiveMaximum": 1},
    "compaction.max_messages": _POSITIVE,
    "budget.context_window": _POSITIVE,
    "budget.max_output_tokens": _POSITIVE,
    "budget.notice_at": _SHARE,
    "budget.compact_trigger": _SHARE,
    "budget.hard_block": _SHARE,
    "tool_output.offload_threshold_bytes": _COUNT,
    "tool_output.context_budget_tokens": _COUNT,
    "tool_output.max_message_bytes": _PREVIEW_SIZE,
    "tool_output.max_line_length": _PREVIEW_SIZE,
    "tool_output.clear_at_least": _COUNT,
    "tool_deferral_threshold": _SHARE,
}
"""The bounds of settings for the JSON schema; the domain validates them."""


def _model(kind: Any, path: str = "", *, is_request: bool) -> type[BaseModel]:
    """Return the schema of a dataclass of settings, with the schemas of those inside it."""
    members: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for name in (member.name for member in fields(kind)):
        hint, setting_path = hints[name], f"{path}.{name}".strip(".")
        if is_dataclass(hint):
            type_: Any = _model(hint, setting_path, is_request=is_request)
        elif is_request:
            type_ = _NAMES.get(setting_path, _request_type(hint, BOUNDS.get(setting_path)))
        else:
            type_ = _response_type(hint)
        if is_request:
            members[name] = (
                type_ | None,
                Field(default=None, description=DESCRIPTIONS[setting_path]),
            )
        else:
            members[name] = (type_, Field(description=DESCRIPTIONS[setting_path]))
    title = "".join(word.capitalize() for word in path.split("_")) + "Policy"
    base, suffix = (RequestSchema, "Patch") if is_request else (ResponseSchema, "")
    doc = DESCRIPTIONS.get(path, "Settings for the context of a conversation.")
    return create_model(title + suffix, __base__=base, __doc__=doc, **members)


def _response_type(hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return list[get_args(hint)[0]]  # type: ignore[misc]
    return AddedTools | list[str] if hint == AgentToolChoice | tuple[str, ...] else hint


def _request_type(hint: Any, bounds: Mapping[str, Any] | None) -> Any:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Annotated[hint, Field(strict=False)]
    if hint == int | Auto:
        return _request_type(int, bounds) | Auto
    # Linters reject a `maximum` beside an `exclusiveMaximum`.
    is_below = bounds is not None and "exclusiveMaximum" in bounds
    limited = hint if is_below else _LIMITS.get(hint, hint)
    return Annotated[limited, Field(json_schema_extra=dict(bounds))] if bounds else limited


PolicyPatch: Any = _model(Policy, is_request=True)
"""Policy settings in a request."""

EffectivePolicy: Any = _model(Policy, is_request=False)
"""The effective policy: every setting with its value."""


def policy_settings(policy: BaseModel | None) -> dict[str, Any] | None:
    """Return the settings that a request sets, nulls included; None for a null policy."""
    return None if policy is None else policy.model_dump(exclude_unset=True)
