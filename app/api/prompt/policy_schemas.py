"""The policy on the wire, made from the domain's dataclasses so that the two never differ.

Every leaf may be absent, which inherits, or null, which goes back to inheriting (decision 22).
Whether the values could work together is for the domain to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, create_model
from typing_extensions import TypeAliasType

from app.api.http.fields import MAX_TOKENS, NAME_PATTERN, Answered, Asked
from app.domain.common.policy import (
    MAX_LEVELS,
    MAX_PREVIEW_BYTES,
    OWN_TOOLS,
    AgentTools,
    Auto,
    ChainStep,
    Policy,
)

ABOUT: Mapping[str, str] = {
    "strategy": "How the history is kept inside the window; `GET /v1/strategies` lists them.",
    "sandwich": "Settings of the strategy `sandwich`.",
    "sandwich.preserve_top": "Messages kept verbatim at the start.",
    "sandwich.preserve_bottom": "Messages kept verbatim at the end.",
    "sandwich.compression_threshold": "Share of the effective window from which a summary is due.",
    "sliding_window": "Settings of the strategy `sliding_window`.",
    "sliding_window.keep_last_n": "How many of the newest messages are shown.",
    "tree_summary": "Settings of the strategy `tree_summary`.",
    "tree_summary.chunk_size": "Messages that one summary takes in, about.",
    "tree_summary.levels": "How often a summary may be summarised again, counting the first.",
    "chain": "Steps of the strategy `chain`, in order; each runs only if still over the target.",
    "compaction": "When and how summaries are made.",
    "compaction.enabled": "false: never compact; a build over the window is refused.",
    "compaction.auto": "false: compact only when asked to, or when the window would overflow.",
    "compaction.threshold_ratio": (
        "Share of the effective window from which `retain_summary`, `tree_summary` and `chain`"
        " are due."
    ),
    "compaction.model": "Model that summarises; `extractive` is the built-in one.",
    "compaction.summary_prompt": "What to ask of a summary, in the place of the built-in prompt.",
    "compaction.summary_directives": "More wishes, added to the prompt as bullets.",
    "compaction.retain_prompt": (
        "Asks for a text beside the summary that is kept word for word; null leaves that to"
        " the directives."
    ),
    "compaction.retain_directives": "More wishes for that text, added to its prompt as bullets.",
    "compaction.retain_last_turns": "Turns that `retain_summary` keeps verbatim at the end.",
    "compaction.mode": (
        "`background`: after the turn, once due; `inline`: only inside a build that needs it."
    ),
    "compaction.target": "Share of the effective window that a compaction brings usage down to.",
    "compaction.min_gain": "Share of the effective window that a compaction must free at least.",
    "compaction.max_messages": "More verbatim messages than this make a compaction due.",
    "budget": "The window and its thresholds.",
    "budget.context_window": "Tokens of the window; null takes the model's.",
    "budget.max_output_tokens": "Tokens kept free for the answer; fewer than the window has.",
    "budget.notice_at": "Share of the effective window from which `notice` is true.",
    "budget.compact_trigger": "Share from which a build compacts before it returns.",
    "budget.hard_block": (
        "Share from which it compacts even where that is not automatic; not below"
        " `compact_trigger`."
    ),
    "budget.on_unknown_model": "`derive`: an unknown model has max_output_tokens x 4.",
    "budget.counter": "How tokens are counted; fixed with a conversation's first message.",
    "tool_output": "How large tool results, and many of them, are kept and shown.",
    "tool_output.enabled": "false: results stay in their messages whole, and in the context.",
    "tool_output.offload_threshold_bytes": "Larger results are kept in a blob and shown as a view.",
    "tool_output.context_budget_tokens": (
        "Tool output in the context beyond this gives way, the oldest first; `auto` is a quarter"
        " of the window, from 20000 to 60000."
    ),
    "tool_output.max_message_bytes": "Bytes that the view of a result takes at most, its note too.",
    "tool_output.max_line_length": (
        "Characters of a line that is shown of a result at most, also of a small one."
    ),
    "tool_output.view": "`truncate`: as much as fits; `reference`: the size and the first words.",
    "tool_output.clear_at_least": (
        "Tokens freed at once when results give way; `auto` is a quarter of their budget."
    ),
    "tool_output.exclude_tools": "Names of tools whose results never give way.",
    "messages": "How user and assistant texts that are too large for the window are shown.",
    "messages.offload_oversized": (
        "true: in a payload that would not fit, such a text gives way to its beginning, a note with"
        " its ref, and its end; false: the build is refused where only that would help."
    ),
    "gc": "What the garbage collection takes besides uploads that no message refers to.",
    "gc.drop_compacted": "true: also blobs whose messages are all compacted away.",
    "tool_deferral_threshold": (
        "Share of the effective window that tool definitions may take before some are held back."
    ),
    "dynamic_position": "Where scratchpad, status and notes stand; `tail` keeps the cached prefix.",
    "status_preamble": "`auto`: a build without a status names the agent's other active"
    " conversations; `none`: it does not.",
    "agent_tools": (
        "Tools of the service added to a payload: `auto` those its texts mention, `none`, or the"
        " names listed."
    ),
    "summary_role": (
        "Role a summary is shown with. Anthropic and Gemini have no system messages in a history:"
        " `system` is shown as `user` there, and `degraded` names `summary_role_user`."
    ),
    "preserve_user_messages": "true: the newest user messages stay verbatim where others do not.",
}
"""What each setting means, by its path."""

_MAX_TEXT = 32_000
_MAX_DIRECTIVES = 100

_LIST = Annotated[
    list[Annotated[str, Field(max_length=_MAX_TEXT)]], Field(max_length=_MAX_DIRECTIVES)
]
AddedTools = TypeAliasType(
    "AddedTools",
    Annotated[AgentTools, Field(description="Which of the service's tools a payload has.")],
)
_OWN_TOOLS = Annotated[
    list[Annotated[str, Field(json_schema_extra={"pattern": f"^({'|'.join(OWN_TOOLS)})$"})]],
    Field(max_length=_MAX_DIRECTIVES),
]
_LIMITS: Mapping[Any, Any] = {
    int: Annotated[int, Field(le=MAX_TOKENS)],
    int | None: Annotated[int, Field(le=MAX_TOKENS)],
    float: Annotated[float, Field(le=1_000_000)],
    str | None: Annotated[str, Field(max_length=_MAX_TEXT)],
    tuple[str, ...]: _LIST,
    AgentTools | tuple[str, ...]: AddedTools | _OWN_TOOLS,
    tuple[ChainStep, ...]: Annotated[
        list[Annotated[ChainStep, Field(strict=False)]],
        Field(min_length=1, max_length=len(ChainStep)),
    ],
}
_NAMES = {"compaction.model": Annotated[str, Field(max_length=256, pattern=NAME_PATTERN)]}

_SHARE = {"exclusiveMinimum": 0, "maximum": 1}
_COUNT = {"minimum": 0}
_POSITIVE = {"minimum": 1}
_VIEW = {"minimum": 1, "maximum": MAX_PREVIEW_BYTES}
BOUNDS: Mapping[str, Mapping[str, Any]] = {
    "sandwich.preserve_top": _COUNT,
    "sandwich.preserve_bottom": _POSITIVE,
    "sandwich.compression_threshold": _SHARE,
    "sliding_window.keep_last_n": _POSITIVE,
    "tree_summary.chunk_size": {"minimum": 2},
    "tree_summary.levels": {"minimum": 1, "maximum": MAX_LEVELS},
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
    "tool_output.max_message_bytes": _VIEW,
    "tool_output.max_line_length": _VIEW,
    "tool_output.clear_at_least": _COUNT,
    "tool_deferral_threshold": _SHARE,
}
"""What the description says of a setting's values, which the domain checks in its own words."""


def _asked(kind: Any, path: str = "") -> type[BaseModel]:
    members: dict[str, Any] = {}
    for name, hint, place in _members(kind, path):
        if is_dataclass(hint):
            wanted: Any = _asked(hint, place)
        else:
            wanted = _NAMES.get(place, _wanted(hint, BOUNDS.get(place)))
        members[name] = (wanted | None, Field(default=None, description=ABOUT[place]))
    title = _title(path)
    return create_model(f"{title}Patch", __base__=Asked, __doc__=_doc(path), **members)


def _shown(kind: Any, path: str = "") -> type[BaseModel]:
    members: dict[str, Any] = {}
    for name, hint, place in _members(kind, path):
        given = _shown(hint, place) if is_dataclass(hint) else hint
        if get_origin(given) is tuple:
            given = list[get_args(given)[0]]  # type: ignore[misc]
        elif given == AgentTools | tuple[str, ...]:
            given = AddedTools | list[str]
        members[name] = (given, Field(description=ABOUT[place]))
    return create_model(_title(path), __base__=Answered, __doc__=_doc(path), **members)


def _members(kind: Any, path: str) -> list[tuple[str, Any, str]]:
    hints = get_type_hints(kind)
    return [
        (entry.name, hints[entry.name], f"{path}.{entry.name}".strip(".")) for entry in fields(kind)
    ]


def _wanted(hint: Any, bounds: Mapping[str, Any] | None) -> Any:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Annotated[hint, Field(strict=False)]
    if hint == int | Auto:
        return _wanted(int, bounds) | Auto
    # A linter wants no `maximum` beside an `exclusiveMaximum`.
    is_below = bounds is not None and "exclusiveMaximum" in bounds
    limited = hint if is_below else _LIMITS.get(hint, hint)
    return Annotated[limited, Field(json_schema_extra=dict(bounds))] if bounds else limited


def _title(path: str) -> str:
    return "".join(word.capitalize() for word in path.split("_")) + "Policy"


def _doc(path: str) -> str:
    return ABOUT[path] if path else "How a conversation's context is kept."


PolicyPatch: Any = _asked(Policy)
"""Policy settings as a caller gives them."""

ShownPolicy: Any = _shown(Policy)
"""The effective policy: every setting, with its value."""


def given_policy(policy: BaseModel | None) -> dict[str, Any] | None:
    """Return the leaves a caller gave, nulls among them; None for a null policy."""
    return None if policy is None else policy.model_dump(exclude_unset=True)
